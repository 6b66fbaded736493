//! Messages to send.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mq_codec::{ByteStr, PublishProperties, QoS, TopicName, whole_seconds};
use mq_proto::Message;

use crate::Error;

/// A message to send, for [`Client::send`](crate::Client::send) and its like.
///
/// ```
/// use mq_client::{Outgoing, QoS};
///
/// let reading = Outgoing::to("plant/7/temperature", "21.5")?
///     .qos(QoS::AtLeastOnce)
///     .retain(true)
///     .content_type("text/plain")?
///     .user_property("unit", "°C")?;
/// # Ok::<(), mq_client::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    pub(crate) message: Arc<Message>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) early: bool,
    pub(crate) datagram: bool,
}

impl Outgoing {
    /// Makes a QoS 0 message, not retained.
    #[must_use]
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Self {
        Self::shared(Arc::new(Message::new(topic, payload)))
    }

    /// Makes a QoS 0 message, not retained, for a topic given as text.
    ///
    /// # Errors
    /// [`Error::Topic`] if the text is not a topic name.
    pub fn to<T>(topic: T, payload: impl Into<Bytes>) -> Result<Self, Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        Ok(Self::new(topic.try_into()?, payload))
    }

    /// Makes a QoS 0 message whose payload is `value` as JSON, with the content type `application/json` (5.0).
    ///
    /// # Errors
    /// [`Error::Topic`], or [`Error::Payload`] if the value cannot be written as JSON.
    #[cfg(feature = "json")]
    pub fn json<T>(topic: T, value: &impl serde::Serialize) -> Result<Self, Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        let json = serde_json::to_vec(value).map_err(Error::json)?;
        let mut message = Self::to(topic, json)?;
        message.edit().content_type = Some(ByteStr::new("application/json")?);
        Ok(message)
    }

    /// Makes a QoS 0 message of a shared `message`: sending it often costs no allocation.
    #[must_use]
    pub fn shared(message: Arc<Message>) -> Self {
        Self {
            message,
            qos: QoS::AtMostOnce,
            retain: false,
            early: false,
            datagram: false,
        }
    }

    /// Sets the QoS: at most once (the default), at least once, or exactly once.
    #[must_use]
    pub fn qos(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    /// Sets the RETAIN flag: the server keeps the message for later subscribers.
    #[must_use]
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// Allows the message to be sent before the handshake of TLS or QUIC is complete, as early data (0-RTT), where
    /// the client [starts](crate::ClientBuilder::start) or reconnects with a ticket and `early_data` in
    /// [`ConnectOptions`](crate::ConnectOptions). Default: no.
    ///
    /// Say yes only if the message may arrive twice, or up to a minute late:
    /// an attacker on the path can deliver a copy of the first flight before the original, which
    /// the client then sends again (RFC 8446 §8, RFC 9001 §9.2). A QoS 2 message always waits for the
    /// handshake. Order is kept: a message waits behind a waiting one.
    #[must_use]
    pub fn early(mut self, early: bool) -> Self {
        self.early = early;
        self
    }

    /// Sends a QoS 0 message as a QUIC datagram (RFC 9221): it overtakes bytes that wait on streams, and may be lost
    /// on the way. Default: no, or the setting of [`quic_datagrams`](crate::ClientBuilder::quic_datagrams).
    ///
    /// The message goes on a stream if the server accepts no datagrams, over other transports, if it is larger than a
    /// packet, and while earlier datagrams fill the send buffer.
    #[must_use]
    pub fn datagram(mut self, datagram: bool) -> Self {
        self.datagram = datagram;
        self
    }

    /// Sets the Content Type, a description of the payload such as `application/json` (5.0); earlier versions leave
    /// out every property.
    ///
    /// # Errors
    /// [`Error::Text`].
    pub fn content_type<T>(mut self, content_type: T) -> Result<Self, Error>
    where
        T: TryInto<ByteStr>,
        Error: From<T::Error>,
    {
        self.edit().content_type = Some(content_type.try_into()?);
        Ok(self)
    }

    /// Sets the Response Topic, to which a response should be published (5.0).
    /// [`Client::request`](crate::Client::request) sets a topic of its own.
    ///
    /// # Errors
    /// [`Error::Topic`].
    pub fn response_topic<T>(mut self, topic: T) -> Result<Self, Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        let topic: TopicName = topic.try_into()?;
        self.edit().response_topic = Some(topic.as_byte_str().clone());
        Ok(self)
    }

    /// Sets the Correlation Data, which a response has to return, so that the requester knows its request (5.0); at
    /// most 65,535 bytes.
    #[must_use]
    pub fn correlation_data(mut self, data: impl Into<Bytes>) -> Self {
        self.edit().correlation_data = Some(data.into());
        self
    }

    /// Adds a name and a value for the application (5.0). A name may occur more than once.
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
        self.edit().user_properties.push(property);
        Ok(self)
    }

    /// Sets the Message Expiry Interval (5.0), counted from the time of queueing here and rounded up to seconds. A
    /// message that has waited longer is not sent ([`Error::Expired`]), or the server drops it. Default: no limit.
    #[must_use]
    pub fn message_expiry(mut self, expiry: Duration) -> Self {
        self.edit().message_expiry_interval = Some(whole_seconds(expiry));
        self
    }

    /// Sets the Payload Format Indicator: `true` declares the payload to be UTF-8 text, which a server may check
    /// (5.0, §3.3.2.3.2). Default: not stated.
    #[must_use]
    pub fn payload_is_utf8(mut self, is_utf8: bool) -> Self {
        self.edit().payload_is_utf8 = Some(is_utf8);
        self
    }

    fn edit(&mut self) -> &mut PublishProperties {
        &mut Arc::make_mut(&mut self.message).properties
    }

    /// Sets all MQTT 5.0 properties at once. A Message Expiry Interval is counted from the time of queueing.
    #[must_use]
    pub fn properties(mut self, properties: PublishProperties) -> Self {
        Arc::make_mut(&mut self.message).properties = properties.into();
        self
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &Arc<Message> {
        &self.message
    }

    /// Returns the bytes of topic and payload, which the bound of the queue counts.
    pub(crate) fn cost(&self) -> usize {
        self.message.payload.len() + self.message.topic.as_bytes().len()
    }
}
