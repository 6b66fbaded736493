//! The end of a client.

use std::time::Duration;

use mq_client::{Bytes, Client, Error, Outgoing, QoS, ReasonCode, Receipt};
use mq_proto::{CloseReason, LaneId, Outbox};

use crate::util::Server;

const SECOND: Duration = Duration::from_secs(1);

fn message(payload: impl std::fmt::Display) -> Outgoing {
    Outgoing::to("a/b", format!("{payload}"))
        .unwrap()
        .qos(QoS::AtLeastOnce)
}

#[tokio::test(start_paused = true)]
async fn disconnect_drains_what_is_queued() {
    let mut server = Server::bind("drain").await;
    let (client, mut peer) = server
        .pair(server.builder().max_inflight(2.try_into().unwrap()))
        .await;
    let mut stream = tokio::join!(client.subscribe("c", QoS::AtMostOnce), peer.grant())
        .0
        .unwrap();
    let batch = (0..50).map(message).collect();
    drop(client.send_batch(batch).await.unwrap());
    let serving = tokio::spawn(async move { peer.serve().await });
    client.disconnect().await.unwrap();
    assert_eq!(serving.await.unwrap().len(), 50);
    assert!(stream.recv().await.is_none());
    assert!(matches!(
        client.try_send(message("late")),
        Err(Error::Closed)
    ));
    client.disconnect().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn disconnect_says_so_and_ends_the_session() {
    let mut server = Server::bind("goodbye").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let (ended, reason) = tokio::join!(client.disconnect(), peer.closed());
    ended.unwrap();
    let Some(CloseReason::ByPeer(disconnect)) = reason else {
        panic!("{reason:?}");
    };
    assert_eq!(disconnect.reason, ReasonCode::Success);
    assert_eq!(disconnect.properties.session_expiry_interval, Some(0));
}

#[tokio::test(start_paused = true)]
async fn disconnect_has_a_deadline() {
    let mut server = Server::bind("deadline").await;
    let builder = server.builder().disconnect_timeout(3 * SECOND);
    let (client, mut peer) = server.pair(builder).await;
    let mut receipt = client.send(message("never acknowledged")).await.unwrap();
    let start = tokio::time::Instant::now();
    let (ended, _) = tokio::join!(client.disconnect(), peer.closed());
    let expected = Error::Undelivered {
        unsent: 0,
        unacknowledged: 1,
    };
    assert_eq!(ended.unwrap_err().to_string(), expected.to_string());
    assert_eq!(start.elapsed().as_secs(), 3);
    assert!(receipt.acknowledged().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn disconnect_has_a_deadline_while_the_server_does_not_read_the_answers() {
    let mut server = Server::bind("deadline_answers").await;
    let builder = server.builder().disconnect_timeout(3 * SECOND);
    let (client, mut peer) = server.pair(builder).await;
    // PUBREL of an identifier that is not in use: the client answers each with PUBCOMP.
    let releases = Bytes::from([0x62, 2, 0, 7].repeat(512 * 1024));
    let mut outbox = Outbox::new();
    outbox.put_body(LaneId::CONTROL, &releases);
    let flood = peer.link.flush(&mut outbox);
    let taken = tokio::time::timeout(SECOND, flood).await;
    assert!(taken.is_err(), "the client should read no more");
    let start = tokio::time::Instant::now();
    let ended = tokio::time::timeout(30 * SECOND, client.disconnect()).await;
    ended.expect("the deadline has passed").unwrap();
    // With the time that the last bytes have.
    assert_eq!(start.elapsed().as_secs(), 5);
}

/// Sends two messages at QoS 0 of which a link in memory that is not read takes a part.
async fn send_large(client: &Client) -> Receipt {
    let mut last = None;
    for _ in 0..2 {
        let large = Outgoing::to("a/b", vec![0; 300_000]).unwrap();
        last = Some(client.send(large).await.unwrap());
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(client.queued(), 0, "both should be in the outbox");
    last.unwrap()
}

#[tokio::test(start_paused = true)]
async fn disconnect_counts_messages_at_qos_0_that_were_not_written() {
    let mut server = Server::bind("deadline_qos_0").await;
    let builder = server.builder().disconnect_timeout(3 * SECOND);
    let (client, _silent) = server.pair(builder).await;
    let mut receipt = send_large(&client).await;
    let ended = client.disconnect().await;
    let expected = Error::Undelivered {
        unsent: 2,
        unacknowledged: 0,
    };
    assert_eq!(ended.unwrap_err().to_string(), expected.to_string());
    let written = receipt.written().await;
    assert!(matches!(written, Err(Error::LostUnsent)), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_written_with_the_last_bytes_are_delivered() {
    let mut server = Server::bind("last_bytes").await;
    let builder = server.builder().disconnect_timeout(3 * SECOND);
    let (client, mut peer) = server.pair(builder).await;
    let mut receipt = send_large(&client).await;
    let (ended, payloads) = tokio::join!(client.disconnect(), async {
        // After the deadline, and within the time that the last bytes have.
        tokio::time::sleep(4 * SECOND).await;
        peer.serve().await
    });
    ended.unwrap();
    assert_eq!(payloads.len(), 2);
    receipt.written().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_longest_durations_are_no_limit() {
    let mut server = Server::bind("no_limit").await;
    let builder = server
        .builder()
        .keep_alive(10 * SECOND)
        .head_start(Duration::MAX)
        .fallback_memory(Duration::MAX)
        .connect_timeout(Duration::MAX)
        .ping_timeout(Duration::MAX)
        .disconnect_timeout(Duration::MAX);
    let (client, mut peer) = server.pair(builder).await;
    // PINGREQ leaves meanwhile, and gets no answer.
    tokio::time::sleep(60 * SECOND).await;
    assert!(client.is_connected());
    let (ended, _) = tokio::join!(client.disconnect(), peer.closed());
    ended.unwrap();
}

#[tokio::test(start_paused = true)]
async fn disconnect_while_offline_ends_at_once_or_at_the_deadline() {
    let server = Server::bind("offline_end").await;
    let start = tokio::time::Instant::now();
    let builder = server.builder().disconnect_timeout(3 * SECOND);
    drop(server);
    let idle = builder.start().unwrap();
    idle.disconnect().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 0);

    let server = Server::bind("offline_end").await;
    let builder = server.builder().disconnect_timeout(3 * SECOND);
    drop(server);
    let busy = builder.start().unwrap();
    busy.try_send(message("x")).unwrap();
    let ended = busy.disconnect().await;
    assert!(matches!(ended, Err(Error::Undelivered { unsent: 1, .. })));
    assert_eq!(start.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_ends_the_driver_once_drained() {
    let mut server = Server::bind("dropped").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut stream = tokio::join!(client.subscribe("c", QoS::AtMostOnce), peer.grant())
        .0
        .unwrap();
    let mut receipt = client.send(message("last words")).await.unwrap();
    let other = client.clone();
    drop(client);
    assert!(other.is_connected());
    drop(other);
    assert_eq!(peer.serve().await, ["last words"]);
    receipt.acknowledged().await.unwrap();
    assert!(stream.recv().await.is_none());
    // The task has ended: nothing but this test is left in the runtime.
    tokio::time::sleep(SECOND).await;
    let metrics = tokio::runtime::Handle::current().metrics();
    assert_eq!(metrics.num_alive_tasks(), 0);
}
