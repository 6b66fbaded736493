//! Prints what is published: `subscribe URL FILTER [CA-FILE]`.
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use anyhow::Context;
use mq_client::{Client, ConnectOptions, Connector, QoS, Trust};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let mut arg = || args.next().context("usage: subscribe URL FILTER [CA-FILE]");
    let (url, filter) = (arg()?, arg()?);
    let trust = args.next().map_or(Trust::System, Trust::ca_file);
    let connector = Connector::new(ConnectOptions::new().trust(trust))?;

    let client = Client::builder(&url)?.connector(connector).build().await?;
    let mut events = client.events();
    let mut messages = client.subscribe(filter, QoS::AtLeastOnce).await?;
    println!("-- subscribed");
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
