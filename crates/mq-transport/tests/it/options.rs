//! Options that change nothing but how a link works: each is seen to take effect.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
    time::{Duration, Instant},
};

use mq_transport::Outbox;
use mq_transport::{
    AckFrequency, Address, CipherSuite, ConnectOptions, Connector, CryptoOptions, Error,
    KeyExchangeGroup, Link, ListenOptions, Listener, QuicOptions, Scheme, SocketOptions,
};

use crate::common::{
    self, any_address, connect, connect_options, listen, listen_options, receive, send,
};

/// Connects two ends with these options of QUIC at each.
async fn quic_pair(client: QuicOptions, server: QuicOptions) -> (Link, Link) {
    let options = ListenOptions {
        quic: server,
        ..listen_options()
    };
    let mut listener = Listener::bind(&any_address(Scheme::Quic), &options)
        .await
        .unwrap();
    let connector = Connector::new(ConnectOptions {
        quic: client,
        ..connect_options()
    });
    connect(&connector.unwrap(), &mut listener).await
}

/// Connects two ends with these ciphers and groups at each.
async fn crypto_pair(scheme: Scheme, client: CryptoOptions, server: CryptoOptions) -> (Link, Link) {
    let options = ListenOptions {
        crypto: server,
        ..listen_options()
    };
    let mut listener = Listener::bind(&any_address(scheme), &options)
        .await
        .unwrap();
    let connector = Connector::new(ConnectOptions {
        crypto: client,
        ..connect_options()
    });
    connect(&connector.unwrap(), &mut listener).await
}

#[cfg(target_os = "linux")]
over!(a_client_comes_from_its_local_address: tcp, tls, quic, ws, wss);
#[cfg(target_os = "linux")]
async fn a_client_comes_from_its_local_address(scheme: Scheme) {
    // On Linux all of 127.0.0.0/8 is this machine.
    let local = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
    let mut listener = listen(scheme).await;
    let connector = Connector::new(ConnectOptions {
        local_address: Some(local),
        ..connect_options()
    });
    let (client, server) = connect(&connector.unwrap(), &mut listener).await;
    assert_eq!(client.info().local_address.unwrap().ip(), local);
    assert_eq!(server.info().peer_address.unwrap().ip(), local);
}

#[cfg(target_os = "linux")]
over!(a_link_with_tcp_fast_open_works_wherever_the_system_takes_data_in_a_syn_or_not: tcp, tls, ws, wss);
#[cfg(target_os = "linux")]
async fn a_link_with_tcp_fast_open_works_wherever_the_system_takes_data_in_a_syn_or_not(
    scheme: Scheme,
) {
    let socket = SocketOptions {
        tcp_fast_open: true,
        ..SocketOptions::default()
    };
    let listening = ListenOptions {
        socket: socket.clone(),
        ..listen_options()
    };
    let mut listener = Listener::bind(&any_address(scheme), &listening)
        .await
        .unwrap();
    let connector = Connector::new(ConnectOptions {
        socket,
        ..connect_options()
    });
    let connector = connector.unwrap();
    // `net.ipv4.tcp_fastopen` of this machine; 2 is for servers.
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen").unwrap();
    let is_taken = setting.trim().parse::<u32>().unwrap() & 3 == 3;
    // The first connection brings a cookie, if no other test's has.
    for number in 0..2 {
        let (mut client, mut server) = connect(&connector, &mut listener).await;
        send(&mut client, b"abc").await;
        assert_eq!(receive(&mut server, 3).await, b"abc");
        let ends = (client.info(), server.info());
        assert_eq!(ends.0.local_address, ends.1.peer_address);
        assert_eq!(ends.1.local_address, ends.0.peer_address);
        if number > 0 || !is_taken {
            assert_eq!(client.stats().data_in_syn, Some(is_taken), "{number}");
        }
    }
}

fn groups(groups: &[KeyExchangeGroup]) -> CryptoOptions {
    CryptoOptions {
        key_exchange_groups: groups.to_vec(),
        ..CryptoOptions::default()
    }
}

#[cfg(feature = "aws-lc-rs")]
over!(a_post_quantum_group_is_used_where_both_have_it: tls, quic, wss);
#[cfg(feature = "aws-lc-rs")]
async fn a_post_quantum_group_is_used_where_both_have_it(scheme: Scheme) {
    use KeyExchangeGroup::{X25519, X25519MlKem768};

    for (client, server, taken) in [
        (
            &[X25519MlKem768][..],
            &[X25519MlKem768][..],
            "X25519MLKEM768",
        ),
        (
            &[X25519MlKem768, X25519],
            &[X25519, X25519MlKem768],
            "X25519MLKEM768",
        ),
        // One round trip more: the client's first key is of no use to the server.
        (&[X25519MlKem768, X25519], &[X25519], "X25519"),
    ] {
        let (client, server) = crypto_pair(scheme, groups(client), groups(server)).await;
        for link in [client, server] {
            let group = link.info().tls.unwrap().key_exchange_group;
            assert_eq!(group.as_deref(), Some(taken));
        }
    }
}

over!(the_order_of_the_clients_groups_decides: tls, quic, wss);
async fn the_order_of_the_clients_groups_decides(scheme: Scheme) {
    use KeyExchangeGroup::{Secp256r1, X25519};

    for (order, taken) in [
        ([X25519, Secp256r1], "X25519"),
        ([Secp256r1, X25519], "secp256r1"),
    ] {
        let server = groups(&[X25519, Secp256r1]);
        let (client, _server) = crypto_pair(scheme, groups(&order), server).await;
        let group = client.info().tls.unwrap().key_exchange_group;
        assert_eq!(group.as_deref(), Some(taken));
    }
}

over!(a_listener_takes_a_client_that_has_p256_alone: tls, quic, wss);
async fn a_listener_takes_a_client_that_has_p256_alone(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    let connector = Connector::new(ConnectOptions {
        crypto: groups(&[KeyExchangeGroup::Secp256r1]),
        ..connect_options()
    });
    let (client, _server) = connect(&connector.unwrap(), &mut listener).await;
    let group = client.info().tls.unwrap().key_exchange_group;
    assert_eq!(group.as_deref(), Some("secp256r1"));
}

over!(the_order_of_the_clients_ciphers_decides: tls, quic, wss);
async fn the_order_of_the_clients_ciphers_decides(scheme: Scheme) {
    use CipherSuite::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};

    let ordered = |suites: &[CipherSuite]| CryptoOptions {
        cipher_suites: suites.to_vec(),
        ..CryptoOptions::default()
    };
    for (order, taken) in [
        (
            [Aes128Gcm, Aes256Gcm, ChaCha20Poly1305],
            "TLS_AES_128_GCM_SHA256",
        ),
        (
            [ChaCha20Poly1305, Aes256Gcm, Aes128Gcm],
            "TLS_CHACHA20_POLY1305_SHA256",
        ),
        (
            [Aes256Gcm, Aes128Gcm, ChaCha20Poly1305],
            "TLS_AES_256_GCM_SHA384",
        ),
    ] {
        let server = ordered(&[Aes128Gcm, ChaCha20Poly1305, Aes256Gcm]);
        let (client, _server) = crypto_pair(scheme, ordered(&order), server).await;
        assert_eq!(client.info().tls.unwrap().cipher_suite, taken);
    }
}

/// The part of [`secrets_are_written_only_where_the_option_says_so`] that needs an environment of
/// its own: one program cannot change its own safely.
#[tokio::test]
#[ignore = "runs as a child process"]
async fn child_that_connects_with_a_key_log() {
    let key_log = std::env::var("KEY_LOG").unwrap();
    for scheme in [Scheme::Tls, Scheme::Quic] {
        let side = |name| CryptoOptions {
            key_log: key_log == name,
            ..CryptoOptions::default()
        };
        crypto_pair(scheme, side("client"), side("server")).await;
    }
}

#[test]
fn secrets_are_written_only_where_the_option_says_so() {
    let directory = tempfile::tempdir().unwrap();
    for side in ["client", "server", "neither"] {
        let file = directory.path().join(side);
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "options::child_that_connects_with_a_key_log",
            ])
            .env("SSLKEYLOGFILE", &file)
            .env("KEY_LOG", side)
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        if side == "neither" {
            assert!(!file.exists());
            continue;
        }
        assert_key_log(&file);
    }
}

/// Asserts that the key log holds the secrets that Wireshark needs of a TLS and a QUIC handshake, and that only
/// the file's owner may read it.
fn assert_key_log(file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    for label in [
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        "SERVER_HANDSHAKE_TRAFFIC_SECRET",
        "CLIENT_TRAFFIC_SECRET_0",
        "SERVER_TRAFFIC_SECRET_0",
    ] {
        let randoms: std::collections::BTreeSet<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix(label)?.trim_start().split_once(' '))
            .map(|(random, secret)| {
                assert_eq!((random.len(), secret.len() % 64), (64, 0), "{label}");
                random
            })
            .collect();
        assert_eq!(randoms.len(), 2, "{label} in {text}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;

        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }
}

/// Moves `size` bytes from `from` to `to`.
async fn transfer(from: &mut Link, to: &mut Link, size: usize) {
    let data = vec![7; size];
    tokio::join!(send(from, &data), receive(to, size));
}

#[tokio::test]
async fn a_higher_threshold_makes_fewer_acknowledgements() {
    const PACKETS: usize = 400;
    let mut sent = Vec::new();
    for threshold in [None, Some(100)] {
        let client = QuicOptions {
            ack_frequency: threshold.map(|threshold| AckFrequency {
                threshold,
                max_delay: Some(Duration::from_millis(25)),
                reordering_threshold: 2,
            }),
            ..QuicOptions::default()
        };
        let (mut client, mut server) = quic_pair(client, QuicOptions::default()).await;
        let before = server.stats().packets_sent.unwrap();
        // One at a time: packets that come in together are acknowledged together in any case.
        for _ in 0..PACKETS {
            transfer(&mut client, &mut server, 100).await;
        }
        sent.push(server.stats().packets_sent.unwrap() - before);
    }
    println!("datagrams that acknowledge {PACKETS}: {sent:?}");
    assert!(sent[1] * 4 < sent[0], "{sent:?}");
}

#[tokio::test]
async fn segmentation_offload_saves_system_calls() {
    const SIZE: usize = 3 << 20;
    let mut calls_per_packet = Vec::new();
    for segmentation_offload in [false, true] {
        let quic = QuicOptions {
            segmentation_offload,
            ..QuicOptions::default()
        };
        let (mut client, mut server) = quic_pair(quic.clone(), quic).await;
        transfer(&mut client, &mut server, SIZE).await;
        let stats = client.stats();
        calls_per_packet.push((stats.send_calls.unwrap(), stats.packets_sent.unwrap()));
    }
    println!("(system calls, datagrams) without and with: {calls_per_packet:?}");
    let [(calls, packets), (fewer_calls, as_many)] = calls_per_packet[..] else {
        unreachable!("there were two rounds");
    };
    assert_eq!(calls, packets);
    if fewer_calls == as_many {
        println!("skipped: this kernel has no UDP segmentation offload");
    } else {
        assert!(fewer_calls * 2 < as_many, "{calls_per_packet:?}");
    }
}

/// Measures the time between the first two datagrams of a client that gets no answer.
async fn resent_after(initial_rtt: Duration) -> Duration {
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let connector = Connector::new(ConnectOptions {
        quic: QuicOptions {
            initial_rtt,
            ..QuicOptions::default()
        },
        ..connect_options()
    });
    let connector = connector.unwrap();
    let address = Address::new(Scheme::Quic, "127.0.0.1", port);
    let hearing = async {
        let mut datagram = [0; 1500];
        silent.recv_from(&mut datagram).await.unwrap();
        let first = Instant::now();
        // One byte asks whether the port is closed, and is no packet of QUIC.
        while silent.recv_from(&mut datagram).await.unwrap().0 == 1 {}
        first.elapsed()
    };
    tokio::select! {
        elapsed = hearing => elapsed,
        connected = connector.connect(&address) => panic!("{connected:?}"),
    }
}

#[tokio::test]
async fn a_first_packet_is_sent_again_after_three_initial_round_trips() {
    let (short, long) = (Duration::from_millis(30), Duration::from_millis(250));
    let both = async { tokio::join!(resent_after(short), resent_after(long)) };
    let (after_short, after_long) = tokio::time::timeout(common::SOON, both).await.unwrap();
    // RFC 9002 §6.2.2 and §5.3: the probe timeout is rtt + 4 * rtt / 2. Timers may be late.
    let early = Duration::from_millis(5);
    assert!(after_short + early > 3 * short, "{after_short:?}");
    assert!(after_long + early > 3 * long, "{after_long:?}");
    assert!(after_short < 3 * long, "{after_short:?}");
}

#[tokio::test]
async fn the_smaller_idle_timeout_of_both_ends_counts() {
    const SHORT: Duration = Duration::from_millis(300);
    let of = |idle_timeout| QuicOptions {
        idle_timeout,
        ..QuicOptions::default()
    };
    let ours = quic_pair(of(Some(SHORT)), of(None)).await;
    let theirs = quic_pair(of(None), of(Some(SHORT))).await;
    let never = quic_pair(of(None), of(None)).await;
    let alive = QuicOptions {
        keep_alive_interval: Some(SHORT / 4),
        ..of(Some(SHORT))
    };
    let kept_alive = quic_pair(alive, of(Some(SHORT))).await;

    let began = Instant::now();
    let timed_out = |(mut client, server): (Link, Link)| async move {
        let ended = client.progress(&mut Outbox::new(), true).await;
        assert!(matches!(ended, Err(Error::TimedOut)), "{ended:?}");
        drop(server);
        began.elapsed()
    };
    let goes_on = |(mut client, server): (Link, Link)| async move {
        let mut empty = Outbox::new();
        let progress = client.progress(&mut empty, true);
        let ended = tokio::time::timeout(4 * SHORT, progress).await;
        assert!(ended.is_err(), "{ended:?}");
        drop(server);
    };
    let all = async {
        tokio::join!(
            timed_out(ours),
            timed_out(theirs),
            goes_on(never),
            goes_on(kept_alive)
        )
    };
    let (ours, theirs, (), ()) = tokio::time::timeout(common::SOON, all).await.unwrap();
    assert!(
        ours > SHORT / 2 && theirs > SHORT / 2,
        "{ours:?} {theirs:?}"
    );
}
