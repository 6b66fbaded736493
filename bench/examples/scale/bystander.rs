//! A pair of clients beside a crowd, and the delay of their messages.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use mq_client::{Client, Connector, Outgoing, QoS, Subscription, TopicName, Version};
use serde_json::json;

use crate::{Failed, Orders, say};

/// Bytes of a payload; the first eight are the message's number.
const SIZE: usize = 100;

/// Time that the last messages may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the time at which message `number` is due: the schedule waits for nothing.
fn due(interval: Duration, number: usize) -> Duration {
    interval * u32::try_from(number).unwrap_or(u32::MAX)
}

pub(crate) async fn run(
    url: &str,
    topic: &str,
    interval_ms: u64,
    connector: Connector,
    mut orders: Orders,
) -> Result<(), Failed> {
    let interval = Duration::from_millis(interval_ms);
    let subscriber = connect(url, "bystander-sub", &connector).await?;
    let publisher = connect(url, "bystander-pub", &connector).await?;
    let messages = subscriber.subscribe(topic, QoS::AtMostOnce).await?;
    say("ready")?;

    let began = Instant::now();
    let arrived = Arc::new(Mutex::new(Vec::new()));
    let receiving = tokio::spawn(receive(messages, began, Arc::clone(&arrived)));
    let is_over = Arc::new(AtomicBool::new(false));
    let (topic, over) = (TopicName::new(topic)?, Arc::clone(&is_over));
    // A thread of its own: tokio's timers are a millisecond coarse.
    let sending = thread::spawn(move || send(&publisher, &topic, interval, began, &over));
    let mut marks = Vec::new();
    while orders.next().await.is_some() {
        marks.push(nanoseconds(began.elapsed()));
        say(marks.len())?;
    }
    is_over.store(true, Relaxed);
    let late = tokio::task::spawn_blocking(move || sending.join()).await?;
    let late = late.map_err(|_| "the sender failed")?;

    let end = Instant::now() + PATIENCE;
    let count = || {
        let arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.iter().flatten().count()
    };
    while count() < late.len() && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    receiving.abort();
    let mut arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
    arrived.resize(late.len(), None);
    let delays = arrived
        .iter()
        .enumerate()
        .map(|(number, at): (usize, &Option<Duration>)| {
            at.map(|at| nanoseconds(at.saturating_sub(due(interval, number))))
        });
    let delays: Vec<_> = delays.collect();
    let late: Vec<_> = late.into_iter().map(nanoseconds).collect();
    say(json!({
        "interval_ns": nanoseconds(interval), "marks_ns": marks, "delays_ns": delays, "late_ns": late,
    }))
}

async fn connect(url: &str, name: &str, connector: &Connector) -> Result<Client, Failed> {
    let builder = Client::builder(url)?
        .connector(connector.clone())
        .version(Version::V3_1_1)
        .client_id(name)?;
    Ok(builder.build().await?)
}

/// Sends by the schedule; returns how late each message was handed to the client.
fn send(
    publisher: &Client,
    topic: &TopicName,
    interval: Duration,
    began: Instant,
    is_over: &AtomicBool,
) -> Vec<Duration> {
    let mut late = Vec::new();
    while !is_over.load(Relaxed) {
        let due = due(interval, late.len());
        thread::sleep(due.saturating_sub(began.elapsed()));
        let mut payload = vec![0; SIZE];
        payload[..8].copy_from_slice(&(late.len() as u64).to_be_bytes());
        late.push(began.elapsed().saturating_sub(due));
        // Without room the message is lost, and counts as that.
        let _ = publisher.try_send(Outgoing::new(topic.clone(), payload));
    }
    late
}

/// Notes when each message arrives.
async fn receive(
    mut messages: Subscription,
    began: Instant,
    arrived: Arc<Mutex<Vec<Option<Duration>>>>,
) {
    while let Some(message) = messages.recv().await {
        let at = began.elapsed();
        let Some(number) = message.payload.first_chunk() else {
            continue;
        };
        let Ok(number) = usize::try_from(u64::from_be_bytes(*number)) else {
            continue;
        };
        let mut arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
        if arrived.len() <= number {
            arrived.resize(number + 1, None);
        }
        arrived[number].get_or_insert(at);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
