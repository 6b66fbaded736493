//! Processors that stay awake while a network is emulated.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
};

/// The kernel's promise about how soon a processor wakes, kept for as long as the file is open
/// (PM QoS, `/dev/cpu_dma_latency`).
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
