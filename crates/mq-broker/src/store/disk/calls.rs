//! The queue between the tasks that record and the thread that commits.
//!
//! `models/` checks it under every interleaving.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use super::super::{Change, Position};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Calls of `Store::record` that wait for the thread. Their owner bounds their number: the broker
/// counts the memory of unsettled changes, and stops reading at its limit.
#[derive(Debug, Default)]
pub(super) struct Calls {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Vec<Change>>,
    /// The number of calls so far.
    count: u64,
    /// `true` once no further calls come.
    ended: bool,
    /// `true` once the thread has failed and takes no more calls.
    failed: bool,
    /// Start of the commit in progress.
    commit_began: Option<Instant>,
}

/// The calls of one commit.
pub(super) struct Turn {
    pub(super) calls: Vec<Vec<Change>>,
    pub(super) position: Position,
    pub(super) ended: bool,
}

impl Calls {
    pub(super) fn add(&self, changes: Vec<Change>) -> Position {
        let mut state = self.lock();
        state.count += 1;
        if !state.failed {
            state.waiting.push(changes);
            self.changed.notify_one();
        }
        Position(state.count)
    }

    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Records that the thread has ended: no further calls are collected.
    pub(super) fn fail(&self) {
        let mut state = self.lock();
        state.failed = true;
        state.commit_began = None;
        state.waiting.clear();
        self.changed.notify_all();
    }

    /// Waits until the thread has ended; `false` once a commit has taken longer than `patience`.
    pub(super) fn wait_for_end(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        while !state.failed {
            let took = state.commit_began.map(|began| began.elapsed());
            if took.is_some_and(|took| took > patience) {
                return false;
            }
            state = self.wait(state, patience / 10);
        }
        true
    }

    /// Takes all calls; waits for the first one until `until` at most. Once there is one, waits
    /// until there are as many as `group` has, for its time at most.
    pub(super) fn take(&self, until: Option<Instant>, group: (usize, Duration)) -> Turn {
        let mut state = self.lock();
        state.commit_began = None;
        while state.waiting.is_empty() && !state.ended {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(left) => self.wait(state, left),
            };
        }
        let (count, patience) = group;
        let began = Instant::now();
        while state.waiting.len() < count && !state.waiting.is_empty() && !state.ended {
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            state = self.wait(state, left);
        }
        state.commit_began = Some(Instant::now());
        Turn {
            calls: core::mem::take(&mut state.waiting),
            position: Position(state.count),
            ended: state.ended,
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, most: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
