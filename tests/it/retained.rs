//! Retained messages of a subscription, however many there are: all of them, at the reader's pace.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use mq_broker::{Broker, DiskStore, Durability, MemoryStore, Settings, Store as _};
use mq_client::{Client, Outgoing, QoS, TopicFilter};
use mq_codec::{ReasonCode, SubscribeProperties, Subscription, UnsubscribeProperties};
use mq_proto::Event;
use mq_testkit::{ManualClient, Scheme, TestBroker, over_each_transport};
use std::time::Instant;

over_each_transport!(
    all_retained_messages_arrive_whatever_room_the_reader_has,
    a_topic_that_changes_meanwhile_is_sent_once_without_older_messages,
    unsubscribing_ends_retained_messages,
    a_kept_session_gets_the_rest_when_it_is_back,
);

/// More than a mailbox holds, and more than a reader takes at once.
const TOPICS: usize = 3_000;

fn few_places(settings: &mut Settings) {
    settings.quotas.mailbox.messages = 100;
}

/// Retains a message in each of `TOPICS` topics.
async fn retain_all(broker: &TestBroker, scheme: Scheme) -> Client {
    let writer = broker.client(scheme, "writer").build().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..TOPICS {
        receipts.push(writer.send(retained(number, "old")).await.unwrap());
    }
    for mut receipt in receipts {
        receipt.acknowledged().await.unwrap();
    }
    writer
}

fn retained(number: usize, payload: &str) -> Outgoing {
    let topic = format!("site/{}/{number}", number % 7);
    let message = Outgoing::to(topic, payload.to_owned()).unwrap();
    message.qos(QoS::AtLeastOnce).retain(true)
}

/// Connects a reader that takes 20 messages before it acknowledges one.
async fn reader(broker: &TestBroker, scheme: Scheme) -> ManualClient {
    ManualClient::connect(broker, scheme, "reader", |config| {
        config.receive_maximum = NonZeroU16::new(20).unwrap();
        config.connect.clean_start = false;
        config.connect.properties.session_expiry_interval = Some(3_600);
    })
    .await
}

async fn all_retained_messages_arrive_whatever_room_the_reader_has(scheme: Scheme) {
    let broker = TestBroker::start_with(few_places).await;
    let _writer = retain_all(&broker, scheme).await;
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let mut reader = reader(&broker, scheme).await;
        // Not read until there is plenty to read.
        reader.subscribe("site/#", qos).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut topics = BTreeSet::new();
        while topics.len() < TOPICS {
            let received = reader.message().await;
            assert!(received.retain && received.qos == qos);
            assert!(topics.insert(received.message.topic.clone()), "once");
            reader.acknowledge(received);
        }
    }
    assert_eq!(broker.broker().metrics().dropped.get(), 0);
    broker.shutdown().await;
}

async fn a_topic_that_changes_meanwhile_is_sent_once_without_older_messages(scheme: Scheme) {
    let broker = TestBroker::start_with(few_places).await;
    let writer = retain_all(&broker, scheme).await;
    let mut reader = reader(&broker, scheme).await;
    reader.subscribe("site/#", QoS::AtLeastOnce).await;
    let mut seen = BTreeMap::<_, Vec<_>>::new();
    let mut changed = BTreeSet::new();
    // In the beginning nothing is acknowledged, so that most are still to come.
    for number in (0..TOPICS).step_by(100) {
        let mut receipt = writer.send(retained(number, "new")).await.unwrap();
        receipt.acknowledged().await.unwrap();
        changed.insert(retained_topic(number));
    }
    while seen.len() < TOPICS || !changed.iter().all(|topic| seen[topic].contains(&true)) {
        let received = reader.message().await;
        let is_new = received.message.payload == "new";
        assert_ne!(received.retain, is_new, "the new one is no old one");
        let topic = received.message.topic.to_string();
        seen.entry(topic).or_default().push(is_new);
        reader.acknowledge(received);
    }
    let twice: Vec<_> = seen.iter().filter(|(_, all)| all.len() > 1).collect();
    // Those that had left already when they changed.
    assert!(twice.len() <= 1 && twice.iter().all(|(_, all)| **all == [false, true]));
    broker.shutdown().await;
}

fn retained_topic(number: usize) -> String {
    format!("site/{}/{number}", number % 7)
}

async fn unsubscribing_ends_retained_messages(scheme: Scheme) {
    let broker = TestBroker::start_with(few_places).await;
    let _writer = retain_all(&broker, scheme).await;
    let mut reader = reader(&broker, scheme).await;
    reader.subscribe("site/#", QoS::AtLeastOnce).await;
    let filter = TopicFilter::new("site/#").unwrap();
    let properties = UnsubscribeProperties::default();
    let connection = reader.connection();
    let asked = connection.unsubscribe(Instant::now(), vec![filter], properties);
    asked.unwrap();
    let mut count = 0;
    loop {
        match reader.next_within(Duration::from_millis(500)).await {
            Some(Event::Publish(received)) => {
                count += 1;
                reader.acknowledge(received);
            }
            Some(Event::UnsubAck(ack)) => assert_eq!(ack.reasons, [ReasonCode::Success]),
            None => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(count < TOPICS / 2, "{count}");
    // A subscription that is made again has them all again.
    reader.subscribe("site/#", QoS::AtMostOnce).await;
    for _ in 0..TOPICS {
        assert!(reader.message().await.retain);
    }
    broker.shutdown().await;
}

async fn a_kept_session_gets_the_rest_when_it_is_back(scheme: Scheme) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let broker = TestBroker::start_with(|settings| {
        few_places(settings);
        let store = DiskStore::open(&path, Durability::Off).unwrap();
        settings.store = Some(Arc::new(store).into());
    })
    .await;
    let writer = retain_all(&broker, scheme).await;
    let mut topics = BTreeSet::new();
    {
        let mut before = reader(&broker, scheme).await;
        before.subscribe("site/#", QoS::AtLeastOnce).await;
        for _ in 0..TOPICS / 3 {
            let received = before.message().await;
            topics.insert(received.message.topic.to_string());
            before.acknowledge(received);
        }
        before.flush().await;
    }
    // An unsent message changes while no client has the session.
    let last = (0..TOPICS).rev().map(retained_topic);
    let last = last.max().unwrap();
    let message = Outgoing::to(last.clone(), "new").unwrap();
    let message = message.qos(QoS::AtLeastOnce).retain(true);
    let mut receipt = writer.send(message).await.unwrap();
    receipt.acknowledged().await.unwrap();
    let mut after = reader(&broker, scheme).await;
    while topics.len() < TOPICS {
        let received = after.message().await;
        let topic = received.message.topic.to_string();
        if topic == last {
            assert_eq!(received.message.payload, "new");
        }
        topics.insert(topic);
        after.acknowledge(received);
    }
    broker.shutdown().await;
}

/// 30 subscriptions in one packet, as often as the client likes: one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_clients_are_served_while_many_retained_messages_are_sent() {
    let broker = TestBroker::start().await;
    let _writer = retain_all(&broker, Scheme::Tcp).await;
    let mut greedy = reader(&broker, Scheme::Tcp).await;
    let filters = ["site/#", "+/+/#", "site/+/+", "#", "site/1/#", "+/1/+"];
    let all = filters.map(|filter| Subscription {
        filter: TopicFilter::new(filter).unwrap(),
        options: QoS::AtMostOnce.into(),
    });
    let properties = SubscribeProperties::default();
    let connection = greedy.connection();
    let asked = connection.subscribe(Instant::now(), all.to_vec(), properties);
    asked.unwrap();
    greedy.flush().await;
    // The client reads nothing, and all others are served.
    let other = broker.client(Scheme::Tcp, "other").build().await.unwrap();
    let mut messages = other.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    for _ in 0..100 {
        other.publish("t", "x", QoS::AtLeastOnce).await.unwrap();
        mq_testkit::next(&mut messages).await;
    }
    // In all: four have every topic, two those of one site.
    let of_one = (0..TOPICS).filter(|number| number % 7 == 1).count();
    let mut count = 0;
    while count < 4 * TOPICS + 2 * of_one {
        match greedy.next().await {
            Event::Publish(_) => count += 1,
            Event::SubAck(_) => {}
            other => panic!("{other:?}"),
        }
    }
    broker.shutdown().await;
}

/// No session is away, whose time would come.
#[tokio::test(start_paused = true)]
async fn messages_that_have_expired_take_no_memory_whether_anybody_asks_for_them_or_not() {
    let url = "mem://retained-expiry";
    let settings = Settings::new(vec![url.parse().unwrap()]);
    let broker = Broker::start(settings).await.unwrap();
    let writer = Client::builder(url).unwrap().client_id("writer").unwrap();
    let writer = writer.build().await.unwrap();
    let before = broker.memory_used();
    for number in 0..TOPICS {
        let message = retained(number, "soon").message_expiry(Duration::from_secs(5));
        let mut receipt = writer.send(message).await.unwrap();
        receipt.acknowledged().await.unwrap();
    }
    let lasting = retained(TOPICS, "lasting");
    let mut receipt = writer.send(lasting).await.unwrap();
    receipt.acknowledged().await.unwrap();
    assert!(broker.memory_used() > before + 100 * TOPICS);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let used = broker.memory_used() - before;
    assert!((1..10_000).contains(&used), "{used} bytes");
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_have_expired_leave_the_store_and_are_not_counted() {
    const EXPIRING: usize = 600;

    let url = "mem://retained-store-expiry";
    let store = Arc::new(MemoryStore::new());
    let mut settings = Settings::new(vec![url.parse().unwrap()]);
    settings.store = Some(Arc::clone(&store).into());
    let broker = Broker::start(settings).await.unwrap();
    let writer = Client::builder(url).unwrap().client_id("writer").unwrap();
    let writer = writer.build().await.unwrap();
    let hour = Duration::from_hours(1);
    for number in 0..=EXPIRING {
        let mut message = retained(number, "x");
        if number < EXPIRING {
            message = message.message_expiry(hour);
        }
        let mut receipt = writer.send(message).await.unwrap();
        receipt.acknowledged().await.unwrap();
    }
    // The times of the store are of the wall clock, which the test does not advance.
    let counts = || {
        let kept = store.load().unwrap();
        (kept.retained.len(), broker.metrics().retained.get())
    };
    assert_eq!(counts(), (EXPIRING + 1, EXPIRING + 1));
    tokio::time::sleep(hour + Duration::from_mins(1)).await;
    assert_eq!(counts(), (1, 1));
    broker.shutdown().await;
}
