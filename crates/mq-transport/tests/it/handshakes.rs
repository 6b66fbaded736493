//! Full and resumed handshakes, early data, tickets, certificates.

use std::{path::Path, time::Duration};

use mq_transport::{
    CipherSuite, ClientAuth, ClientIdentity, ConnectOptions, Connector, CryptoOptions, EarlyData,
    EarlyDataPolicy, Error, HandshakeKind, KeyExchangeGroup, ListenOptions, Listener, Progress,
    Scheme, ServerIdentity, TicketCache, TicketStore, TlsVersion, Trust,
};
use mq_transport::{LaneId, Outbox};

use crate::common::{
    self, accept, any_address, attempt, collect_ticket, connect, connect_options, listen_options,
    outbox, receive, send,
};

/// Makes a listener, its ticket store, and a connector that has a ticket of it.
async fn with_ticket(scheme: Scheme) -> (Listener, TicketStore, Connector) {
    let options = listen_options();
    let store = options.ticket_store.clone();
    let mut listener = Listener::bind(&any_address(scheme), &options)
        .await
        .unwrap();
    let connector = Connector::new(connect_options()).unwrap();
    collect_ticket(&connector, &mut listener).await;
    (listener, store, connector)
}

over!(the_second_handshake_is_resumed: tls, quic, wss);
async fn the_second_handshake_is_resumed(scheme: Scheme) {
    let options = ListenOptions {
        early_data: EarlyDataPolicy::Off,
        ..listen_options()
    };
    let mut listener = Listener::bind(&any_address(scheme), &options)
        .await
        .unwrap();
    let connector = Connector::new(connect_options()).unwrap();
    assert_eq!(
        collect_ticket(&connector, &mut listener).await,
        HandshakeKind::Full
    );
    let (client, server) = connect(&connector, &mut listener).await;
    for stats in [client.stats(), server.stats()] {
        assert_eq!(stats.handshake, HandshakeKind::Resumed);
        assert_eq!(stats.early_data, EarlyData::NotOffered);
    }
    // The certificate is remembered with the session.
    assert_eq!(client.info().peer_certificates, common::IDENTITY.chain());
    let device = connector.with_ticket_cache(TicketCache::new());
    assert_eq!(
        collect_ticket(&device, &mut listener).await,
        HandshakeKind::Full
    );
    assert_eq!(
        collect_ticket(&device, &mut listener).await,
        HandshakeKind::Resumed
    );
}

over!(a_client_that_was_not_let_in_leaves_no_ticket: tls, quic, wss);
async fn a_client_that_was_not_let_in_leaves_no_ticket(scheme: Scheme) {
    let options = ListenOptions {
        hold_tickets: true,
        ..listen_options()
    };
    let store = options.ticket_store.clone();
    let mut listener = Listener::bind(&any_address(scheme), &options)
        .await
        .unwrap();
    let connector = Connector::new(connect_options()).unwrap();
    for released in [false, true] {
        let (mut client, mut server) = connect(&connector, &mut listener).await;
        assert_eq!(server.handshake(), HandshakeKind::Full);
        if released {
            server.let_in();
        }
        common::settle(&mut client, &mut server).await;
        assert_eq!(store.len(), if released { 2 } else { 0 });
    }
    let (mut client, mut server) = connect(&connector, &mut listener).await;
    assert_eq!(server.handshake(), HandshakeKind::Resumed);
    common::settle(&mut client, &mut server).await;
    assert_eq!(store.len(), 1, "it has used one and was given none");
}

over!(resumption_can_be_turned_off: tls, quic, wss);
async fn resumption_can_be_turned_off(scheme: Scheme) {
    let mut listener = common::listen(scheme).await;
    let options = ConnectOptions {
        resumption: false,
        ..connect_options()
    };
    let connector = Connector::new(options).unwrap();
    for _ in 0..2 {
        assert_eq!(
            collect_ticket(&connector, &mut listener).await,
            HandshakeKind::Full
        );
    }
}

over!(early_data_is_answered_before_the_handshake_ends: tls, quic);
async fn early_data_is_answered_before_the_handshake_ends(scheme: Scheme) {
    let (mut listener, _, connector) = with_ticket(scheme).await;
    let mut client = connector.connect(&listener.local_address()).await.unwrap();
    assert_eq!(client.stats().early_data, EarlyData::Pending);
    assert_eq!(client.handshake(), HandshakeKind::Pending);
    send(&mut client, b"CONNECT").await;

    // From here on the client is not driven: over TLS its handshake cannot end. quinn drives
    // itself, so there the server only must not have to wait for it.
    let mut server = accept(&mut listener).await;
    assert_eq!(receive(&mut server, 7).await, b"CONNECT");
    if scheme == Scheme::Tls {
        assert!(server.is_early());
        assert_eq!(server.handshake(), HandshakeKind::Pending);
    }
    assert_eq!(server.stats().early_data, EarlyData::Accepted);
    send(&mut server, b"CONNACK").await;

    assert_eq!(receive(&mut client, 7).await, b"CONNACK");
    assert_eq!(
        client.handshake_complete().await.unwrap(),
        HandshakeKind::Resumed
    );
    assert_eq!(client.stats().early_data, EarlyData::Accepted);
    send(&mut client, b"later").await;
    assert_eq!(receive(&mut server, 5).await, b"later");
    assert_eq!(
        server.handshake_complete().await.unwrap(),
        HandshakeKind::Resumed
    );
    assert!(!server.is_early());
}

over!(rejected_early_data_arrives_once_and_in_order: tls, quic);
async fn rejected_early_data_arrives_once_and_in_order(scheme: Scheme) {
    let (mut listener, store, connector) = with_ticket(scheme).await;
    // As a server that was restarted with the same certificate: without its tickets.
    store.clear();
    let mut client = connector.connect(&listener.local_address()).await.unwrap();
    assert_eq!(client.stats().early_data, EarlyData::Pending);
    // More than may be kept, so some of it waits for the handshake.
    let data: Vec<u8> = (0_u32..).flat_map(u32::to_le_bytes).take(200_000).collect();
    let mut queued = outbox(&data);
    let writing = async {
        while client.progress(&mut queued, true).await.unwrap() != Progress::Flushed {}
        client
    };
    let reading = async {
        let mut server = accept(&mut listener).await;
        assert!(!server.is_early());
        let read = receive(&mut server, data.len()).await;
        (server, read)
    };
    let (mut client, (mut server, read)) = tokio::join!(writing, reading);
    assert!(read == data, "bytes were lost, repeated or reordered");
    assert_eq!(
        client.handshake_complete().await.unwrap(),
        HandshakeKind::Full
    );
    assert_eq!(client.stats().early_data, EarlyData::Rejected);
    assert_eq!(client.stats().bytes_sent, 200_000);
    assert_eq!(server.stats().early_data, EarlyData::NotOffered);
    send(&mut server, b"ok").await;
    assert_eq!(receive(&mut client, 2).await, b"ok");
    send(&mut client, b"end").await;
    assert_eq!(receive(&mut server, 3).await, b"end");
    assert!(server.received(LaneId::CONTROL).is_empty());
}

over!(accepted_early_data_may_be_more_than_its_limit: tls, quic);
async fn accepted_early_data_may_be_more_than_its_limit(scheme: Scheme) {
    let (mut listener, _, connector) = with_ticket(scheme).await;
    let mut client = connector.connect(&listener.local_address()).await.unwrap();
    let data: Vec<u8> = (0_u32..).flat_map(u32::to_le_bytes).take(200_000).collect();
    let mut queued = outbox(&data);
    let writing =
        async { while client.progress(&mut queued, true).await.unwrap() != Progress::Flushed {} };
    let reading = async {
        let mut server = accept(&mut listener).await;
        receive(&mut server, data.len()).await
    };
    let ((), read) = tokio::join!(writing, reading);
    assert!(read == data, "bytes were lost, repeated or reordered");
    assert_eq!(client.stats().early_data, EarlyData::Accepted);
}

over!(early_data_that_is_closed_at_once_still_arrives: tls, quic);
async fn early_data_that_is_closed_at_once_still_arrives(scheme: Scheme) {
    for accepted in [true, false] {
        let (mut listener, store, connector) = with_ticket(scheme).await;
        if !accepted {
            store.clear();
        }
        let mut client = connector.connect(&listener.local_address()).await.unwrap();
        send(&mut client, b"PUBLISH").await;
        let reading = async {
            let mut server = accept(&mut listener).await;
            assert_eq!(receive(&mut server, 7).await, b"PUBLISH");
            assert_eq!(
                server.progress(&mut Outbox::new(), true).await.unwrap(),
                Progress::Closed
            );
            server.close(common::SOON).await;
        };
        tokio::join!(client.close(common::SOON), reading);
    }
}

over!(a_ticket_is_good_for_one_connection: tls, quic);
async fn a_ticket_is_good_for_one_connection(scheme: Scheme) {
    let (mut listener, store, connector) = with_ticket(scheme).await;
    let before = store.len();
    assert_eq!(before, 2);
    let mut client = connector.connect(&listener.local_address()).await.unwrap();
    send(&mut client, b"1").await;
    let mut server = accept(&mut listener).await;
    receive(&mut server, 1).await;
    // One was taken; new ones are given when the handshake ends.
    let (done, ended) = tokio::join!(client.handshake_complete(), server.handshake_complete());
    assert_eq!(
        (done.unwrap(), ended.unwrap()),
        (HandshakeKind::Resumed, HandshakeKind::Resumed)
    );
    assert_eq!(store.len(), before - 1 + 2);
}

#[tokio::test]
async fn a_client_of_a_server_that_was_down_for_many_attempts_resumes() {
    let (listener, store, connector) = with_ticket(Scheme::Quic).await;
    let address = listener.local_address();
    drop(listener);
    // More than there are tickets.
    for _ in 0..5 {
        let ended = match connector.connect(&address).await {
            Ok(mut link) => {
                send(&mut link, b"CONNECT").await;
                link.progress(&mut Outbox::new(), true).await.unwrap_err()
            }
            Err(error) => error,
        };
        assert!(matches!(ended, Error::Unreachable { .. }), "{ended:?}");
    }
    let options = ListenOptions {
        ticket_store: store,
        ..listen_options()
    };
    let mut listener = Listener::bind(&address, &options).await.unwrap();
    let (client, server) = connect(&connector, &mut listener).await;
    for stats in [client.stats(), server.stats()] {
        assert_eq!(stats.early_data, EarlyData::Accepted);
    }
}

#[tokio::test]
async fn replayed_early_data_is_not_taken_again() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let mut listener = common::listen(Scheme::Tls).await;
    let target = ("127.0.0.1", listener.local_address().port);
    // An eavesdropper on the path that keeps the first flight of each client.
    let eavesdropper = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut address = listener.local_address();
    address.port = eavesdropper.local_addr().unwrap().port();
    let (flights, mut kept) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = eavesdropper.accept().await {
            let mut flight = vec![0; 65_536];
            let count = client.read(&mut flight).await.unwrap();
            flight.truncate(count);
            let mut server = tokio::net::TcpStream::connect(target).await.unwrap();
            server.write_all(&flight).await.unwrap();
            flights.send(flight).unwrap();
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut client, &mut server).await },
            );
        }
    });
    let connector = Connector::new(connect_options()).unwrap();
    for early_data in [EarlyData::NotOffered, EarlyData::Accepted] {
        let client = async {
            let mut client = connector.connect(&address).await.unwrap();
            send(&mut client, b"PUBLISH").await;
            receive(&mut client, 6).await;
            client.stats().early_data
        };
        let server = async {
            let mut server = accept(&mut listener).await;
            receive(&mut server, 7).await;
            server.handshake_complete().await.unwrap();
            send(&mut server, b"PUBACK").await;
        };
        assert_eq!(tokio::join!(client, server).0, early_data);
    }
    kept.recv().await.unwrap();
    let flight = kept.recv().await.unwrap();
    let mut replayed = tokio::net::TcpStream::connect(target).await.unwrap();
    replayed.write_all(&flight).await.unwrap();
    let incoming = listener.accept().await.unwrap();
    let handshake = tokio::time::timeout(Duration::from_millis(200), incoming.handshake());
    // Either it waits for a Finished that the eavesdropper cannot make, or it has given up.
    assert!(
        !matches!(handshake.await, Ok(Ok(_))),
        "early data was taken twice"
    );
}

over!(a_server_can_refuse_early_data: tls, quic, wss);
async fn a_server_can_refuse_early_data(scheme: Scheme) {
    let options = ListenOptions {
        early_data: EarlyDataPolicy::Off,
        ..listen_options()
    };
    let mut listener = Listener::bind(&any_address(scheme), &options)
        .await
        .unwrap();
    let connector = Connector::new(connect_options()).unwrap();
    collect_ticket(&connector, &mut listener).await;
    let (client, _server) = connect(&connector, &mut listener).await;
    assert_eq!(client.stats().early_data, EarlyData::NotOffered);
    assert_eq!(client.stats().handshake, HandshakeKind::Resumed);
}

#[tokio::test]
async fn tls_1_2_works_and_resumes() {
    let options = ConnectOptions {
        crypto: CryptoOptions {
            max_version: TlsVersion::Tls12,
            ..CryptoOptions::default()
        },
        ..connect_options()
    };
    let mut listener = common::listen(Scheme::Tls).await;
    let connector = Connector::new(options).unwrap();
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let (client, server) = connect(&connector, &mut listener).await;
        assert_eq!((client.handshake(), server.handshake()), (kind, kind));
        assert_eq!(client.info().tls.unwrap().version, TlsVersion::Tls12);
    }
}

over!(the_clients_choice_of_cipher_and_group_is_taken: tls, quic, wss);
async fn the_clients_choice_of_cipher_and_group_is_taken(scheme: Scheme) {
    let crypto = CryptoOptions {
        key_exchange_groups: vec![KeyExchangeGroup::Secp256r1, KeyExchangeGroup::X25519],
        ..CryptoOptions::default()
    };
    let options = ListenOptions {
        crypto: crypto.clone(),
        ..listen_options()
    };
    let mut listener = Listener::bind(&any_address(scheme), &options)
        .await
        .unwrap();
    for (suite, name) in [
        (CipherSuite::Aes128Gcm, "TLS_AES_128_GCM_SHA256"),
        (CipherSuite::Aes256Gcm, "TLS_AES_256_GCM_SHA384"),
        (
            CipherSuite::ChaCha20Poly1305,
            "TLS_CHACHA20_POLY1305_SHA256",
        ),
    ] {
        let options = ConnectOptions {
            crypto: CryptoOptions {
                cipher_suites: vec![suite],
                ..crypto.clone()
            },
            ..connect_options()
        };
        let connector = Connector::new(options).unwrap();
        let (client, server) = connect(&connector, &mut listener).await;
        for link in [client, server] {
            let tls = link.info().tls.unwrap();
            assert_eq!(tls.cipher_suite, name);
            assert_eq!(tls.key_exchange_group.as_deref(), Some("secp256r1"));
        }
    }
}

over!(a_fingerprint_is_enough: tls, quic, wss);
async fn a_fingerprint_is_enough(scheme: Scheme) {
    let mut listener = common::listen(scheme).await;
    for trust in [
        Trust::Fingerprint(common::IDENTITY.fingerprint()),
        Trust::Insecure,
    ] {
        let options = ConnectOptions {
            trust,
            server_name: Some("another.example".into()),
            ..connect_options()
        };
        let (_, server) = connect(&Connector::new(options).unwrap(), &mut listener).await;
        let asked_for = server.info().tls.unwrap().server_name;
        assert_eq!(asked_for.as_deref(), Some("another.example"));
    }
}

over!(an_unknown_certificate_is_refused_with_a_hint: tls, quic, wss);
async fn an_unknown_certificate_is_refused_with_a_hint(scheme: Scheme) {
    let mut listener = common::listen(scheme).await;
    let other = ServerIdentity::self_signed().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ca_file = directory.path().join("other.pem");
    std::fs::write(&ca_file, other.certificate_pem()).unwrap();
    for trust in [
        Trust::CaFile(ca_file),
        Trust::Fingerprint(other.fingerprint()),
    ] {
        let connector = Connector::new(ConnectOptions {
            trust,
            ..connect_options()
        });
        let connector = connector.unwrap();
        let address = listener.local_address();
        let serving = async { listener.accept().await.unwrap().handshake().await };
        let (client, server) = tokio::join!(connector.connect(&address), serving);
        let error = client.unwrap_err();
        assert!(
            matches!(error, Error::CertificateRejected { .. }),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            "the peer's certificate is not accepted: no trusted CA has signed it; \
             trust the CA that has, by its file"
        );
        assert!(matches!(
            server.unwrap_err(),
            Error::Handshake { .. } | Error::Reset { .. }
        ));
    }
}

over!(client_certificates_are_asked_for: tls, quic, wss);
async fn client_certificates_are_asked_for(scheme: Scheme) {
    let directory = tempfile::tempdir().unwrap();
    let identity = make_client(directory.path());
    let ca_file = identity.certificates.clone();
    for (auth, certificate, welcome) in [
        (ClientAuth::Required(ca_file.clone()), true, true),
        (ClientAuth::Required(ca_file.clone()), false, false),
        (ClientAuth::Optional(ca_file.clone()), true, true),
        (ClientAuth::Optional(ca_file.clone()), false, true),
    ] {
        let shown = format!("{auth:?}, certificate: {certificate}");
        let options = ListenOptions {
            client_auth: auth,
            ..listen_options()
        };
        let mut listener = Listener::bind(&any_address(scheme), &options)
            .await
            .unwrap();
        let connector = Connector::new(ConnectOptions {
            identity: certificate.then(|| identity.clone()),
            ..connect_options()
        });
        let connector = connector.unwrap();
        if welcome {
            for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
                let (mut client, mut server) = connect(&connector, &mut listener).await;
                assert_eq!(server.handshake(), kind, "{shown}");
                assert_eq!(
                    server.info().peer_certificates.len(),
                    usize::from(certificate)
                );
                send(&mut server, b"welcome").await;
                receive(&mut client, 7).await;
                let mut empty = Outbox::new();
                let some = client.progress(&mut empty, true);
                let _ = tokio::time::timeout(Duration::from_millis(20), some).await;
            }
            continue;
        }
        let (client, server) = attempt(&connector, &mut listener).await;
        assert!(
            matches!(client, Err(Error::Handshake { .. })),
            "{shown}: {client:?}"
        );
        assert!(
            matches!(server, Err(Error::Handshake { .. })),
            "{shown}: {server:?}"
        );
    }
}

/// Makes a self-signed client certificate, which is its own CA.
fn make_client(directory: &Path) -> ClientIdentity {
    let made = rcgen::generate_simple_self_signed(vec!["device-1".into()]).unwrap();
    let identity = ClientIdentity {
        certificates: directory.join("client.pem"),
        key: directory.join("client.key"),
    };
    std::fs::write(&identity.certificates, made.cert.pem()).unwrap();
    std::fs::write(&identity.key, made.signing_key.serialize_pem()).unwrap();
    identity
}
