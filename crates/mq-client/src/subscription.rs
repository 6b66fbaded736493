//! Subscriptions as streams.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use mq_codec::{ReasonCode, SubscriptionId};

use crate::{
    Incoming, SubscribeOptions,
    control::{Outlet, Reply, Request, SubscribeRequest},
    inbox::Inbox,
    shared::Shared,
};

/// The messages of one subscription, as a stream; survives reconnects.
///
/// The stream holds a bounded number of messages. While it is full the driver stops reading from
/// the link and acknowledges nothing more, so that the server holds the rest: that is the
/// back-pressure, and it is the whole connection's, other subscriptions and acknowledgements of
/// published messages included. Read each stream, or drop it.
///
/// Dropping it ends the subscription: the driver sends UNSUBSCRIBE. It ends by itself (`None`) when
/// the client ends, when [`Client::unsubscribe`](crate::Client::unsubscribe) has removed its last
/// filter, when another subscription of this client took its filters over, or when the server
/// refuses to renew it after having lost the session.
pub struct Subscription {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    id: Option<SubscriptionId>,
    pub(crate) granted: Vec<ReasonCode>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    pub(crate) fn new(shared: Arc<Shared>, inbox: Arc<Inbox>, id: Option<SubscriptionId>) -> Self {
        Self {
            shared,
            inbox,
            id,
            granted: Vec::new(),
        }
    }

    /// A new stream, and the request that has it filled.
    pub(crate) fn requested(
        shared: Arc<Shared>,
        id: SubscriptionId,
        options: SubscribeOptions,
        reply: Reply<Vec<ReasonCode>>,
    ) -> (Self, Request) {
        let inbox = Arc::new(Inbox::new(options.capacity));
        let request = Request::Subscribe(Box::new(SubscribeRequest {
            id,
            options,
            outlet: Outlet::Stream(inbox.clone()),
            reply,
        }));
        (Self::new(shared, inbox, Some(id)), request)
    }

    /// The next message; `None` once the subscription has ended and all was read. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Incoming> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next message if one is there.
    pub fn try_recv(&mut self) -> Option<Incoming> {
        self.inbox.pop(|| self.shared.queue.wake_driver())
    }

    /// [`recv`](Self::recv) for those who poll.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        self.inbox.poll_pop(|| self.shared.queue.wake_driver(), cx)
    }

    /// What the server granted, filter by filter in the order of the options: a granted QoS or a
    /// refusal. Empty where it was not waited for: early subscriptions and
    /// [`Client::messages`](crate::Client::messages).
    #[must_use]
    pub fn granted(&self) -> &[ReasonCode] {
        &self.granted
    }

    /// Its subscription identifier (5.0), as in [`Incoming::subscription_ids`]; `None` for
    /// [`Client::messages`](crate::Client::messages).
    #[must_use]
    pub fn id(&self) -> Option<SubscriptionId> {
        self.id
    }
}

impl Stream for Subscription {
    type Item = Incoming;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        self.get_mut().poll_recv(cx)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let was_open = self.inbox.abandon();
        if let Some(id) = self.id
            && was_open
        {
            // A client that has ended has no subscriptions to end.
            let _ = self
                .shared
                .queue
                .control(|control| control.dropped.push(id));
        } else {
            self.shared.queue.wake_driver();
        }
    }
}
