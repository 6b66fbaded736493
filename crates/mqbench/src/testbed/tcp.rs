//! TCP's settings in a host: settings that shape a result, and tuning of the emulated hosts.

use std::{io, time::Duration};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::Testbed;
use crate::clock::nanoseconds;

/// The minimum retransmission timeout of a kernel that has no such setting (`TCP_RTO_MIN`, a fifth of a second).
const RTO_MIN: Duration = Duration::from_millis(200);
/// The initial congestion window of Linux, in segments (RFC 6928).
const INITIAL_WINDOW: u32 = 10;
/// The retransmission timeout of Linux before the first measurement (`TCP_TIMEOUT_INIT`, RFC 6298 §2). No socket option
/// and no sysctl sets it.
const INITIAL_RTO: Duration = Duration::from_secs(1);

/// The setting by which clients may send, and servers take, data in a SYN.
const FAST_OPEN: &str = "tcp_fastopen";

/// Settings of TCP that are tuned; none by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TcpTuning {
    /// The minimum retransmission timeout; `None` for the kernel's 200 ms.
    pub(crate) rto_min: Option<Duration>,
    /// `true` if timeouts are linear in thin flows, without exponential backoff.
    pub(crate) thin: bool,
    /// `true` if clients may send, and servers take, data in a SYN.
    pub(crate) fast_open: bool,
}

/// Settings of a host's TCP that shape a result.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a setting of its own"
)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TcpSettings {
    /// `true` for `TCP_NODELAY`, which links always set.
    pub(crate) nodelay: bool,
    /// The retransmission timeout of a SYN; records of an earlier version do not have it, and had the same.
    #[serde(default = "initial_rto_ns")]
    pub(crate) initial_rto_ns: u64,
    pub(crate) rto_min_ns: u64,
    pub(crate) thin_linear_timeouts: bool,
    /// `true` if a connection begins with the round-trip time and the slow-start threshold of an earlier one to its
    /// address.
    pub(crate) metrics_cache: bool,
    pub(crate) initial_window_segments: u32,
    /// `true` if the congestion window is reduced while a flow is idle.
    pub(crate) slow_start_after_idle: bool,
    /// `net.ipv4.tcp_early_retrans`: 3 and 4 send a tail-loss probe.
    pub(crate) early_retrans: u64,
    /// `net.ipv4.tcp_recovery`: 0x1 is RACK.
    pub(crate) recovery: u64,
    /// `net.ipv4.tcp_fastopen`: 1 is for clients, 2 for servers; `None` in records of an earlier version.
    #[serde(default)]
    pub(crate) fast_open: Option<u64>,
}

impl TcpSettings {
    /// Returns the settings of this thread's network; `None` if the kernel does not show them.
    pub(crate) fn of_this_network() -> Option<Self> {
        Some(Self {
            nodelay: true,
            initial_rto_ns: initial_rto_ns(),
            rto_min_ns: number("tcp_rto_min_us").map_or(nanoseconds(RTO_MIN), |us| us * 1000),
            thin_linear_timeouts: number("tcp_thin_linear_timeouts")? != 0,
            metrics_cache: number("tcp_no_metrics_save")? == 0,
            initial_window_segments: INITIAL_WINDOW,
            slow_start_after_idle: number("tcp_slow_start_after_idle")? != 0,
            early_retrans: number("tcp_early_retrans")?,
            recovery: number("tcp_recovery")?,
            fast_open: number(FAST_OPEN),
        })
    }
}

fn initial_rto_ns() -> u64 {
    nanoseconds(INITIAL_RTO)
}

fn file(name: &str) -> String {
    format!("/proc/sys/net/ipv4/{name}")
}

fn number(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file(name)).ok()?;
    text.trim().parse().ok()
}

impl TcpTuning {
    pub(crate) fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

impl Testbed {
    /// Sets TCP up in the network of each host. Its cache of earlier connections' round trips is off: QUIC has none, and
    /// a second connection is to be measured like the first.
    ///
    /// # Errors
    /// If the kernel has no such setting; the error names the version of Linux that has it.
    pub(crate) fn tune_tcp(&self, tuning: TcpTuning) -> anyhow::Result<()> {
        let least = tuning.rto_min.map(|least| {
            let us = least.as_micros().to_string();
            ("tcp_rto_min_us", us, "Linux 6.11")
        });
        let on = |name| (name, "1".to_owned(), "Linux");
        let thin = tuning.thin.then(|| on("tcp_thin_linear_timeouts"));
        let fast_open = tuning
            .fast_open
            .then(|| (FAST_OPEN, "3".to_owned(), "Linux"));
        let without_cache = on("tcp_no_metrics_save");
        let tuned = least.into_iter().chain(thin).chain(fast_open);
        for (name, value, since) in tuned.chain([without_cache]) {
            for (_, host) in self.hosts() {
                let set = host.run(|| std::fs::write(file(name), &value));
                set.with_context(|| format!("cannot set net.ipv4.{name}, which {since} has"))?;
            }
        }
        Ok(())
    }

    /// Makes the broker's host refuse data in a SYN from now on.
    pub(crate) fn refuse_data_in_syn(&self) -> io::Result<()> {
        let refuse = || std::fs::write(file(FAST_OPEN), "1");
        self.broker().run(refuse)
    }

    /// Reads TCP's settings of the publisher's host.
    pub(crate) fn tcp_settings(&self) -> io::Result<Option<TcpSettings>> {
        self.publisher
            .host
            .run(|| Ok(TcpSettings::of_this_network()))
    }
}
