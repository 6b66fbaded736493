//! Many clients of a broker that do nothing but connect: `crowd idle URL COUNT KEEP-ALIVE [CA-FILE]`,
//! `crowd return URL COUNT KEEP-ALIVE [CA-FILE]` or `crowd dial URL SECONDS AT-ONCE [CA-FILE]`.
//!
//! `idle` holds COUNT connections with a keep-alive in seconds. `return` does so as well, and its clients connect again
//! by themselves, with the backoff that clients have by default. `dial` makes connections for so many seconds, AT-ONCE
//! of them at a time: each has a full handshake, CONNECT, CONNACK and DISCONNECT. All first make a few connections
//! that are not measured, print `warm`, and begin at a line on standard input. `idle` and `return` then print
//! `connected`. `idle` leaves at the next line; `return` answers each further line with JSON, and leaves at the end of
//! its input. `dial` prints JSON.
#![expect(clippy::print_stdout, reason = "an example says what it found")]

use std::{
    io::{Error as IoError, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mq_client::{
    CipherSuite, Client, ConnectOptions, Connector, CryptoOptions, Error, Event, Reconnect,
    TlsVersion, Trust, Version,
};
use tokio::task::JoinSet;

/// Clients that share a UDP socket over QUIC: a socket each would take more memory than the clients.
const ON_ONE_SOCKET: u64 = 16;

/// Clients of `idle` that connect at a time.
const AT_ONCE: usize = 32;

/// Tries of a client of `idle`.
const TRIES: usize = 5;

/// Connections before the first that is measured.
const WARM_UP: u64 = 20;

/// Connections of `dial` at most. Each leaves a TCP port that cannot be used again for a while, of 28,000.
const MOST: u64 = 10_000;

const USAGE: &str =
    "usage: crowd ((idle | return) URL COUNT KEEP-ALIVE | dial URL SECONDS AT-ONCE) [CA-FILE]";

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (what, url, first, second, ca) = match arguments.as_slice() {
        [what, url, first, second] => (what, url, first, second, None),
        [what, url, first, second, ca] => (what, url, first, second, Some(ca)),
        _ => return Err(USAGE.into()),
    };
    let (first, second): (u64, u64) = (first.parse()?, second.parse()?);
    let mut crowd = Arc::new(Crowd {
        url: url.clone(),
        trust: ca.map_or(Trust::System, Trust::ca_file),
        keep_alive: Duration::from_secs(if what == "dial" { 60 } else { second }),
        reconnect: Reconnect::never(),
        number: AtomicU64::new(0),
    });
    let connector = crowd.connector()?;
    for _ in 0..WARM_UP {
        crowd.connect(&connector).await?.disconnect().await?;
    }
    said("warm")?;
    heard().await?;
    match what.as_str() {
        "idle" => {
            let clients = idle(&crowd, first).await?;
            said("connected")?;
            heard().await?;
            drop(clients);
        }
        "return" => {
            if let Some(crowd) = Arc::get_mut(&mut crowd) {
                crowd.reconnect = Reconnect::default();
            }
            let clients = idle(&crowd, first).await?.into_iter();
            let clients: Vec<_> = clients.map(Returning::watch).collect();
            said("connected")?;
            while heard().await? > 0 {
                said(&counts(&clients))?;
            }
        }
        "dial" => {
            let began = Instant::now();
            let time = Duration::from_secs(first);
            let (connections, failed) = dial(&crowd, time, second.max(1)).await?;
            let seconds = began.elapsed().as_secs_f64();
            said(&format!(
                "{{\"connections\": {connections}, \"failed\": {failed}, \"seconds\": {seconds:.6}}}"
            ))?;
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

fn said(line: &str) -> Result<(), IoError> {
    println!("{line}");
    std::io::stdout().flush()
}

/// Waits for a line of standard input, and returns its length: 0 at the end.
async fn heard() -> Result<usize, Failed> {
    let line = || std::io::stdin().read_line(&mut String::new());
    Ok(tokio::task::spawn_blocking(line).await??)
}

/// Client that connects again by itself, with what has happened to it.
struct Returning {
    client: Client,
    seen: Arc<Seen>,
}

/// Counters of one client.
#[derive(Default)]
struct Seen {
    /// Connections that were lost.
    lost: AtomicU64,
    /// Attempts that failed.
    failed: AtomicU64,
    /// Connections that were made after the first.
    back: AtomicU64,
}

impl Returning {
    fn watch(client: Client) -> Self {
        let seen = Arc::<Seen>::default();
        let (mut events, counters) = (client.events(), Arc::clone(&seen));
        tokio::spawn(async move {
            let mut is_up = true;
            while let Some(event) = events.recv().await {
                let counter = match event {
                    Event::Connected(_) => &counters.back,
                    Event::Disconnected { .. } if is_up => &counters.lost,
                    Event::Disconnected { .. } => &counters.failed,
                    _ => continue,
                };
                is_up = matches!(event, Event::Connected(_));
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { client, seen }
    }
}

/// Returns, as JSON, how many clients are connected, have lost a connection, and have made one again, and how many of their
/// attempts failed.
fn counts(clients: &[Returning]) -> String {
    let count = |is_one: fn(&Returning) -> bool| clients.iter().filter(|one| is_one(one)).count();
    let connected = count(|one| one.client.is_connected());
    let lost = count(|one| one.seen.lost.load(Ordering::Relaxed) > 0);
    let back = count(|one| one.seen.back.load(Ordering::Relaxed) > 0);
    let failed = clients.iter().map(|one| &one.seen.failed);
    let failed: u64 = failed.map(|failed| failed.load(Ordering::Relaxed)).sum();
    format!(
        "{{\"connected\": {connected}, \"lost\": {lost}, \"back\": {back}, \"failed\": {failed}}}"
    )
}

struct Crowd {
    url: String,
    trust: Trust,
    keep_alive: Duration,
    reconnect: Reconnect,
    /// Number of the next client.
    number: AtomicU64,
}

impl Crowd {
    /// Makes a connector that resumes nothing, with the same cipher for every broker.
    fn connector(&self) -> Result<Connector, Error> {
        let crypto = CryptoOptions {
            cipher_suites: vec![CipherSuite::Aes128Gcm],
            min_version: TlsVersion::Tls13,
            ..CryptoOptions::default()
        };
        let options = ConnectOptions::new()
            .trust(self.trust.clone())
            .crypto(crypto)
            .resumption(false);
        Ok(Connector::new(options)?)
    }

    /// Connects a client.
    async fn connect(&self, connector: &Connector) -> Result<Client, Error> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        Client::builder(&self.url)?
            .connector(connector.clone())
            .version(Version::V3_1_1)
            .client_id(format!("crowd-{number}"))?
            .keep_alive(self.keep_alive)
            .connect_timeout(Duration::from_secs(20))
            .reconnect(self.reconnect)
            .build()
            .await
    }

    /// Connects as [`connect`](Self::connect) does; a client that is refused tries again, as devices do.
    async fn connect_at_last(&self, connector: &Connector) -> Result<Client, Error> {
        for _ in 1..TRIES {
            if let Ok(client) = self.connect(connector).await {
                return Ok(client);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.connect(connector).await
    }
}

/// Connects `count` clients, and returns them.
async fn idle(crowd: &Arc<Crowd>, count: u64) -> Result<Vec<Client>, Failed> {
    let mut clients = Vec::new();
    let mut dials = JoinSet::new();
    let mut connector = crowd.connector()?;
    for number in 0..count {
        if number % ON_ONE_SOCKET == 0 {
            connector = crowd.connector()?;
        }
        if dials.len() == AT_ONCE
            && let Some(dialled) = dials.join_next().await
        {
            clients.push(dialled??);
        }
        let (crowd, connector) = (Arc::clone(crowd), connector.clone());
        dials.spawn(async move { crowd.connect_at_last(&connector).await });
    }
    while let Some(dialled) = dials.join_next().await {
        clients.push(dialled??);
    }
    Ok(clients)
}

/// Dials for that time, and returns the number of connections that were made, and of those that failed.
async fn dial(crowd: &Arc<Crowd>, time: Duration, at_once: u64) -> Result<(u64, u64), Failed> {
    let mut diallers = JoinSet::new();
    let end = Instant::now() + time;
    for _ in 0..at_once {
        let crowd = Arc::clone(crowd);
        let connector = crowd.connector()?;
        diallers.spawn(async move {
            let (mut made, mut failed) = (0, 0);
            while Instant::now() < end && crowd.number.load(Ordering::Relaxed) < MOST {
                match crowd.connect(&connector).await {
                    Ok(client) if client.disconnect().await.is_ok() => made += 1,
                    _ => failed += 1,
                }
            }
            (made, failed)
        });
    }
    let counts = diallers.join_all().await;
    let both = counts.into_iter().reduce(|a, b| (a.0 + b.0, a.1 + b.1));
    Ok(both.unwrap_or_default())
}
