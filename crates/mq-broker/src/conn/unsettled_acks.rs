//! Acknowledgements of a client's messages that wait for the store.

use std::{collections::VecDeque, time::Instant};

use mq_codec::ReasonCode;
use mq_proto::{AckTicket, Connection};

/// Acknowledgements from which on the memory of the list is given back once it is empty.
const LONG: usize = 1_024;

/// Tickets of messages that are recorded and not settled, in the order of the messages.
///
/// The state machine counts a message against Receive Maximum until it gets its ticket back (§4.9): a client has no more
/// messages at a slow store than it was allowed.
#[derive(Default)]
pub(super) struct UnsettledAcks(VecDeque<(AckTicket, ReasonCode)>);

impl UnsettledAcks {
    pub(super) fn push(&mut self, ticket: AckTicket, reason: ReasonCode) {
        self.0.push_back((ticket, reason));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Gives the tickets back. Acknowledgements go into the outbox, which must not be sent before the store has settled.
    pub(super) fn give_back(&mut self, connection: &mut Connection, now: Instant) {
        while let Some((ticket, reason)) = self.0.pop_front() {
            connection.ack(now, ticket, reason);
        }
        if self.0.capacity() > LONG {
            self.0 = VecDeque::new();
        }
    }
}
