//! Topic names and filters (§4.7): wildcards, `$`, and no normalisation.

use crate::{
    case::cases,
    lab::Lab,
    packet::{DISCONNECT, PUBACK, PUBREC, Publish, V5, Will, subscribe, unsubscribe},
};

cases! {
    invalid_filters_are_refused: ALL,
        ["4.7.1-2", "4.7.1-3", "4.7.3-1"], ["4.7.1-1", "4.7.1-2", "4.7.3-1"];
    filters_match_what_they_should: ALL,
        ["4.7.1-2", "4.7.1-3", "4.7.3-4"], ["4.7.1-1", "4.7.1-2", "4.7.3-4"];
    leading_wildcards_do_not_match_dollar: ALL, ["4.7.2-1"], ["4.7.2-1"];
    leading_wildcards_do_not_find_retained_dollar: ALL, ["4.7.2-1"], ["4.7.2-1"];
    nothing_is_normalised: ALL, ["4.7.3-4"], ["4.7.3-4"];
    odd_filters_are_taken: ALL, [], [];
    levels_are_limited_and_the_limit_is_told: ALL, [], [];
    topics_of_very_many_levels_do_no_harm: ALL, [], [];
}

async fn invalid_filters_are_refused(lab: Lab) {
    for filter in [
        "", "a#", "#a", "#/a", "a/#/b", "a/b#", "##", "a/##", "+a", "a+", "a+/b", "a/+b", "++",
        "a/++", "+#", "#+", "a/#+",
    ] {
        for filters in [&[(filter, 0)][..], &[("good", 0), (filter, 1)]] {
            let request = subscribe(lab.version, 1, filters);
            lab.refuses(request, &[0x82, 0x81, 0x8F]).await;
        }
    }
}

async fn filters_match_what_they_should(lab: Lab) {
    let mut other = lab.client("other").await;
    let mut wire = lab.client("c").await;
    for (filter, topic, matches) in [
        ("a/b/#", "a/b", true),
        ("a/b/#", "a/b/c", true),
        ("a/b/#", "a/b/c/d", true),
        ("a/b/#", "a/bc", false),
        ("a/#", "a", true),
        ("a/#", "a/", true),
        ("a/+", "a", false),
        ("a/+", "a/", true),
        ("a/+", "a/b", true),
        ("a/+", "a/b/c", false),
        ("a/+/c", "a/b/c", true),
        ("a/+/c", "a//c", true),
        ("a/+/c", "a/c", false),
        ("+/b/#", "a/b", true),
        ("+/+/+", "a/b", false),
        ("+/+", "/b", true),
        ("/+", "/b", true),
        ("+", "/b", false),
        ("a/+/#", "a", false),
        ("a/+/#", "a/b", true),
        ("a", "A", false),
        ("#", "a/b/c", true),
        ("$a/#", "$a/b", true),
        ("+/b", "$a/b", true),
    ] {
        wire.subscribe(&lab.topic(filter), 0).await;
        other.publish(&lab.topic(topic), topic, 0).await;
        if matches {
            wire.payload(topic).await;
        }
        wire.quiet().await;
        wire.unsubscribe(&lab.topic(filter)).await;
    }
}

/// Checks only the case's own messages, since a broker may publish to `$SYS` itself.
async fn leading_wildcards_do_not_match_dollar(lab: Lab) {
    let name = lab.topic(&lab.id("x"));
    let topic = format!("${name}");
    let (first, rest) = topic.split_once('/').unwrap();
    assert!(first.starts_with('$'));
    let mut other = lab.client("other").await;
    let mut wire = lab.client("c").await;
    wire.subscribe(&format!("+/{rest}"), 0).await;
    wire.subscribe(&topic, 0).await;
    other.publish(&topic, "dollar", 0).await;
    // By the filter that has the `$`, once.
    wire.payload("dollar").await;
    wire.unsubscribe(&topic).await;
    other.publish(&topic, "dollar", 0).await;
    other.publish(&name, "fence", 0).await;
    wire.until(&name, |message| assert_ne!(message.topic, topic))
        .await;
    wire.unsubscribe(&format!("+/{rest}")).await;
    // `#` gets whatever the other cases publish, too.
    wire.subscribe("#", 0).await;
    other.publish(&topic, "dollar", 0).await;
    other.publish(&name, "fence", 0).await;
    wire.until(&name, |message| {
        assert!(!message.topic.starts_with('$'), "{}", message.topic);
    })
    .await;
}

async fn leading_wildcards_do_not_find_retained_dollar(lab: Lab) {
    let name = lab.topic(&lab.id("x"));
    let topic = format!("${name}");
    let mut other = lab.client("other").await;
    other.retain(&topic, "dollar", 1).await;
    let mut wire = lab.client("c").await;
    let (_, rest) = topic.split_once('/').unwrap();
    wire.subscribe(&format!("+/{rest}"), 0).await;
    wire.send(Publish::new(lab.version, &name, "fence").bytes())
        .await;
    wire.until(&name, |message| assert_ne!(message.topic, topic))
        .await;
    wire.subscribe(&topic, 0).await;
    assert!(wire.payload("dollar").await.retain);
    other.retain(&topic, "", 1).await;
}

async fn nothing_is_normalised(lab: Lab) {
    let mut other = lab.client("other").await;
    let mut wire = lab.client("c").await;
    let names = [
        "a/b", "/a/b", "a/b/", "a//b", "a/./b", "a/x/../b", "A/b", " a/b", "a/b ", "a%2Fb", "a\\b",
        "\u{E9}", "e\u{301}", "\u{212B}", "\u{C5}",
    ];
    for name in names {
        wire.subscribe(&lab.topic(name), 0).await;
        for published in names {
            other.publish(&lab.topic(published), published, 0).await;
        }
        assert_eq!(wire.payload(name).await.topic, lab.topic(name));
        wire.quiet().await;
        wire.unsubscribe(&lab.topic(name)).await;
    }
}

async fn odd_filters_are_taken(lab: Lab) {
    let mut wire = lab.client("c").await;
    for filter in [
        "/",
        "//",
        "///+",
        " ",
        "$",
        "$x",
        "$/#",
        "$sharex/g/t",
        "a b/\u{1F600}",
    ] {
        assert_eq!(wire.subscribe(filter, 0).await, 0, "{filter:?}");
        wire.unsubscribe(filter).await;
    }
    wire.quiet().await;
}

/// Checks far more levels than any client uses; a client that goes beyond gets a reason.
async fn levels_are_limited_and_the_limit_is_told(lab: Lab) {
    if !lab.is_own() {
        return;
    }
    // The prefix is a level of its own.
    let deepest = lab.topic(&"/".repeat(198));
    let deeper = format!("{deepest}/");
    let mut wire = lab.client("c").await;
    assert_eq!(wire.subscribe(&deepest, 0).await, 0);
    wire.send(Publish::new(lab.version, &deepest, "x").bytes())
        .await;
    wire.payload("x").await;
    let failed = if lab.version == V5 { 0x8F } else { 0x80 };
    assert_eq!(wire.subscribe(&deeper, 0).await, failed);
    let publish = Publish::new(lab.version, &deeper, "x");
    let will = lab.hello("w").will(Will::new(&deeper, "x"));
    if lab.version == V5 {
        for (qos, first) in [(1, PUBACK), (2, PUBREC)] {
            wire.send(publish.clone().qos(qos, 7).bytes()).await;
            assert_eq!(wire.ack(first).await.codes, [0x90]);
        }
        wire.alive().await;
    }
    lab.not_let_in(will.bytes(), &[0x90]).await;
    wire.send(publish.bytes()).await;
    wire.refused(&[0x90]).await;
}

/// Checks that topics of very many levels harm no other client: a server may have limits, and only a client that goes
/// beyond them notices.
async fn topics_of_very_many_levels_do_no_harm(lab: Lab) {
    let mut bystander = lab.client("other").await;
    let deep = lab.topic(&"/".repeat(65_000));
    for (filter, topic) in [
        (&*deep, &*deep),
        (&*lab.topic("#"), &*deep),
        (&*lab.topic(&"+/".repeat(32_000)), &*deep),
    ] {
        for retain in [false, true] {
            let mut wire = lab.client("c").await;
            wire.send(subscribe(lab.version, 1, &[(filter, 0)])).await;
            let mut publish = Publish::new(lab.version, topic, "deep");
            if retain {
                publish = publish.retain();
            }
            wire.send(publish.bytes()).await;
            wire.send(unsubscribe(lab.version, 2, &[filter])).await;
            wire.send(DISCONNECT).await;
            while wire.next().await.is_some() {}
            bystander.alive().await;
        }
        // Removed again, whether it was retained or refused.
        let mut wire = lab.client("c").await;
        let nothing = Publish::new(lab.version, topic, "").retain().bytes();
        wire.send([&nothing[..], &DISCONNECT].concat()).await;
        while wire.next().await.is_some() {}
    }
    bystander.alive().await;
}
