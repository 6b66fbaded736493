//! Retained messages that a subscription asked for.

use mq_codec::{QoS, SubscriptionId, TopicFilter};

use crate::router::{Cursor, LaneSlot};

/// The retained messages that a subscription asked for and has not got yet.
///
/// The messages are not queued: the session takes the next ones once its reader has taken the earlier ones,
/// however many there are. A topic whose message changes meanwhile is left out: the new message
/// comes by the subscription, so that nothing older follows it.
#[derive(Debug)]
pub(crate) struct RetainedSearch {
    pub(crate) filter: TopicFilter,
    pub(crate) qos: QoS,
    pub(crate) subscription_id: Option<SubscriptionId>,
    pub(crate) lane: LaneSlot,
    pub(crate) cursor: Cursor,
    /// The last message that was retained when the subscription was made.
    pub(crate) since: u64,
    /// The last one that was retained while no connection had the session. At QoS 0 the session did
    /// not get it by the subscription.
    pub(crate) since_qos0: u64,
}

impl RetainedSearch {
    /// Returns the number of bytes of the search's cursor; its filter counts with the subscription.
    pub(crate) fn bytes(&self) -> usize {
        self.cursor.bytes()
    }
}
