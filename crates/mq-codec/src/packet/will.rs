//! The will, which is a part of CONNECT (§3.1.2.5).

use core::time::Duration;

use bytes::Bytes;

use super::publish::check_response_topic;
use crate::{
    ByteStr, DecodeError, QoS, TopicError, TopicErrorKind, TopicName, Version,
    interval::whole_seconds,
    props::{Properties, properties},
    wire::Reader,
};

/// The message that the server publishes if the connection is lost (§3.1.2.5).
///
/// ```
/// use mq_codec::{QoS, Will};
///
/// let will = Will::to("plant/7/state", "offline")?
///     .qos(QoS::AtLeastOnce)
///     .retain(true)
///     .delay(std::time::Duration::from_secs(10))
///     .content_type("text/plain")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Will {
    /// Where it goes.
    pub topic: TopicName,
    /// The application's bytes, at most 65,535.
    pub payload: Bytes,
    /// At which QoS it is published.
    pub qos: QoS,
    /// Whether it is retained.
    pub retain: bool,
    /// MQTT 5.0 properties.
    pub properties: WillProperties,
}

properties! {
    /// Properties of a will (§3.1.3.2).
    WillProperties {
        /// Seconds that the server waits for the client to come back before it publishes the will;
        /// 0 if absent.
        will_delay_interval: Option<u32> = WILL_DELAY_INTERVAL,
        /// Whether the payload is UTF-8 text (`true`) or bytes of any kind.
        payload_is_utf8: Option<bool> = PAYLOAD_FORMAT_INDICATOR,
        /// Seconds until the server drops the message undelivered; never if absent.
        message_expiry_interval: Option<u32> = MESSAGE_EXPIRY_INTERVAL,
        /// What the payload is, such as a MIME type.
        content_type: Option<ByteStr> = CONTENT_TYPE,
        /// Where an answer should be published.
        response_topic: Option<ByteStr> = RESPONSE_TOPIC,
        /// Returned with the answer.
        correlation_data: Option<Bytes> = CORRELATION_DATA,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl Will {
    /// A will at QoS 0, not retained.
    #[must_use]
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Self {
        Self {
            topic,
            payload: payload.into(),
            qos: QoS::default(),
            retain: false,
            properties: WillProperties::default(),
        }
    }

    /// The same with a topic as text.
    ///
    /// # Errors
    /// If the text is not a topic name.
    pub fn to<T>(topic: T, payload: impl Into<Bytes>) -> Result<Self, T::Error>
    where
        T: TryInto<TopicName>,
    {
        Ok(Self::new(topic.try_into()?, payload))
    }

    /// At which QoS it is published.
    #[must_use]
    pub fn qos(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    /// Whether the server keeps it for later subscribers.
    #[must_use]
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// How long the server waits for the client to come back before it publishes the will, rounded
    /// up to seconds (5.0).
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.properties.will_delay_interval = Some(whole_seconds(delay));
        self
    }

    /// How long the published will is worth delivering, rounded up to seconds (5.0).
    #[must_use]
    pub fn message_expiry(mut self, expiry: Duration) -> Self {
        self.properties.message_expiry_interval = Some(whole_seconds(expiry));
        self
    }

    /// Whether the payload is UTF-8 text (5.0).
    #[must_use]
    pub fn payload_is_utf8(mut self, is_utf8: bool) -> Self {
        self.properties.payload_is_utf8 = Some(is_utf8);
        self
    }

    /// What the payload is, such as a MIME type (5.0).
    ///
    /// # Errors
    /// If the text is not an MQTT string.
    pub fn content_type<T>(mut self, content_type: T) -> Result<Self, T::Error>
    where
        T: TryInto<ByteStr>,
    {
        self.properties.content_type = Some(content_type.try_into()?);
        Ok(self)
    }

    /// Where an answer should be published (5.0).
    ///
    /// # Errors
    /// If it is no topic name.
    pub fn response_topic<T>(mut self, topic: T) -> Result<Self, T::Error>
    where
        T: TryInto<TopicName>,
    {
        let topic: TopicName = topic.try_into()?;
        self.properties.response_topic = Some(topic.as_byte_str().clone());
        Ok(self)
    }

    /// The data that an answer has to return (5.0).
    #[must_use]
    pub fn correlation_data(mut self, data: impl Into<Bytes>) -> Self {
        self.properties.correlation_data = Some(data.into());
        self
    }

    /// A name and a value for the application (5.0). Each call adds one.
    ///
    /// # Errors
    /// If one of them is no MQTT string.
    pub fn user_property<N, V>(mut self, name: N, value: V) -> Result<Self, N::Error>
    where
        N: TryInto<ByteStr>,
        V: TryInto<ByteStr, Error = N::Error>,
    {
        let property = (name.try_into()?, value.try_into()?);
        self.properties.user_properties.push(property);
        Ok(self)
    }

    pub(super) fn read(
        reader: &mut Reader<'_>,
        version: Version,
        qos: QoS,
        retain: bool,
    ) -> Result<Self, DecodeError> {
        let properties = WillProperties::read(reader, version)?;
        check_response_topic(properties.response_topic.as_ref())?;
        let topic = reader.topic(DecodeError::WillTopic)?;
        if topic.is_empty() {
            let empty = TopicError::new(TopicErrorKind::Empty, b"", None);
            return Err(DecodeError::WillTopic(empty));
        }
        Ok(Self {
            topic,
            payload: reader.binary()?,
            qos,
            retain,
            properties,
        })
    }
}
