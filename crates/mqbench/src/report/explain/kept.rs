//! Explanations of kept runs: their samples and captures are files beside the results.

use std::{fs, path::Path};

use anyhow::{Context as _, bail};
use mq_measure::{
    Samples,
    explain::{Captures, MOST_BYTES, Packets, explain},
    result::RunResult,
};

use super::Explained;
use crate::{
    campaign::{record::Record, store::ResultSet},
    report::campaign::FinishedRuns,
};

/// Explains each transport of a comparison.
pub(crate) fn of_comparison(
    directory: &Path,
    pcap: &Path,
    share: f64,
) -> anyhow::Result<Vec<Explained>> {
    let result = RunResult::load(&directory.join("result.json"))?;
    let size = result.parameters["payload_bytes"].as_u64();
    let size = usize::try_from(size.context("result.json has no payload_bytes")?)?;
    if size > MOST_BYTES {
        bail!(
            "messages of {size} B take several packets: explain knows those up to {MOST_BYTES} B"
        );
    }
    if !result.parameters["stations"].is_null() {
        bail!("messages of a shared channel cannot be explained: its losses are not recorded");
    }
    if !pcap.is_dir() {
        bail!(
            "no captures in {}: `mqbench compare` keeps them with --pcap",
            pcap.display()
        );
    }
    let captures = captures(pcap)?;
    let mut explained = Vec::new();
    for transport in &result.transports {
        let name = &transport.transport;
        let samples = load(&directory.join(format!("samples-{name}.csv")))?;
        let mut runs = Explained::new(name.clone());
        runs.kept = 1;
        runs.runs.extend(explain(&samples, &captures, size, share));
        explained.push(runs);
    }
    Ok(explained)
}

/// Explains the runs of a result set whose samples and captures were kept, each cell's together.
pub(crate) fn of_set(set: &ResultSet, share: f64) -> anyhow::Result<Vec<Explained>> {
    let mut all = Vec::new();
    for campaign in &set.campaigns {
        let finished = FinishedRuns::of(campaign, &set.records);
        let name = |run: &Record| {
            let levels = run.levels.iter();
            let levels = levels.map(|(factor, level)| format!("{factor}={level}"));
            format!("{} {}", run.campaign, levels.collect::<Vec<_>>().join(" "))
        };
        all.extend(of_cells(set, &finished, share, usize::MAX, name)?);
    }
    Ok(all)
}

/// Explains the first `most` runs of each cell of a campaign whose samples and captures were kept.
pub(super) fn of_cells(
    set: &ResultSet,
    finished: &FinishedRuns,
    share: f64,
    most: usize,
    name: impl Fn(&Record) -> String,
) -> anyhow::Result<Vec<Explained>> {
    let mut explained: Vec<Explained> = Vec::new();
    for record in &finished.runs {
        let Some(files) = &record.outcome.files else {
            continue;
        };
        let samples = set.directory().join(format!("samples/{files}.csv"));
        let folder = set.directory().join(format!("pcap/{files}"));
        if !samples.is_file() || !folder.is_dir() || !is_explained(record) {
            continue;
        }
        let name = name(record);
        let place = explained.iter().position(|one| one.name == name);
        let place = place.unwrap_or_else(|| {
            explained.push(Explained::new(name));
            explained.len() - 1
        });
        let cell = &mut explained[place];
        cell.kept += 1;
        if cell.kept <= most {
            let (samples, captures) = (load(&samples)?, captures(&folder)?);
            let run = explain(&samples, &captures, record.cell.size, share);
            cell.runs.extend(run);
        }
    }
    Ok(explained)
}

/// Returns true if messages of such a run can be explained: on a schedule, in one packet each, over one link each way.
fn is_explained(record: &Record) -> bool {
    let cell = &record.cell;
    cell.pattern.is_one_way()
        && cell.medium.is_none()
        && cell.handover.is_none()
        && !cell.topology.is_row()
        && cell.size <= MOST_BYTES
}

/// Reads samples.
fn load(path: &Path) -> anyhow::Result<Samples> {
    /// A time of the year 2001: no clock of a run is before it, and no run lasts for so long.
    const EPOCH: u64 = 1_000_000_000_000_000_000;
    let samples = Samples::load(path)?;
    if samples.0.iter().any(|sample| sample.sent_ns < EPOCH) {
        bail!(
            "{} has times since the run's start, as earlier versions kept them: run it again",
            path.display()
        );
    }
    Ok(samples)
}

/// Reads the captures of a run.
fn captures(folder: &Path) -> anyhow::Result<Captures> {
    let host = |role: &str| Packets::load(&folder.join(format!("{role}.pcap")));
    let publisher = host("publisher")?;
    let subscriber = if folder.join("subscriber.pcap").is_file() {
        host("subscriber")?
    } else {
        publisher.clone()
    };
    let mut lost = Packets::default();
    let cannot = || format!("cannot read {}", folder.display());
    for file in fs::read_dir(folder).with_context(cannot)? {
        let file = file.with_context(cannot)?.path();
        if file.to_string_lossy().ends_with("-lost.pcap") {
            lost.0.extend(Packets::load(&file)?.0);
        }
    }
    Ok(Captures {
        publisher,
        broker: host("broker")?,
        subscriber,
        lost,
    })
}
