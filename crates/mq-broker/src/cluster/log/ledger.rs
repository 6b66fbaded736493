//! The calls of the store that are settled: all their parts are done, and those of all calls before.

use std::{collections::BTreeMap, sync::Mutex};

use mq_codec::ByteStr;
use tokio::sync::watch;

use crate::{lock::lock, store::Position};

#[derive(Debug)]
pub(in crate::cluster) struct Ledger {
    open: Mutex<OpenCalls>,
    settled: watch::Receiver<Position>,
    client_call_ended: watch::Receiver<()>,
}

#[derive(Debug)]
struct OpenCalls {
    /// The last call.
    last: u64,
    /// The number of parts that each open call waits for.
    parts: BTreeMap<u64, usize>,
    /// The number of parts that each open call waits for, of calls that hold up no later one.
    detached: BTreeMap<u64, usize>,
    /// Clients whose sessions must not move, and that are not let in, before a call is done, by that call.
    waiting_clients: BTreeMap<u64, ByteStr>,
    /// `None` once nothing can be settled any more.
    settled: Option<watch::Sender<Position>>,
    /// Notified when a call of a client is done; `None` once nothing can be settled any more.
    client_call_ended: Option<watch::Sender<()>>,
}

impl Ledger {
    pub(in crate::cluster) fn new() -> Self {
        let (sender, settled) = watch::channel(Position::default());
        let (ended_sender, client_call_ended) = watch::channel(());
        Self {
            open: Mutex::new(OpenCalls {
                last: 0,
                parts: BTreeMap::new(),
                detached: BTreeMap::new(),
                waiting_clients: BTreeMap::new(),
                settled: Some(sender),
                client_call_ended: Some(ended_sender),
            }),
            settled,
            client_call_ended,
        }
    }

    /// Begins a call that waits for so many parts.
    pub(in crate::cluster) fn begin(&self, parts: usize) -> Position {
        lock(&self.open).begin(parts)
    }

    /// Completes a part of the call at that position.
    pub(in crate::cluster) fn complete_part(&self, Position(position): Position) {
        let mut open = lock(&self.open);
        let is_settled = complete_one(&mut open.parts, position);
        if is_settled {
            open.publish_settled();
        }
        let is_detached = !is_settled && complete_one(&mut open.detached, position);
        if is_detached && let Some(sender) = &open.settled {
            // A publisher may wait for it.
            sender.send_modify(|_| {});
        }
        if (is_settled || is_detached)
            && open.waiting_clients.remove(&position).is_some()
            && let Some(ended) = &open.client_call_ended
        {
            ended.send_replace(());
        }
    }

    /// Begins a call of one part, before whose end the session of that client must not move, nor the client be let in.
    pub(in crate::cluster) fn begin_of_client(&self, client: &ByteStr) -> Position {
        let mut open = lock(&self.open);
        let position = open.begin(1);
        open.waiting_clients.insert(position.0, client.clone());
        position
    }

    /// Lets later calls be settled before that one, which may take as long as there is no room in the cluster. Nobody
    /// waits for it, or only for its own end, apart from [`settle_client`](Self::settle_client).
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

    /// Ends the ledger: nothing is settled from here on.
    pub(in crate::cluster) fn fail(&self) {
        let mut open = lock(&self.open);
        open.settled = None;
        open.client_call_ended = None;
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

    /// Waits until no call of a client is open. Resolves to `false` if they cannot be settled any more.
    pub(in crate::cluster) async fn settle_client(&self, client: &ByteStr) -> bool {
        let mut ended = self.client_call_ended.clone();
        while self.has_open_call(client) {
            if ended.changed().await.is_err() {
                return false;
            }
        }
        true
    }

    fn has_open_call(&self, client: &ByteStr) -> bool {
        let open = lock(&self.open);
        let mut waiting = open.waiting_clients.values();
        waiting.any(|waiting| waiting == client)
    }

    /// Returns the position of the last call.
    pub(in crate::cluster) fn last_position(&self) -> Position {
        Position(lock(&self.open).last)
    }
}

impl OpenCalls {
    fn begin(&mut self, parts: usize) -> Position {
        self.last += 1;
        let position = self.last;
        if parts > 0 {
            self.parts.insert(position, parts);
        }
        self.publish_settled();
        Position(position)
    }

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

    #[tokio::test]
    async fn a_session_waits_for_calls_of_its_client_alone() {
        let ledger = Ledger::new();
        let [own, other] = ["own", "other"].map(|id| ByteStr::new(id).unwrap());
        let call = ledger.begin_of_client(&own);
        let (is_settled, ()) = tokio::join!(biased; ledger.settle_client(&own), async {
            assert!(ledger.settle_client(&other).await);
            ledger.complete_part(call);
        });
        assert!(is_settled);
        let call = ledger.begin_of_client(&own);
        ledger.detach(call);
        assert!(ledger.settle_all().await);
        assert!(ledger.settle_client(&other).await);
        let (is_settled, ()) = tokio::join!(biased; ledger.settle_client(&own), async {
            assert!(ledger.is_open(call));
            ledger.complete_part(call);
        });
        assert!(is_settled);
        ledger.begin_of_client(&own);
        ledger.fail();
        assert!(!ledger.settle_client(&own).await);
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
