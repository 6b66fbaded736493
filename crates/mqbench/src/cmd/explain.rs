//! `mqbench explain`: what the latest messages of kept runs waited for.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use mq_measure::{
    Samples,
    explain::{Captures, MOST_BYTES, Packets, explain},
    result::RunResult,
};

use crate::{
    campaign::store::ResultSet,
    cmd::args::parse_percent,
    report::{self, campaign::FinishedRuns, explain::Explained},
};

/// Options of `explain`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The directory that `mqbench compare --out DIR --pcap DIR/pcap` or `mqbench campaign run --keep samples,pcap`
    /// wrote
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Directory of the captures of `compare`; default: DIR/pcap
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// Share of each run's messages that is explained, the latest; ten messages at least
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = parse_percent)]
    share: f64,
    /// A line for each explained message, too
    #[arg(long)]
    messages: bool,
    /// JSON, with each explained message, instead of tables
    #[arg(long, conflicts_with = "messages")]
    json: bool,
    /// File for a picture, too: a bar for each explained message (SVG)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let compared = args.directory.join("result.json");
    let explained = if compared.is_file() {
        of_comparison(args, &compared)?
    } else {
        of_campaigns(args)?
    };
    if explained.is_empty() {
        bail!(
            "{} has no samples with captures of messages on a schedule: \
             `mqbench compare --out DIR --pcap DIR/pcap`, or `mqbench campaign run --keep samples,pcap`",
            args.directory.display()
        );
    }
    if let Some(file) = &args.svg {
        let picture = report::explain_picture::svg(&explained);
        fs::write(file, picture).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        return report::print(&report::pretty_json(&explained)?);
    }
    report::print(&report::explain::text(&explained, args.messages))
}

/// Explains each transport of a comparison.
fn of_comparison(args: &Args, path: &Path) -> anyhow::Result<Vec<Explained>> {
    let result = RunResult::load(path)?;
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
    let folder = args.pcap.clone();
    let folder = folder.unwrap_or_else(|| args.directory.join("pcap"));
    if !folder.is_dir() {
        bail!(
            "no captures in {}: `mqbench compare` keeps them with --pcap",
            folder.display()
        );
    }
    let captures = captures(&folder)?;
    let mut explained = Vec::new();
    for transport in &result.transports {
        let name = &transport.transport;
        let file = args.directory.join(format!("samples-{name}.csv"));
        let mut runs = Explained::new(name.clone());
        let samples = load(&file)?;
        runs.add(explain(&samples, &captures, size, args.share));
        explained.push(runs);
    }
    Ok(explained)
}

/// Explains the runs of a result set whose samples and captures were kept, each cell's together.
fn of_campaigns(args: &Args) -> anyhow::Result<Vec<Explained>> {
    let set = ResultSet::load(&args.directory)?;
    let mut explained: Vec<Explained> = Vec::new();
    let campaigns = set.campaigns.iter();
    for record in campaigns.flat_map(|campaign| FinishedRuns::of(campaign, &set.records).runs) {
        let Some(name) = &record.outcome.files else {
            continue;
        };
        let samples = args.directory.join(format!("samples/{name}.csv"));
        let folder = args.directory.join(format!("pcap/{name}"));
        let cell = &record.cell;
        let is_simple = cell.pattern.is_one_way()
            && cell.medium.is_none()
            && cell.handover.is_none()
            && !cell.topology.is_row()
            && cell.size <= MOST_BYTES;
        if !samples.is_file() || !folder.is_dir() || !is_simple {
            continue;
        }
        let levels = record.levels.iter();
        let levels = levels.map(|(factor, level)| format!("{factor}={level}"));
        let title = format!(
            "{} {}",
            record.campaign,
            levels.collect::<Vec<_>>().join(" ")
        );
        let place = explained.iter().position(|one| one.name == title);
        let place = place.unwrap_or_else(|| {
            explained.push(Explained::new(title));
            explained.len() - 1
        });
        let captures = captures(&folder)?;
        let samples = load(&samples)?;
        explained[place].add(explain(&samples, &captures, cell.size, args.share));
    }
    Ok(explained)
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
