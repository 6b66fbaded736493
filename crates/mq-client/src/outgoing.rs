//! Messages to send.

use std::sync::Arc;

use bytes::Bytes;
use mq_codec::{PublishProperties, QoS, TopicName};
use mq_proto::Message;

use crate::Error;

/// A message to send, for [`Client::send`](crate::Client::send) and its like.
///
/// ```
/// use mq_client::{Outgoing, QoS};
///
/// let reading = Outgoing::to("plant/7/temperature", "21.5")?
///     .qos(QoS::AtLeastOnce)
///     .retain(true);
/// # Ok::<(), mq_client::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    pub(crate) message: Arc<Message>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) early: bool,
}

impl Outgoing {
    /// A QoS 0 message, not retained.
    #[must_use]
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Self {
        Self::shared(Arc::new(Message::new(topic, payload)))
    }

    /// The same with a topic that is still to be checked.
    ///
    /// # Errors
    /// [`Error::Topic`] if it is no topic name.
    pub fn to<T>(topic: T, payload: impl Into<Bytes>) -> Result<Self, Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        Ok(Self::new(topic.try_into()?, payload))
    }

    /// A message that exists already: sending it often costs no allocation.
    #[must_use]
    pub fn shared(message: Arc<Message>) -> Self {
        Self {
            message,
            qos: QoS::AtMostOnce,
            retain: false,
            early: false,
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
    /// Say yes only where it does no harm that the message arrives twice, or up to a minute late:
    /// somebody on the path can have a copy of the first flight delivered before the original, which
    /// the client then sends again (RFC 8446 §8, RFC 9001 §9.2). At QoS 2 a message waits for the
    /// handshake whatever is said here. Order is kept: a message waits behind one that waits.
    #[must_use]
    pub fn early(mut self, early: bool) -> Self {
        self.early = early;
        self
    }

    /// MQTT 5.0 properties. A Message Expiry Interval counts from when the message is queued.
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

    /// What it counts for in a queue that is bounded in bytes.
    pub(crate) fn cost(&self) -> usize {
        self.message.payload.len() + self.message.topic.as_bytes().len()
    }
}
