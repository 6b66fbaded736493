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
    /// The Will Topic, to which the message is published (§3.1.3.3).
    pub topic: TopicName,
    /// The application's bytes, at most 65,535.
    pub payload: Bytes,
    /// The Will QoS, at which the message is published (§3.1.2.6).
    pub qos: QoS,
    /// Will Retain: `true` if the message is published as a retained message (§3.1.2.7).
    pub retain: bool,
    /// MQTT 5.0 properties of the will.
    pub properties: WillProperties,
}

properties! {
    /// Properties of a will (§3.1.3.2).
    WillProperties {
        /// Seconds that the server waits for the client to reconnect before it publishes the will; 0 if
        /// absent.
        will_delay_interval: Option<u32> = WILL_DELAY_INTERVAL,
        /// Payload Format Indicator: `true` for UTF-8 text; `false` or absent for bytes of any kind
        /// (§3.1.3.2.3).
        payload_is_utf8: Option<bool> = PAYLOAD_FORMAT_INDICATOR,
        /// Seconds until the server drops the message undelivered; never if absent.
        message_expiry_interval: Option<u32> = MESSAGE_EXPIRY_INTERVAL,
        /// Content Type, such as a MIME type (§3.1.3.2.5).
        content_type: Option<ByteStr> = CONTENT_TYPE,
        /// Response Topic: the topic name for a response message (§3.1.3.2.6).
        response_topic: Option<ByteStr> = RESPONSE_TOPIC,
        /// Correlation Data, which the response message returns (§3.1.3.2.7).
        correlation_data: Option<Bytes> = CORRELATION_DATA,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl Will {
    /// Builds a will at QoS 0, not retained.
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

    /// Builds a will at QoS 0, not retained, with a topic as text.
    ///
    /// # Errors
    /// If the text is not a topic name.
    pub fn to<T>(topic: T, payload: impl Into<Bytes>) -> Result<Self, T::Error>
    where
        T: TryInto<TopicName>,
    {
        Ok(Self::new(topic.try_into()?, payload))
    }

    /// Sets the QoS at which the will is published. Default 0.
    #[must_use]
    pub fn qos(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    /// Sets Will Retain: the server keeps the published will for later subscribers. Default `false`.
    #[must_use]
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// Sets the time that the server waits for the client to reconnect before it publishes the will,
    /// rounded up to seconds (5.0). Default 0.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.properties.will_delay_interval = Some(whole_seconds(delay));
        self
    }

    /// Sets the time after which the server drops the published will undelivered, rounded up to seconds
    /// (5.0). Default never.
    #[must_use]
    pub fn message_expiry(mut self, expiry: Duration) -> Self {
        self.properties.message_expiry_interval = Some(whole_seconds(expiry));
        self
    }

    /// Sets the Payload Format Indicator: `true` for UTF-8 text, `false` for bytes of any kind (5.0).
    #[must_use]
    pub fn payload_is_utf8(mut self, is_utf8: bool) -> Self {
        self.properties.payload_is_utf8 = Some(is_utf8);
        self
    }

    /// Sets the Content Type of the payload, such as a MIME type (5.0).
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

    /// Sets the Response Topic, the topic name for a response message (5.0).
    ///
    /// # Errors
    /// If `topic` is not a topic name.
    pub fn response_topic<T>(mut self, topic: T) -> Result<Self, T::Error>
    where
        T: TryInto<TopicName>,
    {
        let topic: TopicName = topic.try_into()?;
        self.properties.response_topic = Some(topic.as_byte_str().clone());
        Ok(self)
    }

    /// Sets the Correlation Data, which a response message returns (5.0).
    #[must_use]
    pub fn correlation_data(mut self, data: impl Into<Bytes>) -> Self {
        self.properties.correlation_data = Some(data.into());
        self
    }

    /// Adds a User Property, a name and a value for the application (5.0).
    ///
    /// # Errors
    /// If `name` or `value` is not an MQTT string.
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
