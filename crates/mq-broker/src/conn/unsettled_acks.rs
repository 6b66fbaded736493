//! Acknowledgements of a client's messages that wait for the store.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use mq_codec::{Disconnect, ReasonCode};
use mq_proto::{AckTicket, Connection};

use crate::{hub::AppendAnswers, store::Position};

/// Acknowledgements from which on the memory of the list is given back once it is empty.
const LONG: usize = 1_024;

/// Tickets of messages that are recorded and not settled, in the order of the messages.
///
/// The state machine counts a message against Receive Maximum until it gets its ticket back (§4.9): a client has no more
/// messages at a slow store than it was allowed.
#[derive(Default)]
pub(super) struct UnsettledAcks {
    acks: VecDeque<UnsettledAck>,
    /// The answers of a cluster to these messages; `None` without a cluster.
    answers: Option<Arc<AppendAnswers>>,
}

struct UnsettledAck {
    ticket: AckTicket,
    reason: ReasonCode,
    /// The message's position on its way to the cluster; 0 without one.
    appended: Position,
}

impl UnsettledAcks {
    /// Adds the acknowledgement of a message. On its way to the cluster it has the position `appended`, and its answer in
    /// `answers`.
    pub(super) fn push(
        &mut self,
        ticket: AckTicket,
        reason: ReasonCode,
        appended: Position,
        answers: Option<&Arc<AppendAnswers>>,
    ) {
        if self.answers.is_none() {
            self.answers = answers.cloned();
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

    /// Gives the first `count` tickets back, up to a message to which there is no answer. Acknowledgements go into the
    /// outbox, which must not be sent before the store has settled. A client that cannot be told of a refusal (before
    /// 5.0) is disconnected, and sends the message again.
    pub(super) fn give_back(&mut self, count: usize, connection: &mut Connection, now: Instant) {
        for _ in 0..count {
            if !self.give_first_back(connection, now, false) {
                break;
            }
        }
        if self.acks.is_empty() && self.acks.capacity() > LONG {
            self.acks = VecDeque::new();
        }
    }

    /// Gives all tickets back, so that the session knows which messages of QoS 2 it has.
    pub(super) fn give_all_back(&mut self, connection: &mut Connection, now: Instant) {
        while self.give_first_back(connection, now, true) {}
    }

    /// Gives the first ticket back. Returns `false` if there is none, or no answer.
    fn give_first_back(&mut self, connection: &mut Connection, now: Instant, at_end: bool) -> bool {
        let mut is_refused = false;
        let is_answered = |first: &mut UnsettledAck| {
            let answers = self.answers.as_ref();
            let answers = answers.filter(|_| first.appended != Position::default());
            let answer =
                answers.map_or(Some(false), |answers| answers.take(first.appended, at_end));
            is_refused = answer == Some(true);
            answer.is_some()
        };
        let Some(ack) = self.acks.pop_front_if(is_answered) else {
            return false;
        };
        if !is_refused {
            connection.ack(now, ack.ticket, ack.reason);
        } else if connection.has_reason_codes() {
            connection.ack(now, ack.ticket, ReasonCode::QuotaExceeded);
        } else {
            self.acks.clear();
            connection.disconnect(Disconnect::new(ReasonCode::QuotaExceeded));
        }
        true
    }
}
