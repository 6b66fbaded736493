//! The authenticator, the authorizer and the throttle of one broker.

use std::{num::NonZeroU32, sync::Arc, time::Instant};

use mq_codec::{QoS, TopicFilter, Will};

use super::{Authenticator, Authorizer, Grant, Principal, Throttle, Tried};

/// The authenticator, the authorizer and the throttle that decide about clients. Without them every
/// client may do everything.
#[derive(Debug, Default)]
pub(crate) struct AccessControl {
    pub(crate) authenticator: Option<Arc<dyn Authenticator>>,
    pub(crate) authorizer: Option<Arc<dyn Authorizer>>,
    throttle: Option<Arc<Throttle>>,
}

impl AccessControl {
    pub(crate) fn new(
        authenticator: Option<Arc<dyn Authenticator>>,
        authorizer: Option<Arc<dyn Authorizer>>,
        failures_per_minute: Option<NonZeroU32>,
    ) -> Self {
        Self {
            authenticator,
            authorizer,
            throttle: failures_per_minute.map(|count| Arc::new(Throttle::new(count))),
        }
    }

    /// Returns `true` if there is an authenticator or an authorizer, so that clients have
    /// principals.
    pub(crate) fn is_set(&self) -> bool {
        self.authenticator.is_some() || self.authorizer.is_some()
    }

    pub(crate) fn throttle(&self) -> Option<&Arc<Throttle>> {
        self.throttle.as_ref()
    }

    pub(crate) fn may_try(&self, tried: Option<Tried>, now: Instant) -> bool {
        match (&self.throttle, tried) {
            (Some(throttle), Some(tried)) => throttle.may_try(tried, now),
            _ => true,
        }
    }

    pub(crate) fn failed(&self, tried: Option<Tried>, now: Instant) {
        if let (Some(throttle), Some(tried)) = (&self.throttle, tried) {
            throttle.failed(tried, now);
        }
    }

    /// Returns the rules' generation; 0 without an authorizer.
    pub(crate) fn generation(&self) -> u64 {
        match &self.authorizer {
            Some(authorizer) => authorizer.generation(),
            None => 0,
        }
    }

    pub(crate) fn may_publish(
        &self,
        who: Option<&Principal>,
        topic: &str,
        qos: QoS,
        retain: bool,
    ) -> bool {
        match (&self.authorizer, who) {
            (Some(authorizer), Some(who)) => authorizer.may_publish(who, topic, qos, retain),
            _ => true,
        }
    }

    pub(crate) fn may_have_will(&self, who: Option<&Principal>, will: &Will) -> bool {
        self.may_publish(who, &will.topic, will.qos, will.retain)
    }

    pub(crate) fn subscription(&self, who: Option<&Principal>, filter: &TopicFilter) -> Grant {
        match (&self.authorizer, who) {
            (Some(authorizer), Some(who)) => authorizer.subscription(who, filter),
            _ => Grant::All,
        }
    }
}
