//! Messages that arrive.

use std::{
    fmt,
    future::{Ready, ready},
    time::Instant,
};

use bytes::Bytes;
use mq_codec::{PublishProperties, QoS, ReasonCode, Sparse, SubscriptionId, TopicName};

use crate::{Error, Outgoing};

/// A message that arrived for a subscription.
///
/// The payload, and a topic of more than 31 bytes, share their read buffer of up to 64 KiB. Copy small
/// messages that are kept for long, or they keep whole buffers alive.
pub struct Incoming {
    /// The topic to which the message was published.
    pub topic: TopicName,
    /// The message's payload.
    pub payload: Bytes,
    /// The QoS of the delivery.
    pub qos: QoS,
    /// RETAIN flag of the PUBLISH: the server had kept the message (§3.3.1.3), or the subscription asked for the
    /// publisher's flag.
    pub retain: bool,
    /// DUP flag of the PUBLISH: the message may have arrived before (QoS 1).
    pub dup: bool,
    /// MQTT 5.0 properties; one word while there are none.
    pub properties: Sparse<PublishProperties>,
    /// The identifiers of the subscriptions that match, as [`Subscription::id`](crate::Subscription::id) (5.0).
    pub subscription_ids: Vec<SubscriptionId>,
    /// Time at which the client read the message from the link.
    pub received_at: Instant,
    pub(crate) duty: Option<Duty>,
}

/// The duty to acknowledge a message, with manual acknowledgement.
pub(crate) type Duty = Box<dyn FnOnce(ReasonCode) -> Result<(), Error> + Send + Sync>;

impl Incoming {
    /// Acknowledges the message, with [`ClientBuilder::manual_ack`]; see
    /// [`acknowledge`](Self::acknowledge).
    ///
    /// The call acts at once; the future only carries the result.
    ///
    /// [`ClientBuilder::manual_ack`]: crate::ClientBuilder::manual_ack
    pub fn ack(&mut self) -> Ready<Result<(), Error>> {
        ready(self.acknowledge(ReasonCode::Success))
    }

    /// Acknowledges the message, or refuses it (5.0), with [`ClientBuilder::manual_ack`].
    ///
    /// Does nothing for QoS 0, without manual acknowledgement, and the second time. Once the
    /// connection that brought the message is lost, it does nothing either: the server sends
    /// the message again. Acknowledgements leave in the order of the messages, so a missing one
    /// holds up those after it `[MQTT-4.6.0-2]`. Before 5.0 a refusal is sent as a success, for want of
    /// another answer.
    ///
    /// [`ClientBuilder::manual_ack`]: crate::ClientBuilder::manual_ack
    ///
    /// # Errors
    /// The error that ended the client.
    pub fn acknowledge(&mut self, reason: ReasonCode) -> Result<(), Error> {
        let duty = self.duty.take();
        duty.map_or(Ok(()), |acknowledge| acknowledge(reason))
    }

    /// Returns the payload as text.
    ///
    /// # Errors
    /// [`Error::Payload`] if it is not UTF-8.
    pub fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.payload).map_err(|error| Error::Payload {
            expected: "UTF-8 text",
            reason: error.to_string(),
        })
    }

    /// Parses the payload as JSON, whatever its content type says.
    ///
    /// # Errors
    /// [`Error::Payload`] if it is not JSON, or does not fit `T`.
    #[cfg(feature = "json")]
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.payload).map_err(Error::json)
    }

    /// Returns the Content Type, a description of the payload such as a MIME type (5.0).
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.properties.content_type.as_deref()
    }

    /// Returns the topic to which a response should be published (5.0); see [`response`](Self::response).
    #[must_use]
    pub fn response_topic(&self) -> Option<&str> {
        self.properties.response_topic.as_deref()
    }

    /// Returns the data that an answer has to return, by which the requester knows its request (5.0).
    #[must_use]
    pub fn correlation_data(&self) -> Option<&Bytes> {
        self.properties.correlation_data.as_ref()
    }

    /// Returns the publisher's user properties (name and value), in its order; a name may occur more than once (5.0).
    pub fn user_properties(&self) -> impl Iterator<Item = (&str, &str)> {
        let properties = self.properties.user_properties.iter();
        properties.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Makes the response to this message: to its response topic, with its correlation data and at its QoS (5.0,
    /// §4.10). [`Client::respond`](crate::Client::respond) makes and sends one.
    ///
    /// The requester chooses the topic. A responder that may publish where its requesters may not has to
    /// check [`response_topic`](Self::response_topic) first.
    ///
    /// # Errors
    /// [`Error::NotARequest`] if the message has no response topic, [`Error::Topic`] if that is not a
    /// topic name.
    pub fn response(&self, payload: impl Into<Bytes>) -> Result<Outgoing, Error> {
        let topic = self.response_topic().ok_or(Error::NotARequest)?;
        let response = Outgoing::to(topic, payload)?.qos(self.qos);
        Ok(match self.correlation_data() {
            Some(data) => response.correlation_data(data.clone()),
            None => response,
        })
    }

    /// Copies the message for another subscription, without the duty to acknowledge it.
    pub(crate) fn copy(&self) -> Self {
        Self {
            topic: self.topic.clone(),
            payload: self.payload.clone(),
            qos: self.qos,
            retain: self.retain,
            dup: self.dup,
            properties: self.properties.clone(),
            subscription_ids: self.subscription_ids.clone(),
            received_at: self.received_at,
            duty: None,
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("topic", &self.topic)
            .field("payload", &self.payload)
            .field("qos", &self.qos)
            .field("retain", &self.retain)
            .finish_non_exhaustive()
    }
}
