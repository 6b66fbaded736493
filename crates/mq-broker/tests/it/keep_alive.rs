//! The idle timeout of QUIC and clients that are silent for longer.

use std::time::Duration;

use mq_client::{Client, ConnectOptions, Connector, QoS, Trust};

/// A client stays connected whose keep-alive is off, and whose QUIC sends nothing by itself.
#[tokio::test]
async fn a_silent_client_over_quic_is_not_the_idle_timeouts() {
    let identity = mq_transport::ServerIdentity::self_signed().unwrap();
    let address: mq_transport::Address = "quic://127.0.0.1:0".parse().unwrap();
    let mut settings = mq_broker::Settings::new(vec![address]);
    settings.listen.identity = Some(identity);
    settings.listen.quic.idle_timeout = Some(Duration::from_millis(600));
    let broker = mq_broker::Broker::start(settings).await.unwrap();
    let mut options = ConnectOptions {
        trust: Trust::Insecure,
        ..ConnectOptions::default()
    };
    // Another stack may send no keep-alive packets of QUIC, unlike ours.
    options.quic.keep_alive_interval = Some(Duration::from_hours(1));
    let client = Client::builder(&broker.addresses()[0].to_string()).unwrap();
    let client = client
        .connector(Connector::new(options).unwrap())
        .keep_alive(Duration::ZERO);
    let client = client.build().await.unwrap();
    let mut events = client.events();
    let event = tokio::time::timeout(Duration::from_secs(2), events.recv()).await;
    assert!(event.is_err(), "{event:?}");
    client.publish("t", "x", QoS::AtLeastOnce).await.unwrap();
    client.disconnect().await.unwrap();
    broker.shutdown().await;
}
