//! Streams that the broker opens towards a subscriber.

use std::collections::BTreeSet;

use mq_testkit::ManualClient;

use super::*;

const PER_TOPIC: Spread = Spread::PerTopic { most: Spread::MOST };
const AUTO: Spread = Spread::Auto { most: Spread::MOST };

const EVERY_QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// Connects a subscriber of all topics whose messages the test reads lane by lane.
async fn reader(broker: &TestBroker, asked: Option<Spread>, qos: QoS) -> ManualClient {
    let change = |config: &mut ClientConfig| config.deliveries = asked;
    let mut reader = ManualClient::connect(broker, Scheme::Quic, "reader", change).await;
    reader.subscribe("t/#", qos).await;
    reader
}

async fn publish(broker: &TestBroker, numbers: std::ops::Range<usize>, qos: QoS) {
    let publisher = broker.client(Scheme::Tcp, "p").build().await.unwrap();
    for number in numbers {
        publisher.send(numbered(number, qos)).await.unwrap();
    }
    publisher.disconnect().await.unwrap();
}

/// Messages that a reader has received.
#[derive(Default)]
struct Read {
    got: Got,
    /// Lanes of the messages of each topic, in order, each once in a row.
    lanes: BTreeMap<usize, Vec<LaneId>>,
}

impl Read {
    fn note(&mut self, received: &Received) {
        let number = std::str::from_utf8(&received.message.payload).unwrap();
        let number: usize = number.parse().unwrap();
        *self.got.times.entry(number).or_default() += 1;
        let order = self.got.order.entry(number % TOPICS).or_default();
        order.push(number);
        let lanes = self.lanes.entry(number % TOPICS).or_default();
        lanes.push(received.lane);
        lanes.dedup();
    }

    /// Takes and acknowledges messages until so many different ones have come.
    async fn until(&mut self, reader: &mut ManualClient, messages: usize) {
        while self.got.times.len() < messages {
            if let Event::Publish(received) = reader.next().await {
                self.note(&received);
                reader.acknowledge(received);
            }
        }
    }

    fn all_lanes(&self) -> BTreeSet<LaneId> {
        self.lanes.values().flatten().copied().collect()
    }
}

/// Returns the lanes of 80 messages at QoS 1, and checks that they come once and in order.
async fn lanes_of(broker: &TestBroker, asked: Option<Spread>) -> Read {
    let mut reader = reader(broker, asked, QoS::AtLeastOnce).await;
    publish(broker, 0..80, QoS::AtLeastOnce).await;
    let mut read = Read::default();
    read.until(&mut reader, 80).await;
    read.got.each_came_once();
    read
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_every_qos_arrive_once_and_in_order_with_each_spread_of_the_broker() {
    let broker = TestBroker::start().await;
    let per_three = Spread::PerTopic { most: 3 };
    for spread in [
        PER_TOPIC,
        per_three,
        Spread::PerPublish,
        AUTO,
        Spread::Control,
    ] {
        for qos in EVERY_QOS {
            let subscriber = broker.client(Scheme::Quic, "s").quic_deliveries(spread);
            // A subscription on a stream of its own would keep its messages there.
            let subscriber = subscriber.quic_streams(QuicStreams::PerTopic { most: 9 });
            let subscriber = subscriber.build().await.unwrap();
            let mut messages = subscriber.subscribe("t/#", qos).await.unwrap();
            publish(&broker, 0..MESSAGES, qos).await;
            let mut got = Got::default();
            got.all(&mut messages, MESSAGES).await;
            got.each_came_once();
            if spread != Spread::PerPublish {
                got.each_topic_is_in_order();
            }
            subscriber.disconnect().await.unwrap();
        }
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_topic_of_a_wildcard_subscription_has_a_stream_of_the_broker() {
    let broker = TestBroker::start().await;
    let read = lanes_of(&broker, Some(PER_TOPIC)).await;
    read.got.each_topic_is_in_order();
    assert!(read.lanes.values().all(|lanes| lanes.len() == 1));
    assert_eq!(read.all_lanes().len(), TOPICS);
    assert!(read.all_lanes().iter().all(|lane| lane.is_server_opened()));

    // Further topics share, and each keeps its stream.
    let read = lanes_of(&broker, Some(Spread::PerTopic { most: 3 })).await;
    read.got.each_topic_is_in_order();
    assert!(read.lanes.values().all(|lanes| lanes.len() == 1));
    assert_eq!(read.all_lanes().len(), 3);

    let read = lanes_of(&broker, Some(Spread::PerPublish)).await;
    assert!(read.all_lanes().len() > TOPICS);
    let read = lanes_of(&broker, None).await;
    assert_eq!(read.all_lanes(), BTreeSet::from([LaneId::CONTROL]));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_names_a_spread_for_clients_that_cannot_ask_or_rules_it_out() {
    let with = async |spread, max_streams, asked| {
        let broker = TestBroker::start_with(|settings| {
            settings.deliveries = Some(spread);
            settings.listen.quic.max_bidi_streams = max_streams;
        });
        let broker = broker.await;
        let lanes = lanes_of(&broker, asked).await.all_lanes();
        broker.shutdown().await;
        lanes.len() - usize::from(lanes.contains(&LaneId::CONTROL))
    };
    assert_eq!(with(PER_TOPIC, 64, None).await, TOPICS);
    assert_eq!(with(PER_TOPIC, 64, Some(Spread::Control)).await, 0);
    assert_eq!(with(Spread::Control, 64, Some(PER_TOPIC)).await, 0);
    assert_eq!(with(PER_TOPIC, 6, None).await, 5, "the broker's own limit");
    assert_eq!(with(Spread::PerPublish, 1, None).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_grants_few_streams_or_none_gets_everything_all_the_same() {
    let broker = TestBroker::start().await;
    for granted in [0, 1, 3] {
        for spread in [PER_TOPIC, Spread::PerPublish, AUTO] {
            let quic = QuicOptions {
                max_bidi_streams: granted,
                ..QuicOptions::default()
            };
            let options = ConnectOptions {
                quic,
                ..broker.connect_options()
            };
            let client = broker.client(Scheme::Quic, "s").quic_deliveries(spread);
            let client = client.connector(Connector::new(options).unwrap());
            let client = client.build().await.unwrap();
            let mut messages = client.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
            publish(&broker, 0..80, QoS::ExactlyOnce).await;
            let mut got = Got::default();
            got.all(&mut messages, 80).await;
            got.each_came_once();
            if spread != Spread::PerPublish {
                got.each_topic_is_in_order();
            }
            client.disconnect().await.unwrap();
        }
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_streams_that_the_client_resets_go_on_on_the_control_stream() {
    let broker = TestBroker::start().await;
    for qos in EVERY_QOS {
        let mut reader = reader(&broker, Some(PER_TOPIC), qos).await;
        publish(&broker, 0..80, qos).await;
        let mut read = Read::default();
        let mut unacknowledged = Vec::new();
        while unacknowledged.len() < 80 {
            let received = reader.message().await;
            read.note(&received);
            unacknowledged.push(received);
        }
        let later = unacknowledged.split_off(40);
        for received in unacknowledged {
            reader.acknowledge(received);
        }
        let lanes = read.all_lanes();
        assert_eq!(lanes.len(), TOPICS);
        // With messages that are acknowledged, that are not, and that are under way.
        if qos > QoS::AtMostOnce {
            publish(&broker, 80..160, qos).await;
        }
        for lane in lanes {
            let connection = reader.connection();
            connection.outbox().end(lane, LaneEnd::Abort(0));
            connection.handle_lane_closed(Instant::now(), lane, LaneEnd::Abort(0));
        }
        for received in later {
            reader.acknowledge(received);
        }
        reader
            .read_for(Duration::from_millis(200))
            .await
            .into_iter()
            .for_each(|event| {
                if let Event::Publish(received) = event {
                    read.note(&received);
                    reader.acknowledge(received);
                }
            });
        let first = if qos > QoS::AtMostOnce { 160 } else { 80 };
        publish(&broker, first..MESSAGES, qos).await;
        read.until(&mut reader, MESSAGES).await;
        for lanes in read.lanes.values() {
            let [own, LaneId::CONTROL] = lanes[..] else {
                panic!("{lanes:?}");
            };
            assert!(own.is_server_opened());
        }
        if qos != QoS::AtLeastOnce {
            read.got.each_came_once();
            read.got.each_topic_is_in_order();
        }
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_on_a_stream_of_the_client_keeps_its_messages_there() {
    let broker = TestBroker::start().await;
    let mut breaker = Breaker::connect_asking(&broker, Some(PER_TOPIC)).await;
    let lane = breaker.lane(0);
    for (lane, filter) in [(lane, "t/0"), (LaneId::CONTROL, "t/1")] {
        breaker.subscribe(lane, filter);
    }
    breaker.flush().await;
    let mut lanes = Vec::new();
    for number in 0..2 {
        publish(&broker, number..number + 1, QoS::AtLeastOnce).await;
        lanes.push(breaker.next_message().await);
    }
    assert_eq!(lanes[0], lane);
    assert!(lanes[1].is_server_opened());
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_messages_go_on_the_streams_of_their_topics_in_front_of_later_ones() {
    let broker = TestBroker::start().await;
    let publisher = broker.client(Scheme::Tcp, "p").build().await.unwrap();
    for number in 0..TOPICS {
        let retained = numbered(number, QoS::AtLeastOnce).retain(true);
        let mut receipt = publisher.send(retained).await.unwrap();
        receipt.acknowledged().await.unwrap();
    }
    let mut reader = ManualClient::connect(&broker, Scheme::Quic, "reader", |config| {
        config.deliveries = Some(PER_TOPIC);
    })
    .await;
    let filter = mq_codec::Subscription {
        filter: TopicFilter::new("t/#").unwrap(),
        options: QoS::AtLeastOnce.into(),
    };
    let properties = mq_codec::SubscribeProperties::default();
    let now = Instant::now();
    let asked = reader.connection().subscribe(now, vec![filter], properties);
    asked.unwrap();
    let mut read = Read::default();
    read.until(&mut reader, TOPICS).await;
    publish(&broker, TOPICS..80, QoS::AtLeastOnce).await;
    read.until(&mut reader, 80).await;
    read.got.each_came_once();
    read.got.each_topic_is_in_order();
    assert_eq!(read.all_lanes().len(), TOPICS);
    assert!(read.lanes.values().all(|lanes| lanes.len() == 1));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_resumed_session_are_not_overtaken_on_the_streams_of_their_topics() {
    let broker = TestBroker::start().await;
    let change = |config: &mut ClientConfig| {
        config.deliveries = Some(PER_TOPIC);
        config.connect.clean_start = false;
        config.connect.properties.session_expiry_interval = Some(60);
    };
    let mut first = ManualClient::connect(&broker, Scheme::Quic, "reader", change).await;
    first.subscribe("t/#", QoS::AtLeastOnce).await;
    publish(&broker, 0..40, QoS::AtLeastOnce).await;
    // They come, and are not acknowledged.
    first.message().await;
    drop(first);
    // The repetitions wait for a small window of the control stream. Other streams have their own windows.
    let quic = QuicOptions {
        stream_receive_window: 64,
        ..QuicOptions::default()
    };
    let options = ConnectOptions {
        quic,
        ..broker.connect_options()
    };
    let (connector, address) = (Connector::new(options), broker.address(Scheme::Quic));
    let connector = connector.unwrap();
    let mut reader = ManualClient::connect_by(&connector, &address, "reader", change).await;
    publish(&broker, 40..200, QoS::AtLeastOnce).await;
    let mut read = Read::default();
    read.until(&mut reader, 200).await;
    read.got.each_came_once();
    read.got.each_topic_is_in_order();
    for lanes in read.lanes.values() {
        let [LaneId::CONTROL, own] = lanes[..] else {
            panic!("{lanes:?}");
        };
        assert!(own.is_server_opened());
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_spreads_topics_once_messages_queue_up() {
    let broker = TestBroker::start().await;
    let mut reader = reader(&broker, Some(AUTO), QoS::AtMostOnce).await;
    let mut read = Read::default();
    publish(&broker, 0..80, QoS::AtLeastOnce).await;
    read.until(&mut reader, 80).await;
    assert_eq!(read.all_lanes(), BTreeSet::from([LaneId::CONTROL]));
    // More than the windows of the connection take, while the client does not read.
    let publisher = broker.client(Scheme::Tcp, "p").build().await.unwrap();
    for number in 80..400 {
        let topic = format!("t/{}", number % TOPICS);
        let text = format!("{number:016384}");
        let message = Outgoing::to(topic, text).unwrap().qos(QoS::AtLeastOnce);
        let mut receipt = publisher.send(message).await.unwrap();
        receipt.acknowledged().await.unwrap();
    }
    read.until(&mut reader, 400).await;
    publish(&broker, 400..480, QoS::AtLeastOnce).await;
    read.until(&mut reader, 480).await;
    read.got.each_came_once();
    read.got.each_topic_is_in_order();
    assert_eq!(read.all_lanes().len(), TOPICS + 1);
    broker.shutdown().await;
}
