//! The floor of a node: the places in the logs up to which the records of its sessions are complete.
//!
//! A session without new messages needs no new record, however far the logs have grown: a node that takes it over
//! begins to read at the floor of its last owner. The floor holds for a session that came from another node once its
//! first record here is written; until then the record says that it is behind.

use crate::store::At;

/// A node's floor, which rises in rounds: in each, the node writes the records of sessions that have changed.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Floor {
    /// Number of the present round, from 1; 0 before the first.
    pub(in crate::cluster) round: u64,
    /// The floor: places, by log, before which each message that a session still has to get is in the session's record.
    pub(in crate::cluster) at: Vec<At>,
    /// The next floor, with the round in which it was proposed. It holds once no session has a change of an earlier
    /// round that its record lacks.
    pending: Option<(u64, Vec<At>)>,
}

impl Floor {
    /// Returns `true` if the floor has reached these places in all logs.
    pub(in crate::cluster) fn has_reached(&self, places: &[At]) -> bool {
        let at = self.at.len() == places.len();
        at && self.at.iter().zip(places).all(|(at, place)| at >= place)
    }

    /// Begins a round. `open` is the earliest round of a change that is in no record yet; `None` if all changes are.
    /// `next` has the places, by log, before which this node has looked for messages for all its sessions.
    pub(in crate::cluster) fn begin_round(&mut self, open: Option<u64>, next: Vec<At>) {
        if let Some((round, at)) = self.pending.take() {
            if open.is_none_or(|open| open >= round) {
                self.at = at;
            } else {
                self.pending = Some((round, at));
            }
        }
        self.round += 1;
        let round = self.round;
        self.pending.get_or_insert((round, next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_when_no_session_lacks_anything_of_before_a_round() {
        let mut floor = Floor::default();
        floor.begin_round(None, vec![At(10)]);
        assert!(floor.at.is_empty());
        floor.begin_round(Some(0), vec![At(20)]);
        assert!(floor.at.is_empty(), "a session lacks something of before");
        floor.begin_round(Some(1), vec![At(30)]);
        assert_eq!(floor.at, [At(10)], "what it lacks came later");
        floor.begin_round(None, vec![At(40)]);
        assert_eq!(floor.at, [At(30)]);
        assert!(floor.has_reached(&[At(30)]));
        assert!(!floor.has_reached(&[At(31)]));
        assert!(
            !Floor::default().has_reached(&[At(0)]),
            "nothing is known yet"
        );
    }
}
