//! The codec of rumqttc reads what this one writes as the same packet, and the other way round.
//!
//! rumqttc knows 3.1.1 and 5.0. Where it is wrong, packets are changed before they are compared, in
//! one place each, and [`the_known_defects_of_rumqttc_are_still_there`] fails when a release mends
//! one, so that no restriction outlives its reason.

use bytes::{Bytes, BytesMut};
use mq_codec::{
    ByteStr, Connect, Decoder, Disconnect, Packet, Publish, ReasonCode, SubscriptionId, TopicName,
    Version,
};
use proptest::prelude::*;
use rumqttc::{mqttbytes::v4, v5::mqttbytes::v5};

use crate::{
    rumqttc_packet::{v4::of as of_v4, v5::of as of_v5},
    runner::check,
    strategies,
};

const CASES: u32 = 2_000;
const LIMIT: u32 = 1 << 24;

fn wire(packet: &Packet, version: Version) -> BytesMut {
    let mut wire = BytesMut::new();
    packet.encode(version, &mut wire).unwrap();
    wire
}

fn read_by_us(mut wire: BytesMut, version: Version) -> Option<Packet> {
    let packet = Decoder::new(Some(version), LIMIT).decode(&mut wire).ok()?;
    packet.filter(|_| wire.is_empty())
}

fn read_by_v4(mut wire: BytesMut) -> Option<v4::Packet> {
    let packet = v4::Packet::read(&mut wire, LIMIT as usize).ok()?;
    wire.is_empty().then_some(packet)
}

fn read_by_v5(mut wire: BytesMut) -> Option<v5::Packet> {
    let packet = v5::Packet::read(&mut wire, Some(LIMIT)).ok()?;
    wire.is_empty().then_some(packet)
}

fn written_by_v4(packet: &v4::Packet) -> BytesMut {
    let mut wire = BytesMut::new();
    packet.write(&mut wire, LIMIT as usize).unwrap();
    wire
}

fn written_by_v5(packet: &v5::Packet) -> BytesMut {
    let mut wire = BytesMut::new();
    packet.write(&mut wire, Some(LIMIT)).unwrap();
    wire
}

/// Generates any packet without the fields that rumqttc can neither read nor write.
fn packet(version: Version) -> impl Strategy<Value = Packet> {
    let packets = strategies::packet(version).prop_filter("rumqttc has no AUTH", |packet| {
        // It refuses packet type 15 when it reads, and counts the length of AUTH without the
        // length of its strings when it writes.
        !matches!(packet, Packet::Auth(_))
    });
    packets.prop_map(|mut packet| {
        match &mut packet {
            Packet::Connect(connect) => {
                without_odd_login(connect);
                // A convention of brokers, which the standard does not have.
                connect.is_bridge = false;
            }
            // Table 2-6 of the specification lets DISCONNECT have it, §3.14.2.1 does not list it.
            // rumqttc goes by the latter, which is no defect.
            Packet::Disconnect(disconnect)
                if disconnect.reason == ReasonCode::BadAuthenticationMethod =>
            {
                disconnect.reason = ReasonCode::NotAuthorized;
            }
            _ => {}
        }
        packet
    })
}

/// Removes a user name or password that rumqttc cannot hold: it holds the password as text, though MQTT lets it be any
/// bytes (§3.1.3.6), and takes an empty user name or password for one that is not there.
fn without_odd_login(connect: &mut Connect) {
    let text = |bytes: &Bytes| core::str::from_utf8(bytes).is_ok_and(|text| !text.is_empty());
    if connect
        .password
        .as_ref()
        .is_some_and(|password| !text(password))
    {
        connect.password = Some(Bytes::from_static(b"password"));
    }
    if connect
        .user_name
        .as_ref()
        .is_some_and(mq_codec::ByteStr::is_empty)
    {
        connect.user_name = Some(ByteStr::new("name").unwrap());
    }
}

/// Replaces the parts of an MQTT 5.0 packet that rumqttc cannot read.
fn readable_by_v5(mut packet: Packet) -> Packet {
    match &mut packet {
        // Each subscription identifier is counted as one byte more than it has, so that after
        // several the last properties are taken for the payload.
        Packet::Publish(publish) => {
            publish.properties.subscription_ids.truncate(1);
        }
        // A DISCONNECT without properties is refused, with the reason code and without: the
        // length of the properties may be left out (§3.14.2.2.1), but is read.
        Packet::Disconnect(disconnect) if disconnect.properties.is_empty() => {
            disconnect.properties.session_expiry_interval = Some(7);
        }
        _ => {}
    }
    packet
}

/// Replaces the parts of an MQTT 5.0 packet that rumqttc cannot write.
fn writable_by_v5(mut packet: Packet) -> Packet {
    if let Packet::Disconnect(disconnect) = &mut packet {
        // With a reason code and no properties it is a byte longer than it announces. With a set
        // of properties that is empty it has the length 2, which is taken for a normal
        // disconnection: the reason code is left out.
        let plain = disconnect.reason == ReasonCode::Success;
        if disconnect.properties.is_empty() && !plain {
            disconnect.properties.session_expiry_interval = Some(7);
        }
    }
    packet
}

#[test]
fn rumqttc_reads_what_we_write_in_3_1_1() {
    check(CASES, &packet(Version::V3_1_1), |packet| {
        let read = read_by_v4(wire(&packet, Version::V3_1_1));
        assert_eq!(read, Some(of_v4(&packet)));
        // rumqttc prints of a payload only its length, but compares all of it.
    });
}

#[test]
fn we_read_what_rumqttc_writes_in_3_1_1() {
    check(CASES, &packet(Version::V3_1_1), |packet| {
        let wire = written_by_v4(&of_v4(&packet));
        assert_eq!(read_by_us(wire, Version::V3_1_1), Some(packet));
    });
}

#[test]
fn rumqttc_reads_what_we_write_in_5() {
    check(CASES, &packet(Version::V5), |packet| {
        let packet = readable_by_v5(packet);
        let read = read_by_v5(wire(&packet, Version::V5));
        assert_eq!(read, Some(of_v5(&packet)));
    });
}

#[test]
fn we_read_what_rumqttc_writes_in_5() {
    check(CASES, &packet(Version::V5), |packet| {
        let packet = writable_by_v5(packet);
        let wire = written_by_v5(&of_v5(&packet));
        assert_eq!(read_by_us(wire, Version::V5), Some(packet));
    });
}

#[test]
fn the_known_defects_of_rumqttc_are_still_there() {
    // A password that is no text, and an empty user name; see `without_odd_login`.
    for version in [Version::V3_1_1, Version::V5] {
        let mut connect = Connect::new(version, ByteStr::empty());
        connect.user_name = Some(ByteStr::new("name").unwrap());
        connect.password = Some(Bytes::from_static(b"\xFF"));
        let wire = wire(&connect.into(), version);
        assert!(read_by_v4(wire.clone()).is_none() && read_by_v5(wire).is_none());
    }
    let mut connect = Connect::new(Version::V5, ByteStr::empty());
    connect.user_name = Some(ByteStr::empty());
    let read = read_by_v5(wire(&connect.into(), Version::V5));
    assert!(matches!(read, Some(v5::Packet::Connect(_, _, None))));

    // AUTH; see `packet`.
    assert!(read_by_v5(BytesMut::from(&b"\xF0\x06\x18\x04\x15\0\x01m"[..])).is_none());

    // Several subscription identifiers, and a short property after them; see `readable_by_v5`.
    let mut publish = Publish::new(TopicName::new("t").unwrap(), "");
    publish.properties.subscription_ids =
        [1, 2].into_iter().filter_map(SubscriptionId::new).collect();
    publish.properties.payload_is_utf8 = Some(true);
    let read = read_by_v5(wire(&publish.into(), Version::V5));
    assert!(matches!(read, Some(v5::Packet::Publish(publish)) if publish.payload.len() == 2));

    // DISCONNECT without properties; see `readable_by_v5` and `writable_by_v5`.
    for reason in [ReasonCode::Success, ReasonCode::ServerBusy] {
        let disconnect = Packet::Disconnect(Box::new(Disconnect::new(reason)));
        assert!(read_by_v5(wire(&disconnect, Version::V5)).is_none());
    }
    let mut busy = v5::Disconnect::new(v5::DisconnectReasonCode::ServerBusy);
    let wire = written_by_v5(&v5::Packet::Disconnect(busy.clone()));
    assert_eq!(wire, &b"\xE0\x01\x89\0"[..]);
    busy.properties = Some(v5::DisconnectProperties {
        session_expiry_interval: None,
        reason_string: None,
        user_properties: Vec::new(),
        server_reference: None,
    });
    let wire = written_by_v5(&v5::Packet::Disconnect(busy));
    assert_eq!(wire, &b"\xE0\0"[..]);
}
