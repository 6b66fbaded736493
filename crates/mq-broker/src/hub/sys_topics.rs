//! `$SYS`: the broker's own figures as messages, under mosquitto's names.

use std::{sync::Arc, time::Duration};

use hashbrown::HashMap;
use mq_codec::{QoS, TopicName};
use mq_proto::Message;

use super::Hub;
use crate::{
    bridge::{Bridge, STATE_QOS, is_state_of},
    clock,
    metrics::ListenerMetrics,
};

/// Topics that begin like this are the broker's own.
const PREFIX: &str = "$SYS/";

/// Topics that clients do not publish, as the broker does.
#[derive(Debug, Default)]
pub(crate) struct OwnTopics {
    /// `true` if it publishes figures.
    has_figures: bool,
    /// The states of its bridges.
    states: Vec<TopicName>,
}

impl OwnTopics {
    /// Returns the topics of a broker with or without figures, and of these bridges.
    pub(crate) fn new<'a>(
        has_figures: bool,
        bridges: impl IntoIterator<Item = &'a Bridge>,
    ) -> Self {
        let states = bridges.into_iter().filter_map(|one| one.state.as_ref());
        Self {
            has_figures,
            states: states.map(|state| state.topic.clone()).collect(),
        }
    }

    /// Returns `true` if clients may not publish to that topic. A bridge of a remote broker publishes its own state
    /// here, as it does at mosquitto.
    pub(crate) fn has(&self, topic: &TopicName, client_id: &str) -> bool {
        self.states.contains(topic)
            || self.has_figures
                && topic.as_bytes().starts_with(PREFIX.as_bytes())
                && !is_state_of(topic, client_id)
    }
}

impl Hub {
    /// Publishes whether a bridge is connected, if it is configured to.
    pub(crate) fn publish_bridge_state(&self, bridge: &Bridge, is_connected: bool) {
        if let Some(state) = &bridge.state {
            self.publish_own(state.message(is_connected), STATE_QOS);
        }
    }

    /// Publishes figures that have changed, retained, at QoS 0, at that interval. Never returns.
    pub(crate) async fn publish_figures(
        &self,
        interval: Duration,
        listeners: &[Arc<ListenerMetrics>],
    ) {
        let began = clock::now();
        let mut published = HashMap::new();
        let mut most = 0;
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            most = most.max(self.metrics.connections.get());
            let uptime = began.elapsed().as_secs();
            for (name, value) in self.figures(uptime, most, listeners) {
                let before = published.insert(name, value.clone());
                if before.as_ref() != Some(&value) {
                    self.publish_own(figure(name, value), QoS::AtMostOnce);
                }
            }
        }
    }

    fn figures(
        &self,
        uptime: u64,
        most: usize,
        listeners: &[Arc<ListenerMetrics>],
    ) -> Vec<(&'static str, String)> {
        let metrics = &self.metrics;
        let connected = metrics.connections.get();
        let sessions = metrics.sessions.get();
        let sum = |field: fn(&ListenerMetrics) -> u64| {
            let all = listeners.iter().map(|listener| field(listener));
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
