//! Client and broker together, over each transport: the promises of a session.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use mq_broker::Overflow;
use mq_client::{
    Client, CloseReason, Error, Outgoing, QoS, ReasonCode, Reconnect, RetainHandling,
    SubscribeOptions, Subscription, SubscriptionOptions, TopicFilter, TopicName, Version, Will,
    WillProperties,
};
use mq_testkit::{Scheme, TestBroker, next, over_each_transport};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

over_each_transport!(
    every_qos_and_version_arrives_once,
    large_payloads_arrive_whole,
    retained_messages_are_kept_replaced_and_removed,
    a_will_is_published_when_the_link_is_lost_and_not_after_a_goodbye,
    a_kept_session_gets_messages_that_came_while_it_was_away,
    the_same_client_identifier_takes_the_session_over,
    clients_that_race_for_one_identifier_all_have_their_turn,
    members_of_two_groups_get_the_message_of_each,
    a_shared_subscription_shares,
    no_local_and_retain_handling_are_kept,
    overlapping_subscriptions_deliver_once,
    where_publishers_wait_a_slow_subscriber_of_qos_1_loses_nothing,
    expired_messages_are_not_delivered,
    a_publisher_that_leaves_while_it_waits_blocks_nobody,
    many_requests_at_once_get_their_own_responses_also_after_a_restart,
);

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn filter(text: &str) -> TopicFilter {
    TopicFilter::new(text).unwrap()
}

async fn silent(messages: &mut Subscription) {
    let more = timeout(Duration::from_millis(200), messages.recv()).await;
    assert!(more.is_err(), "{more:?}");
}

/// Waits until the broker has seen the last client leave. Otherwise messages whose delivery had begun
/// would be sent again, expired or not.
async fn nobody_connected(broker: &TestBroker) {
    let metrics = broker.broker().metrics();
    timeout(Duration::from_secs(10), async {
        while metrics.connections.get() > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the broker should notice");
}

async fn connect(broker: &TestBroker, scheme: Scheme, id: &str) -> Client {
    broker.client(scheme, id).build().await.unwrap()
}

/// Checks twenty clients of one identifier that connect at once. None is refused: each has the session until the next
/// one takes it.
async fn clients_that_race_for_one_identifier_all_have_their_turn(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let mut racers = JoinSet::new();
    for number in 0..20 {
        let client = broker
            .client(scheme, "the one")
            .clean_start(number % 2 == 0);
        racers.spawn(client.build());
    }
    let mut clients = Vec::new();
    while let Some(client) = timeout(Duration::from_secs(20), racers.join_next())
        .await
        .unwrap()
    {
        match client.unwrap() {
            Ok(client) => clients.push(client),
            // The next one has come right behind its CONNACK.
            Err(Error::Ended(CloseReason::ByPeer(disconnect))) => {
                assert_eq!(disconnect.reason, ReasonCode::SessionTakenOver);
            }
            Err(error) => panic!("{error}"),
        }
    }
    let metrics = broker.broker().metrics();
    let one_is_left = async {
        while metrics.connections.get() != 1 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), one_is_left).await.unwrap();
}

/// Checks that a session that is the only member of two shared groups gets a copy for each (§4.8.2), with the
/// identifier of the group's own subscription.
async fn members_of_two_groups_get_the_message_of_each(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let reader = connect(&broker, scheme, "reader").await;
    let mut each = Vec::new();
    for filter in ["$share/one/t/+", "$share/two/t/#"] {
        each.push(reader.subscribe(filter, QoS::AtLeastOnce).await.unwrap());
    }
    let writer = connect(&broker, scheme, "writer").await;
    for number in 0..10 {
        let payload = number.to_string();
        writer
            .publish("t/x", payload, QoS::AtLeastOnce)
            .await
            .unwrap();
    }
    for messages in &mut each {
        for number in 0..10 {
            assert_eq!(next(messages).await.payload, number.to_string());
        }
        silent(messages).await;
    }
}

async fn every_qos_and_version_arrives_once(scheme: Scheme) {
    let broker = TestBroker::start().await;
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        let client = broker
            .client(scheme, "c")
            .version(version)
            .build()
            .await
            .unwrap();
        let mut messages = client.subscribe("t/+", QoS::ExactlyOnce).await.unwrap();
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            client.publish("t/1", "x", qos).await.unwrap();
            let incoming = next(&mut messages).await;
            assert_eq!((&incoming.payload[..], incoming.qos), (&b"x"[..], qos));
        }
        client.unsubscribe("t/+").await.unwrap();
        client.publish("t/1", "x", QoS::AtLeastOnce).await.unwrap();
        let ended = timeout(Duration::from_secs(10), messages.recv()).await;
        assert!(
            ended.unwrap().is_none(),
            "nothing more, and the stream ends"
        );
        assert_eq!(client.unmatched(), 0);
        client.disconnect().await.unwrap();
    }
    broker.shutdown().await;
}

async fn large_payloads_arrive_whole(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let client = connect(&broker, scheme, "c").await;
    let mut messages = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    for size in [0, 1, 1023, 1025, 65_536, 1_000_000] {
        let payload: Bytes = (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect();
        client
            .publish("t", payload.clone(), QoS::AtLeastOnce)
            .await
            .unwrap();
        assert_eq!(next(&mut messages).await.payload, payload);
    }
    // One byte over the broker's limit of 1 MiB: the client refuses it, and the connection goes on.
    let too_large = Bytes::from(vec![0; 1 << 20]);
    assert!(
        client
            .publish("t", too_large, QoS::AtLeastOnce)
            .await
            .is_err()
    );
    client
        .publish("t", "after", QoS::AtLeastOnce)
        .await
        .unwrap();
    assert_eq!(next(&mut messages).await.payload, "after");
    broker.shutdown().await;
}

async fn retained_messages_are_kept_replaced_and_removed(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let client = connect(&broker, scheme, "c").await;
    let retain = |payload: &'static str| Outgoing::new(topic("r/1"), payload).retain(true);
    for payload in ["old", "new"] {
        let message = retain(payload).qos(QoS::AtLeastOnce);
        let mut receipt = client.send(message).await.unwrap();
        receipt.acknowledged().await.unwrap();
    }
    let mut first = client.subscribe("r/#", QoS::AtLeastOnce).await.unwrap();
    let incoming = next(&mut first).await;
    assert_eq!(incoming.payload, "new");
    assert!(incoming.retain);
    client.send(retain("")).await.unwrap();
    // The removal itself is a message, and not a retained one.
    let incoming = next(&mut first).await;
    assert!(incoming.payload.is_empty() && !incoming.retain);
    let other = connect(&broker, scheme, "d").await;
    let mut second = other.subscribe("r/#", QoS::AtLeastOnce).await.unwrap();
    silent(&mut second).await;
    broker.shutdown().await;
}

async fn a_will_is_published_when_the_link_is_lost_and_not_after_a_goodbye(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let watcher = connect(&broker, scheme, "watcher").await;
    let mut wills = watcher.subscribe("will/#", QoS::AtLeastOnce).await.unwrap();
    let with_will = |id: &'static str| {
        broker
            .client(scheme, id)
            .reconnect(Reconnect::never())
            .will(Will {
                topic: topic(&format!("will/{id}")),
                payload: "gone".into(),
                qos: QoS::AtLeastOnce,
                retain: false,
                properties: WillProperties::default(),
            })
    };
    let polite = with_will("polite").build().await.unwrap();
    polite.disconnect().await.unwrap();
    let lost = with_will("lost").build().await.unwrap();
    // Another takes its identifier: its own link ends without a goodbye from it.
    let _other = connect(&broker, scheme, "lost").await;
    let will = next(&mut wills).await;
    assert_eq!(will.topic, topic("will/lost"));
    assert_eq!(will.payload, "gone");
    silent(&mut wills).await;
    lost.closed().await;
    broker.shutdown().await;
}

async fn a_kept_session_gets_messages_that_came_while_it_was_away(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let kept = |clean| {
        broker
            .client(scheme, "kept")
            .clean_start(clean)
            .session_expiry(Duration::from_mins(1))
    };
    let client = kept(true).build().await.unwrap();
    let _kept = client.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    client.disconnect().await.unwrap();
    nobody_connected(&broker).await;
    let sender = connect(&broker, scheme, "sender").await;
    for (payload, qos) in [
        ("0", QoS::AtMostOnce),
        ("1", QoS::AtLeastOnce),
        ("2", QoS::ExactlyOnce),
    ] {
        sender.publish("t", payload, qos).await.unwrap();
    }
    // The stream is there before the first message can come.
    let mut builder = kept(false);
    let mut messages = builder.subscribe_early("t", QoS::ExactlyOnce).unwrap();
    let _client = builder.build().await.unwrap();
    let mut payloads = Vec::new();
    for _ in 0..2 {
        payloads.push(next(&mut messages).await.payload);
    }
    assert_eq!(payloads, ["1", "2"]);
    silent(&mut messages).await;
    broker.shutdown().await;
}

async fn the_same_client_identifier_takes_the_session_over(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let first = broker
        .client(scheme, "same")
        .reconnect(Reconnect::never())
        .build()
        .await
        .unwrap();
    let second = connect(&broker, scheme, "same").await;
    let error = timeout(Duration::from_secs(10), first.closed())
        .await
        .unwrap();
    let text = error.to_string();
    let taken_over = ReasonCode::SessionTakenOver.name();
    assert!(text.contains(taken_over), "{text}");
    second.publish("t", "x", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(broker.broker().metrics().sessions.get(), 1);
    broker.shutdown().await;
}

/// A program that is run again and again under one name takes its own session over. Over QUIC, what one connection has
/// sent can still be behind what the next one sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_from_before_a_take_over_arrive() {
    for scheme in [Scheme::Tcp, Scheme::Tls, Scheme::Ws, Scheme::Wss] {
        sent_before_a_take_over(scheme).await;
    }
}

async fn sent_before_a_take_over(scheme: Scheme) {
    const ROUNDS: usize = 100;
    let broker = TestBroker::start().await;
    let subscriber = connect(&broker, scheme, "s").await;
    let mut messages = subscriber.subscribe("t", QoS::AtMostOnce).await.unwrap();
    let mut earlier = Vec::new();
    for n in 0..ROUNDS {
        let client = broker.client(scheme, "p").reconnect(Reconnect::never());
        let client = client.build().await.unwrap();
        let message = Outgoing::to("t", n.to_string()).unwrap();
        client.send(message).await.unwrap().written().await.unwrap();
        // Left open: the next one takes its session over.
        earlier.push(client);
    }
    // In any order: they came over as many connections.
    let mut arrived = HashSet::new();
    while arrived.len() < ROUNDS {
        arrived.insert(next(&mut messages).await.payload);
    }
    broker.shutdown().await;
}

async fn a_shared_subscription_shares(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let mut members = Vec::new();
    for id in ["a", "b", "c"] {
        let client = connect(&broker, scheme, id).await;
        let messages = client
            .subscribe("$share/g/t", QoS::AtLeastOnce)
            .await
            .unwrap();
        members.push((client, messages));
    }
    let sender = connect(&broker, scheme, "sender").await;
    for number in 0..30_u32 {
        let payload = number.to_string();
        sender
            .publish("t", payload, QoS::AtLeastOnce)
            .await
            .unwrap();
    }
    let mut numbers = Vec::new();
    for (_, messages) in &mut members {
        let mut count = 0;
        while let Ok(Some(incoming)) = timeout(Duration::from_millis(300), messages.recv()).await {
            let text = String::from_utf8(incoming.payload.to_vec()).unwrap();
            numbers.push(text.parse::<u32>().unwrap());
            count += 1;
        }
        assert_eq!(count, 10, "fair");
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..30), "each once");
    broker.shutdown().await;
}

async fn no_local_and_retain_handling_are_kept(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let client = connect(&broker, scheme, "c").await;
    let message = Outgoing::new(topic("t"), "kept").retain(true);
    let mut receipt = client.send(message.qos(QoS::AtLeastOnce)).await.unwrap();
    receipt.acknowledged().await.unwrap();
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::DoNotSend,
    };
    let mut messages = client
        .subscribe_with(SubscribeOptions::new(filter("t"), options))
        .await
        .unwrap();
    client.publish("t", "own", QoS::AtLeastOnce).await.unwrap();
    silent(&mut messages).await;
    let other = connect(&broker, scheme, "d").await;
    other
        .send(Outgoing::new(topic("t"), "other").retain(true))
        .await
        .unwrap();
    let incoming = next(&mut messages).await;
    assert_eq!(incoming.payload, "other");
    assert!(incoming.retain, "as published");
    broker.shutdown().await;
}

async fn overlapping_subscriptions_deliver_once(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let client = connect(&broker, scheme, "c").await;
    let options =
        SubscribeOptions::new(filter("t/#"), QoS::AtMostOnce).and(filter("t/+"), QoS::ExactlyOnce);
    let mut messages = client.subscribe_with(options).await.unwrap();
    client.publish("t/1", "x", QoS::ExactlyOnce).await.unwrap();
    let incoming = next(&mut messages).await;
    assert_eq!(
        incoming.qos,
        QoS::ExactlyOnce,
        "the highest that was asked for"
    );
    silent(&mut messages).await;
    broker.shutdown().await;
}

async fn where_publishers_wait_a_slow_subscriber_of_qos_1_loses_nothing(scheme: Scheme) {
    const COUNT: u32 = 3000;
    let broker = TestBroker::start_with(|settings| {
        settings.quotas.mailbox.messages = 50;
        settings.quotas.overflow = Some(Overflow::Wait);
    })
    .await;
    let reader = connect(&broker, scheme, "reader").await;
    let options = SubscribeOptions::new(filter("t"), QoS::AtLeastOnce).capacity(10);
    let mut messages = reader.subscribe_with(options).await.unwrap();
    let writer = connect(&broker, scheme, "writer").await;
    let sending = tokio::spawn(async move {
        for number in 0..COUNT {
            let message = Outgoing::new(topic("t"), number.to_string()).qos(QoS::AtLeastOnce);
            writer.send(message).await.unwrap();
        }
        writer.disconnect().await.unwrap();
    });
    sleep(Duration::from_millis(300)).await;
    for number in 0..COUNT {
        assert_eq!(next(&mut messages).await.payload, number.to_string());
    }
    sending.await.unwrap();
    assert_eq!(broker.broker().metrics().dropped.get(), 0);
    broker.shutdown().await;
}

async fn expired_messages_are_not_delivered(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let kept = |clean| {
        broker
            .client(scheme, "kept")
            .clean_start(clean)
            .session_expiry(Duration::from_mins(1))
    };
    let client = kept(true).build().await.unwrap();
    let _kept = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    client.disconnect().await.unwrap();
    nobody_connected(&broker).await;
    let sender = connect(&broker, scheme, "sender").await;
    for (payload, expiry) in [("short", 1), ("long", 100)] {
        let properties = mq_client::PublishProperties {
            message_expiry_interval: Some(expiry),
            ..Default::default()
        };
        let message = Outgoing::new(topic("t"), payload)
            .qos(QoS::AtLeastOnce)
            .properties(properties);
        let mut receipt = sender.send(message).await.unwrap();
        receipt.acknowledged().await.unwrap();
    }
    sleep(Duration::from_millis(1200)).await;
    let mut builder = kept(false);
    let mut messages = builder.subscribe_early("t", QoS::AtLeastOnce).unwrap();
    let _client = builder.build().await.unwrap();
    let incoming = next(&mut messages).await;
    assert_eq!(incoming.payload, "long");
    let left = incoming.properties.message_expiry_interval.unwrap();
    assert!((90..100).contains(&left), "{left}");
    broker.shutdown().await;
}

async fn a_publisher_that_leaves_while_it_waits_blocks_nobody(scheme: Scheme) {
    let broker = TestBroker::start_with(|settings| settings.quotas.mailbox.messages = 5).await;
    let options = SubscribeOptions::new(filter("t"), QoS::AtLeastOnce).capacity(1);
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let reader = connect(&broker, scheme, "reader").await;
        // A stream without a reader: its client stops reading the link.
        let _stalled = reader.subscribe_with(options.clone()).await.unwrap();
        let writers = [0, 1, 2].map(|number| broker.client(scheme, &format!("w{number}")));
        for writer in writers {
            let writer = writer.reconnect(Reconnect::never()).build().await.unwrap();
            for _ in 0..200 {
                let message = Outgoing::new(topic("t"), vec![0; 10_000]).qos(qos);
                writer.send(message).await.unwrap();
            }
            sleep(Duration::from_millis(100)).await;
            // Its messages cannot all have gone out.
            let _ = timeout(Duration::from_millis(200), writer.disconnect()).await;
        }
        // Others go on as ever.
        let other = connect(&broker, scheme, "other").await;
        let mut messages = other.subscribe("u", QoS::AtLeastOnce).await.unwrap();
        other.publish("u", "x", QoS::AtLeastOnce).await.unwrap();
        assert_eq!(next(&mut messages).await.payload, "x");
        other.disconnect().await.unwrap();
        drop(reader);
    }
    nobody_connected(&broker).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_does_not_wait_for_unfinished_handshakes() {
    let broker = TestBroker::start().await;
    let mut silent = Vec::new();
    for scheme in [Scheme::Tls, Scheme::Ws, Scheme::Wss] {
        let port = broker.address(scheme).port;
        // No ClientHello or request ever comes; the connection is in the broker's hands when the
        // next one is served.
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        silent.push(stream.unwrap());
        let client = broker.client(scheme, "next").build().await.unwrap();
        client.disconnect().await.unwrap();
    }
    let asked = std::time::Instant::now();
    broker.shutdown().await;
    // Its deadline is 5 s.
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(silent);
}

async fn many_requests_at_once_get_their_own_responses_also_after_a_restart(scheme: Scheme) {
    let broker = TestBroker::start().await;
    let reconnect = Reconnect {
        initial: Duration::from_millis(10),
        max: Duration::from_millis(100),
        ..Reconnect::default()
    };
    let responder = broker.client(scheme, "responder").reconnect(reconnect);
    let responder = responder.build().await.unwrap();
    let mut questions = responder
        .subscribe("square", QoS::AtLeastOnce)
        .await
        .unwrap();
    let answering = tokio::spawn({
        let responder = responder.clone();
        async move {
            while let Some(question) = questions.recv().await {
                let n: u64 = question.text().unwrap().parse().unwrap();
                responder
                    .respond(&question, (n * n).to_string())
                    .await
                    .unwrap();
            }
        }
    });
    let requester = broker.client(scheme, "requester").reconnect(reconnect);
    let requester = requester.max_requests(10).build().await.unwrap();
    let ask = |n: u64| {
        let requester = requester.clone();
        tokio::spawn(async move { requester.request("square", n.to_string()).await })
    };
    let asked: Vec<_> = (0..100).map(ask).collect();
    for (n, asked) in (0_u64..).zip(asked) {
        let answer = asked.await.unwrap().unwrap();
        assert_eq!(answer.text().unwrap(), (n * n).to_string());
    }

    // Both sessions are gone; both clients subscribe again.
    let broker = broker.restart().await;
    let answer = loop {
        match ask(12).await.unwrap() {
            // The responder is not back yet.
            Err(Error::NoResponder) => sleep(Duration::from_millis(10)).await,
            answer => break answer.unwrap(),
        }
    };
    assert_eq!(answer.text().unwrap(), "144");
    assert_eq!(requester.unmatched_responses(), 0);
    responder.disconnect().await.unwrap();
    answering.await.unwrap();
    let error = ask(13).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoResponder), "{error:?}");
    requester.disconnect().await.unwrap();
    broker.shutdown().await;
}
