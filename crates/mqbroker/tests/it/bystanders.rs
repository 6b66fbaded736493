//! Effects of a slow reader, and of clients that request all retained messages over and over, on
//! other clients: rates and delays, printed.
//!
//! `cargo test --release -p mqbroker --test it bystanders:: -- --ignored --nocapture
//! --test-threads=1` on a machine that does nothing else.

use std::{
    io::Read as _,
    net::TcpStream,
    num::NonZeroU16,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use mq_client::{Client, Outgoing, Subscription};
use mq_codec::{Ack, Packet, PacketId, QoS, ReasonCode};
use tokio::time::{interval, sleep, timeout};

use crate::{
    program::Broker,
    raw::{RawClients, publish, send, subscribe},
};

const ANYBODY: &str = "[auth]\nallow_anonymous = true\n[admin]\nsys_interval_s = 0\n";

/// The duration of each part of a measurement.
const PART: Duration = Duration::from_secs(5);

/// Publishes at QoS 1, 100 messages in flight and `offered` a second, or as many as possible, for
/// that time; returns the messages a second.
async fn rate(writer: &Client, time: Duration, offered: Option<u32>) -> f64 {
    let began = Instant::now();
    let mut receipts = std::collections::VecDeque::new();
    let mut count = 0_u32;
    while began.elapsed() < time {
        if let Some(offered) = offered
            && f64::from(count) > began.elapsed().as_secs_f64() * f64::from(offered)
        {
            sleep(Duration::from_millis(1)).await;
            continue;
        }
        let message = Outgoing::to("t", vec![7; 100]).unwrap();
        receipts.push_back(writer.send(message.qos(QoS::AtLeastOnce)).await.unwrap());
        count += 1;
        if receipts.len() >= 100 {
            let mut first = receipts.pop_front().unwrap();
            let answer = timeout(Duration::from_mins(1), first.acknowledged()).await;
            let _ = answer.expect("an acknowledgement");
        }
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

/// Returns the 99th percentile of the delay of a message every 5 ms, in milliseconds.
async fn p99(writer: &Client, messages: &mut Subscription, time: Duration) -> f64 {
    let mut delays = Vec::new();
    let mut ticks = interval(Duration::from_millis(5));
    let began = Instant::now();
    while began.elapsed() < time {
        ticks.tick().await;
        let sent = Instant::now();
        let message = Outgoing::to("p", vec![7; 100]).unwrap();
        writer.send(message).await.unwrap();
        timeout(Duration::from_mins(1), messages.recv())
            .await
            .unwrap();
        delays.push(sent.elapsed());
    }
    delays.sort_unstable();
    delays[delays.len() * 99 / 100].as_secs_f64() * 1e3
}

/// Connects with a Receive Maximum of 1, acknowledges a message every ten seconds, and reconnects
/// whenever it was disconnected.
fn slow_reader(clients: &RawClients, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Some(mut stream) = clients.connect("slow", |connect| {
            connect.properties.receive_maximum = NonZeroU16::new(1);
        }) else {
            continue;
        };
        let filters = std::iter::once("t".to_owned());
        let _ = send(&mut stream, &subscribe(filters, QoS::AtLeastOnce));
        let tick = Duration::from_millis(100);
        stream.set_read_timeout(Some(tick)).unwrap();
        let mut ticks = 0;
        let mut id = PacketId::FIRST;
        while !stop.load(Ordering::Relaxed) {
            let mut scratch = [0; 4096];
            match stream.read(&mut scratch) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => ticks += 1,
                Err(_) => break,
            }
            if ticks == 100 {
                ticks = 0;
                let ack = Packet::PubAck(Ack::new(id, ReasonCode::Success));
                let _ = send(&mut stream, &ack);
                id = id.next();
            }
        }
    }
}

/// Starts a reader that takes every message, until it is dropped.
async fn prompt_reader(broker: &Broker, id: &str) -> tokio::task::JoinSet<()> {
    let reader = broker.client(id).build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let mut task = tokio::task::JoinSet::new();
    task.spawn(async move {
        let _reader = reader;
        while messages.recv().await.is_some() {}
    });
    task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "its figures mean something in a release build on a quiet machine"]
async fn a_slow_reader_leaves_publishers_their_rate_and_others_their_delay() {
    for (policy, configuration) in [
        ("evict", ""),
        (
            "spill",
            "[store]\npath = \"FOLDER/store\"\ndurability = \"interval\"\n",
        ),
        ("drop-oldest", "[limits]\noverflow = \"drop-oldest\"\n"),
    ] {
        for offered in [None, Some(20_000)] {
            let broker = Broker::new("tcp", &format!("{configuration}{ANYBODY}"));
            let writer = broker.client("writer").build().await.unwrap();
            let _reader = prompt_reader(&broker, "reader").await;
            let bystander = broker.client("bystander").build().await.unwrap();
            let mut messages = bystander.subscribe("p", QoS::AtMostOnce).await.unwrap();
            let mut measure = async || {
                tokio::join!(
                    rate(&writer, PART, offered),
                    p99(&bystander, &mut messages, PART)
                )
            };
            // A prompt reader in place of the slow one.
            let prompt = prompt_reader(&broker, "slow").await;
            let _warm_up = measure().await;
            let before = measure().await;
            drop(prompt);
            let stop = Arc::new(AtomicBool::new(false));
            let slow = thread::spawn({
                let (clients, stop) = (RawClients::new(&broker.url), Arc::clone(&stop));
                move || slow_reader(&clients, &stop)
            });
            sleep(Duration::from_millis(500)).await;
            let beside = measure().await;
            stop.store(true, Ordering::Relaxed);
            slow.join().unwrap();
            println!(
                "{policy}, {}: publisher {:.0}/s beside a prompt reader, {:.0}/s beside a slow one \
                 ({:.0} %); p99 of others {:.2} ms, {:.2} ms ({:.2} times)",
                offered.map_or("as many as go".to_owned(), |rate| format!(
                    "{rate}/s offered"
                )),
                before.0,
                beside.0,
                100.0 * beside.0 / before.0,
                before.1,
                beside.1,
                beside.1 / before.1
            );
        }
    }
}

/// Reads until `stop`; returns the number of bytes.
fn read_all(mut stream: TcpStream, stop: &AtomicBool) -> usize {
    let mut scratch = vec![0; 1 << 16];
    let mut bytes = 0;
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut scratch) {
            Ok(0) | Err(_) => break,
            Ok(count) => bytes += count,
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "its figures mean something in a release build on a quiet machine"]
async fn all_retained_messages_for_many_leave_others_their_delay() {
    const TOPICS: usize = 50_000;
    let broker = Broker::new("tcp", ANYBODY);
    let clients = Arc::new(RawClients::new(&broker.url));
    let mut stream = clients.connect("writer", |_| {}).unwrap();
    for each in 0..TOPICS {
        let mut packet = publish(format!("site/{}/{each}", each % 100), vec![0; 20]);
        packet.retain = true;
        send(&mut stream, &Packet::Publish(packet)).unwrap();
    }
    let bystander = broker.client("bystander").build().await.unwrap();
    let mut messages = bystander.subscribe("p", QoS::AtMostOnce).await.unwrap();
    let before = p99(&bystander, &mut messages, PART).await;
    let stop = Arc::new(AtomicBool::new(false));
    let greedy: Vec<_> = (0..20)
        .map(|number| {
            let (clients, stop) = (Arc::clone(&clients), Arc::clone(&stop));
            thread::spawn(move || {
                let mut stream = clients.connect(&format!("g{number}"), |_| {}).unwrap();
                for _ in 0..30 {
                    let filters = std::iter::once("#".to_owned());
                    send(&mut stream, &subscribe(filters, QoS::AtMostOnce)).unwrap();
                }
                read_all(stream, &stop)
            })
        })
        .collect();
    let beside = p99(&bystander, &mut messages, PART).await;
    stop.store(true, Ordering::Relaxed);
    // The message wakes the readers, which then see `stop`.
    bystander
        .publish("last", "x", QoS::AtLeastOnce)
        .await
        .unwrap();
    let bytes: usize = greedy.into_iter().map(|one| one.join().unwrap()).sum();
    println!(
        "20 clients with 30 subscriptions to {TOPICS} retained messages took {} MB in {PART:?}; p99 of \
         others {before:.2} ms before, {beside:.2} ms beside ({:.2} times)",
        bytes / 1_000_000,
        beside / before
    );
}
