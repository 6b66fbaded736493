//! `mqbench energy record`: a meter of this host, read for as long as an agent's controller wants it.

use std::{fs::File, io::Write as _, path::PathBuf, time::Duration};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    meter::{Instrument, Running, Spec},
    report,
};

/// Only a multimeter would stop by itself after this, and none is read here.
const LONGEST: Duration = Duration::from_hours(24);

/// Options of `energy record`.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Args {
    /// The meter
    #[arg(long, value_name = "METER")]
    meter: Spec,
    /// Print `ready` as a line of its own when the meter is read from now on
    #[arg(long)]
    announce: bool,
    /// What it found, as JSON: written at the end
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(record(args))
}

async fn record(args: &Args) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let instrument = Instrument::at(None, None);
    let running = Running::start(instrument.meter(&args.meter, LONGEST)?)?;
    if args.announce {
        report::announce()?;
    }
    terminate.recv().await;
    let taken = running.stop()?;
    let json = serde_json::to_vec(&taken).context("cannot write JSON")?;
    let written = File::create(&args.log).and_then(|mut file| file.write_all(&json));
    written.with_context(|| format!("cannot write {}", args.log.display()))
}
