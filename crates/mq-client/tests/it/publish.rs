//! Publishing: its waits and the outcome of messages.

use std::time::Duration;

use mq_client::{Error, Outgoing, QoS, QueueLimits, ReasonCode};
use mq_proto::Event;

use crate::util::{self, Server, text};

fn message(payload: impl std::fmt::Display) -> Outgoing {
    Outgoing::to("a/b", format!("{payload}")).unwrap()
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn publish_waits_for_the_acknowledgement() {
    let mut server = Server::bind("publish_ack").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let publishing = client.publish("a/b", "x", QoS::AtLeastOnce);
    tokio::pin!(publishing);
    let received = tokio::select! {
        _ = &mut publishing => panic!("did not wait"),
        received = peer.publish() => received,
    };
    let waited = tokio::time::timeout(SECOND, &mut publishing).await;
    assert!(waited.is_err());
    peer.ack(received.ticket).await;
    publishing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn exactly_once_is_complete_with_pubcomp() {
    let mut server = Server::bind("publish_2").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let (published, ()) = tokio::join!(client.publish("a/b", "x", QoS::ExactlyOnce), async {
        let received = peer.publish().await;
        peer.ack(received.ticket).await;
        // PUBREL ends it, and nothing follows.
        let released = peer.event().await.unwrap();
        assert!(matches!(released, mq_proto::Event::IncomingReleased { .. }));
        let next = tokio::time::timeout(SECOND, peer.event()).await;
        assert!(next.is_err(), "{next:?}");
    });
    published.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_receipt_waits_for_nothing_or_for_the_write() {
    let mut server = Server::bind("receipt").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    drop(client.try_send(message("dropped")).unwrap());
    let mut receipt = client
        .send(message("written").qos(QoS::AtLeastOnce))
        .await
        .unwrap();
    receipt.written().await.unwrap();
    assert_eq!(receipt.sequence(), 2);
    assert_eq!(text(&peer.publish().await), "dropped");
    let received = peer.publish().await;
    assert_eq!(text(&received), "written");
    peer.ack(received.ticket).await;
    assert_eq!(receipt.acknowledged().await.unwrap(), ReasonCode::Success);
    client
        .publish("a/b", "at most once", QoS::AtMostOnce)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refused_message_is_an_error() {
    let mut server = Server::bind("publish_refused").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let (published, ()) = tokio::join!(client.publish("a/b", "x", QoS::AtLeastOnce), async {
        let ticket = peer.publish().await.ticket.unwrap();
        peer.connection
            .ack(util::now(), ticket, ReasonCode::QuotaExceeded);
        peer.flush().await;
    });
    let reason = ReasonCode::QuotaExceeded;
    assert!(matches!(published, Err(Error::PublishRefused { reason: r }) if r == reason));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_the_server_cannot_take_fails_alone() {
    let mut server = Server::bind("publish_limit").await;
    let builder = server.builder();
    let (client, mut peer) = tokio::join!(builder.build(), async {
        let config = mq_proto::ServerConfig {
            max_packet_size: 100.try_into().unwrap(),
            ..Default::default()
        };
        let mut peer = server.link_with(config).await;
        peer.connect().await;
        peer.accept(mq_proto::Session::new(), false).await;
        peer
    });
    let client = client.unwrap();
    let began = tokio::time::Instant::now();
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let failed = client.publish("a/b", "x".repeat(200), qos).await;
        assert!(matches!(failed, Err(Error::NotSent(_))), "{failed:?}");
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "nothing else woke it");
    client
        .publish("a/b", "small", QoS::AtMostOnce)
        .await
        .unwrap();
    assert_eq!(text(&peer.publish().await), "small");
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_while_offline_and_flows_in_order() {
    let mut server = Server::bind("offline").await;
    let limits = QueueLimits {
        messages: 5,
        bytes: 1000,
    };
    let (client, peer) = server.pair(server.builder().queue_limits(limits)).await;
    let mut events = client.events();
    drop(peer);
    events.recv().await.unwrap();
    for n in 0..5 {
        let qos = if n % 2 == 0 {
            QoS::AtMostOnce
        } else {
            QoS::AtLeastOnce
        };
        client.try_send(message(n).qos(qos)).unwrap();
    }
    assert!(matches!(client.try_send(message(5)), Err(Error::QueueFull)));
    assert_eq!(client.queued(), 5);
    let waiting = client.send(message(5));
    tokio::pin!(waiting);
    let waited = tokio::time::timeout(SECOND / 2, &mut waiting).await;
    assert!(waited.is_err(), "there was no room");
    let (queued, mut peer) = tokio::join!(waiting, server.client());
    queued.unwrap();
    for n in 0..6 {
        assert_eq!(text(&peer.publish().await), n.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_in_bytes_as_well() {
    let server = Server::bind("offline_bytes").await;
    let limits = QueueLimits {
        messages: 100,
        bytes: 100,
    };
    let client = server.builder().queue_limits(limits).start().unwrap();
    client.try_send(message("x".repeat(500))).unwrap();
    assert!(matches!(
        client.try_send(message("x")),
        Err(Error::QueueFull)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_batch_waits_for_room_and_keeps_its_order() {
    let mut server = Server::bind("batch").await;
    let limits = QueueLimits {
        messages: 7,
        ..QueueLimits::default()
    };
    let (client, mut peer) = server.pair(server.builder().queue_limits(limits)).await;
    let batch = (0..100).map(|n| message(n).qos(QoS::AtLeastOnce)).collect();
    let serving = tokio::spawn(async move { peer.serve().await });
    let receipts = client.send_batch(batch).await.unwrap();
    for mut receipt in receipts {
        receipt.acknowledged().await.unwrap();
    }
    client.disconnect().await.unwrap();
    let expected: Vec<_> = (0..100).map(|n: i32| n.to_string()).collect();
    assert_eq!(serving.await.unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn messages_that_expired_in_the_queue_are_not_sent() {
    let mut server = Server::bind("expiry").await;
    let properties = mq_client::PublishProperties {
        message_expiry_interval: Some(1),
        ..Default::default()
    };
    let (client, peer) = server
        .pair(server.builder().reconnect(mq_client::Reconnect {
            initial: 5 * SECOND,
            ..Default::default()
        }))
        .await;
    let mut events = client.events();
    drop(peer);
    events.recv().await.unwrap();
    let mut expired = client
        .try_send(message("late").properties(properties))
        .unwrap();
    client.try_send(message("still good")).unwrap();
    let mut peer = server.client().await;
    assert_eq!(text(&peer.publish().await), "still good");
    assert!(matches!(expired.written().await, Err(Error::Expired)));
}

#[tokio::test(start_paused = true)]
async fn early_messages_leave_before_connack() {
    let mut server = Server::bind("early").await;
    let mut builder = server.builder();
    let mut stream = builder.subscribe_early("c/#", QoS::AtLeastOnce).unwrap();
    let mut receipt = builder
        .publish_early(message("early").qos(QoS::AtLeastOnce))
        .unwrap();
    let client = builder.start().unwrap();
    client.try_send(message("behind")).unwrap();
    let mut peer = server.link().await;
    peer.connect().await;
    // All of it has arrived while the server has said nothing.
    tokio::time::sleep(SECOND).await;
    assert!(receipt.written().await.is_ok() && !client.is_connected());
    let buffered = peer.link.received(mq_proto::LaneId::CONTROL).len();
    assert!(buffered > 20, "{buffered}");
    peer.accept(mq_proto::Session::new(), false).await;
    peer.grant().await;
    let received = peer.publish().await;
    assert_eq!(text(&received), "early");
    assert_eq!(text(&peer.publish().await), "behind");
    peer.ack(received.ticket).await;
    receipt.acknowledged().await.unwrap();
    peer.send("c/d", "hello", QoS::AtMostOnce, Some(1)).await;
    assert_eq!(&stream.recv().await.unwrap().payload[..], b"hello");
    assert!(
        client.connected().await.unwrap().connack_at >= client.connect_times().unwrap().link_at
    );
}

#[tokio::test(start_paused = true)]
async fn at_most_once_messages_of_a_lost_link_are_reported() {
    let mut server = Server::bind("lost_unsent").await;
    let (client, peer) = server.pair(server.builder()).await;
    // More than the link in memory takes without being read.
    let big = |_| Outgoing::to("a/b", vec![0; 200_000]).unwrap();
    let mut receipts = client.send_batch((0..3).map(big).collect()).await.unwrap();
    tokio::time::sleep(SECOND).await;
    drop(peer);
    let last = receipts.last_mut().unwrap().written().await;
    // It was not handed to the lost link at all, or it was lost with it.
    let mut peer = server.client().await;
    match last {
        Err(Error::LostUnsent) => {}
        Ok(()) => assert!(matches!(peer.event().await, Some(Event::Publish(_)))),
        Err(other) => panic!("{other}"),
    }
}
