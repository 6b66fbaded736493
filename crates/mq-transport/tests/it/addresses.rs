//! Hosts with several addresses (RFC 8305), and ports where nobody listens.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use mq_transport::{Address, ConnectOptions, Connector, Error, Listener, Scheme};

use crate::common::{accept, connect_options, listen, listen_options};

/// The host of the tests: it has the black hole's address, and behind it the server's.
const HOST: &str = "localhost";
const HOLE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Time that an attempt may take: well below the timeout of the connector, which is 20 s.
const BEFORE_TIMEOUT: Duration = Duration::from_secs(8);

/// Sockets that take packets of new connections and answer none.
struct Hole {
    _listener: TcpListener,
    _backlog: Vec<TcpStream>,
    _udp: UdpSocket,
}

impl Hole {
    fn at(port: u16) -> Self {
        let address = SocketAddr::new(HOLE, port);
        let listener = socket2::Socket::new(
            socket2::Domain::IPV4,
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )
        .unwrap();
        listener.bind(&address.into()).unwrap();
        listener.listen(0).unwrap();
        let mut backlog = Vec::new();
        // The kernel drops SYNs beyond the backlog.
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            backlog.push(stream);
            assert!(backlog.len() < 100, "the backlog does not fill");
        }
        Self {
            _listener: listener.into(),
            _backlog: backlog,
            _udp: UdpSocket::bind(address).unwrap(),
        }
    }
}

fn options() -> ConnectOptions {
    connect_options().resolve(HOST, [HOLE, SERVER])
}

over!(a_silent_first_address_does_not_hold_up_the_second: tcp, tls, quic, ws, wss);
async fn a_silent_first_address_does_not_hold_up_the_second(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    let port = listener.local_address().port;
    let _hole = tokio::task::spawn_blocking(move || Hole::at(port))
        .await
        .unwrap();
    reaches_the_second(&mut listener).await;
}

/// Connects to the host of both addresses, of which the listener has the second.
async fn reaches_the_second(listener: &mut Listener) {
    let connector = Connector::new(options()).unwrap();
    let local = listener.local_address();
    let address = Address::new(local.scheme, HOST, local.port);
    let both = async { tokio::join!(connector.connect(&address), accept_if_spoken_to(listener)) };
    let (link, ()) = tokio::time::timeout(BEFORE_TIMEOUT, both)
        .await
        .expect("the second address should be tried before the timeout");
    let peer = link.unwrap().info().peer_address.unwrap();
    assert_eq!(peer.ip(), SERVER);
}

/// Takes the server's part of a handshake. QUIC's ends when the client has, as its stream opens later.
async fn accept_if_spoken_to(listener: &mut Listener) {
    if listener.local_address().scheme == Scheme::Quic {
        let incoming = listener.accept().await.unwrap();
        tokio::spawn(incoming.handshake());
        return;
    }
    accept(listener).await;
}

#[tokio::test]
async fn an_address_where_nobody_listens_does_not_hold_up_the_second() {
    for scheme in [Scheme::Tcp, Scheme::Quic] {
        let mut listener = listen(scheme).await;
        reaches_the_second(&mut listener).await;
    }
}

#[tokio::test]
async fn a_quic_port_where_nobody_listens_is_named_soon() {
    let closed = UdpSocket::bind((SERVER, 0)).unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let connector = Connector::new(connect_options()).unwrap();
    for host in ["127.0.0.1", "localhost"] {
        let address = Address::new(Scheme::Quic, host, port);
        let begin = Instant::now();
        let error = connector.connect(&address).await.unwrap_err();
        assert!(begin.elapsed() < BEFORE_TIMEOUT, "{:?}", begin.elapsed());
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("cannot reach {address}: ")),
            "{text}"
        );
        assert!(text.to_lowercase().contains("connection refused"), "{text}");
    }
}

#[tokio::test]
async fn early_data_to_a_quic_port_where_nobody_listens_any_more_fails_soon() {
    let mut listener = listen(Scheme::Quic).await;
    let address = listener.local_address();
    let connector = Connector::new(connect_options()).unwrap();
    drop(crate::common::connect(&connector, &mut listener).await);
    drop(listener);

    let begin = Instant::now();
    let mut link = connector.connect(&address).await.unwrap();
    let mut outbox = mq_transport::Outbox::new();
    let ended = loop {
        match link.progress(&mut outbox, true).await {
            Ok(progress) => assert_ne!(progress, mq_transport::Progress::Closed),
            Err(error) => break error,
        }
    };
    assert!(begin.elapsed() < BEFORE_TIMEOUT, "{:?}", begin.elapsed());
    assert!(matches!(ended, Error::Unreachable { .. }), "{ended:?}");
}

#[tokio::test]
async fn a_server_that_answers_late_is_no_closed_port() {
    let mut listener = Listener::bind(
        &Address::new(Scheme::Quic, "127.0.0.1", 0),
        &listen_options(),
    )
    .await
    .unwrap();
    let connector = Connector::new(connect_options()).unwrap();
    let address = listener.local_address();
    let late = async {
        // Longer than the wait for a report that the port is closed.
        tokio::time::sleep(Duration::from_millis(600)).await;
        accept_if_spoken_to(&mut listener).await;
    };
    let (link, ()) = tokio::join!(connector.connect(&address), late);
    link.unwrap();
}
