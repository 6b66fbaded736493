//! Flows whose lanes break, whose connections are cut, and which are recovered: a client written from the
//! draft's rules alone, with packet identifiers counted by flow, against a server.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use mq_codec::{
    Ack, ConnAck, Decoder, Packet, PacketId, Publish, QoS, ReasonCode, TopicName, Version,
};
use mq_proto::{
    AckTicket, CloseReason, Connection, Delivery, Event, FlowEnd, FlowError, FlowId, LaneEnd,
    LaneId, Message, ProtocolError, ServerConfig, Session,
};

use crate::util::{Rng, connect, seeds};

const CLEAN: u8 = 0x80;
const ABORT_IF_NO_STATE: u8 = 0x40;
const TOLERANT: u8 = 0x20;
const PERSISTENT_QOS: u8 = 0x08;
const PERSISTENT_ALIASES: u8 = 0x04;
const PERSISTENT_SUBSCRIPTIONS: u8 = 0x02;
const KEPT: u8 = PERSISTENT_QOS | PERSISTENT_SUBSCRIPTIONS;

/// Encodes a flow's head with an expire interval of so many seconds, below 64.
fn head(flow: u64, seconds: u8, flags: u8) -> Vec<u8> {
    vec![0x12, u8::try_from(flow).unwrap(), seconds, flags]
}

fn encode(packet: &Packet) -> BytesMut {
    let mut bytes = BytesMut::new();
    packet.encode(Version::V5, &mut bytes).unwrap();
    bytes
}

fn publish(id: u16, qos: QoS, payload: &str, dup: bool) -> Packet {
    let mut publish = Publish::new(TopicName::new("t").unwrap(), payload.to_owned());
    publish.qos = qos;
    publish.dup = dup;
    publish.packet_id = PacketId::new(id);
    publish.into()
}

fn ack(id: u16) -> Ack {
    Ack::new(PacketId::new(id).unwrap(), ReasonCode::Success)
}

/// Makes a server that has accepted a client with the head of a control flow.
fn server(now: Instant, session: Session, present: bool) -> Connection {
    server_with(now, ServerConfig::default(), session, present)
}

fn server_with(now: Instant, config: ServerConfig, session: Session, present: bool) -> Connection {
    let mut server = Connection::server(now, config);
    server.allow_flows();
    let mut bytes = BytesMut::from(&[0x11, 0, 0][..]);
    bytes.unsplit(encode(&connect(Version::V5).into()));
    server.handle_bytes(now, LaneId::CONTROL, &mut bytes);
    assert!(matches!(server.poll_event(), Some(Event::Connect(_))));
    let mut answer = ConnAck::new(ReasonCode::Success);
    answer.session_present = present;
    server.accept(now, session, answer).unwrap();
    while server.outbox().take(LaneId::CONTROL).is_some() {}
    server
}

fn hear(now: Instant, server: &mut Connection, lane: LaneId, bytes: &[u8]) -> BytesMut {
    let mut buffer = BytesMut::from(bytes);
    server.handle_bytes(now, lane, &mut buffer);
    buffer
}

fn begin(now: Instant, server: &mut Connection, lane: LaneId, flow: u64, flags: u8) {
    assert!(hear(now, server, lane, &head(flow, 60, flags)).is_empty());
}

fn said(server: &mut Connection, lane: LaneId) -> Vec<Packet> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = server.outbox().take(lane) {
        bytes.extend_from_slice(&chunk.bytes);
    }
    let mut decoder = Decoder::new(Some(Version::V5), u32::MAX);
    std::iter::from_fn(|| decoder.decode(&mut bytes).unwrap()).collect()
}

fn events(server: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| server.poll_event()).collect()
}

fn flow_ends(server: &mut Connection) -> Vec<FlowEnd> {
    let ends = events(server).into_iter().filter_map(|event| match event {
        Event::FlowEnded(end) => Some(end),
        _ => None,
    });
    ends.collect()
}

/// The flow of the client that sends and receives numbered messages on whatever lane it has.
#[derive(Default)]
struct Flow {
    id: u64,
    lane: Option<LaneId>,
    /// `true` once the server has received its head.
    is_known: bool,
    /// Bytes in flight on its present lane.
    to_server: BytesMut,
    to_client: BytesMut,
    /// Sent messages by packet identifier: the number, and `true` once PUBREC was received.
    sent: BTreeMap<u16, (usize, bool)>,
    /// QoS 2 messages that were received and not released.
    received: BTreeSet<u16>,
    next_id: u16,
    next: usize,
    /// Numbers of the messages that the server's application received on the flow, in order.
    got_by_server: Vec<usize>,
    got_by_client: Vec<usize>,
    next_of_server: usize,
}

impl Flow {
    fn send_packet(&mut self, packet: &Packet) {
        self.to_server.unsplit(encode(packet));
    }

    fn publish(&mut self, qos: QoS) {
        self.next_id += 1;
        let (id, number) = (self.next_id, self.next);
        self.next += 1;
        self.sent.insert(id, (number, false));
        self.send_packet(&publish(id, qos, &number.to_string(), false));
    }

    /// Takes the flow up on another lane.
    fn recover(&mut self, lane: LaneId, qos: QoS) {
        self.lane = Some(lane);
        self.to_server.clear();
        self.to_client.clear();
        let abort = if self.is_known { ABORT_IF_NO_STATE } else { 0 };
        self.to_server.extend(head(self.id, 60, KEPT | abort));
        for (id, (number, released)) in self.sent.clone() {
            self.send_packet(&if released {
                Packet::PubRel(ack(id))
            } else {
                publish(id, qos, &number.to_string(), true)
            });
        }
    }

    fn read(&mut self) {
        let mut decoder = Decoder::new(Some(Version::V5), u32::MAX);
        while let Some(packet) = decoder.decode(&mut self.to_client).unwrap() {
            match packet {
                Packet::PubAck(ack) | Packet::PubComp(ack) => {
                    self.sent.remove(&ack.packet_id.get());
                }
                Packet::PubRec(answer) => {
                    let id = answer.packet_id.get();
                    if let Some(sent) = self.sent.get_mut(&id) {
                        sent.1 = true;
                    }
                    self.send_packet(&Packet::PubRel(ack(id)));
                }
                Packet::Publish(publish) => {
                    let id = publish.packet_id.unwrap().get();
                    let number = std::str::from_utf8(&publish.payload).unwrap();
                    let is_new = match publish.qos {
                        QoS::ExactlyOnce => self.received.insert(id),
                        _ => true,
                    };
                    if is_new {
                        self.got_by_client.push(number.parse().unwrap());
                    }
                    self.send_packet(&match publish.qos {
                        QoS::ExactlyOnce => Packet::PubRec(ack(id)),
                        _ => Packet::PubAck(ack(id)),
                    });
                }
                Packet::PubRel(release) => {
                    let id = release.packet_id.get();
                    self.received.remove(&id);
                    self.send_packet(&Packet::PubComp(ack(id)));
                }
                other => panic!("{other:?} on a data lane"),
            }
        }
    }
}

const MESSAGES: usize = 25;
const FLOWS: u64 = 3;

/// Returns the flows, and how many lanes were broken and connections cut.
fn run(seed: u64, qos: QoS) -> (Vec<Flow>, usize, usize) {
    let mut rng = Rng(seed);
    let mut now = Instant::now();
    let mut connection = server(now, Session::new(), false);
    let mut tickets: Vec<AckTicket> = Vec::new();
    let mut next_lane = 4;
    let mut flows: Vec<_> = (1..=FLOWS)
        .map(|number| Flow {
            id: number * 2,
            ..Flow::default()
        })
        .collect();
    let (mut breaks, mut cuts) = (0, 0);
    for _ in 0..200_000 {
        now += Duration::from_millis(1);
        connection.handle_timeout(now);
        let is_done = flows.iter().all(|flow| {
            flow.next == MESSAGES && flow.next_of_server == MESSAGES && flow.sent.is_empty()
        });
        if is_done && connection.in_flight() == 0 {
            return (flows, breaks, cuts);
        }
        let which = rng.below(flows.len());
        let flow = &mut flows[which];
        flow.is_known |= flow
            .lane
            .is_some_and(|lane| connection.flow_of(lane).is_some());
        let Some(lane) = flow.lane else {
            if rng.chance(30) {
                flow.recover(LaneId(next_lane), qos);
                next_lane += 4;
            }
            continue;
        };
        match rng.below(100) {
            0..20 if flow.next < MESSAGES => flow.publish(qos),
            20..35 if flow.next_of_server < MESSAGES && connection.flow_of(lane).is_some() => {
                let topic = TopicName::new("t").unwrap();
                let message = Message::new(topic, flow.next_of_server.to_string());
                let delivery = Delivery::new(message, qos);
                if connection.publish_on(now, lane, delivery).is_ok() {
                    flow.next_of_server += 1;
                }
            }
            35..60 => {
                let most = rng.below(60).min(flow.to_server.len());
                let bytes = flow.to_server.split_to(most);
                // What is not whole is the link's to keep.
                let mut buffer = bytes;
                connection.handle_bytes(now, lane, &mut buffer);
                buffer.unsplit(flow.to_server.split());
                flow.to_server = buffer;
            }
            60..80 => {
                while let Some(mut chunk) = connection.outbox().take(lane) {
                    let count = chunk.bytes.len().min(rng.below(60) + 1);
                    flow.to_client.extend_from_slice(&chunk.bytes[..count]);
                    chunk.bytes.advance(count);
                    connection.outbox().put_back(lane, chunk);
                    if rng.chance(50) {
                        break;
                    }
                }
                flow.read();
            }
            80..95 if !tickets.is_empty() => {
                let ticket = tickets.remove(rng.below(tickets.len()));
                connection.ack(now, ticket, ReasonCode::Success);
            }
            95 => {
                breaks += 1;
                flow.lane = None;
                if rng.chance(50) {
                    // A newer lane comes before the news of the break.
                    connection.outbox().discard(lane);
                } else {
                    connection.handle_lane_closed(now, lane, LaneEnd::Abort(0));
                }
            }
            96 if rng.chance(30) => {
                cuts += 1;
                for ticket in tickets.drain(..) {
                    connection.ack(now, ticket, ReasonCode::Success);
                }
                connection.handle_link_lost();
                connection.leave_flows(now);
                take_events(&mut connection, &mut flows, &mut tickets);
                let session = connection.into_session();
                tickets.clear();
                connection = server(now, session, true);
                next_lane = 4;
                for flow in &mut flows {
                    flow.lane = None;
                }
            }
            _ => {}
        }
        take_events(&mut connection, &mut flows, &mut tickets);
    }
    panic!("seed {seed}: it does not end");
}

fn take_events(connection: &mut Connection, flows: &mut [Flow], tickets: &mut Vec<AckTicket>) {
    for event in events(connection) {
        match event {
            Event::Publish(received) => {
                let id = connection.flow_of(received.lane);
                let flow = flows.iter_mut().find(|flow| Some(FlowId(flow.id)) == id);
                let number = std::str::from_utf8(&received.message.payload).unwrap();
                // A lane that was taken over in the same call is known by its flow no longer.
                if let Some(flow) = flow {
                    flow.got_by_server.push(number.parse().unwrap());
                    tickets.extend(received.ticket);
                } else {
                    panic!("a message of a lane without a flow");
                }
            }
            Event::LaneFailed { lane, error } => panic!("{lane} failed: {error}"),
            _ => {}
        }
    }
}

fn first_of_each(numbers: &[usize]) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let numbers = numbers.iter().copied();
    numbers.filter(|number| seen.insert(*number)).collect()
}

fn check(qos: QoS) {
    let (mut all_breaks, mut all_cuts) = (0, 0);
    for seed in seeds(500) {
        let (flows, breaks, cuts) = run(seed, qos);
        (all_breaks, all_cuts) = (all_breaks + breaks, all_cuts + cuts);
        let all: Vec<_> = (0..MESSAGES).collect();
        for flow in flows {
            for got in [&flow.got_by_server, &flow.got_by_client] {
                assert_eq!(
                    first_of_each(got),
                    all,
                    "seed {seed}: lost, or out of order"
                );
                if qos == QoS::ExactlyOnce {
                    assert_eq!(got.len(), MESSAGES, "seed {seed}: {got:?} twice");
                }
            }
        }
    }
    println!("{all_breaks} lanes broken, {all_cuts} connections cut");
    assert!(all_breaks > 0 && all_cuts > 0);
}

#[test]
fn qos1_of_recovered_flows_arrives_both_ways_in_order() {
    check(QoS::AtLeastOnce);
}

#[test]
fn qos2_of_recovered_flows_arrives_exactly_once_both_ways_in_order() {
    check(QoS::ExactlyOnce);
}

/// Makes a server whose window has room for two messages.
fn narrow(now: Instant) -> Connection {
    let config = ServerConfig {
        max_inflight: NonZeroU16::new(2).unwrap(),
        ..ServerConfig::default()
    };
    server_with(now, config, Session::new(), false)
}

/// Sends a message at QoS 1 and returns its packet identifier.
fn send(now: Instant, server: &mut Connection, lane: LaneId) -> u16 {
    let message = Message::new(TopicName::new("t").unwrap(), "x");
    let delivery = Delivery::new(message, QoS::AtLeastOnce);
    let id = server.publish_on(now, lane, delivery).unwrap();
    id.unwrap().get()
}

fn puback(now: Instant, server: &mut Connection, id: u16) {
    let answer = encode(&Packet::PubAck(ack(id)));
    hear(now, server, LaneId::CONTROL, &answer);
}

/// Fills the window of a server by two messages on the control lane, while two of flow 2 wait to be sent again on lane
/// 8. Returns the packet identifiers of both on the control lane, and of both on the flow.
fn with_waiting(now: Instant) -> (Connection, [u16; 2], [u16; 2]) {
    let mut server = narrow(now);
    begin(now, &mut server, LaneId(4), 2, KEPT);
    let waiting = [(); 2].map(|()| send(now, &mut server, LaneId(4)));
    server.handle_lane_closed(now, LaneId(4), LaneEnd::Abort(0));
    let sent = [(); 2].map(|()| send(now, &mut server, LaneId::CONTROL));
    begin(now, &mut server, LaneId(8), 2, KEPT);
    assert!(said(&mut server, LaneId(8)).is_empty());
    (server, sent, waiting)
}

#[test]
fn messages_that_wait_for_the_window_free_no_place_when_their_lane_breaks() {
    let now = Instant::now();
    let (mut server, sent, waiting) = with_waiting(now);
    server.handle_lane_closed(now, LaneId(8), LaneEnd::Abort(0));
    assert_eq!(server.window(), 0);
    puback(now, &mut server, sent[0]);
    assert_eq!(server.window(), 1);
    begin(now, &mut server, LaneId(12), 2, KEPT);
    assert_eq!(said(&mut server, LaneId(12)).len(), 1);
    for id in [sent[1], waiting[0], waiting[1]] {
        puback(now, &mut server, id);
    }
    assert_eq!((server.window(), server.in_flight()), (2, 0));
    assert_eq!(said(&mut server, LaneId(12)).len(), 1, "each is sent once");
    assert!(server.is_lane_quiet(LaneId(12)));
}

#[test]
fn messages_that_wait_for_the_window_free_no_place_when_they_are_complete() {
    let now = Instant::now();
    for lane_is_discarded in [false, true] {
        let (mut server, sent, waiting) = with_waiting(now);
        if lane_is_discarded {
            server.handle_lane_closed(now, LaneId(8), LaneEnd::Abort(0xBF));
        } else {
            // The answers to the first sending come late.
            for id in waiting {
                puback(now, &mut server, id);
            }
        }
        assert_eq!((server.window(), server.in_flight()), (0, 2));
        for id in sent {
            puback(now, &mut server, id);
        }
        assert_eq!((server.window(), server.in_flight()), (2, 0));
    }
}

#[test]
fn a_lane_that_is_finished_stays_for_the_messages_that_wait_to_be_sent_again_on_it() {
    let now = Instant::now();
    let (mut server, sent, waiting) = with_waiting(now);
    assert!(!server.is_lane_quiet(LaneId(8)));
    server.finish_lane(LaneId(8));
    assert_eq!(server.outbox().take_end(LaneId(8)), None);
    for id in sent {
        puback(now, &mut server, id);
    }
    assert_eq!(said(&mut server, LaneId(8)).len(), 2);
    for id in waiting {
        assert_eq!(server.outbox().take_end(LaneId(8)), None);
        puback(now, &mut server, id);
    }
    assert_eq!(server.outbox().take_end(LaneId(8)), Some(LaneEnd::Finish));
}

#[test]
fn a_flow_whose_lane_breaks_makes_room_for_messages_of_another() {
    let now = Instant::now();
    let mut server = narrow(now);
    for (lane, flow) in [(LaneId(4), 2), (LaneId(8), 4)] {
        begin(now, &mut server, lane, flow, KEPT);
        send(now, &mut server, lane);
        server.handle_lane_closed(now, lane, LaneEnd::Abort(0));
    }
    send(now, &mut server, LaneId::CONTROL);
    begin(now, &mut server, LaneId(12), 2, KEPT);
    begin(now, &mut server, LaneId(16), 4, KEPT);
    assert_eq!(said(&mut server, LaneId(12)).len(), 1);
    assert!(said(&mut server, LaneId(16)).is_empty());
    server.handle_lane_closed(now, LaneId(12), LaneEnd::Abort(0));
    assert_eq!(said(&mut server, LaneId(16)).len(), 1);
    assert_eq!(server.window(), 0);
}

#[test]
fn a_flow_of_which_nothing_is_kept_is_refused_once_and_then_ends_the_connection() {
    let now = Instant::now();
    let mut server = server(now, Session::new(), false);
    begin(now, &mut server, LaneId(4), 8, ABORT_IF_NO_STATE);
    let failed = |event| match event {
        Some(Event::LaneFailed { error, .. }) => error,
        other => panic!("{other:?}"),
    };
    let error = failed(server.poll_event());
    assert_eq!(error, ProtocolError::Flow(FlowError::NoFlowState));
    let end = server.outbox().take_end(LaneId(4));
    assert_eq!(end, Some(LaneEnd::Abort(0xB3)));
    begin(now, &mut server, LaneId(8), 8, 0);
    assert!(matches!(
        events(&mut server)[..],
        [Event::FlowBegan { expiry: None, .. }]
    ));
    assert_eq!(server.close_code(), 0);
    begin(now, &mut server, LaneId(12), 10, ABORT_IF_NO_STATE);
    begin(now, &mut server, LaneId(16), 10, ABORT_IF_NO_STATE);
    let last = events(&mut server).pop();
    let Some(Event::Closed(CloseReason::Protocol(error))) = last else {
        panic!("{last:?}");
    };
    assert_eq!(
        error,
        ProtocolError::Flow(FlowError::TooManyRecoverAttempts)
    );
    assert_eq!(server.close_code(), 0xB3);
}

#[test]
fn what_is_kept_of_a_flow_goes_with_its_time_its_order_and_its_flags() {
    let start = Instant::now();
    let far = start + Duration::from_mins(1);
    let broken = LaneEnd::Abort(0);
    // Flags, how the lane ends, and what is kept: subscriptions, until when.
    for (flags, end, subscriptions, expires_at) in [
        (KEPT, broken, true, Some(far)),
        (PERSISTENT_QOS, broken, false, Some(far)),
        (PERSISTENT_SUBSCRIPTIONS, broken, true, Some(far)),
        (PERSISTENT_ALIASES, broken, false, Some(far)),
        (0, broken, false, None),
        (KEPT, LaneEnd::Abort(0xBF), false, None),
        (KEPT, LaneEnd::Finish, false, None),
    ] {
        let mut server = server(start, Session::new(), false);
        begin(start, &mut server, LaneId(4), 2, flags);
        server.handle_lane_closed(start, LaneId(4), end);
        hear(start, &mut server, LaneId(4), &[]);
        let expected = FlowEnd {
            flow: FlowId(2),
            keeps_subscriptions: subscriptions,
            expires_at,
        };
        assert_eq!(flow_ends(&mut server), [expected], "{flags:#X} {end:?}");
        assert_eq!(server.keeps_flow(FlowId(2)), expires_at.is_some());
        let is_due = server.poll_timeout() == expires_at && expires_at.is_some();
        assert_eq!(is_due, expires_at.is_some());
        server.handle_timeout(far);
        assert!(!server.keeps_flow(FlowId(2)));
        let gone = FlowEnd {
            keeps_subscriptions: false,
            expires_at: None,
            ..expected
        };
        let ends = flow_ends(&mut server);
        assert_eq!(ends, vec![gone; usize::from(expires_at.is_some())]);
    }
}

#[test]
fn an_error_discards_a_flow_unless_it_tolerates_errors() {
    let now = Instant::now();
    for (flags, code, is_kept) in [(KEPT, 0xBF, false), (KEPT | TOLERANT, 0xBC, true)] {
        let mut server = server(now, Session::new(), false);
        begin(now, &mut server, LaneId(4), 2, flags);
        hear(now, &mut server, LaneId(4), &[0xE0, 0]);
        assert_eq!(server.keeps_flow(FlowId(2)), is_kept);
        let end = server.outbox().take_end(LaneId(4));
        assert_eq!(end, Some(LaneEnd::Abort(code)));
        assert!(server.is_open());
    }
    // A packet that is cut off is no discarded state.
    let mut server = server(now, Session::new(), false);
    begin(now, &mut server, LaneId(4), 2, KEPT);
    let mut part = hear(now, &mut server, LaneId(4), &[0x30, 9, 0]);
    server.handle_lane_closed(now, LaneId(4), LaneEnd::Finish);
    server.handle_bytes(now, LaneId(4), &mut part);
    assert!(server.keeps_flow(FlowId(2)));
    let end = server.outbox().take_end(LaneId(4));
    assert_eq!(end, Some(LaneEnd::Abort(0xBA)));
}

#[test]
fn aliases_are_kept_for_the_next_lane_of_a_flow_that_asks_for_it() {
    let now = Instant::now();
    for (flags, is_known) in [(PERSISTENT_ALIASES, true), (KEPT, false)] {
        let mut server = server(now, Session::new(), false);
        let mut aliased = Publish::new(TopicName::new("t").unwrap(), "x");
        aliased.properties.topic_alias = Some(1);
        begin(now, &mut server, LaneId(4), 2, flags);
        hear(
            now,
            &mut server,
            LaneId(4),
            &encode(&aliased.clone().into()),
        );
        server.handle_lane_closed(now, LaneId(4), LaneEnd::Abort(0));
        events(&mut server);
        begin(now, &mut server, LaneId(8), 2, flags);
        aliased.topic = TopicName::empty();
        hear(now, &mut server, LaneId(8), &encode(&aliased.into()));
        let came = events(&mut server)
            .iter()
            .any(|event| matches!(event, Event::Publish(_)));
        assert_eq!(came, is_known);
    }
}

#[test]
fn what_waits_for_a_flow_goes_on_without_it_on_a_link_that_has_none() {
    let now = Instant::now();
    let mut server = server(now, Session::new(), false);
    begin(now, &mut server, LaneId(4), 2, KEPT);
    let topic = TopicName::new("t").unwrap();
    let delivery = Delivery::new(Message::new(topic, "x"), QoS::AtLeastOnce);
    server.publish_on(now, LaneId(4), delivery).unwrap();
    server.handle_link_lost();
    server.leave_flows(now);
    let session = server.into_session();
    let mut other = Connection::server(now, ServerConfig::default());
    let connect = connect(Version::V5);
    other.handle_bytes(now, LaneId::CONTROL, &mut encode(&connect.into()));
    events(&mut other);
    let mut answer = ConnAck::new(ReasonCode::Success);
    answer.session_present = true;
    other.accept(now, session, answer).unwrap();
    let said = said(&mut other, LaneId::CONTROL);
    assert!(
        matches!(&said[..], [Packet::ConnAck(_), Packet::Publish(publish)] if publish.dup),
        "{said:?}"
    );
    assert!(!other.keeps_flow(FlowId(2)));
}

#[test]
fn a_session_keeps_a_bounded_number_of_flows() {
    let now = Instant::now();
    let mut server = server(now, Session::new(), false);
    let mut kept = 0;
    for number in 1..2_000_u64 {
        let lane = LaneId(number * 4);
        let flow = (number * 2).to_be_bytes();
        let mut bytes = vec![0x12, 0xC0 | flow[0]];
        bytes.extend(&flow[1..]);
        bytes.extend([60, KEPT]);
        hear(now, &mut server, lane, &bytes);
        server.handle_lane_closed(now, lane, LaneEnd::Abort(0));
        kept += usize::from(server.keeps_flow(FlowId(number * 2)));
        events(&mut server);
    }
    assert_eq!(kept, 256);
    assert!(server.held_bytes() < 256 * 1024, "{}", server.held_bytes());
}

#[test]
fn a_head_that_would_discard_a_flow_waits_for_the_handshake() {
    let now = Instant::now();
    let mut server = server(now, Session::new(), false);
    server.restrict_early(mq_proto::EarlyPackets::Repeatable);
    let mut bytes = BytesMut::from(&head(2, 60, CLEAN)[..]);
    bytes.unsplit(encode(&publish(1, QoS::AtLeastOnce, "x", false)));
    server.handle_bytes(now, LaneId(4), &mut bytes);
    server.handle_lane_closed(now, LaneId(4), LaneEnd::Finish);
    server.handle_bytes(now, LaneId(4), &mut bytes);
    assert!(events(&mut server).is_empty() && !bytes.is_empty());
    server.handshake_complete();
    server.handle_bytes(now, LaneId(4), &mut bytes);
    let got = events(&mut server);
    let came = got.iter().any(|event| matches!(event, Event::Publish(_)));
    assert!(came, "{got:?}");
}

#[test]
fn a_server_names_the_flows_that_it_opens_and_a_client_its_own() {
    let now = Instant::now();
    let mut config = mq_proto::ClientConfig::new(connect(Version::V5));
    config.lanes = mq_proto::DataLanes::Flows;
    let mut client = Connection::client(now, config, Session::new());
    let mut server = Connection::server(now, ServerConfig::default());
    server.allow_flows();
    client.connect(now).unwrap();
    let carry = |from: &mut Connection, to: &mut Connection, lane| {
        let mut bytes = BytesMut::new();
        while let Some(chunk) = from.outbox().take(lane) {
            bytes.extend_from_slice(&chunk.bytes);
        }
        to.handle_bytes(now, lane, &mut bytes);
        assert!(bytes.is_empty());
    };
    carry(&mut client, &mut server, LaneId::CONTROL);
    events(&mut server);
    let answer = ConnAck::new(ReasonCode::Success);
    server.accept(now, Session::new(), answer).unwrap();
    carry(&mut server, &mut client, LaneId::CONTROL);
    events(&mut client);
    let delivery = || {
        let message = Message::new(TopicName::new("t").unwrap(), "x");
        Delivery::new(message, QoS::AtMostOnce)
    };
    let arrived = |to: &mut Connection| {
        let all = events(to);
        let publishes = all
            .iter()
            .filter(|event| matches!(event, Event::Publish(_)));
        publishes.count()
    };
    for lane in [LaneId(4), LaneId(8)] {
        for _ in 0..2 {
            client.publish_on(now, lane, delivery()).unwrap();
        }
        carry(&mut client, &mut server, lane);
        assert_eq!(server.flow_of(lane), Some(FlowId(lane.0 / 2)));
        assert_eq!(arrived(&mut server), 2);
    }
    for lane in [LaneId(1), LaneId(5)] {
        for _ in 0..2 {
            server.publish_on(now, lane, delivery()).unwrap();
        }
        carry(&mut server, &mut client, lane);
        assert_eq!(arrived(&mut client), 2);
    }
    // What a client without heads would send is no flow.
    hear(
        now,
        &mut server,
        LaneId(12),
        &encode(&publish(1, QoS::AtLeastOnce, "x", false)),
    );
    let end = server.outbox().take_end(LaneId(12));
    assert_eq!(end, Some(LaneEnd::Abort(0xB5)));
    assert!(said(&mut server, LaneId(12)).is_empty());
}
