//! Up to where the records of a node's sessions are complete, written or not.
//!
//! A session for which nothing has come needs no new record, however far the logs have grown: whoever takes it over
//! begins to read at the floor of its last owner. One that has come from another node counts from its first record on:
//! until then its record says that it is behind.

use crate::store::At;

/// A node's floor, which rises in rounds.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Floor {
    /// Counts them.
    pub(in crate::cluster) round: u64,
    /// The places, by log, before which everything that is still owed is in the records.
    pub(in crate::cluster) at: Vec<At>,
    /// The next floor, and the round from whose beginning no session may lack anything for it.
    pending: Option<(u64, Vec<At>)>,
}

impl Floor {
    /// Returns `true` if the floor has reached these places.
    pub(in crate::cluster) fn has_reached(&self, places: &[At]) -> bool {
        let at = self.at.len() == places.len();
        at && self.at.iter().zip(places).all(|(at, place)| at >= place)
    }

    /// Begins a round. `open`: the first round of which something is not in a record. `next`: what is before these
    /// places was looked at for all sessions.
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
