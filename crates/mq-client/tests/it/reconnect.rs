//! Lost connections: back-off, sessions that are resumed or lost, and errors that end it.

use std::{
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use mq_client::{Client, Error, Event, Outgoing, QoS, ReasonCode, Reconnect, Version};
use mq_codec::Disconnect;
use mq_proto::{Event as ProtoEvent, ServerConfig, Session};

use crate::util::{self, Server};

const SECOND: Duration = Duration::from_secs(1);

/// Waits for what the client does by itself, in virtual time.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    let limit = Duration::from_mins(1);
    let done = tokio::time::timeout(limit, future).await;
    done.expect("the client should go on")
}

fn message(payload: &str, qos: QoS) -> Outgoing {
    Outgoing::to("a/b", payload.to_owned()).unwrap().qos(qos)
}

#[tokio::test(start_paused = true)]
async fn attempts_back_off_and_a_connection_is_reported() {
    let mut server = Server::bind("backoff").await;
    let (client, peer) = server.pair(server.builder()).await;
    let builder = server.builder();
    let mut events = client.events();
    drop((server, peer));
    let mut waits = Vec::new();
    while waits.len() < 4 {
        match events.recv().await.unwrap() {
            Event::Reconnecting { attempt, after } => waits.push((attempt, after.as_secs())),
            Event::Disconnected { why } => assert!(why.is_temporary(), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(waits, [(1, 1), (2, 2), (3, 4), (4, 8)]);
    assert!(!client.is_connected());
    let mut server = Server::bind("backoff").await;
    let _peer = server.client().await;
    client.connected().await.unwrap();
    while !matches!(events.recv().await.unwrap(), Event::Connected(_)) {}
    drop(builder);
}

#[tokio::test(start_paused = true)]
async fn a_resumed_session_sends_at_least_once_again_with_dup() {
    let mut server = Server::bind("resume_1").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut receipt = client.send(message("x", QoS::AtLeastOnce)).await.unwrap();
    assert!(!peer.publish().await.dup);
    let session = peer.connection.into_session();
    drop(peer.link);

    let mut peer = server.link().await;
    assert!(!peer.connect().await.clean_start);
    peer.accept(session, true).await;
    let received = peer.publish().await;
    assert!(received.dup);
    peer.ack(received.ticket).await;
    assert_eq!(receipt.acknowledged().await.unwrap(), ReasonCode::Success);
}

#[tokio::test(start_paused = true)]
async fn messages_before_connack_keep_to_the_receive_maximum_of_the_connection_before() {
    let mut server = Server::bind("receive_maximum_kept").await;
    let config = ServerConfig {
        receive_maximum: NonZeroU16::new(2).unwrap(),
        ..ServerConfig::default()
    };
    let first = async {
        let mut peer = server.link_with(config.clone()).await;
        peer.connect().await;
        peer.accept(Session::new(), false).await;
        peer
    };
    let builder = Client::builder("mem://receive_maximum_kept").unwrap();
    let (client, peer) = tokio::join!(builder.build(), first);
    let client = client.unwrap();
    drop(peer);

    let mut receipts = Vec::new();
    for number in 0..10 {
        let message = message(&number.to_string(), QoS::AtLeastOnce);
        receipts.push(client.send(message).await.unwrap());
    }
    let mut peer = soon(server.link_with(config)).await;
    peer.connect().await;
    // Time enough for everything that the client sends before CONNACK.
    tokio::time::sleep(SECOND).await;
    peer.accept(Session::new(), true).await;
    let serving = async {
        let mut tickets = Vec::new();
        for number in 0..10 {
            let received = soon(peer.publish()).await;
            assert_eq!(util::text(&received), number.to_string());
            tickets.extend(received.ticket);
            if tickets.len() == 2 {
                for ticket in tickets.drain(..) {
                    peer.ack(Some(ticket)).await;
                }
            }
        }
        std::future::pending::<()>().await;
    };
    let acknowledged = async {
        for receipt in &mut receipts {
            receipt.acknowledged().await.unwrap();
        }
    };
    tokio::select! {
        () = serving => {}
        () = acknowledged => {}
    }
}

#[tokio::test(start_paused = true)]
async fn messages_before_connack_keep_to_the_other_limits_of_the_connection_before() {
    let mut server = Server::bind("limits_kept").await;
    let config = || ServerConfig {
        maximum_qos: QoS::AtLeastOnce,
        retain_available: false,
        max_packet_size: NonZeroU32::new(100).unwrap(),
        ..ServerConfig::default()
    };
    let first = async {
        let mut peer = server.link_with(config()).await;
        peer.connect().await;
        peer.accept(Session::new(), false).await;
        peer
    };
    let builder = Client::builder("mem://limits_kept").unwrap();
    let (client, peer) = tokio::join!(builder.build(), first);
    let client = client.unwrap();
    drop(peer);

    for refused in [
        message("x", QoS::ExactlyOnce),
        message("x", QoS::AtMostOnce).retain(true),
        message(&"x".repeat(200), QoS::AtLeastOnce),
    ] {
        let mut events = client.events();
        let mut receipt = client.send(refused).await.unwrap();
        let mut peer = soon(server.link_with(config())).await;
        peer.connect().await;
        tokio::time::sleep(SECOND).await;
        peer.accept(Session::new(), true).await;
        let answer = soon(receipt.acknowledged()).await;
        assert!(matches!(answer, Err(Error::NotSent(_))), "{answer:?}");
        drop(peer);
        while !matches!(events.recv().await.unwrap(), Event::Disconnected { .. }) {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_receive_maximum_that_was_not_known_yet_does_not_end_the_client() {
    let mut server = Server::bind("receive_maximum_unknown").await;
    let (client, peer) = server.pair(server.builder()).await;
    drop(peer);
    let mut receipt = client.send(message("x", QoS::AtLeastOnce)).await.unwrap();

    let mut peer = soon(server.link()).await;
    peer.connect().await;
    peer.accept(Session::new(), true).await;
    let too_many = ReasonCode::ReceiveMaximumExceeded;
    peer.connection.disconnect(Disconnect::new(too_many));
    peer.flush().await;
    drop(peer);

    let mut peer = soon(server.link()).await;
    peer.connect().await;
    peer.accept(Session::new(), true).await;
    let received = peer.publish().await;
    peer.ack(received.ticket).await;
    assert_eq!(receipt.acknowledged().await.unwrap(), ReasonCode::Success);
}

#[tokio::test(start_paused = true)]
async fn a_resumed_session_delivers_exactly_once() {
    let mut server = Server::bind("resume_2").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut receipt = client.send(message("x", QoS::ExactlyOnce)).await.unwrap();
    let received = peer.publish().await;
    // The PUBREC is written and never read: the link ends first.
    peer.connection
        .ack(util::now(), received.ticket.unwrap(), ReasonCode::Success);
    let session = peer.connection.into_session();
    drop(peer.link);

    let mut peer = server.link().await;
    peer.connect().await;
    peer.accept(session, true).await;
    // PUBREL ends it, and nothing follows.
    let released = peer.event().await.unwrap();
    assert!(
        matches!(released, mq_proto::Event::IncomingReleased { .. }),
        "{released:?}"
    );
    let more = tokio::time::timeout(SECOND, peer.event()).await;
    assert!(more.is_err(), "it was delivered twice: {more:?}");
    receipt.acknowledged().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_is_made_again() {
    let mut server = Server::bind("session_lost").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let (stream, _) = tokio::join!(client.subscribe("c/+", QoS::AtLeastOnce), peer.grant());
    let mut stream = stream.unwrap();
    let mut receipts = Vec::new();
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        receipts.push(client.send(message("again", qos)).await.unwrap());
        peer.publish().await;
    }
    drop(peer);

    let mut peer = server.client().await;
    let mut again = 0;
    while again < 3 {
        match peer.event().await.unwrap() {
            ProtoEvent::Publish(received) => {
                peer.ack(received.ticket).await;
                again += 1;
            }
            ProtoEvent::Subscribe { subscribe, .. } => {
                assert_eq!(&*subscribe.subscriptions[0].filter, "c/+");
                peer.suback(subscribe.packet_id, vec![ReasonCode::GrantedQos1])
                    .await;
                again += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    peer.send("c/d", "hello", QoS::AtLeastOnce, Some(1)).await;
    let all_done = async {
        assert_eq!(&stream.recv().await.unwrap().payload[..], b"hello");
        for receipt in &mut receipts {
            receipt.acknowledged().await.unwrap();
        }
    };
    tokio::select! {
        () = all_done => {}
        more = peer.serve() => panic!("the connection ended; again: {more:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_released_before_the_session_was_lost_is_complete() {
    let mut server = Server::bind("released").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut released = client
        .send(message("released", QoS::ExactlyOnce))
        .await
        .unwrap();
    let received = peer.publish().await;
    // PUBREC arrives; the answer to PUBREL does not.
    peer.ack(received.ticket).await;
    let mut pending = client
        .send(message("pending", QoS::AtLeastOnce))
        .await
        .unwrap();
    tokio::time::sleep(SECOND).await;
    drop(peer);

    let mut peer = server.client().await;
    let received = peer.publish().await;
    assert_eq!(util::text(&received), "pending");
    peer.ack(received.ticket).await;
    pending.acknowledged().await.unwrap();
    released.acknowledged().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_present_session_is_not_subscribed_again() {
    let mut server = Server::bind("session_present").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let (stream, _) = tokio::join!(client.subscribe("c/+", QoS::AtLeastOnce), peer.grant());
    let mut stream = stream.unwrap();
    drop(peer);
    let mut peer = server.link().await;
    peer.connect().await;
    peer.accept(Session::new(), true).await;
    peer.send("c/d", "hello", QoS::AtMostOnce, Some(1)).await;
    assert_eq!(&stream.recv().await.unwrap().payload[..], b"hello");
    assert!(tokio::time::timeout(SECOND, peer.event()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_subscription_is_asked_for_again() {
    let mut server = Server::bind("resubscribe").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let subscribing = client.subscribe("c/+", QoS::AtLeastOnce);
    let (stream, ()) = tokio::join!(subscribing, async {
        peer.subscribe().await;
        drop(peer);
        let mut peer = server.link().await;
        peer.connect().await;
        peer.accept(Session::new(), true).await;
        peer.grant().await;
    });
    assert_eq!(stream.unwrap().granted(), [ReasonCode::GrantedQos1]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_the_client_with_its_reason() {
    let mut server = Server::bind("refused").await;
    let client = server.builder().start().unwrap();
    let mut receipt = client.try_send(message("x", QoS::AtLeastOnce)).unwrap();
    let mut peer = server.link().await;
    peer.connect().await;
    peer.refuse(ReasonCode::NotAuthorized).await;
    let reason = ReasonCode::NotAuthorized;
    let refused = |error: &Error| matches!(error, Error::Refused { reason: r } if *r == reason);
    assert!(refused(&client.closed().await));
    assert!(refused(&client.connected().await.unwrap_err()));
    assert!(refused(&receipt.acknowledged().await.unwrap_err()));
    assert!(refused(
        &client.subscribe("a", QoS::AtMostOnce).await.unwrap_err()
    ));
    assert!(refused(
        &client.try_send(message("x", QoS::AtMostOnce)).unwrap_err()
    ));
    assert!(client.messages().recv().await.is_none());
    assert!(client.events().recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_tried_again_except_by_build() {
    let mut server = Server::bind("busy").await;
    let (built, ()) = tokio::join!(server.builder().build(), async {
        let mut peer = server.link().await;
        peer.connect().await;
        peer.refuse(ReasonCode::ServerBusy).await;
    });
    assert!(matches!(built, Err(Error::Refused { .. })));

    let client = server.builder().start().unwrap();
    let mut peer = server.link().await;
    peer.connect().await;
    peer.refuse(ReasonCode::ServerBusy).await;
    let _peer = server.client().await;
    client.connected().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_taken_over_is_not_fought_for() {
    let mut server = Server::bind("taken_over").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    peer.connection
        .disconnect(mq_codec::Disconnect::new(ReasonCode::SessionTakenOver));
    peer.flush().await;
    assert!(matches!(client.closed().await, Error::Ended(_)));
}

#[tokio::test(start_paused = true)]
async fn an_application_may_ask_for_another_connection() {
    let mut server = Server::bind("asked").await;
    // The application's word counts more than the policy's.
    let (client, mut peer) = server
        .pair(server.builder().reconnect(Reconnect::never()))
        .await;
    let mut events = client.events();
    let mut receipt = client.send(message("x", QoS::AtLeastOnce)).await.unwrap();
    peer.publish().await;
    let session = peer.connection.into_session();
    let asked_at = tokio::time::Instant::now();
    client.reconnect().unwrap();
    client.reconnect().unwrap();

    let mut peer = server.link().await;
    assert!(!peer.connect().await.clean_start);
    peer.accept(session, true).await;
    let again = peer.publish().await;
    assert!(again.dup);
    peer.ack(again.ticket).await;
    assert_eq!(receipt.acknowledged().await.unwrap(), ReasonCode::Success);
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
    let left = events.recv().await.unwrap();
    assert!(
        matches!(
            left,
            Event::Disconnected {
                why: Error::ReconnectAsked
            }
        ),
        "{left:?}"
    );
    let back = events.recv().await.unwrap();
    assert!(matches!(back, Event::Connected(_)), "{back:?}");
}

#[tokio::test(start_paused = true)]
async fn asking_for_a_connection_ends_the_wait_for_the_next_attempt() {
    let mut server = Server::bind("asked_early").await;
    let (client, peer) = server.pair(server.builder()).await;
    let mut events = client.events();
    drop((server, peer));
    // Waits of 1, 2, 4 and 8 s.
    while !matches!(
        events.recv().await.unwrap(),
        Event::Reconnecting { attempt: 4, .. }
    ) {}
    let mut server = Server::bind("asked_early").await;
    let asked_at = tokio::time::Instant::now();
    client.reconnect().unwrap();
    let mut peer = server.client().await;
    client.connected().await.unwrap();
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
    // Nothing of the question is left for this connection.
    client.try_send(message("x", QoS::AtMostOnce)).unwrap();
    assert_eq!(peer.publish().await.message.payload, "x");
}

#[tokio::test(start_paused = true)]
async fn asking_for_a_connection_gives_up_one_that_the_server_does_not_accept() {
    let mut server = Server::bind("asked_again").await;
    let client = server.builder().start().unwrap();
    // The server is silent after CONNECT.
    let mut silent = server.link().await;
    silent.connect().await;
    client.reconnect().unwrap();
    let _peer = server.client().await;
    client.connected().await.unwrap();
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn without_reconnect_the_first_loss_ends_the_client() {
    let mut server = Server::bind("never").await;
    let (client, peer) = server
        .pair(server.builder().reconnect(Reconnect::never()))
        .await;
    drop(peer);
    assert!(client.closed().await.is_temporary());
}

#[tokio::test(start_paused = true)]
async fn a_missing_server_is_an_error_at_once() {
    let error = Client::connect("mem://nobody").await.unwrap_err();
    assert!(matches!(error, Error::Transport(_)), "{error}");
    assert!(matches!(Client::builder("nobody"), Err(Error::Address(_))));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up() {
    let mut server = Server::bind("silent").await;
    let (built, _link) = tokio::join!(
        server.builder().connect_timeout(3 * SECOND).build(),
        server.link()
    );
    assert!(matches!(built, Err(Error::ConnectTimeout { .. })));
}

#[tokio::test(start_paused = true)]
async fn older_versions_keep_a_clean_session_clean() {
    for version in [Version::V3_1, Version::V3_1_1] {
        let mut server = Server::bind("older").await;
        let (client, mut peer) = server.pair(server.builder().version(version)).await;
        let (stream, _) = tokio::join!(client.subscribe("c/#", QoS::AtMostOnce), peer.grant());
        let mut stream = stream.unwrap();
        drop(peer);
        let mut peer = server.link().await;
        assert!(peer.connect().await.clean_start);
        peer.accept(Session::new(), false).await;
        peer.grant().await;
        peer.send("c/d/e", "x", QoS::AtLeastOnce, None).await;
        assert_eq!(&*stream.recv().await.unwrap().topic, "c/d/e");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_server_is_noticed_by_the_keep_alive() {
    let mut server = Server::bind("keep_alive").await;
    let (client, _silent) = server.pair(server.builder().keep_alive(10 * SECOND)).await;
    let mut events = client.events();
    let start = tokio::time::Instant::now();
    assert!(matches!(
        events.recv().await,
        Some(Event::Disconnected { .. })
    ));
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn publishing_does_not_hide_a_dead_server() {
    let mut server = Server::bind("void").await;
    let (client, _silent) = server.pair(server.builder().keep_alive(10 * SECOND)).await;
    let mut events = client.events();
    let start = tokio::time::Instant::now();
    let publishing = async {
        loop {
            client.send(message("x", QoS::AtMostOnce)).await.unwrap();
            tokio::time::sleep(SECOND).await;
        }
    };
    tokio::select! {
        () = publishing => {}
        event = events.recv() => assert!(matches!(event, Some(Event::Disconnected { .. }))),
    }
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn publishing_all_the_time_does_not_end_a_live_connection() {
    let mut server = Server::bind("busy_and_alive").await;
    let (client, mut peer) = server.pair(server.builder().keep_alive(10 * SECOND)).await;
    let mut events = client.events();
    let publishing = async {
        for _ in 0..300 {
            client.send(message("x", QoS::AtMostOnce)).await.unwrap();
            tokio::time::sleep(SECOND).await;
        }
    };
    tokio::select! {
        () = publishing => {}
        payloads = peer.serve() => panic!("it ended after {} messages", payloads.len()),
        event = events.recv() => panic!("{event:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_does_not_wait_for_the_keep_alive() {
    let mut server = Server::bind("at_once").await;
    let (client, mut peer) = server.pair(server.builder().keep_alive(10 * SECOND)).await;
    let mut messages = client.messages();
    tokio::time::sleep(5 * SECOND).await;
    let start = tokio::time::Instant::now();
    peer.send("a/b", "x", QoS::AtLeastOnce, None).await;
    messages.recv().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_slow_link_that_is_at_work_is_not_a_dead_one() {
    let mut server = Server::bind("slow").await;
    let (client, mut peer) = server.pair(server.builder().keep_alive(10 * SECOND)).await;
    let mut events = client.events();
    // A link in memory holds 256 KiB: each message takes 30 s, and a PINGREQ waits behind it.
    let large = vec![0; 512 * 1024];
    for _ in 0..6 {
        let message = Outgoing::to("a/b", large.clone()).unwrap();
        client.send(message).await.unwrap();
    }
    let mut arrived = 0;
    while arrived < 6 {
        tokio::time::sleep(15 * SECOND).await;
        peer.link
            .progress(peer.connection.outbox(), true)
            .await
            .unwrap();
        let lane = mq_proto::LaneId::CONTROL;
        let received = peer.link.received(lane);
        peer.connection.handle_bytes(util::now(), lane, received);
        while let Some(event) = peer.connection.poll_event() {
            assert!(matches!(event, ProtoEvent::Publish(_)), "{event:?}");
            arrived += 1;
        }
    }
    let told = tokio::time::timeout(SECOND, events.recv()).await;
    assert!(told.is_err(), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_keep_alive_a_silent_connection_lasts() {
    let mut server = Server::bind("no_keep_alive").await;
    let (client, mut peer) = server
        .pair(server.builder().keep_alive(Duration::ZERO))
        .await;
    let mut events = client.events();
    // The link's other end listens: a PINGREQ, or the end of the link, would be something.
    let something = async {
        tokio::select! {
            progress = peer.link.progress(peer.connection.outbox(), true) => format!("{progress:?}"),
            event = events.recv() => format!("{event:?}"),
        }
    };
    let day = 24 * 60 * 60 * SECOND;
    let heard = tokio::time::timeout(day, something).await;
    assert!(heard.is_err(), "{heard:?}");
    let publishing = client.publish("t", "still here", QoS::AtLeastOnce);
    let answering = async {
        let ticket = peer.publish().await.ticket;
        peer.ack(ticket).await;
    };
    let (published, ()) = tokio::join!(publishing, answering);
    published.unwrap();
}
