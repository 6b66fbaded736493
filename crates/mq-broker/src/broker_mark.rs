//! Marks of the brokers that a message has been at, by which none passes a broker twice over bridges.

use std::hash::{BuildHasher, RandomState};

use mq_codec::ByteStr;
use mq_proto::Message;

/// The user property (5.0) with the marks of the brokers that a message has been at, as far as bridges of this make
/// carried it there or away, with commas between them. A broker that it has not left by a bridge has [`STAYS_SUFFIX`]
/// behind its mark.
///
/// A bridge's CONNECT has its broker's mark under this name, and CONNACK to it the remote broker's.
const PROPERTY: &str = "mq-bridges";

const STAYS_SUFFIX: char = '<';

/// Bytes of a mark: hexadecimal digits.
const MARK_LEN: usize = 8;

/// The mark of a broker, shared by all its bridges. No two are equal, but by rare chance; a broker that starts anew has
/// another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BrokerMark(String);

impl BrokerMark {
    /// Returns a new mark.
    pub(crate) fn random() -> Self {
        let random = RandomState::new().hash_one(0);
        Self(format!("{random:016x}")[..MARK_LEN].to_owned())
    }

    /// Returns the mark in a bridge's CONNECT or its CONNACK, if there is one. Each message that is carried gets it, so one
    /// that is too long to be this make's is none.
    pub(crate) fn of_peer(user_properties: &[(ByteStr, ByteStr)]) -> Option<Self> {
        let (_, mark) = user_properties
            .iter()
            .find(|(name, mark)| **name == *PROPERTY && mark.len() == MARK_LEN)?;
        Some(Self(mark.to_string()))
    }

    /// Returns the property with this mark, for CONNECT and CONNACK.
    pub(crate) fn property(&self) -> (ByteStr, ByteStr) {
        let text = |text: &str| ByteStr::new(text).expect("a short string of ASCII");
        (text(PROPERTY), text(&self.0))
    }

    /// Returns `true` if a message has been at this broker.
    pub(crate) fn is_on(&self, message: &Message) -> bool {
        passed(message).any(|mark| mark.trim_end_matches(STAYS_SUFFIX) == self.0)
    }

    /// Returns `true` if a bridge has brought a message to this broker, which it has not left by a bridge.
    pub(crate) fn stays(&self, message: &Message) -> bool {
        let last = passed(message).last();
        last.and_then(|last| last.strip_suffix(STAYS_SUFFIX)) == Some(&self.0)
    }

    /// Marks a message that leaves this broker by a bridge.
    pub(crate) fn leave(&self, message: &mut Message) {
        let replaced = usize::from(self.stays(message));
        pass(message, replaced, &self.0);
    }

    /// Marks a message that a bridge has brought to this broker.
    pub(crate) fn arrive(&self, message: &mut Message) {
        pass(message, 0, &format!("{}{STAYS_SUFFIX}", self.0));
    }
}

/// Returns the number of bridges that a message has passed.
pub(crate) fn bridges_passed(message: &Message) -> usize {
    let stays = passed(message)
        .last()
        .is_some_and(|last| last.ends_with(STAYS_SUFFIX));
    let brokers = passed(message).count();
    // The broker where it stays was not left by a bridge; one that brought it from a broker of another make counts.
    if stays {
        brokers.saturating_sub(1).max(1)
    } else {
        brokers
    }
}

/// Returns the marks of the brokers that a message has been at. A property with other content is a client's, and
/// counts.
fn passed(message: &Message) -> impl Iterator<Item = &str> + Clone {
    let properties = message.properties.user_properties.iter();
    let passed = properties.filter(|(name, _)| name.as_str() == PROPERTY);
    passed.flat_map(|(_, marks)| marks.split(','))
}

/// Adds a mark, in the place of that many others.
fn pass(message: &mut Message, replaced: usize, mark: &str) {
    let mut passed: Vec<_> = passed(message).collect();
    passed.truncate(passed.len() - replaced);
    passed.push(mark);
    let text = |text: &str| ByteStr::new(text).ok();
    // Longer than MQTT allows only if a stranger has made it so.
    let passed = text(&passed.join(",")).or_else(|| text(mark));
    let properties = &mut message.properties.user_properties;
    properties.retain(|(name, _)| name.as_str() != PROPERTY);
    properties.extend(text(PROPERTY).zip(passed));
}
