//! The report of a host on itself, and its clock: the role `mqbench host`, once in each run.
//!
//! ```text
//!   host:       {"version":...,"folder":"/tmp/mqbench-x"}      a line of JSON, a report
//!   controller: clock
//!   host:       {"received_ns":...,"sent_ns":...}              as often as it is asked
//! ```
//!
//! The role's folder holds the files of the run, and is removed when the role ends.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use mq_measure::{clock::Exchange, context::HostContext};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    Machine,
    ssh::{RemoteRole, Ssh},
};
use crate::{
    clock::{WallClock, chrony::error_bound_ns, host_name},
    meter,
    stdin_lines::StdinLines,
    this_program::{status_mask, this_software},
};

/// The question for the time.
const CLOCK: &str = "clock";

/// A host's report on itself. Unknown fields are ignored: a host with a newer program may have more of them, and
/// its version is to be reported as the problem.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct HostReport {
    /// The version of the host's program.
    pub(crate) version: String,
    /// The git revision of the program.
    pub(crate) revision: Option<String>,
    /// The machine's name.
    pub(crate) host: String,
    /// The machine's architecture, such as `aarch64`.
    pub(crate) machine: String,
    #[serde(deserialize_with = "what_is_known")]
    pub(crate) context: HostContext,
    /// Bound of the machine's clock error against UTC, if chrony knows it.
    pub(crate) clock_bound_ns: Option<u64>,
    /// Network interfaces.
    pub(crate) interfaces: Vec<String>,
    /// `true` if the program may shape interfaces without sudo.
    pub(crate) may_shape: bool,
    /// The folder for the files of a run.
    pub(crate) folder: PathBuf,
    /// Free bytes in that folder.
    pub(crate) free_bytes: Option<u64>,
    /// A Raspberry Pi's flags of under-voltage and throttling; `0` if there was none since its start.
    pub(crate) throttled: Option<String>,
    /// The machine's own meters, such as `iio:ina226`, by all of their names.
    pub(crate) meters: Vec<String>,
}

/// Removes fields that only a newer program knows: results are read strictly, and a report is not a result.
fn what_is_known<'de, D: Deserializer<'de>>(from: D) -> Result<HostContext, D::Error> {
    let mut said = serde_json::Map::deserialize(from)?;
    let known = serde_json::to_value(HostContext::default()).map_err(Error::custom)?;
    said.retain(|name, _| known.get(name).is_some());
    HostContext::deserialize(serde_json::Value::Object(said)).map_err(Error::custom)
}

/// A host's answer to [`CLOCK`], in nanoseconds since the Unix epoch.
#[derive(Debug, Serialize, Deserialize)]
struct ClockAnswer {
    /// Time at which the question arrived.
    received_ns: u64,
    /// Time at which the answer was sent.
    sent_ns: u64,
}

/// Prints this host's report, then the time for each question, until the input ends. Lines go to `say`.
pub(crate) async fn serve(
    input: StdinLines,
    say: fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let folder = tempfile::Builder::new().prefix("mqbench-").tempdir();
    let folder = folder.context("cannot make a temporary directory")?;
    say(&json(&report(folder.path()).await)?)?;
    let clock = WallClock::from_env()?;
    input.terminate_at_end(move |line| {
        let time = ClockAnswer {
            received_ns: line.read_ns,
            sent_ns: clock.now_ns(),
        };
        if line.text == CLOCK
            && let Ok(time) = json(&time)
        {
            // If the controller no longer reads, the input ends as well.
            let _ = say(&time);
        }
    })?;
    terminate.recv().await;
    folder.close().context("cannot remove the run's files")
}

fn json(said: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string(said).context("cannot write JSON")?;
    Ok(text + "\n")
}

async fn report(folder: &Path) -> HostReport {
    HostReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        revision: this_software("mqbench").revision,
        host: host_name(),
        machine: std::env::consts::ARCH.to_owned(),
        context: HostContext::read(),
        clock_bound_ns: error_bound_ns().await,
        interfaces: interfaces(),
        may_shape: may_shape(),
        folder: folder.to_owned(),
        free_bytes: free_bytes(folder),
        throttled: throttled(),
        meters: meter::on_this_host(),
    }
}

/// Lists the network interfaces. /sys is no source: it shows those of the network namespace that it was mounted in.
fn interfaces() -> Vec<String> {
    let found = nix::net::if_::if_nameindex();
    let names = found.iter().flatten();
    let mut names: Vec<_> = names
        .map(|interface| interface.name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Reads the flags of a Raspberry Pi's firmware.
fn throttled() -> Option<String> {
    let file = "/sys/devices/platform/soc/soc:firmware/get_throttled";
    let text = std::fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

fn free_bytes(path: &Path) -> Option<u64> {
    let space = nix::sys::statvfs::statvfs(path).ok()?;
    // The types of these fields depend on the machine.
    let free = u128::from(space.blocks_available()) * u128::from(space.fragment_size());
    u64::try_from(free).ok()
}

/// Returns true if this process has `CAP_NET_ADMIN`, as root does, or a file after setcap(8).
fn may_shape() -> bool {
    const CAP_NET_ADMIN: u64 = 12;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status_mask(&status, "CapEff:") >> CAP_NET_ADMIN & 1 == 1
}

/// The controller's side: a host that takes part in a run.
#[derive(Debug)]
pub(crate) struct HostSession {
    remote: RemoteRole,
    pub(crate) report: HostReport,
}

impl HostSession {
    /// Starts the role on a host, and reads its report.
    pub(crate) async fn open(ssh: &Ssh, host: &Machine) -> anyhow::Result<Self> {
        let mut remote = ssh.start(host, &["host".to_owned()], false)?;
        let line = remote.first_line().await?;
        let report = serde_json::from_str(&line);
        let report = report.with_context(|| {
            format!(
                "host {}: its mqbench says `{line}`: is it another version?",
                host.name
            )
        })?;
        Ok(Self { remote, report })
    }

    /// Reads the host's clock between two readings of this machine's clock.
    pub(crate) async fn clock(&mut self, own: &WallClock) -> anyhow::Result<Exchange> {
        let t1_ns = own.now_ns();
        self.remote.send_line(CLOCK.to_owned()).await?;
        let line = self.remote.next_line().await?;
        let line = line.context("it has ended")?;
        let t4_ns = own.now_ns();
        let time: ClockAnswer = serde_json::from_str(&line).context("a host's time is none")?;
        Ok(Exchange {
            t1_ns,
            t2_ns: time.received_ns,
            t3_ns: time.sent_ns,
            t4_ns,
        })
    }

    /// Ends the role; returns when it has removed the files of the run.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.remote.stop().await.map(drop)
    }
}
