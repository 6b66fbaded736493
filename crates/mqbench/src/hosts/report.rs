//! What a host says of itself and of its clock: the role `mqbench host`, one for each run.
//!
//! ```text
//!   host:       {"version":...,"folder":"/tmp/mqbench-x"}      a line of JSON, a report
//!   controller: clock
//!   host:       {"received_ns":...,"sent_ns":...}              as often as it is asked
//! ```
//!
//! Its folder holds the files of the run, and is removed when it ends.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use mq_measure::{clock::Exchange, context::HostContext};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    Machine,
    ssh::{Remote, Ssh},
};
use crate::{
    clock::{WallClock, chrony::error_bound_ns, host},
    input::Input,
    meter,
    this_program::{mask, this_software},
};

/// Asks for the time.
const CLOCK: &str = "clock";

/// What a host says of itself. One with a newer program may say more, which is let pass: so it can be told
/// what is wrong.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Of its program.
    pub(crate) version: String,
    /// The git revision that it was built from.
    pub(crate) revision: Option<String>,
    /// The machine's name.
    pub(crate) host: String,
    /// Its architecture, such as `aarch64`.
    pub(crate) machine: String,
    #[serde(deserialize_with = "what_is_known")]
    pub(crate) context: HostContext,
    /// How far its clock is from UTC at most, if chrony knows.
    pub(crate) clock_bound_ns: Option<u64>,
    /// Network interfaces.
    pub(crate) interfaces: Vec<String>,
    /// Whether the program may shape them by itself, without sudo.
    pub(crate) may_shape: bool,
    /// For the files of a run.
    pub(crate) folder: PathBuf,
    /// Free bytes there.
    pub(crate) free_bytes: Option<u64>,
    /// A Raspberry Pi's word for under-voltage and throttling, `0` if there was none since its start.
    pub(crate) throttled: Option<String>,
    /// Meters that hang on it, such as `iio:ina226`, by every name that they have.
    pub(crate) meters: Vec<String>,
}

/// Without what only a newer program says: results are read strictly, and this is none.
fn what_is_known<'de, D: Deserializer<'de>>(from: D) -> Result<HostContext, D::Error> {
    let mut said = serde_json::Map::deserialize(from)?;
    let known = serde_json::to_value(HostContext::default()).map_err(Error::custom)?;
    said.retain(|name, _| known.get(name).is_some());
    HostContext::deserialize(serde_json::Value::Object(said)).map_err(Error::custom)
}

/// A host's answer to [`CLOCK`], in nanoseconds since the Unix epoch.
#[derive(Debug, Serialize, Deserialize)]
struct Time {
    /// When the question came.
    received_ns: u64,
    /// When the answer left.
    sent_ns: u64,
}

/// Says what this host is, then the time whenever it is asked, until nobody is heard any more. Lines go to
/// `say`.
pub(crate) async fn serve(input: Input, say: fn(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let folder = tempfile::Builder::new().prefix("mqbench-").tempdir();
    let folder = folder.context("cannot make a temporary directory")?;
    say(&json(&report(folder.path()).await)?)?;
    let clock = WallClock::from_env()?;
    input.hold(move |line| {
        let time = Time {
            received_ns: line.read_ns,
            sent_ns: clock.now_ns(),
        };
        if line.text == CLOCK
            && let Ok(time) = json(&time)
        {
            // Where nobody hears it, the input ends as well.
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

async fn report(folder: &Path) -> Report {
    Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        revision: this_software("mqbench").revision,
        host: host(),
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

/// Not from /sys, which shows those of the network namespace that it was mounted in.
fn interfaces() -> Vec<String> {
    let found = nix::net::if_::if_nameindex();
    let names = found.iter().flatten();
    let mut names: Vec<_> = names
        .map(|interface| interface.name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A Raspberry Pi's firmware says it there.
fn throttled() -> Option<String> {
    let file = "/sys/devices/platform/soc/soc:firmware/get_throttled";
    let text = std::fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

fn free_bytes(path: &Path) -> Option<u64> {
    let space = nix::sys::statvfs::statvfs(path).ok()?;
    // Their types are as wide as the machine's words.
    let free = u128::from(space.blocks_available()) * u128::from(space.fragment_size());
    u64::try_from(free).ok()
}

/// By `CAP_NET_ADMIN`, as root has it or a file by setcap(8).
fn may_shape() -> bool {
    const CAP_NET_ADMIN: u64 = 12;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    mask(&status, "CapEff:") >> CAP_NET_ADMIN & 1 == 1
}

/// The controller's side: a host that takes part in a run.
#[derive(Debug)]
pub(crate) struct Presence {
    remote: Remote,
    pub(crate) report: Report,
}

impl Presence {
    /// Has a host say what it is.
    pub(crate) async fn of(ssh: &Ssh, host: &Machine) -> anyhow::Result<Self> {
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

    /// What its clock says, between two looks at this side's.
    pub(crate) async fn clock(&mut self, own: &WallClock) -> anyhow::Result<Exchange> {
        let t1_ns = own.now_ns();
        self.remote.tell(CLOCK.to_owned()).await?;
        let line = self.remote.line().await?;
        let line = line.context("it has ended")?;
        let t4_ns = own.now_ns();
        let time: Time = serde_json::from_str(&line).context("a host's time is none")?;
        Ok(Exchange {
            t1_ns,
            t2_ns: time.received_ns,
            t3_ns: time.sent_ns,
            t4_ns,
        })
    }

    /// Lets it go, once it has removed the files of the run.
    pub(crate) async fn leave(self) -> anyhow::Result<()> {
        self.remote.stop().await.map(drop)
    }
}
