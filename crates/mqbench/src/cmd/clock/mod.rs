//! `mqbench clock`: how the clocks of two machines differ.
//!
//! One machine serves, the other asks it for the time, before, during and after a run, over UDP: out
//! of the run's own band, and next to nothing beside it.

mod measure;
mod serve;
mod socket;

use anyhow::Context as _;

/// The port unless another is given: the next to that of MQTT over QUIC.
const PORT: u16 = 14568;

/// Options of `clock`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Action {
    /// Tell the time to any machine that asks
    Serve(serve::Args),
    /// Ask another machine for its time, and write what `join --clock` needs
    Measure(measure::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // One thread: a second one to wake would only come between a datagram and its stamp.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        match &args.action {
            Action::Serve(args) => serve::run(args).await,
            Action::Measure(args) => measure::run(args).await,
        }
    })
}
