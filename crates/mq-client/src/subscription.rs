//! Subscriptions as streams.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use futures_core::Stream;
use mq_codec::{
    ByteStr, QoS, ReasonCode, RetainHandling, Subscription as Filter, SubscriptionId,
    SubscriptionOptions, TopicFilter,
};

use crate::{Error, Incoming, lock::lock, shared::Shared};

/// Messages that wait in a stream before the driver stops reading. Default of
/// [`SubscribeOptions::capacity`].
pub(crate) const DEFAULT_CAPACITY: usize = 1024;

/// What to subscribe to, and how.
///
/// ```
/// use mq_client::{QoS, SubscribeOptions};
///
/// let options = SubscribeOptions::to("plant/+/temperature", QoS::AtLeastOnce)?
///     .and_to("plant/+/alarm", QoS::ExactlyOnce)?
///     .no_local(true)
///     .capacity(100);
/// # Ok::<(), mq_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SubscribeOptions {
    pub(crate) filters: Vec<Filter>,
    pub(crate) capacity: usize,
    pub(crate) user_properties: Vec<(ByteStr, ByteStr)>,
    pub(crate) early: bool,
}

impl SubscribeOptions {
    /// One filter, with a QoS or all of MQTT 5.0's options.
    #[must_use]
    pub fn new(filter: TopicFilter, options: impl Into<SubscriptionOptions>) -> Self {
        Self {
            filters: Vec::with_capacity(1),
            capacity: DEFAULT_CAPACITY,
            user_properties: Vec::new(),
            early: false,
        }
        .and(filter, options)
    }

    /// The same with a filter that is still to be checked.
    ///
    /// # Errors
    /// [`Error::Topic`] if it is no topic filter.
    pub fn to<T>(filter: T, options: impl Into<SubscriptionOptions>) -> Result<Self, Error>
    where
        T: TryInto<TopicFilter>,
        Error: From<T::Error>,
    {
        Ok(Self::new(filter.try_into()?, options))
    }

    /// One filter more: its messages come in the same stream.
    #[must_use]
    pub fn and(mut self, filter: TopicFilter, options: impl Into<SubscriptionOptions>) -> Self {
        let options = options.into();
        self.filters.push(Filter { filter, options });
        self
    }

    /// The same with a filter that is still to be checked.
    ///
    /// # Errors
    /// [`Error::Topic`] if it is no topic filter.
    pub fn and_to<T>(
        self,
        filter: T,
        options: impl Into<SubscriptionOptions>,
    ) -> Result<Self, Error>
    where
        T: TryInto<TopicFilter>,
        Error: From<T::Error>,
    {
        Ok(self.and(filter.try_into()?, options))
    }

    /// Whether what this client publishes itself is left out, for the filter that was given last
    /// (5.0). Default: no.
    #[must_use]
    pub fn no_local(mut self, no_local: bool) -> Self {
        self.last().no_local = no_local;
        self
    }

    /// Whether messages keep the RETAIN flag that they were published with, for the filter that was
    /// given last (5.0). Default: no.
    #[must_use]
    pub fn retain_as_published(mut self, retain: bool) -> Self {
        self.last().retain_as_published = retain;
        self
    }

    /// When retained messages are wanted, for the filter that was given last (5.0). Default:
    /// whenever SUBSCRIBE is sent, which a reconnect without a session does as well.
    #[must_use]
    pub fn retain_handling(mut self, handling: RetainHandling) -> Self {
        self.last().retain_handling = handling;
        self
    }

    fn last(&mut self) -> &mut SubscriptionOptions {
        let last = self.filters.last_mut();
        &mut last.expect("`new` begins with one filter").options
    }

    /// Messages that wait in the stream before the driver stops reading; at least 1, default
    /// 1,024.
    #[must_use]
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity.max(1);
        self
    }

    /// A name and a value of SUBSCRIBE for the server's application (5.0). Each call adds one.
    ///
    /// # Errors
    /// [`Error::Text`].
    pub fn user_property<N, V>(mut self, name: N, value: V) -> Result<Self, Error>
    where
        N: TryInto<ByteStr>,
        V: TryInto<ByteStr>,
        Error: From<N::Error> + From<V::Error>,
    {
        let property = (name.try_into()?, value.try_into()?);
        self.user_properties.push(property);
        Ok(self)
    }

    /// Whether SUBSCRIBE may leave before the handshake of TLS or QUIC is complete, as early data;
    /// see [`Outgoing::early`](crate::Outgoing::early) for what can happen to it then. Asked for
    /// twice, retained messages come twice. Default: no.
    #[must_use]
    pub fn early(mut self, early: bool) -> Self {
        self.early = early;
        self
    }

    pub(crate) fn one(filter: TopicFilter, qos: QoS) -> Self {
        Self::new(filter, qos)
    }
}

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

    /// The next message; `None` once the subscription has ended and all was read. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Incoming> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next message if one is there.
    pub fn try_recv(&mut self) -> Option<Incoming> {
        self.inbox.pop(&self.shared)
    }

    /// [`recv`](Self::recv) for those who poll.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        self.inbox.poll_pop(&self.shared, cx)
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

/// The stream was dropped.
#[derive(Debug)]
pub(crate) struct Abandoned;

/// The bounded queue between the driver and one stream.
#[derive(Debug)]
pub(crate) struct Inbox {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Incoming>,
    waker: Option<Waker>,
    /// The driver will put nothing more in.
    ended: bool,
    /// Nobody will take anything out.
    abandoned: bool,
    /// The driver waits for room.
    wanted: bool,
}

impl Inbox {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Driver: puts in what `next` gives while there is room. If the stream is full, the driver is
    /// woken once there is room again. Returns whether there was room for all.
    pub(crate) fn fill<T>(
        &self,
        staged: &mut VecDeque<T>,
        mut convert: impl FnMut(T) -> Incoming,
    ) -> Result<bool, Abandoned> {
        let mut state = self.lock();
        if state.abandoned {
            return Err(Abandoned);
        }
        let before = state.waiting.len();
        while state.waiting.len() < self.capacity
            && let Some(message) = staged.pop_front()
        {
            state.waiting.push_back(convert(message));
        }
        state.wanted = !staged.is_empty();
        let waker = if state.waiting.len() > before {
            state.waker.take()
        } else {
            None
        };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(staged.is_empty())
    }

    /// Driver: nothing more comes.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn pop(&self, shared: &Shared) -> Option<Incoming> {
        let mut state = self.lock();
        self.take(&mut state, shared)
    }

    fn poll_pop(&self, shared: &Shared, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        let mut state = self.lock();
        if let Some(message) = self.take(&mut state, shared) {
            return Poll::Ready(Some(message));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn take(&self, state: &mut State, shared: &Shared) -> Option<Incoming> {
        let message = state.waiting.pop_front()?;
        // Half empty: the driver is not woken for each message.
        if state.wanted && state.waiting.len() <= self.capacity / 2 {
            state.wanted = false;
            shared.queue.wake_driver();
        }
        Some(message)
    }

    /// The stream is gone. Returns whether the driver still served it.
    fn abandon(&self) -> bool {
        let mut state = self.lock();
        state.abandoned = true;
        let waiting = core::mem::take(&mut state.waiting);
        let was_open = !state.ended;
        drop(state);
        for mut message in waiting {
            // With manual acknowledgement these would hold up all later ones; a client that has
            // ended has nothing to acknowledge.
            let _ = message.acknowledge(ReasonCode::Success);
        }
        was_open
    }
}
