//! The answers to messages that a node appends to a log of its cluster.

use std::{collections::BTreeSet, sync::Mutex};

use crate::{lock::lock, store::Position};

/// The messages of one connection of which its cluster had no room for some, until their publisher is answered.
///
/// The node appends a message while its acknowledgement waits. So the task that appends and the connection agree here:
/// a message is refused before its acknowledgement is written, or not at all.
#[derive(Debug, Default)]
pub(crate) struct AppendAnswers(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    refused: BTreeSet<Position>,
    /// Messages that hold up no other client, and get no answer for now: the log may have them or not.
    unknown: BTreeSet<Position>,
    /// The last message whose acknowledgement is written; it may still wait to be sent.
    acknowledged: Position,
    /// `true` if one of those must not be sent, although the store has settled: its message is not stored, or may not be.
    is_late: bool,
}

impl Answers {
    fn is_in_time(&mut self, message: Position) -> bool {
        let is_in_time = message > self.acknowledged;
        self.is_late |= !is_in_time;
        is_in_time
    }
}

impl AppendAnswers {
    /// Refuses a message. Returns `false` if its acknowledgement is written already.
    pub(crate) fn refuse(&self, message: Position) -> bool {
        let mut answers = lock(&self.0);
        answers.unknown.remove(&message);
        let is_in_time = answers.is_in_time(message);
        if is_in_time {
            answers.refused.insert(message);
        }
        is_in_time
    }

    /// Withholds the answer to a message, until [`release`](Self::release) is called or it is refused.
    pub(crate) fn withhold(&self, message: Position) {
        let mut answers = lock(&self.0);
        if answers.is_in_time(message) {
            answers.unknown.insert(message);
        }
    }

    /// Ends [`withhold`](Self::withhold) for a message that the log has.
    pub(crate) fn release(&self, message: Position) {
        lock(&self.0).unknown.remove(&message);
    }

    /// Returns `true` if an acknowledgement is written that must not be sent.
    pub(crate) fn are_written_too_early(&self) -> bool {
        lock(&self.0).is_late
    }

    /// Takes the answer to a message, which is written now: `true` if it is refused, `None` if there is none for now.
    /// With `at_end`, as the connection ends, there is one, which must not be sent.
    pub(crate) fn take(&self, message: Position, at_end: bool) -> Option<bool> {
        let mut answers = lock(&self.0);
        if answers.unknown.contains(&message) {
            if !at_end {
                return None;
            }
            answers.is_late = true;
        }
        answers.acknowledged = message.max(answers.acknowledged);
        Some(answers.refused.remove(&message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_refused_before_its_acknowledgement_is_written_or_not_at_all() {
        let answers = AppendAnswers::default();
        assert!(answers.refuse(Position(3)));
        assert!(answers.refuse(Position(5)));
        for (message, is_refused) in [(3, true), (4, false)] {
            let answer = answers.take(Position(message), false);
            assert_eq!(answer, Some(is_refused), "{message}");
        }
        assert!(!answers.are_written_too_early());
        assert!(!answers.refuse(Position(4)));
        assert!(answers.are_written_too_early());
        assert_eq!(answers.take(Position(5), false), Some(true));
    }

    #[test]
    fn a_message_that_the_log_may_have_gets_no_answer_before_that_is_known() {
        let answers = AppendAnswers::default();
        for message in 1..4 {
            answers.withhold(Position(message));
            assert_eq!(answers.take(Position(message), false), None);
        }
        answers.release(Position(1));
        assert_eq!(answers.take(Position(1), false), Some(false));
        assert!(answers.refuse(Position(2)));
        assert_eq!(answers.take(Position(2), false), Some(true));
        assert!(!answers.are_written_too_early());
        assert_eq!(answers.take(Position(3), true), Some(false));
        assert!(answers.are_written_too_early());
    }
}
