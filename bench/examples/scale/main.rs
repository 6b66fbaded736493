//! The clients of `bench/scale`, each part a process of its own:
//!
//! - `scale crowd URL CLIENTS KEEP-ALIVE-S FILTERS [CA-FILE]`: devices that connect, make FILTERS subscriptions each and
//!   wait. Its orders are `come`, `match`, `ping SECONDS` and `leave`.
//! - `scale bystander URL TOPIC INTERVAL-MS [CA-FILE]`: a publisher and a subscriber. A line is a mark; the end of
//!   the input ends it, and it says the delay of each message.
//! - `scale retain URL TOPICS [CA-FILE]`: a publisher of retained messages. Its orders are `keep` and `clear`.
//! - `scale read URL FILTER MESSAGES BYTES-A-SECOND [CA-FILE]`: a subscriber that reads so fast, or with 0 as fast as it
//!   can, until it has so many. Its orders are `go`, and `stop` for one that is to end early.
//!
//! Orders are lines of standard input. Each part says `ready`, and answers each order with a line of JSON. It ends with
//! its input.
#![expect(clippy::print_stdout, reason = "an example says what it found")]

mod bystander;
mod crowd;
mod device;
mod retained;

use std::io::Write as _;

use mq_client::{CipherSuite, ConnectOptions, Connector, CryptoOptions, TlsVersion, Trust};
use tokio::sync::mpsc;

type Failed = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: scale (crowd URL CLIENTS KEEP-ALIVE-S FILTERS | bystander URL TOPIC INTERVAL-MS \
                     | retain URL TOPICS | read URL FILTER MESSAGES BYTES-A-SECOND) [CA-FILE]";

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let orders = Orders::of_stdin();
    match arguments.as_slice() {
        ["crowd", url, clients, keep_alive, filters, ca @ ..] => {
            let keep_alive = keep_alive.parse()?;
            let plan = crowd::Plan::new(url, clients.parse()?, keep_alive, filters.parse()?);
            crowd::run(plan?, Dialler::new(ca), orders).await
        }
        ["bystander", url, topic, interval, ca @ ..] => {
            let connector = Dialler::new(ca).connector(None)?;
            bystander::run(url, topic, interval.parse()?, connector, orders).await
        }
        ["retain", url, topics, ca @ ..] => {
            retained::keep(url, topics.parse()?, Dialler::new(ca), orders).await
        }
        ["read", url, filter, messages, rate, ca @ ..] => {
            let wanted = retained::Wanted::new(filter, messages.parse()?, rate.parse()?);
            retained::read(url, wanted?, Dialler::new(ca), orders).await
        }
        _ => Err(USAGE.into()),
    }
}

/// Says a line.
fn say(line: impl std::fmt::Display) -> Result<(), Failed> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

/// The lines of standard input.
struct Orders(mpsc::UnboundedReceiver<String>);

impl Orders {
    fn of_stdin() -> Self {
        let (sender, orders) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let lines = std::io::stdin().lines().map_while(Result::ok);
            for line in lines {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(orders)
    }

    /// Waits for the next order; `None` at the end. Cancel-safe.
    async fn next(&mut self) -> Option<String> {
        self.0.recv().await
    }

    /// Waits for that order.
    async fn expect(&mut self, wanted: &str) -> Result<(), Failed> {
        match self.next().await {
            Some(order) if order == wanted => Ok(()),
            order => Err(format!("{order:?} is not the order `{wanted}`").into()),
        }
    }
}

/// Makes connectors that resume nothing, with the same cipher suite as `crowd` has.
struct Dialler {
    trust: Trust,
}

impl Dialler {
    fn new(ca: &[&str]) -> Self {
        let trust = ca.first().map_or(Trust::System, Trust::ca_file);
        Self { trust }
    }

    /// Makes a connector, whose connections share a UDP socket.
    fn connector(&self, receive_buffer: Option<usize>) -> Result<Connector, Failed> {
        let crypto = CryptoOptions {
            cipher_suites: vec![CipherSuite::Aes128Gcm],
            min_version: TlsVersion::Tls13,
            ..CryptoOptions::default()
        };
        let mut options = ConnectOptions::new()
            .trust(self.trust.clone())
            .crypto(crypto)
            .resumption(false);
        options.socket.receive_buffer = receive_buffer;
        Ok(Connector::new(options)?)
    }
}
