//! 0-RTT is real on both ends: measured in round trips behind proxies with a known delay.

use std::{net::SocketAddr, time::Duration};

use mq_client::{
    Client, Connector, EarlyData, HandshakeKind, Outgoing, QoS, Subscription, TopicName,
};
use mq_testkit::{Scheme, TcpProxy, TestBroker, UdpProxy};
use mq_transport::Address;
use tokio::time::{Instant, timeout};

/// Publisher to broker, one way. Large against what a busy machine adds.
const D_PUB: Duration = Duration::from_millis(150);
/// Broker to subscriber, one way.
const D_SUB: Duration = Duration::from_millis(100);
/// Processing on a busy machine with two cores; less than half of what one more round trip costs.
const SLACK: Duration = Duration::from_millis(120);

pub(crate) fn socket_address(address: &Address) -> SocketAddr {
    format!("{}:{}", address.host, address.port)
        .parse()
        .unwrap()
}

pub(crate) fn through(scheme: Scheme, proxy: SocketAddr) -> String {
    Address::new(scheme, proxy.ip().to_string(), proxy.port()).to_string()
}

/// Connects a subscriber behind its own delay.
async fn subscriber(broker: &TestBroker) -> (Client, Subscription, UdpProxy) {
    let target = socket_address(&broker.address(Scheme::Quic));
    let proxy = UdpProxy::start(target, D_SUB).await.unwrap();
    let client = Client::builder(&through(Scheme::Quic, proxy.address()))
        .unwrap()
        .connector(broker.connector(false))
        .build()
        .await
        .unwrap();
    let messages = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    (client, messages, proxy)
}

/// Connects once to get tickets: a publisher that has been here before.
pub(crate) async fn get_tickets(url: &str, connector: &Connector) {
    let client = Client::builder(url)
        .unwrap()
        .connector(connector.clone())
        .build()
        .await
        .unwrap();
    // One more round trip brings the tickets.
    client
        .publish("elsewhere", "", QoS::AtLeastOnce)
        .await
        .unwrap();
    client.disconnect().await.unwrap();
}

fn message(payload: &'static str) -> Outgoing {
    Outgoing::new(TopicName::new("t").unwrap(), payload)
        .qos(QoS::AtLeastOnce)
        .early(true)
}

/// Dials, publishes at once, and returns the client and the time from the dial until the
/// subscriber had the message.
async fn publish_at_once(
    url: &str,
    connector: &Connector,
    payload: &'static str,
    messages: &mut Subscription,
) -> (Client, Duration) {
    let dialled = Instant::now();
    let client = Client::builder(url)
        .unwrap()
        .connector(connector.clone())
        .start()
        .unwrap();
    let mut receipt = client.send(message(payload)).await.unwrap();
    let incoming = timeout(Duration::from_secs(20), messages.recv())
        .await
        .unwrap()
        .unwrap();
    let took = dialled.elapsed();
    assert_eq!(incoming.payload, payload);
    receipt.acknowledged().await.unwrap();
    (client, took)
}

async fn nothing_more(messages: &mut Subscription) {
    let more = timeout(4 * D_PUB, messages.recv()).await;
    assert!(more.is_err(), "it arrived again: {more:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_publish_over_quic_takes_one_way_to_the_broker_and_one_to_the_subscriber() {
    let broker = TestBroker::start().await;
    let (_subscriber, mut messages, _proxy) = subscriber(&broker).await;
    let target = socket_address(&broker.address(Scheme::Quic));
    let proxy = UdpProxy::start(target, D_PUB).await.unwrap();
    let url = through(Scheme::Quic, proxy.address());
    let connector = broker.connector(true);
    get_tickets(&url, &connector).await;

    let (client, took) = publish_at_once(&url, &connector, "early", &mut messages).await;
    let stats = client.stats().await.unwrap();
    let times = client.connect_times().unwrap();
    let connack = times.connack_at.duration_since(times.dialled_at);
    println!("PUBLISH after {took:?}, CONNACK after {connack:?}");
    assert_eq!(stats.early_data, EarlyData::Accepted);
    assert_eq!(stats.handshake, HandshakeKind::Resumed);
    assert!(took >= D_PUB + D_SUB, "{took:?}");
    assert!(took < D_PUB + D_SUB + SLACK, "{took:?}");
    assert!(connack >= 2 * D_PUB, "{connack:?}");
    assert!(connack < 2 * D_PUB + SLACK, "{connack:?}");
    client.disconnect().await.unwrap();
    nothing_more(&mut messages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_publish_over_tls_waits_for_no_handshake_of_tls() {
    let broker = TestBroker::start().await;
    let (_subscriber, mut messages, _proxy) = subscriber(&broker).await;
    let target = socket_address(&broker.address(Scheme::Tls));
    // This proxy answers TCP's own handshake at once; what is left is TLS.
    let proxy = TcpProxy::start(target, D_PUB).await.unwrap();
    let url = through(Scheme::Tls, proxy.address());
    let connector = broker.connector(true);
    get_tickets(&url, &connector).await;

    let (client, took) = publish_at_once(&url, &connector, "early", &mut messages).await;
    let stats = client.stats().await.unwrap();
    let times = client.connect_times().unwrap();
    let connack = times.connack_at.duration_since(times.dialled_at);
    println!("PUBLISH after {took:?}, CONNACK after {connack:?}");
    assert_eq!(stats.early_data, EarlyData::Accepted);
    assert!(
        took >= D_PUB + D_SUB && took < D_PUB + D_SUB + SLACK,
        "{took:?}"
    );
    assert!(
        connack >= 2 * D_PUB && connack < 2 * D_PUB + SLACK,
        "{connack:?}"
    );
    client.disconnect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_copy_of_the_datagrams_delivers_nothing_twice() {
    let broker = TestBroker::start().await;
    let (_subscriber, mut messages, _proxy) = subscriber(&broker).await;
    let target = socket_address(&broker.address(Scheme::Quic));
    let proxy = UdpProxy::start(target, Duration::from_millis(20))
        .await
        .unwrap();
    let url = through(Scheme::Quic, proxy.address());
    let connector = broker.connector(true);
    get_tickets(&url, &connector).await;

    let before = proxy.recorded().len();
    let (client, _) = publish_at_once(&url, &connector, "once", &mut messages).await;
    assert_eq!(
        client.stats().await.unwrap().early_data,
        EarlyData::Accepted
    );
    client.disconnect().await.unwrap();
    let captured = proxy.recorded().split_off(before);
    assert!(!captured.is_empty());
    for _ in 0..3 {
        // Each time from an address that the broker has not seen.
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for (_, datagram) in &captured {
            socket.send_to(datagram, target).await.unwrap();
        }
    }
    println!("{} datagrams replayed three times", captured.len());
    nothing_more(&mut messages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_whose_early_data_a_restarted_broker_rejects_arrives_once() {
    for scheme in [Scheme::Quic, Scheme::Tls] {
        let broker = TestBroker::start().await;
        let url = broker.address(scheme).to_string();
        // The certificate file outlives the broker that made it, inside the connector.
        let connector = broker.connector(true);
        get_tickets(&url, &connector).await;
        let broker = broker.restart().await;
        let (_subscriber, mut messages, _proxy) = subscriber(&broker).await;
        let (client, _) = publish_at_once(&url, &connector, "again", &mut messages).await;
        assert_eq!(
            client.stats().await.unwrap().early_data,
            EarlyData::Rejected,
            "{scheme}"
        );
        client.disconnect().await.unwrap();
        nothing_more(&mut messages).await;
    }
}
