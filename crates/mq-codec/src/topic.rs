//! Topic names and topic filters, checked once where they enter.

use core::{fmt, ops::Deref};

use bytes::Bytes;

use crate::{ByteStr, StringError};

/// A topic name: what a message is published to. At least one character, no wildcard.
///
/// A decoded PUBLISH that uses a topic alias alone carries the empty name, the only way to get
/// one; see [`TopicName::is_empty`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TopicName(ByteStr);

/// A topic filter: what a subscription asks for, with `+` and `#`, also `$share/group/filter`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TopicFilter(ByteStr);

/// The parts of a shared subscription's filter `$share/{group}/{filter}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedFilter<'a> {
    /// The share name: at least one character, without `/`, `+` and `#`.
    pub group: &'a str,
    /// The filter that messages are matched with.
    pub filter: &'a str,
}

/// Why a text is not a topic name or a topic filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopicError {
    /// Not an MQTT string at all.
    #[error(transparent)]
    String(#[from] StringError),
    /// Empty `[MQTT-4.7.3-1]`.
    #[error("a topic needs at least one character")]
    Empty,
    /// A topic name with `+` or `#` `[MQTT-3.3.2-2]`.
    #[error("a topic name must not contain the wildcards + and #")]
    Wildcard,
    /// `#` that is not a whole level at the end `[MQTT-4.7.1-1]`.
    #[error("# must be the whole last level of a topic filter")]
    MultiLevelWildcard,
    /// `+` that is not a whole level `[MQTT-4.7.1-2]`.
    #[error("+ must be a whole level of a topic filter")]
    SingleLevelWildcard,
    /// `$share` without a share name and a filter `[MQTT-4.8.2-1]`, `[MQTT-4.8.2-2]`.
    #[error("a shared subscription is $share/group/filter, its group without + and #")]
    Shared,
}

impl TopicName {
    /// A topic name of `text`.
    ///
    /// # Errors
    /// If it is empty, has a wildcard, or is no MQTT string.
    pub fn new(text: impl Into<String>) -> Result<Self, TopicError> {
        let text = ByteStr::new(text)?;
        if text.as_bytes().is_empty() {
            return Err(TopicError::Empty);
        }
        if text.as_bytes().iter().any(|b| matches!(b, b'+' | b'#')) {
            return Err(TopicError::Wildcard);
        }
        Ok(Self(text))
    }

    /// From the wire; the empty name is allowed, since a topic alias may stand in for it.
    pub(crate) fn from_wire(bytes: Bytes) -> Result<Self, TopicError> {
        let mut forbidden = false;
        let mut nul = false;
        let mut ascii = true;
        for byte in &bytes {
            forbidden |= matches!(byte, b'+' | b'#');
            nul |= *byte == 0;
            ascii &= *byte < 0x80;
        }
        if !ascii && core::str::from_utf8(&bytes).is_err() {
            return Err(StringError::NotUtf8.into());
        }
        if nul {
            return Err(StringError::Nul.into());
        }
        if forbidden {
            return Err(TopicError::Wildcard);
        }
        Ok(Self(ByteStr::from_checked(bytes)))
    }

    /// The name of no characters, which stands for "see the topic alias" on the wire.
    #[must_use]
    pub const fn empty() -> Self {
        Self(ByteStr::empty())
    }

    /// Whether this is the empty name of a PUBLISH with a topic alias.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.as_bytes().is_empty()
    }

    /// The string.
    #[must_use]
    pub fn as_byte_str(&self) -> &ByteStr {
        &self.0
    }

    /// The same name in memory of its own.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(self.0.detached())
    }
}

impl TopicFilter {
    /// A topic filter of `text`.
    ///
    /// # Errors
    /// If its wildcards or its `$share` prefix are wrong, it is empty, or is no MQTT string.
    pub fn new(text: impl Into<String>) -> Result<Self, TopicError> {
        Self::from_byte_str(ByteStr::new(text)?)
    }

    pub(crate) fn from_byte_str(text: ByteStr) -> Result<Self, TopicError> {
        match shared_parts(&text)? {
            Some(shared) => check_filter(shared.filter)?,
            None => check_filter(&text)?,
        }
        Ok(Self(text))
    }

    /// The parts of a shared subscription; `None` for an ordinary one.
    #[must_use]
    pub fn shared(&self) -> Option<SharedFilter<'_>> {
        shared_parts(&self.0).ok().flatten()
    }

    /// The filter that messages are matched with: without `$share/group/`.
    #[must_use]
    pub fn matching(&self) -> &str {
        self.shared()
            .map_or(self.0.as_str(), |shared| shared.filter)
    }

    /// Whether the filter has a wildcard.
    #[must_use]
    pub fn has_wildcard(&self) -> bool {
        self.0.as_bytes().iter().any(|b| matches!(b, b'+' | b'#'))
    }

    /// Whether a message published to `topic` matches (§4.7).
    ///
    /// Cost: linear in the lengths. A broker that has many filters keeps them in a trie.
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

    /// The string.
    #[must_use]
    pub fn as_byte_str(&self) -> &ByteStr {
        &self.0
    }

    /// The same filter in memory of its own.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(self.0.detached())
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
        _ => Err(TopicError::Shared),
    }
}

fn check_filter(filter: &str) -> Result<(), TopicError> {
    if filter.is_empty() {
        return Err(TopicError::Empty);
    }
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return Err(TopicError::MultiLevelWildcard);
        }
        if level.contains('+') && level != "+" {
            return Err(TopicError::SingleLevelWildcard);
        }
    }
    Ok(())
}

macro_rules! as_text {
    ($type:ty) => {
        impl $type {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }

            /// The bytes of the text, for hot paths: nothing is checked again.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                self.0.as_bytes()
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
            ("", TopicError::Empty),
            ("a#", TopicError::MultiLevelWildcard),
            ("#/a", TopicError::MultiLevelWildcard),
            ("a/b+/c", TopicError::SingleLevelWildcard),
            ("$share/g", TopicError::Shared),
            ("$share//a", TopicError::Shared),
            ("$share/g/", TopicError::Shared),
            ("$share/g+/a", TopicError::Shared),
            ("$share/g/a#", TopicError::MultiLevelWildcard),
        ] {
            assert_eq!(TopicFilter::new(bad), Err(why), "{bad}");
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
    fn topic_names_have_no_wildcards() {
        assert_eq!(TopicName::new("a/+"), Err(TopicError::Wildcard));
        assert_eq!(TopicName::new("#"), Err(TopicError::Wildcard));
        assert_eq!(TopicName::new(""), Err(TopicError::Empty));
        assert_eq!(
            TopicName::from_wire(Bytes::from_static(b"a\xff")),
            Err(TopicError::String(StringError::NotUtf8))
        );
    }
}
