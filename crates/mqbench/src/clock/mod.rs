//! The time of day for logs, and this machine's name. A test can change both.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

pub(crate) mod chrony;

/// Shifts the clock of this process, for tests: `SHIFT_NS`, or `SHIFT_NS:DRIFT_PPB:SINCE_NS`.
///
/// The shifted clock is `SHIFT_NS` ahead of the system's clock, and gains `DRIFT_PPB` nanoseconds a second since
/// `SINCE_NS`, a time of the system's clock. Processes with the same value have the same clock.
pub(crate) const SHIFT: &str = "MQBENCH_CLOCK_SHIFT";

/// The name of this machine in logs, in place of the system's name, which network namespaces share.
pub(crate) const HOST: &str = "MQBENCH_HOST";

/// The time of day in nanoseconds since the Unix epoch, as all logs of this process have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WallClock {
    shift_ns: i64,
    drift_ppb: i64,
    since_ns: u64,
}

impl WallClock {
    /// Makes the system's clock, unless [`SHIFT`] says otherwise.
    pub(crate) fn from_env() -> anyhow::Result<Self> {
        match std::env::var(SHIFT) {
            Ok(text) => Self::parse(&text).with_context(|| {
                format!("{SHIFT}={text} should be SHIFT_NS or SHIFT_NS:DRIFT_PPB:SINCE_NS")
            }),
            Err(_) => Ok(Self::default()),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(':').collect();
        match fields[..] {
            [shift] => Some(Self {
                shift_ns: shift.parse().ok()?,
                ..Self::default()
            }),
            [shift, drift, since] => Some(Self {
                shift_ns: shift.parse().ok()?,
                drift_ppb: drift.parse().ok()?,
                since_ns: since.parse().ok()?,
            }),
            _ => None,
        }
    }

    /// Returns the clock's time now.
    pub(crate) fn now_ns(&self) -> u64 {
        self.at(system_ns())
    }

    /// Returns the clock's time at a time of the system's clock.
    pub(crate) fn at(&self, system_ns: u64) -> u64 {
        let since = i128::from(system_ns) - i128::from(self.since_ns);
        let drift = since * i128::from(self.drift_ppb) / 1_000_000_000;
        let shown = i128::from(system_ns) + i128::from(self.shift_ns) + drift;
        u64::try_from(shown).unwrap_or(0)
    }
}

/// Reads the system's clock, in nanoseconds since the Unix epoch.
pub(crate) fn system_ns() -> u64 {
    nanoseconds(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the name of this machine, for logs.
pub(crate) fn host_name() -> String {
    std::env::var(HOST).unwrap_or_else(|_| {
        std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shifted_clock_is_ahead_and_drifts() {
        let clock = WallClock::parse("1500000000:50000:1000").unwrap();
        assert_eq!(clock.at(1000), 1_500_001_000);
        // 50 ppm of 2 s.
        assert_eq!(
            clock.at(2_000_001_000),
            2_000_001_000 + 1_500_000_000 + 100_000
        );
        let behind = WallClock::parse("-500").unwrap();
        assert_eq!((behind.at(1000), behind.at(100)), (500, 0));
        assert_eq!(WallClock::default().at(7), 7);
    }

    #[test]
    fn anything_else_is_no_shift() {
        for text in ["", "1s", "1:2", "1:2:3:4", "1:2:-3"] {
            assert_eq!(WallClock::parse(text), None, "{text}");
        }
    }
}
