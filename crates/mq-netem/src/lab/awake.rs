//! Processors that stay awake while a network is emulated.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
};

/// Path of the file by which a process limits how late the kernel lets processors wake, for as long as the process
/// holds the file open (PM QoS).
const LATENCY: &str = "/dev/cpu_dma_latency";

/// Keeps the processors out of their idle states until the value is dropped. A sleeping processor wakes late,
/// and in a virtual machine only when the host has a processor for it.
///
/// Returns `None` and changes nothing if that is not permitted; the file is usually root's. Idle processors use
/// more energy meanwhile.
pub(super) fn stay_awake() -> Option<File> {
    let mut file = OpenOptions::new().write(true).open(LATENCY).ok()?;
    file.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(file)
}
