//! Early data under a WebSocket: the request alone.

use std::time::Duration;

use mq_transport::Outbox;
use mq_transport::{Connector, EarlyData, HandshakeKind, Scheme};

use crate::common::{accept, connect, connect_options, listen, listen_options, receive, send};

#[tokio::test]
async fn only_the_request_is_early_and_no_packet_is() {
    let mut listener = listen(Scheme::Wss).await;
    let connector = Connector::new(connect_options()).unwrap();
    let (mut client, mut server) = connect(&connector, &mut listener).await;
    send(&mut server, b"welcome").await;
    receive(&mut client, 7).await;
    let mut empty = Outbox::new();
    let some = client.progress(&mut empty, true);
    let _ = tokio::time::timeout(Duration::from_millis(20), some).await;

    let address = listener.local_address();
    let (client, server) = tokio::join!(connector.connect(&address), accept(&mut listener));
    let (mut client, mut server) = (client.unwrap(), server);
    // The answer to the request came with the server's part of the handshake.
    assert_eq!(client.handshake(), HandshakeKind::Resumed);
    assert_eq!(client.stats().early_data, EarlyData::Accepted);
    assert_eq!(client.stats().bytes_sent, 0);
    send(&mut client, b"CONNECT").await;
    assert_eq!(receive(&mut server, 7).await, b"CONNECT");
    assert!(!server.is_early());
    assert_eq!(server.handshake(), HandshakeKind::Resumed);
}

#[tokio::test]
async fn a_request_that_was_rejected_as_early_data_is_sent_again() {
    let options = listen_options();
    let store = options.ticket_store.clone();
    let address = mq_transport::Address::new(Scheme::Wss, "127.0.0.1", 0);
    let mut listener = mq_transport::Listener::bind(&address, &options)
        .await
        .unwrap();
    let connector = Connector::new(connect_options()).unwrap();
    let (mut client, mut server) = connect(&connector, &mut listener).await;
    send(&mut server, b"welcome").await;
    receive(&mut client, 7).await;
    store.clear();
    let (mut client, mut server) = connect(&connector, &mut listener).await;
    assert_eq!(client.handshake(), HandshakeKind::Full);
    assert_eq!(client.stats().early_data, EarlyData::Rejected);
    send(&mut client, b"CONNECT").await;
    assert_eq!(receive(&mut server, 7).await, b"CONNECT");
}
