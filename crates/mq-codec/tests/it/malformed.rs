//! Bytes that the specifications forbid, what they are refused with, and the reason code for it.

use std::fmt::Write as _;

use bytes::BytesMut;
use mq_codec::{
    DecodeError, Decoder, PacketType, ReasonCode, StringError, TopicErrorKind, TopicFilter,
    TopicName, Version,
    Version::{V3_1, V3_1_1, V5},
};

const LIMIT: u32 = 1 << 16;

/// Decodes bytes in hexadecimal; white space is for the reader.
fn hex(text: &str) -> BytesMut {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    assert!(digits.len().is_multiple_of(2), "{text}");
    let digit = |b: u8| char::from(b).to_digit(16).expect("a hexadecimal digit");
    digits
        .chunks(2)
        .map(|pair| u8::try_from(digit(pair[0]) << 4 | digit(pair[1])).expect("two digits"))
        .collect()
}

#[track_caller]
fn refused(
    version: impl Into<Option<Version>>,
    bytes: &str,
    error: &DecodeError,
    code: ReasonCode,
) {
    let mut decoder = Decoder::new(version.into(), LIMIT);
    assert_eq!(
        decoder.decode(&mut hex(bytes)).as_ref(),
        Err(error),
        "{bytes}"
    );
    assert_eq!(error.reason_code(), code, "{bytes}");
}

/// Checks a refusal like [`refused`], by the text of the error: what it says of a topic is in no other field.
#[track_caller]
fn refused_with_text(version: Version, bytes: &str, text: &str, code: ReasonCode) {
    let error = Decoder::new(Some(version), LIMIT).decode(&mut hex(bytes));
    let error = error.expect_err("a refused packet");
    assert_eq!(error.to_string(), text, "{bytes}");
    assert_eq!(error.reason_code(), code, "{bytes}");
}

#[track_caller]
fn taken(version: impl Into<Option<Version>>, bytes: &str) {
    let mut decoder = Decoder::new(version.into(), LIMIT);
    let mut buffer = hex(bytes);
    assert!(
        matches!(decoder.decode(&mut buffer), Ok(Some(_))),
        "{bytes}"
    );
    assert!(buffer.is_empty(), "{bytes}");
}

use DecodeError as E;
use ReasonCode::{MalformedPacket as MALFORMED, ProtocolError as PROTOCOL};

#[test]
fn a_length_of_more_than_four_bytes_is_refused() {
    refused(V5, "30 80808080", &E::VarintTooLong, MALFORMED);
    refused(V5, "30 80808080 01", &E::VarintTooLong, MALFORMED);
}

#[test]
fn a_length_with_needless_bytes_is_refused() {
    refused(V5, "C0 8000", &E::VarintNotMinimal, MALFORMED);
    refused(V5, "30 06 0001 61 8000 78", &E::VarintNotMinimal, MALFORMED);
}

#[test]
fn only_5_0_wants_the_shortest_length() {
    for version in [V3_1, V3_1_1] {
        taken(version, "C0 8000");
        taken(version, "C0 80808000");
        refused(version, "C0 8080808000", &E::VarintTooLong, MALFORMED);
    }
    taken(None, "10 8D00 0004 4D515454 04 02 003C 0001 61");
    let padded = "10 8E00 0004 4D515454 05 02 003C 00 0001 61";
    refused(None, padded, &E::VarintNotMinimal, MALFORMED);
}

#[test]
fn a_packet_over_the_limit_is_refused_before_its_body_arrives() {
    let error = E::PacketTooLarge {
        size: 65_537,
        limit: LIMIT,
    };
    refused(V5, "30 FDFF03", &error, ReasonCode::PacketTooLarge);
    let mut decoder = Decoder::new(Some(V5), LIMIT);
    assert_eq!(decoder.decode(&mut hex("30 FCFF03")), Ok(None));
    let largest = E::PacketTooLarge {
        size: 268_435_460,
        limit: LIMIT,
    };
    refused(V5, "30 FFFFFF7F", &largest, ReasonCode::PacketTooLarge);
}

#[test]
fn reserved_packet_types_are_refused() {
    refused(V5, "00 00", &E::ReservedPacketType(0), MALFORMED);
    for version in [V3_1, V3_1_1] {
        refused(version, "F0 00", &E::ReservedPacketType(15), MALFORMED);
    }
    taken(V5, "F0 00");
}

#[test]
fn the_first_packet_of_a_client_is_connect() {
    for (bytes, packet) in [
        ("C0 00", PacketType::PingReq),
        ("30 00", PacketType::Publish),
    ] {
        refused(None, bytes, &E::NotConnect(packet), PROTOCOL);
    }
}

#[test]
fn a_server_gets_nothing_that_only_servers_send() {
    for version in ["4D51 4973 6470 03", "4D51 5454 04", "4D51 5454 05"] {
        for (first, packet) in [
            ("20", PacketType::ConnAck),
            ("90", PacketType::SubAck),
            ("B0", PacketType::UnsubAck),
            ("D0", PacketType::PingResp),
        ] {
            let mut decoder = Decoder::new(None, LIMIT);
            let name = version.replace(' ', "").len() / 2 - 1;
            let properties = if version.ends_with('5') { "00" } else { "" };
            let body = format!("{name:04X} {version} 02 003C {properties} 0001 61");
            let length = hex(&body).len();
            let mut bytes = hex(&format!("10 {length:02X} {body} {first}"));
            assert!(decoder.decode(&mut bytes).unwrap().is_some());
            // No more of it is waited for.
            let error = decoder.decode(&mut bytes).unwrap_err();
            assert_eq!(error, E::FromServerOnly(packet));
            assert_eq!(error.reason_code(), PROTOCOL);
        }
    }
    taken(V5, "20 03 00 00 00");
}

#[test]
fn reserved_flags_are_refused() {
    for (bytes, packet, flags) in [
        ("11 00", PacketType::Connect, 1),
        ("22 02 0000", PacketType::ConnAck, 2),
        ("42 02 0001", PacketType::PubAck, 2),
        ("52 02 0001", PacketType::PubRec, 2),
        ("60 02 0001", PacketType::PubRel, 0),
        ("6A 02 0001", PacketType::PubRel, 10),
        ("72 02 0001", PacketType::PubComp, 2),
        ("80 06 0001 0001 61 00", PacketType::Subscribe, 0),
        ("91 03 0001 00", PacketType::SubAck, 1),
        ("A0 05 0001 0001 61", PacketType::Unsubscribe, 0),
        ("B1 02 0001", PacketType::UnsubAck, 1),
        ("C1 00", PacketType::PingReq, 1),
        ("D8 00", PacketType::PingResp, 8),
        ("E1 00", PacketType::Disconnect, 1),
    ] {
        let error = E::ReservedFlags { packet, flags };
        for version in [V3_1_1, V5] {
            refused(version, bytes, &error, MALFORMED);
        }
    }
    let error = E::ReservedFlags {
        packet: PacketType::Auth,
        flags: 1,
    };
    refused(V5, "F1 00", &error, MALFORMED);
}

#[test]
fn mqtt_3_1_uses_no_flags_but_qos_1_of_requests() {
    for flags in ["2", "3", "A", "B"] {
        taken(V3_1, &format!("6{flags} 02 0001"));
        taken(V3_1, &format!("8{flags} 06 0001 0001 61 00"));
        taken(V3_1, &format!("A{flags} 05 0001 0001 61"));
    }
    for bytes in ["49 02 0001", "5F 02 0001", "7F 02 0001", "C8 00", "E1 00"] {
        taken(V3_1, bytes);
    }
    let (packet, flags) = (PacketType::Subscribe, 0);
    let error = E::ReservedFlags { packet, flags };
    refused(V3_1, "80 06 0001 0001 61 00", &error, MALFORMED);
}

#[test]
fn the_flags_of_the_first_connect_are_judged_by_its_version() {
    let (packet, flags) = (PacketType::Connect, 9);
    let error = E::ReservedFlags { packet, flags };
    taken(None, "19 0F 0006 4D5149736470 03 02 003C 0001 61");
    refused(
        None,
        "19 0D 0004 4D515454 04 02 003C 0001 61",
        &error,
        MALFORMED,
    );
    refused(
        None,
        "19 0E 0004 4D515454 05 02 003C 00 0001 61",
        &error,
        MALFORMED,
    );
}

#[test]
fn qos_3_and_dup_with_qos_0_are_refused() {
    refused(V5, "36 03 0001 61", &E::ReservedQos, MALFORMED);
    refused(V5, "38 04 0001 61 00", &E::DupWithQos0, MALFORMED);
    refused(V3_1_1, "38 03 0001 61", &E::DupWithQos0, MALFORMED);
    taken(V3_1, "38 03 0001 61");
}

#[test]
fn packet_identifier_0_is_refused() {
    for (bytes, packet) in [
        ("32 06 0001 61 0000 00", PacketType::Publish),
        ("40 02 0000", PacketType::PubAck),
        ("62 02 0000", PacketType::PubRel),
        ("82 07 0000 00 0001 61 00", PacketType::Subscribe),
        ("90 04 0000 00 00", PacketType::SubAck),
        ("A2 06 0000 00 0001 61", PacketType::Unsubscribe),
        ("B0 04 0000 00 00", PacketType::UnsubAck),
    ] {
        refused(V5, bytes, &E::PacketIdZero(packet), PROTOCOL);
    }
}

#[test]
fn fields_end_inside_their_packet() {
    for (bytes, packet) in [
        ("10 00", PacketType::Connect),
        ("20 01 00", PacketType::ConnAck),
        ("30 01 00", PacketType::Publish),
        ("30 03 0002 61", PacketType::Publish),
        ("30 03 0001 61", PacketType::Publish),
        ("30 05 0001 61 02 01", PacketType::Publish),
        ("32 04 0001 61 00", PacketType::Publish),
        ("40 01 00", PacketType::PubAck),
        ("82 06 0001 00 0001 61", PacketType::Subscribe),
        ("90 03 0001 00", PacketType::SubAck),
        ("B0 03 0001 00", PacketType::UnsubAck),
        ("E0 03 00 02 11", PacketType::Disconnect),
    ] {
        refused(V5, bytes, &E::Truncated(packet), MALFORMED);
    }
}

#[test]
fn a_packet_ends_with_its_last_field() {
    for (version, bytes, packet) in [
        (V5, "C0 01 00", PacketType::PingReq),
        (V5, "D0 01 00", PacketType::PingResp),
        (V5, "20 04 00 00 00 00", PacketType::ConnAck),
        (V5, "40 05 0001 00 00 00", PacketType::PubAck),
        (V3_1_1, "40 03 0001 00", PacketType::PubAck),
        (V3_1_1, "B0 03 0001 00", PacketType::UnsubAck),
        (V3_1_1, "E0 01 00", PacketType::Disconnect),
        (
            V3_1_1,
            "10 0E 0004 4D515454 04 02 003C 0001 61 00",
            PacketType::Connect,
        ),
    ] {
        refused(version, bytes, &E::TrailingBytes(packet), MALFORMED);
    }
}

#[test]
fn strings_are_utf_8_without_the_null_character() {
    let string = |packet, error| E::String { packet, error };
    for (text, error) in [("ED", StringError::NotUtf8), ("00", StringError::Nul)] {
        let connect = format!("10 0D 0004 4D515454 04 02 003C 0001 {text}");
        refused(
            None,
            &connect,
            &string(PacketType::Connect, error),
            MALFORMED,
        );
        assert_eq!(
            string(PacketType::Connect, error).to_string(),
            format!("CONNECT: {error}")
        );
    }
    let not_utf8 = "a string is not well-formed UTF-8: byte 0xed at character";
    let nul = "a string contains the null character, which MQTT forbids: '\\0' at character";
    for (bytes, text) in [
        (
            "30 03 0001 ED",
            format!("the topic name is not valid: {not_utf8} 1 of \"\\xed\""),
        ),
        (
            "30 05 0003 EDA080",
            format!("the topic name is not valid: {not_utf8} 1 of \"\\xed\\xa0\\x80\""),
        ),
        (
            "30 05 0003 C3A400",
            format!("the topic name is not valid: {nul} 2 of \"ä\\0\""),
        ),
        (
            "82 06 0001 0001 ED 00",
            format!("the topic filter is not valid: {not_utf8} 1 of \"\\xed\""),
        ),
        (
            "82 07 0001 0002 6100 00",
            format!("the topic filter is not valid: {nul} 2 of \"a\\0\""),
        ),
        (
            "A2 06 0001 0002 6100",
            format!("the topic filter is not valid: {nul} 2 of \"a\\0\""),
        ),
    ] {
        refused_with_text(V3_1_1, bytes, &text, MALFORMED);
    }
}

/// The Disallowed Unicode code points of §1.5.4, and what stands next to them.
#[test]
fn control_characters_and_noncharacters_are_refused_on_request() {
    let planes = (0..=0x10).flat_map(|plane| [plane << 16 | 0xFFFE, plane << 16 | 0xFFFF]);
    let disallowed: Vec<u32> = (0x01..=0x1F)
        .chain(0x7F..=0x9F)
        .chain(0xFDD0..=0xFDEF)
        .chain(planes)
        .collect();
    let neighbours = disallowed.iter().flat_map(|code| [code - 1, code + 1]);
    let others = neighbours.filter(|code| *code > 0 && !disallowed.contains(code));
    for code in disallowed.iter().copied().chain(others) {
        let Some(character) = char::from_u32(code) else {
            continue;
        };
        let mut encoded = [0; 4];
        let encoded = character.encode_utf8(&mut encoded).bytes();
        let mut text = "616263".to_owned();
        encoded.for_each(|byte| write!(text, "{byte:02X}").unwrap());
        let size = text.len() / 2;
        let topic = format!("30 {:02X} 00{size:02X} {text} 00", size + 3);
        let content_type = format!(
            "30 {:02X} 0001 74 {:02X} 03 00{size:02X} {text}",
            size + 7,
            size + 3
        );
        let rule = StringError::Disallowed;
        let in_topic = format!(
            "the topic name is not valid: {rule}: '\\u{{{code:x}}}' at character 4 of \"abc\\u{{{code:x}}}\""
        );
        let in_property = format!("PUBLISH: {rule}");
        for (bytes, text) in [(topic, in_topic), (content_type, in_property)] {
            taken(V5, &bytes);
            let mut decoder = Decoder::new(Some(V5), LIMIT);
            decoder.refuse_disallowed_characters();
            // `\t`, `\n` and `\r` have an escape of their own.
            let text = text.replace("\\u{9}", "\\t").replace("\\u{a}", "\\n");
            let expected = disallowed
                .contains(&code)
                .then(|| text.replace("\\u{d}", "\\r"));
            let error = decoder.decode(&mut hex(&bytes)).err();
            assert_eq!(error.as_ref().map(E::to_string), expected, "{code:#x}");
            assert!(error.is_none_or(|error| error.reason_code() == MALFORMED));
        }
    }
}

#[test]
fn topic_names_have_no_wildcards_and_no_holes() {
    let rule = "a topic name must not contain the wildcards + and #";
    for (version, bytes, field, shown) in [
        (
            V3_1_1,
            "30 03 0001 23",
            "topic name",
            "'#' at character 1 of \"#\"",
        ),
        (
            V3_1_1,
            "30 05 0003 612F2B",
            "topic name",
            "'+' at character 3 of \"a/+\"",
        ),
        (
            V3_1_1,
            "10 12 0004 4D515454 04 06 003C 0001 61 0001 23 0000",
            "Will Topic",
            "'#' at character 1 of \"#\"",
        ),
        (
            V5,
            "30 08 0001 61 04 08 0001 23",
            "Response Topic",
            "'#' at character 1 of \"#\"",
        ),
        (
            V5,
            "10 18 0004 4D515454 05 06 003C 00 0001 61 04 08 0001 23 0001 61 0000",
            "Response Topic",
            "'#' at character 1 of \"#\"",
        ),
    ] {
        let text = format!("the {field} is not valid: {rule}: {shown}");
        refused_with_text(version, bytes, &text, PROTOCOL);
    }
    refused(V3_1_1, "30 02 0000", &E::NoTopic, PROTOCOL);
    refused(V5, "30 03 0000 00", &E::NoTopic, PROTOCOL);
    taken(V5, "30 06 0000 03 23 0001");
    let no_will_topic = "10 11 0004 4D515454 04 06 003C 0001 61 0000 0000";
    let error = E::WillTopic(TopicName::new("").unwrap_err());
    refused(None, no_will_topic, &error, PROTOCOL);
}

#[test]
fn topic_filters_are_well_formed() {
    for (filter, kind) in [
        ("", TopicErrorKind::Empty),
        ("a#", TopicErrorKind::MultiLevelWildcard),
        ("#/a", TopicErrorKind::MultiLevelWildcard),
        ("a+", TopicErrorKind::SingleLevelWildcard),
        ("$share/g", TopicErrorKind::Shared),
        ("$share//a", TopicErrorKind::Shared),
        ("$share/#/a", TopicErrorKind::Shared),
    ] {
        let digits = filter
            .bytes()
            .fold(String::new(), |digits, b| digits + &format!("{b:02X}"));
        let length = filter.len();
        let error = TopicFilter::new(filter).unwrap_err();
        assert_eq!(error.kind(), kind, "{filter}");
        let error = E::TopicFilter(error);
        let subscribe = format!("82 {:02X} 0001 00 {length:04X} {digits} 00", length + 6);
        refused(V5, &subscribe, &error, PROTOCOL);
        let unsubscribe = format!("A2 {:02X} 0001 00 {length:04X} {digits}", length + 5);
        refused(V5, &unsubscribe, &error, PROTOCOL);
    }
    // Before 5.0 there is nothing special about `$share`.
    taken(V3_1_1, "82 0D 0001 0008 24736861 72652F67 00");
    taken(V3_1, "A2 0D 0001 0009 24736861 72652F2F 61");
    for (version, bytes, text) in [
        (
            V3_1_1,
            "82 10 0001 000B 24736861 72652F67 2B2F61 00",
            r#"+ must be a whole level of a topic filter: '+' at character 9 of "$share/g+/a""#,
        ),
        (
            V5,
            "82 11 0001 00 000B 24736861 72652F67 2B2F61 00",
            "a shared subscription is $share/group/filter, its group without + and #: \
             '+' at character 9 of \"$share/g+/a\"",
        ),
        (
            V3_1_1,
            "82 09 0001 0004 61232F62 00",
            r#"# must be the whole last level of a topic filter: '#' at character 2 of "a#/b""#,
        ),
    ] {
        let text = format!("the topic filter is not valid: {text}");
        refused_with_text(version, bytes, &text, PROTOCOL);
    }
    refused(
        V5,
        "82 03 0001 00",
        &E::NoFilter(PacketType::Subscribe),
        PROTOCOL,
    );
    refused(
        V5,
        "A2 03 0001 00",
        &E::NoFilter(PacketType::Unsubscribe),
        PROTOCOL,
    );
}

#[test]
fn reserved_subscription_options_are_refused() {
    for (version, bits, code) in [
        (V5, 0x40, MALFORMED),
        (V5, 0x80, MALFORMED),
        (V5, 0x03, PROTOCOL),
        (V5, 0x30, PROTOCOL),
        (V3_1_1, 0x80, MALFORMED),
        (V3_1_1, 0x04, PROTOCOL),
    ] {
        let properties = if version == V5 { "00" } else { "" };
        let length = 6 + properties.len() / 2;
        let bytes = format!("82 {length:02X} 0001 {properties} 0001 61 {bits:02X}");
        refused(
            version,
            &bytes,
            &E::ReservedSubscriptionOptions { bits },
            code,
        );
    }
    taken(V5, "82 07 0001 00 0001 61 2E");
    let shared = "82 10 0001 00 000A 24736861 72652F67 2F61 04";
    refused(V5, shared, &E::NoLocalOnShared, PROTOCOL);
}

#[test]
fn properties_are_known_in_place_and_single() {
    let packet = PacketType::Publish;
    refused(
        V5,
        "30 06 0001 61 02 7F00",
        &E::UnknownProperty { packet, id: 0x7F },
        MALFORMED,
    );
    // Receive Maximum belongs into CONNECT and CONNACK: malformed by §2.2.2.2.
    let misplaced = E::MisplacedProperty { packet, id: 0x21 };
    refused(V5, "30 07 0001 61 03 21 0001", &misplaced, MALFORMED);
    let duplicate = E::DuplicateProperty { packet, id: 0x23 };
    refused(V5, "30 0A 0001 61 06 23 0001 23 0001", &duplicate, PROTOCOL);
    taken(V5, "30 0E 0001 61 0A 26 0000 0000 26 0000 0000");
    taken(V5, "30 08 0001 61 04 0B 01 0B 01");
}

#[test]
fn property_values_are_in_their_range() {
    let value = |packet, id| E::PropertyValue { packet, id };
    for (bytes, packet, id) in [
        ("30 06 0001 61 02 01 02", PacketType::Publish, 0x01),
        ("30 06 0001 61 02 0B 00", PacketType::Publish, 0x0B),
        ("20 05 00 00 02 24 02", PacketType::ConnAck, 0x24),
        ("20 05 00 00 02 25 02", PacketType::ConnAck, 0x25),
        ("20 06 00 00 03 21 0000", PacketType::ConnAck, 0x21),
        ("20 08 00 00 05 27 00000000", PacketType::ConnAck, 0x27),
        (
            "10 10 0004 4D515454 05 02 003C 02 17 02 0001 61",
            PacketType::Connect,
            0x17,
        ),
    ] {
        refused(V5, bytes, &value(packet, id), PROTOCOL);
    }
}

#[test]
fn a_reason_code_belongs_to_its_packet() {
    for (version, bytes, packet, code) in [
        (V5, "40 03 0001 92", PacketType::PubAck, 0x92),
        (V5, "62 03 0001 80", PacketType::PubRel, 0x80),
        (V5, "20 03 00 01 00", PacketType::ConnAck, 0x01),
        (V5, "90 04 0001 00 03", PacketType::SubAck, 0x03),
        (V5, "B0 04 0001 00 01", PacketType::UnsubAck, 0x01),
        (V5, "E0 01 01", PacketType::Disconnect, 0x01),
        (V5, "F0 01 80", PacketType::Auth, 0x80),
        (V3_1_1, "20 02 00 06", PacketType::ConnAck, 0x06),
        (V3_1_1, "90 03 0001 03", PacketType::SubAck, 0x03),
        (V3_1_1, "90 03 0001 87", PacketType::SubAck, 0x87),
    ] {
        refused(version, bytes, &E::ReasonCode { packet, code }, MALFORMED);
    }
}

#[test]
fn connect_names_a_protocol_that_is_known() {
    for (name, level) in [
        ("0004 4D515454", 3),
        ("0004 4D515454", 6),
        ("0004 4D515454", 0x83),
        // Only before 5.0 has a bridge a bit of its own.
        ("0004 4D515454", 0x85),
        ("0006 4D5149736470", 4),
        ("0006 4D5149736470", 0x84),
        ("0004 6D717474", 4),
    ] {
        let length = name.replace(' ', "").len() / 2 + 7;
        let bytes = format!("10 {length:02X} {name} {level:02X} 02 003C 0001 61");
        let error = E::UnsupportedProtocol { level };
        refused(None, &bytes, &error, ReasonCode::UnsupportedProtocolVersion);
    }
}

#[test]
fn connect_flags_do_not_contradict_each_other() {
    // Reserved bit; will QoS 1, will retain without will; will QoS 3; password without user name.
    for flags in [0x01, 0x08, 0x20, 0x1C, 0x40] {
        let bytes = format!("10 0D 0004 4D515454 04 {flags:02X} 003C 0001 61");
        refused(None, &bytes, &E::ConnectFlags { flags }, MALFORMED);
    }
    taken(None, "10 11 0004 4D515454 05 42 003C 00 0001 61 0001 70");
    // MQTT 3.1 disregards what is not used, and a user name or password may be missing.
    for flags in [0x03, 0x0A, 0x1A, 0x22, 0x82, 0xC2] {
        taken(
            None,
            &format!("10 0F 0006 4D5149736470 03 {flags:02X} 003C 0001 61"),
        );
    }
    taken(None, "10 12 0006 4D5149736470 03 C2 003C 0001 61 0001 75");
    for flags in [0x1E, 0x42] {
        let bytes = format!("10 0F 0006 4D5149736470 03 {flags:02X} 003C 0001 61");
        refused(None, &bytes, &E::ConnectFlags { flags }, MALFORMED);
    }
}

#[test]
fn connack_flags_say_only_whether_a_session_is_present() {
    let flags = |flags| E::ConnAckFlags { flags };
    refused(V5, "20 03 02 00 00", &flags(2), MALFORMED);
    refused(V3_1_1, "20 02 01 05", &flags(1), MALFORMED);
    // The byte is reserved in MQTT 3.1, whose servers may have anything there.
    taken(V3_1, "20 02 02 00");
}

#[test]
fn authentication_data_needs_a_method() {
    let connect = "10 12 0004 4D515454 05 02 003C 04 16 0001 00 0001 61";
    let alone = |packet| E::AuthenticationDataAlone(packet);
    refused(None, connect, &alone(PacketType::Connect), PROTOCOL);
    refused(
        V5,
        "F0 06 18 04 16 0001 00",
        &alone(PacketType::Auth),
        PROTOCOL,
    );
}

#[test]
fn auth_needs_a_method_unless_it_is_a_plain_success() {
    for bytes in ["F0 01 18", "F0 02 19 00", "F0 06 00 04 1F 0001 61"] {
        refused(V5, bytes, &E::NoAuthenticationMethod, PROTOCOL);
    }
    taken(V5, "F0 00");
    taken(V5, "F0 02 00 00");
    taken(V5, "F0 06 18 04 15 0001 61");
}
