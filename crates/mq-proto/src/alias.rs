//! Topic aliases (MQTT 5.0 §3.3.2.3.4), a type for each direction.

use hashbrown::HashMap;
use mq_codec::TopicName;

use crate::ProtocolError;

/// Aliases that this side may use for its messages.
///
/// The first topics get an alias and keep it: with more topics than aliases, replacing aliases would
/// send the full name about as often.
#[derive(Debug, Default)]
pub(crate) struct SendAliases {
    maximum: u16,
    by_topic: HashMap<TopicName, u16>,
    /// Bytes of the topics.
    bytes: usize,
}

/// How a topic is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendTopic {
    /// By name alone.
    Name,
    /// By name, which gets this alias from now on.
    Introduce(u16),
    /// By this alias alone.
    Alias(u16),
}

impl SendAliases {
    pub(crate) fn new(maximum: u16) -> Self {
        Self {
            maximum,
            by_topic: HashMap::new(),
            bytes: 0,
        }
    }

    /// How to write `topic` now. Call [`introduced`](Self::introduced) once it was written.
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

    /// The approximate memory of the aliases, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Aliases that the peer has set for its messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceiveAliases {
    maximum: u16,
    topics: Vec<Option<TopicName>>,
    /// Bytes of the topics.
    bytes: usize,
}

impl ReceiveAliases {
    pub(crate) fn new(maximum: u16) -> Self {
        Self {
            maximum,
            topics: Vec::new(),
            bytes: 0,
        }
    }

    /// Goes on with the topics of an earlier lane, as far as the maximum allows.
    pub(crate) fn go_on(&mut self, mut earlier: Self) {
        earlier.topics.truncate(self.maximum.into());
        let topics = earlier.topics.iter().flatten();
        self.bytes = topics.map(TopicName::len).sum();
        self.topics = earlier.topics;
    }

    /// The topic that a PUBLISH with `alias` and possibly a name means.
    pub(crate) fn resolve(
        &mut self,
        alias: u16,
        topic: TopicName,
    ) -> Result<TopicName, ProtocolError> {
        let invalid = ProtocolError::TopicAlias(alias);
        if alias == 0 || alias > self.maximum {
            return Err(invalid);
        }
        let index = usize::from(alias - 1);
        if topic.is_empty() {
            let known = self.topics.get(index).cloned().flatten();
            return known.ok_or(ProtocolError::UnknownTopicAlias(alias));
        }
        if self.topics.len() <= index {
            self.topics.resize(index + 1, None);
        }
        let before = self.topics[index].replace(topic.detached());
        self.bytes -= before.map_or(0, |before| before.len());
        self.bytes += topic.len();
        Ok(topic)
    }

    /// The approximate memory of the aliases, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.topics.len() * size_of::<Option<TopicName>>()
    }
}
