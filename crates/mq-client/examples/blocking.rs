//! Subscribes, publishes and reads without async: `blocking URL [CA-FILE]`.
//!
//! `cargo run -p mq-client --features blocking --example blocking -- quic://127.0.0.1:14567 ca.pem`
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use anyhow::Context;
use mq_client::{Client, ConnectOptions, Connector, QoS, Trust};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args.next().context("usage: blocking URL [CA-FILE]")?;
    let trust = args.next().map_or(Trust::System, Trust::ca_file);
    let connector = Connector::new(ConnectOptions::new().trust(trust))?;

    let client = Client::builder(&url)?
        .connector(connector)
        .build_blocking()?;
    let messages = client.subscribe("example/count", QoS::AtLeastOnce)?;
    for n in 1..=3 {
        client.publish("example/count", n.to_string(), QoS::AtLeastOnce)?;
    }
    for message in messages.take(3) {
        println!("{}: {}", message.topic, message.text()?);
    }
    client.disconnect()?;
    Ok(())
}
