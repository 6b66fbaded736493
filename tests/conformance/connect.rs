//! CONNECT (§3.1): protocol, flags, payload, client identifiers.

use crate::{
    case::cases,
    lab::Lab,
    packet::{Connect, Publish, V5, V31, V311, Will, property, subscribe},
    wire::all_different,
};

cases! {
    unknown_levels_are_answered_and_closed: OASIS, ["3.1.2-2", "3.2.2-5"], ["3.1.2-2"];
    unknown_protocol_names_are_closed: OASIS, ["3.1.2-1"], ["3.1.2-1"];
    the_reserved_flag_is_refused: OASIS, ["3.1.2-3", "3.1.4-1"], ["3.1.2-3", "3.1.4-1"];
    will_flags_without_a_will_are_refused: OASIS,
        ["3.1.2-11", "3.1.2-13", "3.1.2-15"], ["3.1.2-11", "3.1.2-13"];
    a_will_of_qos_3_is_refused: ALL, ["3.1.2-14"], ["3.1.2-12"];
    fields_that_flags_announce_must_be_there: ALL,
        ["3.1.2-9", "3.1.2-19", "3.1.2-21", "3.1.3-3"],
        ["3.1.2-9", "3.1.2-17", "3.1.2-19", "3.1.3-3"];
    fields_that_no_flag_announces_are_refused: ALL,
        ["3.1.2-11", "3.1.2-18", "3.1.2-20"], ["3.1.2-16", "3.1.2-18"];
    a_password_without_a_user_name_is_refused: OLD, ["3.1.2-22"], [];
    a_password_without_a_user_name_is_taken: ONLY_5, [], [];
    all_fields_are_taken_in_their_order: ALL, ["3.1.3-1", "3.1.4-4"], ["3.1.3-1", "3.1.4-5"];
    mqtt_3_1_disregards_will_flags_without_a_will: ONLY_31, [], [];
    mqtt_3_1_may_announce_a_user_name_that_is_missing: ONLY_31, [], [];
    client_identifiers_of_up_to_23_letters_and_digits_are_taken: ALL, ["3.1.3-5"], ["3.1.3-5"];
    other_client_identifiers_are_taken: ALL, [], [];
    mqtt_3_1_has_no_empty_client_identifier: ONLY_31, [], [];
    a_client_without_an_identifier_gets_one: OASIS,
        ["3.1.3-6"], ["3.1.3-6", "3.1.3-7", "3.2.2-16"];
    no_identifier_and_a_kept_session_is_refused: OLD,
        ["3.1.3-7", "3.1.3-8", "3.1.3-9", "3.2.2-4", "3.2.2-5"], [];
    nothing_behind_a_refused_connect_is_acted_on: ALL, ["3.1.4-5"], ["3.1.4-6"];
    packets_behind_connect_need_not_wait: ALL, [], [];
}

async fn unknown_levels_are_answered_and_closed(lab: Lab) {
    // No standard has the highest bit, by which many brokers know a bridge: 0x84 is left out.
    for level in [0, 1, 2, 3, 6, 7, 0x7F, 0x83, 0x85, 0xFF] {
        let mut wire = lab.open().await;
        wire.send(lab.hello("bad").with_protocol(b"MQTT", level))
            .await;
        let answer = wire.next().await.expect("a level has to be answered");
        assert_eq!(answer.first, 0x20, "{answer:?}");
        let known = [&[0, 1][..], &[0, 0x84, 0]];
        assert!(known.contains(&&answer.body[..]), "{answer:?}");
        wire.closed().await;
    }
}

async fn unknown_protocol_names_are_closed(lab: Lab) {
    for (name, level) in [
        (&b"mqtt"[..], 4),
        (b"MQTt", 4),
        (b"MQT", 4),
        (b"MQTTT", 5),
        (b"", 4),
        (b"MQIsdp", 4),
        (b"MQIsdp", 5),
        (b"MQISDP", 3),
        (b"HTTP", 5),
        (b"MQ\0T", 4),
    ] {
        let mut wire = lab.open().await;
        wire.send(lab.hello("bad").with_protocol(name, level)).await;
        if let Some(answer) = wire.next().await {
            let known = [&[0, 1][..], &[0, 0x84, 0]];
            assert!(known.contains(&&answer.body[..]), "{answer:?}");
            wire.closed().await;
        }
    }
}

async fn the_reserved_flag_is_refused(lab: Lab) {
    for flags in [0x01, 0x03] {
        lab.not_let_in(lab.hello("bad").with_flags(flags), &[0x81])
            .await;
    }
}

async fn will_flags_without_a_will_are_refused(lab: Lab) {
    for flags in [0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0x38] {
        lab.not_let_in(lab.hello("bad").with_flags(0x02 | flags), &[0x81, 0x82])
            .await;
    }
}

async fn a_will_of_qos_3_is_refused(lab: Lab) {
    let mut will = Will::new("t", "x");
    will.qos = 3;
    for retain in [false, true] {
        will.retain = retain;
        lab.not_let_in(lab.hello("bad").will(will.clone()).bytes(), &[0x81, 0x82])
            .await;
    }
}

async fn fields_that_flags_announce_must_be_there(lab: Lab) {
    let hello = lab.hello("bad");
    // A will; a user name, where it has to be there; both.
    let flags: &[u8] = match lab.version {
        V31 => &[0x06],
        V311 | V5 => &[0x06, 0x82, 0xC2, 0x86],
    };
    for flags in flags {
        lab.not_let_in(hello.with_flags(*flags), &[0x81, 0x82])
            .await;
    }
    let mut named = hello.clone();
    named.user_name = Some(b"user".to_vec());
    if lab.version > V31 {
        lab.not_let_in(named.with_flags(0xC2), &[0x81, 0x82]).await;
    }
    // Not even the client identifier, which has no flag.
    let empty = Connect {
        client_id: Vec::new(),
        ..hello
    };
    let mut bytes = empty.bytes();
    bytes[1] -= 2;
    bytes.truncate(bytes.len() - 2);
    lab.not_let_in(bytes, &[0x81, 0x82]).await;
}

async fn fields_that_no_flag_announces_are_refused(lab: Lab) {
    let hello = lab.hello("bad");
    let mut named = hello.clone();
    named.user_name = Some(b"user".to_vec());
    let mut secret = named.clone();
    secret.password = Some(b"secret".to_vec());
    let willing = hello.clone().will(Will::new("t", "x"));
    for bytes in [
        named.with_flags(0x02),
        secret.with_flags(0x82),
        willing.with_flags(0x02),
    ] {
        lab.not_let_in(bytes, &[0x81, 0x82]).await;
    }
}

async fn a_password_without_a_user_name_is_refused(lab: Lab) {
    let mut hello = lab.hello("bad");
    hello.password = Some(b"secret".to_vec());
    lab.not_let_in(hello.bytes(), &[]).await;
}

async fn a_password_without_a_user_name_is_taken(lab: Lab) {
    let mut hello = lab.hello("c");
    hello.password = Some(b"secret".to_vec());
    lab.connected(&hello).await.0.alive().await;
}

async fn all_fields_are_taken_in_their_order(lab: Lab) {
    let topic = lab.topic("will");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 0).await;
    let mut hello = lab.hello("c").will(Will::new(&topic, "gone"));
    hello.user_name = Some("Zoë".into());
    // A password is not text.
    hello.password = Some(vec![0xFF, 0x00]);
    let (mut wire, _) = lab.connected(&hello).await;
    wire.alive().await;
    wire.cut();
    watcher.payload("gone").await;
}

/// Checks what MQTT 3.1 says: "If the Will flag is set, this field is mandatory, otherwise its value is disregarded."
/// Nor is the lowest bit used.
async fn mqtt_3_1_disregards_will_flags_without_a_will(lab: Lab) {
    for flags in [0x03, 0x0A, 0x12, 0x22, 0x32] {
        let mut wire = lab.open().await;
        wire.send(lab.hello("odd").with_flags(flags)).await;
        assert_eq!(wire.connack().await.code, 0, "{flags:#04x}");
        wire.alive().await;
    }
}

/// Checks a user name that is announced and missing: the length of the packet takes precedence over these two flags,
/// for the sake of older clients.
async fn mqtt_3_1_may_announce_a_user_name_that_is_missing(lab: Lab) {
    let hello = lab.hello("odd");
    let mut named = hello.clone();
    named.user_name = Some(b"user".to_vec());
    for bytes in [
        hello.with_flags(0x82),
        hello.with_flags(0xC2),
        named.with_flags(0xC2),
    ] {
        let mut wire = lab.open().await;
        wire.send(bytes).await;
        assert_eq!(wire.connack().await.code, 0);
        wire.alive().await;
    }
}

/// Identifiers of one character are taken in turns: there are not enough for all.
static SHORT: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn client_identifiers_of_up_to_23_letters_and_digits_are_taken(lab: Lab) {
    let all = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let unique = lab.id("");
    for start in (0..all.len()).step_by(10) {
        let room = 23 - unique.len();
        let part = &all[start..(start + room).min(all.len())];
        let hello = Connect::new(lab.version, &format!("{unique}{part}"));
        lab.connected(&hello).await.0.leave().await;
    }
    // As short as can be.
    let _turn = SHORT.lock().await;
    let short = Connect::new(lab.version, "Q");
    lab.connected(&short).await.0.leave().await;
}

/// Checks other client identifiers: a server may refuse longer identifiers and other characters; this broker takes
/// them.
async fn other_client_identifiers_are_taken(lab: Lab) {
    if !lab.is_own() {
        return;
    }
    let long = "x".repeat(1000);
    for rest in [&*long, "/ +#$", "ü東\u{1F600}", "a b"] {
        let hello = Connect::new(lab.version, &format!("{}{rest}", lab.id("")));
        lab.connected(&hello).await.0.leave().await;
    }
}

async fn mqtt_3_1_has_no_empty_client_identifier(lab: Lab) {
    let empty = Connect::new(V31, "");
    let kept = Connect {
        clean: false,
        ..empty.clone()
    };
    for hello in [empty, kept] {
        let answer = lab.answer(hello.bytes()).await.map(|ack| ack.code);
        assert_eq!(answer, Some(2));
    }
}

async fn a_client_without_an_identifier_gets_one(lab: Lab) {
    let mut wires = Vec::new();
    let mut assigned = Vec::new();
    for _ in 0..3 {
        let (mut wire, ack) = lab.connected(&Connect::new(lab.version, "")).await;
        assert!(!ack.session_present);
        if lab.version == V5 {
            let id = ack.properties.get(property::ASSIGNED_CLIENT_ID);
            assigned.push(id.expect("an assigned identifier").to_vec());
        }
        wire.alive().await;
        wires.push(wire);
    }
    // With the same identifier, only the last client would still be connected.
    for wire in &mut wires {
        wire.alive().await;
    }
    all_different(&assigned);
    if lab.version < V5 {
        return;
    }
    // A 5.0 server may keep the session, and finds it by the identifier that it assigned.
    let keeping = Connect::kept(V5, "");
    let (wire, ack) = lab.connected(&keeping).await;
    let id = ack.properties.get(property::ASSIGNED_CLIENT_ID).unwrap();
    let id = std::str::from_utf8(id).unwrap();
    wire.leave().await;
    let (_, ack) = lab.connected(&Connect::kept(V5, id)).await;
    assert!(ack.session_present);
    assert_eq!(ack.properties.get(property::ASSIGNED_CLIENT_ID), None);
}

async fn no_identifier_and_a_kept_session_is_refused(lab: Lab) {
    let hello = Connect {
        clean: false,
        ..Connect::new(lab.version, "")
    };
    let ack = lab.answer(hello.bytes()).await.expect("a CONNACK");
    assert_eq!(ack.code, 2);
    assert!(!ack.session_present);
}

async fn nothing_behind_a_refused_connect_is_acted_on(lab: Lab) {
    let version = lab.version;
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 1).await;
    let refused = match version {
        V31 | V311 => Connect {
            clean: false,
            ..Connect::new(version, "")
        },
        V5 => lab.hello("bad").property(property::string(
            property::AUTHENTICATION_METHOD,
            "no such method",
        )),
    };
    let publish = Publish::new(version, &topic, "x").retain().qos(1, 1);
    let together = [
        refused.bytes(),
        subscribe(version, 1, &[(&topic, 0)]),
        publish.bytes(),
    ]
    .concat();
    let mut wire = lab.open().await;
    wire.send(together).await;
    assert!(wire.connack().await.code > 0);
    wire.closed().await;
    watcher.quiet().await;
    let mut late = lab.client("late").await;
    late.subscribe(&topic, 1).await;
    late.quiet().await;
}

async fn packets_behind_connect_need_not_wait(lab: Lab) {
    let version = lab.version;
    let topic = lab.topic("t");
    let together = [
        lab.hello("c").bytes(),
        subscribe(version, 1, &[(&topic, 1)]),
        Publish::new(version, &topic, "x").bytes(),
    ]
    .concat();
    let mut wire = lab.open().await;
    wire.send(together).await;
    assert_eq!(wire.connack().await.code, 0);
    assert_eq!(wire.suback().await.codes, [1]);
    assert_eq!(wire.payload("x").await.topic, topic);
}
