//! The thread that commits.

use std::{
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use redb::Database;
use tokio::sync::watch;
use tracing::error;

use super::{
    super::{Change, Position},
    Durability,
    tables::{Failed, Tables},
};

/// Without durability the file is brought up to date this often: what changed since then is kept in
/// memory.
const NOW_AND_THEN: Duration = Duration::from_mins(1);

/// Calls that wait for the thread.
///
/// Their number is bounded by what connections may have open: each waits for its calls to settle
/// before it acknowledges anything.
#[derive(Debug, Default)]
pub(super) struct Calls {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Vec<Change>>,
    /// How many there were.
    count: u64,
    /// No more come.
    ended: bool,
    /// The thread takes none any more.
    failed: bool,
}

/// What the thread is to do.
struct Turn {
    calls: Vec<Vec<Change>>,
    position: Position,
    ended: bool,
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

    fn fail(&self) {
        let mut state = self.lock();
        state.failed = true;
        state.waiting.clear();
    }

    /// All that wait; waits for some, but at most until `until`.
    fn take(&self, until: Option<Instant>) -> Turn {
        let mut state = self.lock();
        while state.waiting.is_empty() && !state.ended {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Turn {
            calls: core::mem::take(&mut state.waiting),
            position: Position(state.count),
            ended: state.ended,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's own.
pub(super) struct Worker {
    pub(super) path: PathBuf,
    pub(super) database: Arc<Database>,
    pub(super) tables: Tables,
    pub(super) calls: Arc<Calls>,
    /// Dropped when the store has failed, which ends those who wait.
    pub(super) settled: watch::Sender<Position>,
    pub(super) durability: Durability,
}

impl Worker {
    pub(super) fn run(mut self) {
        if let Err(error) = self.work() {
            error!(path = %self.path.display(), %error, "the store has failed: nothing is kept any more");
        }
    }

    fn work(&mut self) -> Result<(), Failed> {
        // When what was committed in memory is to be on the disk.
        let mut sync_at = None;
        loop {
            let turn = self.calls.take(sync_at);
            let due = sync_at.is_some_and(|at| at <= Instant::now());
            let every = match self.durability {
                Durability::Always => None,
                Durability::Interval(every) => Some(every),
                Durability::Off => Some(NOW_AND_THEN),
            };
            let sync = every.is_none() || due || turn.ended;
            if !turn.calls.is_empty() || (sync && sync_at.is_some()) {
                self.tables.commit(&self.database, turn.calls, sync)?;
                sync_at = match every {
                    Some(every) if !sync => sync_at.or_else(|| Some(Instant::now() + every)),
                    _ => None,
                };
                self.settled.send_replace(turn.position);
            }
            if turn.ended {
                return Ok(());
            }
        }
    }
}

impl Drop for Worker {
    /// However it ends: what nobody commits any more is not collected either.
    fn drop(&mut self) {
        self.calls.fail();
    }
}
