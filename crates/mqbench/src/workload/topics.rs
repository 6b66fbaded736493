//! Names of one topic or several, and the subscriptions to them.

use std::{future::poll_fn, num::NonZeroU32, task::Poll};

use anyhow::Context as _;
use mq_client::{Client, Incoming, Subscription};
use mq_codec::{QoS, TopicName};
use tokio::task::JoinSet;

/// Largest number of topics: each has a subscription of its own.
pub(crate) const MOST: NonZeroU32 = NonZeroU32::new(256).expect("not zero");

/// Returns the names of topics to which messages are published in turn. A single topic has the name itself.
///
/// # Errors
/// If a name is no valid topic name.
pub(crate) fn names(name: &str, topics: NonZeroU32) -> anyhow::Result<Vec<TopicName>> {
    let several = topics > NonZeroU32::MIN;
    let each = (0..topics.get()).map(|number| {
        if several {
            TopicName::new(format!("{name}/topic-{number}"))
        } else {
            TopicName::new(name)
        }
    });
    let names: Result<Vec<_>, _> = each.collect();
    names.with_context(|| format!("the topic {name} is not valid"))
}

/// Subscriptions to several topics, each by a SUBSCRIBE of its own.
#[derive(Debug)]
pub(crate) struct Subscriptions(Vec<Subscription>);

impl Subscriptions {
    /// Subscribes to one filter.
    pub(crate) async fn to_filter(filter: &str, client: &Client, qos: QoS) -> anyhow::Result<Self> {
        let subscription = client.subscribe(filter, qos).await;
        Ok(Self(vec![subscription.context("cannot subscribe")?]))
    }

    /// Subscribes to each of the topics, concurrently.
    pub(crate) async fn to(
        topics: &[TopicName],
        client: &Client,
        qos: QoS,
    ) -> anyhow::Result<Self> {
        let mut subscribing = JoinSet::new();
        for topic in topics {
            let (client, topic) = (client.clone(), topic.as_str().to_owned());
            subscribing.spawn(async move { client.subscribe(topic, qos).await });
        }
        let mut all = Vec::with_capacity(topics.len());
        while let Some(subscription) = subscribing.join_next().await {
            let subscription = subscription.context("a subscribing task failed")?;
            all.push(subscription.context("cannot subscribe")?);
        }
        Ok(Self(all))
    }

    /// Waits for the next message of any topic; returns `None` once the connection has ended and all messages have been
    /// taken. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        poll_fn(|cx| {
            let mut pending = false;
            for subscription in &mut self.0 {
                match subscription.poll_recv(cx) {
                    Poll::Ready(Some(incoming)) => return Poll::Ready(Some(incoming)),
                    Poll::Ready(None) => {}
                    Poll::Pending => pending = true,
                }
            }
            if pending {
                Poll::Pending
            } else {
                Poll::Ready(None)
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_topic_keeps_its_name_and_several_are_numbered() {
        let names = |topics| {
            let names = names("a/b", NonZeroU32::new(topics).unwrap()).unwrap();
            names.iter().map(|name| name.as_str().to_owned()).collect()
        };
        let one: Vec<String> = names(1);
        assert_eq!(one, ["a/b"]);
        let two: Vec<String> = names(2);
        assert_eq!(two, ["a/b/topic-0", "a/b/topic-1"]);
    }
}
