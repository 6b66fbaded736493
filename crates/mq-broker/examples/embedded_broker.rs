//! A broker within a program, as a library: it listens over TCP and QUIC, and a client publishes to
//! another: `cargo run -p mq-broker --example embedded_broker`.
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use std::error::Error;

use mq_broker::{Broker, Settings};
use mq_client::{Client, ConnectOptions, Connector, QoS, Trust};
use mq_transport::ServerIdentity;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Port 0 has the system choose one.
    let listeners = vec!["tcp://127.0.0.1:0".parse()?, "quic://127.0.0.1:0".parse()?];
    let mut settings = Settings::new(listeners);
    let identity = ServerIdentity::self_signed()?;
    let trust = Trust::Fingerprint(identity.fingerprint());
    settings.listen.identity = Some(identity);
    settings.quotas.mailbox.messages = 1_000;
    let broker = Broker::start(settings).await?;

    let connector = Connector::new(ConnectOptions::new().trust(trust))?;
    let connect = async |index: usize| {
        let url = broker.addresses()[index].to_string();
        let builder = Client::builder(&url)?;
        builder.connector(connector.clone()).build().await
    };
    let (over_tcp, over_quic) = (connect(0).await?, connect(1).await?);
    let mut messages = over_quic.subscribe("plant/#", QoS::AtLeastOnce).await?;
    over_tcp
        .publish("plant/7", "21.5", QoS::AtLeastOnce)
        .await?;
    let message = messages.recv().await.ok_or("the client has ended")?;
    println!("{}: {}", message.topic, message.text()?);
    println!("{} clients", broker.metrics().connections.get());

    over_tcp.disconnect().await?;
    over_quic.disconnect().await?;
    // Tells clients that are still there, and waits for what is under way.
    broker.shutdown().await;
    println!("shut down");
    Ok(())
}
