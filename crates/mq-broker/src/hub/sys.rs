//! `$SYS`: the broker's own figures as messages, under mosquitto's names.

use std::{sync::Arc, time::Duration};

use hashbrown::HashMap;
use mq_codec::{QoS, TopicName};
use mq_proto::{Message, Received};

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
    /// Whether it publishes figures.
    has_figures: bool,
    /// The states of its bridges.
    states: Vec<TopicName>,
}

impl OwnTopics {
    /// With figures or without, and of these bridges.
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

    /// Whether it is such a topic to that client. A bridge of another broker tells its own state here, as it does at
    /// mosquitto.
    pub(crate) fn has(&self, topic: &TopicName, client_id: &str) -> bool {
        self.states.contains(topic)
            || self.has_figures
                && topic.as_bytes().starts_with(PREFIX.as_bytes())
                && !is_state_of(topic, client_id)
    }
}

impl Hub {
    /// Says whether a bridge is connected, if it tells that.
    pub(crate) fn tell_state(&self, bridge: &Bridge, is_connected: bool) {
        if let Some(state) = &bridge.state {
            self.say(state.message(is_connected), STATE_QOS);
        }
    }

    /// Publishes figures that have changed, retained, at QoS 0, each time that long has passed.
    /// Never returns.
    pub(crate) async fn tell_of_itself(&self, every: Duration, listeners: &[Arc<ListenerMetrics>]) {
        let began = clock::now();
        let mut told = HashMap::new();
        let mut most = 0;
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            most = most.max(self.metrics.connections.get());
            let uptime = began.elapsed().as_secs();
            for (name, value) in self.figures(uptime, most, listeners) {
                let before = told.insert(name, value.clone());
                if before.as_ref() != Some(&value) {
                    self.tell(name, value);
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

    fn tell(&self, name: &str, value: String) {
        let topic = format!("{PREFIX}broker/{name}");
        let topic = TopicName::new(topic).expect("short, and without wildcards");
        self.say(Message::new(topic, value), QoS::AtMostOnce);
    }

    /// Publishes a message of the broker's own, and makes it the topic's retained one. Nobody waits for room.
    fn say(&self, message: Message, qos: QoS) {
        let kept = Arc::new(self.memory_limit.keep_anyway(&message));
        // Not in the store: the next broker has its own to say.
        let _ = self.set_retained(&kept, qos, None, usize::MAX);
        let received = Received::own(message, qos);
        let mut publisher = self.publisher();
        self.publish(None, received, clock::now(), &mut publisher);
        self.finish(publisher);
    }
}
