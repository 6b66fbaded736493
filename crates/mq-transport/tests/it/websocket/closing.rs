//! Closing of WebSocket connections.

use std::time::{Duration, Instant};

use mq_transport::{Error, Progress};
use mq_transport::{LaneId, Outbox};
use tokio::io::AsyncWriteExt as _;

use crate::{
    common::{SOON, outbox, pair, receive, send},
    websocket::peer::{BINARY, CLOSE, FINAL, PING, raw_client, raw_server},
};

#[tokio::test]
async fn what_was_written_comes_before_the_close_and_the_close_before_the_end() {
    for (mut peer, mut link) in [raw_client().await, raw_server(b"").await] {
        send(&mut link, b"DISCONNECT").await;
        let seen = async {
            let last = peer.receive().await;
            assert_eq!(last, (FINAL | BINARY, b"DISCONNECT".to_vec()));
            peer.expect_close(1000).await;
            // What was under way is not in the way.
            peer.send(FINAL | BINARY, b"too late").await;
            peer.send(FINAL | CLOSE, &1000_u16.to_be_bytes()).await;
            peer.expect_end().await;
            drop(peer);
        };
        let began = Instant::now();
        tokio::join!(link.close(SOON), seen);
        assert!(began.elapsed() < SOON / 2);
    }
}

#[tokio::test]
async fn a_close_of_the_peer_is_answered_with_its_code_and_is_an_orderly_end() {
    for code in [None, Some(1000_u16), Some(1001), Some(4000)] {
        for (mut peer, mut link) in [raw_client().await, raw_server(b"").await] {
            let payload = code.map_or_else(Vec::new, |code| code.to_be_bytes().to_vec());
            let last = peer.frame(FINAL | BINARY, b"last");
            let both = [last, peer.frame(FINAL | CLOSE, &payload)].concat();
            peer.stream.write_all(&both).await.unwrap();
            assert_eq!(receive(&mut link, 4).await, b"last");
            let mut late = outbox(b"late");
            let ended = link.progress(&mut late, true).await.unwrap();
            assert_eq!(ended, Progress::Closed);
            // Nothing may follow a Close.
            assert_eq!(late.len(), 4);
            assert_eq!(peer.receive().await, (FINAL | CLOSE, payload));
            let seen = async {
                peer.expect_end().await;
                drop(peer);
            };
            tokio::join!(link.close(SOON), seen);
        }
    }
}

#[tokio::test]
async fn a_peer_that_does_not_answer_the_close_is_left_at_the_deadline() {
    let (mut peer, link) = raw_client().await;
    let began = Instant::now();
    let closing = link.close(Duration::from_millis(100));
    let pinging = async {
        // Not silent: it just does not close.
        loop {
            let ping = peer.frame(FINAL | PING, b"");
            if peer.stream.write_all(&ping).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = closing => {}
        () = pinging => panic!("it was cut off before the deadline"),
    }
    assert!(began.elapsed() < SOON / 2);
}

#[tokio::test]
async fn an_end_without_a_close_is_an_end() {
    let (mut peer, mut link) = raw_client().await;
    peer.send(FINAL | BINARY, b"last").await;
    drop(peer);
    assert_eq!(receive(&mut link, 4).await, b"last");
    match link.progress(&mut Outbox::new(), true).await {
        Ok(Progress::Closed) | Err(Error::Reset { .. }) => {}
        other => panic!("{other:?}"),
    }
}

over!(both_ends_may_close_at_once: ws, wss);
async fn both_ends_may_close_at_once(scheme: mq_transport::Scheme) {
    let (mut client, mut server) = pair(scheme).await;
    send(&mut client, b"unread").await;
    send(&mut server, b"unread").await;
    assert!(client.received(LaneId::CONTROL).is_empty());
    let began = Instant::now();
    tokio::join!(client.close(SOON), server.close(SOON));
    assert!(began.elapsed() < SOON / 2);
}
