//! Messages without room for their payload.

use std::time::Instant;

use bytes::BytesMut;
use mq_codec::{ByteStr, Decoder, Packet, Publish, PublishProperties, SubscriptionId};

use super::{Connection, State};
use crate::{Event, LaneId, ProtocolError};

/// A PUBLISH whose payload is dropped as it is received.
#[derive(Debug)]
pub(super) struct Discarding {
    /// The packet without its payload.
    publish: Publish,
    /// Number of bytes of the packet that were received so far.
    received: usize,
    to_come: usize,
}

impl Discarding {
    /// Returns the approximate memory of the packet without its payload, in bytes. A user property of 5 bytes takes
    /// many times as much.
    fn held_bytes(&self) -> usize {
        let properties = &self.publish.properties;
        let bytes = size_of::<Self>() + Decoder::MAX_PEEKED;
        if properties.is_untouched() {
            return bytes;
        }
        let texts = properties.user_properties.capacity() * size_of::<(ByteStr, ByteStr)>();
        let ids = properties.subscription_ids.capacity() * size_of::<SubscriptionId>();
        bytes + size_of::<PublishProperties>() + texts + ids
    }
}

impl Connection {
    /// Drops the payload of the PUBLISH that is incomplete at the front of `buffer`, the receive buffer of `lane`, and
    /// the rest of it as it is received. [`Event::Discarded`] follows once the packet is complete.
    ///
    /// Returns `false`, with nothing changed, if there is no such packet, or the part of it before its payload is
    /// incomplete or longer than 4 KiB.
    pub fn discard_payload(&mut self, lane: LaneId, buffer: &mut BytesMut) -> bool {
        let has_begun = lane == LaneId::CONTROL || {
            let data = self.lanes.get(&lane);
            data.is_some_and(|data| data.begun) && !self.outbox.is_aborting(lane)
        };
        if !has_begun || self.state != State::Open || self.must_wait() || self.is_too_early(buffer)
        {
            return false;
        }
        let Some((publish, to_come)) = self.decoder.peek_publish(buffer) else {
            return false;
        };
        let received = buffer.len();
        // Its memory as well.
        *buffer = BytesMut::new();
        let discarding = Discarding {
            publish,
            received,
            to_come,
        };
        self.discarding.insert(lane, Box::new(discarding));
        true
    }

    /// Drops the received bytes of a payload. Returns the message once the packet is complete.
    pub(super) fn skip_payload(
        &mut self,
        lane: LaneId,
        buffer: &mut BytesMut,
    ) -> Option<Box<Discarding>> {
        let discarding = self.discarding.get_mut(&lane)?;
        let skipped = discarding.to_come.min(buffer.len());
        discarding.to_come -= skipped;
        discarding.received += skipped;
        // No view of what is left, which would keep what is not.
        *buffer = BytesMut::from(&buffer[skipped..]);
        match discarding.to_come {
            0 => self.discarding.remove(&lane),
            _ => None,
        }
    }

    /// Acts on a message whose payload was dropped, as if the PUBLISH had none.
    pub(super) fn discarded_received(
        &mut self,
        now: Instant,
        lane: LaneId,
        discarding: Discarding,
    ) -> Result<(), ProtocolError> {
        let before = self.events.len();
        self.handle_packet(now, lane, Packet::Publish(discarding.publish))?;
        // A repetition of a QoS 2 message that was delivered makes no event.
        if self.events.len() > before
            && let Some(event) = self.events.pop_back()
        {
            self.events.push_back(match event {
                Event::Publish(received) => Event::Discarded(received),
                other => other,
            });
        }
        Ok(())
    }

    /// Returns the number of received bytes of the packet that is incomplete on a lane.
    pub(super) fn under_way(&self, lane: LaneId, buffer: &BytesMut) -> usize {
        let discarding = self.discarding.get(&lane);
        discarding.map_or(buffer.len(), |discarding| discarding.received)
    }

    /// Returns the approximate memory of messages whose payload is dropped, in bytes.
    pub(super) fn discarding_bytes(&self) -> usize {
        let each = self.discarding.values();
        each.map(|discarding| discarding.held_bytes()).sum()
    }
}
