//! `mqbench e2e`: publisher and subscriber in one process, one transport.

use std::{path::PathBuf, time::Duration};

use mq_transport::Address;

use super::args::ClientArgs;
use crate::{
    clock::nanoseconds,
    report,
    units::parse_duration,
    workload::{RunClock, e2e},
};

/// Options of `e2e`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// The broker as the subscriber reaches it, if that is another URL
    #[arg(long, value_name = "URL")]
    subscribe_at: Option<Address>,
    /// Messages
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Payload size in bytes, at least 8
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Time between messages
    #[arg(long, default_value = "10ms", value_parser = parse_duration)]
    interval: Duration,
    /// Seed of the payloads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the raw samples (CSV)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let (mqtt, publisher) = args.client.get(&args.broker)?;
    let mut subscriber = publisher.clone();
    if let Some(address) = args.subscribe_at {
        subscriber.address = address;
    }
    let plan = e2e::Plan::new(
        "mqbench/e2e",
        args.count,
        args.interval,
        args.size,
        args.seed,
    );
    let pair = e2e::ClientPair::connect(&plan, &mqtt, &publisher, &subscriber).await?;
    let outcome = pair.run(RunClock::start(), |_| {}).await?;
    if let Some(path) = &args.out {
        outcome.samples.save(path)?;
    }
    report::print(&format!(
        "{}{}{}",
        report::latencies(&args.broker.to_string(), &outcome.samples),
        report::counts_line(&outcome.counts),
        report::warnings(outcome.lateness.warning(nanoseconds(args.interval)))
    ))
}
