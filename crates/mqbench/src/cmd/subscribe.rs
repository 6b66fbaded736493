//! `mqbench sub`: subscribes and writes the receive log.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use mq_measure::log::{LogMeta, LogWriter, ReceiveRecord};
use mq_transport::Address;

use super::args::{ClientArgs, parse_duration, topics};
use crate::{
    clock::{WallClock, host_name, nanoseconds, system_ns},
    payload::sequence,
    report,
    workload::topics::{self, Subscriptions},
};

/// Options of `sub`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// Topic filter
    #[arg(long, default_value = "mqbench/log")]
    topic: String,
    /// Topics that the publisher's messages go to in turn, as `pub --topics`: a subscription to each
    #[arg(long, default_value = "1", value_parser = topics)]
    topics: NonZeroU32,
    /// End after so many messages
    #[arg(long)]
    count: Option<u64>,
    /// End when nothing has come for this long after the first message
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    idle: Duration,
    /// Name of the run, written into the log
    #[arg(long, default_value = "run")]
    run: String,
    /// Print `ready` as a line of its own when messages are received from now on
    #[arg(long)]
    announce: bool,
    /// Print the number of each message as a line of its own when it arrives: for a `pub --wait` or
    /// `pub --reconnect` elsewhere
    #[arg(long)]
    tell: bool,
    /// The receive log
    #[arg(long, value_name = "FILE", default_value = "receive.csv")]
    log: PathBuf,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let clock = WallClock::from_env()?;
    let mut log =
        LogWriter::<ReceiveRecord>::create(&args.log, &LogMeta::new(&args.run, &host_name()))?;
    let (mqtt, route) = args.client.get(&args.broker)?;
    let client_id = format!("mqbench-sub-{}", std::process::id());
    let client = mqtt.connect(&route, &client_id).await?;
    let mut messages = if args.topics == NonZeroU32::MIN {
        Subscriptions::to_filter(args.topic.as_str(), &client, mqtt.qos).await?
    } else {
        let topics = topics::names(&args.topic, args.topics)?;
        Subscriptions::to(&topics, &client, mqtt.qos).await?
    };
    eprintln!("{}: subscribed", args.topic);
    if args.announce {
        report::announce()?;
    }
    let mut received = 0;
    let mut foreign = 0;
    while args.count.is_none_or(|count| received < count) {
        let next = messages.next();
        let incoming = if received == 0 {
            next.await
        } else {
            match tokio::time::timeout(args.idle, next).await {
                Ok(incoming) => incoming,
                Err(_) => break,
            }
        };
        let Some(incoming) = incoming else { break };
        // The client stamped the message on the monotonic clock; the log has the time of day.
        let received_ns = clock.at(system_ns() - nanoseconds(incoming.received_at.elapsed()));
        match sequence(&incoming.payload) {
            Some(seq) => {
                log.append(&ReceiveRecord { seq, received_ns })?;
                if args.tell {
                    report::print(&format!("{seq}\n"))?;
                }
            }
            None => foreign += 1,
        }
        received += 1;
    }
    log.finish()?;
    // The log is complete even if the DISCONNECT fails.
    let _ = client.disconnect().await;
    let mut text = format!("received {received}\n");
    if foreign > 0 {
        text.push_str(&format!(
            "! {foreign} messages were too short to be measured: is somebody else publishing there?\n"
        ));
    }
    report::print(&text)
}
