//! `mqbench energy record`: reads a meter of this host until the campaign's controller ends it, and prints the
//! recording as JSON.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::{
    meter::{MeterSettings, MeterSpec, RunningMeter},
    report,
};

/// The time after which a multimeter would stop by itself; this role reads no multimeter.
const LONGEST: Duration = Duration::from_hours(24);

/// Options of `energy record`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The meter
    #[arg(long, value_name = "METER")]
    meter: MeterSpec,
    /// Print `ready` as a line of its own when the meter is read from now on
    #[arg(long)]
    announce: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(record(args))
}

async fn record(args: &Args) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let running = RunningMeter::start(MeterSettings::default().meter(&args.meter, LONGEST)?)?;
    if args.announce {
        report::announce()?;
    }
    terminate.recv().await;
    report::print(&report::json(&running.stop()?)?)
}
