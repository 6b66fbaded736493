//! Round trips until the first answer, over a path with a delay.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use mq_transport::{Address, Connector, EarlyData, Listener, Scheme};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::mpsc,
};

use crate::common::{accept, connect_options, listen, receive, send};

/// Delay of one direction, half of a round trip.
const DELAY: Duration = Duration::from_millis(60);
const ROUND_TRIP: Duration = Duration::from_millis(120);

over!(early_data_is_answered_in_one_round_trip: tls, quic);
async fn early_data_is_answered_in_one_round_trip(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    let far_away = delayed(&listener.local_address()).await;
    let connector = Connector::new(connect_options()).unwrap();

    let (full, early_data) = first_answer(&connector, &far_away, &mut listener).await;
    assert_eq!(early_data, EarlyData::NotOffered);
    let (early, early_data) = first_answer(&connector, &far_away, &mut listener).await;
    assert_eq!(early_data, EarlyData::Accepted);

    // The proxy answers TCP's own handshake at once, so both transports take the same.
    assert!(full >= 2 * ROUND_TRIP, "full {full:?}");
    assert!(
        early >= ROUND_TRIP && early + ROUND_TRIP / 2 < full,
        "early {early:?}"
    );
}

over!(a_request_for_a_websocket_as_early_data_saves_a_round_trip: wss);
async fn a_request_for_a_websocket_as_early_data_saves_a_round_trip(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    let far_away = delayed(&listener.local_address()).await;
    let connector = Connector::new(connect_options()).unwrap();

    // TLS, the request, CONNECT.
    let (full, early_data) = first_answer(&connector, &far_away, &mut listener).await;
    assert_eq!(early_data, EarlyData::NotOffered);
    assert!(full >= 3 * ROUND_TRIP, "full {full:?}");
    let (early, early_data) = first_answer(&connector, &far_away, &mut listener).await;
    assert_eq!(early_data, EarlyData::Accepted);
    assert!(
        early >= 2 * ROUND_TRIP && early + ROUND_TRIP / 2 < full,
        "early {early:?}"
    );
}

/// Returns the time from the start until the first answer, and the outcome of early data.
async fn first_answer(
    connector: &Connector,
    address: &Address,
    listener: &mut Listener,
) -> (Duration, EarlyData) {
    let client = async {
        let started = Instant::now();
        let mut client = connector.connect(address).await.unwrap();
        send(&mut client, b"CONNECT").await;
        receive(&mut client, 7).await;
        let elapsed = started.elapsed();
        client.handshake_complete().await.unwrap();
        // Tickets come in after the handshake.
        let mut empty = mq_transport::Outbox::new();
        let some = client.progress(&mut empty, true);
        let _ = tokio::time::timeout(2 * ROUND_TRIP, some).await;
        (elapsed, client.stats().early_data)
    };
    let server = async {
        let mut server = accept(listener).await;
        receive(&mut server, 7).await;
        send(&mut server, b"CONNACK").await;
        server.handshake_complete().await.unwrap();
        server
    };
    tokio::join!(client, server).0
}

/// Starts a proxy in front of `address` that delays everything by [`DELAY`].
async fn delayed(address: &Address) -> Address {
    let target = SocketAddr::new("127.0.0.1".parse().unwrap(), address.port);
    let mut proxied = address.clone();
    if address.scheme == Scheme::Quic {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        proxied.port = socket.local_addr().unwrap().port();
        tokio::spawn(proxy_udp(socket, target));
    } else {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        proxied.port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_client, to_client) = client.into_split();
                let server = TcpStream::connect(target).await.unwrap();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pipe(from_client, to_server));
                tokio::spawn(pipe(from_server, to_client));
            }
        });
    }
    proxied
}

async fn pipe(mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
    let writing = async {
        while let Some((arrival, bytes)) = receiver.recv().await {
            tokio::time::sleep_until(arrival).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let reading = async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let arrival = tokio::time::Instant::now() + DELAY;
            sender.send((arrival, buffer[..count].to_vec())).unwrap();
        }
    };
    tokio::join!(writing, reading);
}

/// Forwards the datagrams of a single client address, which suffices: all connections of a connector use one
/// socket.
async fn proxy_udp(near: Arc<UdpSocket>, target: SocketAddr) {
    let far = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let mut client = None;
    let (mut there, mut back) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        let (socket, peer, bytes) = tokio::select! {
            Ok((count, from)) = near.recv_from(&mut there) => {
                client = Some(from);
                (far.clone(), target, there[..count].to_vec())
            }
            Ok((count, _)) = far.recv_from(&mut back) => {
                let Some(client) = client else { continue };
                (near.clone(), client, back[..count].to_vec())
            }
        };
        tokio::spawn(async move {
            tokio::time::sleep(DELAY).await;
            let _ = socket.send_to(&bytes, peer).await;
        });
    }
}
