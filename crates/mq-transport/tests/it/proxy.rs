//! PROXY headers in front of a connection: the address that they tell, and those that are not accepted.

use std::{net::SocketAddr, time::Duration};

use mq_transport::{
    Address, Connector, Error, HandshakeKind, Link, ListenOptions, Listener, ProxyHeader,
    ProxyProtocol, ProxyVersion, Scheme,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::common::{
    SOON, accept, any_address, collect_ticket, connect, connect_options, listen_options, receive,
    send,
};

const TOLD: &str = "203.0.113.7:4711";

/// A header of version 2 for 203.0.113.7:4711 that is the address of a client of 192.0.2.1:8883.
const BINARY: [u8; 28] =
    *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0C\xCB\0\x71\x07\xC0\0\x02\x01\x12\x67\x22\xB3";

fn told() -> SocketAddr {
    TOLD.parse().unwrap()
}

fn behind_proxies(required: bool, trusted: &[&str]) -> ListenOptions {
    ListenOptions {
        proxy_protocol: Some(ProxyProtocol {
            required,
            trusted: trusted.iter().map(|text| text.parse().unwrap()).collect(),
        }),
        ..listen_options()
    }
}

async fn listen(scheme: Scheme, options: &ListenOptions) -> Listener {
    Listener::bind(&any_address(scheme), options).await.unwrap()
}

/// Returns the link of a client that relays for another one, with both ends.
async fn relayed(scheme: Scheme, version: ProxyVersion) -> (Link, Link) {
    let mut listener = listen(scheme, &behind_proxies(true, &["127.0.0.0/8"])).await;
    let mut front = listen(Scheme::Tcp, &behind_proxies(true, &["127.0.0.1/32"])).await;
    let mut client = TcpStream::connect(place(&front)).await.unwrap();
    client.write_all(&BINARY).await.unwrap();
    let client = accept(&mut front).await;
    let connector = Connector::new(connect_options()).unwrap();
    let header = ProxyHeader::of(&client.info());
    let connector = connector.with_proxy_header(&header, version);
    connect(&connector, &mut listener).await
}

fn place(listener: &Listener) -> String {
    let Address { host, port, .. } = listener.local_address();
    format!("{host}:{port}")
}

/// Sends these first bytes to a listener. Returns what comes of the handshake, and the client.
async fn first_bytes(options: &ListenOptions, bytes: &[u8]) -> (Result<Link, Error>, TcpStream) {
    let mut listener = listen(Scheme::Tcp, options).await;
    let mut client = TcpStream::connect(place(&listener)).await.unwrap();
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    let incoming = listener.accept().await.unwrap();
    let link = tokio::time::timeout(SOON, incoming.handshake()).await;
    (link.unwrap(), client)
}

over!(a_header_tells_the_client_s_address: tcp, tls, ws, wss);
async fn a_header_tells_the_client_s_address(scheme: Scheme) {
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let (mut client, mut server) = relayed(scheme, version).await;
        assert_eq!(server.info().peer_address, Some(told()), "{version:?}");
        send(&mut client, b"behind it").await;
        assert_eq!(receive(&mut server, 9).await, b"behind it");
    }
}

over!(sessions_are_resumed_behind_a_header: tls, wss);
async fn sessions_are_resumed_behind_a_header(scheme: Scheme) {
    let mut listener = listen(scheme, &behind_proxies(true, &["127.0.0.1/32"])).await;
    let client = Connector::new(connect_options()).unwrap();
    let (_client, server) = connect_plainly().await;
    let connector = client.with_proxy_header(&ProxyHeader::of(&server.info()), ProxyVersion::V2);
    assert_eq!(
        collect_ticket(&connector, &mut listener).await,
        HandshakeKind::Full
    );
    let (client, server) = connect(&connector, &mut listener).await;
    assert_eq!(client.handshake(), HandshakeKind::Resumed);
    assert_eq!(server.handshake(), HandshakeKind::Resumed);
}

async fn connect_plainly() -> (Link, Link) {
    let mut listener = listen(Scheme::Tcp, &listen_options()).await;
    let connector = Connector::new(connect_options()).unwrap();
    connect(&connector, &mut listener).await
}

#[tokio::test]
async fn bytes_behind_a_header_that_comes_byte_by_byte_are_the_client_s() {
    let v1 = b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 8883\r\n";
    for header in [&v1[..], &BINARY] {
        let options = behind_proxies(false, &["127.0.0.1/32"]);
        let mut listener = listen(Scheme::Tcp, &options).await;
        let mut client = TcpStream::connect(place(&listener)).await.unwrap();
        client.set_nodelay(true).unwrap();
        let bytes = [header, b"the client's"].concat();
        let writing = async {
            for byte in bytes {
                client.write_all(&[byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (mut link, ()) = tokio::join!(accept(&mut listener), writing);
        assert_eq!(link.info().peer_address, Some(told()));
        assert_eq!(receive(&mut link, 12).await, b"the client's");
    }
}

#[tokio::test]
async fn a_proxy_s_own_connection_has_its_own_address() {
    let mut local = *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    for header in [&local[..], b"PROXY UNKNOWN\r\n", b""] {
        let (link, client) = first_bytes(&behind_proxies(true, &["127.0.0.1/32"]), header).await;
        let own = client.local_addr().unwrap();
        assert_eq!(link.unwrap().info().peer_address, Some(own));
    }
    // An address family that no version of the protocol has.
    local[13] = 0x71;
    let (link, _client) = first_bytes(&behind_proxies(true, &["127.0.0.1/32"]), &local).await;
    assert!(matches!(link, Err(Error::ProxyHeader { .. })));
}

#[tokio::test]
async fn clients_may_come_without_a_header_where_it_is_optional() {
    for trusted in ["127.0.0.1/32", "192.0.2.0/24"] {
        let (link, client) = first_bytes(&behind_proxies(false, &[trusted]), b"\x10MQTT").await;
        let mut link = link.unwrap();
        assert_eq!(link.info().peer_address, client.local_addr().ok());
        assert_eq!(receive(&mut link, 5).await, b"\x10MQTT");
    }
}

#[tokio::test]
async fn a_header_from_elsewhere_than_a_proxy_is_not_believed() {
    let trusted = ["192.0.2.0/24", "::1/128"];
    let (link, _client) = first_bytes(&behind_proxies(true, &trusted), &BINARY).await;
    let error = link.unwrap_err().to_string();
    assert!(error.ends_with("it comes from no trusted proxy"), "{error}");
    // The bytes are the client's, which are no MQTT.
    let (link, client) = first_bytes(&behind_proxies(false, &trusted), &BINARY).await;
    let mut link = link.unwrap();
    assert_eq!(link.info().peer_address, client.local_addr().ok());
    assert_eq!(receive(&mut link, BINARY.len()).await, BINARY);
}

#[tokio::test]
async fn a_malformed_or_missing_header_ends_the_connection() {
    let mut too_long = BINARY;
    too_long[14..16].fill(0xFF);
    let mut short_addresses = BINARY;
    short_addresses[15] = 4;
    let mut version_3 = BINARY;
    version_3[12] = 0x31;
    let endless = [b'P'; 200];
    for (bytes, fault) in [
        (&b"\x10\x0C"[..], "the connection begins without one"),
        (b"PROXY TCP4 203.0.113.7", "the connection ends within it"),
        (&BINARY[..20], "the connection ends within it"),
        (
            b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 99999\r\n",
            "it is malformed",
        ),
        (
            b"PROXY TCP6 203.0.113.7 192.0.2.1 4711 8883\r\n",
            "it is malformed",
        ),
        (b"PUT / HTTP/1.1\r\n", "it is malformed"),
        (b"\r\nGET / HTTP/1.1\r\n\r\n", "it is malformed"),
        (&endless, "it is too long"),
        (&too_long, "it is too long"),
        (&short_addresses[..20], "it is malformed"),
        (&version_3, "it is malformed"),
    ] {
        let (link, mut client) = first_bytes(&behind_proxies(true, &["127.0.0.1/32"]), bytes).await;
        let error = link.unwrap_err().to_string();
        assert!(error.ends_with(fault), "{bytes:?}: {error}");
        let ended = tokio::time::timeout(SOON, client.read(&mut [0])).await;
        assert!(!matches!(ended.unwrap(), Ok(1..)), "{bytes:?}");
    }
}

#[tokio::test]
async fn half_a_header_and_silence_wait_for_the_caller_s_timeout_alone() {
    let mut listener = listen(Scheme::Tcp, &behind_proxies(true, &["127.0.0.1/32"])).await;
    let mut client = TcpStream::connect(place(&listener)).await.unwrap();
    client.write_all(&BINARY[..14]).await.unwrap();
    let incoming = listener.accept().await.unwrap();
    assert!(incoming.awaits_proxy_header());
    let handshake = tokio::time::timeout(Duration::from_millis(50), incoming.handshake());
    assert!(handshake.await.is_err());
}

#[tokio::test]
async fn quic_carries_no_header() {
    let listener = listen(Scheme::Quic, &listen_options()).await;
    let (_client, server) = connect_plainly().await;
    let connector = Connector::new(connect_options()).unwrap();
    let connector = connector.with_proxy_header(&ProxyHeader::of(&server.info()), ProxyVersion::V1);
    let error = connector
        .connect(&listener.local_address())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidOption { .. }), "{error}");
}

#[tokio::test]
async fn version_2_has_the_tls_parameters_and_the_name_in_the_certificate() {
    let mut listener = listen(Scheme::Tls, &listen_options()).await;
    let mut options = connect_options();
    options.server_name = Some("localhost".to_owned());
    let connector = Connector::new(options).unwrap();
    let (_client, server) = connect(&connector, &mut listener).await;
    let header = ProxyHeader::of(&server.info()).with_common_name("meter-7");
    let bytes = header.encode(ProxyVersion::V2);
    let config = proxy_header::ParseConfig::default();
    let (parsed, len) = proxy_header::ProxyHeader::parse(&bytes, config).unwrap();
    assert_eq!(len, bytes.len());
    assert_eq!(parsed.authority(), Some("localhost"));
    let tls = parsed.ssl().unwrap();
    assert_eq!(
        (tls.version(), tls.cn()),
        (Some("TLSv1.3"), Some("meter-7"))
    );
    assert!(tls.client_ssl() && !tls.client_cert_conn() && tls.verify() != 0);
    let text = header.encode(ProxyVersion::V1);
    assert!(text.starts_with(b"PROXY TCP4 127.0.0.1 127.0.0.1 ") && text.ends_with(b"\r\n"));
}
