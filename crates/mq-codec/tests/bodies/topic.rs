//! The body of the fuzz target `topic`, which the tests of this crate run as well.

use bytes::BytesMut;
use mq_codec::{DecodeError, Decoder, Packet, Publish, TopicFilter, TopicName, Version};

/// Checks a filter and, after the first line break, a topic: the crate finds them valid and matching
/// exactly if the specification's sentences, implemented one by one, say so.
pub(crate) fn run(input: &[u8]) {
    let at = input.iter().position(|byte| *byte == b'\n');
    let (filter, topic) = match at {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &[][..]),
    };
    let topic = topic_on_the_wire(topic);
    let Ok(filter) = core::str::from_utf8(filter) else {
        return;
    };
    let valid = is_filter(filter);
    let Ok(checked) = TopicFilter::new(filter) else {
        assert!(!valid, "{filter:?} is refused");
        return;
    };
    assert!(valid, "{filter:?} is taken");
    assert_eq!(checked.has_wildcard(), filter.contains(['+', '#']));
    let (group, plain) = without_share(filter);
    assert_eq!(checked.matching(), plain);
    assert_eq!(checked.shared().map(|shared| shared.group), group);
    if let Some(topic) = topic {
        let matches = matches(plain, &topic);
        assert_eq!(checked.matches(&topic), matches, "{filter:?} {topic:?}");
    }
}

/// Returns the topic if these bytes are one, after a check that they are read alike by themselves and in a PUBLISH.
fn topic_on_the_wire(bytes: &[u8]) -> Option<TopicName> {
    if !(1..=65_535).contains(&bytes.len()) {
        return None;
    }
    let text = core::str::from_utf8(bytes).ok();
    let valid = text.is_some_and(|text| !text.contains(['\0', '+', '#']));
    let topic = text.and_then(|text| TopicName::new(text).ok());
    assert_eq!(topic.is_some(), valid, "{bytes:02x?}");

    let other = TopicName::new("t".repeat(bytes.len())).expect("letters");
    let mut wire = BytesMut::new();
    let encoded = Packet::from(Publish::new(other, "")).encode(Version::V3_1_1, &mut wire);
    assert_eq!(encoded, Ok(()));
    let at = wire.len() - bytes.len();
    wire[at..].copy_from_slice(bytes);
    let mut strict = Decoder::new(Some(Version::V3_1_1), u32::MAX);
    strict.refuse_disallowed_characters();
    let allowed = topic
        .as_ref()
        .is_some_and(|topic| !topic.chars().any(is_disallowed));
    let taken = strict.decode(&mut wire.clone());
    assert_eq!(taken.is_ok(), allowed, "{bytes:02x?}");
    match Decoder::new(Some(Version::V3_1_1), u32::MAX).decode(&mut wire) {
        Ok(Some(Packet::Publish(publish))) => assert_eq!(Some(&publish.topic), topic.as_ref()),
        Err(DecodeError::TopicName(_)) => assert_eq!(topic, None),
        other => panic!("{bytes:02x?}: {other:?}"),
    }
    topic
}

/// Returns `true` if `character` is one of the Disallowed Unicode code points (§1.5.4).
fn is_disallowed(character: char) -> bool {
    let in_plane = u32::from(character) % 0x1_0000;
    matches!(character, '\u{1}'..='\u{1F}' | '\u{7F}'..='\u{9F}' | '\u{FDD0}'..='\u{FDEF}')
        || matches!(in_plane, 0xFFFE | 0xFFFF)
}

/// Returns the share name, if there is one, and the filter without it (§4.8.2).
fn without_share(filter: &str) -> (Option<&str>, &str) {
    match *filter.splitn(3, '/').collect::<Vec<_>>() {
        ["$share", group, filter] => (Some(group), filter),
        _ => (None, filter),
    }
}

/// Returns `true` if `filter` is a topic filter, by §4.7.1, §4.7.3 and §4.8.2, a sentence a line.
fn is_filter(filter: &str) -> bool {
    if filter.contains('\0') || filter.len() > 65_535 {
        return false;
    }
    let (group, plain) = without_share(filter);
    let levels: Vec<_> = plain.split('/').collect();
    let last = levels.len() - 1;
    let no_group = filter.starts_with("$share/") && group.is_none();
    let bad_group = group.is_some_and(|group| group.is_empty() || group.contains(['+', '#']));
    let bad_multi =
        |(at, level): (usize, &&str)| level.contains('#') && (*level != "#" || at != last);
    let bad_single = |level: &&str| level.contains('+') && *level != "+";
    !plain.is_empty()
        && !no_group
        && !bad_group
        && !levels.iter().enumerate().any(bad_multi)
        && !levels.iter().any(bad_single)
}

fn matches(filter: &str, topic: &str) -> bool {
    // [MQTT-4.7.2-1]
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let filter: Vec<_> = filter.split('/').collect();
    let topic: Vec<_> = topic.split('/').collect();
    levels_match(&filter, &topic)
}

fn levels_match(filter: &[&str], topic: &[&str]) -> bool {
    match (filter, topic) {
        (["#"], _) | ([], []) => true,
        (["+", filter @ ..], [_, topic @ ..]) => levels_match(filter, topic),
        ([wanted, filter @ ..], [level, topic @ ..]) => {
            wanted == level && levels_match(filter, topic)
        }
        _ => false,
    }
}
