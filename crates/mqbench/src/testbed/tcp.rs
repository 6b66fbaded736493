//! TCP's own recovery from loss, tuned in the emulated hosts alone.

use std::time::Duration;

use anyhow::Context as _;

use super::Testbed;

/// What is tuned of TCP; the default is nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TcpTuning {
    /// The shortest retransmission time-out; `None` for the kernel's 200 ms.
    pub(crate) rto_min: Option<Duration>,
    /// Time-outs of a thin flow stay as they are, and do not double.
    pub(crate) thin: bool,
}

impl TcpTuning {
    pub(crate) fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

impl Testbed {
    /// Tunes TCP in the network of each host.
    ///
    /// # Errors
    /// If the kernel has no such setting; the error says since when Linux has it.
    pub(crate) fn tune_tcp(&self, tuning: TcpTuning) -> anyhow::Result<()> {
        let least = tuning.rto_min.map(|least| {
            let us = least.as_micros().to_string();
            ("tcp_rto_min_us", us, "Linux 6.11")
        });
        let thin = ("tcp_thin_linear_timeouts", "1".to_owned(), "Linux");
        for (name, value, since) in least.into_iter().chain(tuning.thin.then_some(thin)) {
            for (_, host) in self.hosts() {
                let file = format!("/proc/sys/net/ipv4/{name}");
                let set = host.run(|| std::fs::write(&file, &value));
                set.with_context(|| format!("cannot set net.ipv4.{name}, which {since} has"))?;
            }
        }
        Ok(())
    }
}
