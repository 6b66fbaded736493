//! Messages in datagrams (RFC 9221): QoS 0, which may be lost, and each by itself.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use mq_codec::{Packet, QoS};

use super::{Connection, State, outgoing::head};
use crate::{Delivery, LaneId, ProtocolError};

impl Connection {
    /// Encodes a message as the content of one datagram, if it can be one: at QoS 0, on an open connection, no
    /// larger than the peer's limits, and of a size in bytes that `fits` the link. The datagram overtakes
    /// messages on lanes, and may be lost.
    pub fn datagram(
        &mut self,
        now: Instant,
        delivery: &Delivery,
        fits: impl FnOnce(usize) -> bool,
    ) -> Option<Bytes> {
        if delivery.qos > QoS::AtMostOnce || self.may_publish(delivery).is_err() || !self.is_open()
        {
            return None;
        }
        // Whether the datagram that introduces an alias arrives is unknown, so there are none.
        let head = head(delivery, now);
        let size = head.packet_size(self.version);
        if !fits(size) || self.check_size(|| size).is_err() {
            return None;
        }
        let mut bytes = BytesMut::with_capacity(size);
        head.encode(self.version, &mut bytes).ok()?;
        bytes.extend_from_slice(&delivery.message.payload);
        self.keep_alive.sent(now);
        Some(bytes.freeze())
    }

    /// Takes the message of a received datagram. Only an open connection takes datagrams: leave them with the
    /// link until then.
    ///
    /// # Errors
    /// The rule that the datagram breaks: it has to be one whole PUBLISH of QoS 0 with its topic name. The
    /// datagram is dropped, and the connection goes on.
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

    /// Server: returns `true` if CONNECT asked for QoS 0 messages in datagrams (5.0, a user property).
    #[must_use]
    pub fn wants_datagrams(&self) -> bool {
        self.wants_datagrams
    }
}
