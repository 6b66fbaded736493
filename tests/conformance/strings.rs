//! Strings (§1.5.4; 3.1.1 §1.5.3): UTF-8, no null character, up to 65,535 bytes.

use crate::{
    case::cases,
    lab::Lab,
    packet::{Publish, V5, Will, packet, property, subscribe, text, unsubscribe},
};

cases! {
    ill_formed_topic_names_are_refused: ALL,
        ["1.5.3-1", "3.3.2-1"], ["1.5.4-1", "3.3.2-1"];
    ill_formed_filters_are_refused: ALL,
        ["1.5.3-1", "3.8.3-1", "3.10.3-1"], ["1.5.4-1", "3.8.3-1", "3.10.3-1"];
    ill_formed_strings_of_connect_are_refused: ALL,
        ["1.5.3-1", "3.1.3-4", "3.1.3-10", "3.1.3-11"],
        ["1.5.4-1", "3.1.3-4", "3.1.3-11", "3.1.3-12"];
    the_null_character_is_refused: ALL, ["1.5.3-2", "4.7.3-2"], ["1.5.4-2", "4.7.3-2"];
    ill_formed_strings_of_properties_are_refused: ONLY_5, [],
        ["1.5.4-1", "1.5.7-1", "3.3.2-13", "3.3.2-19"];
    control_characters_and_noncharacters_are_refused: ALL, [], [];
    a_byte_order_mark_is_an_ordinary_character: ALL, ["1.5.3-3"], ["1.5.4-3"];
    every_plane_of_unicode_is_taken: ALL, [], [];
    the_longest_topic_is_taken: ALL, ["4.7.3-3"], ["4.7.3-3"];
}

/// Ill-formed: a lone continuation byte, a byte that never occurs, overlong forms, surrogates (a
/// pair of them, too), beyond U+10FFFF, cut short.
const ILL_FORMED: &[&[u8]] = &[
    b"a\x80",
    b"\xFFa",
    b"\xC0\xAFa",
    b"\xC0\x80",
    b"\xE0\x80\xAF",
    b"\xF0\x80\x80\xAF",
    b"\xED\xA0\x80",
    b"\xED\xBF\xBF",
    b"\xED\xA0\xBD\xED\xB8\x80",
    b"\xF4\x90\x80\x80",
    b"a\xE2\x82",
    b"\xF8\x88\x80\x80\x80",
];

async fn ill_formed_topic_names_are_refused(lab: Lab) {
    for name in ILL_FORMED {
        for qos in [0, 1] {
            let publish = Publish::new(lab.version, name, "x").qos(qos, 1);
            lab.refuses(publish.bytes(), &[0x81]).await;
        }
    }
}

async fn ill_formed_filters_are_refused(lab: Lab) {
    let head: &[u8] = if lab.version == V5 {
        &[0, 1, 0]
    } else {
        &[0, 1]
    };
    for filter in ILL_FORMED {
        let filter = text(filter);
        let subscribe = packet(0x82, [head, &filter, &[0]].concat());
        lab.refuses(subscribe, &[0x81]).await;
        let unsubscribe = packet(0xA2, [head, &filter].concat());
        lab.refuses(unsubscribe, &[0x81]).await;
    }
}

async fn ill_formed_strings_of_connect_are_refused(lab: Lab) {
    for bad in ILL_FORMED {
        let mut by_id = lab.hello("bad");
        by_id.client_id = bad.to_vec();
        lab.not_let_in(by_id.bytes(), &[0x81, 0x85]).await;
        let mut will = Will::new("t", "x");
        will.topic = bad.to_vec();
        lab.not_let_in(lab.hello("bad").will(will).bytes(), &[0x81])
            .await;
        let mut by_user = lab.hello("bad");
        by_user.user_name = Some(bad.to_vec());
        lab.not_let_in(by_user.bytes(), &[0x81, 0x86]).await;
    }
}

async fn the_null_character_is_refused(lab: Lab) {
    let version = lab.version;
    lab.refuses(Publish::new(version, "a\0b", "x").bytes(), &[0x81])
        .await;
    lab.refuses(Publish::new(version, "\0", "x").bytes(), &[0x81])
        .await;
    lab.refuses(subscribe(version, 1, &[("a/\0", 0)]), &[0x81])
        .await;
    lab.refuses(unsubscribe(version, 1, &["\0"]), &[0x81]).await;
    let mut hello = lab.hello("bad");
    hello.client_id.push(0);
    lab.not_let_in(hello.bytes(), &[0x81, 0x85]).await;
    let will = Will::new("a\0", "x");
    lab.not_let_in(lab.hello("bad").will(will).bytes(), &[0x81])
        .await;
    if version == V5 {
        let named = property::pair("a\0", "b");
        lab.refuses(Publish::new(V5, "t", "x").property(named).bytes(), &[0x81])
            .await;
    }
}

async fn ill_formed_strings_of_properties_are_refused(lab: Lab) {
    for bad in ILL_FORMED {
        for property in [
            property::string(property::RESPONSE_TOPIC, bad),
            property::string(property::CONTENT_TYPE, bad),
            property::pair(bad, "value"),
            property::pair("name", bad),
        ] {
            let publish = Publish::new(V5, lab.topic("t"), "x").property(property);
            lab.refuses(publish.bytes(), &[0x81]).await;
        }
    }
    let hello = lab.hello("bad").property(property::pair("name", [0xFF]));
    lab.not_let_in(hello.bytes(), &[0x81]).await;
}

/// Checks the Disallowed Unicode code points of §1.5.4. A server may refuse them; this broker does.
async fn control_characters_and_noncharacters_are_refused(lab: Lab) {
    if !lab.is_own() {
        return;
    }
    let version = lab.version;
    for bad in [
        "\u{1}",
        "\n",
        "\u{1F}",
        "\u{7F}",
        "\u{9F}",
        "\u{FDD0}",
        "\u{10FFFF}",
    ] {
        let bad = format!("a{bad}b");
        let publish = Publish::new(version, &bad, "x").qos(1, 1);
        lab.refuses(publish.bytes(), &[0x81]).await;
        lab.refuses(subscribe(version, 1, &[(&bad, 0)]), &[0x81])
            .await;
        lab.refuses(unsubscribe(version, 1, &[&bad]), &[0x81]).await;
        let mut hello = lab.hello("bad");
        hello.client_id.extend_from_slice(bad.as_bytes());
        lab.not_let_in(hello.bytes(), &[0x81]).await;
        let mut will = Will::new("t", "x");
        will.topic = bad.as_bytes().to_vec();
        lab.not_let_in(lab.hello("bad").will(will).bytes(), &[0x81])
            .await;
        let mut hello = lab.hello("bad");
        hello.user_name = Some(bad.as_bytes().to_vec());
        lab.not_let_in(hello.bytes(), &[0x81]).await;
        if version == V5 {
            let named = property::pair("name", &bad);
            let publish = Publish::new(V5, lab.topic("t"), "x").property(named);
            lab.refuses(publish.bytes(), &[0x81]).await;
        }
    }
    // Payloads need not be text.
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    wire.subscribe(&topic, 0).await;
    wire.publish(&topic, "a\n\0\u{FFFF}", 1).await;
    wire.payload("a\n\0\u{FFFF}").await;
}

/// Checks that the broker neither drops U+FEFF nor takes it for a byte order mark: a topic with it is another topic.
async fn a_byte_order_mark_is_an_ordinary_character(lab: Lab) {
    let mut wire = lab.client("c").await;
    let marked = lab.topic("\u{FEFF}t");
    assert_eq!(wire.subscribe(&marked, 0).await, 0);
    wire.publish(&lab.topic("t"), "without", 1).await;
    wire.send(Publish::new(lab.version, &marked, "with").bytes())
        .await;
    assert_eq!(wire.payload("with").await.topic, marked);
}

async fn every_plane_of_unicode_is_taken(lab: Lab) {
    let mut wire = lab.client("c").await;
    for text in [
        "ü",
        "東京",
        "\u{1F600}",
        "\u{10FFFD}",
        "\u{D7FF}\u{E000}",
        " ~",
    ] {
        let topic = lab.topic(text);
        assert_eq!(wire.subscribe(&topic, 0).await, 0);
        wire.send(Publish::new(lab.version, &topic, "x").bytes())
            .await;
        assert_eq!(wire.payload("x").await.topic, topic);
    }
}

async fn the_longest_topic_is_taken(lab: Lab) {
    let mut wire = lab.client("c").await;
    let mut topic = lab.topic("");
    topic.extend(std::iter::repeat_n('x', 65_535 - topic.len()));
    assert_eq!(wire.subscribe(&topic, 0).await, 0);
    wire.send(Publish::new(lab.version, &topic, "x").bytes())
        .await;
    assert_eq!(wire.payload("x").await.topic, topic);
}
