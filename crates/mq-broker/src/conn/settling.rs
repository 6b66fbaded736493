//! The output of a connection whose latest changes are not settled by the store yet.

use std::time::Instant;

use mq_proto::Outbox;

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
    /// The position up to which the connection's outbox waits for them.
    outbox_position: u64,
    /// Bytes that wait for nothing but the link, and are sent before those in the connection's outbox.
    pub(super) released: Outbox,
}

impl Wire {
    /// Lets the link have what waits for settled changes alone: acknowledgements, and the outbox up to
    /// [`settled_up_to`](Self::settled_up_to).
    pub(super) fn release_settled(&mut self, journal: &Journal, now: Instant) {
        if journal.is_settled() {
            self.give_tickets_back(now);
            self.settled_up_to = self.connection.outbox().position();
            self.settling.take_if(|settling| {
                settling.acks = 0;
                settling.released.is_empty()
            });
            return;
        }
        let settling = self.settling.get_or_insert_default();
        if journal.has_settled(settling.awaited) {
            let is_all = self.connection.outbox().position() == settling.outbox_position;
            self.unsettled_acks
                .give_back(settling.acks, &mut self.connection, now);
            if is_all {
                // Nothing else was put in since, so the acknowledgements overtake nothing that is not settled.
                settling.outbox_position = self.connection.outbox().position();
            }
            self.settled_up_to = self.settled_up_to.max(settling.outbox_position);
            settling.awaited = journal.position();
            settling.acks = self.unsettled_acks.len();
            settling.outbox_position = self.connection.outbox().position();
        }
        if settling.released.is_empty() {
            let outbox = self.connection.outbox();
            outbox.move_up_to(self.settled_up_to, &mut settling.released);
        }
    }

    /// Returns the number of bytes that wait to be sent.
    pub(super) fn unsent_len(&mut self) -> usize {
        let released = self
            .settling
            .as_ref()
            .map(|settling| settling.released.len());
        self.connection.outbox().len() + released.unwrap_or_default()
    }
}
