//! The checks of a bridge's settings.

use std::time::Duration;

use mq_codec::{TopicName, Version};
use mq_transport::Address;

use super::{PublishedState, Topics};
use crate::{
    hub::bridge_state_topic,
    router::is_too_deep,
    settings::{BridgeNotifications, BridgeSettings, BridgeStart},
};

impl BridgeSettings {
    /// Returns the state that the bridge publishes, if it does.
    ///
    /// # Errors
    /// The problem of the topic, in words for the operator.
    pub(super) fn state(&self, client_id: &str) -> Result<Option<PublishedState>, String> {
        if self.notifications == BridgeNotifications::Off {
            return Ok(None);
        }
        let own = self.notification_topic.clone();
        let topic = own.unwrap_or_else(|| bridge_state_topic(client_id));
        let problem = match TopicName::new(topic.clone()) {
            Ok(name) if !is_too_deep(name.as_bytes()) => {
                let is_published_there = self.notifications == BridgeNotifications::Both;
                return Ok(Some(PublishedState {
                    topic: name,
                    is_published_there,
                }));
            }
            Ok(_) => "too many levels".to_owned(),
            Err(error) => error.kind().to_string(),
        };
        Err(format!(
            "cannot publish the state under {topic:?} ({problem}): give another `notification_topic`, or \
             `notifications = false`"
        ))
    }

    /// Returns the topic of the bridge's state, as far as the settings determine it.
    pub(crate) fn state_topic(&self) -> Option<String> {
        if self.notifications == BridgeNotifications::Off {
            return None;
        }
        let of_client = || self.client_id.as_deref().map(bridge_state_topic);
        self.notification_topic.clone().or_else(of_client)
    }

    pub(super) fn idle_timeout(&self) -> Option<Duration> {
        match self.start {
            BridgeStart::Automatic => None,
            BridgeStart::Lazy(timeout) => Some(timeout),
        }
    }

    /// Checks the settings. Returns the topics.
    ///
    /// # Errors
    /// The problem, in words for the operator.
    pub(crate) fn check(&self) -> Result<Topics, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || !self.name.chars().all(is_name) {
            return Err("the name may have only letters, digits, -, _ and .".to_owned());
        }
        if self.addresses.is_empty() {
            return Err("no address is configured".to_owned());
        }
        let is_open = |address: &&Address| !address.scheme.is_encrypted() && !address.is_local();
        let open = self.addresses.iter().find(is_open);
        if let Some(address) = open
            && !self.plaintext
        {
            return Err(format!(
                "{address} is another machine, and without encryption: take tls:// or quic://, or allow it \
                 by `plaintext = true`"
            ));
        }
        if self.keep_alive.as_secs() > u16::MAX.into() {
            return Err("the keep-alive is longer than 65535 s".to_owned());
        }
        self.state(self.client_id.as_deref().unwrap_or_default())?;
        let topics = Topics::new(&self.topics)?;
        if self.version < Version::V5
            && let Some((there, here)) = topics.circle()
        {
            return Err(format!(
                "messages sent to {there} would return by {here} and circulate for ever, as the remote broker cannot \
                 leave them out before MQTT 5.0: use other prefixes"
            ));
        }
        Ok(topics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{BridgeTopic, Direction};

    fn settings(url: &str) -> BridgeSettings {
        let topics = vec![BridgeTopic {
            direction: Direction::Both,
            ..BridgeTopic::new("a/#")
        }];
        BridgeSettings::new("cloud", vec![url.parse().unwrap()], topics)
    }

    #[test]
    fn a_mistake_is_named() {
        let good = settings("quic://cloud.example");
        good.check().unwrap();
        settings("tcp://127.0.0.1").check().unwrap();
        settings("tcp://[::1]").check().unwrap();
        let open = settings("tcp://cloud.example");
        let asked_for = BridgeSettings {
            plaintext: true,
            ..open.clone()
        };
        asked_for.check().unwrap();
        let mut nameless = good.clone();
        nameless.name = "a b".to_owned();
        let mut nowhere = good.clone();
        nowhere.addresses.clear();
        let mut old = good.clone();
        old.version = Version::V3_1_1;
        let with_topic = |topic: String| BridgeSettings {
            notification_topic: Some(topic),
            ..good.clone()
        };
        let mut wild_client = good.clone();
        wild_client.client_id = Some("edge+7".to_owned());
        for (wrong, says) in [
            (open, "without encryption"),
            (nameless, "letters"),
            (nowhere, "no address"),
            (old, "for ever"),
            (with_topic("state/#".to_owned()), "give another"),
            (with_topic(String::new()), "give another"),
            (with_topic("/".repeat(200)), "too many levels"),
            (wild_client, "connection/edge+7/state"),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
