//! The output of a connection whose latest changes are not settled by the store yet.

use std::time::Instant;

use super::wire::Wire;
use crate::{journal::Journal, store::Position};

/// The changes of a connection that the store is to settle next, and what is sent once it has. So a client is answered that
/// publishes all the time, of which something is never settled.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// The position of the last of these changes.
    pub(super) awaited: Position,
    /// The number of acknowledgements that wait for them.
    acks: usize,
    /// The position up to which the outbox waits for them.
    outbox_position: u64,
}

impl Wire {
    /// Lets the link have what waits for settled changes alone: acknowledgements, and the outbox up to
    /// [`settled_up_to`](Self::settled_up_to).
    pub(super) fn release_settled(&mut self, journal: &Journal, now: Instant) {
        if journal.is_settled() {
            self.settling = Settling::default();
            self.give_tickets_back(now);
            self.settled_up_to = self.connection.outbox().position();
            self.connection.outbox().hold_behind(None);
            return;
        }
        if journal.has_settled(self.settling.awaited) {
            let Settling {
                acks,
                mut outbox_position,
                ..
            } = self.settling;
            let is_all = self.connection.outbox().position() == outbox_position;
            self.unsettled_acks
                .give_back(acks, &mut self.connection, now);
            if is_all {
                // Nothing else was put in since, so the acknowledgements overtake nothing that is not settled.
                outbox_position = self.connection.outbox().position();
            }
            self.settled_up_to = self.settled_up_to.max(outbox_position);
            self.settling = Settling {
                awaited: journal.position(),
                acks: self.unsettled_acks.len(),
                outbox_position: self.connection.outbox().position(),
            };
        }
        let held_behind = Some(self.settled_up_to);
        self.connection.outbox().hold_behind(held_behind);
    }
}
