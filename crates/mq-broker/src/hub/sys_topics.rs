//! `$SYS`: the broker's own figures as messages, under mosquitto's names.

use std::{sync::Arc, time::Duration};

use hashbrown::HashMap;
use mq_codec::{QoS, TopicName};
use mq_proto::Message;

use super::Hub;
use crate::{clock, metrics::ListenerMetrics};

/// Topics that begin like this are the broker's own.
const PREFIX: &str = "$SYS/";

/// Begin and end of the topic of a bridge's state around the bridge's client identifier, by mosquitto's name for it.
const BRIDGE_STATE_PREFIX: &str = "$SYS/broker/connection/";
const BRIDGE_STATE_SUFFIX: &str = "/state";

/// Returns the topic of the state of a bridge that has that client identifier at its remote broker.
pub(crate) fn bridge_state_topic(client_id: &str) -> String {
    format!("{BRIDGE_STATE_PREFIX}{client_id}{BRIDGE_STATE_SUFFIX}")
}

/// Returns `true` if a bridge of a remote broker, that client here, publishes its state to the topic.
fn is_bridge_state_of(topic: &str, client_id: &str) -> bool {
    let name = topic.strip_prefix(BRIDGE_STATE_PREFIX);
    name.and_then(|name| name.strip_suffix(BRIDGE_STATE_SUFFIX)) == Some(client_id)
}

/// Topics that clients do not publish, as the broker does.
#[derive(Debug, Default)]
pub(crate) struct OwnTopics {
    /// `true` if it publishes figures.
    has_figures: bool,
    /// Topics of the states of its bridges.
    bridge_states: Vec<TopicName>,
}

impl OwnTopics {
    /// Returns the topics of a broker with or without figures, and with these states of bridges.
    pub(crate) fn new(
        has_figures: bool,
        bridge_states: impl IntoIterator<Item = TopicName>,
    ) -> Self {
        Self {
            has_figures,
            bridge_states: bridge_states.into_iter().collect(),
        }
    }

    /// Returns `true` if clients may not publish to that topic. A bridge of a remote broker publishes its own state
    /// here, as it does at mosquitto.
    pub(crate) fn has(&self, topic: &TopicName, client_id: &str) -> bool {
        self.bridge_states.contains(topic)
            || self.has_figures
                && topic.as_bytes().starts_with(PREFIX.as_bytes())
                && !is_bridge_state_of(topic, client_id)
    }
}

/// The publisher of the broker's figures.
pub(crate) struct FigurePublisher {
    pub(crate) hub: Arc<Hub>,
    pub(crate) listeners: Vec<Arc<ListenerMetrics>>,
}

impl FigurePublisher {
    /// Publishes figures that have changed, retained, at QoS 0, at that interval. Never returns.
    pub(crate) async fn run(self, interval: Duration) {
        let began = clock::now();
        let mut published = HashMap::new();
        let mut most = 0;
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            most = most.max(self.hub.metrics.connections.get());
            let uptime = began.elapsed().as_secs();
            for (name, value) in self.figures(uptime, most) {
                let before = published.insert(name, value.clone());
                if before.as_ref() != Some(&value) {
                    self.hub.publish_own(figure(name, value), QoS::AtMostOnce);
                }
            }
        }
    }

    fn figures(&self, uptime: u64, most: usize) -> Vec<(&'static str, String)> {
        let metrics = &self.hub.metrics;
        let connected = metrics.connections.get();
        let sessions = metrics.sessions.get();
        let sum = |field: fn(&ListenerMetrics) -> u64| {
            let all = self.listeners.iter().map(|listener| field(listener));
            all.sum::<u64>().to_string()
        };
        vec![
            (
                "version",
                concat!("mqbroker version ", env!("CARGO_PKG_VERSION")).to_owned(),
            ),
            ("uptime", format!("{uptime} seconds")),
            ("clients/connected", connected.to_string()),
            (
                "clients/disconnected",
                sessions.saturating_sub(connected).to_string(),
            ),
            ("clients/total", sessions.to_string()),
            ("clients/maximum", most.to_string()),
            ("messages/stored", metrics.retained.get().to_string()),
            (
                "retained messages/count",
                metrics.retained.get().to_string(),
            ),
            (
                "subscriptions/count",
                metrics.subscriptions.get().to_string(),
            ),
            (
                "publish/messages/received",
                metrics.messages_in.get().to_string(),
            ),
            (
                "publish/messages/sent",
                metrics.messages_out.get().to_string(),
            ),
            (
                "publish/messages/dropped",
                metrics.dropped.get().to_string(),
            ),
            (
                "bytes/received",
                sum(|listener| listener.bytes_received.get()),
            ),
            ("bytes/sent", sum(|listener| listener.bytes_sent.get())),
        ]
    }
}

/// Makes the message of one figure.
fn figure(name: &str, value: String) -> Message {
    let topic = format!("{PREFIX}broker/{name}");
    let topic = TopicName::new(topic).expect("short, and without wildcards");
    Message::new(topic, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_has_the_topic_of_its_own_client_identifier_and_no_other() {
        for client_id in ["edge-7", "a/b", "ä", ""] {
            let topic = bridge_state_topic(client_id);
            assert!(is_bridge_state_of(&topic, client_id), "{topic}");
            assert!(!is_bridge_state_of(&topic, "edge-8"), "{topic}");
        }
        assert_eq!(
            bridge_state_topic("edge-7"),
            "$SYS/broker/connection/edge-7/state"
        );
        for topic in [
            "$SYS/broker/connection/edge-7",
            "$SYS/broker/connection/edge-7/state/x",
            "$SYS/broker/edge-7/state",
            "edge-7",
        ] {
            assert!(!is_bridge_state_of(topic, "edge-7"), "{topic}");
        }
    }
}
