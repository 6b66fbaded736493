//! Peers that misbehave: they neither block nor slow others, nor leave anything behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{net::SocketAddr, time::Duration};

use mq_client::{Client, QoS};
use mq_testkit::{Scheme, TestBroker};
use mq_transport::Connector;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UdpSocket},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

const PEERS: usize = 10_000;
/// At once: each takes file descriptors on both sides of this one process.
const AT_ONCE: usize = 400;

/// What one bad peer does; most leave by themselves, the patient ones are thrown out.
async fn misbehave(
    number: usize,
    tcp: SocketAddr,
    tls: SocketAddr,
    quic: SocketAddr,
    quic_url: mq_transport::Address,
    connector: Connector,
) {
    let stay = Duration::from_millis(1500);
    match number % 8 {
        // Connects and stays silent, until it is thrown out.
        0 => {
            let _link = TcpStream::connect(tcp).await;
            sleep(stay).await;
        }
        1 => {
            let _link = TcpStream::connect(tls).await;
            sleep(stay).await;
        }
        // A whole QUIC handshake and no stream.
        2 => {
            let _link = connector.connect(&quic_url).await;
            sleep(stay).await;
        }
        // Garbage.
        3 => {
            if let Ok(mut link) = TcpStream::connect(tcp).await {
                let _ = link.write_all(&[0xFF; 64]).await;
            }
        }
        4 => {
            if let Ok(mut link) = TcpStream::connect(tls).await {
                let _ = link.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
            }
        }
        5 => {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let _ = socket.send_to(&[0xC5; 1200], quic).await;
        }
        // One byte now and then of a CONNECT that never ends.
        6 => {
            if let Ok(mut link) = TcpStream::connect(tcp).await {
                for byte in b"\x10\x7f\x00\x04MQTT" {
                    if link.write_all(&[*byte]).await.is_err() {
                        break;
                    }
                    sleep(Duration::from_millis(300)).await;
                }
            }
        }
        // A CONNECT, then a reset.
        _ => {
            if let Ok(mut link) = TcpStream::connect(tcp).await {
                let _ = link
                    .write_all(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01")
                    .await;
                let id = [b'a' + u8::try_from(number % 26).unwrap()];
                let _ = link.write_all(&id[..number / 8 % 2]).await;
                let _ = link.set_zero_linger();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_bad_peers_slow_nobody_and_leave_nothing() {
    let broker = TestBroker::start_with(|settings| {
        settings.handshake_timeout = Duration::from_millis(800);
        settings.protocol.connect_timeout = Duration::from_millis(800);
    })
    .await;
    let address = |scheme| {
        let at = broker.address(scheme);
        format!("{}:{}", at.host, at.port)
            .parse::<SocketAddr>()
            .unwrap()
    };
    let (tcp, tls, quic) = (
        address(Scheme::Tcp),
        address(Scheme::Tls),
        address(Scheme::Quic),
    );
    let good = broker.client(Scheme::Quic, "good").build().await.unwrap();
    let mut messages = good.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let connector = broker.connector(false);
    // Once around before memory is read, so that what is allocated once is there.
    attack(800, tcp, tls, quic, &broker, &connector).await;
    settle(&broker).await;
    let before = resident();

    let attacking = attack(PEERS, tcp, tls, quic, &broker, &connector);
    let mut attacking = Box::pin(attacking);
    let mut rounds = 0;
    let mut worst = Duration::ZERO;
    loop {
        let round = async {
            let began = Instant::now();
            good.publish("t", "ping", QoS::AtLeastOnce).await.unwrap();
            messages.recv().await.unwrap();
            let took = began.elapsed();
            // New clients get in as well.
            let client: Client = broker.client(Scheme::Tls, "new").build().await.unwrap();
            client.disconnect().await.unwrap();
            sleep(Duration::from_millis(50)).await;
            took
        };
        tokio::select! {
            () = &mut attacking => break,
            took = timeout(Duration::from_secs(10), round) => {
                worst = worst.max(took.expect("a good client was blocked"));
                rounds += 1;
            }
        }
    }
    drop(attacking);
    assert!(rounds > 10, "{rounds}");
    good.disconnect().await.unwrap();
    settle(&broker).await;
    let metrics = broker.broker().metrics();
    assert_eq!(metrics.connections.get(), 0);
    assert_eq!(metrics.sessions.get(), 0);
    assert_eq!(metrics.subscriptions.get(), 0);
    let after = resident();
    println!(
        "{PEERS} bad peers, {rounds} good rounds, slowest {worst:?}; memory {} kB before, {} kB after",
        before / 1024,
        after / 1024
    );
    // An allocator keeps some; 10,000 peers that each left a kilobyte would show.
    assert!(after < before + 10 * 1024 * 1024, "{before} {after}");
    broker.shutdown().await;
}

async fn attack(
    peers: usize,
    tcp: SocketAddr,
    tls: SocketAddr,
    quic: SocketAddr,
    broker: &TestBroker,
    connector: &Connector,
) {
    let quic_url = broker.address(Scheme::Quic);
    let mut tasks = JoinSet::new();
    for number in 0..peers {
        if tasks.len() >= AT_ONCE {
            tasks.join_next().await;
        }
        tasks.spawn(misbehave(
            number,
            tcp,
            tls,
            quic,
            quic_url.clone(),
            connector.clone(),
        ));
    }
    while tasks.join_next().await.is_some() {}
}

/// Waits until the broker has thrown out all but the good client.
async fn settle(broker: &TestBroker) {
    let metrics = broker.broker().metrics();
    let deadline = Instant::now() + Duration::from_secs(20);
    while metrics.connections.get() > 1 {
        assert!(Instant::now() < deadline, "{metrics:?}");
        sleep(Duration::from_millis(50)).await;
    }
    // Links that were never connections end within the handshake's bound.
    sleep(Duration::from_secs(3)).await;
}

fn resident() -> u64 {
    mq_measure::process::memory(std::process::id())
        .unwrap()
        .rss_bytes
}
