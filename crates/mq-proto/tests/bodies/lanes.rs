//! A client's or a server's connection with lanes of every kind, whose peer and owner do whatever the input
//! says.
//!
//! Each step is an operation and its arguments, a few bytes. The peer's packets, flow heads and stray bytes
//! go into its end of a lane, and come out of the other end in pieces, as from a link. A lane that both sides
//! have ended is followed by one of the same kind. The test demands: no panic; nothing but silence behind
//! `Closed`; whole packets on each lane, acknowledgements in order and none without its ticket; no more
//! messages under way than the maxima; memory by the number of lanes.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use mq_codec::{
    Ack, ByteStr, ConnAck, Connect, Decoder, Disconnect, Packet, PacketId, QoS, ReasonCode,
    Subscription, TopicFilter, TopicName, Unsubscribe, Version,
};
use mq_proto::{
    AckTicket, ClientConfig, Connection, DataLanes, Delivery, Event, LaneEnd, LaneId, Message,
    ServerConfig, Session,
};

#[path = "input.rs"]
mod input;

use input::{ANSWERS, Input, publish, suback, subscribe, unsuback};

/// Two bidirectional lanes and a unidirectional one of the client, and the same of the server.
const KINDS: [LaneId; 6] = [
    LaneId(4),
    LaneId(8),
    LaneId(2),
    LaneId(1),
    LaneId(5),
    LaneId(3),
];
/// The distance of identifiers from a lane to the next of its kind.
const GENERATION: u64 = 16;

/// Messages under way, each way.
const MAXIMUM: usize = 3;
/// The largest packet that this end takes, in bytes.
const LARGEST: u32 = 256;
/// A type, two variable-length integers and flags.
const LONGEST_HEAD: usize = 1 + 8 + 8 + 1;
/// The error code that discards the state of a flow.
const DISCARD_STATE: u32 = 0xBF;
/// Bytes that a lane may hold besides its buffer: two aliases, and less than 1 KiB of its own.
const HELD_BY_LANE: usize = 2 * LARGEST as usize + 1024;

/// Bytes that the kept flows of a session may hold, each with two aliases and a few identifiers.
const HELD_BY_FLOWS: usize = 256 * 1024;

/// A lane, as a link has it.
struct Lane {
    id: LaneId,
    /// Written by the peer and not delivered.
    wire: BytesMut,
    /// Delivered and not consumed.
    buffer: BytesMut,
    peer_ended: bool,
    own_ended: bool,
    /// QoS 1 messages in order, which are acknowledged in this order.
    due: VecDeque<PacketId>,
    /// `true` once the head of a flow that this end writes was read.
    has_head: bool,
}

impl Lane {
    fn new(id: LaneId) -> Self {
        Self {
            id,
            wire: BytesMut::new(),
            buffer: BytesMut::new(),
            peer_ended: false,
            own_ended: false,
            due: VecDeque::new(),
            has_head: false,
        }
    }
}

/// Way in which the owner ends a lane.
#[derive(Clone, Copy)]
enum OwnerEnds {
    InOrder,
    AtOnce,
    /// The owner ends the lane at once, and reports that to the connection like an end by the peer.
    Hears,
}

/// The end under test.
struct End {
    connection: Connection,
    now: Instant,
    is_server: bool,
    /// Lanes that this end opens begin with the head of a flow.
    has_flows: bool,
    version: Version,
    /// The control lane, then one of each kind.
    lanes: Vec<Lane>,
    /// Tickets with the lane and the QoS of their messages.
    tickets: Vec<(LaneId, QoS, AckTicket)>,
    /// QoS 2 messages that the owner has answered. They may be refused, or released by the peer, and count
    /// no more, while their PUBREC waits for those before.
    answered: usize,
    /// The number of PUBACK packets that may still be sent, by packet identifier.
    may_leave: BTreeMap<PacketId, usize>,
    /// This end's messages and requests that have no answer yet.
    in_flight: BTreeSet<PacketId>,
    requests: BTreeSet<PacketId>,
    subscribes: Vec<(LaneId, PacketId, usize)>,
    unsubscribes: Vec<(LaneId, PacketId, usize)>,
    is_closed: bool,
    /// The peer's decoder, which reads what this end has written.
    reader: Decoder,
    /// Bytes that packet identifiers may hold in a version without Receive Maximum.
    slack: usize,
}

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut end = End::new(&mut input);
    while !input.0.is_empty() {
        end.step(&mut input);
        end.check();
    }
    let _ = end.connection.into_session();
}

impl End {
    fn new(input: &mut Input<'_>) -> Self {
        let options = input.byte();
        let is_server = options & 1 == 0;
        let version = [Version::V5, Version::V3_1_1][usize::from(options >> 1 & 1)];
        let session_ids = options & 4 > 0;
        let is_let_in = options & 0x38 > 0;
        // The peer's control lane has the head of a flow.
        let has_flows = options & 0x40 > 0;
        let now = Instant::now();
        let small = core::num::NonZeroU16::new(3).expect("it is not 0");
        let largest = core::num::NonZeroU32::new(LARGEST).expect("it is not 0");
        let mut connect = Connect::new(version, ByteStr::new("c").expect("short"));
        let mark = || {
            let [name, value] = ["mq-packet-ids", "session"];
            let text = |text| ByteStr::new(text).expect("short");
            (text(name), text(value))
        };
        let connection = if is_server {
            if session_ids {
                connect.properties.user_properties.push(mark());
            }
            let config = ServerConfig {
                receive_maximum: small,
                max_inflight: small,
                max_packet_size: largest,
                topic_alias_maximum: 2,
                ..ServerConfig::default()
            };
            Connection::server(now, config)
        } else {
            let mut config = ClientConfig::new(connect.clone());
            config.receive_maximum = small;
            config.max_inflight = small;
            config.max_packet_size = largest;
            config.topic_alias_maximum = 2;
            config.lanes = match (has_flows, session_ids) {
                (true, _) => DataLanes::Flows,
                (false, true) => DataLanes::Plain,
                (false, false) => DataLanes::None,
            };
            Connection::client(now, config, Session::new())
        };
        let mut end = Self {
            connection,
            now,
            is_server,
            has_flows,
            version,
            lanes: [LaneId::CONTROL]
                .into_iter()
                .chain(KINDS)
                .map(Lane::new)
                .collect(),
            tickets: Vec::new(),
            answered: 0,
            may_leave: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            requests: BTreeSet::new(),
            subscribes: Vec::new(),
            unsubscribes: Vec::new(),
            is_closed: false,
            reader: Decoder::new(Some(version), u32::MAX),
            slack: 16 * input.0.len(),
        };
        let first = if is_server {
            Packet::from(connect)
        } else {
            end.connection.connect(now).expect("CONNECT is small");
            let mut ack = ConnAck::new(ReasonCode::Success);
            if session_ids {
                ack.properties.user_properties.push(mark());
            }
            Packet::from(ack)
        };
        if is_server && has_flows {
            end.connection.allow_flows();
            end.lanes[0].wire.extend_from_slice(&[0x11, 0, 0]);
        }
        if is_server || is_let_in {
            end.say(0, &first);
            end.deliver(0, usize::MAX);
        }
        if is_server && is_let_in {
            end.accept();
        }
        end.check();
        end
    }

    fn accept(&mut self) {
        let ack = ConnAck::new(ReasonCode::Success);
        if self
            .connection
            .accept(self.now, Session::new(), ack)
            .is_ok()
        {
            for at in 0..self.lanes.len() {
                self.handle(at);
            }
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % self.lanes.len();
        match input.byte() % 16 {
            0..6 => {
                self.write(at, input);
                let most = input.pick(&[usize::MAX, usize::MAX, 0, 1, 2, 5]);
                self.deliver(at, most);
            }
            6 => {
                let most = 1 + usize::from(input.byte());
                self.deliver(at, most);
            }
            7 => {
                let in_order = input.byte().is_multiple_of(2);
                let code = input.pick(&[0, DISCARD_STATE]);
                self.end_of_peer(at, in_order, code);
            }
            8 | 9 => {
                if !self.tickets.is_empty() {
                    let index = usize::from(input.byte()) % self.tickets.len();
                    let (_, qos, ticket) = self.tickets.swap_remove(index);
                    if qos == QoS::AtLeastOnce {
                        *self.may_leave.entry(ticket.packet_id()).or_default() += 1;
                    }
                    let answer = input.pick(&ANSWERS);
                    self.answered += usize::from(qos == QoS::ExactlyOnce);
                    self.connection.ack(self.now, ticket, answer);
                }
            }
            10 | 11 => self.publish(at, input),
            12 => self.ask_or_answer(at, input),
            13 => {
                self.now += Duration::from_secs((input.byte() % 32).into());
                self.connection.handle_timeout(self.now);
            }
            14 => {
                let how = input.pick(&[OwnerEnds::InOrder, OwnerEnds::AtOnce, OwnerEnds::Hears]);
                self.end_of_owner(at, how);
            }
            _ => match input.byte() % 32 {
                0 => self
                    .connection
                    .disconnect(Disconnect::new(ReasonCode::Success)),
                1 => self.connection.handle_link_lost(),
                2..8 => {
                    let datagram = match input.byte() % 3 {
                        0 => encoded(&publish(input), self.version),
                        1 => encoded(&Packet::PingReq, self.version),
                        _ => Bytes::copy_from_slice(&[input.byte(), input.byte()]),
                    };
                    // Whatever is wrong with it, it is dropped.
                    let _ = self.connection.handle_datagram(self.now, datagram);
                }
                8..16 if self.is_server => self.accept(),
                _ => self.connection.excuse_silence(self.now),
            },
        }
    }

    /// Returns `true` if only this end writes on the lane.
    fn is_only_own(&self, at: usize) -> bool {
        let id = self.lanes[at].id;
        id.is_unidirectional() && id.is_server_opened() == self.is_server
    }

    /// Returns `true` if only the peer writes on the lane.
    fn is_only_theirs(&self, at: usize) -> bool {
        let id = self.lanes[at].id;
        id.is_unidirectional() && id.is_server_opened() != self.is_server
    }

    /// Writes a packet of the peer to a lane, chosen by the input.
    fn write(&mut self, at: usize, input: &mut Input<'_>) {
        let ack = |input: &mut Input<'_>| Ack::new(input.packet_id(), input.reason());
        let packet = match input.byte() % 20 {
            0..6 => publish(input),
            6 => Packet::PubAck(ack(input)),
            7 => Packet::PubRec(ack(input)),
            8 | 9 => Packet::PubRel(ack(input)),
            10 => Packet::PubComp(ack(input)),
            11 => subscribe(input),
            12 => Packet::Unsubscribe(Unsubscribe {
                packet_id: input.packet_id(),
                filters: vec![TopicFilter::new("a").expect("valid")],
                properties: mq_codec::UnsubscribeProperties::default(),
            }),
            13 => Packet::SubAck(Box::new(suback(input.packet_id(), 1))),
            14 => Packet::UnsubAck(Box::new(unsuback(input.packet_id(), 1))),
            15 => input.pick(&[&Packet::PingReq, &Packet::PingResp]).clone(),
            16..19 => {
                let head = flow_head(input);
                self.lanes[at].wire.extend_from_slice(&head);
                return;
            }
            _ => {
                let stray = [input.byte(), input.byte(), input.byte()];
                self.lanes[at].wire.extend_from_slice(&stray);
                return;
            }
        };
        self.say(at, &packet);
    }

    fn say(&mut self, at: usize, packet: &Packet) {
        let bytes = encoded(packet, self.version);
        self.lanes[at].wire.extend_from_slice(&bytes);
    }

    /// Delivers up to `most` bytes of a lane from the link to the connection.
    fn deliver(&mut self, at: usize, most: usize) {
        let only_own = self.is_only_own(at);
        let lane = &mut self.lanes[at];
        if lane.peer_ended || only_own {
            lane.wire.clear();
            return;
        }
        let count = most.min(lane.wire.len());
        if count > 0 {
            let bytes = lane.wire.split_to(count);
            lane.buffer.extend_from_slice(&bytes);
            self.handle(at);
        }
    }

    fn handle(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        self.connection
            .handle_bytes(self.now, lane.id, &mut lane.buffer);
    }

    /// Ends a lane from the peer's side.
    fn end_of_peer(&mut self, at: usize, in_order: bool, code: u32) {
        if at == 0 || (self.lanes[at].peer_ended && in_order) {
            return;
        }
        if in_order && !self.is_only_own(at) {
            self.deliver(at, usize::MAX);
        }
        let lane = &mut self.lanes[at];
        lane.peer_ended = true;
        if !in_order {
            lane.own_ended = true;
            lane.buffer.clear();
        }
        let id = lane.id;
        let how = if in_order {
            LaneEnd::Finish
        } else {
            LaneEnd::Abort(code)
        };
        self.connection.handle_lane_closed(self.now, id, how);
        self.handle(at);
    }

    /// Ends a lane from the owner's side.
    fn end_of_owner(&mut self, at: usize, how: OwnerEnds) {
        if at == 0 {
            return;
        }
        let id = self.lanes[at].id;
        match how {
            OwnerEnds::InOrder if self.is_only_theirs(at) => {}
            OwnerEnds::InOrder => self.connection.finish_lane(id),
            OwnerEnds::AtOnce => self.connection.abort_lane(self.now, id, 0),
            OwnerEnds::Hears => {
                self.connection.outbox().end(id, LaneEnd::Abort(0));
                self.connection
                    .handle_lane_closed(self.now, id, LaneEnd::Abort(0));
            }
        }
    }

    fn publish(&mut self, at: usize, input: &mut Input<'_>) {
        if self.is_only_theirs(at) || self.lanes[at].own_ended {
            return;
        }
        let topic = TopicName::new(input.pick(&["a", "b", "c"])).expect("valid");
        let delivery = Delivery::new(Message::new(topic, "x"), input.qos());
        let lane = self.lanes[at].id;
        // Its window may be full, or it is not connected.
        if let Ok(Some(id)) = self.connection.publish_on(self.now, lane, delivery) {
            assert!(
                self.in_flight.insert(id),
                "{id:?} is in flight and used again"
            );
            assert!(!self.requests.contains(&id), "{id:?} is of a request");
        }
    }

    /// Makes a client's request, or a server's answer to one.
    fn ask_or_answer(&mut self, at: usize, input: &mut Input<'_>) {
        if self.is_server {
            if let Some((lane, id, count)) = self.subscribes.pop() {
                let _ = self.connection.suback(self.now, lane, suback(id, count));
            }
            if let Some((lane, id, count)) = self.unsubscribes.pop() {
                let ack = unsuback(id, count);
                let _ = self.connection.unsuback(self.now, lane, ack);
            }
            return;
        }
        if self.is_only_theirs(at) || self.is_only_own(at) || self.lanes[at].own_ended {
            return;
        }
        let one = Subscription {
            filter: TopicFilter::new("a").expect("valid"),
            options: input.qos().into(),
        };
        let lane = self.lanes[at].id;
        let properties = mq_codec::SubscribeProperties::default();
        let asked = self
            .connection
            .subscribe_on(self.now, lane, vec![one], properties);
        if let Ok(id) = asked {
            assert!(
                self.requests.insert(id),
                "{id:?} is of a request and used again"
            );
            assert!(!self.in_flight.contains(&id), "{id:?} is in flight");
        }
    }

    fn check(&mut self) {
        let was_closed = self.is_closed;
        while let Some(event) = self.connection.poll_event() {
            assert!(!self.is_closed, "{event:?} after Closed");
            self.check_event(event);
        }
        assert_eq!(self.is_closed, self.connection.is_closed());
        for at in 0..self.lanes.len() {
            self.read(at, was_closed);
        }
        let elsewhere = self.connection.outbox().next_data_lane(LaneId::CONTROL);
        assert_eq!(elsewhere, None, "a lane that has ended is written to");
        for at in 1..self.lanes.len() {
            let (only_own, only_theirs) = (self.is_only_own(at), self.is_only_theirs(at));
            let lane = &mut self.lanes[at];
            if (lane.peer_ended || only_own) && (lane.own_ended || only_theirs) {
                *lane = Lane::new(LaneId(lane.id.0 + GENERATION));
            }
        }
        self.check_limits();
    }

    fn check_event(&mut self, event: Event) {
        match event {
            Event::Publish(received) => {
                let Some(ticket) = received.ticket else {
                    return;
                };
                if received.qos == QoS::AtLeastOnce
                    && let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == received.lane)
                {
                    lane.due.push_back(ticket.packet_id());
                }
                self.tickets.push((received.lane, received.qos, ticket));
            }
            Event::Subscribe { lane, subscribe } => {
                let count = subscribe.subscriptions.len();
                self.subscribes.push((lane, subscribe.packet_id, count));
            }
            Event::Unsubscribe { lane, unsubscribe } => {
                let count = unsubscribe.filters.len();
                self.unsubscribes.push((lane, unsubscribe.packet_id, count));
            }
            Event::Acked { packet_id, .. } => {
                assert!(self.in_flight.remove(&packet_id), "{packet_id:?} ends once");
            }
            Event::SubAck(mq_codec::SubAck { packet_id, .. })
            | Event::UnsubAck(mq_codec::UnsubAck { packet_id, .. })
            | Event::RequestLost { packet_id } => {
                assert!(self.requests.remove(&packet_id), "{packet_id:?} ends once");
            }
            Event::LaneFailed { lane, .. } => assert_ne!(lane, LaneId::CONTROL),
            Event::Closed(_) => self.is_closed = true,
            _ => {}
        }
    }

    /// Reads what this end has written on a lane.
    fn read(&mut self, at: usize, was_closed: bool) {
        let id = self.lanes[at].id;
        let mut written = BytesMut::new();
        while let Some(chunk) = self.connection.outbox().take(id) {
            assert!(!was_closed, "{id} goes on after Closed");
            written.extend_from_slice(&chunk.bytes);
        }
        assert!(
            written.is_empty() || !self.is_only_theirs(at),
            "{id} is only the peer's"
        );
        let is_own = match id {
            LaneId::CONTROL => !self.is_server,
            id => id.is_server_opened() == self.is_server,
        };
        if self.has_flows && is_own && !written.is_empty() && !self.lanes[at].has_head {
            self.lanes[at].has_head = true;
            let head = head_length(&written, id == LaneId::CONTROL);
            let _ = written.split_to(head);
        }
        while let Some(packet) = self
            .reader
            .decode(&mut written)
            .expect("what is sent can be read")
        {
            let Packet::PubAck(ack) = packet else {
                continue;
            };
            let id = ack.packet_id;
            let left = self.may_leave.get_mut(&id).filter(|left| **left > 0);
            *left.unwrap_or_else(|| panic!("PUBACK {id:?} without its ticket")) -= 1;
            if at > 0 {
                let next = self.lanes[at].due.pop_front();
                assert_eq!(next, Some(id), "PUBACK in the order of the messages");
            }
        }
        assert!(written.is_empty(), "whole packets are sent");
        match self.connection.outbox().take_end(id) {
            Some(LaneEnd::Finish) => self.lanes[at].own_ended = true,
            Some(LaneEnd::Abort(_)) => {
                self.lanes[at].own_ended = true;
                self.lanes[at].peer_ended = true;
            }
            None => {}
        }
    }

    fn check_limits(&self) {
        let (end, lanes) = (&self.connection, &self.lanes);
        // As many may wait for flows.
        let most = if self.has_flows { 2 * MAXIMUM } else { MAXIMUM };
        assert!(end.in_flight() <= most, "{} in flight", end.in_flight());
        assert!(end.window() <= MAXIMUM);
        if !self.is_closed {
            assert_eq!(end.in_flight(), self.in_flight.len());
        }
        let mut slack = 0;
        if self.version >= Version::V5 {
            let is_there = |id| lanes.iter().any(|lane| lane.id == id);
            let tickets = self.tickets.iter().filter(|(lane, ..)| is_there(*lane));
            assert!(tickets.count() <= MAXIMUM, "messages beyond the maximum");
            assert!(end.unacknowledged() <= MAXIMUM + self.answered);
        } else {
            slack = self.slack;
        }
        let held = end.held_bytes();
        let flows = if self.has_flows { HELD_BY_FLOWS } else { 0 };
        let most = lanes.len() * HELD_BY_LANE + flows + slack;
        assert!(held <= most, "{held} bytes are held, not {most}");
        if end.is_open() {
            for lane in lanes {
                let left = lane.buffer.len();
                assert!(
                    left < LARGEST as usize + LONGEST_HEAD,
                    "{left} bytes of {}",
                    lane.id
                );
            }
        }
    }
}

fn encoded(packet: &Packet, version: Version) -> Bytes {
    let mut bytes = BytesMut::new();
    // Some cannot be said in an old version.
    if packet.encode(version, &mut bytes).is_err() {
        bytes.clear();
    }
    bytes.freeze()
}

/// Returns the length of a flow's head that was written.
fn head_length(head: &[u8], is_control: bool) -> usize {
    if is_control {
        return 3;
    }
    let mut length = 1;
    for _ in 0..2 {
        length += 1 << (head[length] >> 6);
    }
    length + 1
}

/// Makes the head of a flow as mqtt5 and the MQTT-next draft have it: its type, an identifier and an expiry as
/// variable-length integers of any length, flags.
fn flow_head(input: &mut Input<'_>) -> Vec<u8> {
    let mut head = vec![input.pick(&[0x12, 0x13, 0x12, 0x13, 0x11, 0x14])];
    for _ in 0..2 {
        let first = input.byte();
        head.push(first);
        head.extend((1..1_usize << (first >> 6)).map(|_| first));
    }
    head.push(input.byte());
    head
}
