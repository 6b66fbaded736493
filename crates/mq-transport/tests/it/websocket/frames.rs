//! Decoding of frames by a link, and the memory that it takes.

use mq_transport::{Error, Link, Progress};
use mq_transport::{LaneId, Outbox};
use tokio::io::AsyncWriteExt as _;

use crate::{
    common::{SOON, outbox, receive, send},
    websocket::peer::{
        BINARY, CONTINUE, FINAL, PING, PONG, Peer, TEXT, frame, raw_client, raw_server, taken,
    },
};

/// Reads until the link ends; returns its last progress or error.
async fn end(link: &mut Link) -> Result<Progress, Error> {
    loop {
        match link.progress(&mut Outbox::new(), true).await {
            Ok(Progress::Received(_)) => {}
            ended => return ended,
        }
    }
}

async fn both_ends() -> [(Peer, Link); 2] {
    [raw_client().await, raw_server(b"").await]
}

#[tokio::test]
async fn packets_may_begin_and_end_anywhere_in_frames() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for (mut peer, mut link) in both_ends().await {
        let data: Vec<u8> = (0..20_000).map(|_| random.u8(..)).collect();
        let mut bytes = Vec::new();
        let (mut left, mut fragmented) = (&data[..], false);
        while !left.is_empty() || fragmented {
            let (payload, after) = left.split_at(random.usize(0..=left.len().min(700)));
            left = after;
            let opcode = if fragmented { CONTINUE } else { BINARY };
            fragmented = random.bool() && !left.is_empty();
            let last = if fragmented { 0 } else { FINAL };
            bytes.extend(peer.frame(last | opcode, payload));
            if random.u8(0..4) == 0 {
                bytes.extend(peer.frame(FINAL | PONG, b"of my own accord"));
            }
        }
        // In pieces that have nothing to do with frames either.
        let writing = async {
            let mut left = &bytes[..];
            while !left.is_empty() {
                let (piece, after) = left.split_at(random.usize(1..=left.len().min(1000)));
                left = after;
                peer.stream.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let ((), read) = tokio::join!(writing, receive(&mut link, data.len()));
        assert!(read == data);
        assert_eq!(link.stats().bytes_received, 20_000);
    }
}

#[tokio::test]
async fn a_batch_of_packets_is_one_frame() {
    for (mut peer, mut link) in both_ends().await {
        let mut batch = outbox(b"one");
        batch.put_body(LaneId::CONTROL, &vec![7; 5000].into());
        batch.put_body(LaneId::CONTROL, &vec![8; 3].into());
        let flushed = link.progress(&mut batch, true).await.unwrap();
        assert_eq!(flushed, Progress::Flushed);
        let expected = [&b"one"[..], &[7; 5000], &[8; 3]].concat();
        assert_eq!(peer.receive().await, (FINAL | BINARY, expected));
    }
}

#[tokio::test]
async fn what_comes_right_behind_the_answer_is_read() {
    let after = [
        frame(FINAL | BINARY, false, b"hello"),
        frame(FINAL | PING, false, b"?"),
    ]
    .concat();
    let (mut peer, mut link) = raw_server(&after).await;
    assert_eq!(receive(&mut link, 5).await, b"hello");
    send(&mut link, b"x").await;
    assert_eq!(peer.receive().await, (FINAL | PONG, b"?".to_vec()));
    assert_eq!(peer.receive().await, (FINAL | BINARY, b"x".to_vec()));
}

#[tokio::test]
async fn a_ping_is_answered_between_the_fragments_of_a_message() {
    for (mut peer, mut link) in both_ends().await {
        peer.send(BINARY, b"be").await;
        peer.send(FINAL | PING, b"are you there?").await;
        peer.send(CONTINUE, b"").await;
        assert_eq!(receive(&mut link, 2).await, b"be");
        let answered = async {
            let pong = peer.receive().await;
            assert_eq!(pong, (FINAL | PONG, b"are you there?".to_vec()));
            peer.send(FINAL | CONTINUE, b"fore").await;
        };
        let ((), read) = tokio::join!(answered, receive(&mut link, 4));
        assert_eq!(read, b"fore");
    }
}

#[tokio::test]
async fn endless_pings_of_a_peer_that_does_not_read_cost_no_memory() {
    let (peer, mut link) = raw_client().await;
    let ping = peer.frame(FINAL | PING, &[1; 125]);
    let flood = ping.repeat(100_000);
    let mut peer = peer.stream;
    let flooding = async {
        peer.write_all(&flood).await.unwrap();
        let last = frame(FINAL | BINARY, true, b"done");
        peer.write_all(&last).await.unwrap();
    };
    let reading = tokio::time::timeout(SOON, receive(&mut link, 4));
    let ((), read) = tokio::join!(flooding, reading);
    assert_eq!(read.unwrap(), b"done");
    // 13 MB of pings were read; what the link has written is what the sockets have taken.
    let written = link.stats().wire_bytes_sent.unwrap();
    println!("{written} bytes of answers to {} of pings", flood.len());
    assert!(written < flood.len() as u64);
}

#[tokio::test]
async fn a_frame_that_announces_the_most_is_handed_on_as_it_comes() {
    let (mut peer, mut link) = raw_client().await;
    let mut header = vec![FINAL | BINARY, 0xFF];
    header.extend(((1_u64 << 63) - 1).to_be_bytes());
    header.extend([0; 4]);
    peer.stream.write_all(&header).await.unwrap();
    for _ in 0..100 {
        peer.stream.write_all(&[5; 1000]).await.unwrap();
        assert_eq!(receive(&mut link, 1000).await, [5; 1000]);
        assert!(link.received(LaneId::CONTROL).capacity() < 1 << 20);
    }
}

#[tokio::test]
async fn a_violation_is_answered_with_its_code_and_ends_the_connection() {
    let mut huge = vec![FINAL | BINARY, 0xFF];
    huge.extend((1_u64 << 63).to_be_bytes());
    huge.extend([0; 4]);
    for (bytes, code, what) in [
        (frame(FINAL | TEXT, true, b"text"), 1003, "text frame"),
        (
            frame(FINAL | BINARY, false, b"bare"),
            1002,
            "without a mask",
        ),
        (frame(FINAL | CONTINUE, true, b"?"), 1002, "continuation"),
        (frame(PING, true, b"?"), 1002, "in fragments"),
        (frame(FINAL | PING, true, &[0; 126]), 1002, "125 bytes"),
        (huge, 1002, "2^63"),
    ] {
        let (mut peer, mut link) = raw_client().await;
        let good = frame(FINAL | BINARY, true, b"good");
        let all = [good, bytes].concat();
        peer.stream.write_all(&all).await.unwrap();
        assert_eq!(receive(&mut link, 4).await, b"good");
        let error = end(&mut link).await.unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
        assert!(error.to_string().contains(what), "{error}");
        // Nothing more is said, whatever the owner has.
        let again = link.progress(&mut outbox(b"more"), true).await;
        assert!(matches!(again, Err(Error::Protocol { .. })), "{again:?}");
        let seen = async {
            peer.expect_close(code).await;
            peer.expect_end().await;
            drop(peer);
        };
        tokio::join!(link.close(SOON), seen);
    }
}

#[tokio::test]
async fn a_server_that_masks_is_refused() {
    let (mut peer, mut link) = raw_server(b"").await;
    peer.stream
        .write_all(&frame(FINAL | BINARY, true, b"masked"))
        .await
        .unwrap();
    let error = end(&mut link).await.unwrap_err();
    assert!(error.to_string().contains("with a mask"), "{error}");
    assert!(taken(&mut link).is_empty());
    peer.expect_close(1002).await;
}
