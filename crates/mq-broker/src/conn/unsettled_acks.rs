//! Acknowledgements of a client's messages that wait for the store.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use mq_codec::{Disconnect, ReasonCode};
use mq_proto::{AckTicket, Connection};

use crate::{hub::RefusedAppends, store::Position};

/// Acknowledgements from which on the memory of the list is given back once it is empty.
const LONG: usize = 1_024;

/// Tickets of messages that are recorded and not settled, in the order of the messages.
///
/// The state machine counts a message against Receive Maximum until it gets its ticket back (§4.9): a client has no more
/// messages at a slow store than it was allowed.
#[derive(Default)]
pub(super) struct UnsettledAcks {
    acks: VecDeque<UnsettledAck>,
    /// Messages of these that a cluster has refused meanwhile; `None` without a cluster.
    refused: Option<Arc<RefusedAppends>>,
}

struct UnsettledAck {
    ticket: AckTicket,
    reason: ReasonCode,
    /// The message's position on its way to the cluster; 0 without one.
    appended: Position,
}

impl UnsettledAcks {
    /// Adds the acknowledgement of a message. On its way to the cluster it has the position `appended`, and may be found in
    /// `refused`.
    pub(super) fn push(
        &mut self,
        ticket: AckTicket,
        reason: ReasonCode,
        appended: Position,
        refused: Option<&Arc<RefusedAppends>>,
    ) {
        if self.refused.is_none() {
            self.refused = refused.cloned();
        }
        self.acks.push_back(UnsettledAck {
            ticket,
            reason,
            appended,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.acks.len()
    }

    /// Gives the first `count` tickets back. Acknowledgements go into the outbox, which must not be sent before the store
    /// has settled. A client that cannot be told of a refusal (before 5.0) is disconnected, and sends the message again.
    pub(super) fn give_back(&mut self, count: usize, connection: &mut Connection, now: Instant) {
        let refused = self.take_refused(count);
        for _ in 0..count {
            let Some(ack) = self.acks.pop_front() else {
                break;
            };
            let is_refused = ack.appended != Position::default() && refused.contains(&ack.appended);
            if !is_refused {
                connection.ack(now, ack.ticket, ack.reason);
            } else if connection.has_reason_codes() {
                connection.ack(now, ack.ticket, ReasonCode::QuotaExceeded);
            } else {
                self.acks.clear();
                connection.disconnect(Disconnect::new(ReasonCode::QuotaExceeded));
            }
        }
        if self.acks.is_empty() && self.acks.capacity() > LONG {
            self.acks = VecDeque::new();
        }
    }

    /// Returns the refused ones of the first `count` messages.
    fn take_refused(&self, count: usize) -> Vec<Position> {
        let Some(refused) = &self.refused else {
            return Vec::new();
        };
        let last = self.acks.iter().take(count).map(|ack| ack.appended).max();
        last.map_or_else(Vec::new, |last| refused.take_up_to(last))
    }
}
