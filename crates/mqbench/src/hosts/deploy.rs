//! Programs for hosts, by their architecture, and how they get there.

use std::{
    env::consts::ARCH,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tokio::time::{sleep, timeout};

use super::{
    Hosts, Machine,
    check::{VERSION, ask, build},
};
use crate::agent::{Controller, Report, sha256};

/// How long an agent may take until it is back as another program.
const BACK: Duration = Duration::from_secs(30);

/// How long one that is back may take to answer: it may have been asked while it went.
const ANSWER: Duration = Duration::from_secs(5);

/// Between attempts to ask.
const PAUSE: Duration = Duration::from_millis(100);

/// Where the programs of hosts are.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Programs {
    /// The folder that has them, mqbench-aarch64, mqbench-armv7 and mqbench-x86_64 [default: this program,
    /// on hosts of its architecture]
    #[arg(long, value_name = "DIR", requires = "hosts")]
    programs: Option<PathBuf>,
}

impl Programs {
    /// The one for hosts of this architecture.
    pub(crate) fn of(&self, machine: &str) -> anyhow::Result<PathBuf> {
        let found = self.in_folder(machine).or_else(|| own(machine));
        found.with_context(|| {
            let name = file(machine);
            format!("there is no program for {machine}: give --programs a folder with {name}")
        })
    }

    fn in_folder(&self, machine: &str) -> Option<PathBuf> {
        let program = self.programs.as_ref()?.join(file(machine));
        program.is_file().then_some(program)
    }

    /// The one that a campaign puts on a host first: on one with an older version, or where somebody says
    /// which programs hosts are to have. Never on one with a newer version.
    fn wanted(&self, found: &Report) -> Option<PathBuf> {
        if is_newer(&found.version) {
            return None;
        }
        let given = self.in_folder(&found.machine);
        given.or_else(|| own(&found.machine).filter(|_| found.version != VERSION))
    }
}

fn file(machine: &str) -> String {
    // Rust's name for each 32-bit ARM, of which this is the one that ships.
    let name = if machine == "arm" { "armv7" } else { machine };
    format!("mqbench-{name}")
}

fn own(machine: &str) -> Option<PathBuf> {
    std::env::current_exe().ok().filter(|_| machine == ARCH)
}

/// Whether a host's version is newer than this one.
pub(super) fn is_newer(version: &str) -> bool {
    let numbers = |version: &str| -> Option<Vec<u64>> {
        let parts = version.split('.').map(|part| part.parse().ok());
        parts.collect()
    };
    numbers(version) > numbers(VERSION)
}

/// Puts programs where a campaign wants them, and says so on standard error.
///
/// # Errors
/// The first host that cannot be asked, or does not take its program.
pub(crate) async fn deploy(
    controller: &Controller,
    hosts: &Hosts,
    programs: &Programs,
) -> anyhow::Result<()> {
    for host in hosts.machines() {
        let deployed = async {
            let found = ask(controller, host).await?;
            match programs.wanted(&found) {
                Some(program) => upgrade(controller, host, &found, &program).await,
                None => Ok(None),
            }
        };
        let deployed = deployed.await;
        if let Some(line) = deployed.with_context(|| format!("host {}", host.name))? {
            eprintln!("mqbench: host {}: {line}", host.name);
        }
    }
    Ok(())
}

/// Puts a program on a host; `None` if it has it.
pub(crate) async fn upgrade(
    controller: &Controller,
    host: &Machine,
    found: &Report,
    program: &Path,
) -> anyhow::Result<Option<String>> {
    let Some(had) = &found.program else {
        bail!(
            "its mqbench {} cannot be upgraded from here: copy the program there",
            found.version
        );
    };
    let bytes = std::fs::read(program);
    let bytes = bytes.with_context(|| format!("cannot read {}", program.display()))?;
    let wanted = sha256(&bytes);
    if *had == wanted {
        return Ok(None);
    }
    let agent = controller.connect(host.agent).await?;
    agent.upgrade(&bytes).await?;
    let now = back(controller, host, &wanted).await?;
    Ok(Some(format!(
        "upgraded from {} to {}",
        build(found),
        build(&now)
    )))
}

/// Waits until an agent is back as the program with this SHA-256.
async fn back(controller: &Controller, host: &Machine, wanted: &str) -> anyhow::Result<Report> {
    let began = Instant::now();
    loop {
        let asked = timeout(ANSWER, ask(controller, host)).await;
        let why = match asked {
            Ok(Ok(found)) if found.program.as_deref() == Some(wanted) => return Ok(found),
            Ok(Ok(found)) => format!("it went back to {}", build(&found)),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "it does not answer".to_owned(),
        };
        if began.elapsed() > BACK {
            bail!("its agent took the program and is not back with it: {why}");
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let (major, minor) = VERSION.split_once('.').unwrap();
        assert!(is_newer(&format!("{major}.999.0")));
        assert!(is_newer(&format!("999.{minor}")));
        for version in [VERSION, "0.0.9", "soon"] {
            assert!(!is_newer(version), "{version}");
        }
    }

    #[test]
    fn a_campaign_brings_programs_to_hosts_that_want_them() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["mqbench-aarch64", "mqbench-armv7"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let none = Programs { programs: None };
        let given = Programs {
            programs: Some(folder.path().to_owned()),
        };
        let other = if ARCH == "aarch64" { "arm" } else { "aarch64" };
        let wants = |programs: &Programs, version: &str, machine: &str| {
            let found = Report {
                version: version.to_owned(),
                machine: machine.to_owned(),
                ..crate::hosts::check::tests::fine()
            };
            programs.wanted(&found)
        };
        let this = std::env::current_exe().unwrap();
        assert_eq!(wants(&none, "0.0.1", ARCH), Some(this.clone()));
        assert_eq!(wants(&none, VERSION, ARCH), None);
        assert_eq!(wants(&none, "0.0.1", other), None);
        for version in ["0.0.1", VERSION] {
            let program = folder.path().join(file(other));
            assert_eq!(wants(&given, version, other), Some(program));
        }
        assert_eq!(wants(&given, "999.0.0", other), None);
        assert_eq!(wants(&given, "0.0.1", "riscv64"), None);
        let error = given.of("riscv64").unwrap_err().to_string();
        assert!(error.contains("mqbench-riscv64"), "{error}");
    }
}
