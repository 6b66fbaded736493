//! `mqbench rtt`: jobs and results.

use std::{path::PathBuf, time::Duration};

use mq_transport::Address;

use super::args::ClientArgs;
use crate::{
    clock::nanoseconds,
    report,
    units::parse_duration,
    workload::rtt::{self, Plan},
};

/// Options of `rtt`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// Jobs
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Payload size in bytes, at least 8
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Time between jobs (DL: 50 and 100 ms)
    #[arg(long, default_value = "50ms", value_parser = parse_duration)]
    interval: Duration,
    /// Time to wait for results after the last job
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    grace: Duration,
    /// Run the worker in this process as well
    #[arg(long)]
    with_worker: bool,
    /// File for the raw samples (CSV)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let (mqtt, route) = args.client.get(&args.broker)?;
    let plan = Plan {
        count: args.count,
        interval: args.interval,
        size: args.size,
        grace: args.grace,
    };
    let outcome = if args.with_worker {
        rtt::run_with_worker(plan, &mqtt, &route, &route).await?
    } else {
        rtt::run(plan, &mqtt, &route).await?
    };
    if let Some(path) = &args.out {
        outcome.samples.save(path)?;
    }
    let line = |values: &[u64]| report::figures(values).unwrap_or_else(|| "none\n".to_owned());
    report::print(&format!(
        "rtt, matched by sequence:  {}rtt_last, as DL timed it:  {}{}{}",
        line(&outcome.samples.latencies_sent_ns()),
        line(&outcome.last),
        report::counts_line(&outcome.counts),
        report::warnings(outcome.lateness.warning(nanoseconds(args.interval)))
    ))
}
