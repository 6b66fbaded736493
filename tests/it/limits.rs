//! Limits on what clients may use.

use std::time::Duration;

use mq_broker::{MailboxLimits, Overflow};
use mq_client::{
    Client, Error, Outgoing, QoS, ReasonCode, Reconnect, Subscription, TopicFilter, TopicName,
    Version,
};
use mq_testkit::{Scheme, TestBroker, over_each_transport};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

over_each_transport!(
    where_publishers_wait_a_reader_that_stops_is_made_to_leave,
    a_reader_that_stops_is_made_to_leave_however_busy_the_publisher_is,
    memory_stays_below_its_ceiling_while_others_get_everything,
    at_the_ceiling_a_message_that_only_absent_sessions_want_is_refused,
    where_memory_is_full_large_messages_are_refused_and_their_publishers_stay,
    subscriptions_sessions_and_retained_messages_beyond_their_quota_are_refused,
    a_client_that_publishes_too_fast_is_read_slowly_and_loses_nothing,
    connections_beyond_those_of_an_address_are_refused,
    a_message_that_an_absent_subscriber_of_qos_0_misses_is_no_error,
);

async fn connect(broker: &TestBroker, scheme: Scheme, id: &str) -> Client {
    broker.client(scheme, id).build().await.unwrap()
}

/// Connects a client that does not read its subscription to `t`, so that it stops reading its link.
async fn stalled(broker: &TestBroker, scheme: Scheme, qos: QoS) -> (Client, Subscription) {
    let builder = broker.client(scheme, "stalled");
    let client = builder.reconnect(Reconnect::never()).build().await.unwrap();
    let filter = TopicFilter::new("t").unwrap();
    let options = mq_client::SubscribeOptions::new(filter, qos).capacity(1);
    let messages = client.subscribe_with(options).await.unwrap();
    (client, messages)
}

fn message(qos: QoS) -> Outgoing {
    Outgoing::new(TopicName::new("t").unwrap(), vec![7; 10_000]).qos(qos)
}

/// Messages of a writer.
const COUNT: usize = 1_000;

/// Starts a broker where publishers wait for readers that lag, but not for long.
async fn waiting_for_readers() -> TestBroker {
    TestBroker::start_with(|settings| {
        settings.quotas.mailbox.messages = 20;
        settings.quotas.overflow = Some(Overflow::Wait);
        settings.reader_timeout = Some(Duration::from_millis(200));
    })
    .await
}

/// Sends more than the readers take, until the last message is acknowledged.
async fn send_all(writer: &Client) {
    let mut receipts = Vec::new();
    for _ in 0..COUNT {
        receipts.push(writer.send(message(QoS::AtLeastOnce)).await.unwrap());
    }
    receipts.pop().unwrap().acknowledged().await.unwrap();
}

async fn where_publishers_wait_a_reader_that_stops_is_made_to_leave(scheme: Scheme) {
    let broker = waiting_for_readers().await;
    let (_stalled, _unread) = stalled(&broker, scheme, QoS::AtLeastOnce).await;
    let reader = connect(&broker, scheme, "reader").await;
    let mut messages = reader.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let writer = connect(&broker, scheme, "writer").await;
    let reading = async {
        for _ in 0..COUNT {
            messages.recv().await.unwrap();
        }
    };
    tokio::join!(send_all(&writer), reading);
    let metrics = broker.broker().metrics();
    assert_eq!(metrics.evicted.get(), 1);
    while metrics.connections.get() > 2 {
        sleep(Duration::from_millis(5)).await;
    }
    broker.shutdown().await;
}

async fn a_reader_that_stops_is_made_to_leave_however_busy_the_publisher_is(scheme: Scheme) {
    let broker = waiting_for_readers().await;
    let (_stalled, _unread) = stalled(&broker, scheme, QoS::AtLeastOnce).await;
    let writer = connect(&broker, scheme, "writer").await;
    let mut busy = writer.subscribe("busy", QoS::AtLeastOnce).await.unwrap();
    let other = connect(&broker, scheme, "other").await;
    // Wakes the writer's connection in the broker far more often than the stalled reader is looked at.
    let waking = async {
        loop {
            other.publish("busy", "", QoS::AtLeastOnce).await.unwrap();
            busy.recv().await.unwrap();
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = send_all(&writer) => {}
        () = waking => {}
    }
    assert_eq!(broker.broker().metrics().evicted.get(), 1);
    broker.shutdown().await;
}

async fn memory_stays_below_its_ceiling_while_others_get_everything(scheme: Scheme) {
    const COUNT: usize = 3_000;
    const CEILING: usize = 1 << 20;
    let broker = TestBroker::start_with(|settings| {
        settings.quotas.memory = CEILING;
        settings.quotas.mailbox = MailboxLimits {
            messages: 1_000_000,
            bytes: 1 << 30,
        };
    })
    .await;
    let (_stalled, _unread) = stalled(&broker, scheme, QoS::AtMostOnce).await;
    let reader = connect(&broker, scheme, "reader").await;
    let mut messages = reader.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let writer = connect(&broker, scheme, "writer").await;
    let mut most = 0;
    // In step, so that the reader never lags.
    for _ in 0..COUNT {
        writer.send(message(QoS::AtLeastOnce)).await.unwrap();
        messages.recv().await.unwrap();
        most = most.max(broker.broker().memory_used());
    }
    // One reader alone gets half of it, besides what its link has not taken, which counts from its next turn on.
    assert!((CEILING / 3..=CEILING * 3 / 4).contains(&most), "{most}");
    assert!(broker.broker().metrics().dropped.get() > COUNT / 2);
    broker.shutdown().await;
}

async fn at_the_ceiling_a_message_that_only_absent_sessions_want_is_refused(scheme: Scheme) {
    let broker = TestBroker::start_with(|settings| settings.quotas.memory = 2 << 20).await;
    let kept = broker.client(scheme, "kept");
    let kept = kept.session_expiry(Duration::from_mins(1));
    let kept = kept.build().await.unwrap();
    let _messages = kept.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    kept.disconnect().await.unwrap();
    let writer = connect(&broker, scheme, "writer").await;
    let mut taken = 0;
    let refused = loop {
        match writer.publish("t", vec![7; 10_000], QoS::ExactlyOnce).await {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 1_000);
    };
    assert!(taken > 50, "{taken}");
    let is_quota = matches!(
        refused,
        Error::PublishRefused { reason, .. } if reason == ReasonCode::QuotaExceeded
    );
    assert!(is_quota, "{refused}");
    // Before 5.0 there is no reason code for the client.
    let old = broker.client(scheme, "old").version(Version::V3_1_1);
    let old = old.build().await.unwrap();
    let dropped = broker.broker().metrics().dropped.get();
    old.publish("t", vec![7; 10_000], QoS::ExactlyOnce)
        .await
        .unwrap();
    assert_eq!(broker.broker().metrics().dropped.get(), dropped + 1);
    broker.shutdown().await;
}

async fn where_memory_is_full_large_messages_are_refused_and_their_publishers_stay(scheme: Scheme) {
    let broker = TestBroker::start_with(|settings| settings.quotas.memory = 2 << 20).await;
    let kept = broker.client(scheme, "kept");
    let kept = kept.session_expiry(Duration::from_mins(1));
    let kept = kept.build().await.unwrap();
    let _messages = kept.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    kept.disconnect().await.unwrap();
    let filler = connect(&broker, scheme, "filler").await;
    while filler
        .send(message(QoS::AtLeastOnce))
        .await
        .unwrap()
        .acknowledged()
        .await
        .is_ok()
    {}
    let used = broker.broker().memory_used();
    // All are let in before: while a message comes in there may be no room for a session.
    let mut writers = Vec::new();
    for number in 0..4 {
        let writer = broker.client(scheme, &format!("writer{number}"));
        writers.push(writer.reconnect(Reconnect::never()).build().await.unwrap());
    }
    let publish = async |number: usize| {
        let writer = &writers[number];
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            // More than what is left.
            let refused = writer
                .publish("t", vec![7; 1_000_000], qos)
                .await
                .unwrap_err();
            let is_quota = matches!(
                refused,
                Error::PublishRefused { reason, .. } if reason == ReasonCode::QuotaExceeded
            );
            assert!(is_quota, "{qos:?}: {refused}");
            writer.publish("other", "x", qos).await.unwrap();
        }
        writer
            .publish("t", vec![7; 1_000_000], QoS::AtMostOnce)
            .await
            .unwrap();
        writer
            .publish("other", "x", QoS::AtLeastOnce)
            .await
            .unwrap();
    };
    tokio::join!(publish(0), publish(1), publish(2), publish(3));
    for writer in writers {
        writer.disconnect().await.unwrap();
    }
    let metrics = broker.broker().metrics();
    assert_eq!(metrics.evicted.get(), 0);
    assert!(metrics.dropped.get() >= 4);
    while broker.broker().memory_used() > used {
        sleep(Duration::from_millis(5)).await;
    }
    broker.shutdown().await;
}

async fn subscriptions_sessions_and_retained_messages_beyond_their_quota_are_refused(
    scheme: Scheme,
) {
    let broker = TestBroker::start_with(|settings| {
        settings.quotas.subscriptions = 2;
        settings.quotas.sessions = 2;
        settings.quotas.retained = 2;
    })
    .await;
    let client = connect(&broker, scheme, "one").await;
    let _first = client.subscribe("a", QoS::AtMostOnce).await.unwrap();
    let _second = client.subscribe("b", QoS::AtMostOnce).await.unwrap();
    let _again = client.subscribe("b", QoS::AtLeastOnce).await.unwrap();
    let third = client.subscribe("c", QoS::AtMostOnce).await.unwrap_err();
    assert!(third.to_string().contains("quota exceeded"), "{third}");
    for (name, is_taken) in [("a", true), ("b", true), ("c", false), ("a", true)] {
        let topic = TopicName::new(name).unwrap();
        let retained = Outgoing::new(topic, "x").qos(QoS::AtLeastOnce).retain(true);
        let mut receipt = client.send(retained).await.unwrap();
        let answer = receipt.acknowledged().await;
        assert_eq!(answer.is_ok(), is_taken, "{answer:?}");
    }
    let _other = connect(&broker, scheme, "two").await;
    let third = broker.client(scheme, "three");
    let third = third.reconnect(Reconnect::never()).build().await;
    let third = third.unwrap_err();
    let is_quota =
        matches!(&third, Error::Refused { reason, .. } if *reason == ReasonCode::QuotaExceeded);
    assert!(is_quota, "{third}");
    let metrics = broker.broker().metrics();
    let counts = [
        metrics.subscriptions_refused.get(),
        metrics.retained_refused.get(),
        metrics.sessions_refused.get(),
    ];
    assert_eq!(counts, [1; 3]);
    broker.shutdown().await;
}

async fn a_client_that_publishes_too_fast_is_read_slowly_and_loses_nothing(scheme: Scheme) {
    const RATE: u32 = 20;
    let broker =
        TestBroker::start_with(|settings| settings.publish_rate.messages = Some(RATE)).await;
    let reader = connect(&broker, scheme, "reader").await;
    let mut messages = reader.subscribe("t", QoS::AtMostOnce).await.unwrap();
    // No deadline but that of its rate.
    let writer = broker.client(scheme, "writer").version(Version::V3_1_1);
    let writer = writer.keep_alive(Duration::ZERO).build().await.unwrap();
    let began = tokio::time::Instant::now();
    // A second's worth at once, and half a second's more.
    for _ in 0..RATE * 3 / 2 {
        writer.send(message(QoS::AtMostOnce)).await.unwrap();
    }
    writer.publish("t", "last", QoS::AtLeastOnce).await.unwrap();
    for _ in 0..=RATE * 3 / 2 {
        messages.recv().await.unwrap();
    }
    // What was read at once may be owed for: then this one waits for all.
    writer
        .publish("t", "later", QoS::AtLeastOnce)
        .await
        .unwrap();
    assert!(began.elapsed() >= Duration::from_millis(450));
    assert!(broker.broker().metrics().throttled.get() > 0);
    broker.shutdown().await;
}

async fn connections_beyond_those_of_an_address_are_refused(scheme: Scheme) {
    let broker = TestBroker::start_with(|settings| settings.max_connections_per_address = 2).await;
    let first = connect(&broker, scheme, "one").await;
    let _second = connect(&broker, scheme, "two").await;
    let third = broker.client(scheme, "three");
    third
        .reconnect(Reconnect::never())
        .build()
        .await
        .unwrap_err();
    assert!(broker.broker().metrics().refused.get() > 0);
    first.disconnect().await.unwrap();
    let joined = async { while broker.client(scheme, "four").build().await.is_err() {} };
    timeout(Duration::from_secs(10), joined).await.unwrap();
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_clients_prove_their_address_while_many_handshakes_are_under_way() {
    let broker = TestBroker::start_with(|settings| settings.max_handshakes = 8).await;
    let metrics = broker.broker().metrics();
    drop(connect(&broker, Scheme::Quic, "calm").await);
    assert_eq!(metrics.retried.get(), 0);
    let port = broker.address(Scheme::Tls).port;
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    // They are in the broker's hands when the next one at that listener is served.
    drop(connect(&broker, Scheme::Tls, "behind").await);
    let client = connect(&broker, Scheme::Quic, "busy").await;
    client.publish("t", "x", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(metrics.retried.get(), 1);
    drop(silent);
    broker.shutdown().await;
}

async fn a_message_that_an_absent_subscriber_of_qos_0_misses_is_no_error(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let away = broker.client(scheme, "away").clean_start(false);
    let away = away.session_expiry(Duration::from_hours(1));
    let away = away.build().await.unwrap();
    let _missed = away.subscribe("t", QoS::AtMostOnce).await.unwrap();
    away.disconnect().await.unwrap();
    let writer = connect(&broker, scheme, "writer").await;
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut receipt = writer.send(message(qos)).await.unwrap();
        receipt.acknowledged().await.unwrap();
    }
    broker.shutdown().await;
}
