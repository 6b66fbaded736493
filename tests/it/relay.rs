//! The relay: clients and brokers that do not know of it, and ends that are not there.

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use mq_client::{Client, Event, Outgoing, QoS, ReasonCode, Version, Will, WillProperties};
use mq_codec::{Connect, Decoder, Packet, TopicName};
use mq_relay::{Relay, RelayHandle, RelayOptions, RelayStats};
use mq_testkit::{Scheme, TestBroker, UdpProxy, next, over_each_transport, refused};
use mq_transport::{
    Address, ConnectOptions, Connector, EarlyDataPolicy, Error, LaneId, Link, ListenOptions,
    Listener, Outbox, ProxyVersion, ServerIdentity, Trust,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    runtime::Runtime,
    time::timeout,
};

over_each_transport!(everything_passes_a_pair_as_it_is);

/// Bound on what takes no time.
const SOON: Duration = Duration::from_secs(20);

/// A relay that serves, from plain TCP unless told otherwise.
struct Serving {
    address: Address,
    handle: RelayHandle,
}

impl Serving {
    async fn start(options: RelayOptions) -> Self {
        Self::of(Relay::bind(options).await.unwrap())
    }

    fn of(relay: Relay) -> Self {
        let address = relay.local_addresses().remove(0);
        let handle = relay.handle();
        tokio::spawn(relay.serve());
        Self { address, handle }
    }

    fn client(&self, id: &str) -> mq_client::ClientBuilder {
        let client = Client::builder(&self.address.to_string()).unwrap();
        client.client_id(id).unwrap()
    }

    async fn connect(&self) -> TcpStream {
        let address = (self.address.host.as_str(), self.address.port);
        TcpStream::connect(address).await.unwrap()
    }

    /// Connects and sends a packet.
    async fn raw(&self, packet: Connect) -> TcpStream {
        let mut stream = self.connect().await;
        let version = packet.version;
        let mut bytes = BytesMut::new();
        Packet::from(packet).encode(version, &mut bytes).unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream
    }

    /// Waits until so many clients were refused.
    async fn refused(&self, count: u64) {
        let refused = self.until(|stats| stats.refused >= count);
        timeout(SOON, refused).await.expect("they are refused");
    }

    /// Waits until all clients have gone, so that they are in the counters.
    async fn idle(&self) {
        let gone = self.until(|stats| stats.clients == 0);
        timeout(SOON, gone).await.expect("the clients have left");
    }

    async fn until(&self, is_there: impl Fn(RelayStats) -> bool) {
        while !is_there(self.handle.stats()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn loopback(scheme: Scheme) -> Address {
    Address::new(scheme, "127.0.0.1", 0)
}

/// Makes the options of a relay that listens on plain TCP.
fn from_tcp(upstream: impl IntoIterator<Item = Address>) -> RelayOptions {
    RelayOptions::new([loopback(Scheme::Tcp)], upstream)
}

/// A relay beside the client and one before the broker, with `scheme` between them.
struct Pair {
    beside_client: Serving,
    _before_broker: Serving,
}

impl Pair {
    async fn start(broker: Address, scheme: Scheme) -> Self {
        let identity = ServerIdentity::self_signed().unwrap();
        let trust = Trust::Fingerprint(identity.fingerprint());
        let mut before = RelayOptions::new([loopback(scheme)], [broker]);
        before.listen_options.identity = Some(identity);
        before.listen_options.early_data = EarlyDataPolicy::Connect;
        let before_broker = Serving::start(before).await;
        let mut beside = from_tcp([before_broker.address.clone()]);
        beside.connect_options.trust = trust;
        Self {
            beside_client: Serving::start(beside).await,
            _before_broker: before_broker,
        }
    }
}

async fn everything_passes_a_pair_as_it_is(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let pair = Pair::start(broker.address(Scheme::Tcp), scheme).await;
    let direct = broker.client(Scheme::Tcp, "direct").build().await.unwrap();
    let mut seen = direct.subscribe("#", QoS::ExactlyOnce).await.unwrap();
    let kept = || {
        let client = pair.beside_client.client("thing").clean_start(false);
        client.session_expiry(Duration::from_hours(1))
    };
    let client = kept().build().await.unwrap();
    let mut back = client.subscribe("down", QoS::ExactlyOnce).await.unwrap();
    let payload = Bytes::from(vec![7; 1_000_000]);
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let message = Outgoing::to("up", payload.clone()).unwrap().qos(qos);
        let message = message.content_type("application/x-seven").unwrap();
        let message = message.user_property("unit", "°C").unwrap();
        let properties = message.message().properties.clone();
        client.send(message).await.unwrap();
        let came = next(&mut seen).await;
        assert_eq!((came.qos, &came.payload), (qos, &payload));
        assert_eq!(came.properties, properties);
    }
    direct
        .publish("down", "hello", QoS::ExactlyOnce)
        .await
        .unwrap();
    assert_eq!(next(&mut back).await.payload, "hello");
    assert_eq!(next(&mut seen).await.topic.as_str(), "down");
    client.disconnect().await.unwrap();
    let again = kept().build().await.unwrap();
    assert!(again.last_connected().unwrap().session_present);
    again.disconnect().await.unwrap();
    // A client that ends without DISCONNECT.
    let mut raw = pair.beside_client.raw(with_will()).await;
    assert_eq!(answer(&mut raw, Version::V3_1_1).await, ReasonCode::Success);
    drop(raw);
    assert_eq!(next(&mut seen).await.payload, "gone");
    pair.beside_client.idle().await;
    let stats = pair.beside_client.handle.stats();
    assert_eq!(
        (stats.passed_on, stats.refused, stats.unanswered),
        (3, 0, 0)
    );
    assert!(stats.bytes_to_broker > 3_000_000, "{stats:?}");
}

/// Waits for a CONNACK.
async fn answer(stream: &mut TcpStream, version: Version) -> ReasonCode {
    let mut decoder = Decoder::new(Some(version), 1024);
    let mut bytes = BytesMut::new();
    loop {
        let count = timeout(SOON, stream.read_buf(&mut bytes)).await;
        assert_ne!(count.expect("an answer in time").unwrap(), 0, "{bytes:?}");
        match decoder.decode(&mut bytes).unwrap() {
            Some(Packet::ConnAck(answer)) => return answer.reason,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
}

fn local(listener: &TcpListener) -> Address {
    Address::new(
        Scheme::Tcp,
        "127.0.0.1",
        listener.local_addr().unwrap().port(),
    )
}

/// Returns an address at which nothing listens.
async fn nobody() -> Address {
    local(&TcpListener::bind("127.0.0.1:0").await.unwrap())
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_a_connack_and_no_storm() {
    let relay = Serving::start(from_tcp([nobody().await])).await;
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        let connect = Connect::new(version, "x".try_into().unwrap());
        let mut raw = relay.raw(connect).await;
        assert_eq!(
            answer(&mut raw, version).await,
            ReasonCode::ServerUnavailable
        );
    }
    assert_eq!(
        refused(relay.client("y")).await,
        ReasonCode::ServerUnavailable
    );
    relay.idle().await;
    let stats = relay.handle.stats();
    let unreached = stats.failed + stats.paused;
    assert_eq!((stats.refused, unreached, stats.passed_on), (4, 4, 0));
}

#[tokio::test]
async fn a_broker_that_comes_back_is_reached_after_the_pause() {
    let address = nobody().await;
    let relay = Serving::start(from_tcp([address.clone()])).await;
    for id in ["1", "2"] {
        assert_eq!(
            refused(relay.client(id)).await,
            ReasonCode::ServerUnavailable
        );
    }
    let listener = TcpListener::bind(("127.0.0.1", address.port)).await;
    let listener = listener.unwrap();
    let serving = async {
        let (mut broker, _) = listener.accept().await.unwrap();
        broker.write_all(&[0x20, 2, 0, 0]).await.unwrap();
        broker
    };
    let connecting = async {
        let connect = || Connect::new(Version::V3_1_1, "x".try_into().unwrap());
        loop {
            let mut raw = relay.raw(connect()).await;
            if answer(&mut raw, Version::V3_1_1).await == ReasonCode::Success {
                return raw;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let both = async { tokio::join!(serving, connecting) };
    timeout(SOON, both).await.expect("one of them tries");
}

#[tokio::test]
async fn times_without_limit_are_no_error() {
    let broker = TestBroker::start().await;
    let addresses = [broker.address(Scheme::Tcp), nobody().await];
    let mut options = from_tcp(addresses);
    options.connect_options.connect_timeout = Duration::MAX;
    options.connect_time = Duration::MAX;
    options.head_start = Duration::MAX;
    options.fallback_memory = Duration::MAX;
    let relay = Serving::start(options).await;
    let connecting = timeout(SOON, relay.client("x").build()).await;
    let client = connecting.expect("an answer in time").unwrap();
    client.disconnect().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_turn_comes_late_keeps_no_other_out() {
    let [front, back] = ["mem://late_turn_front", "mem://late_turn_back"]
        .map(|url| url.parse::<Address>().unwrap());
    let narrow = ListenOptions {
        backlog: 1,
        ..ListenOptions::default()
    };
    let mut broker = Listener::bind(&back, &narrow).await.unwrap();
    let connector = Connector::new(ConnectOptions::default()).unwrap();
    // Takes the only place of the backlog.
    let filler = connector.connect(&back).await.unwrap();
    let mut options = RelayOptions::new([front], [back]);
    options.dials = NonZeroUsize::MIN;
    options.connect_options.connect_timeout = Duration::from_secs(3);
    let relay = Serving::start(options).await;
    let _first = with_connect(&connector, &relay.address).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let _second = with_connect(&connector, &relay.address).await;
    tokio::time::sleep(Duration::from_millis(2_900)).await;
    // The first gets its connection, and the second its turn, with a tenth of a second left.
    drop(broker.accept().await.unwrap());
    drop(filler);
    let is_late = relay.until(|stats| stats.timed_out == 1);
    timeout(SOON, is_late).await.expect("the second is refused");
    let _third = with_connect(&connector, &relay.address).await;
    for whose in ["the first's connection", "the third's"] {
        let dialled = timeout(SOON, broker.accept()).await;
        drop(dialled.expect(whose).unwrap());
    }
    assert_eq!(relay.handle.stats().paused, 0);
}

/// Connects, and sends a CONNECT of 3.1.1.
async fn with_connect(connector: &Connector, to: &Address) -> Link {
    let mut link = connector.connect(to).await.unwrap();
    let connect = Packet::from(Connect::new(Version::V3_1_1, "x".try_into().unwrap()));
    let mut outbox = Outbox::new();
    outbox
        .put(LaneId::CONTROL, |out| connect.encode(Version::V3_1_1, out))
        .unwrap();
    link.flush(&mut outbox).await.unwrap();
    link
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_a_connack_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = local(&silent);
    let mut options = from_tcp([address]);
    options.connect_options.connect_timeout = Duration::from_millis(300);
    let relay = Serving::start(options).await;
    assert_eq!(
        refused(relay.client("x")).await,
        ReasonCode::ServerUnavailable
    );
    relay.idle().await;
    assert_eq!(relay.handle.stats().unanswered, 1);
}

#[tokio::test]
async fn a_client_whom_the_broker_drops_keeps_no_other_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = local(&listener);
    let relay = Serving::start(from_tcp([address])).await;
    let connect = || Connect::new(Version::V3_1_1, "x".try_into().unwrap());
    let mut dropped = relay.raw(connect()).await;
    // It has read CONNECT, so that the end is in order.
    let (mut broker, _) = listener.accept().await.unwrap();
    broker.read_exact(&mut [0; 15]).await.unwrap();
    drop(broker);
    let mut nothing = Vec::new();
    let reading = dropped.read_to_end(&mut nothing);
    timeout(SOON, reading).await.unwrap().unwrap();
    assert_eq!(nothing, b"", "the broker has not answered");
    let mut taken = relay.raw(connect()).await;
    let accepted = timeout(SOON, listener.accept()).await;
    let (mut broker, _) = accepted.expect("an attempt at once").unwrap();
    broker.write_all(&[0x20, 2, 0, 0]).await.unwrap();
    assert_eq!(
        answer(&mut taken, Version::V3_1_1).await,
        ReasonCode::Success
    );
}

#[tokio::test]
async fn early_data_to_a_broker_that_has_gone_is_a_connack() {
    let broker = TestBroker::start().await;
    let mut options = from_tcp([broker.address(Scheme::Quic)]);
    options.connect_options = broker.connect_options();
    options.connect_options.connect_timeout = Duration::from_millis(500);
    let relay = Serving::start(options).await;
    let client = relay.client("sleeper").build().await.unwrap();
    client.disconnect().await.unwrap();
    broker.shutdown().await;
    for _ in 0..2 {
        assert_eq!(
            refused(relay.client("sleeper")).await,
            ReasonCode::ServerUnavailable
        );
    }
    relay.idle().await;
    let stats = relay.handle.stats();
    let unreached = stats.unanswered + stats.paused + stats.failed + stats.timed_out;
    assert_eq!((unreached, stats.early_accepted), (2, 0), "{stats:?}");
}

#[tokio::test]
async fn what_is_no_connect_in_time_ends() {
    let mut options = from_tcp([nobody().await]);
    options.connect_time = Duration::from_millis(300);
    let relay = Serving::start(options).await;
    for bytes in [
        &b"\x10\x80\x80\x80\x7F\0\x04MQ"[..],
        b"\x10\x7F\0\x04MQTT",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\0",
        b"\x30\x03\0\x01a",
        b"",
    ] {
        let mut raw = relay.connect().await;
        raw.write_all(bytes).await.unwrap();
        let mut rest = Vec::new();
        timeout(SOON, raw.read_to_end(&mut rest))
            .await
            .unwrap_or_else(|_| panic!("{bytes:?}"))
            .ok();
        assert_eq!(rest, b"", "{bytes:?}");
    }
    // A level that nobody knows has an answer, and a client identifier with U+0000 none before 5.0.
    let mut raw = relay.connect().await;
    raw.write_all(b"\x10\x0D\0\x04MQTT\x09\x02\0\x3C\0\x01x")
        .await
        .unwrap();
    let reason = answer(&mut raw, Version::V3_1_1).await;
    assert_eq!(reason, ReasonCode::UnsupportedProtocolVersion);
    let mut raw = relay.connect().await;
    raw.write_all(b"\x10\x0D\0\x04MQTT\x04\x02\0\x3C\0\x01\0")
        .await
        .unwrap();
    let mut rest = Vec::new();
    timeout(SOON, raw.read_to_end(&mut rest))
        .await
        .unwrap()
        .ok();
    assert_eq!(rest, b"");
    // As much as 5.0 has an answer for.
    let mut raw = relay.connect().await;
    raw.write_all(b"\x10\xFF\xFF\xFF\x7F\0\x04MQTT\x05\x02\0\x3C")
        .await
        .unwrap();
    assert_eq!(
        answer(&mut raw, Version::V5).await,
        ReasonCode::PacketTooLarge
    );
    relay.idle().await;
    assert_eq!(relay.handle.stats().refused, 9);
}

#[tokio::test]
async fn a_client_that_sends_no_connect_takes_no_place_among_the_tickets() {
    let broker = TestBroker::start().await;
    for scheme in [Scheme::Tls, Scheme::Quic] {
        let identity = ServerIdentity::self_signed().unwrap();
        let connector = Connector::new(ConnectOptions {
            trust: Trust::Fingerprint(identity.fingerprint()),
            ..ConnectOptions::default()
        });
        let connector = connector.unwrap();
        let mut options = RelayOptions::new([loopback(scheme)], [broker.address(Scheme::Tcp)]);
        options.listen_options.identity = Some(identity);
        let tickets = options.listen_options.ticket_store.clone();
        let relay = Serving::start(options).await;
        let mut link = connector.connect(&relay.address).await.unwrap();
        // The beginning of a CONNECT, without which a QUIC stream does not exist.
        let mut outbox = Outbox::new();
        outbox.put_body(LaneId::CONTROL, &Bytes::from_static(b"\x10"));
        link.flush(&mut outbox).await.unwrap();
        link.handshake_complete().await.unwrap();
        link.close(SOON).await;
        relay.refused(1).await;
        relay.idle().await;
        assert_eq!(tickets.len(), 0, "{scheme:?}");
        let client = relay.client("x").connector(connector);
        let client = client.build().await.unwrap();
        assert_eq!(tickets.len(), 2, "{scheme:?}");
        client.disconnect().await.unwrap();
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn connect_is_early_data_from_the_second_connection_on_and_more_if_asked() {
    let broker = TestBroker::start().await;
    for scheme in [Scheme::Quic, Scheme::Tls] {
        for early in [
            EarlyDataPolicy::Off,
            EarlyDataPolicy::Connect,
            EarlyDataPolicy::Full,
        ] {
            let mut options = from_tcp([broker.address(scheme)]);
            options.connect_options = broker.connect_options();
            options.early = early;
            let relay = Serving::start(options).await;
            for number in 0..3 {
                let mut builder = relay.client("sleeper");
                let message = Outgoing::to("t", number.to_string()).unwrap();
                let mut receipt = builder
                    .publish_early(message.qos(QoS::AtLeastOnce))
                    .unwrap();
                let client = builder.start().unwrap();
                timeout(SOON, receipt.acknowledged())
                    .await
                    .unwrap()
                    .unwrap();
                client.disconnect().await.unwrap();
                relay.idle().await;
            }
            let stats = relay.handle.stats();
            let accepted = if early == EarlyDataPolicy::Off { 0 } else { 2 };
            let counts = (stats.full, stats.resumed, stats.early_accepted);
            assert_eq!(counts, (1, 2, accepted), "{scheme:?} {early:?} {stats:?}");
        }
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn where_udp_is_blocked_the_next_address_is_taken_and_remembered() {
    let broker = TestBroker::start().await;
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let first = Address::new(Scheme::Quic, "127.0.0.1", port);
    let mut options = from_tcp([first, broker.address(Scheme::Tls)]);
    options.connect_options = broker.connect_options();
    let relay = Serving::start(options).await;
    for _ in 0..2 {
        let client = relay.client("x").build().await.unwrap();
        client.disconnect().await.unwrap();
    }
    relay.idle().await;
    assert_eq!(relay.handle.stats().fallbacks, 2);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_broker_that_does_not_read_stops_its_client() {
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = Serving::start(from_tcp([local(&deaf)])).await;
    let connect = Connect::new(Version::V3_1_1, "x".try_into().unwrap());
    let mut raw = relay.raw(connect).await;
    let (mut deaf, _) = deaf.accept().await.unwrap();
    deaf.write_all(&[0x20, 2, 0, 0]).await.unwrap();
    assert_eq!(answer(&mut raw, Version::V3_1_1).await, ReasonCode::Success);
    // Far more than the sockets of three processes hold.
    let mut written = 0;
    let chunk = vec![0; 1 << 20];
    while timeout(Duration::from_secs(1), raw.write_all(&chunk))
        .await
        .is_ok()
    {
        written += 1;
        assert!(written < 256, "it takes everything");
    }
    // The broker reads on, and all of it comes.
    let mut first = vec![0; 1 << 20];
    timeout(SOON, deaf.read_exact(&mut first))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first[..2], [0x10, 13]);
}

#[tokio::test]
async fn further_clients_than_allowed_are_turned_away_and_a_drain_waits_for_those_present() {
    let broker = TestBroker::start().await;
    let mut options = from_tcp([broker.address(Scheme::Tcp)]);
    options.connections = 3;
    options.connections_per_address = NonZeroUsize::new(2);
    let relay = Serving::start(options).await;
    let one = relay.client("1").build().await.unwrap();
    let two = relay.client("2").build().await.unwrap();
    let mut third = relay.connect().await;
    let mut nothing = Vec::new();
    timeout(SOON, third.read_to_end(&mut nothing))
        .await
        .unwrap()
        .ok();
    two.disconnect().await.unwrap();
    let draining = relay.handle.clone();
    assert_eq!(draining.drain(Duration::from_millis(100)).await, 1);
    assert!(
        TcpStream::connect(("127.0.0.1", relay.address.port))
            .await
            .is_err()
    );
    assert!(one.is_connected());
    one.disconnect().await.unwrap();
    assert_eq!(draining.drain(SOON).await, 0);
    broker.shutdown().await;
}

#[tokio::test]
async fn first_packets_that_others_have_forged_do_not_keep_an_address_out() {
    let broker = TestBroker::start().await;
    let identity = ServerIdentity::self_signed().unwrap();
    let connector = Connector::new(ConnectOptions {
        trust: Trust::Fingerprint(identity.fingerprint()),
        ..ConnectOptions::default()
    });
    let connector = connector.unwrap();
    let upstream = [broker.address(Scheme::Tcp)];
    let mut options = RelayOptions::new([loopback(Scheme::Quic)], upstream);
    options.listen_options.identity = Some(identity);
    options.connections_per_address = NonZeroUsize::new(2);
    let relay = Serving::start(options).await;
    // From this address as well, and nobody there hears the answers.
    for _ in 0..4 {
        let packet = first_packet_of(&connector).await;
        let forger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = ("127.0.0.1", relay.address.port);
        forger.send_to(&packet, to).await.unwrap();
        let taken = relay.until(|stats| stats.clients > 0);
        timeout(SOON, taken).await.expect("the first takes a place");
    }
    let client = relay.client("x").connector(connector);
    let client = timeout(SOON, client.build()).await.expect("an answer");
    client.unwrap().disconnect().await.unwrap();
    broker.shutdown().await;
}

#[tokio::test]
async fn a_proxy_header_does_not_name_an_address_that_may_be_forged() {
    for proxy_protocol in [None, Some(ProxyVersion::V1)] {
        let broker = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let identity = ServerIdentity::self_signed().unwrap();
        let connector = Connector::new(ConnectOptions {
            trust: Trust::Fingerprint(identity.fingerprint()),
            early_data: true,
            ..ConnectOptions::default()
        });
        let connector = connector.unwrap();
        let mut options = RelayOptions::new([loopback(Scheme::Quic)], [local(&broker)]);
        options.listen_options.identity = Some(identity);
        options.listen_options.early_data = EarlyDataPolicy::Connect;
        options.proxy_protocol = proxy_protocol;
        options.connect_time = Duration::from_secs(1);
        let relay = Serving::start(options).await;
        let target = SocketAddr::from(([127, 0, 0, 1], relay.address.port));
        let path = UdpProxy::start(target, Duration::ZERO).await.unwrap();
        let address = Address::new(Scheme::Quic, "127.0.0.1", path.address().port());
        // A connection that brings a ticket.
        let mut link = with_connect(&connector, &address).await;
        let (mut stream, _) = timeout(SOON, broker.accept()).await.unwrap().unwrap();
        stream.write_all(&[0x20, 2, 0, 0]).await.unwrap();
        let answered = timeout(SOON, link.progress(&mut Outbox::new(), true)).await;
        answered.expect("an answer").unwrap();
        link.close(SOON).await;
        drop(stream);
        relay.idle().await;
        // The next first flight comes from elsewhere, and nobody there hears the answers.
        path.set_losing(true);
        let before = path.recorded().len();
        let _link = with_connect(&connector, &address).await;
        let forger = UdpSocket::bind("127.0.0.2:0").await.unwrap();
        let forging = async {
            while relay.handle.stats().refused == 0 {
                for (_, datagram) in path.recorded().split_off(before) {
                    forger.send_to(&datagram, target).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let is_told = tokio::select! {
            _ = broker.accept() => true,
            ended = timeout(SOON, forging) => {
                ended.expect("the end of the client's time");
                false
            }
        };
        assert_eq!(is_told, proxy_protocol.is_none());
    }
}

/// Returns the first datagram of a QUIC connection to a port at which nobody answers.
async fn first_packet_of(connector: &Connector) -> Vec<u8> {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let address = Address::new(Scheme::Quic, "127.0.0.1", port);
    let mut packet = vec![0; 2048];
    let (size, _) = tokio::select! {
        connected = connector.connect(&address) => panic!("{connected:?}"),
        came = timeout(SOON, silent.recv_from(&mut packet)) => came.expect("a packet").unwrap(),
    };
    packet.truncate(size);
    packet
}

#[tokio::test]
async fn clients_and_brokers_at_unix_sockets_are_reached() {
    let folder = tempfile::tempdir().unwrap();
    let [front, back] = ["front", "back"].map(|name| {
        let path = folder.path().join(name);
        Address::unix(path.to_str().unwrap())
    });
    let at = back.clone();
    let broker = TestBroker::start_with(|settings| settings.listeners.push(at)).await;
    let relay = Serving::start(RelayOptions::new([front], [back.clone()])).await;
    let mut direct = Client::builder(&back.to_string()).unwrap();
    direct = direct.client_id("direct").unwrap();
    let direct = direct.build().await.unwrap();
    let mut seen = direct.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    let client = relay.client("relayed").build().await.unwrap();
    client
        .publish("t", vec![7; 1_000_000], QoS::ExactlyOnce)
        .await
        .unwrap();
    assert_eq!(next(&mut seen).await.payload, vec![7; 1_000_000]);
    let shown = broker.broker().client("relayed").await.unwrap();
    assert_eq!((&*shown.transport, shown.peer), ("unix", None));
    client.disconnect().await.unwrap();
    broker.shutdown().await;
}

/// Returns a CONNECT of 3.1.1 for `lost`, with a will at `will`.
fn with_will() -> Connect {
    Connect {
        will: Some(Will {
            topic: TopicName::new("will").unwrap(),
            payload: Bytes::from_static(b"gone"),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: WillProperties::default(),
        }),
        ..Connect::new(Version::V3_1_1, "lost".try_into().unwrap())
    }
}

// A relay that does not let go of its processor would keep this test from its bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_to_a_client_that_has_closed_ends() {
    let mut options = from_tcp([nobody().await]);
    options.listen = vec![loopback(Scheme::Ws)];
    let relay = Serving::start(options).await;
    let mut stream = relay.connect().await;
    let upgrade = "GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
        Sec-WebSocket-Protocol: mqtt\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    let connect = b"\x10\x0c\0\x04MQTT\x09\x02\0\x0a\0\0";
    // A binary frame and a Close, with a mask of zeros (RFC 6455 §5.2).
    let mut frames = vec![
        0x82,
        0x80 | u8::try_from(connect.len()).unwrap(),
        0,
        0,
        0,
        0,
    ];
    frames.extend(connect);
    frames.extend([0x88, 0x80, 0, 0, 0, 0]);
    stream.write_all(&frames).await.unwrap();
    relay.refused(1).await;
    relay.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_the_broker_is_dialled_takes_nobodys_session() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = Address {
        scheme: Scheme::Tls,
        ..local(&silent)
    };
    let mut options = from_tcp([upstream]);
    options.connect_options.connect_timeout = Duration::from_mins(5);
    let relay = Serving::start(options).await;
    let client = relay.raw(with_will()).await;
    let (mut dialled, _) = timeout(SOON, silent.accept()).await.unwrap().unwrap();
    drop(client);
    relay.idle().await;
    let mut hello = Vec::new();
    let ended = timeout(SOON, dialled.read_to_end(&mut hello)).await;
    ended.expect("the dial goes on").ok();
    let stats = relay.handle.stats();
    assert_eq!((stats.passed_on, stats.refused), (0, 1), "{stats:?}");
}

#[tokio::test]
async fn what_follows_connect_arrives_although_the_client_has_left() {
    let broker = TestBroker::start().await;
    let direct = broker.client(Scheme::Tcp, "direct").build().await.unwrap();
    let mut seen = direct.subscribe("#", QoS::AtLeastOnce).await.unwrap();
    let mut bytes = BytesMut::new();
    let connect = Packet::from(with_will());
    connect.encode(Version::V3_1_1, &mut bytes).unwrap();
    // PUBLISH to `up` at QoS 0, and DISCONNECT.
    bytes.extend_from_slice(b"\x30\x05\0\x02upx\xe0\0");
    for scheme in [Scheme::Quic, Scheme::Tls] {
        let mut options = from_tcp([broker.address(scheme)]);
        options.connect_options = broker.connect_options();
        let relay = Serving::start(options).await;
        // With a ticket from the second one on.
        for number in 0..3 {
            let mut stream = relay.connect().await;
            stream.write_all(&bytes).await.unwrap();
            stream.shutdown().await.unwrap();
            let came = next(&mut seen).await;
            assert_eq!(came.topic.as_str(), "up", "{scheme:?} {number}");
            relay.idle().await;
        }
    }
    direct.publish("end", "", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(next(&mut seen).await.topic.as_str(), "end", "a will came");
    broker.shutdown().await;
}

/// Checks it with a peer that answers only once the client has ended its side, as a half-closed connection allows.
#[tokio::test]
async fn a_client_that_has_ended_its_side_alone_is_still_answered() {
    const SENT: &[u8] = b"\x30\x05\0\x02upx\xe0\0";
    const ANSWER: &[u8] = b"\x20\x02\0\0 and the rest";
    for scheme in [Scheme::Tcp, Scheme::Tls, Scheme::Quic] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pair = Pair::start(local(&listener), scheme).await;
        let mut client = pair.beside_client.raw(with_will()).await;
        client.write_all(SENT).await.unwrap();
        client.shutdown().await.unwrap();
        let answering = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap();
            stream.write_all(ANSWER).await.unwrap();
            received
        };
        let received = timeout(SOON, answering).await.expect("the client's end");
        assert!(received.ends_with(SENT), "{scheme:?}: {received:?}");
        let mut answer = Vec::new();
        let answered = timeout(SOON, client.read_to_end(&mut answer)).await;
        answered.expect("the broker's end").unwrap();
        assert_eq!(answer, ANSWER, "{scheme:?}");
        pair.beside_client.idle().await;
    }
}

#[tokio::test]
async fn clients_that_are_cut_are_told_so_and_their_wills_come() {
    let broker = TestBroker::start().await;
    let direct = broker.client(Scheme::Tcp, "direct").build().await.unwrap();
    let mut seen = direct.subscribe("will", QoS::AtLeastOnce).await.unwrap();
    let mut options = from_tcp([broker.address(Scheme::Quic)]);
    options.connect_options = broker.connect_options();
    let relay = Serving::start(options).await;
    let mut client = relay.raw(with_will()).await;
    assert_eq!(
        answer(&mut client, Version::V3_1_1).await,
        ReasonCode::Success
    );
    assert_eq!(relay.handle.drain(Duration::ZERO).await, 1);
    relay.handle.cut().await;
    assert_eq!(relay.handle.stats().clients, 0);
    assert_eq!(next(&mut seen).await.payload, "gone");
    let mut rest = Vec::new();
    let ended = timeout(SOON, client.read_to_end(&mut rest)).await;
    ended.unwrap().unwrap();
    broker.shutdown().await;
}

#[tokio::test]
async fn other_options_hold_once_they_are_applied() {
    let [one, other] = [TestBroker::start().await, TestBroker::start().await];
    let options = |broker: &TestBroker| from_tcp([broker.address(Scheme::Tcp)]);
    let relay = Serving::start(options(&one)).await;
    let change = relay.handle.prepare(options(&other)).unwrap();
    let before = relay.client("before").build().await.unwrap();
    change.apply();
    let after = relay.client("after").build().await.unwrap();
    // A change that is not applied is none.
    drop(relay.handle.prepare(options(&one)).unwrap());
    let last = relay.client("last").build().await.unwrap();
    for (broker, here, elsewhere) in [
        (&one, &["before"][..], &["after", "last"][..]),
        (&other, &["after", "last"], &["before"]),
    ] {
        let broker = broker.broker();
        for id in here {
            assert!(broker.client(id).await.is_ok(), "{id}");
        }
        for id in elsewhere {
            assert!(broker.client(id).await.is_err(), "{id}");
        }
    }
    drop((before, after, last));
}

/// A relay with threads of its own, which ends without a word when they are taken away, as a process that is killed.
struct Killable {
    options: RelayOptions,
    running: Option<(Runtime, Serving)>,
}

impl Killable {
    /// Starts a relay, which listens at the same address each time.
    async fn start(options: RelayOptions) -> Self {
        let mut relay = Self {
            options,
            running: None,
        };
        relay.start_again().await;
        relay.options.listen = vec![relay.serving().address.clone()];
        relay
    }

    async fn start_again(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.unwrap();
        let options = self.options.clone();
        let starting = runtime.spawn(async move {
            loop {
                // The one before may still be at its address.
                match Relay::bind(options.clone()).await {
                    Err(Error::PortInUse { .. }) => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    bound => break Serving::of(bound.unwrap()),
                }
            }
        });
        let serving = timeout(SOON, starting).await.expect("it starts").unwrap();
        self.running = Some((runtime, serving));
    }

    fn serving(&self) -> &Serving {
        &self.running.as_ref().expect("it runs").1
    }

    async fn end(&mut self, end: RelayEnd) {
        let (runtime, serving) = self.running.take().expect("it runs");
        if end == RelayEnd::InOrder {
            serving.handle.drain(Duration::ZERO).await;
            serving.handle.cut().await;
        }
        runtime.shutdown_background();
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        if let Some((runtime, _)) = self.running.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RelayEnd {
    Killed,
    InOrder,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_comes_back_after_each_restart_of_a_relay_and_the_broker_gets_no_storm() {
    const CROWD: u64 = 200;
    let broker = TestBroker::start().await;
    let identity = ServerIdentity::self_signed().unwrap();
    let trust = Trust::Fingerprint(identity.fingerprint());
    let upstream = [broker.address(Scheme::Tcp)];
    let mut options = RelayOptions::new([loopback(Scheme::Quic)], upstream);
    options.listen_options.identity = Some(identity);
    let mut before = Killable::start(options).await;
    let mut options = from_tcp([before.serving().address.clone()]);
    options.connect_options.trust = trust;
    let mut beside = Killable::start(options).await;
    let mut clients = Vec::new();
    for number in 0..CROWD {
        let client = beside.serving().client(&format!("crowd-{number}"));
        // A relay behind QUIC that was killed is found by the next packet to it.
        let client = client.keep_alive(Duration::from_secs(2)).build().await;
        clients.push(client.unwrap());
    }
    for (is_beside, end) in [
        (true, RelayEnd::Killed),
        (true, RelayEnd::InOrder),
        (false, RelayEnd::Killed),
        (false, RelayEnd::InOrder),
    ] {
        let mut events: Vec<_> = clients.iter().map(Client::events).collect();
        let first = before.serving().handle.stats().passed_on;
        let ended = if is_beside { &mut beside } else { &mut before };
        ended.end(end).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        ended.start_again().await;
        let returning = async {
            for events in &mut events {
                while !matches!(events.recv().await, Some(Event::Connected(_))) {}
            }
        };
        let began = Instant::now();
        timeout(SOON * 3, returning)
            .await
            .unwrap_or_else(|_| panic!("not all are back: {is_beside}, {end:?}"));
        let since = if is_beside { first } else { 0 };
        let connects = before.serving().handle.stats().passed_on - since;
        let time = began.elapsed();
        println!("{is_beside}, {end:?}: {connects} CONNECTs at the broker in {time:?}");
        // Clients that waited too long for their answer come twice.
        assert!(
            (CROWD..=CROWD * 2).contains(&connects),
            "{connects}: {is_beside}, {end:?}"
        );
    }
    drop(clients);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_silent_client_has_packets_of_quic_that_keep_the_bindings_of_nats() {
    let broker = TestBroker::start().await;
    let behind = SocketAddr::from(([127, 0, 0, 1], broker.address(Scheme::Quic).port));
    let nat = UdpProxy::start(behind, Duration::ZERO).await.unwrap();
    let address = Address::new(Scheme::Quic, "127.0.0.1", nat.address().port());
    let mut options = from_tcp([address]);
    options.connect_options = broker.connect_options();
    options.connect_options.quic.keep_alive_interval = Some(Duration::from_millis(200));
    let relay = Serving::start(options).await;
    let client = relay.client("silent").keep_alive(Duration::from_hours(1));
    let client = client.build().await.unwrap();
    let passed = relay.handle.stats().bytes_to_broker;
    // What belongs to the handshake is over by then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = nat.recorded().len();
    let keeping = async {
        while nat.recorded().len() < before + 5 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, keeping).await.expect("packets in silence");
    let sizes = nat.recorded().split_off(before);
    let sizes: Vec<_> = sizes.iter().map(|(_, datagram)| datagram.len()).collect();
    println!("bytes of the packets: {sizes:?}");
    assert!(sizes.iter().all(|size| *size < 64), "{sizes:?}");
    assert_eq!(relay.handle.stats().bytes_to_broker, passed);
    assert!(client.is_connected());
    client.disconnect().await.unwrap();
    broker.shutdown().await;
}
