//! The calls of the store that are settled: all their parts are done, and those of all calls before.

use std::{collections::BTreeMap, sync::Mutex};

use tokio::sync::watch;

use crate::{lock::lock, store::Position};

#[derive(Debug)]
pub(in crate::cluster) struct Ledger {
    open: Mutex<OpenCalls>,
    settled: watch::Receiver<Position>,
}

#[derive(Debug)]
struct OpenCalls {
    /// The last call.
    last: u64,
    /// The number of parts that each open call waits for.
    parts: BTreeMap<u64, usize>,
    /// The number of parts that each open call waits for, of calls that hold up no later one.
    detached: BTreeMap<u64, usize>,
    /// `None` once nothing can be settled any more.
    settled: Option<watch::Sender<Position>>,
}

impl Ledger {
    pub(in crate::cluster) fn new() -> Self {
        let (sender, settled) = watch::channel(Position::default());
        Self {
            open: Mutex::new(OpenCalls {
                last: 0,
                parts: BTreeMap::new(),
                detached: BTreeMap::new(),
                settled: Some(sender),
            }),
            settled,
        }
    }

    /// Begins a call that waits for so many parts.
    pub(in crate::cluster) fn begin(&self, parts: usize) -> Position {
        let mut open = lock(&self.open);
        open.last += 1;
        let position = open.last;
        if parts > 0 {
            open.parts.insert(position, parts);
        }
        open.publish_settled();
        Position(position)
    }

    /// A part of that call is done.
    pub(in crate::cluster) fn complete_part(&self, Position(position): Position) {
        let mut open = lock(&self.open);
        if complete_one(&mut open.parts, position) {
            open.publish_settled();
        } else {
            complete_one(&mut open.detached, position);
        }
    }

    /// Lets later calls be settled before that one, which may take as long as there is no room in the cluster. Nobody
    /// waits for it, or only for its own end.
    pub(in crate::cluster) fn detach(&self, Position(position): Position) {
        let mut open = lock(&self.open);
        if let Some(parts) = open.parts.remove(&position) {
            open.detached.insert(position, parts);
            open.publish_settled();
        }
    }

    /// Returns `true` if a call still waits for a part, apart from the calls before it.
    pub(in crate::cluster) fn is_open(&self, Position(position): Position) -> bool {
        let open = lock(&self.open);
        open.parts.contains_key(&position) || open.detached.contains_key(&position)
    }

    /// Nothing is settled from here on.
    pub(in crate::cluster) fn fail(&self) {
        lock(&self.open).settled = None;
    }

    pub(in crate::cluster) fn has_failed(&self) -> bool {
        lock(&self.open).settled.is_none()
    }

    pub(in crate::cluster) fn settled(&self) -> watch::Receiver<Position> {
        self.settled.clone()
    }

    /// Waits until all calls so far are settled. Resolves to `false` if they cannot be any more.
    pub(in crate::cluster) async fn settle_all(&self) -> bool {
        let last = self.last_position();
        let mut settled = self.settled();
        settled.wait_for(|settled| *settled >= last).await.is_ok()
    }

    /// Returns the position of the last call.
    pub(in crate::cluster) fn last_position(&self) -> Position {
        Position(lock(&self.open).last)
    }
}

impl OpenCalls {
    fn publish_settled(&self) {
        let first = self.parts.first_key_value();
        let settled = Position(first.map_or(self.last, |(first, _)| first - 1));
        if let Some(sender) = &self.settled {
            sender.send_if_modified(|known| core::mem::replace(known, settled) != settled);
        }
    }
}

/// Takes a part from a call. Returns `true` if it was its last one.
fn complete_one(calls: &mut BTreeMap<u64, usize>, position: u64) -> bool {
    let Some(parts) = calls.get_mut(&position) else {
        return false;
    };
    *parts -= 1;
    let is_done = *parts == 0;
    if is_done {
        calls.remove(&position);
    }
    is_done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_waits_for_one_that_is_detached() {
        let ledger = Ledger::new();
        let settled = || ledger.settled().borrow().0;
        let calls: Vec<_> = [1, 2, 1].map(|parts| ledger.begin(parts)).into();
        ledger.complete_part(calls[0]);
        ledger.complete_part(calls[2]);
        assert_eq!(settled(), 1);
        ledger.detach(calls[1]);
        assert_eq!(settled(), 3);
        ledger.complete_part(calls[1]);
        assert!(ledger.is_open(calls[1]));
        ledger.complete_part(calls[1]);
        assert!(!ledger.is_open(calls[1]));
    }

    #[test]
    fn a_call_is_settled_with_all_calls_before_it() {
        let ledger = Ledger::new();
        let settled = || ledger.settled().borrow().0;
        let calls: Vec<_> = [0, 2, 0, 1, 0].map(|parts| ledger.begin(parts)).into();
        assert_eq!(settled(), 1);
        assert!(ledger.is_open(calls[3]));
        ledger.complete_part(calls[3]);
        assert!(!ledger.is_open(calls[3]));
        assert_eq!(settled(), 1);
        ledger.complete_part(calls[1]);
        assert_eq!(settled(), 1);
        ledger.complete_part(calls[1]);
        assert_eq!(settled(), 5);
        ledger.fail();
        ledger.begin(0);
        assert_eq!(settled(), 5);
        assert!(ledger.has_failed());
    }
}
