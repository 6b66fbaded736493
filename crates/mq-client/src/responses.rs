//! The requests that wait for their responses (§4.10).

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use mq_codec::{ByteStr, TopicName};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot, watch};

use crate::{Error, Incoming, lock::lock};

/// Requests that wait for their responses. The driver passes in messages of the response topic.
pub(crate) struct Responses {
    pub(crate) topic: TopicName,
    /// The first half of each correlation data. Another client that may publish to the topic cannot
    /// guess it, and a response for an earlier process with the same client identifier lacks it.
    secret: [u8; 8],
    /// Permits, one for each request that may wait.
    slots: Semaphore,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Incoming>>>,
    next: AtomicU64,
    subscription: watch::Sender<Stage>,
    /// Number of responses without a waiting request.
    pub(crate) unmatched: AtomicU64,
}

/// The state of the subscription to the response topic.
///
/// ```text
/// Unasked --first request--> Asked --SUBACK--> Granted
///    ^                         |                  |
///    +--taken over-------------+------------------+--refused, client ended--> Refused
/// ```
///
/// The next request asks again in the states `Unasked` and `Refused`.
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

/// The place of one waiting request, free again when it is dropped.
pub(crate) struct Slot<'a> {
    responses: &'a Responses,
    number: u64,
    pub(crate) response: oneshot::Receiver<Incoming>,
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

    /// Driver: notes that the server has granted the subscription.
    pub(crate) fn granted(&self) {
        self.subscription.send_replace(Stage::Granted);
    }

    /// Driver: notes that the subscription has ended. With an error, no response will come any more. Without one,
    /// another subscription has taken it over, and waiting requests run into their timeouts.
    pub(crate) fn ended(&self, why: Option<&Error>) {
        let stage = why.cloned().map_or(Stage::Unasked, Stage::Refused);
        self.subscription.send_replace(stage);
        if why.is_some() {
            lock(&self.waiting).clear();
        }
    }

    /// Driver: hands a message that arrived on the response topic to the request that waits for it.
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
            tracing::debug!(topic = %self.topic, "response without a waiting request");
            self.unmatched.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for a place for one request. Cancel-safe.
    pub(crate) async fn slot(&self) -> Result<Slot<'_>, Error> {
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

    /// Waits until the response topic is subscribed to; calls `ask` if no request has asked yet.
    /// Cancel-safe: the subscription goes on without the request.
    pub(crate) async fn subscribed(
        &self,
        ask: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
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

    /// Returns the error of requests that were given up.
    pub(crate) fn why_ended(&self) -> Error {
        match &*self.subscription.borrow() {
            Stage::Refused(error) => error.clone(),
            _ => Error::Closed,
        }
    }
}

impl Slot<'_> {
    pub(crate) fn correlation_data(&self) -> Bytes {
        [self.responses.secret, self.number.to_be_bytes()]
            .concat()
            .into()
    }
}

/// Makes the default response topic of a client: `mq/responses/` and the client identifier, with characters that a
/// topic name cannot have as `%` and two hexadecimal digits.
///
/// If the server will choose the identifier, or if it is too long, the topic ends in a random number.
pub(crate) fn default_topic(client_id: &ByteStr) -> Result<TopicName, Error> {
    const PREFIX: &str = "mq/responses/";
    // `%` first, which the others bring in.
    let escaped = client_id
        .replace('%', "%25")
        .replace('+', "%2B")
        .replace('#', "%23");
    if !client_id.is_empty()
        && let Ok(topic) = TopicName::new(format!("{PREFIX}{escaped}"))
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
