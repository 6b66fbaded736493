//! `mqbench stopwait`: Δ of W20 and S21.

use std::time::Duration;

use anyhow::bail;
use mq_codec::TopicName;
use mq_transport::Address;

use super::args::ClientArgs;
use crate::{
    clock::nanoseconds,
    report,
    units::{format_time, parse_duration},
    workload::{
        RunClock,
        arrivals::Arrivals,
        stopwait::{self, Plan},
    },
};

/// Options of `stopwait`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// Messages (S21: 100, W20: 1000)
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// Payload size in bytes, at least 8
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Repetitions of the whole measurement
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Timeout of the arrival of a message
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    patience: Duration,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let (mqtt, route) = args.client.get(&args.broker)?;
    let plan = Plan {
        topic: TopicName::new(stopwait::TOPIC)?,
        count: args.count,
        size: args.size,
        patience: args.patience,
    };
    for run in 1..=args.runs {
        let arrivals = Arrivals::subscribe(stopwait::TOPIC, &mqtt, &route).await?;
        let samples = stopwait::run(&plan, RunClock::start(), &mqtt, &route, arrivals).await?;
        let Some(delta) = stopwait::delta(&samples) else {
            bail!("nothing to send: --count is 0");
        };
        let mut text = format!("run {run}: Δ {}", format_time(nanoseconds(delta)));
        if let Some(figures) = report::figures(&samples.latencies_sent_ns()) {
            text.push_str(&format!("  per message: {figures}"));
        }
        report::print(&text)?;
    }
    Ok(())
}
