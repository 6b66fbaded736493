//! `mqbench e2e`: publisher and subscriber in one process, one transport.

use std::{path::PathBuf, time::Duration};

use mq_measure::{LatencyRecorder, Summary};
use mq_transport::Address;

use super::args::ClientArgs;
use crate::{
    clock::nanoseconds,
    report,
    units::{duration, time, time_f64},
    workload::e2e,
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
    #[arg(long, default_value = "10ms", value_parser = duration)]
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
    let outcome = e2e::run(&plan, &mqtt, &publisher, &subscriber, |_| {}).await?;
    if let Some(path) = &args.out {
        outcome.samples.save(path)?;
    }
    let latencies = outcome.samples.latencies_intended_ns();
    let mut recorder = LatencyRecorder::new();
    recorder.extend(latencies.iter().copied());
    let counts = outcome.counts;
    let mut text = report::histogram::render(&args.broker.to_string(), &recorder);
    if let Some(summary) = Summary::from_samples(&latencies) {
        text.push_str(&line(&summary));
    }
    text.push_str(&report::counts_line(&counts));
    if let Some(warning) = outcome.lateness.warning(nanoseconds(args.interval)) {
        text.push_str(&format!("! {warning}\n"));
    }
    report::print(&text)
}

/// The usual figures of a summary on one line.
pub(crate) fn line(summary: &Summary) -> String {
    format!(
        "mean {}  RSD {:.2}  p50 {}  p95 {}  p99 {}  max {}\n",
        time_f64(summary.mean_ns),
        summary.rsd,
        time(summary.p50_ns),
        time(summary.p95_ns),
        time(summary.p99_ns),
        time(summary.max_ns)
    )
}
