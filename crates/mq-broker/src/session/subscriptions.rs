//! The subscriptions of one session.

use std::sync::{Arc, Mutex, MutexGuard};

use hashbrown::HashMap;
use mq_codec::TopicFilter;

use crate::{lock::lock, router::Subscriber};

/// The subscriptions of one session. Its connection changes them, and operators read them. No message is
/// routed by them: the lock is taken for requests alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscriptions(Arc<Mutex<HashMap<TopicFilter, Subscriber>>>);

impl Subscriptions {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<TopicFilter, Subscriber>> {
        lock(&self.0)
    }
}
