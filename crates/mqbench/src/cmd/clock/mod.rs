//! `mqbench clock`: how the clocks of two machines differ.
//!
//! One machine serves the time, and the other asks for it over UDP before, during and after a run. The datagrams
//! are not part of the run, and are few beside it.

mod measure;
mod serve;
mod socket;

use anyhow::Context as _;

/// The default port: the one after that of MQTT over QUIC.
const PORT: u16 = 14568;

/// Commands of `clock`.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum Action {
    /// Tell the time to any machine that asks
    Serve(serve::Args),
    /// Ask another machine for its time, and write what `join --clock` needs
    Measure(measure::Args),
}

pub(crate) fn run(action: &Action) -> anyhow::Result<()> {
    // One thread: waking a second one would delay the stamp of a datagram.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        match action {
            Action::Serve(args) => serve::run(args).await,
            Action::Measure(args) => measure::run(args).await,
        }
    })
}
