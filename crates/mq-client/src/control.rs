//! What handles ask of the driver beside messages.

use std::{collections::VecDeque, time::Duration};

use mq_codec::{ReasonCode, SubscriptionId};
use mq_proto::AckTicket;
use mq_transport::LinkStats;
use tokio::sync::oneshot;

use crate::driver::Request;

/// A message of the application's that it has dealt with.
#[derive(Debug)]
pub(crate) struct ManualAck {
    pub(crate) ticket: AckTicket,
    /// The connection that the ticket belongs to.
    pub(crate) connection: u64,
    pub(crate) reason: ReasonCode,
}

/// All that is asked for beside messages; taken by the driver as a whole.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) requests: VecDeque<Request>,
    /// At most as many as the Receive Maximum (3.x: as many as the application keeps).
    pub(crate) acks: Vec<ManualAck>,
    /// Subscriptions whose streams were dropped.
    pub(crate) dropped: Vec<SubscriptionId>,
    pub(crate) stats: Vec<oneshot::Sender<LinkStats>>,
    /// Set once: end within this time.
    pub(crate) end: Option<Duration>,
}
