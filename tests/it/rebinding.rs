//! Clients over QUIC on paths that are not good: behind a NAT that forgets a subscriber, whose address changes without
//! its knowledge, and far away.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use mq_client::{Client, Outgoing, Probes, QoS, Subscription};
use mq_testkit::{Scheme, TestBroker, UdpProxy, next};
use mq_transport::{Address, Repeat};
use tokio::time::{Instant, sleep, timeout};

/// Short, for a test to be short.
const QUIET: Duration = Duration::from_secs(3);

/// A broker, a publisher without a NAT, and a subscriber of `t` behind a NAT.
struct Scene {
    _broker: TestBroker,
    publisher: Client,
    subscriber: Client,
    messages: Subscription,
    nat: UdpProxy,
}

impl Scene {
    /// Sets up a broker, a NAT and clients. The subscriber probes as it does by default but for `quiet`; its keep-alive
    /// is 60 s.
    async fn new(quiet: Duration, qos: QoS) -> Self {
        let broker = TestBroker::start().await;
        let (nat, url) = behind(&broker, Duration::from_millis(5)).await;
        let subscriber = Client::builder(&url.to_string())
            .unwrap()
            .connector(broker.connector(false))
            .probes(Probes {
                quiet: Some(quiet),
                busy: Some(Duration::from_millis(1_500)),
            });
        let subscriber = subscriber.build().await.unwrap();
        let messages = subscriber.subscribe("t", qos).await.unwrap();
        let publisher = broker.client(Scheme::Tcp, "publisher").build().await;
        Self {
            _broker: broker,
            publisher: publisher.unwrap(),
            subscriber,
            messages,
            nat,
        }
    }
}

/// Three probe time-outs of such a path are some 16 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_ends_does_not_wait_for_late_packets_of_far_away_clients() {
    let broker = TestBroker::start_with(|settings| {
        settings.shutdown_timeout = Duration::from_mins(1);
    })
    .await;
    let (_path, url) = behind(&broker, Duration::from_secs(1)).await;
    let client = Client::builder(&url.to_string()).unwrap();
    let client = client.connector(broker.connector(false)).build().await;
    let _client = client.unwrap();
    let began = Instant::now();
    broker.shutdown().await;
    let took = began.elapsed();
    println!("the broker took {took:?} to end");
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_sends_again_by_its_own_policy() {
    let broker = TestBroker::start_with(|settings| {
        let repeating = Address::new(Scheme::Quic, "localhost", 0);
        settings.listeners.push(repeating.clone());
        let soon = Repeat::after(Duration::from_millis(1));
        settings.repeat_at = vec![(repeating, soon)];
    })
    .await;
    let listeners = broker.broker().listeners().iter();
    let listeners = listeners.filter(|one| one.address.scheme == Scheme::Quic);
    let listeners: Vec<_> = listeners.collect();
    for listener in &listeners {
        let client = Client::builder(&listener.address.to_string()).unwrap();
        let client = client.connector(broker.connector(false)).build().await;
        let client = client.unwrap();
        let mut messages = client.subscribe("t", QoS::AtMostOnce).await.unwrap();
        for _ in 0..20 {
            client.publish("t", "x", QoS::AtMostOnce).await.unwrap();
            next(&mut messages).await;
            // Until the copies have left.
            sleep(Duration::from_millis(5)).await;
        }
        client.disconnect().await.unwrap();
        let counted = async {
            while listener.connections.get() > 0 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(10), counted).await.unwrap();
    }
    let copies: Vec<_> = listeners
        .iter()
        .map(|one| one.packets_repeated.get())
        .collect();
    assert!(copies[0] == 0 && copies[1] > 0, "{copies:?}");
}

/// Starts a path to the broker with this delay each way, and its URL.
async fn behind(broker: &TestBroker, one_way: Duration) -> (UdpProxy, Address) {
    let at = broker.address(Scheme::Quic);
    let target: SocketAddr = format!("{}:{}", at.host, at.port).parse().unwrap();
    let path = UdpProxy::start(target, one_way).await.unwrap();
    let front = path.address();
    let url = Address::new(Scheme::Quic, front.ip().to_string(), front.port());
    (path, url)
}

/// Returns the address of number `number` of the same machine.
fn outside(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, number).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_subscriber_hears_again_after_its_interval() {
    let mut scene = Scene::new(QUIET, QoS::AtLeastOnce).await;
    for number in 1..=3 {
        let payload = number.to_string();
        // Until the last acknowledgements have left: they would tell the new address.
        sleep(Duration::from_secs(1)).await;
        scene.nat.rebind(outside(number), Duration::ZERO);
        let began = Instant::now();
        let message = Outgoing::to("t", payload.clone()).unwrap();
        let sent = scene.publisher.send(message.qos(QoS::AtLeastOnce)).await;
        sent.unwrap().acknowledged().await.unwrap();
        assert_eq!(next(&mut scene.messages).await.payload, payload);
        let took = began.elapsed();
        println!("heard after {took:?}");
        // Long before its keep-alive, on a busy machine too.
        assert!(took < 3 * QUIET, "{took:?}");
    }
    scene.subscriber.disconnect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_subscriber_hears_again_soon_and_loses_nothing() {
    tokio::join!(busy(QoS::AtMostOnce), busy(QoS::AtLeastOnce));
}

/// Checks a subscriber that the network moves while messages are on their way. At QoS 0 the subscriber has nothing
/// under way that QUIC would send again, so it hears nothing until it probes. QUIC delivers the messages of the
/// meantime.
async fn busy(qos: QoS) {
    const REBINDS: u8 = 4;
    /// Longer than what is under way at the change.
    const OUTAGE: Duration = Duration::from_millis(300);
    const END: &str = "end";
    /// The wait of a subscriber without probes for a busy flow.
    const DEAF: Duration = Duration::from_secs(15);
    let mut scene = Scene::new(DEAF, qos).await;
    let publisher = scene.publisher.clone();
    // 200 messages a second, from before the first change until after the last.
    let publishing = tokio::spawn(async move {
        let began = Instant::now();
        let mut count = 0_u32;
        while began.elapsed() < Duration::from_secs(4) * u32::from(REBINDS) {
            let message = Outgoing::to("t", count.to_string()).unwrap();
            publisher.send(message.qos(QoS::AtLeastOnce)).await.unwrap();
            count += 1;
            sleep(Duration::from_millis(5)).await;
        }
        let end = Outgoing::to("t", END).unwrap().qos(QoS::AtLeastOnce);
        publisher.send(end).await.unwrap();
        count
    });
    let mut seen = std::collections::BTreeSet::new();
    let mut longest = Duration::ZERO;
    let mut rebinds = 0;
    let mut last = Instant::now();
    let mut changed = Instant::now();
    loop {
        let incoming = timeout(DEAF * 2 / 3, scene.messages.recv()).await;
        let incoming = incoming.expect("the subscriber is deaf").unwrap();
        let payload = String::from_utf8(incoming.payload.to_vec()).unwrap();
        if payload == END {
            break;
        }
        seen.insert(payload.parse::<u32>().unwrap());
        longest = longest.max(last.elapsed());
        last = Instant::now();
        if rebinds < REBINDS && changed.elapsed() > Duration::from_millis(2_500) {
            rebinds += 1;
            changed = Instant::now();
            scene.nat.rebind(outside(rebinds), OUTAGE);
        }
    }
    let count = publishing.await.unwrap();
    println!("{qos:?}: {count} messages, silent for {longest:?} at most");
    assert_eq!(rebinds, REBINDS);
    assert!(seen.into_iter().eq(0..count), "some were lost");
    scene.subscriber.disconnect().await.unwrap();
}
