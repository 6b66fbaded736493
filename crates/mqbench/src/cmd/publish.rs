//! `mqbench pub`: publishes on a schedule and writes the send log.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use mq_client::Outgoing;
use mq_codec::TopicName;
use mq_measure::log::{LogMeta, LogWriter, SendRecord};
use mq_transport::Address;

use crate::{
    args::{MqttArgs, TransportArgs, duration},
    clock::{WallClock, host, nanoseconds, system_ns},
    payload::Payloads,
    report,
    workload::pace::wait_until,
};

/// Options of `pub`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// Topic
    #[arg(long, default_value = "mqbench/log")]
    topic: String,
    /// Messages
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Payload size in bytes, at least 8
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Time between messages
    #[arg(long, default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// Name of the run, written into the log
    #[arg(long, default_value = "run")]
    run: String,
    /// The send log
    #[arg(long, value_name = "FILE", default_value = "send.csv")]
    log: PathBuf,
    #[command(flatten)]
    mqtt: MqttArgs,
    #[command(flatten)]
    transport: TransportArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let topic = TopicName::new(args.topic.as_str())
        .with_context(|| format!("--topic {} is not valid", args.topic))?;
    let clock = WallClock::from_env()?;
    let meta = LogMeta::new(&args.run, &host());
    let mut log = LogWriter::<SendRecord>::create(&args.log, &meta)?;
    let connector = args.transport.connector()?;
    let client = args
        .mqtt
        .builder(
            &args.broker,
            &connector,
            &format!("mqbench-pub-{}", std::process::id()),
        )?
        .build()
        .await?;
    let publisher = client.clone();
    let count = args.count;
    tokio::task::spawn_blocking(move || -> anyhow::Result<()> {
        let payloads = Payloads::new(args.size, 1);
        let start = Instant::now();
        let origin_ns = system_ns();
        for seq in 0..args.count {
            let message = Outgoing::new(topic.clone(), payloads.make(seq)).qos(args.mqtt.qos);
            let offset = args.interval * u32::try_from(seq).unwrap_or(u32::MAX);
            wait_until(start + offset);
            let sent_ns = clock.now_ns();
            publisher.try_send(message).context("cannot publish")?;
            log.append(&SendRecord {
                seq,
                intended_ns: clock.at(origin_ns + nanoseconds(offset)),
                sent_ns,
            })?;
        }
        log.finish()?;
        Ok(())
    })
    .await
    .context("the sending thread failed")??;
    client
        .disconnect()
        .await
        .context("the last messages may be lost")?;
    report::print(&format!("sent {count}\n"))
}
