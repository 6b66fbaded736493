//! Servers that send more than a client should keep, or what they may not send.

use std::time::Duration;

use mq_client::{Client, ConnectOptions, Connector, Error, Outgoing, QoS, QuicStreams, Trust};
use mq_proto::{Connection, LaneId, Outbox, ServerConfig, Session};
use mq_transport::{Listener, Progress};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
};

use crate::util::{self, Peer};

/// A step that takes longer has stopped.
const STALLED: Duration = Duration::from_secs(2);

/// More than the kernel's buffers of both ends hold.
const FLOOD_BYTES: usize = 48 << 20;

/// Listens with a small receive buffer for each connection; returns the listener and its URL.
fn listen() -> (TcpListener, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(8).unwrap();
    let url = format!("mqtt://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Reads CONNECT, whose remaining length is one byte long.
async fn read_connect(stream: &mut TcpStream) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.unwrap();
    let mut rest = vec![0; usize::from(head[1])];
    stream.read_exact(&mut rest).await.unwrap();
}

/// Connects a client, and returns it with the server's end of its connection, CONNECT accepted.
async fn connected() -> (Client, TcpStream) {
    let (listener, url) = listen();
    let connecting = tokio::spawn(Client::builder(&url).unwrap().build());
    let (mut stream, _) = listener.accept().await.unwrap();
    read_connect(&mut stream).await;
    stream.write_all(&[0x20, 3, 0, 0, 0]).await.unwrap();
    let client = connecting.await.unwrap().unwrap();
    (client, stream)
}

/// Writes `chunk` again and again; returns the number of bytes that the client has taken when it takes no more.
async fn flood(stream: &mut TcpStream, chunk: &[u8]) -> usize {
    let mut taken = 0;
    while taken < FLOOD_BYTES {
        match tokio::time::timeout(STALLED, stream.write_all(chunk)).await {
            Ok(Ok(())) => taken += chunk.len(),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    taken
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_read_the_answers_to_its_packets_is_not_read() {
    let (_client, mut stream) = connected().await;
    // PUBREL of an identifier that is not in use: the client answers each with PUBCOMP.
    let releases = [0x62, 2, 0, 7].repeat(16 * 1024);
    let taken = flood(&mut stream, &releases).await;
    assert!(taken < FLOOD_BYTES, "the client took {taken} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_reads_again_once_its_answers_are_taken() {
    let (_client, stream) = connected().await;
    let releases = [0x62, 2, 0, 7].repeat(16 * 1024);
    let (mut reading, mut writing) = stream.into_split();
    let sent = async {
        for _ in 0..64 {
            writing.write_all(&releases).await.unwrap();
        }
    };
    let answered = async {
        // PUBCOMP with a reason code: the identifier was not found.
        let mut answers = vec![0; 64 * 16 * 1024 * 5];
        reading.read_exact(&mut answers).await.unwrap();
        answers
    };
    let both = async { tokio::join!(sent, answered) };
    let ((), answers) = tokio::time::timeout(Duration::from_mins(1), both)
        .await
        .expect("the client should go on");
    assert!(
        answers
            .chunks(5)
            .all(|answer| answer == [0x70, 3, 0, 7, 0x92])
    );
}

/// Connects a client over QUIC with a stream for each topic, and returns it with the server's end of its connection.
async fn with_streams() -> (Client, Peer, Listener) {
    let mut listener = util::listen("quic").await;
    let url = listener.local_address().to_string();
    let connector = Connector::new(ConnectOptions::new().trust(Trust::Insecure)).unwrap();
    let builder = Client::builder(&url).unwrap().connector(connector);
    let builder = builder.quic_streams(QuicStreams::PerTopic { most: 4 });
    let accepting = async {
        let incoming = listener.accept().await.unwrap();
        let mut peer = Peer {
            link: incoming.handshake().await.unwrap(),
            connection: Connection::server(util::now(), ServerConfig::default()),
        };
        peer.connect().await;
        peer.accept(Session::new(), false).await;
        peer
    };
    let (client, peer) = tokio::join!(builder.build(), accepting);
    (client.unwrap(), peer, listener)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_floods_a_stream_in_the_place_of_connack_is_not_read() {
    let mut listener = util::listen("quic").await;
    let url = listener.local_address().to_string();
    let connector = Connector::new(ConnectOptions::new().trust(Trust::Insecure)).unwrap();
    let builder = Client::builder(&url).unwrap().connector(connector);
    let connecting = tokio::spawn(builder.build());
    let incoming = listener.accept().await.unwrap();
    let mut link = incoming.handshake().await.unwrap();
    let lane = link.open_lane().expect("the client grants a stream");
    let chunk = mq_client::Bytes::from(vec![0; 1 << 20]);
    let mut taken = 0;
    while taken < FLOOD_BYTES {
        let mut outbox = Outbox::new();
        outbox.put_body(lane, &chunk);
        match tokio::time::timeout(STALLED, link.flush(&mut outbox)).await {
            Ok(Ok(())) => taken += chunk.len(),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    assert!(taken < FLOOD_BYTES, "the client took {taken} bytes");
    connecting.abort();
}

/// Waits for the first bytes on a data lane, and returns the lane.
async fn first_lane(peer: &mut Peer) -> LaneId {
    loop {
        match peer.link.progress(&mut Outbox::new(), true).await.unwrap() {
            Progress::Received(LaneId::CONTROL) | Progress::Flushed | Progress::Datagrams => {}
            Progress::Received(lane) => return lane,
            ended => panic!("{ended:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_goes_on_without_a_stream_that_its_server_misuses_while_bytes_wait_for_it() {
    let (client, mut peer, _listener) = with_streams().await;
    let exchange = async {
        // More than the windows take of a stream that is not read: some always wait.
        let large = |_| Outgoing::to("a/b", vec![b'x'; 500_000]).unwrap();
        let batch = (0..8).map(large).collect();
        drop(client.send_batch(batch).await.unwrap());
        let lane = first_lane(&mut peer).await;
        // DISCONNECT belongs on the control lane.
        let mut wrong = Outbox::new();
        wrong.put_body(lane, &mq_client::Bytes::from_static(&[0xE0, 0]));
        peer.link.flush(&mut wrong).await.unwrap();
        tokio::select! {
            published = client.publish("b", "on", QoS::AtLeastOnce) => published.unwrap(),
            _ = peer.serve() => panic!("the connection should go on"),
        }
    };
    let done = tokio::time::timeout(Duration::from_mins(1), exchange).await;
    done.expect("the client should go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_connack_is_refused_by_its_length() {
    let (listener, url) = listen();
    let connecting = tokio::spawn(Client::builder(&url).unwrap().build());
    let (mut stream, _) = listener.accept().await.unwrap();
    read_connect(&mut stream).await;
    stream
        .write_all(&[0x20, 0xff, 0xff, 0xff, 0x7f])
        .await
        .unwrap();
    // Without its length the packet would be waited for until the connect timeout.
    stream.write_all(&vec![0; 128 * 1024]).await.unwrap();
    let ended = tokio::time::timeout(2 * STALLED, connecting).await;
    let error = ended.expect("the client should not wait").unwrap();
    assert!(matches!(error, Err(Error::Ended(_))), "{error:?}");
}
