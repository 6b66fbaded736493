//! The load of this machine's processors.

use std::time::{Duration, Instant};

use mq_measure::convert::float;

/// Monitor of the processors' use by `/proc/stat`. Without that file the processors never count as busy.
#[derive(Debug)]
pub(super) struct CpuMonitor {
    last: Option<Reading>,
    busy: bool,
    /// The counts at the last call of [`had_time_stolen`](Self::had_time_stolen).
    marked: Option<CpuTicks>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    times: CpuTicks,
}

/// Ticks of all processors together since the machine was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CpuTicks {
    all: u64,
    /// Idle ticks, with those of processes that were started with nice(1), which give way.
    free: u64,
    /// Ticks that the host of a virtual machine gave to others.
    stolen: u64,
}

impl CpuMonitor {
    /// Time over which the use of the processors is measured. In a shorter time the start of one program would
    /// dominate.
    const SPAN: Duration = Duration::from_millis(500);

    /// Share of use above which the machine counts as busy: sending on time needs a free processor.
    const BUSY: f64 = 0.75;

    pub(super) fn new() -> Self {
        Self {
            last: None,
            busy: false,
            marked: read(),
        }
    }

    /// Returns true if the host of this virtual machine has noticeably withheld processors since the last call. Then
    /// runs are late even if few run here.
    pub(super) fn had_time_stolen(&mut self) -> bool {
        const NOTICEABLE: f64 = 0.003;
        let now = read();
        let before = core::mem::replace(&mut self.marked, now);
        now.zip(before)
            .is_some_and(|(now, before)| now.stolen_since(before) > NOTICEABLE)
    }

    /// Returns true if the processors were nearly all in use lately.
    pub(super) fn is_busy(&mut self) -> bool {
        let Some(times) = read() else {
            return false;
        };
        let now = Reading {
            at: Instant::now(),
            times,
        };
        match self.last {
            Some(last) if now.at.duration_since(last.at) < Self::SPAN => {}
            last => {
                self.busy = last.is_some_and(|last| times.busy_since(last.times) > Self::BUSY);
                self.last = Some(now);
            }
        }
        self.busy
    }
}

impl CpuTicks {
    fn busy_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let free = self.free.saturating_sub(before.free);
        1.0 - share(free, all).unwrap_or(1.0)
    }

    fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let stolen = self.stolen.saturating_sub(before.stolen);
        share(stolen, all).unwrap_or(0.0)
    }

    /// Parses the first line of `/proc/stat`, proc(5): user, nice, system, idle, iowait, irq, softirq, steal; what
    /// guests use is in user.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let numbers: Vec<u64> = line
            .split_whitespace()
            .take(8)
            .map_while(|number| number.parse().ok())
            .collect();
        Some(Self {
            all: numbers.iter().sum(),
            free: numbers.get(1)? + numbers.get(3)? + numbers.get(4)?,
            stolen: numbers.get(7).copied().unwrap_or(0),
        })
    }
}

fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| float(part) / float(all))
}

/// Returns the number of processors that this program may use.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the number of cells that together leave half of the free memory. A cell is two processes of some 30 MB.
pub(super) fn most_parallel_cells() -> usize {
    const CELL: u64 = 64 << 20;
    const RANGE: (u64, u64) = (1, 256);
    let free = std::fs::read_to_string("/proc/meminfo");
    let free = free.ok().and_then(|text| available(&text));
    let cells = free.map_or(16, |free| free / 2 / CELL);
    usize::try_from(cells.clamp(RANGE.0, RANGE.1)).unwrap_or(1)
}

/// Reads the available memory in bytes from `/proc/meminfo`, proc(5).
fn available(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

fn read() -> Option<CpuTicks> {
    CpuTicks::parse(&std::fs::read_to_string("/proc/stat").ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_not_idle_is_busy() {
        let before = CpuTicks::parse("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1\n").unwrap();
        assert_eq!((before.all, before.free), (1000, 850));
        let after = CpuTicks::parse("cpu  160 0 70 815 55 0 0 0 9 0\n").unwrap();
        assert!((after.busy_since(before) - 0.8).abs() < 1e-9);
        assert!(after.busy_since(after).abs() < 1e-9);
        assert!(after.stolen_since(before).abs() < 1e-9);
        let robbed = CpuTicks::parse("cpu  160 0 70 815 53 0 0 2 9 0\n").unwrap();
        assert!((robbed.stolen_since(before) - 0.02).abs() < 1e-9);
        let beside = CpuTicks::parse("cpu  160 50 70 815 55 0 0 0 9 0\n").unwrap();
        assert!((beside.busy_since(before) - 80.0 / 150.0).abs() < 1e-9);
        assert_eq!(CpuTicks::parse("intr 5"), None);
    }

    #[test]
    fn memory_that_is_available_is_read() {
        let text = "MemTotal:  9 kB\nMemAvailable:       2048 kB\n";
        assert_eq!(available(text), Some(2 << 20));
        assert_eq!(available("MemTotal:  9 kB\n"), None);
        assert!(most_parallel_cells() >= 1 && processors() >= 1);
    }
}
