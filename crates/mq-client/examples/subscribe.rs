//! Prints what is published: `subscribe URL FILTER`.
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use anyhow::Context;
use mq_client::{Client, QoS};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let mut arg = || args.next().context("usage: subscribe URL FILTER");
    let (url, filter) = (arg()?, arg()?);

    let client = Client::connect(&url).await?;
    let mut events = client.events();
    let mut messages = client.subscribe(filter, QoS::AtLeastOnce).await?;
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(message) => {
                    let text = String::from_utf8_lossy(&message.payload);
                    println!("{} {text}", message.topic);
                }
                None => return Err(client.closed().await.into()),
            },
            Some(event) = events.recv() => println!("-- {event:?}"),
        }
    }
}
