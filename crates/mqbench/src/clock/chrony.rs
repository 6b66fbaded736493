//! What chrony on this machine says of its clock.

use std::{process::Stdio, time::Duration};

use mq_measure::clock::Tracking;
use tokio::process::Command;

/// It asks a daemon on the same machine.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What `chronyc -c tracking` says; `None` where there is no chrony, or where it does not answer.
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
            // Clocks are measured all the same.
            eprintln!("mqbench: {error}");
            None
        }
    }
}

/// How far this machine's clock is from UTC at most, if chrony knows.
pub(crate) async fn error_bound_ns() -> Option<u64> {
    tracking().await?.error_bound_ns()
}
