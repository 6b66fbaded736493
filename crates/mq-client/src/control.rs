//! Requests of handles to the driver, beside messages.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use mq_codec::{ReasonCode, SubscriptionId, TopicFilter};
use mq_proto::AckTicket;
use mq_transport::LinkStats;
use tokio::sync::oneshot;

use crate::{Error, SubscribeOptions, inbox::Inbox, responses::Responses};

/// The acknowledgement of a message by the application.
#[derive(Debug)]
pub(crate) struct ManualAck {
    pub(crate) ticket: AckTicket,
    /// The connection that the ticket belongs to.
    pub(crate) connection: u64,
    pub(crate) reason: ReasonCode,
}

/// All requests beside messages; the driver takes them as a whole.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) requests: VecDeque<Request>,
    /// Bounded by the Receive Maximum (3.x: by the messages that the application keeps).
    pub(crate) acks: Vec<ManualAck>,
    /// Subscriptions whose streams the application has dropped.
    pub(crate) dropped: Vec<SubscriptionId>,
    pub(crate) stats: Vec<oneshot::Sender<LinkStats>>,
    /// `true` if the driver has to leave the link and connect again.
    pub(crate) reconnect: bool,
    /// Time within which the driver has to end, from the first request for its end; `None` until there is such a
    /// request.
    pub(crate) end: Option<Duration>,
}

pub(crate) type Reply<T> = Option<oneshot::Sender<Result<T, Error>>>;

/// A subscription to make or to end.
#[derive(Debug)]
pub(crate) enum Request {
    Subscribe(Box<SubscribeRequest>),
    Unsubscribe(UnsubscribeRequest),
}

/// A new subscription.
#[derive(Debug)]
pub(crate) struct SubscribeRequest {
    pub(crate) id: SubscriptionId,
    pub(crate) options: SubscribeOptions,
    pub(crate) outlet: Outlet,
    pub(crate) reply: Reply<Vec<ReasonCode>>,
}

/// Destination of the messages of a subscription.
#[derive(Clone, Debug)]
pub(crate) enum Outlet {
    Stream(Arc<Inbox>),
    /// The requests that wait for responses; there is always room.
    Requests(Arc<Responses>),
}

/// Filters to end.
#[derive(Debug)]
pub(crate) struct UnsubscribeRequest {
    pub(crate) filters: Vec<TopicFilter>,
    pub(crate) reply: Reply<()>,
}
