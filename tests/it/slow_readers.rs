//! A slow or stopped reader harms only itself.

use std::{
    num::NonZeroU16,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mq_broker::{
    DiskStore, Durability, MailboxLimits, MemoryStore, Overflow, Settings, Store,
    store::{Change, Position, SessionChange, Snapshot, StoreError, StoredMessage},
};
use mq_client::{Client, Outgoing, QoS, Subscription};
use mq_codec::{ByteStr, ReasonCode, TopicName, Will, WillProperties};
use mq_proto::{CloseReason, Event};
use mq_testkit::{ManualClient, Scheme, TestBroker, next, over_each_transport};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

over_each_transport!(
    acknowledgements_are_read_while_the_clients_own_message_waits,
    acknowledgements_are_read_behind_more_qos_0_than_is_held,
    clients_that_publish_to_each_other_all_get_everything,
    a_reader_that_acknowledges_now_and_then_leaves_publishers_their_rate,
    a_kept_session_that_was_too_slow_keeps_what_it_has,
    the_policy_drop_oldest_drops_the_oldest_messages,
    where_publishers_wait_a_reader_without_progress_is_disconnected,
    messages_without_room_in_memory_go_to_the_store_and_come_back_in_order,
    all_messages_of_a_member_that_ends_reach_the_others,
    a_message_that_waits_for_two_readers_is_delivered_once_both_have_room,
    publishers_that_begin_a_queue_in_the_store_at_once_lose_nothing,
    messages_that_a_member_leaves_are_looked_up_once_no_more_come,
    messages_that_a_member_leaves_reach_others_without_room,
    a_will_for_a_reader_without_room_goes_to_the_store,
);

/// Sets a mailbox for few messages, and the policy for more.
fn small(settings: &mut Settings, messages: usize, overflow: Overflow) {
    settings.quotas.mailbox = MailboxLimits {
        messages,
        bytes: 1 << 20,
    };
    settings.quotas.overflow = Some(overflow);
}

/// Connects a reader that takes `maximum` messages before it acknowledges one.
async fn reader(broker: &TestBroker, scheme: Scheme, id: &str, maximum: u16) -> ManualClient {
    ManualClient::connect(broker, scheme, id, |config| {
        config.receive_maximum = NonZeroU16::new(maximum).unwrap();
    })
    .await
}

/// Connects a client with a session that outlives its connections; an earlier session goes on.
async fn kept(broker: &TestBroker, scheme: Scheme, id: &str, maximum: u16) -> ManualClient {
    ManualClient::connect(broker, scheme, id, |config| {
        config.receive_maximum = NonZeroU16::new(maximum).unwrap();
        config.connect.clean_start = false;
        config.connect.properties.session_expiry_interval = Some(3_600);
    })
    .await
}

/// Takes and acknowledges these numbers, which have to be all there and in order.
async fn read_in_order(client: &mut ManualClient, numbers: std::ops::Range<u32>) {
    for expected in numbers {
        let received = client.message().await;
        assert_eq!(&*received.message.payload, expected.to_string().as_bytes());
        client.acknowledge(received);
    }
}

async fn writer(broker: &TestBroker, scheme: Scheme) -> Client {
    broker.client(scheme, "writer").build().await.unwrap()
}

/// Publishes numbers to `t` at QoS 1, as many at a time as the client has in flight, and waits until
/// all were acknowledged.
async fn publish(writer: &Client, numbers: std::ops::Range<u32>) {
    let mut receipts = Vec::new();
    for number in numbers {
        let message = Outgoing::to("t", number.to_string()).unwrap();
        receipts.push(writer.send(message.qos(QoS::AtLeastOnce)).await.unwrap());
    }
    for mut receipt in receipts {
        let answer = timeout(Duration::from_secs(20), receipt.acknowledged()).await;
        // Refused or not, the publisher was not held up.
        let _ = answer.expect("an acknowledgement");
    }
}

async fn number(messages: &mut Subscription) -> u32 {
    let payload = next(messages).await.payload;
    std::str::from_utf8(&payload).unwrap().parse().unwrap()
}

/// Waits for the end of a connection, and returns its reason, whatever came before.
async fn end(client: &mut ManualClient) -> CloseReason {
    loop {
        if let Event::Closed(reason) = client.next().await {
            return reason;
        }
    }
}

fn reason_of(end: &CloseReason) -> ReasonCode {
    match end {
        CloseReason::ByPeer(disconnect) => disconnect.reason,
        other => panic!("the broker should say why it ends the connection, not {other:?}"),
    }
}

/// Checks a mailbox that is full of unacknowledged messages, and has no room for a message of the client's own: the
/// acknowledgements behind that message make the room.
async fn acknowledgements_are_read_while_the_clients_own_message_waits(scheme: Scheme) {
    let broker = TestBroker::start_with(|settings| small(settings, 10, Overflow::Wait)).await;
    let mut backend = reader(&broker, scheme, "backend", 4).await;
    backend.subscribe("#", QoS::AtLeastOnce).await;
    let writer = writer(&broker, scheme).await;
    let filling = tokio::spawn(async move { publish(&writer, 0..500).await });
    let mut unacknowledged = Vec::new();
    for _ in 0..4 {
        unacknowledged.push(backend.message().await);
    }
    // By now the writer is stuck.
    sleep(Duration::from_millis(300)).await;
    backend.publish("own", "x", QoS::AtLeastOnce).await;
    let mut seen = unacknowledged.len();
    for received in unacknowledged {
        backend.acknowledge(received);
    }
    let mut has_own = false;
    let mut is_acked = false;
    while seen < 501 || !is_acked {
        match backend.next().await {
            Event::Publish(received) => {
                has_own |= &*received.message.topic == "own";
                seen += 1;
                backend.acknowledge(received);
            }
            Event::Acked { reason, .. } => {
                assert_eq!(reason, ReasonCode::Success);
                is_acked = true;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(has_own);
    filling.await.unwrap();
    assert_eq!(broker.broker().metrics().evicted.get(), 0);
    broker.shutdown().await;
}

/// Acknowledgements that come behind many messages of QoS 0 are read. Some of these messages are dropped, as for any
/// reader whose mailbox stays full.
async fn acknowledgements_are_read_behind_more_qos_0_than_is_held(scheme: Scheme) {
    const FILLING: u32 = 100;
    const QOS_0: usize = 5_000;
    let broker = TestBroker::start_with(|settings| small(settings, 10, Overflow::Wait)).await;
    let mut backend = reader(&broker, scheme, "backend", 4).await;
    backend.subscribe("t", QoS::AtLeastOnce).await;
    let writer = writer(&broker, scheme).await;
    let filling = tokio::spawn(async move { publish(&writer, 0..FILLING).await });
    let mut unacknowledged = Vec::new();
    for _ in 0..4 {
        unacknowledged.push(backend.message().await);
    }
    sleep(Duration::from_millis(300)).await;
    backend.publish("t", "own", QoS::AtLeastOnce).await;
    for _ in 0..QOS_0 {
        backend.publish("nobody", "x", QoS::AtMostOnce).await;
    }
    for received in unacknowledged {
        backend.acknowledge(received);
    }
    let mut seen = 4;
    let mut is_acked = false;
    while seen < FILLING + 1 || !is_acked {
        match backend.next().await {
            Event::Publish(received) => {
                seen += 1;
                backend.acknowledge(received);
            }
            Event::Acked { .. } => is_acked = true,
            other => panic!("{other:?}"),
        }
    }
    filling.await.unwrap();
    assert!(broker.broker().metrics().dropped.get() <= QOS_0);
    broker.shutdown().await;
}

async fn clients_that_publish_to_each_other_all_get_everything(scheme: Scheme) {
    const CLIENTS: u32 = 6;
    const EACH: u32 = 300;
    let broker = TestBroker::start_with(|settings| small(settings, 50, Overflow::Wait)).await;
    let mut all = Vec::new();
    for index in 0..CLIENTS {
        let client = broker.client(scheme, &format!("client-{index}"));
        let client = client.build().await.unwrap();
        let messages = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
        all.push((client, messages));
    }
    let tasks = all.into_iter().map(|(client, mut messages)| {
        tokio::spawn(async move {
            let reading = async {
                for _ in 0..CLIENTS * EACH {
                    number(&mut messages).await;
                }
            };
            tokio::join!(publish(&client, 0..EACH), reading);
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(broker.broker().metrics().dropped.get(), 0);
    broker.shutdown().await;
}

/// Checks a reader that takes one message at a time and acknowledges it late: without a store it is disconnected, and
/// publishers hardly notice.
async fn a_reader_that_acknowledges_now_and_then_leaves_publishers_their_rate(scheme: Scheme) {
    const ROOM: u32 = 100;
    let broker = TestBroker::start_with(|settings| {
        small(settings, usize::try_from(ROOM).unwrap(), Overflow::Evict);
        settings.quotas.overflow = None;
    })
    .await;
    let mut slow = reader(&broker, scheme, "slow", 1).await;
    slow.subscribe("t", QoS::AtLeastOnce).await;
    let prompt = broker.client(scheme, "prompt").build().await.unwrap();
    let mut messages = prompt.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let writer = writer(&broker, scheme).await;
    let reading = async {
        // As many at a time as the mailbox holds: this reader keeps up on a busy machine too.
        for first in (0..3_000).step_by(ROOM as usize) {
            let numbers = first..first + ROOM;
            publish(&writer, numbers.clone()).await;
            for expected in numbers {
                assert_eq!(number(&mut messages).await, expected);
            }
        }
    };
    let acknowledging = async {
        let received = slow.message().await;
        sleep(Duration::from_millis(200)).await;
        slow.acknowledge(received);
        end(&mut slow).await
    };
    let ((), end) = tokio::join!(reading, acknowledging);
    assert_eq!(reason_of(&end), ReasonCode::QuotaExceeded);
    assert_eq!(broker.broker().metrics().evicted.get(), 1);
    broker.shutdown().await;
}

async fn a_kept_session_that_was_too_slow_keeps_what_it_has(scheme: Scheme) {
    const ROOM: u32 = 300;
    let broker = TestBroker::start_with(|settings| {
        small(settings, usize::try_from(ROOM).unwrap(), Overflow::Evict);
    })
    .await;
    let mut slow = kept(&broker, scheme, "slow", 1).await;
    slow.subscribe("t", QoS::AtLeastOnce).await;
    let writer = writer(&broker, scheme).await;
    publish(&writer, 0..2_000).await;
    assert_eq!(reason_of(&end(&mut slow).await), ReasonCode::QuotaExceeded);
    // No other subscriber wants it, and the publisher gets the reason.
    let message = Outgoing::to("t", "x").unwrap().qos(QoS::AtLeastOnce);
    let mut receipt = writer.send(message).await.unwrap();
    let refused = receipt.acknowledged().await.unwrap_err();
    assert!(refused.to_string().contains("quota exceeded"), "{refused}");
    let mut again = kept(&broker, scheme, "slow", 20).await;
    read_in_order(&mut again, 0..ROOM).await;
    broker.shutdown().await;
}

async fn the_policy_drop_oldest_drops_the_oldest_messages(scheme: Scheme) {
    const ROOM: u32 = 50;
    let broker = TestBroker::start_with(|settings| {
        small(
            settings,
            usize::try_from(ROOM).unwrap(),
            Overflow::DropOldest,
        );
    })
    .await;
    let mut slow = reader(&broker, scheme, "slow", 1).await;
    slow.subscribe("t", QoS::AtLeastOnce).await;
    let writer = writer(&broker, scheme).await;
    publish(&writer, 0..2_000).await;
    let mut numbers = Vec::new();
    while numbers.last() != Some(&1_999) {
        let received = slow.message().await;
        let text = std::str::from_utf8(&received.message.payload).unwrap();
        numbers.push(text.parse::<u32>().unwrap());
        slow.acknowledge(received);
    }
    assert!(numbers.is_sorted());
    let last = usize::try_from(ROOM).unwrap();
    let newest: Vec<_> = (2_000 - ROOM..2_000).collect();
    assert_eq!(numbers[numbers.len() - last..], newest);
    let dropped = broker.broker().metrics().dropped.get();
    assert_eq!(dropped + numbers.len(), 2_000);
    assert_eq!(broker.broker().metrics().evicted.get(), 0);
    broker.shutdown().await;
}

/// Checks a message that waits for two readers: the reader that it waited for first has read all that there is when the
/// other begins to read.
async fn a_message_that_waits_for_two_readers_is_delivered_once_both_have_room(scheme: Scheme) {
    const COUNT: u32 = 30;
    let broker = TestBroker::start_with(|settings| small(settings, 4, Overflow::Wait)).await;
    let mut one = reader(&broker, scheme, "one", 1).await;
    one.subscribe("t", QoS::AtLeastOnce).await;
    let mut other = reader(&broker, scheme, "other", 1).await;
    other.subscribe("t", QoS::AtLeastOnce).await;
    let writer = writer(&broker, scheme).await;
    let publishing = tokio::spawn(async move { publish(&writer, 0..COUNT).await });
    // By then the patience with both readers is over.
    sleep(Duration::from_millis(300)).await;
    let pause = Duration::from_millis(300);
    let mut read = [0, 0];
    let begun = Instant::now();
    while read != [COUNT, COUNT] {
        for (reader, read) in [&mut one, &mut other].into_iter().zip(&mut read) {
            while let Some(event) = reader.next_within(pause).await {
                let Event::Publish(received) = event else {
                    panic!("a message should come, not {event:?}");
                };
                reader.acknowledge(received);
                *read += 1;
            }
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "stuck at {read:?}"
        );
    }
    publishing.await.unwrap();
    broker.shutdown().await;
}

/// Checks that a reader is disconnected however often it acknowledges.
async fn where_publishers_wait_a_reader_without_progress_is_disconnected(scheme: Scheme) {
    let broker = TestBroker::start_with(|settings| {
        small(settings, 1_000, Overflow::Wait);
        settings.reader_timeout = Some(Duration::from_millis(500));
    })
    .await;
    let mut slow = reader(&broker, scheme, "slow", 1).await;
    slow.subscribe("t", QoS::AtLeastOnce).await;
    let writer = writer(&broker, scheme).await;
    let publishing = publish(&writer, 0..3_000);
    let acknowledging = async {
        loop {
            match slow.next().await {
                Event::Publish(received) => {
                    sleep(Duration::from_millis(20)).await;
                    slow.acknowledge(received);
                }
                Event::Closed(reason) => return reason,
                other => panic!("{other:?}"),
            }
        }
    };
    let ((), end) = tokio::join!(publishing, acknowledging);
    assert_eq!(reason_of(&end), ReasonCode::QuotaExceeded);
    broker.shutdown().await;
}

async fn messages_without_room_in_memory_go_to_the_store_and_come_back_in_order(scheme: Scheme) {
    const COUNT: u32 = 3_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let open = || Arc::new(DiskStore::open(&path, Durability::Off).unwrap());
    let broker = TestBroker::start_with(|settings| {
        small(settings, 100, Overflow::Spill);
        settings.store = Some(open().into());
    })
    .await;
    let mut away = kept(&broker, scheme, "kept", 100).await;
    away.subscribe("t", QoS::AtLeastOnce).await;
    drop(away);
    // Its session ends with its connection, and it reads nothing for now.
    let mut slow = reader(&broker, scheme, "slow", 2).await;
    slow.subscribe("t", QoS::AtLeastOnce).await;
    let publisher = writer(&broker, scheme).await;
    publish(&publisher, 0..COUNT).await;
    let metrics = broker.broker().metrics();
    assert!(metrics.spilled.get() > 4_000, "{}", metrics.spilled.get());
    assert_eq!((metrics.dropped.get(), metrics.evicted.get()), (0, 0));
    read_in_order(&mut slow, 0..COUNT).await;
    drop((slow, publisher));
    // A session that was away is served from the store by the next broker, too.
    let broker = broker
        .restart_with(|settings| {
            small(settings, 100, Overflow::Spill);
            settings.store = Some(open().into());
        })
        .await;
    let mut again = kept(&broker, scheme, "kept", 100).await;
    read_in_order(&mut again, 0..COUNT).await;
    // And goes on with what comes now.
    let publisher = writer(&broker, scheme).await;
    publish(&publisher, 0..10).await;
    read_in_order(&mut again, 0..10).await;
    broker.shutdown().await;
}

/// A store that takes 500 ms to record the first session that ends with its connection, and, while the
/// test sets `reads_slowly`, 500 ms for each read.
#[derive(Debug, Default)]
struct Hesitant {
    store: MemoryStore,
    has_hesitated: AtomicBool,
    reads_slowly: AtomicBool,
}

impl Store for Hesitant {
    fn load(&self) -> Result<Snapshot, StoreError> {
        self.store.load()
    }

    fn record(&self, changes: Vec<Change>) -> Position {
        let begins = changes.iter().any(|change| {
            let Change::Session(_, change) = change else {
                return false;
            };
            matches!(change, SessionChange::Attached { expiry, .. } if *expiry == Some(Duration::ZERO))
        });
        if begins && !self.has_hesitated.swap(true, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(500));
        }
        self.store.record(changes)
    }

    fn settled(&self) -> watch::Receiver<Position> {
        self.store.settled()
    }

    fn can_spill(&self) -> bool {
        true
    }

    fn queued(
        &self,
        client_id: &ByteStr,
        numbers: RangeInclusive<u64>,
        most: usize,
    ) -> Result<Vec<(u64, StoredMessage)>, StoreError> {
        if self.reads_slowly.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(500));
        }
        self.store.queued(client_id, numbers, most)
    }
}

/// Checks that messages that come while the broker reads the leavings of a member are not for that member.
async fn messages_that_a_member_leaves_are_looked_up_once_no_more_come(scheme: Scheme) {
    let store = Arc::new(Hesitant::default());
    let broker = TestBroker::start_with(|settings| {
        small(settings, 20, Overflow::Spill);
        settings.store = Some(Arc::clone(&store).into());
    })
    .await;
    let mut leaving = reader(&broker, scheme, "leaving", 1).await;
    leaving.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    let mut staying = reader(&broker, scheme, "staying", 1).await;
    staying.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    let writer = writer(&broker, scheme).await;
    publish(&writer, 0..400).await;
    store.reads_slowly.store(true, Ordering::Relaxed);
    drop(leaving);
    sleep(Duration::from_millis(100)).await;
    publish(&writer, 400..440).await;
    store.reads_slowly.store(false, Ordering::Relaxed);
    let numbers = read_all(&mut staying, 440).await;
    assert_eq!(numbers, (0..440).collect::<Vec<_>>());
    broker.shutdown().await;
}

/// Checks a group in which the other member has room for few messages, and publishers do not wait for it.
async fn messages_that_a_member_leaves_reach_others_without_room(scheme: Scheme) {
    let broker = TestBroker::start_with(|settings| {
        small(settings, 20, Overflow::Spill);
        settings.store = Some(Arc::new(MemoryStore::new()).into());
    })
    .await;
    let mut leaving = reader(&broker, scheme, "leaving", 1).await;
    leaving.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    let writer = writer(&broker, scheme).await;
    publish(&writer, 0..200).await;
    let mut staying = reader(&broker, scheme, "staying", 1).await;
    staying.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    drop(leaving);
    let numbers = read_all(&mut staying, 200).await;
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    assert_eq!(broker.broker().metrics().dropped.get(), 0);
    broker.shutdown().await;
}

async fn a_will_for_a_reader_without_room_goes_to_the_store(scheme: Scheme) {
    let broker = TestBroker::start_with(|settings| {
        small(settings, 1_000, Overflow::Spill);
        settings.quotas.mailbox.bytes = 10_000;
        settings.store = Some(Arc::new(MemoryStore::new()).into());
    })
    .await;
    let mut slow = reader(&broker, scheme, "slow", 1).await;
    slow.subscribe("t", QoS::AtLeastOnce).await;
    let mortal = ManualClient::connect(&broker, scheme, "mortal", |config| {
        config.connect.will = Some(Will {
            topic: TopicName::new("t").unwrap(),
            // More than there is room for beside anything else.
            payload: format!("{:010000}", 10).into(),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: WillProperties::default(),
        });
    });
    let mortal = mortal.await;
    let writer = writer(&broker, scheme).await;
    for number in 0..10 {
        publish(&writer, number..number + 1).await;
    }
    drop(mortal);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(read_all(&mut slow, 11).await, (0..11).collect::<Vec<_>>());
    broker.shutdown().await;
}

/// Reads `count` numbers and sorts them.
async fn read_all(client: &mut ManualClient, count: usize) -> Vec<u32> {
    let mut numbers = Vec::new();
    for _ in 0..count {
        let received = client.message().await;
        let text = std::str::from_utf8(&received.message.payload).unwrap();
        numbers.push(text.parse().unwrap());
        client.acknowledge(received);
    }
    numbers.sort_unstable();
    numbers
}

/// Checks that the session is in the store before any of its messages, whichever publisher brings the first.
async fn publishers_that_begin_a_queue_in_the_store_at_once_lose_nothing(scheme: Scheme) {
    const EACH: u32 = 30;
    let store = Arc::new(Hesitant::default());
    let broker = TestBroker::start_with(|settings| {
        small(settings, 4, Overflow::Spill);
        settings.store = Some(Arc::clone(&store).into());
    })
    .await;
    let mut slow = reader(&broker, scheme, "slow", 1).await;
    slow.subscribe("t", QoS::AtLeastOnce).await;
    let [one, other] = ["one", "other"].map(|name| broker.client(scheme, name));
    let (one, other) = tokio::join!(one.build(), other.build());
    let (one, other) = (one.unwrap(), other.unwrap());
    tokio::join!(publish(&one, 0..EACH), publish(&other, EACH..2 * EACH));
    assert!(store.has_hesitated.load(Ordering::Relaxed));
    let numbers = read_all(&mut slow, 2 * EACH as usize).await;
    assert_eq!(numbers, (0..2 * EACH).collect::<Vec<_>>());
    broker.shutdown().await;
}

/// Checks the messages that wait for a member, and those that it has not acknowledged (§4.8.2).
async fn all_messages_of_a_member_that_ends_reach_the_others(scheme: Scheme) {
    const COUNT: u32 = 600;
    let broker = TestBroker::start().await;
    let mut leaving = reader(&broker, scheme, "leaving", 20).await;
    leaving.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    let staying = broker.client(scheme, "staying").build().await.unwrap();
    let mut messages = staying
        .subscribe("$share/g/t", QoS::AtLeastOnce)
        .await
        .unwrap();
    let writer = writer(&broker, scheme).await;
    publish(&writer, 0..COUNT).await;
    let first = leaving.message().await;
    let first_number = first.message.payload.clone();
    leaving.acknowledge(first);
    leaving.flush().await;
    // The acknowledgement has come when what is behind it is answered.
    leaving.publish("other", "x", QoS::AtLeastOnce).await;
    while !matches!(leaving.next().await, Event::Acked { .. }) {}
    drop(leaving);
    let mut numbers = Vec::new();
    for _ in 1..COUNT {
        numbers.push(number(&mut messages).await);
    }
    numbers.sort_unstable();
    let done: u32 = std::str::from_utf8(&first_number).unwrap().parse().unwrap();
    let expected: Vec<_> = (0..COUNT).filter(|number| *number != done).collect();
    assert_eq!(numbers, expected);
    broker.shutdown().await;
}
