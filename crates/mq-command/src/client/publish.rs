//! `mq pub`.

use std::{collections::VecDeque, num::NonZeroU64, time::Duration};

use bytes::Bytes;
use mq_client::{Client, Outgoing, PublishProperties, QoS, Receipt, TopicName};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{
    Outcome,
    args::{BrokerArgs, qos},
    connect,
    goodbye::{Goodbye, until_end},
    message::Source,
};

/// Options of `pub`.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Topic
    #[arg(short = 't', long)]
    topic: Option<String>,
    #[command(flatten)]
    source: Source,
    /// QoS
    #[arg(short = 'q', long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Retain the message
    #[arg(short = 'r', long)]
    retain: bool,
    /// Send the message this many times
    #[arg(long, value_name = "COUNT", default_value = "1")]
    repeat: NonZeroU64,
    /// Seconds between two of these messages
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    repeat_delay: f64,
    #[command(flatten)]
    pub(crate) broker: BrokerArgs,
}

/// Messages that may wait for their acknowledgement before the next line is read.
const MOST_WAITING: usize = 1_000;

/// Sends messages, and remembers those that are not acknowledged.
struct Sender {
    client: Client,
    topic: TopicName,
    properties: PublishProperties,
    qos: QoS,
    retain: bool,
    waiting: VecDeque<Receipt>,
}

impl Sender {
    async fn send(&mut self, payload: Bytes) -> anyhow::Result<()> {
        while self.waiting.len() >= MOST_WAITING {
            self.wait_for_first().await?;
        }
        let message = Outgoing::new(self.topic.clone(), payload)
            .properties(self.properties.clone())
            .qos(self.qos)
            .retain(self.retain);
        self.waiting.push_back(self.client.send(message).await?);
        Ok(())
    }

    async fn wait_for_first(&mut self) -> anyhow::Result<()> {
        let Some(mut receipt) = self.waiting.pop_front() else {
            return Ok(());
        };
        if self.qos == QoS::AtMostOnce {
            receipt.written().await?;
        } else {
            receipt.acknowledged().await?;
        }
        Ok(())
    }

    async fn finish(mut self) -> anyhow::Result<()> {
        while !self.waiting.is_empty() {
            self.wait_for_first().await?;
        }
        self.client.disconnect().await?;
        Ok(())
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let plan = connect::plan(&args.broker)?;
    let topic = TopicName::new(plan.topic(args.topic.clone())?)?;
    let delay = Duration::try_from_secs_f64(args.repeat_delay)?;
    // What cannot be read should not cost a connection.
    let payload = if args.source.stdin_line {
        None
    } else {
        Some(args.source.payload().await?)
    };
    let ready = Ready {
        plan,
        topic,
        delay,
        payload,
    };
    until_end(None, async |goodbye| publish(args, ready, goodbye).await).await
}

/// Inputs that were read before connecting.
struct Ready {
    plan: connect::Plan,
    topic: TopicName,
    delay: Duration,
    /// `None` for the lines of the standard input.
    payload: Option<Bytes>,
}

async fn publish(args: Args, ready: Ready, goodbye: &Goodbye) -> anyhow::Result<Outcome> {
    let Ready {
        plan,
        topic,
        delay,
        payload,
    } = ready;
    let client = goodbye.connect(plan.client).await?;
    let mut sender = Sender {
        client,
        topic,
        properties: plan.properties.publish,
        qos: args.qos,
        retain: args.retain,
        waiting: VecDeque::new(),
    };
    match payload {
        Some(payload) => {
            for number in 0..args.repeat.get() {
                if number > 0 && !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                sender.send(payload.clone()).await?;
            }
        }
        None => send_lines(&mut sender).await?,
    }
    sender.finish().await?;
    Ok(Outcome::Done)
}

/// Sends each line of the standard input, until its end or that of the connection.
async fn send_lines(sender: &mut Sender) -> anyhow::Result<()> {
    let mut input = BufReader::new(tokio::io::stdin());
    loop {
        let mut line = Vec::new();
        let client = sender.client.clone();
        tokio::select! {
            read = input.read_until(b'\n', &mut line) => {
                if read? == 0 {
                    return Ok(());
                }
            }
            error = client.closed() => return Err(error.into()),
        }
        if line.ends_with(b"\n") {
            line.pop();
        }
        if !line.is_empty() {
            sender.send(line.into()).await?;
        }
    }
}
