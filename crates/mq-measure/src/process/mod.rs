//! CPU time and memory of any process, by its id.

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "other.rs"]
mod system;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::convert;

/// CPU times of a process in nanoseconds, over all of its threads, ended ones too: since the process began, or between
/// two readings (see [`since`](Self::since)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuTimes {
    /// CPU time in user mode and in the kernel together, by the process's CPU-time clock: exact to the nanosecond.
    pub total_ns: u64,
    /// CPU time in user mode; `/proc/PID/stat` counts in ticks, mostly of 10 ms.
    pub user_ns: u64,
    /// CPU time in the kernel, where much of TCP and UDP is done; in ticks too.
    pub system_ns: u64,
}

impl CpuTimes {
    /// Returns the CPU time between `earlier` and this reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Resident memory now (`VmRSS`).
    pub rss_bytes: u64,
    /// The most that was resident since the process began (`VmHWM`).
    pub peak_rss_bytes: u64,
}

/// Reads the CPU time of process `pid`.
///
/// # Errors
/// [`Error::NoProcess`]; [`Error::Io`]; [`Error::Unsupported`] elsewhere than on Linux.
pub fn cpu_times(pid: u32) -> Result<CpuTimes, Error> {
    system::cpu_times(pid).map(|(times, _)| times)
}

/// Reads the CPU time of the calling thread since it began, in nanoseconds; `None` elsewhere than on Linux.
#[must_use]
pub fn own_thread_cpu_ns() -> Option<u64> {
    system::thread_ns()
}

/// Reads the memory of process `pid`.
///
/// # Errors
/// As [`cpu_times`]; a process that has ended and is not yet waited for has no memory, and counts
/// as [`Error::NoProcess`].
pub fn memory(pid: u32) -> Result<Memory, Error> {
    system::memory(pid)
}

/// CPU time and memory of a process in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// CPU time in the span.
    pub cpu: CpuTimes,
    /// Memory at the span's end; the peak is since the process began.
    pub memory: Memory,
    /// Length of the span.
    pub elapsed: Duration,
}

impl Usage {
    /// Returns CPU time / elapsed time: 1 is one core in full.
    #[must_use]
    pub fn cores(&self) -> f64 {
        let elapsed = self.elapsed.as_secs_f64();
        if elapsed > 0.0 {
            convert::float(self.cpu.total_ns) / 1e9 / elapsed
        } else {
            0.0
        }
    }
}

/// Measures what a process uses from [`start`](Self::start) to [`read`](Self::read).
///
/// Call `read` before the process is waited for: its numbers are gone after that.
#[derive(Clone, Debug)]
pub struct ProcessMeter {
    pid: u32,
    /// Start time of the process, in ticks since boot: a later process with the same id has another value.
    began: u64,
    at_start: CpuTimes,
    started: Instant,
}

impl ProcessMeter {
    /// Starts to measure process `pid`.
    ///
    /// # Errors
    /// As [`cpu_times`].
    pub fn start(pid: u32) -> Result<Self, Error> {
        let (at_start, began) = system::cpu_times(pid)?;
        Ok(Self {
            pid,
            began,
            at_start,
            started: Instant::now(),
        })
    }

    /// Starts to measure this process.
    ///
    /// # Errors
    /// As [`cpu_times`].
    pub fn start_own() -> Result<Self, Error> {
        Self::start(std::process::id())
    }

    /// Returns the identifier of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the process's use of CPU time and memory since the start.
    ///
    /// # Errors
    /// As [`memory`]; also if the id now belongs to another process.
    pub fn read(&self) -> Result<Usage, Error> {
        let (now, began) = system::cpu_times(self.pid)?;
        let elapsed = self.started.elapsed();
        if began != self.began {
            return Err(Error::NoProcess { pid: self.pid });
        }
        Ok(Usage {
            cpu: now.since(&self.at_start),
            memory: memory(self.pid)?,
            elapsed,
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::hint::black_box;
    use std::process::Command;

    use super::*;

    /// Uses this thread for `span` by its own clock: whoever takes the processor away meanwhile changes nothing.
    fn burn(span: Duration) {
        let start = Instant::now();
        let used = || own_thread_cpu_ns().map(Duration::from_nanos);
        let until = used().map(|before| before + span);
        while used() < until {
            assert!(start.elapsed() < Duration::from_mins(1), "stands still");
            black_box((0..1000_u64).sum::<u64>());
        }
    }

    #[test]
    fn own_cpu_time_is_seen_to_the_nanosecond() {
        let meter = ProcessMeter::start_own().unwrap();
        burn(Duration::from_millis(3));
        let usage = meter.read().unwrap();
        // Other tests run in this process too.
        assert!(usage.cpu.total_ns >= 3_000_000, "{usage:?}");
        assert!(
            !usage.cpu.total_ns.is_multiple_of(1_000_000),
            "not in ticks: {usage:?}"
        );
        assert!(usage.elapsed >= Duration::from_millis(3));
        assert!(usage.cores() > 0.0);
    }

    #[test]
    fn time_of_an_ended_thread_still_counts() {
        let meter = ProcessMeter::start_own().unwrap();
        std::thread::spawn(|| burn(Duration::from_millis(20)))
            .join()
            .unwrap();
        assert!(meter.read().unwrap().cpu.total_ns >= 20_000_000);
    }

    #[test]
    fn a_threads_time_is_its_own() {
        let before = own_thread_cpu_ns().unwrap();
        std::thread::spawn(|| burn(Duration::from_millis(50)))
            .join()
            .unwrap();
        let used = own_thread_cpu_ns().unwrap() - before;
        assert!((1..50_000_000).contains(&used), "{used} ns");
    }

    #[test]
    fn own_memory_is_plausible() {
        let block = black_box(vec![1_u8; 32 << 20]);
        let memory = memory(std::process::id()).unwrap();
        assert!(memory.rss_bytes >= block.len() as u64, "{memory:?}");
        assert!(memory.peak_rss_bytes >= memory.rss_bytes / 2, "{memory:?}");
    }

    #[test]
    fn other_process_is_measured_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let meter = ProcessMeter::start(child.id()).unwrap();
        let usage = meter.read();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(usage.unwrap().memory.rss_bytes > 0);
        let error = meter.read().unwrap_err();
        assert!(matches!(error, Error::NoProcess { .. }), "{error}");
        assert_eq!(
            error.to_string(),
            format!("process {} does not exist or has ended", child.id())
        );
    }
}
