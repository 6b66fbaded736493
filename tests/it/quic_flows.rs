//! Flows (MQTT-next): a client written with bytes alone, whose flows outlive streams, connections and the
//! broker; and this project's client in that form.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::{BufMut as _, BytesMut};
use mq_broker::{DiskStore, Durability, Settings, Store as _};
use mq_client::{Outgoing, QoS, QuicStreams};
use mq_codec::{
    Ack, ByteStr, Connect, Decoder, Packet, PacketId, Publish, ReasonCode, Subscribe,
    SubscribeProperties, Subscription, TopicFilter, TopicName, Version,
};
use mq_proto::{LaneId, Outbox};
use mq_testkit::{Scheme, TestBroker};
use mq_transport::{ConnectOptions, Connector, LaneClosed, Link, MQTT_NEXT, Progress};
use tokio::time::timeout;

/// The longest wait for what has to come.
const SOON: Duration = Duration::from_secs(20);

/// The flags for QoS state and subscriptions that are kept.
const KEPT: u8 = 0x0A;
const ABORT_IF_NO_STATE: u8 = 0x40;
/// The flag for topic aliases that are kept.
const KEPT_ALIASES: u8 = 0x04;

fn connector(broker: &TestBroker) -> Connector {
    let options = ConnectOptions {
        alpn: vec![MQTT_NEXT.to_vec()],
        ..broker.connect_options()
    };
    Connector::new(options).unwrap()
}

/// A client that says what the test writes.
struct Raw {
    link: Link,
    outbox: Outbox,
    packets: HashMap<LaneId, VecDeque<Packet>>,
    closed: HashMap<LaneId, LaneClosed>,
}

impl Raw {
    async fn connect(broker: &TestBroker, clean: bool) -> (Self, bool) {
        let (connector, address) = (connector(broker), broker.address(Scheme::Quic));
        let link = connector.connect(&address).await.unwrap();
        let mut raw = Self {
            link,
            outbox: Outbox::new(),
            packets: HashMap::new(),
            closed: HashMap::new(),
        };
        let mut connect = Connect::new(Version::V5, ByteStr::new("device").unwrap());
        connect.clean_start = clean;
        connect.properties.session_expiry_interval = Some(600);
        raw.say_bytes(LaneId::CONTROL, &[0x11, 0, 0]);
        raw.say(LaneId::CONTROL, &connect.into());
        let Packet::ConnAck(ack) = raw.next(LaneId::CONTROL).await else {
            panic!("no CONNACK");
        };
        assert_eq!(ack.reason, ReasonCode::Success);
        (raw, ack.session_present)
    }

    fn say_bytes(&mut self, lane: LaneId, bytes: &[u8]) {
        let put: Result<(), core::convert::Infallible> = self.outbox.put(lane, |out| {
            out.put_slice(bytes);
            Ok(())
        });
        let Ok(()) = put;
    }

    fn say(&mut self, lane: LaneId, packet: &Packet) {
        let mut bytes = BytesMut::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        self.say_bytes(lane, &bytes);
    }

    /// Opens a stream that is a flow, kept for a minute.
    fn begin(&mut self, flow: u8, flags: u8) -> LaneId {
        self.begin_kept_for(&[60], flow, flags)
    }

    /// Opens a stream that is a flow; its expiry is a variable-length integer of seconds (RFC 9000 §16).
    fn begin_kept_for(&mut self, expiry: &[u8], flow: u8, flags: u8) -> LaneId {
        let lane = self.link.open_lane().expect("a stream");
        self.say_bytes(lane, &[&[0x12, flow], expiry, &[flags]].concat());
        lane
    }

    async fn progress(&mut self) {
        let progress = self.link.progress(&mut self.outbox, true).await.unwrap();
        match progress {
            Progress::Received(lane) => {
                let mut decoder = Decoder::new(Some(Version::V5), u32::MAX);
                let buffer = self.link.received(lane);
                while let Some(packet) = decoder.decode(buffer).unwrap() {
                    self.packets.entry(lane).or_default().push_back(packet);
                }
            }
            Progress::LaneClosed(lane, how) => {
                self.closed.insert(lane, how);
            }
            Progress::Closed => panic!("closed"),
            Progress::Flushed | Progress::Datagrams => {}
        }
    }

    async fn next(&mut self, lane: LaneId) -> Packet {
        let next = async {
            loop {
                if let Some(packet) = self.packets.get_mut(&lane).and_then(VecDeque::pop_front) {
                    return packet;
                }
                let end = self.closed.get(&lane);
                assert!(end.is_none(), "{lane} ended: {end:?}");
                self.progress().await;
            }
        };
        timeout(SOON, next).await.expect("a packet")
    }

    /// Waits until the broker ends a stream, and returns how.
    async fn end_of(&mut self, lane: LaneId) -> LaneClosed {
        let end = async {
            loop {
                if let Some(end) = self.closed.get(&lane) {
                    return *end;
                }
                self.progress().await;
            }
        };
        timeout(SOON, end).await.expect("an end")
    }

    async fn message(&mut self, lane: LaneId) -> Publish {
        match self.next(lane).await {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?} instead of a message"),
        }
    }

    async fn subscribe(&mut self, lane: LaneId, filter: &str) {
        let subscription = Subscription {
            filter: TopicFilter::new(filter).unwrap(),
            options: QoS::ExactlyOnce.into(),
        };
        let subscribe = Subscribe {
            packet_id: PacketId::FIRST,
            subscriptions: vec![subscription],
            properties: SubscribeProperties::default(),
        };
        self.say(lane, &Packet::Subscribe(subscribe));
        assert!(matches!(self.next(lane).await, Packet::SubAck(_)));
    }

    /// Waits until everything said before has been acted on.
    async fn settle(&mut self) {
        self.say(LaneId::CONTROL, &Packet::PingReq);
        assert!(matches!(self.next(LaneId::CONTROL).await, Packet::PingResp));
    }
}

fn publish(topic: &str, payload: &str, qos: QoS, id: u16, dup: bool) -> Packet {
    let mut publish = Publish::new(TopicName::new(topic).unwrap(), payload.to_owned());
    (publish.qos, publish.dup) = (qos, dup);
    publish.packet_id = PacketId::new(id);
    publish.into()
}

fn ack(id: PacketId) -> Ack {
    Ack::new(id, ReasonCode::Success)
}

/// The store is copied at a moment at which the broker runs, as a crash would leave it.
#[tokio::test(flavor = "multi_thread")]
async fn flows_outlive_a_broker_that_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let (path, cut) = (folder.path().join("store"), folder.path().join("cut"));
    let store = Arc::new(DiskStore::open(&path, Durability::Always).unwrap());
    let with = |store: &Arc<DiskStore>| {
        let store = Arc::clone(store);
        move |settings: &mut Settings| settings.store = Some(store.into())
    };
    let broker = TestBroker::start_with(with(&store)).await;
    let watcher = broker.client(Scheme::Tcp, "watcher").build().await.unwrap();
    let mut seen = watcher.subscribe("out", QoS::ExactlyOnce).await.unwrap();
    let (mut raw, _) = Raw::connect(&broker, true).await;
    let flow = raw.begin(4, KEPT);
    raw.subscribe(flow, "in/#").await;
    // One that came and is not released, and one that waits for PUBREC, and one for PUBCOMP.
    raw.say(flow, &publish("out", "once", QoS::ExactlyOnce, 7, false));
    assert!(matches!(raw.next(flow).await, Packet::PubRec(_)));
    let once = timeout(SOON, seen.recv()).await.unwrap().unwrap();
    assert_eq!(once.payload, "once");
    for payload in ["released", "unanswered"] {
        let message = Outgoing::to("in/1", payload).unwrap();
        let mut sent = watcher.send(message.qos(QoS::ExactlyOnce)).await.unwrap();
        sent.acknowledged().await.unwrap();
    }
    let released = raw.message(flow).await;
    let released_id = released.packet_id.unwrap();
    let unanswered = raw.message(flow).await;
    raw.say(flow, &Packet::PubRec(ack(released_id)));
    assert!(matches!(raw.next(flow).await, Packet::PubRel(_)));
    store.back_up(&cut).unwrap();
    drop(raw);
    broker.shutdown().await;

    let store = Arc::new(DiskStore::open(&cut, Durability::Always).unwrap());
    let broker = TestBroker::start_with(with(&store)).await;
    let watcher = broker.client(Scheme::Tcp, "watcher").build().await.unwrap();
    let mut seen = watcher.subscribe("out", QoS::ExactlyOnce).await.unwrap();
    // While the device is away.
    let message = Outgoing::to("in/2", "later").unwrap();
    let mut sent = watcher.send(message.qos(QoS::AtLeastOnce)).await.unwrap();
    sent.acknowledged().await.unwrap();
    let (mut raw, present) = Raw::connect(&broker, false).await;
    assert!(present);
    raw.settle().await;
    let flow = raw.begin(4, KEPT | ABORT_IF_NO_STATE);
    raw.say(flow, &publish("out", "once", QoS::ExactlyOnce, 7, true));
    let (mut messages, mut pubrels) = (BTreeMap::new(), 0);
    let mut is_known = false;
    while !is_known || pubrels == 0 || messages.len() < 2 {
        match raw.next(flow).await {
            Packet::PubRec(answer) => is_known = answer.packet_id.get() == 7,
            Packet::PubRel(release) => {
                assert_eq!(release.packet_id, released_id);
                pubrels += 1;
            }
            Packet::Publish(message) => {
                let is_again = message.payload == unanswered.payload;
                assert_eq!(message.dup, is_again);
                if is_again {
                    assert_eq!(message.packet_id, unanswered.packet_id);
                }
                messages.insert(message.payload, message.qos);
            }
            other => panic!("{other:?}"),
        }
    }
    raw.say(flow, &Packet::PubRel(ack(PacketId::new(7).unwrap())));
    assert!(matches!(raw.next(flow).await, Packet::PubComp(_)));
    let last = Outgoing::to("out", "last").unwrap().qos(QoS::ExactlyOnce);
    watcher.send(last).await.unwrap();
    let first = timeout(SOON, seen.recv()).await.unwrap().unwrap();
    assert_eq!(first.payload, "last", "the message came a second time");
    raw.settle().await;
    assert!(
        !raw.packets.contains_key(&LaneId::CONTROL) || raw.packets[&LaneId::CONTROL].is_empty()
    );
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_of_the_longest_expiry_outlives_a_restart() {
    const LONGEST: [u8; 8] = [0xFF; 8];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let start = async || {
        let store = DiskStore::open(&path, Durability::Always).unwrap();
        TestBroker::start_with(move |settings| settings.store = Some(Arc::new(store).into())).await
    };
    let broker = start().await;
    let watcher = broker.client(Scheme::Tcp, "watcher").build().await.unwrap();
    let (mut raw, _) = Raw::connect(&broker, true).await;
    let flow = raw.begin_kept_for(&LONGEST, 4, KEPT);
    raw.subscribe(flow, "in").await;
    let message = Outgoing::to("in", "kept").unwrap();
    let mut sent = watcher.send(message.qos(QoS::AtLeastOnce)).await.unwrap();
    sent.acknowledged().await.unwrap();
    drop((raw, watcher));
    broker.shutdown().await;

    let broker = start().await;
    let (mut raw, present) = Raw::connect(&broker, false).await;
    assert!(present);
    let flow = raw.begin_kept_for(&LONGEST, 4, KEPT | ABORT_IF_NO_STATE);
    assert_eq!(raw.message(flow).await.payload, "kept");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_for_which_too_much_waits_is_given_up_alone() {
    let broker = TestBroker::start_with(|settings| settings.quotas.mailbox.messages = 50).await;
    let (mut raw, _) = Raw::connect(&broker, true).await;
    let [gone, other] = [4, 6].map(|flow| raw.begin(flow, KEPT));
    raw.subscribe(gone, "gone").await;
    raw.subscribe(other, "other").await;
    raw.outbox.end(gone, mq_proto::LaneEnd::Abort(0));
    raw.settle().await;
    let publisher = broker
        .client(Scheme::Tcp, "publisher")
        .build()
        .await
        .unwrap();
    for number in 0..200 {
        let message = Outgoing::to("gone", number.to_string()).unwrap();
        let mut sent = publisher.send(message.qos(QoS::AtLeastOnce)).await.unwrap();
        // From some message on nobody is subscribed.
        sent.acknowledged().await.unwrap();
    }
    let message = Outgoing::to("other", "for the other").unwrap();
    publisher.send(message).await.unwrap();
    assert_eq!(raw.message(other).await.payload, "for the other");
    let again = raw.begin(4, KEPT | ABORT_IF_NO_STATE);
    assert!(matches!(
        raw.end_of(again).await,
        LaneClosed::Reset(0xB3) | LaneClosed::Stopped(0xB3)
    ));
    raw.settle().await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn this_projects_client_speaks_it_with_each_strategy() {
    let broker = TestBroker::start().await;
    let strategies = [
        QuicStreams::Control,
        QuicStreams::PerTopic { most: 8 },
        QuicStreams::PerPublish,
        QuicStreams::Auto { most: 8 },
    ];
    for streams in strategies {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let client = |id| {
                let client = broker.client(Scheme::Quic, id);
                client
                    .connector(connector(&broker))
                    .quic_streams(streams.clone())
            };
            let subscriber = client("s").build().await.unwrap();
            let mut messages = subscriber.subscribe("t/#", qos).await.unwrap();
            let publisher = client("p").build().await.unwrap();
            for number in 0..100 {
                let topic = format!("t/{}", number % 8);
                let message = Outgoing::to(topic, number.to_string()).unwrap();
                publisher.send(message.qos(qos)).await.unwrap();
            }
            let mut got: Vec<usize> = Vec::new();
            while got.len() < 100 {
                let message = timeout(SOON, messages.recv()).await.unwrap().unwrap();
                got.push(
                    std::str::from_utf8(&message.payload)
                        .unwrap()
                        .parse()
                        .unwrap(),
                );
            }
            got.sort_unstable();
            assert!(got.into_iter().eq(0..100), "{streams:?}, {qos:?}");
            publisher.disconnect().await.unwrap();
            subscriber.disconnect().await.unwrap();
        }
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_of_a_kept_flow_count_while_no_connection_has_the_session() {
    const FLOWS: u8 = 4;
    const TOPIC: usize = 50_000;
    let broker = TestBroker::start().await;
    let (mut raw, _) = Raw::connect(&broker, true).await;
    let alias = |topic: String, payload: &str| {
        let name = TopicName::new(topic).unwrap_or_default();
        let mut publish = Publish::new(name, payload.to_owned());
        publish.qos = QoS::AtLeastOnce;
        publish.packet_id = Some(PacketId::FIRST);
        publish.properties.topic_alias = Some(1);
        Packet::from(publish)
    };
    for flow in 0..FLOWS {
        let lane = raw.begin(4 + 2 * flow, KEPT_ALIASES);
        raw.say(lane, &alias(format!("{flow}/{}", "x".repeat(TOPIC)), ""));
        assert!(matches!(raw.next(lane).await, Packet::PubAck(_)));
    }
    drop(raw);
    let gone = async {
        while broker.broker().metrics().connections.get() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, gone).await.unwrap();
    let counted = broker.broker().memory_used();
    assert!(
        counted > usize::from(FLOWS) * TOPIC,
        "{counted} are counted"
    );
    // The aliases are there for the next lane of a flow.
    let watcher = broker.client(Scheme::Tcp, "watcher").build().await.unwrap();
    let mut seen = watcher.subscribe("0/#", QoS::AtLeastOnce).await.unwrap();
    let (mut raw, present) = Raw::connect(&broker, false).await;
    assert!(present);
    let lane = raw.begin(4, KEPT_ALIASES);
    raw.say(lane, &alias(String::new(), "by its alias"));
    assert!(matches!(raw.next(lane).await, Packet::PubAck(_)));
    let came = timeout(SOON, seen.recv()).await.unwrap().unwrap();
    assert_eq!(came.payload, "by its alias");
    drop(raw);
    // The broker has an alias for the topic as well, for this one.
    watcher.disconnect().await.unwrap();
    // Nothing of it counts once the session has ended.
    let (raw, present) = Raw::connect(&broker, true).await;
    assert!(!present);
    let given_back = async {
        while broker.broker().memory_used() > TOPIC {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, given_back).await.unwrap();
    drop(raw);
    broker.shutdown().await;
}
