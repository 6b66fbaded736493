//! Runs on this machine: each is a process `mqbench cell` with a network of its own.

use std::process::Stdio;

use anyhow::{Context as _, bail};
use tokio::{io::AsyncWriteExt as _, process::Command};

use super::{
    metered_energy::SendingWindow,
    run_request::{CellOrder, NO_NAMESPACES, RunRequest},
};
use crate::{
    campaign::{
        artifacts::{Artifact, ArtifactPaths},
        pattern::Pattern,
        record::Outcome,
    },
    meter::ConfiguredMeter,
};

/// The source of runs' energy.
#[derive(Debug)]
pub(crate) enum EnergySource {
    /// A model with the energy profile of this name.
    Model(String),
    /// A meter, of whatever it is connected to.
    Meter(ConfiguredMeter),
}

/// Runs one cell, and keeps these files of it.
pub(super) async fn run(
    energy: &EnergySource,
    artifacts: &[Artifact],
    request: &RunRequest,
) -> anyhow::Result<Outcome> {
    let files = ArtifactPaths::of(&request.name, artifacts, &request.folder);
    let order = |energy_profile| CellOrder {
        cell: request.cell.clone(),
        seed: request.seed,
        energy_profile,
        files: files.clone(),
    };
    let outcome = match energy {
        EnergySource::Model(profile) => {
            run_process(&order(Some(profile.clone())), &request.name).await
        }
        // Only a schedule has a time to send all packets.
        EnergySource::Meter(meter) if request.cell.pattern == Pattern::Periodic => {
            measured(&order(None), meter, request).await
        }
        EnergySource::Meter(_) => run_process(&order(None), &request.name).await,
    };
    Ok(Outcome {
        files: files.is_any().then(|| request.name.clone()),
        ..outcome?
    })
}

/// Runs one cell with a meter beside it.
///
/// # Errors
/// If the meter is lost before the end: no other run would be measured either.
async fn measured(
    order: &CellOrder,
    meter: &ConfiguredMeter,
    request: &RunRequest,
) -> anyhow::Result<Outcome> {
    let running = meter
        .start(request.expected, &request.journals, &request.name)
        .await?;
    let outcome = run_process(order, &request.name).await;
    // Stop the meter even after a failed run, so that the instrument is reset.
    let taken = running.stopped().await?;
    let mut outcome = outcome?;
    if let Some(window) = outcome.sending {
        // This machine's own clock reads the meter.
        let uncertainty_ns = 0;
        let sending = SendingWindow {
            window,
            uncertainty_ns,
        };
        taken.set_energy(&mut outcome, sending);
    }
    Ok(outcome)
}

/// Runs one cell in a process of its own, which ends with this future. `name` is the run's.
async fn run_process(order: &CellOrder, name: &str) -> anyhow::Result<Outcome> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(&program)
        .arg("cell")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let mut order = serde_json::to_vec(order).context("cannot write JSON")?;
    order.push(b'\n');
    // The input stays open until the answer is here: when this program is gone, the cell ends too.
    let mut input = child.stdin.take().context("the cell has no input")?;
    let written = input.write_all(&order).await;
    let output = child
        .wait_with_output()
        .await
        .context("cannot wait for a cell")?;
    drop(input);
    written.context("the cell takes no order")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors = errors.trim().trim_start_matches("mqbench: ");
    if output.status.success() {
        if !errors.is_empty() {
            eprintln!("mqbench: {name}: {errors}");
        }
        return serde_json::from_slice(&output.stdout).context("a cell's answer is no outcome");
    }
    if output.status.code() == Some(NO_NAMESPACES.into()) {
        // All other runs would fail in the same way.
        bail!("{errors}");
    }
    Ok(Outcome {
        error: Some(errors.to_owned()),
        ..Outcome::default()
    })
}
