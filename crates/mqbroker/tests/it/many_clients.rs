//! Waiting times of operators and clients while many clients are connected: times of lists, and the
//! delay of a bystander's messages while pages are open, printed.
//!
//! `cargo test --release -p mqbroker --test it many_clients:: -- --ignored --nocapture` on a
//! machine that does nothing else; `MQ_CLIENTS=15000` is the default, half over TCP and half over
//! QUIC, and a third as many sessions have no connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mq_client::{Client, ClientBuilder, Connector, Outgoing, QoS, Subscription, Trust};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{interval, timeout},
};

use mq_testkit::free_port;

use crate::program::Broker;

/// Clients that connect at a time.
const AT_ONCE: usize = 100;

/// The duration of each part, in which delays are measured.
const PART: Duration = Duration::from_secs(20);

/// The number of parts, without pages and with them in turns.
const PARTS: usize = 6;

async fn get(to: SocketAddr, path: &str) -> (Duration, String) {
    let began = Instant::now();
    let mut stream = TcpStream::connect(to).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let time = began.elapsed();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (time, body.to_owned())
}

/// Connects that many clients, each with a subscription of its own.
async fn come(
    builder: impl Fn(&str) -> ClientBuilder,
    prefix: &str,
    count: usize,
    stays: bool,
) -> Vec<(Client, Subscription)> {
    let mut all = Vec::new();
    for first in (0..count).step_by(AT_ONCE) {
        let mut some = JoinSet::new();
        for number in first..count.min(first + AT_ONCE) {
            let name = format!("{prefix}-{number:05}");
            let builder = builder(&name);
            some.spawn(async move {
                let client = builder
                    .keep_alive(Duration::from_mins(10))
                    .session_expiry(Duration::from_hours(1))
                    .build()
                    .await
                    .unwrap();
                let filter = format!("plant/{name}/#");
                let messages = client.subscribe(filter.as_str(), QoS::AtLeastOnce).await;
                let messages = messages.unwrap();
                if !stays {
                    client.disconnect().await.unwrap();
                }
                (client, messages)
            });
        }
        let came = some.join_all().await;
        if stays {
            all.extend(came);
        }
    }
    all
}

/// Returns the delays of a message every 5 ms, sorted.
async fn delays(writer: &Client, messages: &mut Subscription, time: Duration) -> Vec<Duration> {
    let mut delays = Vec::new();
    let mut ticks = interval(Duration::from_millis(5));
    let began = Instant::now();
    while began.elapsed() < time {
        ticks.tick().await;
        let sent = Instant::now();
        writer
            .send(Outgoing::to("p", vec![7; 100]).unwrap())
            .await
            .unwrap();
        timeout(Duration::from_mins(1), messages.recv())
            .await
            .unwrap();
        delays.push(sent.elapsed());
    }
    delays.sort_unstable();
    delays
}

/// Sends the requests of an open page until `stop` is set: for one list every 2 s, and for events.
async fn page(to: SocketAddr, list: &str, stop: &AtomicBool) {
    let mut ticks = interval(Duration::from_secs(2));
    let events = tokio::spawn(async move { get(to, "/v1/events").await });
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        get(to, list).await;
    }
    events.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes and a machine that does nothing else"]
async fn lists_and_pages_of_many_clients() {
    let clients = std::env::var("MQ_CLIENTS").map_or(15_000, |count| count.parse().unwrap());
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let http: SocketAddr = format!("127.0.0.1:{}", free_port()).parse().unwrap();
    let quic = format!("quic://127.0.0.1:{}", free_port());
    let configuration = format!(
        "[auth]\nallow_anonymous = true\n[admin]\nhttp = \"{http}\"\nopen_on_loopback = true\n"
    );
    let broker = Broker::with_arguments("tcp", &configuration, &["--listen", &quic]);
    let connector = Connector::new(mq_client::ConnectOptions {
        trust: Trust::CaFile(broker.file("cert.pem")),
        ..broker.connect_options()
    })
    .unwrap();
    let over_quic = |id: &str| {
        let client = Client::builder(&quic).unwrap();
        client.client_id(id).unwrap().connector(connector.clone())
    };
    let over_tcp = |id: &str| broker.client(id);
    let began = Instant::now();
    let mut there = come(over_tcp, "tcp", clients / 2, true).await;
    there.extend(come(over_quic, "quic", clients - clients / 2, true).await);
    come(over_tcp, "away", clients / 3, false).await;
    let (resident, _) = broker.resident();
    println!(
        "{clients} clients and {} sessions away after {:.1} s; the broker has {} MB",
        clients / 3,
        began.elapsed().as_secs_f64(),
        resident / 1_000_000
    );
    let writer = broker.client("writer").build().await.unwrap();
    let mut messages = writer.subscribe("p", QoS::AtMostOnce).await.unwrap();

    get(http, "/v1/topics").await;
    for path in [
        "/v1/status",
        "/v1/clients?limit=100",
        "/v1/clients?limit=1000",
        "/v1/clients?limit=100&after=tcp-05000",
        "/v1/clients?match=-09",
        "/v1/clients/quic-00100",
        "/v1/sessions?limit=100",
        "/v1/subscriptions?limit=100",
        "/v1/subscriptions?match=quic-00100",
        "/v1/subscriptions?id=quic-00100",
        "/v1/topics",
        "/v1/refusals",
        "/metrics",
    ] {
        let mut times = Vec::new();
        let mut items = 0;
        for _ in 0..20 {
            let (time, body) = get(http, path).await;
            items = body.matches("client_id").count();
            times.push(time);
        }
        times.sort_unstable();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{path}: median {:.1} ms, worst of 20 {:.1} ms, {items} items",
            ms(times[10]),
            ms(times[19])
        );
    }

    for part in 0..PARTS {
        let stop = Arc::new(AtomicBool::new(false));
        let mut pages = JoinSet::new();
        let is_looked_at = part % 2 == 1;
        for list in ["clients", "clients?match=-09", "subscriptions", "topics"] {
            if is_looked_at {
                let stop = Arc::clone(&stop);
                pages.spawn(async move { page(http, &format!("/v1/{list}"), &stop).await });
            }
        }
        let delays = delays(&writer, &mut messages, PART).await;
        stop.store(true, Ordering::Relaxed);
        pages.join_all().await;
        let at = |share: usize| delays[delays.len() * share / 1000].as_secs_f64() * 1e3;
        println!(
            "{}: p50 {:.3}, p95 {:.3}, p99 {:.3}, p99.9 {:.3} ms of {} messages",
            if is_looked_at {
                "four pages open"
            } else {
                "no page"
            },
            at(500),
            at(950),
            at(990),
            at(999),
            delays.len()
        );
    }
    drop(there);
}
