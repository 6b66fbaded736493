//! The last answer of the access rules to one connection.

use mq_codec::{QoS, TopicName};

use crate::auth::{AccessControl, Principal};

/// The last answer of the rules, and the message that it was about: the next one like it needs no other.
#[derive(Debug, Default)]
pub(super) struct PermissionCache(Option<Box<Permission>>);

#[derive(Debug, Default)]
struct Permission {
    topic: Vec<u8>,
    qos: QoS,
    retain: bool,
    /// The generation of the rules.
    rules: u64,
    is_granted: bool,
}

impl PermissionCache {
    /// Returns `true` if the rules let `who` publish such a message.
    pub(super) fn may_publish(
        &mut self,
        access_control: &AccessControl,
        who: &Principal,
        topic: &TopicName,
        qos: QoS,
        retain: bool,
    ) -> bool {
        let rules = access_control.generation();
        if let Some(last) = &self.0
            && (last.rules, last.qos, last.retain) == (rules, qos, retain)
            && last.topic == topic.as_bytes()
        {
            return last.is_granted;
        }
        let is_granted = access_control.may_publish(Some(who), topic, qos, retain);
        let last = self.0.get_or_insert_default();
        last.topic.clear();
        last.topic.extend_from_slice(topic.as_bytes());
        (last.rules, last.qos, last.retain) = (rules, qos, retain);
        last.is_granted = is_granted;
        is_granted
    }

    /// Drops the answer: the client has other rights.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}
