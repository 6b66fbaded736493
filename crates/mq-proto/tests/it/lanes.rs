//! Messages on several lanes, which break, end and overtake each other: QoS 1 is never lost, QoS 2 arrives
//! exactly once, and each lane keeps its order.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Instant,
};

use bytes::{Buf, BytesMut};
use mq_codec::{ConnAck, Decoder, Packet, Publish, QoS, ReasonCode, TopicName, Version};
use mq_proto::{
    AckTicket, ClientConfig, Connection, DataLanes, Delivery, Event, LaneEnd, LaneId, Message,
    ProtocolError, ServerConfig, Session,
};

use crate::util::{Rng, connect, seeds};

const SEEDS: u64 = 1_000;
const MESSAGES: usize = 40;
const TOPICS: usize = 4;

/// A client or a server with its lanes.
struct Side {
    connection: Connection,
    inbox: BTreeMap<LaneId, BytesMut>,
    tickets: Vec<AckTicket>,
    /// Lanes that this side has opened.
    begun: HashSet<LaneId>,
    closed: bool,
    failed: Vec<ProtocolError>,
}

/// The network's state of a lane; pairs are of the client and the server.
#[derive(Default, Clone, Copy)]
struct Stream {
    /// `true` once the side has ended its direction.
    finished: [bool; 2],
    told: [bool; 2],
    broken: bool,
    /// `true` once the side has been told that the lane broke.
    heard: [bool; 2],
}

struct Network {
    now: Instant,
    sides: [Side; 2],
    streams: BTreeMap<LaneId, Stream>,
}

/// An application that numbers the messages that it sends by topic, and counts those that it receives.
#[derive(Default)]
struct Application {
    next: usize,
    got: BTreeMap<usize, usize>,
    /// Numbers of the received messages by topic, in the order of arrival.
    order: HashMap<String, Vec<usize>>,
}

impl Side {
    fn new(connection: Connection) -> Self {
        Self {
            connection,
            inbox: BTreeMap::new(),
            tickets: Vec::new(),
            begun: HashSet::new(),
            closed: false,
            failed: Vec::new(),
        }
    }

    /// Cuts the link; the application acknowledges what it kept. Returns `true` if the connection was open, and
    /// its session.
    fn cut(mut self, now: Instant) -> (bool, Session) {
        let was_open = self.connection.is_open();
        for ticket in self.tickets.drain(..) {
            self.connection.ack(now, ticket, ReasonCode::Success);
        }
        self.connection.handle_link_lost();
        (was_open, self.connection.into_session())
    }

    fn events(&mut self, application: &mut Application) -> bool {
        let mut connecting = false;
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Publish(received) => {
                    let number = std::str::from_utf8(&received.message.payload).unwrap();
                    let number = number.parse().unwrap();
                    *application.got.entry(number).or_default() += 1;
                    let topic = received.message.topic.as_str().to_owned();
                    application.order.entry(topic).or_default().push(number);
                    self.tickets.extend(received.ticket);
                }
                Event::Connect(_) => connecting = true,
                Event::Closed(_) => self.closed = true,
                Event::LaneFailed { error, .. } => self.failed.push(error),
                _ => {}
            }
        }
        connecting
    }
}

impl Network {
    /// Carries a few bytes of one lane from one side to the other.
    fn carry(&mut self, from: usize, lane: LaneId, most: usize) -> usize {
        let now = self.now;
        let stream = self.streams.entry(lane).or_default();
        let [client, server] = &mut self.sides;
        let (from_side, to_side) = match from {
            0 => (client, server),
            _ => (server, client),
        };
        let outbox = from_side.connection.outbox();
        let mut moved = 0;
        while moved < most
            && let Some(mut chunk) = outbox.take(lane)
        {
            let count = chunk.bytes.len().min(most - moved);
            if !stream.broken {
                let inbox = to_side.inbox.entry(lane).or_default();
                inbox.extend_from_slice(&chunk.bytes[..count]);
            }
            chunk.bytes.advance(count);
            outbox.put_back(lane, chunk);
            moved += count;
        }
        match outbox.take_end(lane) {
            Some(LaneEnd::Finish) => stream.finished[from] = true,
            Some(LaneEnd::Abort(_)) => {
                stream.broken = true;
                stream.heard[from] = true;
            }
            None => {}
        }
        if stream.broken {
            to_side.inbox.remove(&lane);
            from_side.inbox.remove(&lane);
        } else if let Some(inbox) = to_side.inbox.get_mut(&lane) {
            to_side.connection.handle_bytes(now, lane, inbox);
        }
        if stream.finished[from] && !stream.told[1 - from] && !stream.broken {
            stream.told[1 - from] = true;
            to_side
                .connection
                .handle_lane_closed(now, lane, LaneEnd::Finish);
            let inbox = to_side.inbox.entry(lane).or_default();
            to_side.connection.handle_bytes(now, lane, inbox);
        }
        moved
    }

    /// Breaks a lane: bytes in flight are lost, and each side is told at its own time.
    fn break_lane(&mut self, lane: LaneId) {
        if let Some(stream) = self.streams.get_mut(&lane)
            && !(stream.finished[0] && stream.finished[1])
        {
            stream.broken = true;
        }
    }

    fn hear_of_break(&mut self, side: usize, lane: LaneId) {
        let now = self.now;
        if let Some(stream) = self.streams.get_mut(&lane)
            && stream.broken
            && !stream.heard[side]
        {
            stream.heard[side] = true;
            let side = &mut self.sides[side];
            side.inbox.remove(&lane);
            side.connection
                .handle_lane_closed(now, lane, LaneEnd::Abort(0));
            while side.connection.outbox().take(lane).is_some() {}
            let _ = side.connection.outbox().take_end(lane);
        }
    }

    fn let_in(&mut self, session: Option<Session>) {
        let mut ack = ConnAck::new(ReasonCode::Success);
        ack.session_present = session.is_some();
        let server = &mut self.sides[1];
        let session = session.unwrap_or_default();
        server.connection.accept(self.now, session, ack).unwrap();
        for (lane, inbox) in &mut server.inbox {
            server.connection.handle_bytes(self.now, *lane, inbox);
        }
    }

    fn lanes(&self) -> Vec<LaneId> {
        self.streams.keys().copied().collect()
    }
}

fn message(number: usize, topic: usize) -> Message {
    let topic = TopicName::new(format!("t/{topic}")).unwrap();
    Message::new(topic, number.to_string())
}

/// Sends some messages: on the lane of their topic, or some without.
fn send(
    side: &mut Side,
    streams: &BTreeMap<LaneId, Stream>,
    now: Instant,
    application: &mut Application,
    rng: &mut Rng,
    qos: QoS,
) {
    while application.next < MESSAGES && side.connection.window() > 0 && rng.chance(70) {
        let topic = application.next % TOPICS;
        let lane = LaneId(4 * topic as u64);
        let usable = |stream: &Stream| !stream.broken && !stream.finished[0] && !stream.finished[1];
        let lane = match streams.get(&lane) {
            _ if !side.connection.is_open() => LaneId::CONTROL,
            Some(stream) if !usable(stream) => LaneId::CONTROL,
            _ => lane,
        };
        let delivery = Delivery::new(message(application.next, topic), qos);
        let sent = side.connection.publish_on(now, lane, delivery);
        assert!(sent.unwrap().is_some());
        application.next += 1;
    }
}

struct Outcome {
    applications: [Application; 2],
    breaks: usize,
    cuts: usize,
}

fn client_config() -> ClientConfig {
    ClientConfig {
        lanes: DataLanes::Plain,
        ..ClientConfig::new(connect(Version::V5))
    }
}

/// Lets both sides send to each other over lanes that break, and connections that are cut.
fn run(seed: u64, qos: QoS, most_breaks: usize, most_cuts: usize) -> Outcome {
    run_with(seed, qos, most_breaks, most_cuts, Down::OnClientsLanes)
}

/// The lanes on which the server sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Down {
    /// Lanes that the client has opened.
    OnClientsLanes,
    /// Lanes of the server's own.
    OnServersLanes,
}

fn run_with(seed: u64, qos: QoS, most_breaks: usize, most_cuts: usize, down_on: Down) -> Outcome {
    let mut rng = Rng(seed);
    let now = Instant::now();
    // What the client and the server receive.
    let mut got = [Application::default(), Application::default()];
    let (mut client_session, mut server_session) = (Session::new(), None::<Session>);
    let (mut breaks, mut cuts) = (0, 0);
    loop {
        let client = Connection::client(now, client_config(), client_session);
        let server = Connection::server(now, ServerConfig::default());
        let mut net = Network {
            now,
            sides: [Side::new(client), Side::new(server)],
            streams: BTreeMap::from([(LaneId::CONTROL, Stream::default())]),
        };
        net.sides[0].connection.connect(now).unwrap();
        let mut budget = if cuts < most_cuts {
            rng.below(4_000)
        } else {
            usize::MAX
        };
        let mut idle = 0;
        loop {
            let mut moved = 0;
            for _ in 0..4 {
                let lanes = net.lanes();
                let lane = lanes[rng.below(lanes.len())];
                moved += net.carry(rng.below(2), lane, 1 + rng.below(60));
            }
            if breaks < most_breaks && rng.chance(2) {
                let lanes = net.lanes();
                let lane = lanes[rng.below(lanes.len())];
                if lane != LaneId::CONTROL {
                    net.break_lane(lane);
                    breaks += 1;
                }
            }
            if rng.chance(20) || idle > 100 {
                let lanes = net.lanes();
                net.hear_of_break(rng.below(2), lanes[rng.below(lanes.len())]);
            }
            let [up, down] = &mut got;
            let connecting = net.sides[1].events(down);
            net.sides[0].events(up);
            if connecting {
                net.let_in(server_session.take());
            }
            // The client's messages are what the server receives. Before CONNACK they go on the control
            // lane, where a later one on another lane may overtake them.
            if net.sides[0].connection.is_open() || most_breaks > 0 {
                send(&mut net.sides[0], &net.streams, now, down, &mut rng, qos);
            }
            if net.sides[1].connection.is_open() {
                let waits = most_breaks == 0;
                match down_on {
                    Down::OnClientsLanes => send_back(&mut net, now, up, &mut rng, qos, waits),
                    Down::OnServersLanes => send_down(&mut net.sides[1], now, up, &mut rng, qos),
                }
            }
            let clients = (0..TOPICS as u64).map(|topic| LaneId(4 * topic));
            for lane in clients.chain(net.sides[1].begun.iter().copied()) {
                net.streams.entry(lane).or_default();
            }
            for side in &mut net.sides {
                while !side.tickets.is_empty() && rng.chance(80) {
                    let ticket = side.tickets.swap_remove(rng.below(side.tickets.len()));
                    side.connection.ack(now, ticket, ReasonCode::Success);
                }
                assert!(!side.closed, "seed {seed}");
                assert_eq!(side.failed, [], "seed {seed}");
            }
            budget = budget.saturating_sub(moved);
            idle = if moved == 0 { idle + 1 } else { 0 };
            let done = idle > 400
                && got.iter().all(|application| application.next == MESSAGES)
                && net.sides.iter().all(|side| side.tickets.is_empty());
            assert!(idle < 20_000, "seed {seed}: no progress");
            if done || budget == 0 {
                break;
            }
        }
        let finished = budget > 0;
        let mut sessions = net.sides.map(|side| side.cut(now));
        let server = std::mem::take(&mut sessions[1].1);
        client_session = std::mem::take(&mut sessions[0].1);
        if sessions[1].0 {
            server_session = Some(server);
        }
        if finished {
            assert!(
                client_session.is_empty(),
                "seed {seed}: {client_session:?}, {server_session:?}"
            );
            let server_session = server_session.unwrap();
            assert!(server_session.is_empty(), "seed {seed}: {server_session:?}");
            return Outcome {
                applications: got,
                breaks,
                cuts,
            };
        }
        cuts += 1;
    }
}

fn send_back(
    net: &mut Network,
    now: Instant,
    up: &mut Application,
    rng: &mut Rng,
    qos: QoS,
    waits: bool,
) {
    // A server writes only to lanes that the client has opened.
    let opened: HashSet<_> = net.sides[1].inbox.keys().copied().collect();
    if waits && opened.len() < TOPICS {
        return;
    }
    let streams = &net.streams;
    let mut usable = streams.clone();
    for topic in 0..TOPICS as u64 {
        let lane = LaneId(4 * topic);
        if lane != LaneId::CONTROL && !opened.contains(&lane) {
            usable.entry(lane).or_default().broken = true;
        }
    }
    send(&mut net.sides[1], &usable, now, up, rng, qos);
}

/// Sends each topic from the server on a lane that it opens for it, and on the control lane once that lane has ended.
fn send_down(
    server: &mut Side,
    now: Instant,
    application: &mut Application,
    rng: &mut Rng,
    qos: QoS,
) {
    while application.next < MESSAGES && server.connection.window() > 0 && rng.chance(70) {
        let topic = application.next % TOPICS;
        let lane = LaneId(4 * topic as u64 + 1);
        if server.begun.insert(lane) {
            server.connection.begin_lane(lane);
        }
        let lane = if server.connection.is_lane_open(lane) {
            lane
        } else {
            LaneId::CONTROL
        };
        let delivery = Delivery::new(message(application.next, topic), qos);
        let sent = server.connection.publish_on(now, lane, delivery);
        assert!(sent.unwrap().is_some());
        application.next += 1;
    }
}

#[test]
fn each_topic_keeps_its_order_on_its_own_lane() {
    for seed in seeds(SEEDS) {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let outcome = run(seed, qos, 0, 0);
            for application in &outcome.applications {
                assert_eq!(application.got.len(), MESSAGES, "seed {seed}: lost");
                assert!(application.got.values().all(|count| *count == 1));
                for order in application.order.values() {
                    assert!(order.is_sorted(), "seed {seed}: {order:?}");
                }
            }
        }
    }
}

#[test]
fn qos1_is_never_lost_when_lanes_break_and_connections_are_cut() {
    let (mut breaks, mut cuts) = (0, 0);
    for seed in seeds(SEEDS) {
        let outcome = run(seed, QoS::AtLeastOnce, 6, 3);
        (breaks, cuts) = (breaks + outcome.breaks, cuts + outcome.cuts);
        for application in &outcome.applications {
            assert_eq!(application.got.len(), MESSAGES, "seed {seed}: lost");
        }
    }
    println!("{breaks} lanes broken, {cuts} connections cut");
    assert!(breaks > 0 && cuts > 0);
}

#[test]
fn qos2_arrives_exactly_once_when_lanes_break_and_connections_are_cut() {
    let (mut breaks, mut cuts) = (0, 0);
    for seed in seeds(SEEDS) {
        let outcome = run(seed, QoS::ExactlyOnce, 6, 3);
        (breaks, cuts) = (breaks + outcome.breaks, cuts + outcome.cuts);
        for application in &outcome.applications {
            assert_eq!(application.got.len(), MESSAGES, "seed {seed}: lost");
            let counts = &application.got;
            assert!(
                counts.values().all(|count| *count == 1),
                "seed {seed}: {counts:?}"
            );
        }
    }
    println!("{breaks} lanes broken, {cuts} connections cut");
    assert!(breaks > 0 && cuts > 0);
}

#[test]
fn messages_on_lanes_of_the_server_which_break_arrive_and_keep_the_order_of_their_topic() {
    let mut breaks = 0;
    for seed in seeds(SEEDS) {
        let (qos, most_breaks) = match seed % 3 {
            0 => (QoS::AtLeastOnce, 0),
            1 => (QoS::AtLeastOnce, 6),
            _ => (QoS::ExactlyOnce, 6),
        };
        let outcome = run_with(seed, qos, most_breaks, 0, Down::OnServersLanes);
        breaks += outcome.breaks;
        let client = &outcome.applications[0];
        assert_eq!(client.got.len(), MESSAGES, "seed {seed}: lost");
        if qos == QoS::ExactlyOnce || most_breaks == 0 {
            let once = client.got.values().all(|count| *count == 1);
            assert!(once, "seed {seed}: {:?}", client.got);
            for order in client.order.values() {
                assert!(order.is_sorted(), "seed {seed}: {order:?}");
            }
        }
    }
    println!("{breaks} lanes broken");
}

#[test]
fn a_session_goes_on_behind_lanes_of_the_server_that_were_cut_off() {
    let (mut breaks, mut cuts) = (0, 0);
    for seed in seeds(SEEDS) {
        let qos = match seed % 2 {
            0 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        };
        let outcome = run_with(seed, qos, 4, 3, Down::OnServersLanes);
        (breaks, cuts) = (breaks + outcome.breaks, cuts + outcome.cuts);
        for application in &outcome.applications {
            assert_eq!(application.got.len(), MESSAGES, "seed {seed}: lost");
            let once = application.got.values().all(|count| *count == 1);
            assert!(once || qos == QoS::AtLeastOnce, "seed {seed}");
        }
    }
    println!("{breaks} lanes broken, {cuts} connections cut");
}

#[test]
fn a_message_that_the_peer_repeats_elsewhere_is_acknowledged_there_as_well() {
    let (now, mut client, mut server) = open(client_config());
    let delivery = Delivery::new(message(1, 1), QoS::ExactlyOnce);
    client.publish_on(now, LaneId(4), delivery).unwrap();
    pass(now, &mut client, &mut server, LaneId(4));
    let (_, ticket) = received(&mut server).remove(0);
    // The lane breaks, and the server does not know that yet.
    client.handle_lane_closed(now, LaneId(4), LaneEnd::Abort(0));
    pass(now, &mut client, &mut server, LaneId::CONTROL);
    assert!(received(&mut server).is_empty(), "it has come before");
    server.ack(now, ticket.unwrap(), ReasonCode::Success);
    server.handle_lane_closed(now, LaneId(4), LaneEnd::Abort(0));
    for _ in 0..2 {
        pass(now, &mut server, &mut client, LaneId::CONTROL);
        pass(now, &mut client, &mut server, LaneId::CONTROL);
    }
    assert_eq!(client.in_flight(), 0);
}

/// Makes a client and a server that have connected without a network between.
fn open(config: ClientConfig) -> (Instant, Connection, Connection) {
    let now = Instant::now();
    let mut client = Connection::client(now, config, Session::new());
    let mut server = Connection::server(now, ServerConfig::default());
    client.connect(now).unwrap();
    pass(now, &mut client, &mut server, LaneId::CONTROL);
    while server.poll_event().is_some() {}
    let ack = ConnAck::new(ReasonCode::Success);
    server.accept(now, Session::new(), ack).unwrap();
    pass(now, &mut server, &mut client, LaneId::CONTROL);
    while client.poll_event().is_some() {}
    (now, client, server)
}

fn pass(now: Instant, from: &mut Connection, to: &mut Connection, lane: LaneId) {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = from.outbox().take(lane) {
        bytes.extend_from_slice(&chunk.bytes);
    }
    to.handle_bytes(now, lane, &mut bytes);
}

fn say(now: Instant, to: &mut Connection, lane: LaneId, packet: &Packet) {
    let mut bytes = BytesMut::new();
    packet.encode(Version::V5, &mut bytes).unwrap();
    to.handle_bytes(now, lane, &mut bytes);
}

fn publish(id: u16, qos: QoS) -> Packet {
    let mut publish = Publish::new(TopicName::new("t").unwrap(), "x");
    publish.qos = qos;
    publish.packet_id = mq_codec::PacketId::new(id);
    publish.into()
}

fn received(server: &mut Connection) -> Vec<(LaneId, Option<AckTicket>)> {
    let events = std::iter::from_fn(|| server.poll_event());
    let received = events.filter_map(|event| match event {
        Event::Publish(received) => Some((received.lane, received.ticket)),
        _ => None,
    });
    received.collect()
}

#[test]
fn clients_may_count_packet_identifiers_by_lane() {
    let (now, _, mut server) = open(ClientConfig::new(connect(Version::V5)));
    for lane in [LaneId::CONTROL, LaneId(4), LaneId(8)] {
        say(now, &mut server, lane, &publish(7, QoS::ExactlyOnce));
    }
    let mut lanes = Vec::new();
    for (lane, ticket) in received(&mut server) {
        lanes.push(lane);
        server.ack(now, ticket.unwrap(), ReasonCode::Success);
        let pubrec = server.outbox().take(lane).expect("on its own lane");
        assert_eq!(pubrec.bytes[..], [0x50, 2, 0, 7]);
    }
    assert_eq!(lanes, [LaneId::CONTROL, LaneId(4), LaneId(8)]);
}

#[test]
fn what_breaks_the_protocol_on_a_data_lane_ends_that_lane_alone() {
    let (now, mut client, mut server) = open(ClientConfig::new(connect(Version::V5)));
    for wrong in [
        &[0xC0, 0][..],
        &[0x10, 0],
        &[0xE0, 0],
        &[0xF0, 0],
        &[0xFF, 0xFF, 0xFF],
    ] {
        say(now, &mut server, LaneId(4), &publish(1, QoS::AtLeastOnce));
        server.handle_bytes(now, LaneId(4), &mut BytesMut::from(wrong));
        let events: Vec<_> = std::iter::from_fn(|| server.poll_event()).collect();
        assert!(
            matches!(
                events[..],
                [
                    Event::Publish(_),
                    Event::LaneFailed {
                        lane: LaneId(4),
                        ..
                    }
                ]
            ),
            "{wrong:02X?}: {events:?}"
        );
        // More of it is not read.
        say(now, &mut server, LaneId(4), &publish(2, QoS::AtLeastOnce));
        assert!(!server.has_events());
        assert!(matches!(
            server.outbox().take_end(LaneId(4)),
            Some(LaneEnd::Abort(_))
        ));
        assert!(server.is_open());
        say(now, &mut server, LaneId::CONTROL, &Packet::PingReq);
        pass(now, &mut server, &mut client, LaneId::CONTROL);
    }
}

#[test]
fn a_finished_lane_ends_once_all_is_answered() {
    let (now, _, mut server) = open(ClientConfig::new(connect(Version::V5)));
    say(now, &mut server, LaneId(4), &publish(1, QoS::AtLeastOnce));
    server.handle_lane_closed(now, LaneId(4), LaneEnd::Finish);
    server.handle_bytes(now, LaneId(4), &mut BytesMut::new());
    assert!(server.outbox().is_empty(), "an acknowledgement is due");
    let (_, ticket) = received(&mut server).remove(0);
    server.ack(now, ticket.unwrap(), ReasonCode::Success);
    assert_eq!(
        server.outbox().take(LaneId(4)).unwrap().bytes[..],
        [0x40, 2, 0, 1]
    );
    assert_eq!(server.outbox().take_end(LaneId(4)), Some(LaneEnd::Finish));
}

#[test]
fn a_lane_that_ends_in_the_middle_of_a_packet_has_failed() {
    let (now, _, mut server) = open(ClientConfig::new(connect(Version::V5)));
    let mut part = BytesMut::from(&[0x30, 5, 0][..]);
    server.handle_bytes(now, LaneId(4), &mut part);
    server.handle_lane_closed(now, LaneId(4), LaneEnd::Finish);
    server.handle_bytes(now, LaneId(4), &mut part);
    let failed = server.poll_event();
    assert!(matches!(
        failed,
        Some(Event::LaneFailed {
            error: ProtocolError::Incomplete(_),
            ..
        })
    ));
    assert!(part.is_empty() && server.is_open());
}

#[cfg(feature = "mqtt-next")]
#[test]
fn a_lane_that_ends_in_the_middle_of_the_head_of_a_flow_has_failed() {
    let (now, _, mut server) = open(ClientConfig::new(connect(Version::V5)));
    let mut part = BytesMut::from(&[0x12, 0x02][..]);
    server.handle_bytes(now, LaneId(4), &mut part);
    server.handle_lane_closed(now, LaneId(4), LaneEnd::Finish);
    server.handle_bytes(now, LaneId(4), &mut part);
    assert!(matches!(
        server.poll_event(),
        Some(Event::LaneFailed {
            error: ProtocolError::Incomplete(_),
            ..
        })
    ));
}

#[test]
fn packets_on_a_data_lane_wait_until_the_client_is_let_in() {
    let now = Instant::now();
    let mut client = Connection::client(now, client_config(), Session::new());
    let mut server = Connection::server(now, ServerConfig::default());
    let mut early = BytesMut::new();
    publish(1, QoS::AtLeastOnce)
        .encode(Version::V5, &mut early)
        .unwrap();
    server.handle_bytes(now, LaneId(4), &mut early);
    client.connect(now).unwrap();
    pass(now, &mut client, &mut server, LaneId::CONTROL);
    server.handle_bytes(now, LaneId(4), &mut early);
    assert!(matches!(server.poll_event(), Some(Event::Connect(_))));
    assert!(!server.has_events() && !early.is_empty());
    let ack = ConnAck::new(ReasonCode::Success);
    server.accept(now, Session::new(), ack).unwrap();
    server.handle_bytes(now, LaneId(4), &mut early);
    assert_eq!(received(&mut server).len(), 1);
}

/// Makes a client that waits for CONNACK, and has sent one message at QoS 1 on each of these lanes, numbered from 1.
fn connecting(lanes: impl IntoIterator<Item = LaneId>) -> (Instant, Connection) {
    let now = Instant::now();
    let mut client = Connection::client(now, client_config(), Session::new());
    client.connect(now).unwrap();
    while client.outbox().take(LaneId::CONTROL).is_some() {}
    for (number, lane) in (1..).zip(lanes) {
        let delivery = Delivery::new(message(number, 1), QoS::AtLeastOnce);
        client.publish_on(now, lane, delivery).unwrap();
        assert!(payloads(&mut client, lane).contains(&number.to_string()));
    }
    (now, client)
}

/// Takes what waits to be sent on a lane; returns the payloads of the messages in it.
fn payloads(from: &mut Connection, lane: LaneId) -> Vec<String> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = from.outbox().take(lane) {
        bytes.extend_from_slice(&chunk.bytes);
    }
    let mut decoder = Decoder::new(Some(Version::V5), u32::MAX);
    let mut payloads = Vec::new();
    while let Some(packet) = decoder.decode(&mut bytes).unwrap() {
        if let Packet::Publish(publish) = packet {
            payloads.push(String::from_utf8(publish.payload.to_vec()).unwrap());
        }
    }
    payloads
}

fn connack(now: Instant, client: &mut Connection) -> Vec<Event> {
    let ack = ConnAck::new(ReasonCode::Success);
    say(now, client, LaneId::CONTROL, &Packet::from(ack));
    std::iter::from_fn(|| client.poll_event()).collect()
}

fn puback(id: u16) -> Packet {
    let id = mq_codec::PacketId::new(id).unwrap();
    Packet::PubAck(mq_codec::Ack::new(id, ReasonCode::Success))
}

#[test]
fn the_messages_of_a_lane_that_breaks_before_connack_are_sent_again_and_no_others() {
    let (now, mut client) = connecting([LaneId::CONTROL, LaneId(4), LaneId(8), LaneId(4)]);
    client.handle_lane_closed(now, LaneId(4), LaneEnd::Abort(0));
    assert_eq!(client.window(), 0, "they go first");
    let events = connack(now, &mut client);
    let has_lost = |event: &Event| matches!(event, Event::SessionLost { .. });
    assert!(!events.iter().any(has_lost), "{events:?}");
    assert_eq!(payloads(&mut client, LaneId::CONTROL), ["2", "4"]);
    assert_eq!(client.in_flight(), 4);
    for id in 1..=4 {
        let lane = if id == 3 { LaneId(8) } else { LaneId::CONTROL };
        say(now, &mut client, lane, &puback(id));
    }
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn the_messages_of_a_lane_that_began_before_connack_are_sent_again_when_it_breaks_later() {
    let (now, mut client) = connecting([LaneId(4)]);
    connack(now, &mut client);
    assert!(payloads(&mut client, LaneId::CONTROL).is_empty());
    client.handle_lane_closed(now, LaneId(4), LaneEnd::Abort(0));
    assert_eq!(payloads(&mut client, LaneId::CONTROL), ["1"]);
}

#[test]
fn a_lane_that_is_finished_before_connack_ends_with_the_acknowledgement() {
    let (now, mut client) = connecting([LaneId(4)]);
    client.finish_lane(LaneId(4));
    connack(now, &mut client);
    assert_eq!(client.outbox().take_end(LaneId(4)), None);
    say(now, &mut client, LaneId(4), &puback(1));
    assert_eq!(client.outbox().take_end(LaneId(4)), Some(LaneEnd::Finish));
}

#[test]
fn the_receive_maximum_counts_over_all_lanes() {
    let now = Instant::now();
    let mut client = Connection::client(now, client_config(), Session::new());
    let config = ServerConfig {
        receive_maximum: std::num::NonZeroU16::new(2).unwrap(),
        ..ServerConfig::default()
    };
    let mut server = Connection::server(now, config);
    client.connect(now).unwrap();
    pass(now, &mut client, &mut server, LaneId::CONTROL);
    while server.poll_event().is_some() {}
    let ack = ConnAck::new(ReasonCode::Success);
    server.accept(now, Session::new(), ack).unwrap();
    for lane in [LaneId(4), LaneId(8)] {
        say(
            now,
            &mut server,
            lane,
            &publish(1 + u16::try_from(lane.0).unwrap(), QoS::AtLeastOnce),
        );
    }
    assert_eq!(received(&mut server).len(), 2);
    say(now, &mut server, LaneId(12), &publish(1, QoS::AtLeastOnce));
    assert!(matches!(server.poll_event(), Some(Event::Closed(_))));
}

/// Makes a server that takes that many QoS 1 and 2 messages at a time, and a client that counts identifiers by lane.
fn open_by_lane(receive_maximum: u16) -> (Instant, Connection) {
    let now = Instant::now();
    let config = ServerConfig {
        receive_maximum: std::num::NonZeroU16::new(receive_maximum).unwrap(),
        ..ServerConfig::default()
    };
    let mut server = Connection::server(now, config);
    say(
        now,
        &mut server,
        LaneId::CONTROL,
        &Packet::from(connect(Version::V5)),
    );
    while server.poll_event().is_some() {}
    let ack = ConnAck::new(ReasonCode::Success);
    server.accept(now, Session::new(), ack).unwrap();
    (now, server)
}

#[test]
fn the_receive_maximum_is_not_exceeded_at_qos2_by_identifiers_of_a_lane() {
    let (now, mut server) = open_by_lane(2);
    for id in 1..=2 {
        say(now, &mut server, LaneId(4), &publish(id, QoS::ExactlyOnce));
    }
    assert_eq!(received(&mut server).len(), 2);
    say(now, &mut server, LaneId(4), &publish(3, QoS::ExactlyOnce));
    assert!(matches!(server.poll_event(), Some(Event::Closed(_))));
    // The lane ends with the connection.
    server.handle_lane_closed(now, LaneId(4), LaneEnd::Abort(0));
}

#[test]
fn a_refused_qos2_message_on_a_data_lane_makes_room_for_the_next() {
    let (now, mut server) = open_by_lane(1);
    for id in 1..=3 {
        say(now, &mut server, LaneId(4), &publish(id, QoS::ExactlyOnce));
        let (_, ticket) = received(&mut server).pop().expect("there is room");
        server.ack(now, ticket.unwrap(), ReasonCode::QuotaExceeded);
    }
}

#[test]
fn a_lane_may_end_after_a_release_that_came_before_the_receipt() {
    let (now, mut server) = open_by_lane(1);
    let lane = LaneId(4);
    say(now, &mut server, lane, &publish(1, QoS::ExactlyOnce));
    let (_, ticket) = received(&mut server).pop().unwrap();
    let id = mq_codec::PacketId::new(1).unwrap();
    let release = mq_codec::Ack::new(id, ReasonCode::Success);
    say(now, &mut server, lane, &Packet::PubRel(release));
    server.ack(now, ticket.unwrap(), ReasonCode::Success);
    server.handle_lane_closed(now, lane, LaneEnd::Abort(0));
    say(now, &mut server, LaneId(8), &publish(1, QoS::ExactlyOnce));
    assert_eq!(received(&mut server).len(), 1);
}

#[test]
fn a_release_before_the_receipt_makes_no_room() {
    for lane in [LaneId::CONTROL, LaneId(4)] {
        let (now, mut server) = open_by_lane(1);
        let id = mq_codec::PacketId::new(1).unwrap();
        let release = Packet::PubRel(mq_codec::Ack::new(id, ReasonCode::Success));
        say(now, &mut server, lane, &publish(1, QoS::ExactlyOnce));
        let (_, ticket) = received(&mut server).pop().unwrap();
        say(now, &mut server, lane, &release);
        // The same identifier is the same message.
        say(now, &mut server, lane, &publish(1, QoS::ExactlyOnce));
        assert_eq!(received(&mut server).len(), 0);
        server.ack(now, ticket.unwrap(), ReasonCode::Success);
        say(now, &mut server, lane, &release);
        say(now, &mut server, lane, &publish(1, QoS::ExactlyOnce));
        assert_eq!(received(&mut server).len(), 1);
    }
}

#[test]
fn a_lane_that_is_finished_waits_for_its_answers() {
    let (now, mut server) = open_by_lane(9);
    let lane = LaneId(4);
    say(now, &mut server, lane, &publish(1, QoS::AtLeastOnce));
    let (_, ticket) = received(&mut server).pop().unwrap();
    server.finish_lane(lane);
    assert_eq!(server.outbox().take_end(lane), None);
    server.ack(now, ticket.unwrap(), ReasonCode::Success);
    let puback = server.outbox().take(lane).expect("before the end");
    assert_eq!(puback.bytes[..], [0x40, 2, 0, 1]);
    assert_eq!(server.outbox().take_end(lane), Some(LaneEnd::Finish));
    // What is lost needs no answer; the identifiers of the others mean something else on another lane.
    say(now, &mut server, lane, &publish(0, QoS::AtMostOnce));
    assert_eq!(received(&mut server).len(), 1);
    say(now, &mut server, lane, &publish(2, QoS::AtLeastOnce));
    assert_eq!(received(&mut server).len(), 0);
    assert!(matches!(
        server.outbox().take_end(lane),
        Some(LaneEnd::Abort(_))
    ));
    assert!(server.is_open());
}

#[test]
fn answers_to_a_lane_that_is_finished_go_on_the_control_lane_by_identifiers_of_the_session() {
    let (now, _, mut server) = open(client_config());
    let lane = LaneId(4);
    server.finish_lane(lane);
    assert_eq!(server.outbox().take_end(lane), Some(LaneEnd::Finish));
    say(now, &mut server, lane, &publish(2, QoS::AtLeastOnce));
    let (_, ticket) = received(&mut server).pop().unwrap();
    server.ack(now, ticket.unwrap(), ReasonCode::Success);
    let puback = server.outbox().take(LaneId::CONTROL).expect("an answer");
    assert_eq!(puback.bytes[..], [0x40, 2, 0, 2]);
    server.handle_lane_closed(now, lane, LaneEnd::Finish);
    server.handle_bytes(now, lane, &mut BytesMut::new());
    assert!(server.outbox().is_empty(), "it has ended already");
}

#[test]
fn a_lane_is_quiet_once_nothing_is_under_way_on_it() {
    let (now, mut client, mut server) = open(client_config());
    let lane = LaneId(4);
    assert!(server.is_lane_quiet(lane), "nothing is known of it");
    say(now, &mut server, lane, &publish(1, QoS::AtLeastOnce));
    let (_, ticket) = received(&mut server).pop().unwrap();
    assert!(!server.is_lane_quiet(lane));
    server.ack(now, ticket.unwrap(), ReasonCode::Success);
    assert!(server.is_lane_quiet(lane));
    let delivery = Delivery::new(message(1, 1), QoS::AtLeastOnce);
    server.publish_on(now, lane, delivery).unwrap();
    assert!(!server.is_lane_quiet(lane));
    // What was under way when a lane is given up goes on on the control lane.
    server.abort_lane(now, lane, 7);
    assert_eq!(server.outbox().take_end(lane), Some(LaneEnd::Abort(7)));
    assert!(server.is_lane_quiet(lane));
    pass(now, &mut server, &mut client, LaneId::CONTROL);
    assert_eq!(received(&mut client).len(), 1);
}

#[test]
fn a_finished_lane_that_only_this_side_writes_is_forgotten() {
    let (now, mut server) = open_by_lane(9);
    let lane = LaneId(3);
    let delivery = Delivery::new(message(1, 1), QoS::AtMostOnce);
    server.publish_on(now, lane, delivery).unwrap();
    server.finish_lane(lane);
    assert!(server.outbox().take(lane).is_some());
    assert_eq!(server.outbox().take_end(lane), Some(LaneEnd::Finish));
    assert_eq!(server.held_bytes(), 0);
}

#[test]
fn the_end_of_a_lane_that_has_failed_says_nothing_new() {
    let (now, mut server) = open_by_lane(9);
    let lane = LaneId(4);
    say(now, &mut server, lane, &Packet::PingReq);
    server.handle_lane_closed(now, lane, LaneEnd::Finish);
    server.handle_bytes(now, lane, &mut BytesMut::new());
    assert!(matches!(
        server.outbox().take_end(lane),
        Some(LaneEnd::Abort(_))
    ));
    assert_eq!(server.held_bytes(), 0, "the lane is forgotten");
    server.disconnect(mq_codec::Disconnect::new(ReasonCode::Success));
    server.handle_lane_closed(now, LaneId(8), LaneEnd::Finish);
    server.handle_bytes(now, LaneId(8), &mut BytesMut::new());
    let events = std::iter::from_fn(|| server.poll_event());
    assert!(matches!(
        events.last(),
        Some(Event::Closed(mq_proto::CloseReason::Local(_)))
    ));
}

#[test]
fn a_qos2_message_keeps_to_the_control_lane_of_a_server_that_counts_by_lane() {
    let (now, mut client, _) = open(ClientConfig::new(connect(Version::V5)));
    assert!(!client.has_session_ids());
    let delivery = Delivery::new(message(1, 1), QoS::ExactlyOnce);
    client.publish_on(now, LaneId(4), delivery).unwrap();
    assert!(client.outbox().take(LaneId(4)).is_none());
    assert!(client.outbox().take(LaneId::CONTROL).is_some());
    let (now, mut client, server) = open(client_config());
    assert!(client.has_session_ids() && server.has_session_ids());
    let delivery = Delivery::new(message(1, 1), QoS::ExactlyOnce);
    client.publish_on(now, LaneId(4), delivery).unwrap();
    assert!(client.outbox().take(LaneId(4)).is_some());
}

#[cfg(feature = "mqtt-next")]
#[test]
fn the_head_of_a_flow_is_skipped_also_byte_by_byte() {
    let (now, _, mut server) = open(ClientConfig::new(connect(Version::V5)));
    let mut bytes = BytesMut::from(&[0x12, 0x02, 0x41, 0x2C, 0x00][..]);
    publish(1, QoS::AtLeastOnce)
        .encode(Version::V5, &mut bytes)
        .unwrap();
    for (lane, step) in [(LaneId(2), 1), (LaneId(6), 3), (LaneId(4), 100)] {
        let mut buffer = BytesMut::new();
        for part in bytes.chunks(step) {
            buffer.extend_from_slice(part);
            server.handle_bytes(now, lane, &mut buffer);
        }
        assert_eq!(received(&mut server).len(), 1);
    }
}

#[test]
fn answers_to_a_stream_that_only_the_client_writes_go_on_the_control_lane() {
    let (now, _, mut server) = open(ClientConfig::new(connect(Version::V5)));
    say(now, &mut server, LaneId(2), &publish(1, QoS::ExactlyOnce));
    let (_, ticket) = received(&mut server).remove(0);
    server.ack(now, ticket.unwrap(), ReasonCode::Success);
    let pubrec = server.outbox().take(LaneId::CONTROL).unwrap();
    assert_eq!(pubrec.bytes[..], [0x50, 2, 0, 1]);
    let release = Packet::PubRel(mq_codec::Ack::new(
        mq_codec::PacketId::FIRST,
        ReasonCode::Success,
    ));
    say(now, &mut server, LaneId::CONTROL, &release);
    let pubcomp = server.outbox().take(LaneId::CONTROL).unwrap();
    assert_eq!(pubcomp.bytes[..], [0x70, 2, 0, 1]);
}
