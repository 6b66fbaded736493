//! Linux: the process's CPU-time clock, `/proc/PID/stat` and `/proc/PID/status`.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::{Pid, SysconfVar, sysconf};

use super::{CpuTimes, Memory};
use crate::Error;

/// Reads the CPU time of a process, and when it began in ticks since boot.
pub(super) fn cpu_times(pid: u32) -> Result<(CpuTimes, u64), Error> {
    let (path, text) = proc_file(pid, "stat")?;
    let stat = parse_stat(&text).ok_or_else(|| Error::Format {
        path,
        expected: "the fields of proc(5)".to_owned(),
        found: format!("`{}`", text.trim_end()),
    })?;
    // 100 on every architecture that Linux still runs on; the call does not rely on that.
    let hertz = sysconf(SysconfVar::CLK_TCK)
        .ok()
        .flatten()
        .and_then(|hz| u64::try_from(hz).ok());
    let tick_ns = 1_000_000_000 / hertz.filter(|hz| *hz > 0).unwrap_or(100);
    let (user_ns, system_ns) = (stat.user * tick_ns, stat.system * tick_ns);
    let total_ns = clock_ns(pid)?;
    Ok((
        CpuTimes {
            total_ns,
            user_ns,
            system_ns,
        },
        stat.start,
    ))
}

pub(super) fn memory(pid: u32) -> Result<Memory, Error> {
    let (_, text) = proc_file(pid, "status")?;
    let bytes = |key| parse_status_kib(&text, key).map(|kib| kib * 1024);
    match (bytes("VmRSS:"), bytes("VmHWM:")) {
        (Some(rss_bytes), Some(peak_rss_bytes)) => Ok(Memory {
            rss_bytes,
            peak_rss_bytes,
        }),
        _ => Err(Error::NoProcess { pid }),
    }
}

/// Reads the process's CPU-time clock, `clock_getcpuclockid(3)`: all threads, ended ones too.
fn clock_ns(pid: u32) -> Result<u64, Error> {
    let gone = |_: Errno| Error::NoProcess { pid };
    let id = i32::try_from(pid).map_err(|_| Error::NoProcess { pid })?;
    let time = clock_getcpuclockid(Pid::from_raw(id)).and_then(ClockId::now);
    let time = std::time::Duration::from(time.map_err(gone)?);
    Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Reads the calling thread's CPU-time clock, in nanoseconds.
pub(super) fn thread_ns() -> Option<u64> {
    let time = ClockId::CLOCK_THREAD_CPUTIME_ID.now().ok()?;
    u64::try_from(std::time::Duration::from(time).as_nanos()).ok()
}

fn proc_file(pid: u32, file: &str) -> Result<(PathBuf, String), Error> {
    let path = PathBuf::from(format!("/proc/{pid}/{file}"));
    match fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        // ESRCH: the process ended between open and read.
        Err(error)
            if error.kind() == ErrorKind::NotFound
                || error.raw_os_error() == Some(Errno::ESRCH as i32) =>
        {
            Err(Error::NoProcess { pid })
        }
        Err(source) => Err(Error::Io { path, source }),
    }
}

/// Times in clock ticks.
#[derive(Debug, PartialEq)]
struct Stat {
    user: u64,
    system: u64,
    start: u64,
}

/// Fields 14, 15 and 22 of proc(5); the name, field 2, may itself hold blanks and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // `rest` begins with field 3.
    let field = |number: usize| fields.get(number - 3)?.parse().ok();
    Some(Stat {
        user: field(14)?,
        system: field(15)?,
        start: field(22)?,
    })
}

fn parse_status_kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_process_may_hold_anything() {
        let text =
            "42 (a) R (b 1 2) S 1 42 42 0 -1 4194304 105 0 0 0 17 4 0 0 20 0 1 0 290749 31 390";
        let stat = Stat {
            user: 17,
            system: 4,
            start: 290_749,
        };
        assert_eq!(parse_stat(text), Some(stat));
        assert_eq!(parse_stat("42 (a) S 1"), None);
    }

    #[test]
    fn status_is_in_kib() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse_status_kib(text, "VmHWM:"), Some(2048));
        assert_eq!(parse_status_kib(text, "VmSwap:"), None);
    }
}
