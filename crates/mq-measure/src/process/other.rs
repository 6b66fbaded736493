//! Other systems than Linux: nothing is measured, and each function returns an error that says so.

use super::{CpuTimes, Memory};
use crate::Error;

pub(super) fn cpu_times(_pid: u32) -> Result<(CpuTimes, u64), Error> {
    Err(Error::Unsupported {
        what: "the CPU time of a process",
        os: std::env::consts::OS,
    })
}

pub(super) fn thread_ns() -> Option<u64> {
    None
}

pub(super) fn memory(_pid: u32) -> Result<Memory, Error> {
    Err(Error::Unsupported {
        what: "the memory of a process",
        os: std::env::consts::OS,
    })
}
