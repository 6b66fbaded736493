//! A client's or a server's connection whose peer and owner do whatever the input says.
//!
//! Each step is an operation and its arguments, a few bytes. Packets are well formed, so that they reach
//! the session; malformed ones are for the codec's own target. The test demands no panic, at most one
//! `Closed` with nothing behind it, and an outbox that the other role can read.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use mq_codec::{
    Ack, Auth, AuthProperties, ByteStr, ConnAck, Connect, Decoder, Disconnect, Packet, PacketId,
    ReasonCode, Subscription, TopicFilter, TopicName, Unsubscribe, Version,
};
use mq_proto::{
    AckTicket, ClientConfig, Connection, Delivery, Event, LaneEnd, LaneId, Message, ServerConfig,
    Session,
};

#[path = "input.rs"]
mod input;

use input::{ANSWERS, Input, publish, suback, subscribe, unsuback};

const VERSIONS: [Version; 3] = [Version::V3_1, Version::V3_1_1, Version::V5];
/// Bidirectional ones, and one that only the peer writes.
const DATA_LANES: [LaneId; 3] = [LaneId(4), LaneId(8), LaneId(2)];

/// The end under test.
struct End {
    connection: Connection,
    now: Instant,
    version: Version,
    tickets: Vec<AckTicket>,
    subscribes: Vec<(LaneId, PacketId, usize)>,
    unsubscribes: Vec<(LaneId, PacketId, usize)>,
    is_closed: bool,
    /// The lane on which the peer sends.
    lane: LaneId,
    /// Data lanes that this end has ended.
    ended: Vec<LaneId>,
    /// The peer's decoder, which reads what this end has written.
    reader: Decoder,
    written: BytesMut,
}

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let version = input.pick(&VERSIONS);
    let now = Instant::now();
    let name = ByteStr::new("c").expect("short");
    let is_server = input.byte().is_multiple_of(2);
    let small = core::num::NonZeroU16::new(3).expect("it is not 0");
    let mut connection = if is_server {
        Connection::server(
            now,
            ServerConfig {
                receive_maximum: small,
                max_inflight: small,
                topic_alias_maximum: 2,
                ..ServerConfig::default()
            },
        )
    } else {
        let mut config = ClientConfig::new(Connect::new(version, name.clone()));
        config.receive_maximum = small;
        Connection::client(now, config, Session::new())
    };
    if !is_server && connection.connect(now).is_err() {
        return;
    }
    let mut end = End {
        connection,
        now,
        version,
        tickets: Vec::new(),
        subscribes: Vec::new(),
        unsubscribes: Vec::new(),
        is_closed: false,
        lane: LaneId::CONTROL,
        ended: Vec::new(),
        reader: Decoder::new((!is_server).then_some(version), u32::MAX),
        written: BytesMut::new(),
    };
    if is_server {
        // The answers can be read from CONNECT's version on.
        end.reader = Decoder::new(Some(version), u32::MAX);
        end.hear(&Packet::from(Connect::new(version, name)));
    }
    while !input.0.is_empty() {
        end.step(&mut input, is_server);
        end.check();
    }
    let _ = end.connection.into_session();
}

impl End {
    fn step(&mut self, input: &mut Input<'_>, is_server: bool) {
        self.lane = match input.byte() % 8 {
            at @ 0..3 => DATA_LANES[usize::from(at)],
            _ => LaneId::CONTROL,
        };
        if self.ended.contains(&self.lane) {
            self.lane = LaneId::CONTROL;
        }
        if input.byte().is_multiple_of(2) {
            self.hear_something(input);
        } else {
            self.command(input, is_server);
        }
    }

    /// Takes a step of the peer: a packet, chosen by the input.
    fn hear_something(&mut self, input: &mut Input<'_>) {
        match input.byte() % 11 {
            0 | 1 => {
                let packet = publish(input);
                self.hear(&packet);
            }
            2 => {
                let ack = Ack::new(input.packet_id(), input.reason());
                let packet = input.pick(&[0, 1, 2, 3]);
                self.hear(&match packet {
                    0 => Packet::PubAck(ack),
                    1 => Packet::PubRec(ack),
                    2 => Packet::PubRel(ack),
                    _ => Packet::PubComp(ack),
                });
            }
            3 => {
                let packet = subscribe(input);
                self.hear(&packet);
            }
            4 => {
                let filters = vec![TopicFilter::new("a").expect("valid")];
                self.hear(&Packet::Unsubscribe(Unsubscribe {
                    packet_id: input.packet_id(),
                    filters,
                    properties: mq_codec::UnsubscribeProperties::default(),
                }));
            }
            5 => {
                let ack = suback(input.packet_id(), usize::from(input.byte() % 3));
                self.hear(&Packet::SubAck(Box::new(ack)));
            }
            6 => {
                let ack = unsuback(input.packet_id(), usize::from(input.byte() % 3));
                self.hear(&Packet::UnsubAck(Box::new(ack)));
            }
            7 => {
                let mut ack = ConnAck::new(input.reason());
                ack.session_present = input.byte().is_multiple_of(2);
                self.hear(&Packet::from(ack));
            }
            8 => {
                let packet = input.pick(&[0, 1, 2]);
                self.hear(&match packet {
                    0 => Packet::PingReq,
                    1 => Packet::PingResp,
                    _ => Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success))),
                });
            }
            9 => self.hear(&Packet::Auth(Box::new(auth(input)))),
            _ => {
                // Bytes that are no packet, or a part of one.
                let mut raw = BytesMut::from(&[input.byte(), input.byte(), input.byte()][..]);
                self.connection.handle_bytes(self.now, self.lane, &mut raw);
            }
        }
    }

    /// Takes a step of the owner: a call, chosen by the input.
    fn command(&mut self, input: &mut Input<'_>, is_server: bool) {
        match input.byte() % 9 {
            0 | 1 => {
                if !self.tickets.is_empty() {
                    let index = usize::from(input.byte()) % self.tickets.len();
                    let ticket = self.tickets.swap_remove(index);
                    let answer = input.pick(&ANSWERS);
                    self.connection.ack(self.now, ticket, answer);
                }
            }
            2 | 3 => {
                let topic = TopicName::new(input.pick(&["a", "b", "c"])).expect("valid");
                let delivery = Delivery::new(Message::new(topic, "x"), input.qos());
                // Its window may be full, or it is not connected.
                let lane = match self.lane {
                    lane if lane.is_unidirectional() => LaneId::CONTROL,
                    lane => lane,
                };
                let _ = self.connection.publish_on(self.now, lane, delivery);
            }
            4 if is_server => {
                let mut ack = ConnAck::new(ReasonCode::Success);
                ack.session_present = input.byte().is_multiple_of(2);
                let _ = self.connection.accept(self.now, Session::new(), ack);
                let mut rest = BytesMut::new();
                self.connection
                    .handle_bytes(self.now, LaneId::CONTROL, &mut rest);
            }
            4 => {
                let one = Subscription {
                    filter: TopicFilter::new("a").expect("valid"),
                    options: input.qos().into(),
                };
                let properties = mq_codec::SubscribeProperties::default();
                let _ = self.connection.subscribe(self.now, vec![one], properties);
            }
            5 => {
                if let Some((lane, id, count)) = self.subscribes.pop() {
                    let _ = self.connection.suback(self.now, lane, suback(id, count));
                }
                if let Some((lane, id, count)) = self.unsubscribes.pop() {
                    let _ = self
                        .connection
                        .unsuback(self.now, lane, unsuback(id, count));
                }
            }
            6 => {
                self.now += Duration::from_secs(input.byte().into());
                self.connection.handle_timeout(self.now);
            }
            7 => {
                let _ = self.connection.auth(self.now, auth(input));
            }
            _ => match input.byte() % 8 {
                0 => self
                    .connection
                    .disconnect(Disconnect::new(ReasonCode::Success)),
                1 => {
                    let answer = input.pick(&ANSWERS[1..]);
                    self.connection.refuse(ConnAck::new(answer));
                }
                2 => self.connection.handle_link_lost(),
                3 | 4 if self.lane != LaneId::CONTROL => {
                    let how = match input.byte() {
                        byte if byte.is_multiple_of(2) => LaneEnd::Finish,
                        byte => LaneEnd::Abort(byte.into()),
                    };
                    self.connection.handle_lane_closed(self.now, self.lane, how);
                    self.connection
                        .handle_bytes(self.now, self.lane, &mut BytesMut::new());
                    if how != LaneEnd::Finish {
                        self.ended.push(self.lane);
                    }
                }
                5 if self.lane != LaneId::CONTROL => self.connection.finish_lane(self.lane),
                _ => self.connection.excuse_silence(self.now),
            },
        }
    }

    fn hear(&mut self, packet: &Packet) {
        let mut bytes = BytesMut::new();
        // Some cannot be said in an old version.
        if packet.encode(self.version, &mut bytes).is_ok() {
            self.connection
                .handle_bytes(self.now, self.lane, &mut bytes);
        }
    }

    fn check(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            assert!(!self.is_closed, "{event:?} after Closed");
            match event {
                Event::Publish(received) => self.tickets.extend(received.ticket),
                Event::Subscribe { lane, subscribe } => {
                    let count = subscribe.subscriptions.len();
                    self.subscribes.push((lane, subscribe.packet_id, count));
                }
                Event::Unsubscribe { lane, unsubscribe } => {
                    let count = unsubscribe.filters.len();
                    self.unsubscribes.push((lane, unsubscribe.packet_id, count));
                }
                Event::Closed(_) => self.is_closed = true,
                _ => {}
            }
        }
        assert_eq!(self.is_closed, self.connection.is_closed());
        for lane in [LaneId::CONTROL].into_iter().chain(DATA_LANES) {
            while let Some(chunk) = self.connection.outbox().take(lane) {
                self.written.extend_from_slice(&chunk.bytes);
            }
            while let Some(packet) = self
                .reader
                .decode(&mut self.written)
                .expect("what is sent can be read")
            {
                drop(packet);
            }
            assert!(self.written.is_empty(), "whole packets are sent");
            if self.connection.outbox().take_end(lane).is_some() {
                self.ended.push(lane);
            }
        }
        assert!(
            self.connection.outbox().is_empty(),
            "nothing waits elsewhere"
        );
    }
}

fn auth(input: &mut Input<'_>) -> Auth {
    let reason = input.pick(&[
        ReasonCode::Success,
        ReasonCode::ContinueAuthentication,
        ReasonCode::ReAuthenticate,
    ]);
    let properties = AuthProperties {
        authentication_method: Some(ByteStr::new("m").expect("short")),
        ..AuthProperties::default()
    };
    Auth { reason, properties }
}
