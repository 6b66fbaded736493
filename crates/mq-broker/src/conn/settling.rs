//! The output of a connection whose latest changes are not settled by the store yet.

use std::time::Instant;

use mq_proto::Connection;

use super::unsettled_acks::UnsettledAcks;
use crate::{journal::Journal, store::Position};

/// The changes of a connection that the store is to settle next, and what is sent once it has. So a client is answered that
/// publishes all the time, of which something is never settled.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// The position in the outbox up to which nothing waits for the store.
    pub(super) settled_up_to: u64,
    /// The position of the last of the changes that are waited for.
    awaited: Position,
    /// The number of acknowledgements that wait for them.
    acks: usize,
    /// The position up to which the outbox waits for them.
    outbox_position: u64,
}

impl Settling {
    /// Lets the link have what waits for settled changes alone: acknowledgements, and the outbox up to
    /// [`settled_up_to`](Self::settled_up_to). Returns the position of the changes that the rest waits for; `None` if
    /// nothing is held back.
    pub(super) fn release(
        &mut self,
        acks: &mut UnsettledAcks,
        connection: &mut Connection,
        journal: &Journal,
        now: Instant,
    ) -> Option<Position> {
        // Asked once: the store may settle the last change at any time.
        if journal.is_settled() {
            acks.give_back(acks.len(), connection, now);
            *self = Self {
                settled_up_to: connection.outbox().position(),
                ..Self::default()
            };
            connection.outbox().hold_behind(None);
            return None;
        }
        if journal.has_settled(self.awaited) {
            let is_all = connection.outbox().position() == self.outbox_position;
            acks.give_back(self.acks, connection, now);
            let position = connection.outbox().position();
            // If nothing else was put in since, the acknowledgements overtake nothing that is not settled.
            let settled = if is_all {
                position
            } else {
                self.outbox_position
            };
            *self = Self {
                settled_up_to: settled.max(self.settled_up_to),
                awaited: journal.position(),
                acks: acks.len(),
                outbox_position: position,
            };
        }
        let held_behind = Some(self.settled_up_to);
        connection.outbox().hold_behind(held_behind);
        Some(self.awaited)
    }
}
