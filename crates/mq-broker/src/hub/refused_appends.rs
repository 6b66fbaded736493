//! Messages that a cluster refuses after its node has taken them.

use std::sync::Mutex;

use crate::{lock::lock, store::Position};

/// The messages of one connection for which the cluster had no room, until their publisher is answered.
///
/// The node appends a message while its acknowledgement waits. So the task that appends and the connection agree here:
/// a message is refused before its acknowledgement is written, or not at all.
#[derive(Debug, Default)]
pub(crate) struct RefusedAppends(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    refused: Vec<Position>,
    /// The last message whose acknowledgement is written; it may still wait to be sent.
    acknowledged: Position,
    /// `true` if one of those was refused afterwards.
    is_late: bool,
}

impl RefusedAppends {
    /// Refuses a message. Returns `false` if its acknowledgement is written already.
    pub(crate) fn refuse(&self, message: Position) -> bool {
        let mut answers = lock(&self.0);
        let is_in_time = message > answers.acknowledged;
        if is_in_time {
            answers.refused.push(message);
        } else {
            answers.is_late = true;
        }
        is_in_time
    }

    /// Returns `true` if a message was refused behind its acknowledgement, which must not be sent: the message is not
    /// stored, although the store has settled.
    pub(crate) fn has_refused_late(&self) -> bool {
        lock(&self.0).is_late
    }

    /// Takes the refused ones of the messages up to `last`, whose acknowledgements are written now.
    pub(crate) fn take_up_to(&self, last: Position) -> Vec<Position> {
        let mut answers = lock(&self.0);
        answers.acknowledged = last.max(answers.acknowledged);
        let refused = core::mem::take(&mut answers.refused).into_iter();
        let (now, later) = refused.partition(|refused| *refused <= last);
        answers.refused = later;
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_refused_before_its_acknowledgement_is_written_or_not_at_all() {
        let refused = RefusedAppends::default();
        assert!(refused.refuse(Position(3)));
        assert!(refused.refuse(Position(5)));
        assert_eq!(refused.take_up_to(Position(4)), [Position(3)]);
        assert!(!refused.has_refused_late());
        assert!(!refused.refuse(Position(4)));
        assert!(refused.has_refused_late());
        assert!(refused.refuse(Position(6)));
        assert_eq!(refused.take_up_to(Position(6)), [Position(5), Position(6)]);
        assert!(refused.take_up_to(Position(9)).is_empty());
    }
}
