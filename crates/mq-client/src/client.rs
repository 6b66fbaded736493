//! The handle to a client.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use mq_codec::{QoS, SubscriptionId, TopicFilter, TopicName, Version};
use mq_transport::LinkStats;

use tokio::sync::oneshot;

use crate::{
    ConnectTimes, Error, EventStream, Outgoing, Receipt, SubscribeOptions, Subscription,
    control::{Request, UnsubscribeRequest},
    lock::lock,
    queue::Push,
    responses::Responses,
    shared::{Shared, Status},
};

/// A handle to an MQTT client; clones are handles to the same client.
///
/// The client itself is one task of the tokio runtime in which it was started. The task owns the
/// connection and connects again when the connection is lost. It ends in order with
/// [`disconnect`](Self::disconnect), or in the background when the last handle is dropped;
/// subscriptions and receipts do not keep it alive. See the [crate's documentation](crate).
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: Arc<Handle>,
}

/// Common to all handles; dropped with the last.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) disconnect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) version: Version,
    pub(crate) next_id: AtomicU32,
    pub(crate) responses: Arc<Responses>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.queue.end(self.disconnect_timeout);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("status", &*self.shared.status.borrow())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Publishes, and waits: at QoS 0 until the message is written, at QoS 1 and 2 until it is
    /// acknowledged, through reconnects if need be. Dropping the future after the message was queued
    /// does not take it back.
    ///
    /// # Errors
    /// [`Error::Topic`], or as [`Receipt::acknowledged`].
    pub async fn publish<T>(
        &self,
        topic: T,
        payload: impl Into<Bytes>,
        qos: QoS,
    ) -> Result<(), Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        let publish = Outgoing::to(topic, payload)?.qos(qos);
        self.send(publish).await?.acknowledged().await.map(drop)
    }

    /// Queues a message, waiting only for room in the queue. The receipt follows the message.
    ///
    /// Messages are sent in the order in which they were queued, whether there is a connection now
    /// or later. Cancel-safe: if the future is dropped before it resolves, nothing was queued.
    ///
    /// # Errors
    /// The error that ended the client.
    pub async fn send(&self, publish: Outgoing) -> Result<Receipt, Error> {
        let (seq, cell) = self.shared.queue.push_waiting(publish).await?;
        Ok(Receipt::new(self.shared.clone(), seq, cell))
    }

    /// Sends like [`send`](Self::send), without waiting.
    ///
    /// # Errors
    /// [`Error::QueueFull`], or the error that ended the client.
    pub fn try_send(&self, publish: Outgoing) -> Result<Receipt, Error> {
        match self.shared.queue.push(publish)? {
            Push::Queued(seq, cell) => Ok(Receipt::new(self.shared.clone(), seq, cell)),
            Push::Full(_) => Err(Error::QueueFull),
        }
    }

    /// Queues many messages, with one lock for as many as there is room for; waits for room for
    /// the rest.
    ///
    /// Returns a receipt for each. Not cancel-safe: some may have been queued.
    ///
    /// # Errors
    /// The error that ended the client; some messages may have been queued.
    pub async fn send_batch(&self, publishes: Vec<Outgoing>) -> Result<Vec<Receipt>, Error> {
        let mut receipts = Vec::with_capacity(publishes.len());
        let mut rest = VecDeque::from(publishes);
        loop {
            let room = self.shared.queue.room();
            tokio::pin!(room);
            room.as_mut().enable();
            self.shared.queue.push_all(&mut rest, |seq, cell| {
                receipts.push(Receipt::new(self.shared.clone(), seq, cell));
            })?;
            if rest.is_empty() {
                return Ok(receipts);
            }
            room.await;
        }
    }

    /// Subscribes, and waits until the server has granted it.
    ///
    /// Without a connection the call waits for one. If another [`Subscription`] of this client has the
    /// same filter, the new one takes the filter over, as MQTT has one subscription for
    /// each filter. Cancel-safe: dropping the future ends the subscription.
    ///
    /// # Errors
    /// [`Error::Topic`], [`Error::SubscribeRefused`], or the error that ended the client.
    pub async fn subscribe<T>(&self, filter: T, qos: QoS) -> Result<Subscription, Error>
    where
        T: TryInto<TopicFilter>,
        Error: From<T::Error>,
    {
        let options = SubscribeOptions::new(filter.try_into()?, qos);
        self.subscribe_with(options).await
    }

    /// Subscribes like [`subscribe`](Self::subscribe), with several filters and all options. Succeeds if at least one
    /// filter was granted; see [`Subscription::granted`]. Cancel-safe in the same way.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe).
    pub async fn subscribe_with(&self, options: SubscribeOptions) -> Result<Subscription, Error> {
        let number = self.handle.next_id.fetch_add(1, Ordering::Relaxed);
        let id = SubscriptionId::new(number).ok_or(Error::Closed)?;
        let (reply, granted) = oneshot::channel();
        let (mut subscription, request) =
            Subscription::requested(self.shared.clone(), id, options, Some(reply));
        self.shared.queue.request(request).await?;
        subscription.granted = granted.await.map_err(|_| self.ended())??;
        Ok(subscription)
    }

    /// Unsubscribes from exactly this filter, and waits until the server has confirmed. A
    /// [`Subscription`] without any filter left ends, behind the messages that were received before. Dropping the
    /// future after the request was queued does not take it back.
    ///
    /// # Errors
    /// [`Error::Topic`], [`Error::UnsubscribeRefused`], or the error that ended the client.
    pub async fn unsubscribe<T>(&self, filter: T) -> Result<(), Error>
    where
        T: TryInto<TopicFilter>,
        Error: From<T::Error>,
    {
        let (reply, done) = oneshot::channel();
        let request = Request::Unsubscribe(UnsubscribeRequest {
            filters: vec![filter.try_into()?],
            reply: Some(reply),
        });
        self.shared.queue.request(request).await?;
        done.await.map_err(|_| self.ended())?
    }

    /// Returns a stream of the messages that match no subscription, such as those of a session that was resumed.
    ///
    /// The stream holds up to 1,024 messages, and holds up the connection when it is full, as every
    /// [`Subscription`] does. A second call takes over from the first. Without this call such messages
    /// are acknowledged, dropped and counted by [`unmatched`](Self::unmatched).
    #[must_use]
    pub fn messages(&self) -> Subscription {
        Subscription::to_the_rest(self.shared.clone())
    }

    /// Returns the number of messages that matched no subscription and were dropped since the client began.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        self.shared.unmatched.load(Ordering::Relaxed)
    }

    /// Subscribes to the [`Event`](crate::Event)s of the connection from now on, and returns their stream.
    #[must_use]
    pub fn events(&self) -> EventStream {
        self.shared.events()
    }

    /// Waits until the server has accepted the connection; at once while there is one.
    ///
    /// For clients that were [started](crate::ClientBuilder::start) without waiting. Cancel-safe.
    ///
    /// # Errors
    /// The error that ended the client.
    pub async fn connected(&self) -> Result<ConnectTimes, Error> {
        let mut status = self.shared.status.subscribe();
        loop {
            match &*status.borrow_and_update() {
                Status::Connecting => {}
                Status::Connected(connected) => return Ok(connected.times),
                Status::Ended(error) => return Err(error.clone()),
            }
            if status.changed().await.is_err() {
                return Err(Error::Closed);
            }
        }
    }

    /// Returns `true` if the server has accepted a connection that has not been lost since.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(*self.shared.status.borrow(), Status::Connected(_))
    }

    /// Returns the times of the last connection that the server accepted; `None` before the first.
    #[must_use]
    pub fn connect_times(&self) -> Option<ConnectTimes> {
        self.last_connected().map(|connected| connected.times)
    }

    /// Returns the last connection that the server accepted; `None` before the first.
    #[must_use]
    pub fn last_connected(&self) -> Option<Arc<crate::Connected>> {
        let last = lock(&self.shared.last);
        last.clone()
    }

    /// Returns the counters of the current link, which the client's task reads for this call; see [`LinkStats`] for the
    /// cost. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::NotConnected`] while there is no link, or the error that ended the client.
    pub async fn stats(&self) -> Result<LinkStats, Error> {
        let (reply, stats) = oneshot::channel();
        self.shared
            .queue
            .control(|control| control.stats.push(reply))?;
        stats.await.map_err(|_| Error::NotConnected)
    }

    /// Returns the number of messages that were queued and not yet sent.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.shared.queue.len()
    }

    /// Leaves the link and connects again at once, whatever [`Reconnect`](crate::Reconnect) says: for an application
    /// that the system tells of another network. A link over the old network is otherwise found dead only by its
    /// keep-alive.
    ///
    /// The session goes on as after a lost link: queued messages, and those without an acknowledgement, leave over
    /// the new link. A client that is connecting begins anew. The call does not wait; see
    /// [`connected`](Self::connected) and [`events`](Self::events).
    ///
    /// Over QUIC another address needs no new connection: QUIC moves it (RFC 9000 §9) with the next packet that the
    /// client sends.
    ///
    /// # Errors
    /// The error that ended the client.
    pub fn reconnect(&self) -> Result<(), Error> {
        self.shared
            .queue
            .control(|control| control.reconnect = true)
    }

    /// Ends the client: takes no more messages, sends the queued ones, waits for acknowledgements,
    /// sends DISCONNECT and closes the link.
    ///
    /// Sending and waiting take [`disconnect_timeout`](crate::ClientBuilder::disconnect_timeout) at most, the last bytes and
    /// the end of the link 2 s more. If the server cannot be reached, the client keeps trying for as
    /// long while there is something to deliver. Dropping the future does not stop the end.
    ///
    /// # Errors
    /// [`Error::Undelivered`] if time ran out, or the error that had ended the client before.
    pub async fn disconnect(&self) -> Result<(), Error> {
        self.shared.queue.end(self.handle.disconnect_timeout);
        let error = self.closed().await;
        let task = lock(&self.shared.task).take();
        if let Some(task) = task
            && let Err(error) = task.await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
        match error {
            Error::Closed => Ok(()),
            error => Err(error),
        }
    }

    /// Waits for the end of the client and returns why it ended: [`Error::Closed`] after
    /// [`disconnect`](Self::disconnect). Cancel-safe.
    pub async fn closed(&self) -> Error {
        let mut status = self.shared.status.subscribe();
        let ended = status.wait_for(|status| matches!(status, Status::Ended(_)));
        match ended.await.as_deref() {
            Ok(Status::Ended(error)) => error.clone(),
            _ => Error::Closed,
        }
    }

    fn ended(&self) -> Error {
        self.shared.queue.closed().unwrap_or(Error::Closed)
    }
}
