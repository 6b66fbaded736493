//! Memory of QUIC data behind a gap: the broker cannot read it, and has to keep it.
//!
//! The client is quinn over a socket that loses the datagrams with the first byte of each stream. It never finds them
//! lost, so nothing fills the gap.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use mq_codec::{ByteStr, Connect, Packet, Publish, TopicName, Version};
use mq_testkit::{TestBroker, nightly};
use quinn::{
    AsyncUdpSocket, RecvStream, Runtime as _, SendStream, TransportConfig, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use tokio::time::{sleep, timeout};

use crate::{ALONE, heap, wire::Target};

/// Bytes that a QUIC connection may hold besides what counts (`docs/reference/operation.md`, "Memory").
const OF_A_CONNECTION: usize = 96 * 1024;

/// Bytes that each of the first data streams may hold besides what counts, and their number; further ones count.
const OF_A_STREAM: usize = 40 * 1024;
const FIRST_STREAMS: usize = 9;

/// The longest wait for the broker.
const SOON: Duration = Duration::from_secs(20);

/// A socket that loses what it is given to send, while it is told to.
struct LosingSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    loses: AtomicBool,
    sent: AtomicUsize,
}

impl LosingSocket {
    /// Returns the number of datagrams that were sent, lost ones among them.
    fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until more than so many datagrams were sent.
    async fn sends_more_than(&self, datagrams: usize) {
        let until = Instant::now() + SOON;
        loop {
            sleep(Duration::from_millis(1)).await;
            if self.sent() > datagrams {
                return;
            }
            assert!(Instant::now() < until, "nothing is sent");
        }
    }
}

impl fmt::Debug for LosingSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LosingSocket").finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for LosingSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if !self.loses.load(Ordering::Relaxed) {
            self.inner.try_send(transmit)?;
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// The way in which clients fill what is behind the gap.
#[derive(Clone, Copy, Debug)]
enum Behind {
    /// Full datagrams, as many as the broker's windows take.
    FullDatagrams,
    /// A byte of a stream in each datagram, the rest of which the broker reads at once.
    OneByteOfADatagram,
}

/// A client that was let in, with data streams that it has not used.
struct Client {
    connection: quinn::Connection,
    control: SendStream,
    /// Kept, since the end of the control stream ends the connection.
    _answers: RecvStream,
    streams: Vec<(SendStream, RecvStream)>,
}

impl Client {
    async fn connect(
        endpoint: &quinn::Endpoint,
        target: &Target,
        config: quinn::ClientConfig,
        number: usize,
    ) -> Self {
        let connecting = endpoint.connect_with(config, target.quic, "localhost");
        let connection = timeout(SOON, connecting.unwrap()).await.unwrap().unwrap();
        let (mut control, mut answers) = connection.open_bi().await.unwrap();
        let client_id = ByteStr::new(format!("gap-{number}")).unwrap();
        let mut connect = Connect::new(Version::V5, client_id);
        connect.keep_alive = 0;
        control.write_all(&encoded(&connect.into())).await.unwrap();
        let mut answer = [0; 4];
        let reading = answers.read_exact(&mut answer);
        timeout(SOON, reading).await.unwrap().unwrap();
        assert_eq!((answer[0], answer[3]), (0x20, 0), "CONNACK");
        Self {
            connection,
            control,
            _answers: answers,
            streams: Vec::new(),
        }
    }

    /// Opens a data stream with a first byte that is lost.
    async fn open(&mut self, socket: &LosingSocket) {
        let opening = timeout(SOON, self.connection.open_bi());
        let (mut stream, answers) = opening.await.unwrap().unwrap();
        let sent = socket.sent();
        socket.loses.store(true, Ordering::Relaxed);
        stream.write_all(&[0x30]).await.unwrap();
        socket.sends_more_than(sent).await;
        socket.loses.store(false, Ordering::Relaxed);
        self.streams.push((stream, answers));
    }

    /// Sends a byte of the stream with that number, in a datagram that is full otherwise.
    async fn send_byte(&mut self, number: usize, socket: &LosingSocket, filler: &[u8]) {
        let sent = socket.sent();
        self.streams[number].0.write_all(&[0xFF]).await.unwrap();
        let filling = timeout(SOON, self.control.write_all(filler));
        filling.await.unwrap().unwrap();
        socket.sends_more_than(sent).await;
    }
}

fn encoded(packet: &Packet) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    packet.encode(Version::V5, &mut bytes).unwrap();
    bytes.to_vec()
}

/// Returns the growth of what counts and of the heap by what clients send behind a gap, in bytes.
async fn growth(behind: Behind, clients: usize, streams: usize) -> (usize, usize) {
    let broker = TestBroker::start().await;
    let target = Target::new(&broker);
    let mut transport = TransportConfig::default();
    transport
        .packet_threshold(u32::MAX)
        .time_threshold(1e6)
        .mtu_discovery_config(None)
        .enable_segmentation_offload(false);
    let config = target.quic_config(transport);
    let inner = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = Arc::new(LosingSocket {
        inner: quinn::TokioRuntime.wrap_udp_socket(inner).unwrap(),
        loses: AtomicBool::new(false),
        sent: AtomicUsize::new(0),
    });
    let endpoint = quinn::Endpoint::new_with_abstract_socket(
        quinn::EndpointConfig::default(),
        None,
        socket.clone(),
        Arc::new(quinn::TokioRuntime),
    );
    let endpoint = endpoint.unwrap();
    let filler = encoded(
        &Publish {
            topic: TopicName::new("nobody").unwrap(),
            payload: vec![0; 1_050].into(),
            ..Publish::default()
        }
        .into(),
    );
    let mut all = Vec::new();
    for number in 0..clients {
        let mut client = Client::connect(&endpoint, &target, config.clone(), number).await;
        client.control.write_all(&filler).await.unwrap();
        all.push(client);
    }
    sleep(Duration::from_millis(500)).await;
    let before = (broker.broker().memory_used(), heap::bytes());
    for client in &mut all {
        match behind {
            Behind::FullDatagrams => {
                client.open(&socket).await;
                let mut sent = 1;
                let bytes = vec![0xFF; 1_000];
                while let Ok(written) =
                    timeout(Duration::from_millis(50), client.streams[0].0.write(&bytes)).await
                {
                    sent += written.unwrap();
                }
                assert!(sent > 14 * 1024, "a window takes {sent} bytes");
            }
            Behind::OneByteOfADatagram => {
                for number in 0..streams {
                    client.open(&socket).await;
                    // The broker sees the stream, and grants more of them.
                    client.send_byte(number, &socket, &filler).await;
                }
                for _ in 0..30 {
                    for number in 0..streams {
                        client.send_byte(number, &socket, &filler).await;
                    }
                }
            }
        }
    }
    sleep(Duration::from_millis(500)).await;
    let after = (broker.broker().memory_used(), heap::bytes());
    for client in &all {
        assert!(
            client.connection.close_reason().is_none(),
            "{:?}",
            client.connection.close_reason()
        );
        assert_eq!(client.connection.stats().path.lost_packets, 0);
    }
    endpoint.close(0_u8.into(), b"");
    let _ = timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
    broker.shutdown().await;
    (
        after.0.saturating_sub(before.0),
        after.1.saturating_sub(before.1),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_data_behind_a_gap_is_counted_or_within_what_a_connection_has() {
    let _alone = ALONE.lock().await;
    let clients = nightly(5, 50);
    let mut wrong = Vec::new();
    for (behind, streams) in [
        (Behind::FullDatagrams, 1),
        (Behind::OneByteOfADatagram, 9),
        (Behind::OneByteOfADatagram, 60),
    ] {
        let (counted, grown) = growth(behind, clients, streams).await;
        let line = format!(
            "{behind:?} of {streams} streams: a client takes {} bytes, {} counted",
            grown / clients,
            counted / clients
        );
        println!("{line}");
        let of_streams = match behind {
            Behind::FullDatagrams => 0,
            Behind::OneByteOfADatagram => OF_A_STREAM * streams.min(FIRST_STREAMS),
        };
        if grown > counted + (OF_A_CONNECTION + of_streams) * clients {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}
