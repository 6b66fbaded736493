//! Connects twice, the second time with 0-RTT: `zero_rtt_reconnect URL [CA-FILE]`.
//!
//! The message is part of the first flight: with a ticket and early data it is acknowledged one
//! round trip after the client began to connect.
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use anyhow::Context;
use mq_client::{Client, ConnectOptions, Connector, Outgoing, QoS, Trust};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args
        .next()
        .context("usage: zero_rtt_reconnect URL [CA-FILE]")?;
    let trust = args.next().map_or(Trust::System, Trust::ca_file);
    // Both clients have a clone of it: it keeps the tickets.
    let connector = Connector::new(ConnectOptions::new().trust(trust).early_data(true))?;

    for attempt in ["first", "second"] {
        let mut builder = Client::builder(&url)?.connector(connector.clone());
        let reading = Outgoing::to("example/reading", "21.5")?.qos(QoS::AtLeastOnce);
        let mut receipt = builder.publish_early(reading)?;
        let client = builder.start()?;
        let times = client.connected().await?;
        receipt.acknowledged().await?;
        println!(
            "{attempt}: link after {:?}, CONNACK after {:?}, acknowledged after {:?}; handshake {:?}, early data {:?}",
            times.link_at - times.dialled_at,
            times.connack_at - times.dialled_at,
            times.dialled_at.elapsed(),
            times.handshake,
            times.early_data,
        );
        client.disconnect().await?;
    }
    Ok(())
}
