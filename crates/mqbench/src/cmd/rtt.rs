//! `mqbench rtt`: jobs and results.

use std::{path::PathBuf, time::Duration};

use mq_measure::Summary;
use mq_transport::Address;

use super::args::ClientArgs;
use crate::{clock::nanoseconds, report, units::duration, workload::rtt};

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
    #[arg(long, default_value = "50ms", value_parser = duration)]
    interval: Duration,
    /// How long after the last job results are waited for
    #[arg(long, default_value = "5s", value_parser = duration)]
    grace: Duration,
    /// Do the worker's part too, in this process
    #[arg(long)]
    with_worker: bool,
    /// File for the raw samples (CSV)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let (mqtt, connector) = args.client.get()?;
    let worker = if args.with_worker {
        Some(
            mqtt.builder(&args.broker, &connector, "mqbench-worker")?
                .build()
                .await?,
        )
    } else {
        None
    };
    let work = async {
        match &worker {
            Some(worker) => rtt::worker(worker, mqtt.qos, Duration::ZERO, || Ok(())).await,
            None => std::future::pending().await,
        }
    };
    let measured = rtt::run(
        args.count,
        args.interval,
        args.size,
        args.grace,
        &mqtt,
        &args.broker,
        &connector,
    );
    let outcome = tokio::select! {
        outcome = measured => outcome?,
        ended = work => {
            ended?;
            anyhow::bail!("the worker's connection was lost");
        }
    };
    if let Some(path) = &args.out {
        outcome.samples.save(path)?;
    }
    let line = |values: &[u64]| {
        Summary::from_samples(values).map_or_else(|| "none\n".to_owned(), |s| super::e2e::line(&s))
    };
    let mut text = format!(
        "rtt, matched by sequence:  {}rtt_last, as DL timed it:  {}{}",
        line(&outcome.samples.latencies_sent_ns()),
        line(&outcome.last),
        report::counts_line(&outcome.counts)
    );
    if let Some(warning) = outcome.lateness.warning(nanoseconds(args.interval)) {
        text.push_str(&format!("! {warning}\n"));
    }
    report::print(&text)
}
