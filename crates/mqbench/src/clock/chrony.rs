//! Chrony's report on this machine's clock.

use std::{process::Stdio, time::Duration};

use mq_measure::clock::Tracking;
use tokio::process::Command;

/// Timeout of `chronyc`, which asks a daemon on the same machine.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs `chronyc -c tracking`; returns `None` if chrony is not installed or does not answer.
async fn tracking() -> Option<Tracking> {
    let mut command = Command::new("chronyc");
    command
        .args(["-c", "tracking"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, command.output()).await;
    let output = output.ok()?.ok()?;
    if !output.status.success() {
        return None;
    }
    match Tracking::parse(&String::from_utf8_lossy(&output.stdout)) {
        Ok(tracking) => Some(tracking),
        Err(error) => {
            // A clock measurement does not need chrony's report.
            eprintln!("mqbench: {error}");
            None
        }
    }
}

/// Returns the largest error of this machine's clock against UTC, in nanoseconds; `None` if chrony does not know it.
pub(crate) async fn error_bound_ns() -> Option<u64> {
    tracking().await?.error_bound_ns()
}
