//! Publishes one message at QoS 1: `publish URL TOPIC TEXT [CA-FILE]`.
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use anyhow::Context;
use mq_client::{Client, ConnectOptions, Connector, QoS, Trust};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let mut arg = || {
        args.next()
            .context("usage: publish URL TOPIC TEXT [CA-FILE]")
    };
    let (url, topic, text) = (arg()?, arg()?, arg()?);
    let trust = args.next().map_or(Trust::System, Trust::ca_file);
    let connector = Connector::new(ConnectOptions::new().trust(trust))?;

    let client = Client::builder(&url)?.connector(connector).build().await?;
    client.publish(topic, text, QoS::AtLeastOnce).await?;
    client.disconnect().await?;
    println!("acknowledged");
    Ok(())
}
