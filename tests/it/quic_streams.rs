//! MQTT on several QUIC streams: each strategy of the client, streams that break, and sessions that move
//! between forms.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use mq_client::{Client, Outgoing, QoS, QuicStreams, Reconnect, Subscription, TopicFilter};
use mq_codec::{ByteStr, Connect, ReasonCode, TopicName, Version};
use mq_proto::{
    ClientConfig, Connection, DataLanes, Delivery, Event, LaneEnd, LaneId, Message, Received,
    Session, Spread,
};
use mq_testkit::{Scheme, TestBroker, UdpProxy};
use mq_transport::{Address, ConnectOptions, Connector, Link, Progress, QuicOptions};
use tokio::time::timeout;

use crate::zero_rtt::{socket_address, through};

mod deliveries;
mod refused;

const TOPICS: usize = 8;
const MESSAGES: usize = 400;

/// The longest wait for the next message.
const SOON: Duration = Duration::from_secs(20);

fn strategies() -> Vec<QuicStreams> {
    let rules = (0..3).map(|priority| mq_client::Priority {
        topics: TopicFilter::new(format!("t/{priority}")).unwrap(),
        priority: priority - 1,
    });
    vec![
        QuicStreams::Control,
        QuicStreams::PerTopic {
            most: QuicStreams::MOST,
        },
        QuicStreams::PerTopic { most: 3 },
        QuicStreams::PerPublish,
        QuicStreams::ByPriority(rules.collect()),
        QuicStreams::Auto {
            most: QuicStreams::MOST,
        },
    ]
}

fn numbered(number: usize, qos: QoS) -> Outgoing {
    let topic = format!("t/{}", number % TOPICS);
    Outgoing::to(topic, number.to_string()).unwrap().qos(qos)
}

/// Received messages: the number of times that each came, and the order by topic.
#[derive(Default)]
struct Got {
    times: BTreeMap<usize, usize>,
    order: HashMap<usize, Vec<usize>>,
}

impl Got {
    /// Takes messages until each number below `messages` has come.
    async fn all(&mut self, from: &mut Subscription, messages: usize) {
        while self.times.len() < messages {
            let incoming = timeout(SOON, from.recv()).await;
            let incoming = incoming.unwrap_or_else(|_| panic!("{} came", self.times.len()));
            let payload = incoming.unwrap().payload;
            let number = std::str::from_utf8(&payload).unwrap();
            let number: usize = number.parse().unwrap();
            *self.times.entry(number).or_default() += 1;
            self.order.entry(number % TOPICS).or_default().push(number);
        }
    }

    fn each_came_once(&self) {
        assert!(
            self.times.values().all(|times| *times == 1),
            "{:?}",
            self.times
        );
    }

    fn each_topic_is_in_order(&self) {
        for order in self.order.values() {
            assert!(order.is_sorted(), "{order:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_each_strategy_messages_of_every_qos_arrive_once_and_in_order() {
    let broker = TestBroker::start().await;
    for streams in strategies() {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let subscriber = broker
                .client(Scheme::Quic, "s")
                .quic_streams(streams.clone());
            let subscriber = subscriber.build().await.unwrap();
            let mut messages = subscriber.subscribe("t/#", qos).await.unwrap();
            let publisher = broker
                .client(Scheme::Quic, "p")
                .quic_streams(streams.clone());
            let publisher = publisher.build().await.unwrap();
            for number in 0..MESSAGES {
                publisher.send(numbered(number, qos)).await.unwrap();
            }
            let mut got = Got::default();
            got.all(&mut messages, MESSAGES).await;
            got.each_came_once();
            if streams != QuicStreams::PerPublish {
                got.each_topic_is_in_order();
            }
            publisher.disconnect().await.unwrap();
            subscriber.disconnect().await.unwrap();
        }
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn much_at_once_on_few_streams_arrives_without_a_pause() {
    let broker = TestBroker::start().await;
    let streams = QuicStreams::PerTopic { most: 8 };
    let subscriber = broker.client(Scheme::Tcp, "s").build().await.unwrap();
    let mut messages = subscriber.subscribe("t/#", QoS::AtMostOnce).await.unwrap();
    let publisher = broker.client(Scheme::Quic, "p").quic_streams(streams);
    let publisher = publisher.build().await.unwrap();
    let payload = vec![b'x'; 16 * 1024];
    let large = move |topic: usize| Outgoing::to(format!("t/{topic}"), payload.clone()).unwrap();
    let sent = tokio::spawn(async move {
        for number in 0..1_000 {
            publisher.send(large(number % 2)).await.unwrap();
        }
        publisher
    });
    // Each wait is short: a stream that is written in turns never waits for somebody else's news.
    for number in 0..1_000 {
        let next = timeout(Duration::from_secs(2), messages.recv()).await;
        assert!(next.is_ok(), "{number} of 1,000 came, then nothing for 2 s");
    }
    drop(sent.await.unwrap());
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_on_a_stream_of_its_own_moves_to_the_next_connection_over_any_transport() {
    let broker = TestBroker::start().await;
    let client = |scheme| {
        let client = broker.client(scheme, "mover").clean_start(false);
        client
            .session_expiry(Duration::from_mins(1))
            .reconnect(Reconnect::never())
    };
    let publisher = broker.client(Scheme::Tcp, "p").build().await.unwrap();
    let streams = QuicStreams::PerTopic { most: 8 };
    let first = client(Scheme::Quic)
        .quic_streams(streams)
        .build()
        .await
        .unwrap();
    let mut messages = first.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    for number in 0..20 {
        publisher
            .send(numbered(number, QoS::ExactlyOnce))
            .await
            .unwrap();
    }
    let mut got = Got::default();
    got.all(&mut messages, 20).await;
    // The next client knows nothing of what the first has not acknowledged.
    let is_complete = async {
        let query = mq_broker::view::Query::default();
        let mover = |client: &mq_broker::view::Client| client.client_id == "mover";
        loop {
            let clients = broker.broker().clients(&query).await.items;
            let in_flight = clients
                .iter()
                .find(|client| mover(client))
                .map(|client| client.in_flight);
            if in_flight == Some(Some(0)) {
                return;
            }
        }
    };
    timeout(SOON, is_complete)
        .await
        .expect("all is acknowledged");
    for (number, scheme) in (20..)
        .step_by(20)
        .zip([Scheme::Tls, Scheme::Ws, Scheme::Quic])
    {
        let next = client(scheme).build().await.unwrap();
        let mut rest = next.messages();
        for number in number..number + 20 {
            publisher
                .send(numbered(number, QoS::ExactlyOnce))
                .await
                .unwrap();
        }
        got.all(&mut rest, number + 20).await;
        next.disconnect().await.unwrap();
    }
    got.each_came_once();
    got.each_topic_is_in_order();
    drop(first);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_qos_0_go_as_datagrams_where_they_fit_and_by_stream_where_not() {
    for buffer in [64 * 1024, 0] {
        let broker =
            TestBroker::start_with(|settings| settings.listen.quic.datagram_buffer = buffer).await;
        let client = broker.client(Scheme::Quic, "c").quic_datagrams(true);
        let client = client.build().await.unwrap();
        let mut messages = client.subscribe("t/#", QoS::AtLeastOnce).await.unwrap();
        let large = Outgoing::to("t/large", vec![b'x'; 5_000]).unwrap();
        client.send(large.clone()).await.unwrap();
        client.send(numbered(1, QoS::AtMostOnce)).await.unwrap();
        client.send(numbered(2, QoS::AtLeastOnce)).await.unwrap();
        let mut sizes = Vec::new();
        for _ in 0..3 {
            let incoming = timeout(SOON, messages.recv()).await.unwrap().unwrap();
            sizes.push(incoming.payload.len());
        }
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 1, 5_000]);
        let sent = client.stats().await.unwrap().messages_as_datagrams;
        assert_eq!(sent, Some(u64::from(buffer > 0)));
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sends_again_is_not_overtaken_on_the_streams_of_its_topics() {
    const IDLE: Duration = Duration::from_millis(400);
    let broker = TestBroker::start_with(|settings| {
        // What is sent again waits for a small window of the control stream. Other streams have their own windows.
        settings.listen.quic.stream_receive_window = 64;
    })
    .await;
    let subscriber = broker.client(Scheme::Tcp, "s").build().await.unwrap();
    let mut messages = subscriber.subscribe("t/#", QoS::AtLeastOnce).await.unwrap();
    let target = socket_address(&broker.address(Scheme::Quic));
    let path = UdpProxy::start(target, Duration::ZERO).await.unwrap();
    let url = through(Scheme::Quic, path.address());
    let options = ConnectOptions {
        quic: QuicOptions {
            idle_timeout: Some(IDLE),
            ..QuicOptions::default()
        },
        ..broker.connect_options()
    };
    let publisher = Client::builder(&url)
        .unwrap()
        .connector(Connector::new(options).unwrap())
        .quic_streams(QuicStreams::PerTopic { most: 63 });
    let publisher = publisher
        .client_id("p")
        .unwrap()
        .clean_start(false)
        .session_expiry(Duration::from_mins(1));
    let publisher = publisher.build().await.unwrap();
    path.hold();
    for number in 0..40 {
        let message = numbered(number, QoS::AtLeastOnce);
        publisher.send(message).await.unwrap();
    }
    let lost = async {
        while publisher.is_connected() {
            tokio::time::sleep(IDLE / 4).await;
        }
        // The broker has given the connection up as well.
        tokio::time::sleep(IDLE).await;
    };
    timeout(SOON, lost).await.unwrap();
    path.release();
    for number in 40..200 {
        let message = numbered(number, QoS::AtLeastOnce);
        publisher.send(message).await.unwrap();
    }
    let mut got = Got::default();
    got.all(&mut messages, 200).await;
    got.each_topic_is_in_order();
    broker.shutdown().await;
}

/// `SplitMix64`.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

/// A client that breaks its own streams.
struct Breaker {
    link: Link,
    connection: Connection,
    lanes: [LaneId; TOPICS],
    received: Vec<Received>,
    acked: usize,
    sent: usize,
    broken: usize,
}

impl Breaker {
    async fn connect(broker: &TestBroker) -> Self {
        Self::connect_asking(broker, None).await
    }

    async fn connect_asking(broker: &TestBroker, deliveries: Option<Spread>) -> Self {
        let link = broker.connector(false);
        let link = link.connect(&broker.address(Scheme::Quic)).await.unwrap();
        let connect = Connect::new(Version::V5, ByteStr::new("breaker").unwrap());
        let config = ClientConfig {
            lanes: DataLanes::Plain,
            deliveries,
            ..ClientConfig::new(connect)
        };
        let mut connection = Connection::client(Instant::now(), config, Session::new());
        connection.connect(Instant::now()).unwrap();
        let mut breaker = Self {
            link,
            connection,
            lanes: [LaneId::CONTROL; TOPICS],
            received: Vec::new(),
            acked: 0,
            sent: 0,
            broken: 0,
        };
        while !breaker.connection.is_open() {
            breaker.step(Duration::from_secs(5)).await;
        }
        breaker
    }

    /// Waits for the link, and acts on what it brings.
    async fn step(&mut self, patience: Duration) {
        let progress = self.link.progress(self.connection.outbox(), true);
        let now = Instant::now();
        match timeout(patience, progress).await {
            Err(_) | Ok(Ok(Progress::Flushed | Progress::Datagrams)) => {}
            Ok(Ok(Progress::Received(lane))) => {
                let buffer = self.link.received(lane);
                self.connection.handle_bytes(now, lane, buffer);
            }
            Ok(Ok(Progress::LaneClosed(lane, how))) => {
                self.connection.handle_lane_closed(now, lane, how.into());
                let buffer = self.link.received(lane);
                self.connection.handle_bytes(now, lane, buffer);
            }
            Ok(ended @ (Ok(Progress::Closed) | Err(_))) => panic!("{ended:?}"),
        }
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Acked { reason, .. } => {
                    assert!(!reason.is_error(), "{reason}");
                    self.acked += 1;
                }
                Event::Publish(received) => self.received.push(received),
                Event::Closed(_) | Event::LaneFailed { .. } => panic!("{event:?}"),
                _ => {}
            }
        }
    }

    /// Returns the stream of a topic: the control stream as long as the broker has granted no other.
    fn lane(&mut self, topic: usize) -> LaneId {
        if self.lanes[topic] == LaneId::CONTROL {
            self.lanes[topic] = self.link.open_lane().unwrap_or(LaneId::CONTROL);
        }
        self.lanes[topic]
    }

    fn subscribe(&mut self, lane: LaneId, filter: &str) {
        let filter = mq_codec::Subscription {
            filter: TopicFilter::new(filter).unwrap(),
            options: QoS::AtLeastOnce.into(),
        };
        let properties = mq_codec::SubscribeProperties::default();
        let now = Instant::now();
        let asked = self
            .connection
            .subscribe_on(now, lane, vec![filter], properties);
        asked.unwrap();
    }

    fn send(&mut self, qos: QoS) {
        let topic = self.sent % TOPICS;
        let lane = self.lane(topic);
        let topic = TopicName::new(format!("t/{topic}")).unwrap();
        let message = Message::new(topic, self.sent.to_string());
        let delivery = Delivery::new(message, qos);
        let now = Instant::now();
        self.connection.publish_on(now, lane, delivery).unwrap();
        self.sent += 1;
    }

    /// Resets the stream of a topic, whatever is under way on it. The topic takes another.
    fn break_lane(&mut self, topic: usize) {
        let lane = self.lane(topic);
        if lane == LaneId::CONTROL {
            return;
        }
        let now = Instant::now();
        self.connection.outbox().end(lane, LaneEnd::Abort(0));
        self.connection
            .handle_lane_closed(now, lane, LaneEnd::Abort(0));
        self.lanes[topic] = LaneId::CONTROL;
        self.broken += 1;
    }
}

/// Breaks streams at random points until `breaks` have broken: nothing is lost, and with QoS 2 nothing comes twice.
async fn streams_break(seed: u64, qos: QoS, breaks: usize) {
    println!("seed {seed}, {qos:?}");
    let mut rng = Rng(seed);
    let broker = TestBroker::start().await;
    let subscriber = broker.client(Scheme::Tcp, "s").build().await.unwrap();
    let mut messages = subscriber.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    let mut breaker = Breaker::connect(&broker).await;
    let reader = tokio::spawn(async move {
        let mut got = Got::default();
        while let Ok(Some(incoming)) = timeout(SOON, messages.recv()).await {
            if &incoming.payload[..] == b"end" {
                break;
            }
            let number = std::str::from_utf8(&incoming.payload).unwrap();
            *got.times.entry(number.parse().unwrap()).or_default() += 1;
        }
        got
    });
    let deadline = Instant::now() + SOON * u32::try_from(breaks.div_ceil(100)).unwrap();
    while breaker.broken < breaks {
        assert!(
            Instant::now() < deadline,
            "{} of {breaks} streams broken",
            breaker.broken
        );
        for _ in 0..rng.below(12) {
            if breaker.connection.window() > 0 {
                breaker.send(qos);
            }
        }
        for _ in 0..rng.below(4) {
            breaker.step(Duration::from_micros(rng.below(400))).await;
        }
        if rng.below(2) == 0 {
            let topic = usize::try_from(rng.below(TOPICS as u64)).unwrap();
            breaker.break_lane(topic);
        }
    }
    let deadline = Instant::now() + SOON;
    while breaker.acked < breaker.sent {
        assert!(
            Instant::now() < deadline,
            "{} of {}",
            breaker.acked,
            breaker.sent
        );
        breaker.step(Duration::from_millis(50)).await;
    }
    let end = broker.client(Scheme::Tcp, "e").build().await.unwrap();
    end.publish("t/end", "end", QoS::AtLeastOnce).await.unwrap();
    let got = reader.await.unwrap();
    assert_eq!(got.times.len(), breaker.sent, "seed {seed}: lost");
    if qos == QoS::ExactlyOnce {
        got.each_came_once();
    }
    println!(
        "{} messages, {} streams broken",
        breaker.sent, breaker.broken
    );
    drop(subscriber);
    broker.shutdown().await;
}

fn seed() -> u64 {
    let given = std::env::var("MQ_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_loses_no_message_of_qos_1() {
    streams_break(seed(), QoS::AtLeastOnce, 300).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_repeats_no_message_of_qos_2() {
    streams_break(seed(), QoS::ExactlyOnce, 300).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "10,000 of each: just streams-break"]
async fn ten_thousand_broken_streams_lose_and_repeat_nothing() {
    streams_break(seed(), QoS::ExactlyOnce, 10_000).await;
    streams_break(seed(), QoS::AtLeastOnce, 10_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_on_a_broken_stream_goes_on_on_the_control_stream() {
    let broker = TestBroker::start().await;
    let mut breaker = Breaker::connect(&broker).await;
    let lane = breaker.lane(0);
    assert_ne!(lane, LaneId::CONTROL);
    breaker.subscribe(lane, "t/#");
    let publisher = broker.client(Scheme::Tcp, "p").build().await.unwrap();
    let mut lanes = Vec::new();
    for round in 0..2 {
        if round == 1 {
            breaker.break_lane(0);
        }
        breaker.flush().await;
        publisher
            .publish("t/0", "x", QoS::AtLeastOnce)
            .await
            .unwrap();
        lanes.push(breaker.next_message().await);
    }
    assert_eq!(lanes, [lane, LaneId::CONTROL]);
    broker.shutdown().await;
}

impl Breaker {
    /// Waits until the broker has acted on everything so far.
    async fn flush(&mut self) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        for _ in 0..20 {
            self.step(Duration::from_millis(10)).await;
        }
    }

    /// Waits for the lane of the next message, and acknowledges the message.
    async fn next_message(&mut self) -> LaneId {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(received) = self.received.pop() {
                let ticket = received.ticket.unwrap();
                let now = Instant::now();
                self.connection.ack(now, ticket, ReasonCode::Success);
                return received.lane;
            }
            assert!(Instant::now() < deadline, "no message came");
            self.step(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_stream_is_refused_goes_on_on_the_control_stream() {
    let broker = TestBroker::start_with(|settings| settings.listen.quic.max_bidi_streams = 1).await;
    let streams = QuicStreams::PerTopic { most: 8 };
    let client: Client = broker
        .client(Scheme::Quic, "c")
        .quic_streams(streams)
        .build()
        .await
        .unwrap();
    let mut messages = client.subscribe("t/#", QoS::AtLeastOnce).await.unwrap();
    for number in 0..50 {
        client
            .send(numbered(number, QoS::AtLeastOnce))
            .await
            .unwrap();
    }
    let mut got = Got::default();
    got.all(&mut messages, 50).await;
    got.each_came_once();
    got.each_topic_is_in_order();
    broker.shutdown().await;
}
