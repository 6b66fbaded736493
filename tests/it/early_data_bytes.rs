//! Bytes of early data that a resumed QUIC client sends again, counted in its datagrams.
//!
//! The kind and the length of a packet with a long header are not encrypted (RFC 9000 §17.2), and a packet with a short
//! header fills the rest of its datagram. A PUBLISH that is much larger than all else of a connection so shows how often
//! it was sent, and in packets of which kind.

use std::time::Duration;

use mq_client::{Client, ConnectOptions, Connector, EarlyData, Outgoing, QoS, TopicName};
use mq_testkit::{Scheme, TestBroker, UdpProxy};
use tokio::time::timeout;

use crate::zero_rtt::{get_tickets, socket_address, through};

/// Bytes of the payload: half of the congestion window that a connection begins with.
const PAYLOAD: usize = 6_000;
/// Most bytes of all packets without the payload: handshake, CONNECT, acknowledgements, DISCONNECT, and the padding of
/// two datagrams.
const REST: usize = 2_500;
const ONE_WAY: Duration = Duration::from_millis(20);

/// Bytes of a client's packets, by kind.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    early: usize,
    one_rtt: usize,
}

impl Bytes {
    /// Adds the packets of a datagram.
    fn add(&mut self, datagram: &[u8]) {
        let mut rest = datagram;
        while let Some(&first) = rest.first() {
            if first & 0x80 == 0 {
                self.one_rtt += rest.len();
                return;
            }
            // Version, and both connection identifiers.
            let destination = 6 + usize::from(rest[5]);
            let mut at = destination + 1 + usize::from(rest[destination]);
            let kind = (first >> 4) & 3;
            if kind == 0 {
                let (token, behind) = variable_length(rest, at);
                at = behind + token;
            }
            let (length, behind) = variable_length(rest, at);
            let (packet, others) = rest.split_at(behind + length);
            if kind == 1 {
                self.early += packet.len();
            }
            rest = others;
        }
    }
}

/// Reads an integer of variable length (RFC 9000 §16); returns it with the position behind it.
fn variable_length(bytes: &[u8], at: usize) -> (usize, usize) {
    let length = 1 << (bytes[at] >> 6);
    let value = bytes[at + 1..at + length]
        .iter()
        .fold(usize::from(bytes[at] & 0x3f), |value, byte| {
            value << 8 | usize::from(*byte)
        });
    (value, at + length)
}

/// Loss of a client's datagrams from the dial.
const NO_LOSS: Duration = Duration::ZERO;

/// Publishes once as early data of a resumed connection; `restarted` brokers reject it. The first datagrams are lost for
/// a time. Returns the outcome of early data, and the bytes that the client sent.
async fn publish(restarted: bool, loss: Duration) -> (EarlyData, Bytes) {
    let mut broker = TestBroker::start().await;
    let target = socket_address(&broker.address(Scheme::Quic));
    let proxy = UdpProxy::start(target, ONE_WAY).await.unwrap();
    let url = through(Scheme::Quic, proxy.address());
    let mut options = ConnectOptions {
        early_data: true,
        ..broker.connect_options()
    };
    // Its probes are as large as the payload's packets.
    options.quic.mtu_discovery = false;
    let connector = Connector::new(options).unwrap();
    get_tickets(&url, &connector).await;
    if restarted {
        broker = broker.restart().await;
    }
    let subscriber = broker.client(Scheme::Tcp, "subscriber").build().await;
    let subscriber = subscriber.unwrap();
    let qos = QoS::AtLeastOnce;
    let mut messages = subscriber.subscribe("t", qos).await.unwrap();

    let before = proxy.recorded().len();
    proxy.set_losing(!loss.is_zero());
    let client = Client::builder(&url).unwrap().connector(connector);
    let client = client.start().unwrap();
    let payload: Vec<u8> = (0..PAYLOAD).map(|at| at.to_le_bytes()[0]).collect();
    let message = Outgoing::new(TopicName::new("t").unwrap(), payload.clone());
    let mut receipt = client.send(message.qos(qos).early(true)).await.unwrap();
    tokio::time::sleep(loss).await;
    proxy.set_losing(false);
    let received = timeout(Duration::from_secs(20), messages.recv()).await;
    assert_eq!(received.unwrap().unwrap().payload, payload);
    receipt.acknowledged().await.unwrap();
    let outcome = client.stats().await.unwrap().early_data;
    client.disconnect().await.unwrap();
    let again = timeout(10 * ONE_WAY, messages.recv()).await;
    assert!(again.is_err(), "it arrived again: {again:?}");
    let mut bytes = Bytes::default();
    for (_, datagram) in proxy.recorded().split_off(before) {
        bytes.add(&datagram);
    }
    println!("loss for {loss:?}, broker restarted: {restarted}: {outcome:?}, {bytes:?}");
    broker.shutdown().await;
    (outcome, bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_early_data_is_not_sent_again() {
    let (outcome, sent) = publish(false, NO_LOSS).await;
    assert_eq!(outcome, EarlyData::Accepted);
    assert!((PAYLOAD..PAYLOAD + REST).contains(&sent.early), "{sent:?}");
    assert!(sent.one_rtt < REST, "{sent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_early_data_is_sent_again_once_in_1_rtt_packets() {
    let (outcome, sent) = publish(true, NO_LOSS).await;
    assert_eq!(outcome, EarlyData::Rejected);
    let once = PAYLOAD..PAYLOAD + REST;
    assert!(once.contains(&sent.early), "{sent:?}");
    assert!(once.contains(&sent.one_rtt), "{sent:?}");
}

/// The first probe leaves after a second, when no datagram is lost any more. It completes the handshake, and the client
/// then knows that the early data is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_early_data_is_sent_again_once_in_1_rtt_packets() {
    let (outcome, sent) = publish(false, Duration::from_millis(300)).await;
    assert_eq!(outcome, EarlyData::Accepted);
    let once = PAYLOAD..PAYLOAD + REST;
    assert!(once.contains(&sent.early), "{sent:?}");
    assert!(once.contains(&sent.one_rtt), "{sent:?}");
}
