//! Chrony's report on this machine's clock.

use std::{process::Stdio, time::Duration};

use mq_measure::clock::Tracking;
use tokio::process::Command;

/// How long `chronyc` may take: it asks a daemon on the same machine.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The report of `chronyc -c tracking`; `None` if there is no chrony, or it does not answer.
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
            // Clocks are measured without chrony's report, too.
            eprintln!("mqbench: {error}");
            None
        }
    }
}

/// How far this machine's clock is from UTC at most, if chrony knows.
pub(crate) async fn error_bound_ns() -> Option<u64> {
    tracking().await?.error_bound_ns()
}
