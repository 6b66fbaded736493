//! Reload on SIGHUP and when watched files are replaced, in a thread that may hang.
//!
//! Files can be on storage that does not answer, such as NFS. The thread that accepts clients and answers operators
//! therefore reads none: each read is a job of its own thread, one at a time, and after [`PATIENCE`] the broker goes on
//! with what is in force.

use std::{io, sync::Arc, time::Duration};

use mq_broker::Reload;
use sd_notify::NotifyState;
use tokio::{
    task::{JoinError, JoinHandle},
    time::{MissedTickBehavior, interval, timeout},
};
use tracing::{info, warn};

use crate::systemd::{notify, notify_reloading};

/// Time that files may take to be read: they are small, and a disk that wakes up takes seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads everything again, and puts it in force. Returns `true` if replaced files are looked for from then on.
pub(crate) type Reread = Arc<dyn Fn() -> anyhow::Result<bool> + Send + Sync>;

/// The outcome of a read: as [`Reread`], or `None` for a look.
type Ended = Result<anyhow::Result<Option<bool>>, JoinError>;

/// Reads of files that are under way or over.
struct Files {
    reload: Reload,
    reread: Reread,
    /// `true` while replaced files are looked for.
    watch: bool,
    /// A read that has not ended in time.
    hangs: Option<JoinHandle<anyhow::Result<Option<bool>>>>,
}

/// The cause of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// SIGHUP: everything is read.
    Asked,
    /// Time: replaced files are read.
    Look,
}

/// Reloads on SIGHUP and, with `watch`, when files are replaced. Never resolves.
///
/// # Errors
/// If signals cannot be received.
pub(crate) fn keep_up(
    reload: Reload,
    watch: bool,
    reread: Reread,
) -> io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let mut hangup = {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::hangup())?
    };
    let mut files = Files {
        reload,
        reread,
        watch,
        hangs: None,
    };
    Ok(async move {
        let mut looks = interval(Reload::LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            #[cfg(unix)]
            let asked = async { hangup.recv().await.is_some() };
            #[cfg(not(unix))]
            let asked = std::future::pending::<bool>();
            let watch = files.watch;
            let cause = tokio::select! {
                _ = asked => Cause::Asked,
                _ = looks.tick(), if watch => Cause::Look,
                ended = files.late_read() => {
                    files.answer_again(ended);
                    continue;
                }
            };
            if cause == Cause::Asked {
                notify_reloading();
            }
            files.read(cause).await;
            if cause == Cause::Asked {
                notify(&[NotifyState::Ready]);
            }
        }
    })
}

impl Files {
    /// Reads files, for no longer than [`PATIENCE`], unless an earlier read still hangs.
    async fn read(&mut self, cause: Cause) {
        if let Some(earlier) = &mut self.hangs {
            if !earlier.is_finished() {
                if cause == Cause::Asked {
                    warn!("reload: ignored while an earlier read of the files hangs");
                }
                return;
            }
            let ended = earlier.await;
            self.answer_again(ended);
        }
        let (reload, reread) = (self.reload.clone(), Arc::clone(&self.reread));
        let mut job = tokio::task::spawn_blocking(move || match cause {
            Cause::Asked => reread().map(Some),
            Cause::Look => {
                reload.look();
                Ok(None)
            }
        });
        if let Ok(ended) = timeout(PATIENCE, &mut job).await {
            self.end(ended);
            return;
        }
        warn!(
            seconds = PATIENCE.as_secs(),
            "reload: files not read in time; previous contents stay in force"
        );
        self.hangs = Some(job);
    }

    /// Resolves when a read that has not ended in time has ended. Never resolves if there is none. Cancel-safe.
    async fn late_read(&mut self) -> Ended {
        match &mut self.hangs {
            Some(late) => late.await,
            None => std::future::pending().await,
        }
    }

    /// Takes the outcome of a read that has not ended in time.
    fn answer_again(&mut self, ended: Ended) {
        info!("reload: storage of the files answers again");
        self.hangs = None;
        self.end(ended);
    }

    fn end(&mut self, ended: Ended) {
        match ended {
            Ok(Ok(Some(watch))) => self.watch = watch,
            Ok(Ok(None)) => {}
            Ok(Err(error)) => warn!(%error, "reload: failed; nothing was changed"),
            Err(error) => warn!(%error, "reload: failed; nothing was changed"),
        }
    }
}
