//! `mq ping`: how long the way to a broker is.

use std::{
    io::Write as _,
    num::NonZeroU64,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use mq_client::{Client, ConnectTimes, Outgoing, QoS};

use super::{
    Outcome,
    args::{BrokerArgs, qos},
    connect,
    goodbye::{Goodbye, until_end},
};

/// Options of `ping`.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Number of messages
    #[arg(short = 'C', value_name = "COUNT", default_value = "5")]
    count: NonZeroU64,
    /// Seconds between two messages
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// QoS of the messages
    #[arg(short = 'q', long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Connect anew before each message: the first time in full, then with what the broker gave for it
    #[arg(long)]
    reconnect: bool,
    /// Topic, which this client has to be allowed to publish and to subscribe; else one by chance
    #[arg(short = 't', long)]
    topic: Option<String>,
    /// Seconds to wait for a message
    #[arg(short = 'W', value_name = "SECONDS", default_value = "10")]
    timeout: NonZeroU64,
    #[command(flatten)]
    pub(crate) broker: BrokerArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    until_end(None, async |goodbye| ping(args, goodbye).await).await
}

async fn ping(args: Args, goodbye: &Goodbye) -> anyhow::Result<Outcome> {
    let interval = Duration::try_from_secs_f64(args.interval)?;
    let patience = Duration::from_secs(args.timeout.get());
    let plan = connect::plan(&args.broker)?;
    let chance = || format!("mq/ping/{:016x}", fastrand::u64(..));
    let topic = args.topic.clone().or(plan.topic).unwrap_or_else(chance);
    let client = goodbye.connect(plan.client).await?;
    say(&connected(&plan.address.to_string(), &client))?;
    let mut messages = client.subscribe(topic.as_str(), args.qos).await?;
    let mut times = Vec::new();
    for number in 1..=args.count.get() {
        if number > 1 {
            tokio::time::sleep(interval).await;
            if args.reconnect {
                reconnect(&client, patience).await?;
                say(&connected(&plan.address.to_string(), &client))?;
            }
        }
        let (begin, text) = (Instant::now(), format!("mq ping {number}"));
        let message = Outgoing::to(topic.as_str(), text.clone())?.qos(args.qos);
        client.send(message).await?;
        let back = async {
            loop {
                match messages.recv().await {
                    Some(message) if message.payload == text => return Ok(message.received_at),
                    // Of an earlier time, or another's.
                    Some(_) => {}
                    None => return Err(connect::ended(&client).await),
                }
            }
        };
        match tokio::time::timeout(patience, back).await {
            Err(_) => say(&format!(
                "message {number}: nothing came within {patience:?}"
            ))?,
            Ok(back) => {
                let took = back?.saturating_duration_since(begin);
                times.push(took);
                say(&format!("message {number}: {}", milliseconds(took)))?;
            }
        }
    }
    let _ = client.disconnect().await;
    say(&summary(&times, args.count.get()))?;
    if times.is_empty() {
        bail!("no message came back");
    }
    Ok(Outcome::Done)
}

fn say(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}

/// Leaves the link, and waits for the next one.
async fn reconnect(client: &Client, patience: Duration) -> anyhow::Result<()> {
    let before = client.connect_times().map(|times| times.dialled_at);
    client.reconnect()?;
    let again = async {
        while client.connect_times().map(|times| times.dialled_at) == before {
            client.connected().await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok::<_, mq_client::Error>(())
    };
    let again = tokio::time::timeout(patience, again).await;
    again.map_err(|_| anyhow!("no new connection within {patience:?}"))??;
    Ok(())
}

fn connected(address: &str, client: &Client) -> String {
    let Some(connected) = client.last_connected() else {
        return format!("connected to {address}");
    };
    let ConnectTimes {
        dialled_at,
        link_at,
        connack_at,
        ..
    } = connected.times;
    let how = connect::how(&connected.times);
    let tls = connected.link.tls.as_ref();
    let group = tls.and_then(|tls| tls.key_exchange_group.as_deref());
    let group = group.map_or_else(String::new, |group| format!(", {group}"));
    format!(
        "connected to {address} in {}: link {}, MQTT {}{how}{group}",
        milliseconds(connack_at.saturating_duration_since(dialled_at)),
        milliseconds(link_at.saturating_duration_since(dialled_at)),
        milliseconds(connack_at.saturating_duration_since(link_at)),
    )
}

fn summary(times: &[Duration], sent: u64) -> String {
    let came = times.len();
    let (Some(least), Some(most)) = (times.iter().min(), times.iter().max()) else {
        return format!("{sent} messages, {came} came back");
    };
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let median = sorted[came / 2];
    format!(
        "{sent} messages, {came} came back: least {}, median {}, most {}",
        milliseconds(*least),
        milliseconds(median),
        milliseconds(*most)
    )
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}
