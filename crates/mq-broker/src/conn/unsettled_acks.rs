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
            // The others are given back as well: the session must know which messages of QoS 2 it has.
            connection.disconnect(Disconnect::new(ReasonCode::QuotaExceeded));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use mq_codec::ConnAck;
    use mq_proto::{Event, LaneId, ServerConfig, Session};

    use super::*;

    /// CONNECT of 3.1.1 for the client `c`, and two messages of QoS 2.
    const SENT: &[u8] =
        b"\x10\x0d\0\x04MQTT\x04\0\0\0\0\x01c\x34\x05\0\x01t\0\x01\x34\x05\0\x01t\0\x02";

    #[test]
    fn a_session_knows_what_was_taken_beside_a_message_that_could_not_be_refused() {
        let now = Instant::now();
        let mut connection = Connection::server(now, ServerConfig::default());
        let mut received = BytesMut::from(SENT);
        connection.handle_bytes(now, LaneId::CONTROL, &mut received);
        assert!(matches!(connection.poll_event(), Some(Event::Connect(_))));
        let accepted = connection.accept(now, Session::new(), ConnAck::new(ReasonCode::Success));
        accepted.unwrap();
        connection.handle_bytes(now, LaneId::CONTROL, &mut received);
        let answers = Arc::new(AppendAnswers::default());
        let mut acks = UnsettledAcks::default();
        for appended in [1, 2] {
            let Some(Event::Publish(message)) = connection.poll_event() else {
                panic!("two messages came");
            };
            let ticket = message.ticket.unwrap();
            acks.push(
                ticket,
                ReasonCode::Success,
                Position(appended),
                Some(&answers),
            );
        }
        assert!(answers.refuse(Position(1)));
        acks.give_back(2, &mut connection, now);
        acks.give_all_back(&mut connection, now);
        assert!(connection.is_closed());
        let received: Vec<_> = connection.into_session().received().collect();
        assert_eq!(received, [mq_codec::PacketId::new(2).unwrap()]);
    }
}
