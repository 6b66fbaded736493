//! Requests and their responses (§4.10): who waits for which.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use mq_codec::{
    ByteStr, QoS, ReasonCode, RetainHandling, SubscriptionId, TopicFilter, TopicName, Version,
};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot, watch};

use crate::{
    Client, Error, Incoming, Outgoing, Receipt, SubscribeOptions,
    driver::{Request, SubscribeRequest},
    lock::lock,
};

/// Default of [`ClientBuilder::request_timeout`](crate::ClientBuilder::request_timeout): a person's
/// patience, and enough for a connection to be lost and made again.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Default of [`ClientBuilder::max_requests`](crate::ClientBuilder::max_requests).
pub(crate) const DEFAULT_LIMIT: usize = 1_000;

/// Requests that wait for their responses; the driver gives it what arrives on the response topic.
pub(crate) struct Responses {
    topic: TopicName,
    /// The first half of each correlation data. Another client that may publish to the topic cannot
    /// guess it, and a response to an earlier process of the same client identifier has another.
    secret: [u8; 8],
    /// One permit for each request that may wait.
    slots: Semaphore,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Incoming>>>,
    next: AtomicU64,
    subscription: watch::Sender<Stage>,
    /// Responses that no request waited for.
    unmatched: AtomicU64,
}

/// How the subscription to the response topic stands.
///
/// ```text
/// Unasked --first request--> Asked --SUBACK--> Granted
///    ^                         |                  |
///    +--taken over-------------+------------------+--refused, client ended--> Refused
/// ```
///
/// The next request asks again where it is `Unasked` or `Refused`.
#[derive(Debug)]
enum Stage {
    Unasked,
    Asked,
    Granted,
    Refused(Error),
}

impl fmt::Debug for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responses")
            .field("topic", &self.topic)
            .field("subscription", &*self.subscription.borrow())
            .finish_non_exhaustive()
    }
}

/// One request that waits. Dropping it frees its place.
struct Slot<'a> {
    responses: &'a Responses,
    number: u64,
    response: oneshot::Receiver<Incoming>,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        lock(&self.responses.waiting).remove(&self.number);
    }
}

impl Responses {
    pub(crate) fn new(topic: TopicName, limit: usize) -> Self {
        Self {
            topic,
            secret: rand::random(),
            slots: Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS)),
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
            subscription: watch::Sender::new(Stage::Unasked),
            unmatched: AtomicU64::new(0),
        }
    }

    /// Driver: the server has granted the subscription.
    pub(crate) fn granted(&self) {
        self.subscription.send_replace(Stage::Granted);
    }

    /// Driver: the subscription has ended. With an error no response will come any more; without,
    /// another subscription has taken it over, and whoever waits does so until its time is over.
    pub(crate) fn ended(&self, why: Option<&Error>) {
        let stage = why.cloned().map_or(Stage::Unasked, Stage::Refused);
        self.subscription.send_replace(stage);
        if why.is_some() {
            lock(&self.waiting).clear();
        }
    }

    /// Driver: something arrived on the response topic.
    pub(crate) fn arrived(&self, message: Incoming) {
        let number = message
            .properties
            .correlation_data
            .as_deref()
            .and_then(|data| data.strip_prefix(&self.secret))
            .and_then(|number| number.try_into().ok())
            .map(u64::from_be_bytes);
        let waiting = number.and_then(|number| lock(&self.waiting).remove(&number));
        let is_taken = waiting.is_some_and(|waiting| waiting.send(message).is_ok());
        if !is_taken {
            tracing::debug!(topic = %self.topic, "nobody waits for a response");
            self.unmatched.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A place for one request, once there is one. Cancel-safe.
    async fn slot(&self) -> Result<Slot<'_>, Error> {
        // The semaphore is never closed.
        let permit = self.slots.acquire().await.map_err(|_| Error::Closed)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, response) = oneshot::channel();
        lock(&self.waiting).insert(number, sender);
        Ok(Slot {
            responses: self,
            number,
            response,
            _permit: permit,
        })
    }

    /// Waits until the response topic is subscribed to; calls `ask` if nobody has asked for it.
    /// Cancel-safe: what was asked for goes on without whoever asked.
    async fn subscribed(&self, ask: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        let mut subscription = self.subscription.subscribe();
        loop {
            let asks = self.subscription.send_if_modified(|stage| {
                let asks = matches!(stage, Stage::Unasked | Stage::Refused(_));
                if asks {
                    *stage = Stage::Asked;
                }
                asks
            });
            if asks && let Err(error) = ask() {
                self.subscription.send_replace(Stage::Unasked);
                return Err(error);
            }
            let stage = subscription.wait_for(|stage| !matches!(stage, Stage::Asked));
            match stage.await.as_deref() {
                Ok(Stage::Granted) => return Ok(()),
                Ok(Stage::Refused(error)) => return Err(error.clone()),
                // Another subscription has taken it over meanwhile.
                Ok(Stage::Unasked | Stage::Asked) => {}
                Err(_) => return Err(Error::Closed),
            }
        }
    }

    /// Why requests that waited were given up.
    fn why_ended(&self) -> Error {
        match &*self.subscription.borrow() {
            Stage::Refused(error) => error.clone(),
            _ => Error::Closed,
        }
    }
}

impl Slot<'_> {
    fn correlation_data(&self) -> Bytes {
        [self.responses.secret, self.number.to_be_bytes()]
            .concat()
            .into()
    }
}

impl Client {
    /// Sends a request at QoS 1 and waits for its response, for the
    /// [`request_timeout`](crate::ClientBuilder::request_timeout) (5.0, §4.10).
    ///
    /// The client subscribes to a response topic of its own with the first request, and keeps that
    /// subscription for its life, across reconnects. Each request has its own correlation data.
    /// The responder answers with [`respond`](Self::respond) or its like. A response that comes
    /// late, twice or unasked is dropped and counted: [`unmatched_responses`](Self::unmatched_responses).
    ///
    /// ```no_run
    /// # async fn example(client: mq_client::Client) -> Result<(), mq_client::Error> {
    /// let answer = client.request("example/square", "12").await?;
    /// assert_eq!(answer.text()?, "144");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// At QoS 1 a responder may get a request twice, after a lost connection. Where that does harm,
    /// [`request_with`](Self::request_with) takes a message of QoS 2.
    ///
    /// At most [`max_requests`](crate::ClientBuilder::max_requests) wait for their responses at a
    /// time; more wait for their turn first. Cancel-safe: dropping the future frees the place of the
    /// request. What was queued by then is sent all the same.
    ///
    /// # Errors
    /// As [`request_with`](Self::request_with), and [`Error::Topic`].
    pub async fn request<T>(&self, topic: T, payload: impl Into<Bytes>) -> Result<Incoming, Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        let request = Outgoing::to(topic, payload)?.qos(QoS::AtLeastOnce);
        let timeout = self.handle.settings.request_timeout;
        self.request_with(request, timeout).await
    }

    /// [`request`](Self::request) with any message, and with how long to wait in all: for a place,
    /// for a connection, and for the response.
    ///
    /// Response topic and correlation data of `request` are replaced. Without a Message Expiry
    /// Interval it gets the timeout, rounded up to seconds: a responder that comes back later is not
    /// asked what nobody waits for.
    ///
    /// # Errors
    /// [`Error::NeedsVersion5`] before MQTT 5.0; [`Error::NoResponse`] when the time is over;
    /// [`Error::NoResponder`] where the server says that nobody is subscribed to the topic (at QoS 1
    /// and 2, and not every server does); [`Error::SubscribeRefused`] for the response topic;
    /// [`Error::PublishRefused`] and the like for the request; or what ended the client.
    pub async fn request_with(
        &self,
        request: Outgoing,
        timeout: Duration,
    ) -> Result<Incoming, Error> {
        if self.handle.settings.version < Version::V5 {
            return Err(Error::NeedsVersion5 {
                what: "a request with a response topic",
            });
        }
        let answered = tokio::time::timeout(timeout, self.answered(request, timeout));
        answered
            .await
            .unwrap_or(Err(Error::NoResponse { after: timeout }))
    }

    async fn answered(&self, mut request: Outgoing, timeout: Duration) -> Result<Incoming, Error> {
        let responses = &*self.handle.responses;
        let mut slot = responses.slot().await?;
        responses.subscribed(|| self.ask_for_responses()).await?;
        let message = Arc::make_mut(&mut request.message);
        let properties = &mut message.properties;
        properties.response_topic = Some(responses.topic.as_byte_str().clone());
        properties.correlation_data = Some(slot.correlation_data());
        properties
            .message_expiry_interval
            .get_or_insert_with(|| crate::outgoing::seconds(timeout));
        let mut receipt = self.send(request).await?;
        let not_taken = async {
            match receipt.acknowledged().await {
                Ok(ReasonCode::NoMatchingSubscribers) => Error::NoResponder,
                Ok(_) => std::future::pending().await,
                Err(error) => error,
            }
        };
        tokio::select! {
            biased;
            // A response may overtake the acknowledgement of its request.
            response = &mut slot.response => response.map_err(|_| responses.why_ended()),
            error = not_taken => Err(error),
        }
    }

    /// Asks the driver for the subscription to the response topic, without waiting.
    fn ask_for_responses(&self) -> Result<(), Error> {
        let number = self.handle.next_id.fetch_add(1, Ordering::Relaxed);
        let id = SubscriptionId::new(number).ok_or(Error::Closed)?;
        let responses = &self.handle.responses;
        let filter = TopicFilter::new(responses.topic.as_str())?;
        // A response that comes twice at QoS 1 is known by its correlation data. Each reconnect asks for it
        // again, which does no harm, as early data neither: there is nothing retained to come twice.
        let options = SubscribeOptions::one(filter, QoS::AtLeastOnce)
            .retain_handling(RetainHandling::DoNotSend)
            .early(true);
        let request = SubscribeRequest::for_responses(id, options, responses.clone());
        // Beside the limit of requests, as there is one of it at most.
        self.shared.queue.control(|control| {
            control
                .requests
                .push_back(Request::Subscribe(Box::new(request)));
        })
    }

    /// Answers a request that arrived: queues [`Incoming::response`], and waits for room only.
    /// Cancel-safe, as [`send`](Self::send).
    ///
    /// # Errors
    /// [`Error::NotARequest`], [`Error::Topic`], or what ended the client.
    pub async fn respond(
        &self,
        request: &Incoming,
        payload: impl Into<Bytes>,
    ) -> Result<Receipt, Error> {
        self.send(request.response(payload)?).await
    }

    /// How many responses no request waited for, since the client began: late, sent twice, or not
    /// responses at all. They were dropped.
    #[must_use]
    pub fn unmatched_responses(&self) -> u64 {
        self.handle.responses.unmatched.load(Ordering::Relaxed)
    }
}

/// The response topic of a client that was not given one: `mq/responses/` and its identifier, with
/// what a topic name cannot have as `%` and two hexadecimal digits.
///
/// A random one takes the place of an identifier that the server will choose, or that is too long.
pub(crate) fn default_topic(client_id: &ByteStr) -> Result<TopicName, Error> {
    const PREFIX: &str = "mq/responses/";
    let mut topic = String::from(PREFIX);
    for c in client_id.as_str().chars() {
        match c {
            '+' => topic.push_str("%2B"),
            '#' => topic.push_str("%23"),
            '%' => topic.push_str("%25"),
            c => topic.push(c),
        }
    }
    if !client_id.is_empty()
        && let Ok(topic) = TopicName::new(topic)
    {
        return Ok(topic);
    }
    let random = rand::random::<u64>();
    Ok(TopicName::new(format!("{PREFIX}{random:016x}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_identifier_has_a_response_topic_of_its_own() {
        let topic = |id: &str| default_topic(&ByteStr::new(id).unwrap()).unwrap();
        assert_eq!(topic("sensor-7").as_str(), "mq/responses/sensor-7");
        assert_eq!(topic("a+b#c").as_str(), "mq/responses/a%2Bb%23c");
        assert_ne!(topic("a+"), topic("a%2B"));
        assert_ne!(topic(""), topic(""));
        let long = "+".repeat(65_535);
        assert_eq!(topic(&long).as_str().len(), "mq/responses/".len() + 16);
    }
}
