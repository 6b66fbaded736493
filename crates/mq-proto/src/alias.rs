//! Topic aliases (MQTT 5.0 §3.3.2.3.4), a type for each direction.

use mq_codec::TopicName;

use crate::{ProtocolError, seldom::SeldomMap};

/// Aliases that this side may use for its messages.
///
/// The first topics get an alias and keep it: with more topics than aliases, replacing aliases would
/// send the full name about as often.
#[derive(Debug, Default)]
pub(crate) struct SendAliases {
    maximum: u16,
    by_topic: SeldomMap<TopicName, u16>,
    /// Approximate memory of the topics and their aliases, in bytes.
    bytes: usize,
}

/// Form in which a PUBLISH has its topic (§3.3.2.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendTopic {
    /// The topic name alone.
    Name,
    /// The topic name with this alias, which stands for it from now on.
    Introduce(u16),
    /// The alias alone, without the topic name.
    Alias(u16),
}

impl SendAliases {
    pub(crate) fn new(maximum: u16) -> Self {
        Self {
            maximum,
            by_topic: SeldomMap::default(),
            bytes: 0,
        }
    }

    /// Returns the form in which to write `topic` now. Call [`introduced`](Self::introduced) once a new alias
    /// was written.
    pub(crate) fn look_up(&self, topic: &TopicName) -> SendTopic {
        if self.maximum == 0 {
            return SendTopic::Name;
        }
        match self.by_topic.get(topic) {
            Some(alias) => SendTopic::Alias(*alias),
            None => u16::try_from(self.by_topic.len() + 1)
                .ok()
                .filter(|alias| *alias <= self.maximum)
                .map_or(SendTopic::Name, SendTopic::Introduce),
        }
    }

    pub(crate) fn introduced(&mut self, topic: &TopicName, alias: u16) {
        self.bytes += topic.len() + size_of::<(TopicName, u16)>();
        self.by_topic.insert(topic.detached(), alias);
    }

    /// Returns the approximate memory of the aliases, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Aliases that the peer has set for its messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceiveAliases {
    maximum: u16,
    /// The topics of the aliases; `None` until the peer has set an alias.
    known: Option<Box<KnownAliases>>,
}

#[derive(Clone, Debug, Default)]
struct KnownAliases {
    topics: Vec<Option<TopicName>>,
    /// Length of all topics together, in bytes.
    bytes: usize,
}

impl ReceiveAliases {
    pub(crate) fn new(maximum: u16) -> Self {
        Self {
            maximum,
            known: None,
        }
    }

    /// Takes over the topics of an earlier lane, as far as the maximum allows.
    #[cfg(feature = "mqtt-next")]
    pub(crate) fn go_on(&mut self, earlier: Self) {
        self.known = earlier.known;
        if let Some(known) = &mut self.known {
            known.topics.truncate(self.maximum.into());
            known.bytes = known.topics.iter().flatten().map(TopicName::len).sum();
        }
    }

    /// Returns the topic of a PUBLISH with `alias`. A topic name beside the alias sets it; an empty one uses
    /// it.
    pub(crate) fn resolve(
        &mut self,
        alias: u16,
        topic: TopicName,
    ) -> Result<TopicName, ProtocolError> {
        let maximum = self.maximum;
        if alias == 0 || alias > maximum {
            return Err(ProtocolError::TopicAlias { alias, maximum });
        }
        let index = usize::from(alias - 1);
        if topic.is_empty() {
            let known = self.known.as_ref();
            let known = known.and_then(|known| known.topics.get(index).cloned().flatten());
            return known.ok_or(ProtocolError::UnknownTopicAlias(alias));
        }
        let known = self.known.get_or_insert_default();
        if known.topics.len() <= index {
            known.topics.resize(index + 1, None);
        }
        let before = known.topics[index].replace(topic.detached());
        known.bytes -= before.map_or(0, |before| before.len());
        known.bytes += topic.len();
        Ok(topic)
    }

    /// Returns the approximate memory of the aliases, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.known.as_ref().map_or(0, |known| {
            known.bytes + known.topics.len() * size_of::<Option<TopicName>>()
        })
    }
}
