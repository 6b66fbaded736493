//! A publisher of retained messages, and subscribers that ask for them.

use std::{collections::VecDeque, time::Duration};

use mq_client::{Client, Outgoing, QoS, Receipt, TopicFilter, Version};
use mq_codec::Packet;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::{Dialler, Failed, Orders, device::Device, say};

/// Bytes of a payload.
const SIZE: usize = 100;

/// Messages without an acknowledgement.
const WINDOW: usize = 1_000;

/// Bytes that the kernel keeps for a slow reader.
const SLOW_BUFFER: usize = 64 * 1024;

/// Returns the topic of a retained message: ten readings of each device, a thousand devices of each site.
fn topic(number: u64) -> String {
    let (device, reading) = (number / 10, number % 10);
    let (site, device) = (device / 1_000, device % 1_000);
    format!("site/{site}/device/{device}/reading-{reading}")
}

/// Retains a message in each topic at `keep`, and takes them back at `clear`.
pub(crate) async fn keep(
    url: &str,
    topics: u64,
    dialler: Dialler,
    mut orders: Orders,
) -> Result<(), Failed> {
    let builder = Client::builder(url)?
        .connector(dialler.connector(None)?)
        .version(Version::V5)
        .client_id("retainer")?;
    let publisher = builder.build().await?;
    say("ready")?;
    while let Some(order) = orders.next().await {
        let size = match order.as_str() {
            "keep" => SIZE,
            "clear" => 0,
            _ => return Err(format!("`{order}` is no order").into()),
        };
        let began = Instant::now();
        let mut refused = 0;
        let mut under_way: VecDeque<Receipt> = VecDeque::with_capacity(WINDOW);
        for number in 0..topics {
            if under_way.len() == WINDOW
                && let Some(mut receipt) = under_way.pop_front()
            {
                refused += u64::from(receipt.acknowledged().await?.is_error());
            }
            let message = Outgoing::to(topic(number), vec![b'x'; size])?;
            let message = message.qos(QoS::AtLeastOnce).retain(true);
            under_way.push_back(publisher.send(message).await?);
        }
        for mut receipt in under_way {
            refused += u64::from(receipt.acknowledged().await?.is_error());
        }
        let seconds = began.elapsed().as_secs_f64();
        say(json!({ "messages": topics, "refused": refused, "seconds": seconds }))?;
    }
    publisher.disconnect().await?;
    Ok(())
}

/// Filter of a subscriber, and the rate at which it reads.
pub(crate) struct Wanted {
    filter: TopicFilter,
    messages: u64,
    /// Bytes of topics and payloads; 0 is as fast as it can.
    a_second: u64,
}

impl Wanted {
    pub(crate) fn new(filter: &str, messages: u64, a_second: u64) -> Result<Self, Failed> {
        Ok(Self {
            filter: TopicFilter::new(filter)?,
            messages,
            a_second,
        })
    }
}

/// Subscribes at `go`, and reads the retained messages.
pub(crate) async fn read(
    url: &str,
    wanted: Wanted,
    dialler: Dialler,
    mut orders: Orders,
) -> Result<(), Failed> {
    let is_slow = wanted.a_second > 0;
    let connector = dialler.connector(is_slow.then_some(SLOW_BUFFER))?;
    let name = format!("reader-{}", std::process::id());
    let mut device = Device::connect(&connector, &url.parse()?, &name, 300).await?;
    say("ready")?;
    orders.expect("go").await?;
    let began = Instant::now();
    let (mut messages, mut bytes) = (0, 0);
    let mut first = None;
    device.subscribe(vec![wanted.filter]).await?;
    while messages < wanted.messages {
        let packet = tokio::select! {
            packet = device.next() => packet?,
            order = orders.next() => match order.as_deref() {
                Some("stop") | None => break,
                Some(order) => return Err(format!("`{order}` is no order").into()),
            }
        };
        let Packet::Publish(publish) = packet else {
            return Err(format!("an unexpected packet: {packet:?}").into());
        };
        first.get_or_insert_with(|| began.elapsed());
        messages += u64::from(publish.retain);
        bytes += (publish.topic.len() + publish.payload.len()) as u64;
        if is_slow {
            let due = Duration::from_micros(bytes * 1_000_000 / wanted.a_second);
            sleep_until(began + due).await;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let first = first.map(|first| first.as_secs_f64());
    say(json!({ "messages": messages, "bytes": bytes, "first_s": first, "seconds": seconds }))?;
    // It stays until the end of the input, and reads on: publishers would wait for a reader that has stopped.
    loop {
        tokio::select! {
            packet = device.next() => drop(packet?),
            order = orders.next() => if order.is_none() { break },
        }
    }
    device.leave().await
}
