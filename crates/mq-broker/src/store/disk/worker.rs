//! The thread that commits changes to the file.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use redb::Database;
use tokio::sync::watch;
use tracing::error;

use super::{super::Position, calls::Calls, file_error::FileError, tables::Tables};

/// The committing thread's own data.
pub(super) struct Worker {
    pub(super) path: PathBuf,
    pub(super) database: Arc<Database>,
    pub(super) tables: Tables,
    pub(super) calls: Arc<Calls>,
    /// Sender of the position up to which changes are settled. It is dropped when the store has failed, which ends the
    /// connections that wait.
    pub(super) settled: watch::Sender<Position>,
    /// The interval of syncs to the disk; `None` syncs each commit.
    pub(super) sync_every: Option<Duration>,
}

impl Worker {
    /// Commits changes until the last ones. Returns `true` if everything is on the disk then.
    pub(super) fn run(mut self) -> bool {
        let worked = self.work();
        if let Err(error) = &worked {
            error!(path = %self.path.display(), %error, "store: failed; no further change is stored");
        }
        worked.is_ok()
    }

    fn work(&mut self) -> Result<(), FileError> {
        // The time by which changes committed in memory must be on the disk.
        let mut sync_at = None;
        let mut group = Group::default();
        loop {
            let turn = self.calls.take(sync_at, group.wanted());
            let (calls, began) = (turn.calls.len(), Instant::now());
            let due = sync_at.is_some_and(|at| at <= Instant::now());
            let sync = self.sync_every.is_none() || due || turn.ended;
            if !turn.calls.is_empty() || (sync && sync_at.is_some()) {
                self.tables.commit(&self.database, turn.calls, sync)?;
                sync_at = match self.sync_every {
                    Some(every) if !sync => sync_at.or_else(|| Some(Instant::now() + every)),
                    _ => None,
                };
                self.settled.send_replace(turn.position);
                if self.sync_every.is_none() {
                    group.committed(calls, began.elapsed());
                }
            }
            if turn.ended {
                return Ok(());
            }
        }
    }
}

/// The size of commits, and their time.
///
/// Connections that wait for a commit continue together once it is done, and record again one a
/// little after the other. Committing the first call at once would leave all others to the next
/// commit: every other commit would be of one call. So a commit waits for as many calls as the last
/// ones had, for a quarter of its own time at most. A single caller never waits.
#[derive(Debug, Default)]
struct Group {
    /// Calls of the last two commits.
    calls: [usize; 2],
    took: Duration,
}

impl Group {
    /// Returns the number of calls to wait for once there is one, and the longest wait.
    fn wanted(&self) -> (usize, Duration) {
        (self.calls[0].max(self.calls[1]), self.took / 4)
    }

    fn committed(&mut self, calls: usize, took: Duration) {
        self.calls = [calls, self.calls[0]];
        self.took = took;
    }
}

impl Drop for Worker {
    /// Stops the collection of calls that no thread commits any more, also after a panic.
    fn drop(&mut self) {
        self.calls.fail();
    }
}
