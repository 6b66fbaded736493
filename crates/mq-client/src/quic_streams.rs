//! The choice of a QUIC stream for each message.

use mq_codec::TopicFilter;
use mq_proto::Spread;

/// Policy for the QUIC stream of each message and each subscription (MQTT over QUIC in EMQX's form).
///
/// On one stream a lost packet holds up everything behind it. Messages on other streams arrive meanwhile.
/// Order is promised within a topic (§4.6), so a topic keeps its stream, except with
/// [`PerPublish`](Self::PerPublish). Where the server grants no further stream, and over other transports,
/// everything goes on the control stream. So do early data, QoS 2 messages to a server that counts packet
/// identifiers by stream, and everything once the server has broken off a stream before anything came back on one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum QuicStreams {
    /// Everything on the control stream, as any server understands it.
    #[default]
    Control,
    /// A stream for each topic, and one for each subscription, up to `most` together. Further topics share these
    /// streams, each always the same one: a topic that moved to another stream could overtake itself.
    PerTopic {
        /// Bound on the number of streams.
        most: u16,
    },
    /// A stream for each message. Messages of one topic may overtake each other. More messages than the
    /// server grants streams at a time go on the control stream.
    PerPublish,
    /// A stream for each of these priorities. While something waits to be sent on a stream of a higher
    /// priority, streams of a lower one wait.
    ByPriority(Vec<Priority>),
    /// The control stream for as long as no packet is lost and nothing queues up; from then on
    /// [`PerTopic`](Self::PerTopic). The change takes one round trip, in which no message is sent.
    Auto {
        /// Bound on the number of streams.
        most: u16,
    },
}

/// The topics of one priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Priority {
    /// The topics. The first rule that matches counts; other topics go on the control stream, of priority
    /// 0.
    pub topics: TopicFilter,
    /// Higher goes first.
    pub priority: i32,
}

impl QuicStreams {
    /// Default bound on the streams of [`PerTopic`](Self::PerTopic) and [`Auto`](Self::Auto): as many as this
    /// project's broker grants, but for the control stream.
    pub const MOST: u16 = Spread::MOST;

    /// Returns the spreading of topics over lanes.
    pub(crate) fn spread(&self) -> Spread {
        match self {
            Self::Control => Spread::Control,
            // Its lanes are by rule, and none by topic.
            Self::ByPriority(_) => Spread::PerTopic { most: 0 },
            Self::PerTopic { most } => Spread::PerTopic { most: *most },
            Self::PerPublish => Spread::PerPublish,
            Self::Auto { most } => Spread::Auto { most: *most },
        }
    }
}

impl core::str::FromStr for QuicStreams {
    type Err = UnknownQuicStreams;

    /// Parses `control`, `per-topic`, `per-publish` or `auto`; `per-topic:N` and `auto:N` for at most `N` streams.
    fn from_str(text: &str) -> Result<Self, UnknownQuicStreams> {
        let spread = text.parse();
        let spread = spread.map_err(|_| UnknownQuicStreams(text.to_owned()))?;
        Ok(match spread {
            Spread::Control => Self::Control,
            Spread::PerTopic { most } => Self::PerTopic { most },
            Spread::PerPublish => Self::PerPublish,
            Spread::Auto { most } => Self::Auto { most },
        })
    }
}

impl core::fmt::Display for QuicStreams {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::ByPriority(_) => f.write_str("by-priority"),
            other => other.spread().fmt(f),
        }
    }
}

/// A text that names no [`QuicStreams`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("streams cannot be `{0}`: use one of control, per-topic[:N], per-publish, auto[:N]")]
pub struct UnknownQuicStreams(String);
