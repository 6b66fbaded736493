//! The queue between the callers that record changes and the thread that commits them.

#[path = "../../../src/store/disk/calls.rs"]
mod calls;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use calls::Calls;
use loom::{
    sync::{Condvar, Mutex},
    thread,
};

use super::{Change, Position};

/// Stands in for the channel by which the store reports its settled position.
#[derive(Debug)]
struct Settled(Mutex<Position>, Condvar);

impl Settled {
    fn send(&self, position: Position) {
        *self.0.lock().unwrap() = position;
        self.1.notify_all();
    }

    fn wait_for(&self, position: Position) {
        let mut settled = self.0.lock().unwrap();
        while *settled < position {
            settled = self.1.wait(settled).unwrap();
        }
    }
}

/// Checks that each call is committed once, at its position, and that its waiter is notified.
pub fn every_call_is_committed_in_order() {
    let calls = Arc::new(Calls::default());
    let settled = Arc::new(Settled(Mutex::new(Position(0)), Condvar::new()));
    let committer = thread::spawn({
        let (calls, settled) = (Arc::clone(&calls), Arc::clone(&settled));
        move || {
            let mut all = Vec::new();
            loop {
                let turn = calls.take(None, (2, Duration::ZERO));
                all.extend(turn.calls);
                assert_eq!(
                    turn.position.0,
                    all.len() as u64,
                    "what is settled was committed"
                );
                settled.send(turn.position);
                if turn.ended {
                    return all;
                }
            }
        }
    });
    let other = thread::spawn({
        let calls = Arc::clone(&calls);
        move || calls.add(vec![Change(2)])
    });
    let first = calls.add(vec![Change(1)]);
    settled.wait_for(first);
    let positions = [(1, first), (3, calls.add(vec![Change(3)]))];
    let second = other.join().unwrap();
    calls.end();
    let all = committer.join().unwrap();
    assert_eq!(all.len(), 3);
    for (number, position) in positions.into_iter().chain([(2, second)]) {
        let place = usize::try_from(position.0).unwrap() - 1;
        assert_eq!(all[place], [Change(number)]);
    }
}

/// Checks that no call is collected once the thread has ended, in either order of the two.
pub fn nothing_is_collected_for_a_thread_that_has_ended() {
    let calls = Arc::new(Calls::default());
    let failing = thread::spawn({
        let calls = Arc::clone(&calls);
        move || calls.fail()
    });
    let position = calls.add(vec![Change(1)]);
    assert_eq!(position.0, 1);
    failing.join().unwrap();
    calls.add(vec![Change(2)]);
    assert!(
        calls
            .take(Some(Instant::now()), (0, Duration::ZERO))
            .calls
            .is_empty()
    );
}
