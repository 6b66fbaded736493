//! Behaviour that every transport shares.

use std::{collections::BTreeSet, time::Duration};

use mq_transport::{Connector, Error, HandshakeKind, LaneClosed, Link, Listener, Progress, Scheme};
use mq_transport::{LaneEnd, LaneId, Outbox};

use crate::common::{
    self, SOON, Way, accept, any_address, connect, connect_at, connect_options, listen,
    listen_options, outbox, pair, receive, send,
};

over!(bytes_go_both_ways: tcp, tls, quic, ws, wss, mem);
async fn bytes_go_both_ways(scheme: Scheme) {
    let (mut client, mut server) = pair(scheme).await;
    for round in 0..10_u8 {
        send(&mut client, &[round; 100]).await;
        assert_eq!(receive(&mut server, 100).await, [round; 100]);
        send(&mut server, &[round, 1]).await;
        assert_eq!(receive(&mut client, 2).await, [round, 1]);
    }
    let (client, server) = (client.stats(), server.stats());
    assert_eq!((client.bytes_sent, client.bytes_received), (1001, 20));
    assert_eq!((server.bytes_sent, server.bytes_received), (20, 1001));
    let kind = match scheme {
        Scheme::Tcp | Scheme::Unix | Scheme::Ws | Scheme::Mem => HandshakeKind::None,
        Scheme::Tls | Scheme::Quic | Scheme::Wss => HandshakeKind::Full,
    };
    assert_eq!((client.handshake, server.handshake), (kind, kind));
    if scheme != Scheme::Mem {
        assert!(
            client.rtt.is_some() && client.packets_sent > Some(0),
            "{client:?}"
        );
        assert!(client.wire_bytes_sent >= Some(1001), "{client:?}");
        assert!(client.congestion_window > Some(0), "{client:?}");
    }
}

/// Connects over small kernel buffers, which left to themselves may grow to more than a test sends.
async fn pair_with_small_buffers(scheme: Scheme) -> (Link, Link) {
    let mut listening = listen_options();
    listening.socket.receive_buffer = Some(64 << 10);
    let mut connecting = connect_options();
    connecting.socket.send_buffer = Some(64 << 10);
    let mut listener = Listener::bind(&any_address(scheme), &listening)
        .await
        .unwrap();
    let connector = Connector::new(connecting).unwrap();
    connect(&connector, &mut listener).await
}

over!(much_arrives_in_order_at_a_slow_reader: tcp, tls, quic, ws, wss, mem);
async fn much_arrives_in_order_at_a_slow_reader(scheme: Scheme) {
    const SIZE: usize = 4 << 20;
    let (mut client, mut server) = pair_with_small_buffers(scheme).await;
    let data: Vec<u8> = (0_u32..).flat_map(u32::to_le_bytes).take(SIZE).collect();
    let mut queued = Outbox::new();
    for piece in data.chunks(3000) {
        queued.put_body(LaneId::CONTROL, &piece.to_vec().into());
    }
    // While the server does not read, the client comes to a halt.
    let stalled =
        async { while client.progress(&mut queued, true).await.unwrap() != Progress::Flushed {} };
    assert!(
        tokio::time::timeout(Duration::from_millis(200), stalled)
            .await
            .is_err()
    );
    assert!(!queued.is_empty(), "everything fitted into buffers");

    let writing =
        async { while client.progress(&mut queued, true).await.unwrap() != Progress::Flushed {} };
    let ((), read) = tokio::join!(writing, receive(&mut server, SIZE));
    assert!(read == data, "bytes were lost or reordered");
}

over!(bytes_that_the_kernel_does_not_take_are_no_progress: tcp, tls, ws, wss);
async fn bytes_that_the_kernel_does_not_take_are_no_progress(scheme: Scheme) {
    let (mut client, _server) = pair_with_small_buffers(scheme).await;
    let mut queued = Outbox::new();
    let put = async |client: &mut Link, queued: &mut Outbox, size: usize| {
        queued.put_body(LaneId::CONTROL, &vec![7; size].into());
        let written = client.progress(queued, false);
        let written = tokio::time::timeout(Duration::from_millis(50), written);
        written.await.is_ok()
    };
    // The server does not read.
    let mut full = 0;
    while full < 10 {
        full += u32::from(!put(&mut client, &mut queued, 2_000).await);
    }
    // The kernels may still find room for a while.
    let mut still = 0;
    for _ in 0..50 {
        let before = client.send_progress();
        let is_written = put(&mut client, &mut queued, 100).await;
        let has_advanced = client.send_progress().advanced_since(&before);
        still = if is_written || has_advanced {
            0
        } else {
            still + 1
        };
        if still == 5 {
            return;
        }
    }
    panic!("the link goes on though nobody reads");
}

over!(a_link_that_does_not_want_to_read_leaves_bytes_alone: tcp, tls, quic, ws, wss, mem);
async fn a_link_that_does_not_want_to_read_leaves_bytes_alone(scheme: Scheme) {
    let (mut client, mut server) = pair(scheme).await;
    send(&mut client, b"abc").await;
    let mut empty = Outbox::new();
    let quiet = tokio::time::timeout(
        Duration::from_millis(50),
        server.progress(&mut empty, false),
    );
    assert!(quiet.await.is_err());
    assert!(server.received(LaneId::CONTROL).is_empty());
    assert_eq!(receive(&mut server, 3).await, b"abc");
}

over!(counted_bytes_are_still_reported: tcp, tls, quic, ws, wss, mem);
async fn counted_bytes_are_still_reported(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    let connector = Connector::new(connect_options()).unwrap();
    let address = listener.local_address();
    let client = async {
        let mut client = connector.connect(&address).await.unwrap();
        // Over TLS they come with the end of the handshake.
        send(&mut client, b"abc").await;
        client
    };
    let (mut client, mut server) = tokio::join!(client, accept(&mut listener));
    assert!(server.received_len() <= 3);
    let mut empty = Outbox::new();
    let told = tokio::time::timeout(SOON, server.progress(&mut empty, true));
    let told = told.await.expect("there are bytes").unwrap();
    assert_eq!(told, Progress::Received(LaneId::CONTROL));
    assert!(server.received_len() > 0);
    assert_eq!(receive(&mut server, 3).await, b"abc");
    assert_eq!(server.received_len(), 0);
    send(&mut client, b"d").await;
    assert_eq!(receive(&mut server, 1).await, b"d");
}

over!(nothing_is_lost_when_progress_is_dropped: tcp, tls, quic, ws, wss, mem);
async fn nothing_is_lost_when_progress_is_dropped(scheme: Scheme) {
    const SIZE: usize = 2 << 20;
    let (mut client, mut server) = pair(scheme).await;
    let data: Vec<u8> = (0_u32..).flat_map(u32::to_le_bytes).take(SIZE).collect();
    let mut queued = outbox(&data);
    let mut empty = Outbox::new();
    // Both futures are dropped whenever the other is ready first.
    while server.received(LaneId::CONTROL).len() < SIZE {
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            written = client.progress(&mut queued, true) => drop(written.unwrap()),
            read = server.progress(&mut empty, true) => drop(read.unwrap()),
        }
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            read = server.progress(&mut empty, true) => drop(read.unwrap()),
            written = client.progress(&mut queued, true) => drop(written.unwrap()),
        }
    }
    assert!(queued.is_empty());
    assert!(server.received(LaneId::CONTROL)[..] == data[..]);
}

over!(a_busy_writer_still_reads: tcp, tls, quic, ws, wss, mem);
async fn a_busy_writer_still_reads(scheme: Scheme) {
    let (mut client, mut server) = pair(scheme).await;
    send(&mut server, b"hello").await;
    let draining = async {
        let mut empty = Outbox::new();
        loop {
            server.progress(&mut empty, true).await.unwrap();
            server.received(LaneId::CONTROL).clear();
        }
    };
    let writing = async {
        // There is something to write at each call.
        loop {
            let mut queued = outbox(b"x");
            if let Progress::Received(lane) = client.progress(&mut queued, true).await.unwrap() {
                return client.received(lane).split();
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = draining => unreachable!(),
        read = writing => assert_eq!(&read[..], b"hello"),
    }
}

over!(what_was_written_arrives_before_the_close: tcp, tls, quic, ws, wss, mem);
async fn what_was_written_arrives_before_the_close(scheme: Scheme) {
    let (mut client, mut server) = pair(scheme).await;
    // Not read by the client: a careless close would answer with a reset.
    send(&mut server, &[1; 1000]).await;
    send(&mut client, &[7; 5000]).await;
    let reading = async {
        assert_eq!(receive(&mut server, 5000).await, [7; 5000]);
        assert_eq!(
            server.progress(&mut Outbox::new(), true).await.unwrap(),
            Progress::Closed
        );
        server.close(SOON).await;
    };
    tokio::join!(client.close(SOON), reading);
}

over!(a_side_that_has_ended_alone_still_receives: tcp, tls, quic);
async fn a_side_that_has_ended_alone_still_receives(scheme: Scheme) {
    let (mut client, mut server) = pair(scheme).await;
    send(&mut client, b"last").await;
    assert!(client.end_sending().await.unwrap());
    assert_eq!(receive(&mut server, 4).await, b"last");
    let progress = server.progress(&mut Outbox::new(), true).await.unwrap();
    assert_eq!(progress, Progress::Closed);
    let long = vec![7; 300_000];
    let receiving = async {
        assert_eq!(receive(&mut client, long.len()).await, long);
        let progress = client.progress(&mut Outbox::new(), true).await.unwrap();
        assert_eq!(progress, Progress::Closed);
        client.close(SOON).await;
    };
    let sending = async {
        send(&mut server, &long).await;
        server.close(SOON).await;
    };
    tokio::join!(receiving, sending);
}

over!(closing_has_a_deadline: tcp, tls, quic, ws, wss);
async fn closing_has_a_deadline(scheme: Scheme) {
    let (mut client, server) = pair(scheme).await;
    // More than the peer's stack takes without its owner reading.
    let mut queued = outbox(&vec![0; 8 << 20]);
    let some = client.progress(&mut queued, false);
    let _ = tokio::time::timeout(Duration::from_millis(50), some).await;
    let started = std::time::Instant::now();
    client.close(Duration::from_millis(100)).await;
    assert!(started.elapsed() < Duration::from_secs(2));
    drop(server);
}

over!(a_dropped_link_is_noticed: tcp, tls, quic, ws, wss, mem);
async fn a_dropped_link_is_noticed(scheme: Scheme) {
    let (mut client, server) = pair(scheme).await;
    send(&mut client, b"unread").await;
    drop(server);
    match client.progress(&mut Outbox::new(), true).await {
        Ok(Progress::Closed) | Err(Error::Reset { .. }) => {}
        other => panic!("{other:?}"),
    }
    let wrote = async {
        loop {
            match client.progress(&mut outbox(&[0; 1000]), false).await {
                Ok(Progress::Flushed) => tokio::task::yield_now().await,
                other => return other,
            }
        }
    };
    match wrote.await {
        Ok(Progress::Closed) | Err(Error::Reset { .. } | Error::Closed) => {}
        other => panic!("{other:?}"),
    }
}

over!(a_link_with_bytes_left_for_a_peer_that_has_gone_ends_and_does_not_spin: tcp, tls, quic, ws, wss);
async fn a_link_with_bytes_left_for_a_peer_that_has_gone_ends_and_does_not_spin(scheme: Scheme) {
    use std::task::Poll;

    for (client_stays, want_read) in [(true, true), (true, false), (false, true), (false, false)] {
        let (client, server) = pair(scheme).await;
        let (mut link, peer) = if client_stays {
            (client, server)
        } else {
            (server, client)
        };
        // More than fits on the way to a peer that does not read.
        let mut queued = outbox(&vec![0; 8 << 20]);
        let some = link.progress(&mut queued, want_read);
        let _ = tokio::time::timeout(Duration::from_millis(50), some).await;
        assert!(!queued.is_empty());
        drop(peer);
        let mut polls = 0;
        let ended = std::future::poll_fn(|cx| {
            loop {
                polls += 1;
                assert!(polls < 5_000, "it spins");
                match link.poll_progress(cx, &mut queued, want_read) {
                    Poll::Ready(Ok(Progress::Closed) | Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(_)) => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
        });
        let in_time = tokio::time::timeout(Duration::from_secs(2), ended).await;
        assert!(
            in_time.is_ok(),
            "{client_stays} {want_read}: it does not end"
        );
        // A goodbye is no reason to spin either: the close ends by itself, or sleeps.
        let mut polls = 0;
        let mut closing = std::pin::pin!(link.close(Duration::from_millis(300)));
        std::future::poll_fn(|cx| {
            polls += 1;
            assert!(polls < 5_000, "closing spins");
            closing.as_mut().poll(cx)
        })
        .await;
    }
}

/// Makes a client that does not read, with more bytes for a data lane than the server's windows take; returns it, those
/// bytes and the server.
async fn stalled_on_a_data_lane(scheme: Scheme) -> (Link, Outbox, Link) {
    let (mut client, server) = pair(scheme).await;
    let lane = client.open_lane().unwrap();
    let mut queued = Outbox::new();
    queued.put_body(lane, &vec![0; 8 << 20].into());
    let writing = async {
        loop {
            client.progress(&mut queued, false).await.unwrap();
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(50), writing).await;
    assert!(!queued.is_empty());
    (client, queued, server)
}

over!(bytes_of_another_lane_are_reported_as_flushed_beside_a_lane_that_is_not_read: quic);
async fn bytes_of_another_lane_are_reported_as_flushed_beside_a_lane_that_is_not_read(
    scheme: Scheme,
) {
    let (mut client, mut queued, _server) = stalled_on_a_data_lane(scheme).await;
    queued.put_body(LaneId::CONTROL, &b"hello".to_vec().into());
    let before = queued.len();
    let flushed = tokio::time::timeout(SOON, client.progress(&mut queued, false)).await;
    assert_eq!(flushed.unwrap().unwrap(), Progress::Flushed);
    assert_eq!(queued.len(), before - 5);
    let nothing = client.progress(&mut queued, false);
    let pause = tokio::time::timeout(Duration::from_millis(50), nothing).await;
    assert!(pause.is_err(), "{pause:?}");
}

over!(a_lane_that_is_not_read_can_be_aborted: quic);
async fn a_lane_that_is_not_read_can_be_aborted(scheme: Scheme) {
    let (mut client, mut queued, mut server) = stalled_on_a_data_lane(scheme).await;
    let lane = queued.next_data_lane(LaneId::CONTROL).unwrap();
    queued.end(lane, LaneEnd::Abort(7));
    let flushed = tokio::time::timeout(SOON, client.progress(&mut queued, false)).await;
    assert_eq!(flushed.unwrap().unwrap(), Progress::Flushed);
    assert!(queued.is_empty());
    let ended = async {
        loop {
            let progress = server.progress(&mut Outbox::new(), true).await.unwrap();
            if let Progress::LaneClosed(_, how) = progress {
                return how;
            }
        }
    };
    let how = tokio::time::timeout(SOON, ended).await.unwrap();
    assert_eq!(how, LaneClosed::Reset(7));
}

over!(a_link_that_is_not_read_ends_with_bytes_left_on_a_data_lane: quic);
async fn a_link_that_is_not_read_ends_with_bytes_left_on_a_data_lane(scheme: Scheme) {
    let (mut client, mut queued, server) = stalled_on_a_data_lane(scheme).await;
    drop(server);
    let ended = client.progress(&mut queued, false).await;
    assert!(matches!(ended, Ok(Progress::Closed) | Err(_)), "{ended:?}");
}

over!(bytes_that_go_with_a_stopped_lane_are_reported_as_flushed: quic);
async fn bytes_that_go_with_a_stopped_lane_are_reported_as_flushed(scheme: Scheme) {
    let (mut client, mut queued, mut server) = stalled_on_a_data_lane(scheme).await;
    let mut answers = Outbox::new();
    let Progress::Received(lane) = server.progress(&mut answers, true).await.unwrap() else {
        panic!("nothing came on the data lane");
    };
    answers.end(lane, LaneEnd::Abort(7));
    server.progress(&mut answers, false).await.unwrap();
    let flushed = client.progress(&mut queued, false).await.unwrap();
    assert_eq!((flushed, queued.len()), (Progress::Flushed, 0));
}

/// Connects over QUIC to a listener of the same runtime; returns both ends and the listener.
async fn connect_here(connector: &Connector) -> (Link, Link, Listener) {
    let mut listener = listen(Scheme::Quic).await;
    let connecting = connect(connector, &mut listener);
    let connected = tokio::time::timeout(SOON, connecting).await;
    let (client, server) = connected.expect("it should not hang");
    (client, server, listener)
}

#[test]
fn a_connector_goes_on_over_quic_when_the_runtime_of_earlier_connections_ends() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let connector = Connector::new(connect_options()).unwrap();
    let (first, second, third) = (runtime(), runtime(), runtime());
    drop(first.block_on(connect_here(&connector)));
    let (mut client, mut server, listener) = second.block_on(connect_here(&connector));
    drop(first);
    second.block_on(async {
        let exchange = async {
            send(&mut client, b"hello").await;
            receive(&mut server, 5).await
        };
        let received = tokio::time::timeout(SOON, exchange).await;
        assert_eq!(received.expect("it should not hang"), b"hello");
    });
    drop((client, server, listener));
    drop(second);
    drop(third.block_on(connect_here(&connector)));
}

over!(last_words_can_be_read_though_writing_fails: tcp, tls, quic, ws, wss);
async fn last_words_can_be_read_though_writing_fails(scheme: Scheme) {
    let (mut client, mut server) = pair(scheme).await;
    send(&mut server, b"DISCONNECT").await;
    // Unread by the server, so that TCP answers further bytes with a reset.
    send(&mut client, b"unread").await;
    let closing = tokio::spawn(server.close(Duration::from_millis(50)));
    closing.await.unwrap();
    let mut queued = outbox(b"late");
    loop {
        match client.progress(&mut queued, true).await.unwrap() {
            Progress::Flushed => queued = outbox(b"late"),
            Progress::Received(lane) if client.received(lane).len() == 10 => break,
            other => panic!("{other:?}"),
        }
    }
}

over!(a_closed_listener_leaves_its_links_alone: tcp, tls, quic, ws, wss, mem);
async fn a_closed_listener_leaves_its_links_alone(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    let connector = Connector::new(common::connect_options()).unwrap();
    let (mut client, mut server) = common::connect(&connector, &mut listener).await;
    listener.close();
    assert!(matches!(listener.accept().await, Err(Error::Closed)));
    if !matches!(scheme, Scheme::Quic | Scheme::Mem) {
        // At once, and not when the listener is dropped. A QUIC client gets no answer.
        let address = listener.local_address();
        let late = tokio::time::timeout(SOON, connector.connect(&address));
        let late = late.await.unwrap();
        assert!(matches!(late, Err(Error::Unreachable { .. })), "{late:?}");
    }
    drop(listener);
    send(&mut client, b"still here").await;
    assert_eq!(receive(&mut server, 10).await, b"still here");
}

over!(both_ends_know_who_they_are: tcp, tls, quic, ws, wss);
async fn both_ends_know_who_they_are(scheme: Scheme) {
    let (client, server) = pair(scheme).await;
    let (client, server) = (client.info(), server.info());
    assert_eq!((client.scheme, server.scheme), (scheme, scheme));
    assert_eq!(client.peer_address, server.local_address);
    let port = |address: Option<std::net::SocketAddr>| address.unwrap().port();
    assert_eq!(port(client.local_address), port(server.peer_address));
    if !scheme.is_encrypted() {
        assert_eq!(client.tls, None);
        return;
    }
    assert_eq!(client.peer_certificates, common::IDENTITY.chain());
    for tls in [client.tls.unwrap(), server.tls.unwrap()] {
        assert_eq!(tls.version.to_string(), "1.3");
        assert!(tls.cipher_suite.starts_with("TLS_"), "{tls:?}");
        assert_eq!(tls.key_exchange_group.as_deref(), Some("X25519"));
        let alpn = if scheme == Scheme::Wss {
            "http/1.1"
        } else {
            "mqtt"
        };
        assert_eq!(tls.alpn.as_deref(), Some(alpn));
    }
}

#[tokio::test]
async fn a_silent_client_does_not_keep_others_out() {
    for scheme in [Scheme::Tls, Scheme::Quic, Scheme::Ws, Scheme::Wss] {
        let mut listener = listen(scheme).await;
        let address = listener.local_address();
        let connector = Connector::new(common::connect_options()).unwrap();
        let mut silent_address = address.clone();
        if scheme != Scheme::Quic {
            // Not even a ClientHello or a request.
            silent_address.scheme = Scheme::Tcp;
        }
        let silent = connector.clone();
        let silent = tokio::spawn(async move { silent.connect(&silent_address).await });
        let waiting = listener.accept().await.unwrap().handshake();
        tokio::select! {
            _ = waiting => panic!("there is no stream"),
            (mut client, mut server) = common::connect(&connector, &mut listener) => {
                send(&mut client, b"served").await;
                assert_eq!(receive(&mut server, 6).await, b"served");
            }
        }
        drop(silent.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_client_that_begins_with_its_end_is_soon_forgotten() {
    let mut listener = listen(Scheme::Quic).await;
    let address = listener.local_address();
    let connector = Connector::new(connect_options()).unwrap();
    // Given up before a packet has left: the first one closes the connection.
    tokio::select! {
        biased;
        _ = connector.connect(&address) => panic!("nobody has answered"),
        () = std::future::ready(()) => {}
    }
    let client = tokio::time::timeout(SOON, listener.accept())
        .await
        .unwrap()
        .unwrap();
    let ended = tokio::time::timeout(SOON, client.handshake()).await;
    assert!(ended.unwrap().is_err());
    listener.close();
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    listener.drained().await;
    // Not before, or there was nothing to forget.
    assert!((9..=11).contains(&began.elapsed().as_secs()));
}

over!(a_client_whose_address_changes_is_served_on: quic);
async fn a_client_whose_address_changes_is_served_on(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    let way = Way::to(&listener).await;
    let connector = Connector::new(connect_options()).unwrap();
    let (mut client, mut server) = connect_at(&connector, &way.address, &mut listener).await;
    let mut ports = BTreeSet::new();
    for number in 0..20_u8 {
        send(&mut client, &[number; 3000]).await;
        assert_eq!(receive(&mut server, 3000).await, [number; 3000]);
        send(&mut server, &[number]).await;
        assert_eq!(receive(&mut client, 1).await, [number]);
        ports.insert(server.info().peer_address.unwrap().port());
        way.change_the_clients_port();
    }
    assert!(ports.len() > 10, "{ports:?}");
}

/// Counts the bytes that a client sends within twenty round trips, in each of which a probe would be answered.
async fn bytes_of_twenty_round_trips(mtu_discovery: bool) -> u64 {
    let (mut listening, mut connecting) = (listen_options(), connect_options());
    listening.quic.mtu_discovery = mtu_discovery;
    connecting.quic.mtu_discovery = mtu_discovery;
    let address = any_address(Scheme::Quic);
    let mut listener = Listener::bind(&address, &listening).await.unwrap();
    let connector = Connector::new(connecting).unwrap();
    let (mut client, mut server) = connect(&connector, &mut listener).await;
    for _ in 0..20 {
        send(&mut client, b"?").await;
        receive(&mut server, 1).await;
        send(&mut server, b"!").await;
        receive(&mut client, 1).await;
    }
    client.stats().wire_bytes_sent.unwrap()
}

#[tokio::test]
async fn the_path_mtu_is_found_with_one_probe() {
    const PROBE: u64 = 1452;
    // On a machine that is held up, something may be sent twice.
    for _ in 0..10 {
        let without = bytes_of_twenty_round_trips(false).await;
        let with = bytes_of_twenty_round_trips(true).await;
        if (PROBE - 300..2 * PROBE).contains(&with.saturating_sub(without)) {
            return;
        }
        println!("{without} bytes without discovery, {with} with");
    }
    panic!("it took another number of probes");
}

#[tokio::test]
async fn a_quiet_link_stays() {
    let (mut client, mut server) = pair(Scheme::Quic).await;
    tokio::time::pause();
    tokio::time::sleep(Duration::from_mins(1)).await;
    tokio::time::resume();
    send(&mut client, b"there").await;
    assert_eq!(receive(&mut server, 5).await, b"there");
    send(&mut server, b"as well").await;
    assert_eq!(receive(&mut client, 7).await, b"as well");
}

#[tokio::test(start_paused = true)]
async fn delay_in_memory_is_virtual_time() {
    let (mut near, mut far) = Link::pair_with_delay(Duration::from_mins(10));
    let started = tokio::time::Instant::now();
    send(&mut near, b"ping").await;
    assert_eq!(receive(&mut far, 4).await, b"ping");
    send(&mut far, b"pong").await;
    assert_eq!(receive(&mut near, 4).await, b"pong");
    assert_eq!(started.elapsed(), Duration::from_mins(20));
    drop(far);
    assert_eq!(
        near.progress(&mut Outbox::new(), true).await.unwrap(),
        Progress::Closed
    );
    assert_eq!(started.elapsed(), Duration::from_mins(30));
}

#[tokio::test]
async fn ipv6_works_where_there_is_ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6 loopback");
        return;
    }
    for scheme in [
        Scheme::Tcp,
        Scheme::Tls,
        Scheme::Quic,
        Scheme::Ws,
        Scheme::Wss,
    ] {
        let address = mq_transport::Address::new(scheme, "::1", 0);
        let options = common::listen_options();
        let mut listener = mq_transport::Listener::bind(&address, &options)
            .await
            .unwrap();
        let connector = Connector::new(common::connect_options()).unwrap();
        let (client, _server) = common::connect(&connector, &mut listener).await;
        assert!(client.info().peer_address.unwrap().is_ipv6());
    }
}
