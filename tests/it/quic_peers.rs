//! Ends of QUIC connections for a foreign client: raw quinn.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::BytesMut;
use mq_client::QoS;
use mq_codec::{
    ByteStr, Connect, Decoder, Disconnect, Packet, ReasonCode, TopicName, Version, Will,
    WillProperties,
};
use mq_testkit::{Scheme, TestBroker, next};
use quinn::{ConnectionError, RecvStream, SendStream, VarInt, crypto::rustls::QuicClientConfig};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::time::{Instant, timeout};

/// The longest wait for an immediate event.
const SOON: Duration = Duration::from_secs(10);

/// A connection with its control stream, on which nothing was sent.
struct Raw {
    connection: quinn::Connection,
    send: SendStream,
    recv: RecvStream,
    /// Endpoint, whose drop would end its connections.
    _endpoint: quinn::Endpoint,
}

impl Raw {
    async fn open(broker: &TestBroker) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(broker.certificate()).unwrap() {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"mqtt".to_vec()];
        let config = QuicClientConfig::try_from(tls).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(config));
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = broker.address(Scheme::Quic);
        let at: SocketAddr = format!("{}:{}", address.host, address.port)
            .parse()
            .unwrap();
        let connecting = endpoint.connect_with(config, at, "localhost").unwrap();
        let connection = timeout(SOON, connecting).await.unwrap().unwrap();
        let (send, recv) = connection.open_bi().await.unwrap();
        Self {
            connection,
            send,
            recv,
            _endpoint: endpoint,
        }
    }

    async fn send(&mut self, packet: impl Into<Packet>) {
        let mut bytes = BytesMut::new();
        packet.into().encode(Version::V5, &mut bytes).unwrap();
        self.send.write_all(&bytes).await.unwrap();
    }

    async fn receive(&mut self) -> Packet {
        let mut decoder = Decoder::new(Some(Version::V5), u32::MAX);
        let mut buffer = BytesMut::new();
        loop {
            if let Some(packet) = decoder.decode(&mut buffer).unwrap() {
                return packet;
            }
            let chunk = timeout(SOON, self.recv.read_chunk(usize::MAX, true));
            let chunk = chunk.await.unwrap().unwrap().expect("it should say more");
            buffer.extend_from_slice(&chunk.bytes);
        }
    }
}

fn connect(client_id: &str) -> Connect {
    Connect::new(Version::V5, ByteStr::new(client_id).unwrap())
}

fn connect_with_will() -> Connect {
    let mut connect = connect("raw");
    connect.will = Some(Will {
        topic: TopicName::new("will").unwrap(),
        payload: "gone".into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: WillProperties::default(),
    });
    connect
}

/// Makes a CONNECT that the broker refuses.
fn refused() -> Connect {
    let mut connect = connect("refused");
    connect.properties.authentication_method = Some(ByteStr::new("none such").unwrap());
    connect
}

/// `STOP_SENDING` on the control stream: nothing can be answered any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_the_control_stream_is_gone() {
    let broker = TestBroker::start().await;
    let watcher = broker.client(Scheme::Tcp, "watcher").build().await.unwrap();
    let mut wills = watcher.subscribe("will", QoS::AtLeastOnce).await.unwrap();
    let mut raw = Raw::open(&broker).await;
    raw.send(connect_with_will()).await;
    assert!(matches!(raw.receive().await, Packet::ConnAck(ack) if !ack.session_present));
    // Neither side sends anything more.
    raw.recv.stop(VarInt::from_u32(0)).unwrap();
    assert_eq!(&next(&mut wills).await.payload[..], b"gone");
    let end = timeout(SOON, raw.connection.closed()).await.unwrap();
    assert!(
        matches!(end, ConnectionError::ApplicationClosed(_)),
        "{end}"
    );
    // The session is free.
    let again = broker.client(Scheme::Quic, "raw").build();
    let again = timeout(SOON, again).await.unwrap().unwrap();
    again.disconnect().await.unwrap();
}

/// A DISCONNECT that came before `STOP_SENDING` has the last word about the will.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_disconnects_and_stops_reading_has_left_in_order() {
    let broker = TestBroker::start().await;
    let watcher = broker.client(Scheme::Tcp, "watcher").build().await.unwrap();
    let mut wills = watcher.subscribe("will", QoS::AtLeastOnce).await.unwrap();
    let mut raw = Raw::open(&broker).await;
    raw.send(connect_with_will()).await;
    raw.receive().await;
    let disconnect = Disconnect::new(ReasonCode::Success);
    raw.send(Packet::Disconnect(Box::new(disconnect))).await;
    raw.send.finish().unwrap();
    raw.recv.stop(VarInt::from_u32(0)).unwrap();
    timeout(SOON, raw.connection.closed()).await.unwrap();
    watcher
        .publish("will", "none", QoS::AtLeastOnce)
        .await
        .unwrap();
    assert_eq!(&next(&mut wills).await.payload[..], b"none");
}

/// Some clients drop unread bytes when `CONNECTION_CLOSE` arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_client_may_close_first() {
    let broker = TestBroker::start().await;
    let mut raw = Raw::open(&broker).await;
    raw.send(refused()).await;
    let Packet::ConnAck(ack) = raw.receive().await else {
        panic!("it should be answered");
    };
    assert_eq!(ack.reason, ReasonCode::BadAuthenticationMethod);
    // The end of the stream has come, and is acknowledged.
    let end = timeout(SOON, raw.recv.read_chunk(1, true)).await.unwrap();
    assert!(end.unwrap().is_none());
    let closed = timeout(Duration::from_millis(300), raw.connection.closed()).await;
    assert!(closed.is_err(), "the broker closed first: {closed:?}");
    // The broker does not wait for ever.
    timeout(SOON, raw.connection.closed()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_client_that_has_read_everything_is_not_waited_for() {
    let broker = TestBroker::start().await;
    // The best of some, as a machine may be busy.
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let mut raw = Raw::open(&broker).await;
        raw.send(refused()).await;
        raw.receive().await;
        raw.send.finish().unwrap();
        let ended = Instant::now();
        timeout(SOON, raw.connection.closed()).await.unwrap();
        best = best.min(ended.elapsed());
    }
    assert!(best < Duration::from_millis(500), "{best:?}");
}

/// Counts the bytes that the broker lets a client send on a stream that it does not read: it waits for the control
/// stream.
async fn under_way(raw: &Raw) -> usize {
    let mut stream = raw.connection.open_uni().await.unwrap();
    let mut sent = 0;
    while let Ok(written) = timeout(Duration::from_millis(500), stream.write(&[0; 4096])).await {
        sent += written.unwrap();
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_before_its_log_in_has_16_kib_under_way() {
    let broker = TestBroker::start().await;
    let raw = Raw::open(&broker).await;
    assert_eq!(under_way(&raw).await, 16 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_grow_with_what_a_client_sends_and_count_until_it_has_gone() {
    let broker = TestBroker::start().await;
    let before = broker.broker().memory_used();
    let client = broker.client(Scheme::Quic, "large").build().await.unwrap();
    let counted = broker.broker().memory_used();
    for _ in 0..100 {
        let large = vec![0; 100_000];
        client.publish("t", large, QoS::AtLeastOnce).await.unwrap();
    }
    let grown = broker.broker().memory_used() - counted;
    assert!(grown >= 16 * 1024, "{grown}");
    assert!(grown <= 1024 * 1024, "{grown}");
    client.disconnect().await.unwrap();
    let gone = async {
        while broker.broker().memory_used() > before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, gone).await.unwrap();
}
