//! Valid packets, cut and mutated: decoding never panics, chunks change nothing, and whatever is
//! decoded is encoded and decoded to the same.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "random bits are cut to size"
)]

use bytes::BytesMut;
use mq_codec::{
    Ack, Auth, ByteStr, ConnAck, Connect, Decoder, Disconnect, Packet, PacketId, Publish, QoS,
    ReasonCode, RetainHandling, SubAck, Subscribe, Subscription, SubscriptionId,
    SubscriptionOptions, TopicFilter, TopicName, UnsubAck, Unsubscribe, Version, Will,
};

const MUTATIONS: usize = 20_000;
const VERSIONS: [Version; 3] = [Version::V3_1, Version::V3_1_1, Version::V5];

/// `SplitMix64`: small, seeded, and the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn one<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.coin().then(|| value(self))
    }

    fn text(&mut self) -> ByteStr {
        let length = self.one(&[0, 1, 5, 30, 31, 32, 200]);
        let letters: String = (0..length)
            .map(|_| self.one(&['a', 'ü', '/', '€', 'Z']))
            .collect();
        ByteStr::new(letters).unwrap()
    }

    fn topic(&mut self) -> TopicName {
        TopicName::new(format!("t{}", self.text())).unwrap()
    }

    fn filter(&mut self) -> TopicFilter {
        let filter = self.one(&["#", "+/a", "a/b", "$share/g/+/x", "$SYS/#"]);
        TopicFilter::new(filter).unwrap()
    }

    fn id(&mut self) -> PacketId {
        PacketId::new(u16::try_from(1 + self.below(65_535)).unwrap()).unwrap()
    }

    fn qos(&mut self) -> QoS {
        self.one(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
    }

    fn user_properties(&mut self) -> Vec<(ByteStr, ByteStr)> {
        (0..self.one(&[0, 0, 1, 3]))
            .map(|_| (self.text(), self.text()))
            .collect()
    }

    fn binary(&mut self) -> bytes::Bytes {
        let length = self.one(&[0, 1, 20, 127, 128, 300]);
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

fn publish(rng: &mut Rng, v5: bool) -> Publish {
    let mut publish = Publish::new(rng.topic(), rng.binary());
    publish.qos = rng.qos();
    publish.retain = rng.coin();
    if publish.qos > QoS::AtMostOnce {
        publish.dup = rng.coin();
        publish.packet_id = Some(rng.id());
    }
    if v5 && rng.coin() {
        let p = &mut *publish.properties;
        p.payload_is_utf8 = rng.maybe(Rng::coin);
        p.message_expiry_interval = rng.maybe(|rng| rng.next() as u32);
        p.topic_alias = rng.maybe(|rng| rng.next() as u16);
        p.response_topic = rng.maybe(|rng| rng.topic().as_byte_str().clone());
        p.correlation_data = rng.maybe(Rng::binary);
        p.content_type = rng.maybe(Rng::text);
        p.user_properties = rng.user_properties();
        p.subscription_ids = rng
            .maybe(|_| SubscriptionId::new(300))
            .flatten()
            .into_iter()
            .collect();
        if p.topic_alias.is_some() && rng.coin() {
            publish.topic = TopicName::empty();
        }
    }
    publish
}

fn connect(rng: &mut Rng, version: Version) -> Connect {
    let v5 = version == Version::V5;
    let mut connect = Connect::new(version, rng.text());
    connect.clean_start = rng.coin();
    connect.keep_alive = rng.next() as u16;
    connect.user_name = rng.maybe(Rng::text);
    if v5 || connect.user_name.is_some() {
        connect.password = rng.maybe(Rng::binary);
    }
    connect.will = rng.maybe(|rng| Will {
        topic: rng.topic(),
        payload: rng.binary(),
        qos: rng.qos(),
        retain: rng.coin(),
        properties: mq_codec::WillProperties::default(),
    });
    if v5 {
        if let Some(will) = &mut connect.will {
            will.properties.will_delay_interval = rng.maybe(|rng| rng.next() as u32);
            will.properties.user_properties = rng.user_properties();
        }
        let p = &mut connect.properties;
        p.session_expiry_interval = rng.maybe(|rng| rng.next() as u32);
        p.receive_maximum = rng.maybe(|_| core::num::NonZeroU16::MAX);
        p.maximum_packet_size = rng.maybe(|_| core::num::NonZeroU32::MIN);
        p.request_problem_information = rng.maybe(Rng::coin);
        p.authentication_method = rng.maybe(Rng::text);
        if p.authentication_method.is_some() {
            p.authentication_data = rng.maybe(Rng::binary);
        }
        p.user_properties = rng.user_properties();
    }
    connect
}

/// A valid packet that `version` can say in full.
#[expect(clippy::too_many_lines, reason = "one arm a packet type")]
fn packet(rng: &mut Rng, version: Version) -> Packet {
    let v5 = version == Version::V5;
    let refusal = if v5 {
        ReasonCode::QuotaExceeded
    } else {
        ReasonCode::UnspecifiedError
    };
    let ack = |rng: &mut Rng, errors: bool| {
        let reason = if v5 && errors && rng.coin() {
            refusal
        } else {
            ReasonCode::Success
        };
        let mut ack = Ack::new(rng.id(), reason);
        if v5 && rng.coin() {
            ack.properties.reason_string = rng.maybe(Rng::text);
            ack.properties.user_properties = rng.user_properties();
        }
        ack
    };
    match rng.below(if v5 { 15 } else { 14 }) {
        0 => connect(rng, version).into(),
        1 => {
            let mut packet =
                ConnAck::new(rng.one(&[ReasonCode::Success, ReasonCode::NotAuthorized]));
            packet.session_present =
                version > Version::V3_1 && !packet.reason.is_error() && rng.coin();
            if v5 {
                packet.properties.maximum_qos = rng.maybe(|_| QoS::AtLeastOnce);
                packet.properties.assigned_client_identifier = rng.maybe(Rng::text);
                packet.properties.server_keep_alive = rng.maybe(|rng| rng.next() as u16);
                packet.properties.user_properties = rng.user_properties();
            }
            packet.into()
        }
        2 => publish(rng, v5).into(),
        3 => Packet::PubAck(ack(rng, true)),
        4 => Packet::PubRec(ack(rng, true)),
        5 => Packet::PubRel(ack(rng, false)),
        6 => Packet::PubComp(ack(rng, false)),
        7 => {
            let subscriptions = (0..=rng.below(3)).map(|_| {
                let filter = rng.filter();
                let mut options = SubscriptionOptions::from(rng.qos());
                if v5 {
                    options.no_local = filter.shared().is_none() && rng.coin();
                    options.retain_as_published = rng.coin();
                    options.retain_handling =
                        rng.one(&[RetainHandling::Send, RetainHandling::DoNotSend]);
                }
                Subscription { filter, options }
            });
            let subscriptions = subscriptions.collect();
            let mut properties = mq_codec::SubscribeProperties::default();
            if v5 {
                properties.subscription_id = rng.maybe(|_| SubscriptionId::new(7)).flatten();
            }
            Packet::Subscribe(Subscribe {
                packet_id: rng.id(),
                subscriptions,
                properties,
            })
        }
        8 => Packet::SubAck(Box::new(SubAck {
            packet_id: rng.id(),
            reasons: vec![ReasonCode::granted(rng.qos()), refusal],
            properties: mq_codec::SubAckProperties::default(),
        })),
        9 => Packet::Unsubscribe(Unsubscribe {
            packet_id: rng.id(),
            filters: vec![rng.filter(), rng.filter()],
            properties: mq_codec::UnsubscribeProperties::default(),
        }),
        10 => Packet::UnsubAck(Box::new(UnsubAck {
            packet_id: rng.id(),
            reasons: if v5 {
                vec![ReasonCode::NoSubscriptionExisted]
            } else {
                Vec::new()
            },
            properties: mq_codec::UnsubAckProperties::default(),
        })),
        11 => Packet::PingReq,
        12 => Packet::PingResp,
        13 => {
            let mut packet = Disconnect::new(ReasonCode::Success);
            if v5 {
                packet.reason = rng.one(&[ReasonCode::Success, ReasonCode::ServerBusy]);
                packet.properties.reason_string = rng.maybe(Rng::text);
            }
            Packet::Disconnect(Box::new(packet))
        }
        _ => {
            let properties = mq_codec::AuthProperties {
                authentication_method: Some(rng.text()),
                authentication_data: rng.maybe(Rng::binary),
                ..Default::default()
            };
            let reason = ReasonCode::ContinueAuthentication;
            Packet::Auth(Box::new(Auth { reason, properties }))
        }
    }
}

/// What the fuzz target does with arbitrary bytes; `chunk` is how many arrive at a time.
fn decode_any(version: Option<Version>, wire: &[u8], chunk: usize) -> Vec<Packet> {
    let mut decoder = Decoder::new(version, 1 << 16);
    let (mut buffer, mut packets) = (BytesMut::new(), Vec::new());
    for bytes in wire.chunks(chunk.max(1)) {
        buffer.extend_from_slice(bytes);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(packet)) => {
                    let version = decoder.version().unwrap();
                    let mut again = BytesMut::new();
                    packet.encode(version, &mut again).unwrap();
                    let result = Decoder::new(Some(version), u32::MAX).decode(&mut again);
                    assert_eq!(result, Ok(Some(packet.clone())));
                    assert!(again.is_empty());
                    packets.push(packet);
                }
                Ok(None) => break,
                Err(_) => return packets,
            }
        }
    }
    packets
}

#[test]
fn every_valid_packet_survives_the_wire_in_any_chunks() {
    let seed = 7;
    println!("seed {seed}");
    let mut rng = Rng(seed);
    for version in VERSIONS {
        for _ in 0..700 {
            let packets: Vec<_> = (0..4).map(|_| packet(&mut rng, version)).collect();
            let mut wire = BytesMut::new();
            for packet in &packets {
                packet.encode(version, &mut wire).unwrap();
            }
            for chunk in [usize::MAX, 1, 1 + rng.below(50)] {
                assert_eq!(decode_any(Some(version), &wire, chunk), packets);
            }
        }
    }
}

#[test]
fn mutations_of_valid_packets_never_panic_and_do_not_depend_on_chunks() {
    let seed = 11;
    println!("seed {seed}");
    let mut rng = Rng(seed);
    for _ in 0..MUTATIONS {
        let version = rng.one(&VERSIONS);
        let mut wire = BytesMut::new();
        packet(&mut rng, version)
            .encode(version, &mut wire)
            .unwrap();
        for _ in 0..=rng.below(4) {
            let at = rng.below(wire.len());
            match rng.below(3) {
                0 => wire[at] ^= 1 << rng.below(8),
                1 => wire[at] = rng.next().to_le_bytes()[0],
                _ => wire.truncate(at.max(1)),
            }
        }
        let known = rng.coin().then_some(version);
        let whole = decode_any(known, &wire, usize::MAX);
        let chunk = 1 + rng.below(9);
        assert_eq!(decode_any(known, &wire, chunk), whole, "{wire:02x?}");
    }
}
