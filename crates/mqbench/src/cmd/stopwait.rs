//! `mqbench stopwait`: Δ of W20 and S21.

use std::time::Duration;

use mq_measure::Summary;
use mq_transport::Address;

use crate::{
    args::{MqttArgs, TransportArgs, duration},
    clock::nanoseconds,
    report,
    units::time,
    workload::stopwait,
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
    /// How often the whole is repeated
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// How long one message may take
    #[arg(long, default_value = "30s", value_parser = duration)]
    patience: Duration,
    #[command(flatten)]
    mqtt: MqttArgs,
    #[command(flatten)]
    transport: TransportArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let connector = args.transport.connector()?;
    for run in 1..=args.runs {
        let outcome = stopwait::run(
            args.count,
            args.size,
            args.patience,
            &args.mqtt,
            (&args.broker, &connector),
            (&args.broker, &connector),
        )
        .await?;
        let mut text = format!("run {run}: Δ {}", time(nanoseconds(outcome.delta)));
        if let Some(summary) = Summary::from_samples(&outcome.samples.latencies_sent_ns()) {
            text.push_str("  per message: ");
            text.push_str(&super::e2e::line(&summary));
        }
        report::print(&text)?;
    }
    Ok(())
}
