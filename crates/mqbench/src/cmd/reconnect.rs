//! `mqbench reconnect`: Δ† of S21, and W20's variant.

use std::time::Duration;

use mq_measure::Summary;
use mq_transport::{Address, EarlyData};

use crate::{
    args::{MqttArgs, TransportArgs, duration},
    report,
    units::time,
    workload::reconnect::{self, Attempt, Resumption},
};

/// Options of `reconnect`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// Connections after the first
    #[arg(long, default_value_t = 20)]
    count: u64,
    /// Payload size in bytes, at least 8
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// How the publisher comes back
    #[arg(long, value_enum, default_value_t = Resumption::ZeroRtt)]
    resumption: Resumption,
    /// How long one message may take
    #[arg(long, default_value = "30s", value_parser = duration)]
    patience: Duration,
    #[command(flatten)]
    mqtt: MqttArgs,
    #[command(flatten)]
    transport: TransportArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let options = args.transport.options();
    let outcome = reconnect::run(
        args.count,
        args.size,
        args.patience,
        args.resumption,
        &args.mqtt,
        (&args.broker, &options),
        (&args.broker, &options),
    )
    .await?;
    let figure = |value: fn(&Attempt) -> u64| {
        let values: Vec<_> = outcome.again.iter().map(value).collect();
        Summary::from_samples(&values).map_or_else(String::new, |s| super::e2e::line(&s))
    };
    let early = outcome
        .again
        .iter()
        .filter(|attempt| attempt.early_data == EarlyData::Accepted)
        .count();
    let mut text = format!(
        "first connection: received after {}, sent after {} ({:?} handshake)\n",
        time(outcome.first.delta_ns),
        time(outcome.first.sent_ns),
        outcome.first.handshake,
    );
    text.push_str(&format!(
        "dial to received (Δ†): {}",
        figure(|a| a.delta_ns)
    ));
    text.push_str(&format!("dial to sent (W20):    {}", figure(|a| a.sent_ns)));
    text.push_str(&format!(
        "early data accepted in {early} of {} connections\n",
        outcome.again.len()
    ));
    report::print(&text)
}
