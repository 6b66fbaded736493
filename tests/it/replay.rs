//! A copy of a client's first flight overtakes the original: the harm that early data can do
//! (RFC 8446 §8, RFC 9001 §9.2; the table in `docs/guide/access.md`).

use std::{net::SocketAddr, time::Duration};

use bytes::BytesMut;
use mq_broker::{
    Settings,
    cluster::{ClusterSettings, MemoryWorld},
};
use mq_client::{
    Client, Connector, EarlyData, Outgoing, QoS, Subscription, TopicName, Will, WillProperties,
};
use mq_codec::{ByteStr, Connect, Packet, PacketId, Publish, Version};
use mq_proto::{LaneId, Outbox};
use mq_testkit::{Scheme, TcpProxy, TestBroker, UdpProxy, next};
use mq_transport::{Address, ConnectOptions, EarlyDataPolicy, Link, ServerIdentity, Trust};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UdpSocket},
    time::{Instant, sleep, timeout},
};

/// Times that a copy is sent until it comes to the socket of its original, which one in sixteen does.
const COPIES: usize = 200;
/// Longer than any flight, and any message of a broker, is under way on loopback.
const QUIET: Duration = Duration::from_millis(400);
/// Time after which an [`impatient`] broker gives an unfinished handshake up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait. A QUIC client whose datagrams meet the copy's connection gets through only once the
/// broker has given that connection up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Both transports whose first flight can hold packets.
macro_rules! over_tls_and_quic {
    ($($body:ident),+ $(,)?) => {
        $(mod $body {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn tls() {
                super::$body(super::Scheme::Tls).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn quic() {
                super::$body(super::Scheme::Quic).await;
            }
        })+
    };
}

over_tls_and_quic!(
    a_copy_that_overtakes_repeats_only_marked_messages,
    a_marked_message_waits_behind_an_unmarked_one,
    a_copy_never_has_qos_2_acted_on,
    early_qos_2_is_acted_on_when_the_handshake_is_complete,
    with_connect_alone_a_copy_has_nothing_else_acted_on,
    an_unfinished_handshake_gives_its_session_up_at_once,
    a_copy_publishes_no_will,
    a_copy_at_all_nodes_of_a_cluster_is_acted_on_at_one,
);

async fn broker(policy: EarlyDataPolicy) -> TestBroker {
    let change = |settings: &mut Settings| settings.listen.early_data = policy;
    TestBroker::start_with(change).await
}

/// Starts a broker that soon gives an unfinished handshake up: a client whose copy came to the same socket waits for
/// that.
async fn impatient() -> TestBroker {
    let change = |settings: &mut Settings| settings.handshake_timeout = HANDSHAKE_TIMEOUT;
    TestBroker::start_with(change).await
}

/// The way of a client's bytes to the broker, in the hands of an attacker.
enum Path {
    Udp(UdpProxy, SocketAddr),
    Tcp(TcpProxy, SocketAddr),
}

/// The connection that delivered a copy; the broker's answers to it are not read.
enum Copied {
    Udp(#[expect(dead_code, reason = "stays open")] UdpSocket),
    Tcp(#[expect(dead_code, reason = "stays open")] TcpStream),
}

impl Path {
    async fn start(broker: &TestBroker, scheme: Scheme) -> Self {
        let target = target(broker, scheme);
        match scheme {
            Scheme::Quic => Self::Udp(
                UdpProxy::start(target, Duration::ZERO).await.unwrap(),
                target,
            ),
            _ => Self::Tcp(
                TcpProxy::start(target, Duration::ZERO).await.unwrap(),
                target,
            ),
        }
    }

    fn address(&self) -> Address {
        let (scheme, at) = match self {
            Self::Udp(proxy, _) => (Scheme::Quic, proxy.address()),
            Self::Tcp(proxy, _) => (Scheme::Tls, proxy.address()),
        };
        Address::new(scheme, at.ip().to_string(), at.port())
    }

    fn client(&self, connector: &Connector) -> mq_client::ClientBuilder {
        Client::builder(&self.address().to_string())
            .unwrap()
            .connector(connector.clone())
            .client_id("publisher")
            .unwrap()
    }

    /// Connects once, so that the next connection has a ticket.
    async fn prime(&self, connector: &Connector) {
        let client = self.client(connector).build().await.unwrap();
        // One more round trip brings the tickets.
        client.publish("else", "", QoS::AtLeastOnce).await.unwrap();
        client.disconnect().await.unwrap();
    }

    fn hold(&self) -> usize {
        match self {
            Self::Udp(proxy, _) => proxy.hold(),
            Self::Tcp(proxy, _) => proxy.hold(),
        }
        self.recorded().len()
    }

    fn release(&self) {
        match self {
            Self::Udp(proxy, _) => proxy.release(),
            Self::Tcp(proxy, _) => proxy.release(),
        }
    }

    fn recorded(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Udp(proxy, _) => proxy.recorded().into_iter().map(|(_, sent)| sent).collect(),
            Self::Tcp(proxy, _) => proxy.recorded(),
        }
    }

    /// Delivers what was sent since `hold` returned `before` from another address, once all of it
    /// is there.
    async fn copy(&self, before: usize) -> Copied {
        self.copy_after(before, QUIET / 4).await
    }

    /// Delivers a copy as [`copy`](Self::copy) does, once nothing more has been sent for `quiet`.
    async fn copy_after(&self, before: usize, quiet: Duration) -> Copied {
        let (Self::Udp(_, target) | Self::Tcp(_, target)) = self;
        self.copy_to(*target, before, quiet).await
    }

    /// Delivers a copy as [`copy_after`](Self::copy_after) does, to another address.
    async fn copy_to(&self, target: SocketAddr, before: usize, quiet: Duration) -> Copied {
        let size = || -> usize { self.recorded()[before..].iter().map(Vec::len).sum() };
        let whole = async {
            loop {
                let seen = size();
                sleep(quiet).await;
                if seen > 0 && seen == size() {
                    return;
                }
            }
        };
        timeout(PATIENCE, whole).await.unwrap();
        let flight = self.recorded().split_off(before);
        match self {
            Self::Udp(..) => {
                let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                for datagram in flight {
                    socket.send_to(&datagram, target).await.unwrap();
                }
                Copied::Udp(socket)
            }
            Self::Tcp(..) => {
                let mut stream = TcpStream::connect(target).await.unwrap();
                stream.write_all(&flight.concat()).await.unwrap();
                Copied::Tcp(stream)
            }
        }
    }
}

fn target(broker: &TestBroker, scheme: Scheme) -> SocketAddr {
    let Address { host, port, .. } = broker.address(scheme);
    format!("{host}:{port}").parse().unwrap()
}

/// Starts a way to the broker, and a client's connector that has a ticket for it.
async fn primed(broker: &TestBroker, scheme: Scheme) -> (Path, Connector) {
    let path = Path::start(broker, scheme).await;
    let connector = broker.connector(true);
    path.prime(&connector).await;
    (path, connector)
}

/// Connects a subscriber of `t`.
async fn subscriber(broker: &TestBroker) -> (Client, Subscription) {
    let client = broker.client(Scheme::Tcp, "subscriber");
    let client = client.build().await.unwrap();
    let messages = client.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    (client, messages)
}

fn message(payload: &'static str, qos: QoS) -> Outgoing {
    Outgoing::new(TopicName::new("t").unwrap(), payload).qos(qos)
}

/// Checks that these payloads come, in this order, and then nothing for a while.
async fn assert_come(messages: &mut Subscription, expected: &[&str]) {
    let mut payloads = Vec::new();
    loop {
        // Messages may take their time on a busy machine.
        let missing = payloads.len() < expected.len();
        let patience = if missing { PATIENCE } else { QUIET };
        match timeout(patience, messages.recv()).await {
            Ok(incoming) => {
                let payload = incoming.expect("the subscriber is connected").payload;
                payloads.push(String::from_utf8(payload.to_vec()).unwrap());
            }
            Err(_) => break,
        }
    }
    assert_eq!(payloads, expected);
}

async fn a_copy_that_overtakes_repeats_only_marked_messages(scheme: Scheme) {
    let broker = impatient().await;
    let (_subscriber, mut messages) = subscriber(&broker).await;
    let (path, connector) = primed(&broker, scheme).await;

    let before = path.hold();
    let mut builder = path.client(&connector);
    for (payload, qos) in [("early 0", QoS::AtMostOnce), ("early 1", QoS::AtLeastOnce)] {
        builder.publish_early(message(payload, qos)).unwrap();
    }
    let client = builder.start().unwrap();
    let mut receipts = Vec::new();
    for (payload, qos, early) in [
        ("0", QoS::AtMostOnce, false),
        ("1", QoS::AtLeastOnce, false),
        ("2", QoS::ExactlyOnce, false),
        // What is said of it makes no difference.
        ("marked 2", QoS::ExactlyOnce, true),
    ] {
        let sent = client.send(message(payload, qos).early(early)).await;
        receipts.push(sent.unwrap());
    }
    let _copied = path.copy(before).await;
    assert_come(&mut messages, &["early 0", "early 1"]).await;

    path.release();
    for receipt in &mut receipts {
        timeout(PATIENCE, receipt.acknowledged())
            .await
            .unwrap()
            .unwrap();
    }
    // The original's early data was refused and sent again, which tickets cannot prevent.
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.early_data, EarlyData::Rejected);
    assert_come(
        &mut messages,
        &["early 0", "early 1", "0", "1", "2", "marked 2"],
    )
    .await;
    client.disconnect().await.unwrap();
}

/// The kernel gives copy and original, which come from two addresses, to sockets of a listener by chance. At the same one,
/// both are one connection to QUIC, and the original gets through once the broker has given the copy up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_at_the_socket_of_its_original_is_acted_on_twice_and_no_more() {
    let broker = impatient().await;
    let (_subscriber, mut messages) = subscriber(&broker).await;
    let (path, connector) = primed(&broker, Scheme::Quic).await;
    for _ in 0..COPIES {
        let before = path.hold();
        let mut builder = path.client(&connector);
        let early = message("early", QoS::AtLeastOnce);
        let mut receipt = builder.publish_early(early).unwrap();
        let client = builder.start().unwrap();
        let _copied = path.copy_after(before, QUIET / 20).await;
        assert_eq!(&next(&mut messages).await.payload[..], b"early");
        let released = Instant::now();
        path.release();
        let done = timeout(PATIENCE, receipt.acknowledged()).await;
        done.expect("the original gets through").unwrap();
        let is_same = released.elapsed() > HANDSHAKE_TIMEOUT / 2;
        assert_eq!(&next(&mut messages).await.payload[..], b"early");
        let stats = client.stats().await.unwrap();
        assert_eq!(stats.early_data, EarlyData::Rejected);
        client.disconnect().await.unwrap();
        if is_same {
            assert_come(&mut messages, &[]).await;
            return;
        }
    }
    panic!("no copy of {COPIES} came to the socket of its original");
}

async fn a_marked_message_waits_behind_an_unmarked_one(scheme: Scheme) {
    let broker = impatient().await;
    let (_subscriber, mut messages) = subscriber(&broker).await;
    let (path, connector) = primed(&broker, scheme).await;
    for subscribes in [false, true] {
        let before = path.hold();
        let client = path.client(&connector).start().unwrap();
        let other = client.clone();
        let subscribing = async move { other.subscribe("own", QoS::AtMostOnce).await };
        let subscribing = subscribes.then(|| tokio::spawn(subscribing));
        if subscribes {
            // SUBSCRIBE goes before messages.
            sleep(QUIET / 8).await;
        } else {
            client.send(message("0", QoS::AtMostOnce)).await.unwrap();
        }
        let marked = message("marked", QoS::AtMostOnce).early(true);
        client.send(marked).await.unwrap();
        let _copied = path.copy(before).await;
        assert_come(&mut messages, &[]).await;
        path.release();
        timeout(PATIENCE, client.connected())
            .await
            .unwrap()
            .unwrap();
        let expected: &[&str] = if subscribes {
            &["marked"]
        } else {
            &["0", "marked"]
        };
        assert_come(&mut messages, expected).await;
        if let Some(subscribing) = subscribing {
            subscribing.await.unwrap().unwrap();
        }
        client.disconnect().await.unwrap();
    }
}

/// A client with arbitrary packets in its first flight, in a clean session.
struct Raw {
    link: Link,
    outbox: Outbox,
}

impl Raw {
    async fn start(path: &Path, connector: &Connector, packets: &[Packet]) -> Self {
        let mut link = connector.connect(&path.address()).await.unwrap();
        let connect = Connect::new(Version::V5, ByteStr::new("raw").unwrap());
        let mut bytes = BytesMut::new();
        Packet::from(connect)
            .encode(Version::V5, &mut bytes)
            .unwrap();
        for packet in packets {
            packet.encode(Version::V5, &mut bytes).unwrap();
        }
        let mut outbox = Outbox::new();
        outbox.put_body(LaneId::CONTROL, &bytes.freeze());
        while !outbox.is_empty() {
            link.progress(&mut outbox, false).await.unwrap();
        }
        Self { link, outbox }
    }

    /// Reads until the broker has said `wanted`, or until the end of patience.
    async fn hears(&mut self, wanted: impl Fn(&Packet) -> bool) -> bool {
        let mut decoder = mq_codec::Decoder::new(Some(Version::V5), u32::MAX);
        let reading = async {
            loop {
                self.link.progress(&mut self.outbox, true).await.unwrap();
                let received = self.link.received(LaneId::CONTROL);
                while let Some(packet) = decoder.decode(received).unwrap() {
                    if wanted(&packet) {
                        return;
                    }
                }
            }
        };
        timeout(PATIENCE, reading).await.is_ok()
    }
}

fn publish(payload: &'static str, qos: QoS) -> Packet {
    let mut publish = Publish::new(TopicName::new("t").unwrap(), payload);
    publish.qos = qos;
    publish.packet_id = PacketId::new(7).filter(|_| qos > QoS::AtMostOnce);
    publish.into()
}

fn before_at_and_behind_qos_2() -> [Packet; 3] {
    [
        publish("before", QoS::AtMostOnce),
        publish("2", QoS::ExactlyOnce),
        publish("behind", QoS::AtMostOnce),
    ]
}

async fn a_copy_never_has_qos_2_acted_on(scheme: Scheme) {
    let broker = impatient().await;
    let (_subscriber, mut messages) = subscriber(&broker).await;
    let (path, connector) = primed(&broker, scheme).await;

    let before = path.hold();
    let mut raw = Raw::start(&path, &connector, &before_at_and_behind_qos_2()).await;
    let _copied = path.copy(before).await;
    assert_come(&mut messages, &["before"]).await;
    path.release();
    assert!(
        raw.hears(|packet| matches!(packet, Packet::PubRec(_)))
            .await
    );
    assert_eq!(raw.link.stats().early_data, EarlyData::Rejected);
    assert_come(&mut messages, &["before", "2", "behind"]).await;
}

async fn early_qos_2_is_acted_on_when_the_handshake_is_complete(scheme: Scheme) {
    for policy in [EarlyDataPolicy::Full, EarlyDataPolicy::Connect] {
        let broker = broker(policy).await;
        let (_subscriber, mut messages) = subscriber(&broker).await;
        let (path, connector) = primed(&broker, scheme).await;
        let mut raw = Raw::start(&path, &connector, &before_at_and_behind_qos_2()).await;
        assert!(
            raw.hears(|packet| matches!(packet, Packet::PubRec(_)))
                .await
        );
        assert_eq!(raw.link.stats().early_data, EarlyData::Accepted, "{policy}");
        assert_come(&mut messages, &["before", "2", "behind"]).await;
    }
}

async fn with_connect_alone_a_copy_has_nothing_else_acted_on(scheme: Scheme) {
    let broker = broker(EarlyDataPolicy::Connect).await;
    let (_subscriber, mut messages) = subscriber(&broker).await;
    let (path, connector) = primed(&broker, scheme).await;
    let before = path.hold();
    let _raw = Raw::start(&path, &connector, &before_at_and_behind_qos_2()).await;
    let _copied = path.copy(before).await;
    assert_come(&mut messages, &[]).await;
    // The broker acted on CONNECT alone.
    acts_on_two(&broker).await;
}

/// Waits until two connections are open at the broker.
async fn acts_on_two(broker: &TestBroker) {
    let connections = || broker.broker().metrics().connections.get();
    let came = async {
        while connections() < 2 {
            sleep(QUIET / 8).await;
        }
    };
    timeout(PATIENCE, came).await.unwrap();
}

async fn an_unfinished_handshake_gives_its_session_up_at_once(scheme: Scheme) {
    for policy in [EarlyDataPolicy::Connect, EarlyDataPolicy::Full] {
        let broker = broker(policy).await;
        let (path, connector) = primed(&broker, scheme).await;
        let before = path.hold();
        let lost = path.client(&connector).start().unwrap();
        lost.send(message("2", QoS::ExactlyOnce)).await.unwrap();
        // The broker gets the flight, and its answer is lost.
        let _copied = path.copy(before).await;
        sleep(QUIET).await;
        let again = broker.client(scheme, "publisher").build();
        // Half of the wait for a session, after which CONNACK refuses.
        let again = timeout(Duration::from_millis(2_500), again).await;
        let again = again.unwrap_or_else(|_| panic!("{policy}: locked out"));
        again.unwrap().disconnect().await.unwrap();
    }
}

async fn a_copy_publishes_no_will(scheme: Scheme) {
    let broker = impatient().await;
    let (_subscriber, mut messages) = subscriber(&broker).await;
    let (path, connector) = primed(&broker, scheme).await;
    let before = path.hold();
    let will = Will {
        topic: TopicName::new("t").unwrap(),
        payload: "will".into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: WillProperties::default(),
    };
    let client = path.client(&connector).will(will).start().unwrap();
    let _copied = path.copy(before).await;
    acts_on_two(&broker).await;
    path.release();
    timeout(PATIENCE, client.connected())
        .await
        .unwrap()
        .unwrap();
    // The copy's connection is over: taken over, and given up as its handshake is never completed.
    sleep(Duration::from_millis(2_500)).await;
    client
        .publish("t", "alive", QoS::AtLeastOnce)
        .await
        .unwrap();
    assert_eq!(&next(&mut messages).await.payload[..], b"alive");
    client.disconnect().await.unwrap();
}

/// Checks a cluster whose nodes have one certificate, so that a client may resume at any of them; tickets are of the
/// node that issued them.
async fn a_copy_at_all_nodes_of_a_cluster_is_acted_on_at_one(scheme: Scheme) {
    let world = MemoryWorld::new(2, 1);
    let identity = ServerIdentity::self_signed().unwrap();
    let certificate = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(certificate.path(), identity.certificate_pem()).unwrap();
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        let change = |settings: &mut Settings| {
            settings.cluster = Some(ClusterSettings::new(name, world.engine(name)));
            settings.listen.identity = Some(identity.clone());
            settings.handshake_timeout = HANDSHAKE_TIMEOUT;
        };
        nodes.push(TestBroker::start_with(change).await);
    }
    let (_subscriber, mut messages) = subscriber(&nodes[2]).await;
    let path = Path::start(&nodes[0], scheme).await;
    let connector = Connector::new(ConnectOptions {
        trust: Trust::CaFile(certificate.path().to_owned()),
        early_data: true,
        ..ConnectOptions::default()
    });
    let connector = connector.unwrap();
    path.prime(&connector).await;

    let before = path.hold();
    let mut builder = path.client(&connector);
    let early = message("early", QoS::AtLeastOnce);
    let mut receipt = builder.publish_early(early).unwrap();
    let client = builder.start().unwrap();
    let mut copies = Vec::new();
    for other in &nodes[1..] {
        let target = target(other, scheme);
        copies.push(path.copy_to(target, before, QUIET / 4).await);
    }
    assert_come(&mut messages, &[]).await;
    copies.push(path.copy(before).await);
    assert_come(&mut messages, &["early"]).await;
    path.release();
    let done = timeout(PATIENCE, receipt.acknowledged()).await;
    done.expect("the original gets through").unwrap();
    assert_come(&mut messages, &["early"]).await;
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.early_data, EarlyData::Rejected);
    client.disconnect().await.unwrap();
}
