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
    lock::lock,
    shared::Shared,
    subscribe::DEFAULT_CAPACITY,
};

/// The messages of one subscription, as a stream; survives reconnects.
///
/// The stream holds a bounded number of messages. While it is full, the driver neither reads the
/// link nor acknowledges more, so that the server holds the rest. This back-pressure stops the whole
/// connection, with other subscriptions and acknowledgements of published messages. Read each
/// stream, or drop it.
///
/// Dropping the stream ends the subscription: the driver sends UNSUBSCRIBE. The stream ends by itself
/// (`None`) when the client ends, when [`Client::unsubscribe`](crate::Client::unsubscribe) has removed
/// its last filter, when another subscription of this client took its filters over, or when the
/// server has lost the session and refuses to renew the subscription.
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

    /// Makes the stream of messages that match no subscription; an earlier such stream ends.
    pub(crate) fn to_the_rest(shared: Arc<Shared>) -> Self {
        let inbox = Arc::new(Inbox::new(DEFAULT_CAPACITY));
        let mut catch_all = lock(&shared.catch_all);
        if let Some(earlier) = catch_all.replace(inbox.clone()) {
            earlier.end();
        }
        if shared.queue.closed().is_some() {
            inbox.end();
        }
        drop(catch_all);
        Self::new(shared, inbox, None)
    }

    /// Makes a new stream, and the request to fill it.
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

    /// Waits for the next message; `None` once the subscription has ended and all was read. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Incoming> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Returns the next message if one waits, without blocking; `None` otherwise.
    pub fn try_recv(&mut self) -> Option<Incoming> {
        self.inbox.pop(|| self.shared.queue.wake_driver())
    }

    /// Polls for the next message, as [`recv`](Self::recv) awaits it.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        self.inbox.poll_pop(|| self.shared.queue.wake_driver(), cx)
    }

    /// Returns the server's reason code for each filter, in the order of the options: a granted QoS or a refusal. Empty
    /// for early subscriptions and [`Client::messages`](crate::Client::messages), which do not wait for SUBACK.
    #[must_use]
    pub fn granted(&self) -> &[ReasonCode] {
        &self.granted
    }

    /// Returns the subscription identifier (5.0), as in [`Incoming::subscription_ids`]; `None` for
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
            if self.id.is_none() {
                let mut catch_all = lock(&self.shared.catch_all);
                let current = catch_all.as_ref();
                if current.is_some_and(|current| Arc::ptr_eq(current, &self.inbox)) {
                    *catch_all = None;
                }
            }
            self.shared.queue.wake_driver();
        }
    }
}
