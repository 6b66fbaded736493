//! Publishes one message at QoS 1: `publish URL TOPIC TEXT`.
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use anyhow::Context;
use mq_client::{Client, QoS};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let mut arg = || args.next().context("usage: publish URL TOPIC TEXT");
    let (url, topic, text) = (arg()?, arg()?, arg()?);

    let client = Client::connect(&url).await?;
    client.publish(topic, text, QoS::AtLeastOnce).await?;
    client.disconnect().await?;
    println!("acknowledged");
    Ok(())
}
