//! Messages from a client of one broker to a client of another: `across PUBLISHER READER[,READER..] QOS SECONDS [RATE]`.
//!
//! The reader keeps its session, and goes to the next of its addresses when its broker ends. With a rate the delay of
//! each message counts from when it was to be sent, else 256 messages are on their way. Says as JSON what came, and how
//! late.
#![expect(clippy::print_stdout, reason = "an example says what it found")]

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use mq_client::{Client, ClientBuilder, Error, Outgoing, QoS, Reconnect};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

const OUTSTANDING: usize = 256;

/// Time after which no message of QoS 0 comes any more: the last one may be lost.
const QUIET: Duration = Duration::from_secs(3);

/// Time in which a message of QoS 1 or 2 comes, whatever node has died.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time at the beginning that is not measured.
const WARM: Duration = Duration::from_secs(1);

/// Bytes of a payload.
const SIZE: usize = 100;

/// The number of the message after all others.
const LAST: u64 = u64::MAX;

const TOPIC: &str = "across/topic";

#[derive(Clone, Copy)]
struct Plan {
    qos: QoS,
    time: Duration,
    rate: Option<u32>,
    began: Instant,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn client(urls: &str) -> Result<ClientBuilder, Error> {
    let mut urls = urls.split(',');
    let mut builder = Client::builder(urls.next().unwrap_or_default())?;
    for url in urls {
        builder = builder.fallback(url)?;
    }
    Ok(builder
        .keep_alive(Duration::from_secs(2))
        .ping_timeout(Duration::from_secs(1))
        .fallback_memory(Duration::ZERO)
        .reconnect(Reconnect {
            initial: Duration::from_millis(20),
            max: Duration::from_millis(200),
            ..Reconnect::default()
        }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [publisher, reader, qos, seconds, rate @ ..] = arguments.as_slice() else {
        return Err("across PUBLISHER READER[,READER..] QOS SECONDS [RATE]".into());
    };
    let qos = match qos.as_str() {
        "0" => QoS::AtMostOnce,
        "1" => QoS::AtLeastOnce,
        "2" => QoS::ExactlyOnce,
        other => return Err(format!("`{other}` is no QoS").into()),
    };
    let plan = Plan {
        qos,
        time: WARM + Duration::from_secs_f64(seconds.parse()?),
        rate: rate.first().map(|rate| rate.parse()).transpose()?,
        began: Instant::now(),
    };
    let reader = client(reader)?
        .client_id("across-reader")?
        .clean_start(false)
        .session_expiry(Duration::from_mins(1))
        .build()
        .await?;
    let messages = reader.subscribe(TOPIC, qos).await?;
    let publisher = client(publisher)?
        .client_id("across-publisher")?
        .build()
        .await?;
    let quiet = if qos == QoS::AtMostOnce {
        QUIET
    } else {
        PATIENCE
    };
    let reading = tokio::spawn(read(messages, plan.began, quiet));
    let (sent, acknowledged) = publish(&publisher, plan).await?;
    let sending = plan.began.elapsed();
    let mut came = reading.await?;
    publisher.disconnect().await?;
    reader.disconnect().await?;

    let warm = nanoseconds(plan.began.elapsed().min(WARM));
    let all = came.len();
    let mut seen = HashSet::new();
    came.retain(|(number, ..)| seen.insert(*number));
    let gaps = came
        .windows(2)
        .map(|pair| pair[1].2.saturating_sub(pair[0].2));
    let longest_gap = gaps.max().unwrap_or(0);
    let measured: Vec<_> = came.iter().filter(|(_, due, _)| *due >= warm).collect();
    let span = match (measured.first(), measured.last()) {
        (Some(first), Some(last)) => last.2.saturating_sub(first.2),
        _ => 0,
    };
    let delays = measured.iter().map(|(_, due, at)| at.saturating_sub(*due));
    let delays = shares(delays.collect());
    let late = acknowledged.iter().filter(|(due, _)| *due >= warm);
    let late = shares(late.map(|(due, at)| at.saturating_sub(*due)).collect());
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let a_second = measured.len() as f64 / (span as f64 / 1e9);
    println!(
        "{}",
        json!({
            "sent": sent, "came": seen.len(), "again": all - seen.len(), "a_second": a_second,
            "delay_ns": delays, "acknowledged_ns": late, "longest_gap_ns": longest_gap,
            "sending_s": sending.as_secs_f64(),
        })
    );
    Ok(())
}

/// Nanoseconds at the median and so on.
fn shares(mut times: Vec<u64>) -> Value {
    times.sort_unstable();
    let at = |per_mille: usize| {
        times.get((times.len() * per_mille / 1000).min(times.len().saturating_sub(1)))
    };
    json!({ "p50": at(500), "p90": at(900), "p99": at(990), "max": times.last() })
}

/// Reads numbers of messages, when they were due, and when they came, in nanoseconds since the beginning.
async fn read(
    mut messages: mq_client::Subscription,
    began: Instant,
    quiet: Duration,
) -> Vec<(u64, u64, u64)> {
    let mut came = Vec::new();
    while let Ok(Some(message)) = timeout(quiet, messages.recv()).await {
        match parsed(&message.payload) {
            Some((LAST, _)) => break,
            Some((number, due)) => {
                let at = message.received_at.saturating_duration_since(began);
                came.push((number, due, nanoseconds(at)));
            }
            None => {}
        }
    }
    came
}

/// Times, in nanoseconds, at which each acknowledged message was due and at which its acknowledgement came.
type Acknowledged = Vec<(u64, u64)>;

/// Returns how many messages were sent, too.
async fn publish(publisher: &Client, plan: Plan) -> Result<(u64, Acknowledged), Error> {
    let began = plan.began;
    let mut waiting = JoinSet::new();
    let mut acknowledged = Vec::new();
    let mut number = 0;
    let mut due = plan.rate.map(|rate| due_times(began, rate));
    while began.elapsed() < plan.time {
        let due = match &mut due {
            Some(due) => due.recv().await.unwrap_or_default(),
            None => nanoseconds(began.elapsed()),
        };
        while plan.rate.is_none() && waiting.len() >= OUTSTANDING {
            acknowledged.extend(waiting.join_next().await.and_then(Result::ok).flatten());
        }
        let mut receipt = publisher.send(message(number, due, plan.qos)?).await?;
        number += 1;
        waiting.spawn(async move {
            let known = receipt.acknowledged().await;
            known.ok().map(|_| (due, nanoseconds(began.elapsed())))
        });
        while let Some(one) = waiting.try_join_next() {
            acknowledged.extend(one.ok().flatten());
        }
    }
    while let Some(one) = waiting.join_next().await {
        acknowledged.extend(one.ok().flatten());
    }
    let mut last = publisher.send(message(LAST, 0, plan.qos)?).await?;
    last.acknowledged().await?;
    Ok((number, acknowledged))
}

/// Tells the times at which messages are due, in nanoseconds since the beginning. A thread of its own waits, because
/// timers of the runtime are a millisecond late.
fn due_times(began: Instant, rate: u32) -> mpsc::UnboundedReceiver<u64> {
    let (tell, told) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for number in 0.. {
            let due = Duration::from_secs(number) / rate;
            std::thread::sleep((began + due).saturating_duration_since(Instant::now()));
            if tell.send(nanoseconds(due)).is_err() {
                return;
            }
        }
    });
    told
}

fn message(number: u64, due: u64, qos: QoS) -> Result<Outgoing, Error> {
    let mut payload = vec![0; SIZE];
    payload[..8].copy_from_slice(&number.to_le_bytes());
    payload[8..16].copy_from_slice(&due.to_le_bytes());
    Ok(Outgoing::to(TOPIC, payload)?.qos(qos))
}

fn parsed(payload: &[u8]) -> Option<(u64, u64)> {
    let number = payload.get(..8)?.try_into().ok()?;
    let due = payload.get(8..16)?.try_into().ok()?;
    Some((u64::from_le_bytes(number), u64::from_le_bytes(due)))
}
