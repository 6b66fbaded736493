//! The client for programs without async.
//!
//! ```no_run
//! use mq_client::{QoS, blocking::Client};
//!
//! # fn main() -> Result<(), mq_client::Error> {
//! let client = Client::connect("quic://broker.example")?;
//! client.publish("plant/7/state", "up", QoS::AtLeastOnce)?;
//! for message in client.subscribe("plant/+/temperature", QoS::AtLeastOnce)? {
//!     println!("{}: {}", message.topic, message.text()?);
//! }
//! client.disconnect()
//! # }
//! ```
//!
//! [`ClientBuilder::build_blocking`] takes all options of the async client. Each [`Client`] has a
//! thread of its own, which keeps the connection alive and takes messages while the program does
//! something else; calls wait for that thread. Handles may be cloned and used by many threads.
//!
//! # Panics
//! Every call that waits panics within an async task, where waiting would stop other tasks: use
//! [`crate::Client`] there.

use std::{
    fmt,
    sync::{Arc, mpsc::RecvTimeoutError},
    time::Duration,
};

use bytes::Bytes;
use mq_codec::{QoS, ReasonCode, TopicFilter, TopicName};

use crate::{ClientBuilder, Error, Event, Incoming, Outgoing, SubscribeOptions};

/// A blocking handle to an MQTT client; clones are handles to the same client.
///
/// It ends with [`disconnect`](Self::disconnect). Dropping the last handle disconnects and waits
/// as `disconnect` does: [`ClientBuilder::disconnect_timeout`] and 2 s at most. A drop within an
/// async task does not wait: the client's own thread disconnects, unless the process ends before.
#[derive(Clone)]
pub struct Client(Arc<Running>);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.client.fmt(f)
    }
}

struct Running {
    client: crate::Client,
    runtime: Arc<Runtime>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let crate::Client { shared, handle } = &self.client;
        shared.queue.end(handle.disconnect_timeout);
        let (client, runtime) = (self.client.clone(), self.runtime.clone());
        // The runtime lives until the client has ended, whose error no caller waits for.
        let closed = async move { drop((client.closed().await, runtime)) };
        if tokio::runtime::Handle::try_current().is_err() {
            self.runtime.block_on(closed);
        } else if let Some(own) = &self.runtime.0 {
            // An async task may not wait.
            own.spawn(closed);
        }
    }
}

/// A runtime of one thread, which can be dropped anywhere.
struct Runtime(Option<tokio::runtime::Runtime>);

impl Runtime {
    fn start() -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("mq-client")
            .enable_all()
            .build()
            .map_err(mq_transport::Error::from)?;
        Ok(Self(Some(runtime)))
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let runtime = self.0.as_ref();
        runtime
            .expect("only the drop takes it out")
            .block_on(future)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl ClientBuilder {
    /// Connects like [`build`](Self::build), for programs without async: waits until the server has accepted.
    ///
    /// # Errors
    /// As [`build`](Self::build), and [`Error::Transport`] if the system gives no thread.
    ///
    /// # Panics
    /// Within an async task.
    pub fn build_blocking(self) -> Result<Client, Error> {
        let runtime = Arc::new(Runtime::start()?);
        let client = runtime.block_on(self.build())?;
        Ok(Client(Arc::new(Running { client, runtime })))
    }
}

impl Client {
    /// Connects with the defaults and waits until the server has accepted.
    ///
    /// # Errors
    /// As [`crate::Client::connect`].
    pub fn connect(url: &str) -> Result<Self, Error> {
        crate::Client::builder(url)?.build_blocking()
    }

    /// Publishes, and waits as [`crate::Client::publish`] does: at QoS 0 for the write, else for the
    /// acknowledgement.
    ///
    /// # Errors
    /// As the async call.
    pub fn publish<T>(&self, topic: T, payload: impl Into<Bytes>, qos: QoS) -> Result<(), Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        self.block_on(self.0.client.publish(topic, payload, qos))
    }

    /// Queues a message, waiting only for room in the queue, as [`crate::Client::send`].
    ///
    /// # Errors
    /// As the async call.
    pub fn send(&self, message: Outgoing) -> Result<Receipt, Error> {
        let receipt = self.block_on(self.0.client.send(message))?;
        let runtime = self.0.runtime.clone();
        Ok(Receipt { receipt, runtime })
    }

    /// Subscribes, and waits until the server has granted it, as [`crate::Client::subscribe`].
    ///
    /// # Errors
    /// As the async call.
    pub fn subscribe<T>(&self, filter: T, qos: QoS) -> Result<Subscription, Error>
    where
        T: TryInto<TopicFilter>,
        Error: From<T::Error>,
    {
        self.subscribe_with(SubscribeOptions::new(filter.try_into()?, qos))
    }

    /// Subscribes like [`subscribe`](Self::subscribe), with several filters and all options.
    ///
    /// # Errors
    /// As [`crate::Client::subscribe_with`].
    pub fn subscribe_with(&self, options: SubscribeOptions) -> Result<Subscription, Error> {
        let subscription = self.block_on(self.0.client.subscribe_with(options))?;
        let runtime = self.0.runtime.clone();
        Ok(Subscription {
            subscription,
            runtime,
        })
    }

    /// Sends a request and waits for its response, as [`crate::Client::request`].
    ///
    /// # Errors
    /// As the async call.
    pub fn request<T>(&self, topic: T, payload: impl Into<Bytes>) -> Result<Incoming, Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        self.block_on(self.0.client.request(topic, payload))
    }

    /// Sends a request like [`request`](Self::request), with any message, and with a timeout for the whole call.
    ///
    /// # Errors
    /// As [`crate::Client::request_with`].
    pub fn request_with(&self, request: Outgoing, timeout: Duration) -> Result<Incoming, Error> {
        self.block_on(self.0.client.request_with(request, timeout))
    }

    /// Answers a request, waiting only for room in the queue, as [`crate::Client::respond`].
    ///
    /// # Errors
    /// As the async call.
    pub fn respond(&self, request: &Incoming, payload: impl Into<Bytes>) -> Result<Receipt, Error> {
        self.send(request.response(payload)?)
    }

    /// Subscribes to the events of the connection from now on; the iterator waits for the next event and ends with the
    /// client. Up to 32 events wait for it, as for [`crate::EventStream`].
    #[must_use]
    pub fn events(&self) -> Events {
        let events = self.0.client.events();
        let runtime = self.0.runtime.clone();
        Events { events, runtime }
    }

    /// Returns the async client behind this handle, for its state, times and counts.
    #[must_use]
    pub fn inner(&self) -> &crate::Client {
        &self.0.client
    }

    /// Leaves the link and connects again at once, as [`crate::Client::reconnect`].
    ///
    /// # Errors
    /// As the async call.
    pub fn reconnect(&self) -> Result<(), Error> {
        self.0.client.reconnect()
    }

    /// Ends the client: sends what is queued, waits for acknowledgements and disconnects, as
    /// [`crate::Client::disconnect`].
    ///
    /// # Errors
    /// As the async call.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.block_on(self.0.client.disconnect())
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.runtime.block_on(future)
    }
}

/// The messages of one subscription, as an iterator that waits for the next.
///
/// Like [`crate::Subscription`] it holds a bounded number of messages: read it or drop it. It does not
/// keep the client alive; the iterator ends with the client.
pub struct Subscription {
    subscription: crate::Subscription,
    runtime: Arc<Runtime>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.subscription.fmt(f)
    }
}

impl Subscription {
    /// Waits for the next message; `None` once the subscription has ended and all was read.
    pub fn recv(&mut self) -> Option<Incoming> {
        self.runtime.block_on(self.subscription.recv())
    }

    /// Waits for the next message for at most `timeout`.
    ///
    /// # Errors
    /// [`RecvTimeoutError::Timeout`] if nothing came, [`RecvTimeoutError::Disconnected`] once the
    /// subscription has ended and all was read.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Incoming, RecvTimeoutError> {
        let next = async { tokio::time::timeout(timeout, self.subscription.recv()).await };
        match self.runtime.block_on(next) {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(RecvTimeoutError::Disconnected),
            Err(_) => Err(RecvTimeoutError::Timeout),
        }
    }

    /// Returns the next message if one waits, without blocking; `None` otherwise.
    pub fn try_recv(&mut self) -> Option<Incoming> {
        self.subscription.try_recv()
    }

    /// Returns the server's reason code for each filter, in the order of the request.
    #[must_use]
    pub fn granted(&self) -> &[ReasonCode] {
        self.subscription.granted()
    }
}

impl Iterator for Subscription {
    type Item = Incoming;

    fn next(&mut self) -> Option<Incoming> {
        self.recv()
    }
}

/// The events of a client, as an iterator that waits for the next.
pub struct Events {
    events: crate::EventStream,
    runtime: Arc<Runtime>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.events.fmt(f)
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.runtime.block_on(self.events.recv())
    }
}

/// Follows one message. Dropping the receipt neither waits nor takes the message back.
pub struct Receipt {
    receipt: crate::Receipt,
    runtime: Arc<Runtime>,
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.receipt.fmt(f)
    }
}

impl Receipt {
    /// Waits until the kernel or the QUIC stack has taken the message.
    ///
    /// # Errors
    /// As [`crate::Receipt::written`].
    pub fn written(&mut self) -> Result<(), Error> {
        self.runtime.block_on(self.receipt.written())
    }

    /// Waits for the acknowledgement.
    ///
    /// # Errors
    /// As [`crate::Receipt::acknowledged`].
    pub fn acknowledged(&mut self) -> Result<ReasonCode, Error> {
        self.runtime.block_on(self.receipt.acknowledged())
    }
}
