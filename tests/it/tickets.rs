//! Tickets across a broker's restart: returning clients resume, and nothing can be replayed.

use std::{path::Path, time::Duration};

use mq_client::{
    Client, Connector, EarlyData, HandshakeKind, Outgoing, QoS, Subscription, TopicName,
};
use mq_testkit::{Scheme, TestBroker, UdpProxy};
use mq_transport::Address;
use tokio::time::timeout;

use crate::zero_rtt::{socket_address, through};

const SOON: Duration = Duration::from_secs(20);

/// Settings with that ticket file.
fn keeping(path: &Path) -> impl Fn(&mut mq_broker::Settings) {
    let path = path.to_owned();
    move |settings| settings.ticket_file = Some(path.clone())
}

/// Publishes at once, as a client that has been here before; waits until it is acknowledged.
async fn publish(url: &str, connector: &Connector, payload: &'static str) -> Client {
    let client = Client::builder(url)
        .unwrap()
        .connector(connector.clone())
        .start()
        .unwrap();
    let message = Outgoing::new(TopicName::new("t").unwrap(), payload)
        .qos(QoS::AtLeastOnce)
        .early(true);
    let mut receipt = client.send(message).await.unwrap();
    timeout(SOON, receipt.acknowledged())
        .await
        .unwrap()
        .unwrap();
    client
}

async fn handshake(client: &Client) -> (HandshakeKind, EarlyData) {
    let stats = client.stats().await.unwrap();
    (stats.handshake, stats.early_data)
}

async fn subscriber(broker: &TestBroker) -> (Client, Subscription) {
    let client = broker
        .client(Scheme::Tcp, "listener")
        .build()
        .await
        .unwrap();
    let messages = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    (client, messages)
}

async fn next(messages: &mut Subscription) -> bytes::Bytes {
    let message = timeout(SOON, messages.recv()).await.unwrap();
    message.unwrap().payload
}

async fn nothing_more(messages: &mut Subscription) {
    let more = timeout(Duration::from_millis(400), messages.recv()).await;
    assert!(more.is_err(), "it was taken again: {more:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_back_after_a_restart_resumes_with_early_data() {
    for scheme in [Scheme::Quic, Scheme::Tls] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tickets");
        let mut broker = TestBroker::start_with(keeping(&file)).await;
        let url = broker.address(scheme).to_string();
        let connector = broker.connector(true);
        let client = publish(&url, &connector, "first").await;
        let fresh = handshake(&client).await;
        assert_eq!(fresh, (HandshakeKind::Full, EarlyData::NotOffered));
        client.disconnect().await.unwrap();
        // Twice, as the tickets of the second broker have to last as well.
        for _ in 0..2 {
            broker = broker.restart_with(keeping(&file)).await;
            assert!(!file.exists(), "it could be read twice");
            let (listener, mut messages) = subscriber(&broker).await;
            let client = publish(&url, &connector, "early").await;
            assert_eq!(
                handshake(&client).await,
                (HandshakeKind::Resumed, EarlyData::Accepted),
                "{scheme}"
            );
            assert_eq!(next(&mut messages).await, "early");
            client.disconnect().await.unwrap();
            nothing_more(&mut messages).await;
            // It would come back to the next broker as well, and the next listener end.
            listener.disconnect().await.unwrap();
        }
        broker.shutdown().await;
        assert!(file.exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_cannot_start_leaves_the_tickets_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tickets");
    let broker = TestBroker::start_with(keeping(&file)).await;
    let url = broker.address(Scheme::Quic).to_string();
    let client = publish(&url, &broker.connector(true), "first").await;
    client.disconnect().await.unwrap();
    broker.shutdown().await;
    let kept = std::fs::read(&file).unwrap();

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut settings = mq_broker::Settings::new(vec![Address::new(Scheme::Tcp, "127.0.0.1", port)]);
    keeping(&file)(&mut settings);
    mq_broker::Broker::start(settings).await.unwrap_err();
    assert_eq!(std::fs::read(&file).unwrap(), kept);
}

/// The protection: a ticket leaves the file before a client can use it, and is in the next file only if no
/// client has used it. There is no protection from an attacker who can write the broker's files: the last
/// part shows this, and also that the replay is a real one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_flight_that_was_taken_cannot_be_replayed_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tickets");
    let broker = TestBroker::start_with(keeping(&file)).await;
    let target = socket_address(&broker.address(Scheme::Quic));
    let proxy = UdpProxy::start(target, Duration::from_millis(5))
        .await
        .unwrap();
    let url = through(Scheme::Quic, proxy.address());
    let connector = broker.connector(true);
    let client = publish(&url, &connector, "first").await;
    client.disconnect().await.unwrap();

    // An attacker copies the file while no broker runs.
    let mut copy = Vec::new();
    let read = || copy = std::fs::read(&file).unwrap();
    let broker = broker.restart_after(read, keeping(&file)).await;
    let (listener, mut messages) = subscriber(&broker).await;
    let before = proxy.recorded().len();
    let client = publish(&url, &connector, "once").await;
    assert_eq!(handshake(&client).await.1, EarlyData::Accepted);
    assert_eq!(next(&mut messages).await, "once");
    client.disconnect().await.unwrap();
    let captured = proxy.recorded().split_off(before);
    let replay = async || {
        // From an address that is new to the broker.
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for (_, datagram) in &captured {
            socket.send_to(datagram, target).await.unwrap();
        }
    };
    replay().await;
    nothing_more(&mut messages).await;

    // A running broker does not read a copy that is put back, and replaces it when it ends.
    std::fs::write(&file, &copy).unwrap();
    replay().await;
    nothing_more(&mut messages).await;
    listener.disconnect().await.unwrap();
    let broker = broker.restart_with(keeping(&file)).await;
    let (listener, mut messages) = subscriber(&broker).await;
    replay().await;
    nothing_more(&mut messages).await;

    // The limit: the next broker takes a copy in the place of its file for its own.
    listener.disconnect().await.unwrap();
    let put_back = || std::fs::write(&file, &copy).unwrap();
    let broker = broker.restart_after(put_back, keeping(&file)).await;
    let (_listener, mut messages) = subscriber(&broker).await;
    replay().await;
    assert_eq!(next(&mut messages).await, "once");
}
