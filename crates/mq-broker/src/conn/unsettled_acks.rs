//! Acknowledgements of a client's messages that wait for the store.

use std::{collections::VecDeque, time::Instant};

use mq_codec::ReasonCode;
use mq_proto::AckTicket;

use super::wire::Wire;

/// Tickets whose messages are recorded and not settled, in the order of the messages.
///
/// The state machine counts a message against Receive Maximum until it gets its ticket back (§4.9): a client has no more
/// messages at a slow store than it was allowed.
pub(super) type UnsettledAcks = VecDeque<(AckTicket, ReasonCode)>;

impl Wire {
    /// Acknowledges a message once everything recorded so far is settled.
    pub(super) fn ack_when_settled(&mut self, ticket: AckTicket, reason: ReasonCode) {
        self.unsettled_acks.push_back((ticket, reason));
    }

    /// Puts the acknowledgements into the outbox. What the outbox holds must not be sent before the store has settled.
    pub(super) fn ack_settled(&mut self, now: Instant) {
        while let Some((ticket, reason)) = self.unsettled_acks.pop_front() {
            self.connection.ack(now, ticket, reason);
        }
        if self.unsettled_acks.capacity() > 1_024 {
            self.unsettled_acks = UnsettledAcks::new();
        }
    }

    /// Returns `true` if a client has as many messages at the store as it may: one before MQTT 5.0, which was not told
    /// its Receive Maximum, is not read any further.
    pub(super) fn has_all_at_store(&self) -> bool {
        let maximum = self.settings.protocol.receive_maximum.get();
        !self.connection.has_reason_codes() && self.unsettled_acks.len() >= usize::from(maximum)
    }
}
