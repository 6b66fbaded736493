//! `mqbench explain`: what the latest messages of kept runs waited for.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};

use crate::{
    campaign::store::ResultSet,
    cmd::args::parse_percent,
    report::{self, explain},
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
    let directory = &args.directory;
    let explained = if directory.join("result.json").is_file() {
        let pcap = args.pcap.clone().unwrap_or_else(|| directory.join("pcap"));
        explain::of_comparison(directory, &pcap, args.share)?
    } else {
        explain::of_set(&ResultSet::load(directory)?, args.share)?
    };
    if explained.is_empty() {
        bail!(
            "{} has no samples with captures of messages on a schedule: \
             `mqbench compare --out DIR --pcap DIR/pcap`, or `mqbench campaign run --keep samples,pcap`",
            directory.display()
        );
    }
    if let Some(file) = &args.svg {
        let picture = explain::svg(&explained, explain::MOST_BARS);
        fs::write(file, picture).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        return report::print(&report::pretty_json(&explained)?);
    }
    report::print(&explain::text(&explained, args.messages))
}
