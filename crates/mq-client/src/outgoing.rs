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
    /// A QoS 0 message, not retained.
    #[must_use]
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Self {
        Self::shared(Arc::new(Message::new(topic, payload)))
    }

    /// The same with a topic as text.
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

    /// A QoS 0 message that holds `value` as JSON, and says so in its content type (5.0).
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

    /// A QoS 0 message that exists already: sending it often costs no allocation.
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

    /// How often it may arrive.
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

    /// Whether the message may leave before the handshake of TLS or QUIC is complete, as early data
    /// (0-RTT), where the client [starts](crate::ClientBuilder::start) or reconnects with a ticket
    /// and `early_data` in [`ConnectOptions`](crate::ConnectOptions). Default: no.
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

    /// Whether a QoS 0 message goes as a QUIC datagram (RFC 9221): it overtakes what waits on streams, and may
    /// be lost on the way. Default: no, or what [`quic_datagrams`](crate::ClientBuilder::quic_datagrams) says.
    ///
    /// Where the server takes none, over other transports, if the message is larger than a packet, and while
    /// earlier datagrams wait, the message goes on a stream.
    #[must_use]
    pub fn datagram(mut self, datagram: bool) -> Self {
        self.datagram = datagram;
        self
    }

    /// What the payload is, such as `application/json` (5.0); earlier versions leave out every
    /// property.
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

    /// Where an answer should be published (5.0). [`Client::request`](crate::Client::request) sets a
    /// topic of its own.
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

    /// The data that an answer has to return, which tells it from others (5.0); at most 65,535 bytes.
    #[must_use]
    pub fn correlation_data(mut self, data: impl Into<Bytes>) -> Self {
        self.edit().correlation_data = Some(data.into());
        self
    }

    /// A name and a value for the application (5.0). Each call adds one; a name may come again.
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

    /// How long the message is worth delivering, from when it is queued here (5.0), rounded up to
    /// seconds. A message that has waited longer is not sent ([`Error::Expired`]), or the server drops
    /// it. Default: for ever.
    #[must_use]
    pub fn message_expiry(mut self, expiry: Duration) -> Self {
        self.edit().message_expiry_interval = Some(whole_seconds(expiry));
        self
    }

    /// Whether the payload is UTF-8 text, which a server may check (5.0, §3.3.2.3.2). Default: not
    /// stated.
    #[must_use]
    pub fn payload_is_utf8(mut self, is_utf8: bool) -> Self {
        self.edit().payload_is_utf8 = Some(is_utf8);
        self
    }

    fn edit(&mut self) -> &mut PublishProperties {
        &mut Arc::make_mut(&mut self.message).properties
    }

    /// All MQTT 5.0 properties at once. A Message Expiry Interval counts from when the message is queued.
    #[must_use]
    pub fn properties(mut self, properties: PublishProperties) -> Self {
        Arc::make_mut(&mut self.message).properties = properties.into();
        self
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &Arc<Message> {
        &self.message
    }

    /// Its cost in bytes, for the bound of the queue.
    pub(crate) fn cost(&self) -> usize {
        self.message.payload.len() + self.message.topic.as_bytes().len()
    }
}
