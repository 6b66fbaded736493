//! The answer to the publisher of a message: its reason code.

use mq_codec::{ReasonCode, TopicName};
use mq_proto::AckTicket;

use super::{
    Publisher,
    outcome::{Outcome, RoutedMessage},
};
use crate::{
    session::Session,
    store::{Position, SessionChange},
};

/// The answer to the publisher of a message.
pub(crate) struct Acknowledgement {
    pub(crate) ticket: AckTicket,
    pub(crate) reason: ReasonCode,
    /// The topic of a message that was refused.
    pub(crate) refused_topic: Option<TopicName>,
    /// The message's position on its way to the cluster; 0 if it is not.
    pub(crate) appended: Position,
}

impl RoutedMessage {
    /// Returns the answer to the publisher of a delivered message; `None` at QoS 0.
    #[inline]
    pub(crate) fn acknowledge(
        self,
        from: &Session,
        publisher: &mut Publisher,
    ) -> Option<Acknowledgement> {
        let ticket = self.ticket?;
        let Outcome {
            receivers,
            lost,
            lacked_room,
            is_retained,
            received,
            topic,
            appended,
            is_refused,
        } = self.outcome;
        let mut acknowledgement = Acknowledgement {
            ticket,
            reason: ReasonCode::Success,
            refused_topic: None,
            appended,
        };
        if receivers == 0 {
            acknowledgement.reason = ReasonCode::NoMatchingSubscribers;
        } else if is_refused
            || lacked_room && lost >= receivers && !is_retained && publisher.can_refuse
        {
            // No receiver takes it, for want of room.
            if let Some((packet_id, flow)) = received {
                let change = SessionChange::ReceivedReleased { packet_id, flow };
                publisher.journal.record_of(from, change);
            }
            acknowledgement.reason = ReasonCode::QuotaExceeded;
            acknowledgement.refused_topic = topic.map(|topic| *topic);
        }
        Some(acknowledgement)
    }
}
