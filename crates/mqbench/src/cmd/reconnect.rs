//! `mqbench reconnect`: Δ† of S21, and W20's variant.

use std::time::Duration;

use anyhow::bail;
use mq_codec::TopicName;
use mq_transport::{Address, EarlyData};

use super::args::{ClientArgs, resumption};
use crate::{
    report,
    units::{format_time, parse_duration},
    workload::{
        RunClock,
        arrivals::Arrivals,
        reconnect::{self, Attempt},
        resumption::Resumption,
        stopwait::Plan,
    },
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
    /// Handshake of the connections after the first
    #[arg(long, default_value = "0-rtt", value_parser = resumption())]
    resumption: Resumption,
    /// Timeout of the arrival of a message
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    patience: Duration,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let (mqtt, subscriber) = args.client.get(&args.broker)?;
    let scheme = args.broker.scheme;
    let assumed = args.client.transport.initial_rtt_line(scheme);
    let plan = Plan {
        topic: TopicName::new(reconnect::TOPIC)?,
        count: args.count,
        size: args.size,
        patience: args.patience,
    };
    // The subscriber stays connected, with tickets of its own.
    let arrivals = Arrivals::subscribe(reconnect::TOPIC, &mqtt, &subscriber).await?;
    let attempts = reconnect::run(
        &plan,
        RunClock::start(),
        args.resumption,
        &mqtt,
        (args.broker, args.client.transport.options()),
        arrivals,
    )
    .await?;
    let Some((first, again)) = attempts.split_first() else {
        bail!("nothing was connected");
    };
    let figure = |value: fn(&Attempt) -> Option<u64>| {
        let values: Vec<_> = again.iter().filter_map(value).collect();
        report::figures(&values).unwrap_or_default()
    };
    let early = again
        .iter()
        .filter(|attempt| attempt.early_data == EarlyData::Accepted)
        .count();
    report::print(&format!(
        "{assumed}first connection: received after {}, sent after {} ({:?} handshake)\n\
         dial to received (Δ†): {}dial to sent (W20):    {}\
         early data accepted in {early} of {} connections\n",
        format_time(first.delta_ns().unwrap_or_default()),
        format_time(first.sent_ns()),
        first.handshake,
        figure(Attempt::delta_ns),
        figure(|attempt| Some(attempt.sent_ns())),
        again.len()
    ))
}
