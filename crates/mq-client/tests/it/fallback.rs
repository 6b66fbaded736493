//! Several addresses: races, their memory, and sessions that go on over the winner.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use mq_client::{
    Address, Client, ClientBuilder, ConnectOptions, Connector, Error, Event, Outgoing, QoS,
    ReasonCode, Reconnect, Scheme, Trust,
};
use mq_codec::Disconnect;
use mq_proto::{Connection, Event as ProtoEvent, ServerConfig, Session};
use mq_transport::{Link, ListenOptions, Listener};
use tokio::{net::UdpSocket, task::JoinSet, time::Instant};

use crate::util::{self, Peer, Server, listen, text};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Bound on what takes no time.
const SOON: Duration = Duration::from_secs(10);

fn message(payload: &str, qos: QoS) -> Outgoing {
    Outgoing::to("a/b", payload.to_owned()).unwrap().qos(qos)
}

// In memory, where time is virtual.

/// An address at which connecting never ends.
struct Hole {
    _listener: Listener,
    _filling: Link,
    url: String,
}

impl Hole {
    async fn new(name: &str) -> Self {
        let url = format!("mem://{name}");
        let address: Address = url.parse().unwrap();
        let options = ListenOptions {
            backlog: 1,
            ..ListenOptions::default()
        };
        let listener = Listener::bind(&address, &options).await.unwrap();
        let connector = Connector::new(ConnectOptions::default()).unwrap();
        Self {
            _filling: connector.connect(&address).await.unwrap(),
            _listener: listener,
            url,
        }
    }

    /// Makes a client that tries this address first; it reconnects after exactly 1 s.
    fn client(&self, then: &[&str]) -> ClientBuilder {
        let mut builder = Client::builder(&self.url).unwrap().reconnect(Reconnect {
            initial: SECOND,
            jitter: 0.0,
            ..Reconnect::default()
        });
        for url in then {
            builder = builder.fallback(url).unwrap();
        }
        builder
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_address_is_tried_after_the_head_start() {
    let hole = Hole::new("hole_1").await;
    let other = Hole::new("hole_2").await;
    let mut server = Server::bind("after_holes").await;
    for (then, head_starts) in [
        (&["mem://after_holes"][..], 1),
        (&[&other.url, "mem://after_holes"][..], 2),
    ] {
        let start = Instant::now();
        let client = hole.client(then).start().unwrap();
        let _peer = server.client().await;
        client.connected().await.unwrap();
        assert_eq!(start.elapsed(), head_starts * 500 * MS);
    }
    let start = Instant::now();
    let builder = hole.client(&["mem://after_holes"]).head_start(3 * SECOND);
    let client = builder.start().unwrap();
    let _peer = server.client().await;
    client.connected().await.unwrap();
    assert_eq!(start.elapsed(), 3 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_fails_does_not_hold_up_the_next() {
    let mut server = Server::bind("after_nobody").await;
    let start = Instant::now();
    let client = Client::builder("mem://nobody_1").unwrap();
    let client = client.fallback("mem://nobody_2").unwrap();
    let client = client.fallback("mem://after_nobody").unwrap();
    let (client, _peer) = server.pair(client).await;
    assert!(client.is_connected());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_winner_is_tried_first_for_ten_minutes() {
    let hole = Hole::new("hole_remembered").await;
    let mut server = Server::bind("remembered").await;
    let builder = hole.client(&["mem://remembered"]);
    let client = builder.keep_alive(Duration::ZERO).start().unwrap();
    let mut peer = server.client().await;
    // From the loss on: the wait, and the head start where the first address is tried again.
    for (minutes, wait) in [(1, 1000), (8, 1000), (2, 1500), (9, 1000), (1, 1500)] {
        client.connected().await.unwrap();
        tokio::time::sleep(Duration::from_mins(minutes)).await;
        drop(peer);
        let start = Instant::now();
        peer = server.client().await;
        assert_eq!(start.elapsed(), wait * MS, "after {minutes} more minutes");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_memory_each_connection_begins_with_the_first() {
    let hole = Hole::new("hole_forgotten").await;
    let mut server = Server::bind("forgotten").await;
    let builder = hole.client(&["mem://forgotten"]);
    let client = builder.fallback_memory(Duration::ZERO).start().unwrap();
    let mut peer = server.client().await;
    for _ in 0..2 {
        client.connected().await.unwrap();
        tokio::time::sleep(10 * SECOND).await;
        drop(peer);
        let start = Instant::now();
        peer = server.client().await;
        assert_eq!(start.elapsed(), 1500 * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_memory_has_no_end() {
    let hole = Hole::new("hole_for_good").await;
    let mut server = Server::bind("for_good").await;
    let builder = hole.client(&["mem://for_good"]).keep_alive(Duration::ZERO);
    let client = builder.fallback_memory(Duration::MAX).start().unwrap();
    let peer = server.client().await;
    client.connected().await.unwrap();
    tokio::time::sleep(Duration::from_hours(24)).await;
    drop(peer);
    let start = Instant::now();
    let _peer = server.client().await;
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn when_all_fail_each_is_named() {
    let builder = Client::builder("mem://nobody_3").unwrap();
    let built = builder.fallback("mem://nobody_4").unwrap().build().await;
    let error = built.unwrap_err();
    assert!(matches!(error, Error::NoAddress { .. }) && error.is_temporary());
    let text = error.to_string();
    assert!(
        text.contains("mem://nobody_3: ") && text.contains("mem://nobody_4: "),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[tokio::test]
async fn plaintext_does_not_stand_in_for_encryption_unless_allowed() {
    let list = |urls: &[&str]| {
        let first = Client::builder(urls[0])
            .unwrap()
            .reconnect(Reconnect::never());
        let rest = urls[1..].iter().map(|url| url.parse().unwrap());
        first.fallbacks(rest.collect::<Vec<Address>>())
    };
    for urls in [
        &["quic://h", "mqtts://h", "mqtt://h"][..],
        &["quic://h", "ws://h"],
        &["mqtt://h", "mqtts://h"],
    ] {
        let error = list(urls).start().unwrap_err();
        assert!(matches!(error, Error::PlaintextFallback { .. }), "{error}");
        list(urls).allow_plaintext_fallback().start().unwrap();
    }
    for urls in [
        &["quic://h", "mqtts://h", "wss://h"][..],
        &["mqtt://h", "ws://h"],
    ] {
        list(urls).start().unwrap();
    }
}

// On loopback.

/// Builds a client that tries this UDP port, and then the listener; it reconnects after 300 ms.
fn quic_then(port: u16, then: &Listener, early_data: bool) -> ClientBuilder {
    let options = ConnectOptions {
        trust: Trust::Insecure,
        early_data,
        ..ConnectOptions::default()
    };
    let reconnect = Reconnect {
        initial: 300 * MS,
        max: 300 * MS,
        jitter: 0.0,
        ..Reconnect::default()
    };
    Client::builder(&format!("quic://127.0.0.1:{port}"))
        .unwrap()
        .fallback(&then.local_address().to_string())
        .unwrap()
        .connector(Connector::new(options).unwrap())
        .reconnect(reconnect)
}

/// Accepts the next client's link and reads nothing from it.
async fn next(listener: &mut Listener) -> Peer {
    let accepting = async { listener.accept().await.unwrap().handshake().await.unwrap() };
    let link = tokio::time::timeout(SOON, accepting).await;
    Peer {
        link: link.expect("a client should come"),
        connection: Connection::server(util::now(), ServerConfig::default()),
    }
}

/// Accepts the next client's link and its CONNECT.
async fn let_in(listener: &mut Listener) -> Peer {
    let mut peer = next(listener).await;
    peer.connect().await;
    peer.accept(Session::new(), false).await;
    peer
}

fn scheme(client: &Client) -> Scheme {
    client.last_connected().unwrap().link.scheme
}

#[tokio::test]
async fn tls_wins_where_udp_is_swallowed_and_is_first_the_next_time() {
    let hole = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut tls = listen("mqtts").await;
    let builder = quic_then(hole.local_addr().unwrap().port(), &tls, false);
    let start = Instant::now();
    let client = builder.fallback_memory(2 * SECOND).start().unwrap();
    let peer = let_in(&mut tls).await;
    client.connected().await.unwrap();
    assert!(start.elapsed() >= 500 * MS, "{:?}", start.elapsed());
    assert_eq!(scheme(&client), Scheme::Tls);

    drop(peer);
    let lost = Instant::now();
    let peer = let_in(&mut tls).await;
    assert!(lost.elapsed() < 750 * MS, "{:?}", lost.elapsed());

    // The time is over: QUIC is tried again.
    tokio::time::sleep((start + 3 * SECOND).saturating_duration_since(Instant::now())).await;
    drop(peer);
    let lost = Instant::now();
    let _peer = let_in(&mut tls).await;
    assert!(lost.elapsed() >= 800 * MS, "{:?}", lost.elapsed());
}

#[tokio::test]
async fn quic_wins_where_both_are_there() {
    let (mut quic, tls) = (listen("quic").await, listen("mqtts").await);
    let client = quic_then(quic.local_address().port, &tls, false)
        .start()
        .unwrap();
    let _peer = let_in(&mut quic).await;
    client.connected().await.unwrap();
    assert_eq!(scheme(&client), Scheme::Quic);
}

/// Returns the number of a UDP port that no program uses now.
fn free_udp_port() -> u16 {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

#[tokio::test]
async fn where_udp_is_refused_the_next_is_tried_at_once() {
    let mut tls = listen("mqtts").await;
    let builder = quic_then(free_udp_port(), &tls, false).head_start(10 * SOON);
    let start = Instant::now();
    let client = builder.start().unwrap();
    let _peer = let_in(&mut tls).await;
    client.connected().await.unwrap();
    assert!(start.elapsed() < SOON);

    let port = tls.local_address().port;
    drop(tls);
    let gone = listen("mqtts").await;
    let builder = quic_then(free_udp_port(), &gone, false).head_start(10 * SOON);
    assert_ne!(gone.local_address().port, port);
    drop(gone);
    let start = Instant::now();
    let error = builder.build().await.unwrap_err();
    assert!(matches!(error, Error::NoAddress { .. }), "{error}");
    assert!(start.elapsed() < SOON, "{error}");
}

/// The path between the client and its server's UDP port.
struct Path {
    port: u16,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Pass,
    /// Holds the datagrams of clients.
    Hold,
    Drop,
}

struct State {
    mode: Mode,
    held: VecDeque<(Arc<UdpSocket>, Vec<u8>)>,
}

impl Path {
    async fn to(listener: &Listener) -> Self {
        let target = SocketAddr::from(([127, 0, 0, 1], listener.local_address().port));
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let port = front.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State {
            mode: Mode::Pass,
            held: VecDeque::new(),
        }));
        let (shared, mut tasks) = (state.clone(), JoinSet::new());
        tasks.spawn(async move {
            let (mut clients, mut answers) = (HashMap::new(), JoinSet::new());
            let mut datagram = vec![0; 65_536];
            while let Ok((length, from)) = front.recv_from(&mut datagram).await {
                let is_new = !clients.contains_key(&from);
                if is_new {
                    let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                    back.connect(target).await.unwrap();
                    clients.insert(from, back.clone());
                    let (front, shared) = (front.clone(), shared.clone());
                    answers.spawn(async move {
                        let mut datagram = vec![0; 65_536];
                        while let Ok(length) = back.recv(&mut datagram).await {
                            if shared.lock().unwrap().mode == Mode::Pass {
                                let _ = front.send_to(&datagram[..length], from).await;
                            }
                        }
                    });
                }
                let back = clients[&from].clone();
                let mode = shared.lock().unwrap().mode;
                match mode {
                    Mode::Pass => drop(back.send(&datagram[..length]).await),
                    Mode::Hold => {
                        let held = (back, datagram[..length].to_vec());
                        shared.lock().unwrap().held.push_back(held);
                    }
                    Mode::Drop => {}
                }
            }
        });
        Self {
            port,
            state,
            _tasks: tasks,
        }
    }

    fn set(&self, mode: Mode) {
        self.state.lock().unwrap().mode = mode;
    }

    /// Forwards the held datagrams; returns their number.
    async fn release(&self) -> usize {
        let held = std::mem::take(&mut self.state.lock().unwrap().held);
        for (back, datagram) in &held {
            back.send(datagram).await.unwrap();
        }
        held.len()
    }
}

#[tokio::test]
async fn a_session_goes_on_over_tls_when_udp_is_blocked_later() {
    let (mut quic, mut tls) = (listen("quic").await, listen("mqtts").await);
    let path = Path::to(&quic).await;
    let builder = quic_then(path.port, &tls, false)
        .keep_alive(SECOND)
        .ping_timeout(SECOND)
        .head_start(200 * MS);
    let client = builder.start().unwrap();
    let mut peer = let_in(&mut quic).await;
    let mut twice = client.send(message("2", QoS::ExactlyOnce)).await.unwrap();
    let mut once = client.send(message("1", QoS::AtLeastOnce)).await.unwrap();
    let ticket = peer.publish().await.ticket.unwrap();
    peer.publish().await;
    path.set(Mode::Drop);
    // Its PUBREC is on its way for ever.
    peer.connection
        .ack(util::now(), ticket, ReasonCode::Success);
    peer.flush().await;
    let session = peer.connection.into_session();
    drop(peer.link);

    let mut peer = next(&mut tls).await;
    assert!(!peer.connect().await.clean_start);
    peer.accept(session, true).await;
    let (mut released, mut published) = (0, Vec::new());
    while released + published.len() < 2 {
        match peer.event().await.unwrap() {
            ProtoEvent::IncomingReleased { .. } => released += 1,
            ProtoEvent::Publish(received) => {
                assert!(received.dup);
                published.push(text(&received));
                peer.ack(received.ticket).await;
            }
            other => panic!("{other:?}"),
        }
    }
    peer.flush().await;
    assert_eq!((released, published), (1, vec!["1".to_owned()]));
    twice.acknowledged().await.unwrap();
    once.acknowledged().await.unwrap();
    let more = tokio::time::timeout(300 * MS, peer.event()).await;
    assert!(more.is_err(), "{more:?}");
}

/// Early data of the first address is held up until another has won, and then arrives: the server
/// takes the session over to a link that is dead.
#[tokio::test]
async fn early_data_that_comes_too_late_does_no_harm() {
    let (mut quic, mut tls) = (listen("quic").await, listen("mqtts").await);
    let path = Path::to(&quic).await;
    let builder = quic_then(path.port, &tls, true).head_start(300 * MS);
    let client = builder.start().unwrap();
    let mut events = client.events();
    // A ticket for QUIC comes along.
    let mut peer = let_in(&mut quic).await;
    let mut first = client
        .send(message("first", QoS::AtLeastOnce))
        .await
        .unwrap();
    let ticket = peer.publish().await.ticket;
    peer.ack(ticket).await;
    first.acknowledged().await.unwrap();
    tokio::time::sleep(50 * MS).await;

    // The client connects again in 300 ms, with early data that goes nowhere for now.
    let session = peer.connection.into_session();
    peer.link.close(SECOND).await;
    while !matches!(events.recv().await, Some(Event::Reconnecting { .. })) {}
    path.set(Mode::Hold);
    let early = message("1", QoS::AtLeastOnce).early(true);
    let mut once = client.send(early).await.unwrap();
    let mut twice = client.send(message("2", QoS::ExactlyOnce)).await.unwrap();
    tokio::time::sleep(450 * MS).await;
    // Its first flight is there, a farewell will not be.
    path.set(Mode::Drop);

    let mut winner = next(&mut tls).await;
    assert!(!winner.connect().await.clean_start);
    winner.accept(session, true).await;
    let mut payloads = Vec::new();
    while payloads.len() < 2 {
        let received = winner.publish().await;
        // That it was sent before says that it was early data.
        assert_eq!(received.dup, received.qos == QoS::AtLeastOnce);
        payloads.push(text(&received));
        winner.ack(received.ticket).await;
    }
    payloads.sort();
    assert_eq!(payloads, ["1", "2"]);
    once.acknowledged().await.unwrap();
    let released = winner.event().await.unwrap();
    assert!(
        matches!(released, ProtoEvent::IncomingReleased { .. }),
        "{released:?}"
    );
    winner.flush().await;
    twice.acknowledged().await.unwrap();
    assert_eq!(scheme(&client), Scheme::Tls);

    // Now it arrives.
    assert!(path.release().await > 0);
    let mut late = next(&mut quic).await;
    assert!(late.link.is_early());
    assert!(
        !late.connect().await.clean_start,
        "it would end the session"
    );
    late.accept(Session::new(), true).await;
    let received = late.publish().await;
    assert_eq!(
        (text(&received).as_str(), received.qos),
        ("1", QoS::AtLeastOnce)
    );
    let more = tokio::time::timeout(300 * MS, late.event()).await;
    assert!(more.is_err(), "QoS 2 would be delivered twice: {more:?}");
    // The one that has won is sent away, and comes back.
    let taken_over = Disconnect::new(ReasonCode::SessionTakenOver);
    winner.connection.disconnect(taken_over);
    winner.flush().await;
    let mut peer = next(&mut tls).await;
    assert!(!peer.connect().await.clean_start);
    peer.accept(Session::new(), true).await;
    client.publish("a/b", "on", QoS::AtMostOnce).await.unwrap();
    assert_eq!(text(&peer.publish().await), "on");
}

#[tokio::test]
async fn an_empty_session_is_not_begun_by_early_data_in_a_race() {
    let (mut quic, tls) = (listen("quic").await, listen("mqtts").await);
    let options = ConnectOptions {
        trust: Trust::Insecure,
        early_data: true,
        ..ConnectOptions::default()
    };
    let connector = Connector::new(options).unwrap();
    let url = quic.local_address().to_string();
    for (fallback, early) in [(false, false), (false, true), (true, false)] {
        let mut builder = Client::builder(&url).unwrap().connector(connector.clone());
        if fallback {
            builder = builder.fallback(&tls.local_address().to_string()).unwrap();
        }
        let client = builder.start().unwrap();
        let mut peer = next(&mut quic).await;
        assert_eq!(peer.link.is_early(), early);
        assert!(peer.connect().await.clean_start);
        peer.accept(Session::new(), false).await;
        client.connected().await.unwrap();
        tokio::time::sleep(50 * MS).await;
        let (left, closed) = tokio::join!(client.disconnect(), peer.closed());
        left.unwrap();
        assert!(closed.is_some());
    }
}
