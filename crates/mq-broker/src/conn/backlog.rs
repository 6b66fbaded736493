//! The packets that a client sent behind a message of its own that waits for room.

use std::collections::VecDeque;

use bytes::Bytes;
use mq_codec::QoS;
use mq_proto::Event;

use crate::memory_limit::{pairs_weight, texts_weight};

/// Bounds of the backlog in messages and bytes; one read may come on top. Beyond that the link is not
/// read until the message in front has found room, or has waited for long enough. Then messages of
/// QoS 0 make room, as in a mailbox, and the acknowledgements behind them are read.
const MAX_MESSAGES: usize = 1_024;
const MAX_BYTES: usize = 1 << 20;

/// Events that wait in order behind a message that finds no room, so that the link can be read on:
/// acknowledgements, which make room, and PINGREQ never wait.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    events: VecDeque<Event>,
    bytes: usize,
}

impl Backlog {
    pub(super) fn push(&mut self, event: Event) {
        self.bytes += size(&event);
        self.events.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.bytes -= size(&event);
        if self.events.is_empty() {
            // A connection that once had many gives the memory back.
            self.events = VecDeque::new();
        }
        Some(event)
    }

    /// Drops the messages of QoS 0. Returns how many.
    pub(super) fn drop_qos0(&mut self) -> usize {
        let before = self.events.len();
        self.events.retain(
            |event| !matches!(event, Event::Publish(received) if received.qos == QoS::AtMostOnce),
        );
        self.bytes = self.events.iter().map(size).sum();
        before - self.events.len()
    }

    /// Drops the payloads of all messages, which are refused then in their turn.
    pub(super) fn discard_payloads(&mut self) {
        for event in &mut self.events {
            *event = match core::mem::replace(event, Event::PingResp) {
                Event::Publish(mut received) => {
                    received.message.payload = Bytes::new();
                    received.message = received.message.detached();
                    Event::Discarded(received)
                }
                other => other,
            };
        }
        self.bytes = self.events.iter().map(size).sum();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= MAX_MESSAGES || self.bytes >= MAX_BYTES
    }
}

/// Returns `true` for an event about what the client has received: such events never wait.
pub(super) fn is_acknowledgement(event: &Event) -> bool {
    matches!(
        event,
        Event::Acked { .. }
            | Event::Released { .. }
            | Event::IncomingReleased { .. }
            | Event::PingResp
    )
}

/// Returns the number of bytes that a client made the broker hold, about.
fn size(event: &Event) -> usize {
    match event {
        Event::Publish(received) | Event::Discarded(received) => {
            texts_weight(&received.message) + received.message.payload.len()
        }
        Event::Subscribe { subscribe, .. } => {
            let filters = subscribe.subscriptions.iter();
            let filters = filters.map(|one| size_of_val(one) + one.filter.len());
            filters.sum::<usize>() + pairs_weight(&subscribe.properties.user_properties)
        }
        Event::Unsubscribe { unsubscribe, .. } => {
            let filters = unsubscribe.filters.iter();
            let filters = filters.map(|one| size_of_val(one) + one.len());
            filters.sum::<usize>() + pairs_weight(&unsubscribe.properties.user_properties)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use mq_codec::{ByteStr, PacketId, Subscribe, SubscribeProperties};
    use mq_proto::LaneId;

    use super::*;

    #[test]
    fn user_properties_count() {
        let text = |length: usize| ByteStr::new("x".repeat(length)).unwrap();
        let mut backlog = Backlog::default();
        let mut count = 0;
        while !backlog.is_full() {
            let properties = SubscribeProperties {
                user_properties: vec![(text(100), text(60_000))],
                ..SubscribeProperties::default()
            };
            backlog.push(Event::Subscribe {
                lane: LaneId::CONTROL,
                subscribe: Subscribe {
                    packet_id: PacketId::FIRST,
                    subscriptions: Vec::new(),
                    properties,
                },
            });
            count += 1;
        }
        assert_eq!(count, MAX_BYTES.div_ceil(60_100 + 2 * size_of::<ByteStr>()));
        while backlog.pop().is_some() {}
        assert_eq!(backlog.bytes(), 0);
    }
}
