//! Topic names and topic filters, checked once where they enter.

use core::{fmt, ops::Deref};

use crate::{
    ByteStr, StringError, TopicError, TopicErrorKind, Version,
    byte_str::{Characters, check_text, first_refused},
};

/// A topic name: what a message is published to. At least one character, no wildcard (§4.7).
///
/// A decoded PUBLISH that uses a topic alias alone carries the empty name, the only way to get
/// one; see [`TopicName::is_empty`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TopicName(ByteStr);

/// A topic filter: what a subscription asks for, with the wildcards `+` and `#` (§4.7.1), also
/// `$share/group/filter` (§4.8.2).
///
/// ```
/// use mq_codec::{TopicFilter, TopicName};
///
/// let filter = TopicFilter::new("$share/workers/plant/+/temperature")?;
/// assert_eq!(filter.matching(), "plant/+/temperature");
/// assert!(filter.matches(&TopicName::new("plant/7/temperature")?));
/// # Ok::<(), mq_codec::TopicError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TopicFilter(ByteStr);

/// The parts of a shared subscription's filter `$share/{group}/{filter}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SharedFilter<'a> {
    /// The share name: at least one character, without `/`, `+` and `#`.
    pub group: &'a str,
    /// The filter that messages are matched with.
    pub filter: &'a str,
}

impl TopicName {
    /// Checks `text` and makes it a topic name.
    ///
    /// # Errors
    /// If it is empty, has a wildcard, or is no MQTT string.
    pub fn new(text: impl Into<String>) -> Result<Self, TopicError> {
        Self::from_byte_str(checked_string(text)?)
    }

    pub(crate) fn from_byte_str(text: ByteStr) -> Result<Self, TopicError> {
        if text.as_bytes().is_empty() {
            return Err(TopicError::new(TopicErrorKind::Empty, b"", None));
        }
        check_wildcards(text.as_bytes())?;
        Ok(Self(text))
    }

    /// Checks a name from the wire. An empty name is allowed: a topic alias may stand in for it.
    #[inline]
    pub(crate) fn check_received(text: &[u8], characters: Characters) -> Result<(), TopicError> {
        if is_plain_ascii(text) {
            return Ok(());
        }
        check_string(text, characters)?;
        check_wildcards(text)
    }

    /// Makes a topic name of `text`, which was checked.
    #[inline]
    pub(crate) fn from_checked(text: ByteStr) -> Self {
        Self(text)
    }

    /// Makes the empty name, which means "see the topic alias" on the wire.
    #[must_use]
    pub const fn empty() -> Self {
        Self(ByteStr::empty())
    }
}

/// Makes an MQTT string of `text`, with the errors of topics.
fn checked_string(text: impl Into<String>) -> Result<ByteStr, TopicError> {
    ByteStr::checked(text.into())
        .map_err(|(error, text)| string_error(error, text.as_bytes(), Characters::All))
}

/// Refuses bytes that are no MQTT string.
fn check_string(text: &[u8], characters: Characters) -> Result<(), TopicError> {
    check_text(text, characters).map_err(|error| string_error(error, text, characters))
}

fn string_error(error: StringError, text: &[u8], characters: Characters) -> TopicError {
    let place = first_refused(text, characters);
    TopicError::new(TopicErrorKind::String(error), text, place)
}

/// Refuses the wildcards, which a topic name does not have.
fn check_wildcards(text: &[u8]) -> Result<(), TopicError> {
    match text.iter().position(|b| matches!(b, b'+' | b'#')) {
        Some(place) => Err(TopicError::new(TopicErrorKind::Wildcard, text, Some(place))),
        None => Ok(()),
    }
}

/// Returns `true` if all bytes are printable ASCII other than `+` and `#`, as in nearly every topic
/// name.
///
/// Tests eight bytes at a time, some of the last eight twice. The general checks cost several times as
/// much for a name of usual length.
#[inline]
fn is_plain_ascii(bytes: &[u8]) -> bool {
    let Some(last) = bytes.last_chunk::<8>() else {
        let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'+' | b'#');
        return bytes.iter().all(plain);
    };
    let (words, _) = bytes.as_chunks::<8>();
    let odd = words
        .iter()
        .fold(odd_bytes(*last), |odd, word| odd | odd_bytes(*word));
    odd == 0
}

/// Returns a number that is not 0 if one of the bytes is `+`, `#`, below 0x20 or above 0x7E.
#[inline]
fn odd_bytes(word: [u8; 8]) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH_BITS: u64 = u64::from_ne_bytes([0x80; 8]);
    // The highest bit of the lowest byte below `bound`, and perhaps of others above it.
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & HIGH_BITS;
    let word = u64::from_ne_bytes(word);
    // `#` is `+` without bit 3, so with that bit set both are `+`.
    let wildcards = (word | ONES << 3) ^ u64::from_ne_bytes([b'+'; 8]);
    let deletes = word ^ (ONES * 0x7F);
    (word & HIGH_BITS) | below(word, 0x20) | below(wildcards, 1) | below(deletes, 1)
}

impl TopicFilter {
    /// Checks `text` and makes it a topic filter.
    ///
    /// # Errors
    /// If its wildcards or its `$share` prefix are wrong, it is empty, or is no MQTT string.
    pub fn new(text: impl Into<String>) -> Result<Self, TopicError> {
        Self::from_byte_str(checked_string(text)?)
    }

    /// Checks `text` and makes it a topic filter, as a client of `version` may send it.
    ///
    /// 5.0 brought shared subscriptions. Before it, a text that begins with `$share` and is not a valid
    /// shared subscription is an ordinary filter. A valid one shares in every version.
    ///
    /// # Errors
    /// See [`new`](Self::new); before 5.0 a wrong `$share` prefix is none.
    pub fn in_version(text: impl Into<String>, version: Version) -> Result<Self, TopicError> {
        Self::received(checked_string(text)?, version)
    }

    fn from_byte_str(text: ByteStr) -> Result<Self, TopicError> {
        let shared = shared_parts(&text)?;
        check_filter(&text, shared.map_or(&text, |shared| shared.filter))?;
        Ok(Self(text))
    }

    /// Checks the characters of a filter from the wire.
    pub(crate) fn check_received(text: &[u8], characters: Characters) -> Result<(), TopicError> {
        check_string(text, characters)
    }

    /// Checks a filter like [`in_version`](Self::in_version), for text from the wire.
    pub(crate) fn received(text: ByteStr, version: Version) -> Result<Self, TopicError> {
        if version < Version::V5 && shared_parts(&text).is_err() {
            check_filter(&text, &text)?;
            return Ok(Self(text));
        }
        Self::from_byte_str(text)
    }

    /// Returns the parts of a shared subscription; `None` for an ordinary one.
    #[must_use]
    pub fn shared(&self) -> Option<SharedFilter<'_>> {
        shared_parts(&self.0).ok().flatten()
    }

    /// Returns the filter that messages are matched with: a shared subscription's without `$share/group/`.
    #[must_use]
    pub fn matching(&self) -> &str {
        self.shared()
            .map_or(self.0.as_str(), |shared| shared.filter)
    }

    /// Returns `true` if the filter contains `+` or `#`.
    #[must_use]
    pub fn has_wildcard(&self) -> bool {
        self.0.as_bytes().iter().any(|b| matches!(b, b'+' | b'#'))
    }

    /// Returns `true` if the filter matches messages published to `topic` (§4.7).
    ///
    /// The cost is linear in the lengths. A broker with many filters keeps them in a trie.
    #[must_use]
    pub fn matches(&self, topic: &TopicName) -> bool {
        let (filter, topic) = (self.matching(), topic.as_str());
        // `[MQTT-4.7.2-1]`: a leading wildcard does not match topics that begin with `$`.
        if topic.starts_with('$') && !filter.starts_with('$') {
            return false;
        }
        let mut levels = topic.split('/');
        for wanted in filter.split('/') {
            match (wanted, levels.next()) {
                // `a/#` matches `a` as well (§4.7.1.2).
                ("#", _) => return true,
                ("+", Some(_)) => {}
                (wanted, Some(level)) if wanted == level => {}
                _ => return false,
            }
        }
        levels.next().is_none()
    }
}

fn shared_parts(text: &str) -> Result<Option<SharedFilter<'_>>, TopicError> {
    let Some(rest) = text.strip_prefix("$share/") else {
        return Ok(None);
    };
    match rest.split_once('/') {
        Some((group, filter))
            if !group.is_empty() && !group.contains(['+', '#']) && !filter.is_empty() =>
        {
            Ok(Some(SharedFilter { group, filter }))
        }
        _ => {
            let group = rest.split_once('/').map_or(rest, |(group, _)| group);
            let place = group.find(['+', '#']).map(|place| "$share/".len() + place);
            let kind = TopicErrorKind::Shared;
            Err(TopicError::new(kind, text.as_bytes(), place))
        }
    }
}

/// Checks the wildcards of `filter`, which `text` ends with.
fn check_filter(text: &str, filter: &str) -> Result<(), TopicError> {
    let refused = |kind, place: Option<usize>| Err(TopicError::new(kind, text.as_bytes(), place));
    if filter.is_empty() {
        return refused(TopicErrorKind::Empty, None);
    }
    let mut start = text.len() - filter.len();
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if let Some(place) = level.find('#')
            && (level != "#" || levels.peek().is_some())
        {
            return refused(TopicErrorKind::MultiLevelWildcard, Some(start + place));
        }
        if let Some(place) = level.find('+')
            && level != "+"
        {
            return refused(TopicErrorKind::SingleLevelWildcard, Some(start + place));
        }
        start += level.len() + 1;
    }
    Ok(())
}

macro_rules! as_text {
    ($type:ty) => {
        impl $type {
            /// Returns the text as [`ByteStr`].
            #[must_use]
            pub fn as_byte_str(&self) -> &ByteStr {
                &self.0
            }

            /// Copies a text that shares a read buffer into memory of its own; see
            /// [`ByteStr::detached`].
            #[must_use]
            pub fn detached(&self) -> Self {
                Self(self.0.detached())
            }

            /// Returns the text. Each call checks the UTF-8 again; see [`ByteStr::as_str`].
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }

            /// Returns the bytes of the text, for hot paths: nothing is checked again.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                self.0.as_bytes()
            }

            /// Returns the length of the text in bytes. Unlike `str::len`, it does not check the text
            /// first.
            #[must_use]
            pub fn len(&self) -> usize {
                self.0.len()
            }

            /// Returns `true` if the text is empty. Only a topic name can be: a topic alias stands for
            /// it in PUBLISH (§3.3.2.1).
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                self.0.as_str()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl TryFrom<&str> for $type {
            type Error = TopicError;

            fn try_from(text: &str) -> Result<Self, TopicError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $type {
            type Error = TopicError;

            fn try_from(text: String) -> Result<Self, TopicError> {
                Self::new(text)
            }
        }

        impl core::str::FromStr for $type {
            type Err = TopicError;

            fn from_str(text: &str) -> Result<Self, TopicError> {
                Self::new(text)
            }
        }
    };
}

as_text!(TopicName);
as_text!(TopicFilter);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked_as_the_specification_says() {
        for good in [
            "#",
            "+",
            "/",
            "a/+/#",
            "+/+",
            "/finance",
            "$SYS/#",
            "$share/g/a/#",
            "a//b",
        ] {
            assert!(TopicFilter::new(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", TopicErrorKind::Empty),
            ("a#", TopicErrorKind::MultiLevelWildcard),
            ("#/a", TopicErrorKind::MultiLevelWildcard),
            ("a/b+/c", TopicErrorKind::SingleLevelWildcard),
            ("$share/g", TopicErrorKind::Shared),
            ("$share//a", TopicErrorKind::Shared),
            ("$share/g/", TopicErrorKind::Shared),
            ("$share/g+/a", TopicErrorKind::Shared),
            ("$share/g/a#", TopicErrorKind::MultiLevelWildcard),
        ] {
            let error = TopicFilter::new(bad).unwrap_err();
            assert_eq!(error.kind(), why, "{bad}");
        }
    }

    #[test]
    fn matching_follows_the_examples_of_the_specification() {
        for (filter, topic, matches) in [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            (
                "sport/tennis/player1/#",
                "sport/tennis/player1/ranking",
                true,
            ),
            ("sport/#", "sport", true),
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("#", "$SYS/monitor", false),
            ("+/monitor/Clients", "$SYS/monitor/Clients", false),
            ("$SYS/#", "$SYS/monitor", true),
            ("$share/g/a/+", "a/b", true),
            ("a", "A", false),
        ] {
            let filter = TopicFilter::new(filter).unwrap();
            let topic = TopicName::new(topic).unwrap();
            assert_eq!(filter.matches(&topic), matches, "{filter} {topic}");
        }
    }

    #[test]
    fn a_forbidden_character_is_found_at_every_place() {
        for length in 0..40 {
            for place in 0..length {
                for odd in [0, b'+', b'#', 0x80, 0xFF] {
                    let mut name = vec![b'a'; length];
                    assert!(is_plain_ascii(&name));
                    name[place] = odd;
                    assert!(!is_plain_ascii(&name), "{name:?}");
                    assert!(TopicName::check_received(&name, Characters::All).is_err());
                }
            }
        }
        for byte in 1..0x80 {
            let plain = is_plain_ascii(&[byte; 9]);
            let expected = matches!(byte, b' '..=b'~') && !matches!(byte, b'+' | b'#');
            assert_eq!(plain, expected, "{byte:#x}");
            // Otherwise it is not plain, and may still be allowed.
            let allowed = TopicName::check_received(&[byte; 9], Characters::Allowed);
            assert_eq!(allowed.is_ok(), plain, "{byte:#x}");
        }
    }

    #[test]
    fn topic_names_have_no_wildcards() {
        let kind = |text: &str| TopicName::new(text).unwrap_err().kind();
        assert_eq!(kind("a/+"), TopicErrorKind::Wildcard);
        assert_eq!(kind("#"), TopicErrorKind::Wildcard);
        assert_eq!(kind(""), TopicErrorKind::Empty);
        let error = TopicName::check_received(b"a\xff", Characters::All).unwrap_err();
        assert_eq!(error.kind(), TopicErrorKind::String(StringError::NotUtf8));
    }
}
