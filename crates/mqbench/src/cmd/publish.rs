//! `mqbench pub`: publishes on a schedule, or message by message, and writes the send log.

use std::{
    num::NonZeroU32,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use mq_client::Outgoing;
use mq_codec::TopicName;
use mq_measure::{
    Sample,
    log::{LogMeta, LogWriter, SendRecord},
};
use mq_transport::Address;
use tokio::sync::mpsc::channel;

use super::args::{ClientArgs, parse_duration, resumption, topics};
use crate::{
    clock::{WallClock, host_name, nanoseconds, system_ns},
    payload::Payloads,
    report,
    stdin_lines::StdinLines,
    workload::{
        RunClock,
        arrivals::Arrivals,
        reconnect,
        resumption::Resumption,
        send_thread::wait_until,
        stopwait::{self, Plan},
        topics,
    },
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
    /// Topics to which messages are published in turn; several are TOPIC/topic-0 and so on
    #[arg(long, default_value = "1", value_parser = topics, conflicts_with_all = ["wait", "reconnect"])]
    topics: NonZeroU32,
    /// Messages
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Payload size in bytes, at least 8
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Time between messages
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// No schedule: publish each message when the number of the last one arrives as a line on standard input, as `sub
    /// --tell` prints it
    #[arg(long, conflicts_with = "interval")]
    wait: bool,
    /// No schedule: as --wait, with a new connection for each message after the first; the log has its dial as the
    /// intended time
    #[arg(long, value_parser = resumption(), value_name = "HOW", conflicts_with_all = ["interval", "wait"])]
    reconnect: Option<Resumption>,
    /// Timeout of the arrival of a message, with --wait or --reconnect
    #[arg(long, default_value = "2min", value_parser = parse_duration)]
    patience: Duration,
    /// Name of the run, written into the log
    #[arg(long, default_value = "run")]
    run: String,
    /// The send log
    #[arg(long, value_name = "FILE", default_value = "send.csv")]
    log: PathBuf,
    #[command(flatten)]
    client: ClientArgs,
}

impl Args {
    /// Returns `true` if standard input reports arrivals.
    pub(crate) fn waits(&self) -> bool {
        self.wait || self.reconnect.is_some()
    }
}

/// Publishes and writes the send log. `input` is `Some` if the options [wait](Args::waits) for arrivals.
pub(crate) async fn run(args: Args, input: Option<StdinLines>) -> anyhow::Result<()> {
    let meta = LogMeta::new(&args.run, &host_name());
    let log = LogWriter::<SendRecord>::create(&args.log, &meta)?;
    let sent = match input {
        None => on_schedule(args, log).await?,
        Some(input) => one_by_one(args, log, input).await?,
    };
    report::print(&format!("sent {sent}\n"))
}

async fn on_schedule(args: Args, mut log: LogWriter<SendRecord>) -> anyhow::Result<u64> {
    let topics = topics::names(&args.topic, args.topics)?;
    let clock = WallClock::from_env()?;
    let (mqtt, route) = args.client.get(&args.broker)?;
    let client_id = format!("mqbench-pub-{}", std::process::id());
    let client = mqtt.connect(&route, &client_id).await?;
    let publisher = client.clone();
    let count = args.count;
    tokio::task::spawn_blocking(move || -> anyhow::Result<()> {
        let payloads = Payloads::new(args.size, 1);
        let start = Instant::now();
        let origin_ns = system_ns();
        for (seq, topic) in (0..args.count).zip(topics.iter().cycle()) {
            let message = Outgoing::new(topic.clone(), payloads.make(seq)).qos(mqtt.qos);
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
    Ok(count)
}

async fn one_by_one(
    args: Args,
    mut log: LogWriter<SendRecord>,
    input: StdinLines,
) -> anyhow::Result<u64> {
    let topic = TopicName::new(args.topic.as_str())
        .with_context(|| format!("--topic {} is not valid", args.topic))?;
    let plan = Plan {
        topic,
        count: args.count,
        size: args.size,
        patience: args.patience,
    };
    let (tell, numbers) = channel(1);
    input.for_each(move |line| {
        if let Ok(number) = line.text.parse() {
            // A receiver that was dropped means that the run is over.
            let _ = tell.blocking_send(number);
        }
    })?;
    let (clock, arrivals) = (RunClock::start(), Arrivals::Reported(numbers));
    let (mqtt, route) = args.client.get(&args.broker)?;
    let samples: Vec<Sample> = match args.reconnect {
        None => {
            let samples = stopwait::run(&plan, clock, &mqtt, &route, arrivals);
            samples.await?.0
        }
        Some(how) => {
            let publisher = (args.broker, args.client.transport.options());
            let attempts = reconnect::run(&plan, clock, how, &mqtt, publisher, arrivals);
            attempts
                .await?
                .iter()
                .map(|attempt| attempt.sample)
                .collect()
        }
    };
    let (wall, origin_ns) = (WallClock::from_env()?, clock.origin_ns());
    for sample in &samples {
        log.append(&SendRecord {
            seq: sample.seq,
            intended_ns: wall.at(origin_ns + sample.intended_ns),
            sent_ns: wall.at(origin_ns + sample.sent_ns),
        })?;
    }
    log.finish()?;
    Ok(samples.len() as u64)
}
