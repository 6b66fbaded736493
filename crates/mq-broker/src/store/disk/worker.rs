//! The thread that commits.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use redb::Database;
use tokio::sync::watch;
use tracing::error;

use super::{
    super::Position,
    Durability,
    calls::Calls,
    tables::{Failed, Tables},
};

/// Without durability the file is brought up to date this often: what changed since then is kept in
/// memory.
const NOW_AND_THEN: Duration = Duration::from_mins(1);

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
