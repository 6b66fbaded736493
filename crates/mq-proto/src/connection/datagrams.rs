//! Messages in datagrams (RFC 9221): QoS 0, which may be lost, and each by itself.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use mq_codec::{Packet, PublishHead, QoS};

use super::{Connection, State};
use crate::{CommandError, Delivery, LaneId, ProtocolError};

impl Connection {
    /// A QoS 0 message as the content of one datagram, for a link that takes datagrams. It overtakes
    /// messages on lanes, and may be lost.
    ///
    /// # Errors
    /// [`CommandError::QosNotSupported`] for another QoS; [`CommandError::NotConnected`] before CONNACK;
    /// [`CommandError::RetainNotSupported`], [`CommandError::TooLarge`], [`CommandError::Encode`].
    pub fn datagram(&mut self, now: Instant, delivery: &Delivery) -> Result<Bytes, CommandError> {
        if self.state != State::Open {
            return Err(CommandError::NotConnected);
        }
        if delivery.qos > QoS::AtMostOnce {
            return Err(CommandError::QosNotSupported);
        }
        if delivery.retain && !self.peer.retain_available {
            return Err(CommandError::RetainNotSupported);
        }
        let message = &*delivery.message;
        let head = PublishHead {
            dup: false,
            qos: delivery.qos,
            retain: delivery.retain,
            topic: &message.topic,
            packet_id: None,
            // Whether the datagram that introduces an alias arrives is unknown.
            topic_alias: None,
            message_expiry_interval: delivery.expiry_interval(now),
            subscription_ids: &delivery.subscription_ids,
            properties: &message.properties,
            payload_len: message.payload.len(),
        };
        let size = head.packet_size(self.version);
        if let Some(limit) = self.peer.maximum_packet_size
            && size > limit as usize
        {
            return Err(CommandError::TooLarge { size, limit });
        }
        let mut bytes = BytesMut::with_capacity(size);
        head.encode(self.version, &mut bytes)?;
        bytes.extend_from_slice(&message.payload);
        self.keep_alive.sent(now);
        Ok(bytes.freeze())
    }

    /// Takes the message of a datagram that came in. An open connection alone takes datagrams: leave them
    /// with the link until then.
    ///
    /// # Errors
    /// Why the datagram was dropped: it has to be one whole PUBLISH of QoS 0 with its topic. The connection
    /// goes on.
    pub fn handle_datagram(&mut self, now: Instant, datagram: Bytes) -> Result<(), ProtocolError> {
        if self.state != State::Open || datagram.is_empty() || self.failure.is_some() {
            return Ok(());
        }
        let mut buffer = BytesMut::from(datagram);
        let packet = self.decoder.decode(&mut buffer)?;
        let incomplete = ProtocolError::Incomplete(LaneId::CONTROL);
        let packet = packet.filter(|_| buffer.is_empty()).ok_or(incomplete)?;
        match packet {
            Packet::Publish(publish)
                if publish.qos == QoS::AtMostOnce && publish.properties.topic_alias.is_none() =>
            {
                self.publish_received(now, LaneId::CONTROL, publish)?;
                self.keep_alive.read(now, true, 0);
                Ok(())
            }
            other => Err(ProtocolError::Unexpected(other.packet_type())),
        }
    }

    /// Server: whether the client said in CONNECT that it takes QoS 0 messages in datagrams (5.0, a user
    /// property).
    #[must_use]
    pub fn wants_datagrams(&self) -> bool {
        self.wants_datagrams
    }
}
