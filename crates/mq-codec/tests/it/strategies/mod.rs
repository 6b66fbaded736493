//! Any packet of any version, with every field that the version can send.
//!
//! Structs are made field by field, never from a default: a field that the codec gains has to be
//! generated here before the tests compile again.

use core::{
    fmt::Debug,
    num::{NonZeroU16, NonZeroU32},
};

use bytes::Bytes;
use mq_codec::{
    Ack, AckProperties, Auth, AuthProperties, ByteStr, ConnAck, ConnAckProperties, Connect,
    ConnectProperties, Disconnect, DisconnectProperties, Empty, Packet, PacketId, PacketType,
    Publish, PublishProperties, QoS, ReasonCode, RetainHandling, Sparse, SubAck, SubAckProperties,
    Subscribe, SubscribeProperties, Subscription, SubscriptionId, SubscriptionOptions, TopicFilter,
    TopicName, UnsubAck, UnsubAckProperties, Unsubscribe, UnsubscribeProperties, Version, Will,
    WillProperties,
};
use proptest::{collection::vec, option::of, prelude::*, sample::select};

/// A strategy for a struct out of one for each of its fields.
macro_rules! fields {
    ($type:ident { $($field:ident: $strategy:expr),* $(,)? }) => {
        nested_strategy!($($strategy),*)
            .prop_map(|nested_pattern!($($field),*)| $type { $($field),* })
    };
}

/// `(a, (b, (c, ())))`: a tuple of strategies has at most twelve members, some structs have more.
macro_rules! nested_strategy {
    () => { Just(()) };
    ($first:expr $(, $rest:expr)*) => { ($first, nested_strategy!($($rest),*)) };
}

macro_rules! nested_pattern {
    () => { () };
    ($first:ident $(, $rest:ident)*) => { ($first, nested_pattern!($($rest),*)) };
}

/// Generates packets that `version` can say in full: what such a packet decodes to is what was encoded.
pub(crate) fn packet(version: Version) -> BoxedStrategy<Packet> {
    let ack = |packet, of: fn(Ack) -> Packet| ack(packet, version).prop_map(of).boxed();
    let mut packets = vec![
        connect(version).prop_map(Packet::from).boxed(),
        connack(version).prop_map(Packet::from).boxed(),
        publish(version).prop_map(Packet::from).boxed(),
        ack(PacketType::PubAck, Packet::PubAck),
        ack(PacketType::PubRec, Packet::PubRec),
        ack(PacketType::PubRel, Packet::PubRel),
        ack(PacketType::PubComp, Packet::PubComp),
        subscribe(version).prop_map(Packet::Subscribe).boxed(),
        suback(version).prop_map(Packet::SubAck).boxed(),
        unsubscribe(version).prop_map(Packet::Unsubscribe).boxed(),
        unsuback(version).prop_map(Packet::UnsubAck).boxed(),
        Just(Packet::PingReq).boxed(),
        Just(Packet::PingResp).boxed(),
        disconnect(version).prop_map(Packet::Disconnect).boxed(),
    ];
    if version == Version::V5 {
        packets.push(auth().prop_map(Packet::Auth).boxed());
    }
    proptest::strategy::Union::new(packets).boxed()
}

fn connect(version: Version) -> impl Strategy<Value = Connect> {
    let v5 = version == Version::V5;
    let connect = fields!(Connect {
        version: Just(version),
        is_bridge: any::<bool>().prop_map(move |is_bridge| is_bridge && !v5),
        client_id: text(),
        clean_start: any::<bool>(),
        keep_alive: any::<u16>(),
        will: of(will(version)),
        user_name: of(text()),
        password: of(binary()),
        properties: from_v5(version, connect_properties()),
    });
    connect.prop_map(move |mut connect| {
        // Before 5.0 a password needs a user name [MQTT-3.1.2-22].
        if !v5 && connect.user_name.is_none() {
            connect.password = None;
        }
        connect
    })
}

fn connect_properties() -> impl Strategy<Value = ConnectProperties> {
    let properties = fields!(ConnectProperties {
        session_expiry_interval: of(any::<u32>()),
        receive_maximum: of(any::<NonZeroU16>()),
        maximum_packet_size: of(any::<NonZeroU32>()),
        topic_alias_maximum: of(any::<u16>()),
        request_response_information: of(any::<bool>()),
        request_problem_information: of(any::<bool>()),
        user_properties: user_properties(),
        authentication_method: of(text()),
        authentication_data: of(binary()),
    });
    properties.prop_map(|mut properties| {
        // Data without a method is a protocol error (§3.1.2.11.10).
        if properties.authentication_method.is_none() {
            properties.authentication_data = None;
        }
        properties
    })
}

fn will(version: Version) -> impl Strategy<Value = Will> {
    let properties = fields!(WillProperties {
        will_delay_interval: of(any::<u32>()),
        payload_is_utf8: of(any::<bool>()),
        message_expiry_interval: of(any::<u32>()),
        content_type: of(text()),
        response_topic: of(response_topic()),
        correlation_data: of(binary()),
        user_properties: user_properties(),
    });
    fields!(Will {
        topic: topic(),
        payload: binary(),
        qos: qos(),
        retain: any::<bool>(),
        properties: from_v5(version, properties),
    })
}

fn connack(version: Version) -> impl Strategy<Value = ConnAck> {
    let reasons = match version {
        Version::V5 => reasons_of(PacketType::ConnAck),
        _ => (0..=5)
            .filter_map(ReasonCode::from_connect_return_code)
            .collect(),
    };
    let properties = fields!(ConnAckProperties {
        session_expiry_interval: of(any::<u32>()),
        receive_maximum: of(any::<NonZeroU16>()),
        maximum_qos: of(select(vec![QoS::AtMostOnce, QoS::AtLeastOnce])),
        retain_available: of(any::<bool>()),
        maximum_packet_size: of(any::<NonZeroU32>()),
        assigned_client_identifier: of(text()),
        topic_alias_maximum: of(any::<u16>()),
        reason_string: of(text()),
        user_properties: user_properties(),
        wildcard_subscription_available: of(any::<bool>()),
        subscription_identifiers_available: of(any::<bool>()),
        shared_subscription_available: of(any::<bool>()),
        server_keep_alive: of(any::<u16>()),
        response_information: of(text()),
        server_reference: of(text()),
        authentication_method: of(text()),
        authentication_data: of(binary()),
    });
    let connack = fields!(ConnAck {
        session_present: any::<bool>(),
        reason: mostly_success(reasons),
        properties: from_v5(version, properties),
    });
    connack.prop_map(move |mut connack| {
        // 3.1 has no such flag, and a refusal has no session [MQTT-3.2.2-6].
        connack.session_present &= version > Version::V3_1 && !connack.reason.is_error();
        connack
    })
}

fn publish(version: Version) -> impl Strategy<Value = Publish> {
    let properties = fields!(PublishProperties {
        payload_is_utf8: of(any::<bool>()),
        message_expiry_interval: of(any::<u32>()),
        topic_alias: of(any::<u16>()),
        response_topic: of(response_topic()),
        correlation_data: of(binary()),
        user_properties: user_properties(),
        subscription_ids: vec(subscription_id(), 0..4),
        content_type: of(text()),
    });
    let publish = fields!(Publish {
        dup: any::<bool>(),
        qos: qos(),
        retain: any::<bool>(),
        topic: prop_oneof![3 => topic(), 1 => Just(TopicName::empty())],
        packet_id: packet_id().prop_map(Some),
        properties: sparse(from_v5(version, properties)),
        payload: payload(),
    });
    publish.prop_map(move |mut publish| {
        if publish.qos == QoS::AtMostOnce {
            publish.packet_id = None;
            // 3.1 does not forbid it [MQTT-3.3.1-2].
            publish.dup &= version == Version::V3_1;
        }
        if publish.topic.is_empty() && publish.properties.topic_alias.is_none() {
            publish.topic = TopicName::new("t").expect("a letter");
        }
        publish
    })
}

fn ack(packet: PacketType, version: Version) -> impl Strategy<Value = Ack> {
    let properties = fields!(AckProperties {
        reason_string: of(text()),
        user_properties: user_properties(),
    });
    let reasons = match version {
        Version::V5 => reasons_of(packet),
        _ => vec![ReasonCode::Success],
    };
    fields!(Ack {
        packet_id: packet_id(),
        reason: mostly_success(reasons),
        properties: sparse(from_v5(version, properties)),
    })
}

fn subscribe(version: Version) -> impl Strategy<Value = Subscribe> {
    let properties = fields!(SubscribeProperties {
        subscription_id: of(subscription_id()),
        user_properties: user_properties(),
    });
    let options = fields!(SubscriptionOptions {
        qos: qos(),
        no_local: any::<bool>(),
        retain_as_published: any::<bool>(),
        retain_handling: select(vec![
            RetainHandling::Send,
            RetainHandling::SendIfNew,
            RetainHandling::DoNotSend,
        ]),
    });
    let subscription = fields!(Subscription {
        filter: filter(),
        options: options,
    });
    let subscription = subscription.prop_map(move |mut subscription| {
        if version < Version::V5 {
            subscription.options = subscription.options.qos.into();
        }
        // A protocol error on a shared subscription [MQTT-3.8.3-4].
        subscription.options.no_local &= subscription.filter.shared().is_none();
        subscription
    });
    fields!(Subscribe {
        packet_id: packet_id(),
        subscriptions: vec(subscription, 1..5),
        properties: from_v5(version, properties),
    })
}

fn suback(version: Version) -> impl Strategy<Value = Box<SubAck>> {
    let properties = fields!(SubAckProperties {
        reason_string: of(text()),
        user_properties: user_properties(),
    });
    let reasons = match version {
        Version::V5 => reasons_of(PacketType::SubAck),
        _ => vec![
            ReasonCode::Success,
            ReasonCode::GrantedQos1,
            ReasonCode::GrantedQos2,
            ReasonCode::UnspecifiedError,
        ],
    };
    fields!(SubAck {
        packet_id: packet_id(),
        reasons: vec(select(reasons), 1..5),
        properties: from_v5(version, properties),
    })
    .prop_map(Box::new)
}

fn unsubscribe(version: Version) -> impl Strategy<Value = Unsubscribe> {
    let properties = fields!(UnsubscribeProperties {
        user_properties: user_properties(),
    });
    fields!(Unsubscribe {
        packet_id: packet_id(),
        filters: vec(filter(), 1..5),
        properties: from_v5(version, properties),
    })
}

fn unsuback(version: Version) -> impl Strategy<Value = Box<UnsubAck>> {
    let properties = fields!(UnsubAckProperties {
        reason_string: of(text()),
        user_properties: user_properties(),
    });
    let reasons = select(reasons_of(PacketType::UnsubAck));
    let count = if version == Version::V5 { 1..5 } else { 0..1 };
    fields!(UnsubAck {
        packet_id: packet_id(),
        reasons: vec(reasons, count),
        properties: from_v5(version, properties),
    })
    .prop_map(Box::new)
}

fn disconnect(version: Version) -> impl Strategy<Value = Box<Disconnect>> {
    let properties = fields!(DisconnectProperties {
        session_expiry_interval: of(any::<u32>()),
        reason_string: of(text()),
        user_properties: user_properties(),
        server_reference: of(text()),
    });
    let reasons = match version {
        Version::V5 => reasons_of(PacketType::Disconnect),
        _ => vec![ReasonCode::Success],
    };
    fields!(Disconnect {
        reason: mostly_success(reasons),
        properties: from_v5(version, properties),
    })
    .prop_map(Box::new)
}

fn auth() -> impl Strategy<Value = Box<Auth>> {
    let properties = fields!(AuthProperties {
        authentication_method: text().prop_map(Some),
        authentication_data: of(binary()),
        reason_string: of(text()),
        user_properties: user_properties(),
    });
    let auth = fields!(Auth {
        reason: select(reasons_of(PacketType::Auth)),
        properties: properties,
    });
    // Only this one may leave the method out (§3.15.2.2.2).
    let plain = Just(Auth {
        reason: ReasonCode::Success,
        properties: AuthProperties::default(),
    });
    prop_oneof![4 => auth, 1 => plain].prop_map(Box::new)
}

/// Properties, or none; none at all before 5.0.
fn from_v5<T>(version: Version, properties: impl Strategy<Value = T> + 'static) -> BoxedStrategy<T>
where
    T: Default + Clone + Debug + 'static,
{
    let none = Just(T::default());
    if version == Version::V5 {
        prop_oneof![3 => properties, 1 => none].boxed()
    } else {
        none.boxed()
    }
}

/// Generates properties behind a pointer if there are any, and sometimes even if there are none: a
/// program that has borrowed them mutably need not have written to them.
fn sparse<T: Empty + Debug + PartialEq>(
    properties: impl Strategy<Value = T>,
) -> impl Strategy<Value = Sparse<T>> {
    (properties, any::<bool>()).prop_map(|(properties, touched)| {
        let mut sparse = Sparse::from(properties);
        if touched {
            let _: &mut T = &mut sparse;
        }
        sparse
    })
}

fn reasons_of(packet: PacketType) -> Vec<ReasonCode> {
    (0..=u8::MAX)
        .filter_map(ReasonCode::from_byte)
        .filter(|reason| reason.is_allowed_in(packet))
        .collect()
}

/// Success, which is written in another way in most packets, as often as all else together.
fn mostly_success(reasons: Vec<ReasonCode>) -> impl Strategy<Value = ReasonCode> {
    prop_oneof![Just(ReasonCode::Success), select(reasons)]
}

fn qos() -> impl Strategy<Value = QoS> {
    select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn packet_id() -> impl Strategy<Value = PacketId> {
    (1..=u16::MAX).prop_map(|id| PacketId::new(id).expect("not 0"))
}

/// Generates subscription identifiers: each length on the wire, one to four bytes, is equally likely.
fn subscription_id() -> impl Strategy<Value = SubscriptionId> {
    prop_oneof![
        1_u32..0x80,
        0x80_u32..0x4000,
        0x4000_u32..0x20_0000,
        0x20_0000..=mq_codec::MAX_REMAINING_LENGTH,
    ]
    .prop_map(|id| SubscriptionId::new(id).expect("in range"))
}

fn user_properties() -> impl Strategy<Value = Vec<(ByteStr, ByteStr)>> {
    vec((text(), text()), 0..4)
}

/// Lengths around those at which a string or the length of the properties is stored in another
/// way, seldom also the greatest that there is.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        200 => 0..8_usize,
        30 => 29..34_usize,
        20 => 120..132_usize,
        1 => 65_530..=65_535_usize,
    ]
}

/// Generates strings that repeat a few characters of one to four bytes, among them those with a meaning in topics.
fn letters() -> impl Strategy<Value = String> {
    let letters = vec![
        'a', 'b', '/', '+', '#', '$', '\u{1}', 'ü', '€', '\u{FEFF}', '😀',
    ];
    (vec(select(letters), 1..6), length()).prop_map(|(letters, length)| {
        let mut text = String::with_capacity(length);
        for letter in letters.iter().cycle() {
            if text.len() + letter.len_utf8() > length {
                break;
            }
            text.push(*letter);
        }
        text
    })
}

fn text() -> impl Strategy<Value = ByteStr> {
    letters().prop_map(|text| ByteStr::new(text).expect("no null, not too long"))
}

fn topic() -> impl Strategy<Value = TopicName> {
    letters().prop_map(|text| {
        let text = match text.replace(['+', '#'], "-") {
            text if text.is_empty() => "t".to_owned(),
            text => text,
        };
        TopicName::new(text).expect("no wildcard, not empty")
    })
}

fn response_topic() -> impl Strategy<Value = ByteStr> {
    topic().prop_map(|topic| topic.as_byte_str().clone())
}

fn filter() -> impl Strategy<Value = TopicFilter> {
    let level = prop_oneof![
        select(vec!["+", "", "a", "$SYS"]).prop_map(str::to_owned),
        topic().prop_map(|topic| topic.replace('/', "")),
    ];
    let end = select(vec!["", "/", "/+", "/#"]);
    let share = select(vec!["", "", "$share/g/", "$share/grüße/"]);
    (share, vec(level, 1..3), end).prop_map(|(share, levels, end)| {
        let filter = format!("{}{end}", levels.join("/"));
        let filter = if filter.is_empty() { "#" } else { &filter };
        // The greatest strings are too long together; the one that is asked for will do then.
        TopicFilter::new(format!("{share}{filter}"))
            .or_else(|_| TopicFilter::new("+/a"))
            .expect("a valid filter")
    })
}

fn binary() -> impl Strategy<Value = Bytes> {
    (vec(any::<u8>(), 1..6), length())
        .prop_map(|(bytes, length)| bytes.into_iter().cycle().take(length).collect())
}

/// Generates payloads up to the lengths at which the remaining length takes a third byte.
fn payload() -> impl Strategy<Value = Bytes> {
    let large = (any::<u8>(), 16_000..17_000_usize)
        .prop_map(|(byte, length)| Bytes::from(vec![byte; length]));
    prop_oneof![20 => binary(), 1 => large]
}
