//! Processes of roles, which end with the agent.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::{folder::Folder, message::State, roles::Role};
use crate::sut::{BROKER_CONFIGURATION, announced};

/// How long a role may take to end in order.
const GRACE: Duration = Duration::from_secs(10);

/// How long a role may take until it is ready.
pub(super) const START: Duration = Duration::from_secs(20);

/// A broker's configuration in the work folder; no file of a controller begins with a point.
const CONFIGURATION: &str = ".broker.toml";

/// What is told of what a role said: its last lines are what matters.
const SAID: usize = 2000;

/// Roles at once; a cell has three, and two links.
const MOST: usize = 16;

/// The roles of one controller.
#[derive(Debug)]
pub(super) struct Children {
    /// This program.
    program: PathBuf,
    folder: Folder,
    next: u32,
    running: BTreeMap<u32, Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    role: Role,
    /// What it says on standard error.
    said: PathBuf,
}

impl Children {
    pub(super) fn new(program: PathBuf, folder: Folder) -> Self {
        Self {
            program,
            folder,
            next: 1,
            running: BTreeMap::new(),
        }
    }

    /// Begins with a role; returns its number, and the addresses of a broker. Waits for it no longer than
    /// until whoever wants it has `gone`.
    pub(super) async fn start(
        &mut self,
        role: Role,
        gone: impl Future<Output = ()>,
    ) -> anyhow::Result<(u32, Vec<String>)> {
        if self.running.len() >= MOST {
            bail!("{MOST} roles are running already");
        }
        let mut arguments = role.command().map_err(anyhow::Error::msg)?;
        if matches!(role, Role::Broker { .. }) {
            // As in the emulated networks, so that they compare.
            std::fs::write(self.folder.path().join(CONFIGURATION), BROKER_CONFIGURATION)
                .context("cannot write to the work folder")?;
            arguments.push(format!("--config={CONFIGURATION}"));
        }
        let id = self.next;
        self.next += 1;
        let said = self.folder.path().join(format!(".role-{id}"));
        let log = File::create(&said).context("cannot write to the work folder")?;
        let child = Command::new(&self.program)
            .arg("--end-with-input")
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // It ends in order by itself when its input does, as an interface has to be put back.
            .kill_on_drop(false)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let mut running = Running { child, role, said };
        let ready = tokio::select! {
            ready = timeout(START, running.ready()) => {
                ready.unwrap_or_else(|_| Err(anyhow!("it was not ready in time")))
            }
            () = gone => Err(anyhow!("nobody waits for it any more")),
        };
        match ready {
            Ok(addresses) => {
                self.running.insert(id, running);
                Ok((id, addresses))
            }
            Err(why) => {
                let said = running.said.clone();
                running.end(&self.program).await?;
                let said = last(&said);
                Err(if said.is_empty() {
                    why
                } else {
                    why.context(said)
                })
            }
        }
    }

    /// What became of a role. Once told that it has ended, it is forgotten.
    pub(super) async fn look(&mut self, id: u32) -> anyhow::Result<State> {
        let running = self.running.get_mut(&id);
        let running = running.with_context(|| format!("there is no role {id}"))?;
        let Some(status) = running.child.try_wait().context("cannot look at a role")? else {
            return Ok(State::Running {});
        };
        let said = last(&running.said);
        if let Some(running) = self.running.remove(&id) {
            running.put_back(&self.program).await?;
        }
        Ok(ended(status, said))
    }

    /// Ends a role.
    pub(super) async fn stop(&mut self, id: u32) -> anyhow::Result<State> {
        let running = self.running.remove(&id);
        let running = running.with_context(|| format!("there is no role {id}"))?;
        let said = running.said.clone();
        let status = running.end(&self.program).await?;
        Ok(ended(status, last(&said)))
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Ends all of them.
    ///
    /// # Errors
    /// The first that there was; the others have been ended all the same.
    pub(super) async fn end_all(&mut self) -> anyhow::Result<()> {
        let running = core::mem::take(&mut self.running);
        let ending = running.into_values().map(|role| role.end(&self.program));
        let ended = futures_util::future::join_all(ending).await;
        ended.into_iter().try_for_each(|ended| ended.map(drop))
    }
}

impl Running {
    /// Waits until it announces that it is ready: a broker listens, and says where; a link is on its
    /// interface, a subscriber has subscribed, a meter is read. A publisher has nothing to wait for.
    async fn ready(&mut self) -> anyhow::Result<Vec<String>> {
        if matches!(self.role, Role::Publisher { .. }) {
            return Ok(Vec::new());
        }
        let found = announced(&mut self.child).await?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    /// Ends it in order, or else by force, and makes sure that its interface is as it was.
    async fn end(mut self, program: &Path) -> anyhow::Result<ExitStatus> {
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            // One that has just ended is no error.
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        let in_order = timeout(GRACE, self.child.wait()).await;
        let status = if let Ok(status) = in_order {
            status
        } else {
            self.child.kill().await.context("cannot end a role")?;
            self.child.wait().await
        };
        let status = status.context("cannot wait for a role")?;
        self.put_back(program).await?;
        Ok(status)
    }

    /// Makes sure that its interface is as it was, if it has one.
    async fn put_back(&self, program: &Path) -> anyhow::Result<()> {
        if let Some(interface) = self.role.interface() {
            // Nothing to do where it was put back, as it should be.
            let mut clear = Command::new(program);
            let cleared = clear.args(["net", "clear", interface]).output().await;
            let cleared = cleared.context("cannot put an interface back")?;
            if !cleared.status.success() {
                let said = String::from_utf8_lossy(&cleared.stderr).trim().to_owned();
                bail!("{interface} is not as it was: {said}");
            }
        }
        Ok(())
    }
}

fn ended(status: ExitStatus, said: String) -> State {
    State::Ended {
        code: status.code(),
        said,
    }
}

/// The end of what a role has said.
pub(super) fn last(said: &Path) -> String {
    let text = std::fs::read(said).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(SAID)..]);
    text.trim().to_owned()
}
