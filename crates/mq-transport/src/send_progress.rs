//! Progress of the bytes that this side sends.

/// Progress of the bytes that a link sends, as the transport of its peer acknowledges them.
///
/// Two of them, from two times, tell a slow link from a dead one: see [`advanced_since`](Self::advanced_since).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendProgress(pub(crate) Counts);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Counts {
    /// No progress is known: the transport, or the system, does not report it.
    #[default]
    Unknown,
    /// Progress of a byte stream of the kernel.
    Bytes {
        /// Bytes that the peer's kernel has acknowledged. Those of WebSocket around the application's bytes are not
        /// counted without TLS, so that this may be a little low.
        acknowledged: u64,
        /// Bytes in the kernel that the peer's kernel has not acknowledged.
        waiting: u64,
    },
    /// Progress of a QUIC connection, whose stack does not report acknowledged bytes.
    #[cfg(feature = "quic")]
    Frames {
        /// STREAM frames sent.
        streams: u64,
        /// ACK frames received.
        acks: u64,
    },
}

/// STREAM frames within which a PINGREQ and its retransmissions may be all that was sent.
#[cfg(feature = "quic")]
const FRAMES_OF_PING: u64 = 2;

impl SendProgress {
    /// Returns true if bytes that waited at the time of `earlier` have reached the peer since: what was written after
    /// them may still be on its way. Bytes that were written later alone, such as a PINGREQ that the peer's
    /// system acknowledges for a program that hangs, do not count.
    #[must_use]
    pub fn advanced_since(&self, earlier: &Self) -> bool {
        match (self.0, earlier.0) {
            (
                Counts::Bytes { acknowledged, .. },
                Counts::Bytes {
                    acknowledged: before,
                    waiting,
                },
            ) => waiting > 0 && acknowledged > before,
            #[cfg(feature = "quic")]
            (
                Counts::Frames { streams, acks },
                Counts::Frames {
                    streams: streams_before,
                    acks: acks_before,
                },
            ) => streams > streams_before + FRAMES_OF_PING && acks > acks_before,
            _ => false,
        }
    }

    /// Progress of a stream of the kernel that has taken `sent` bytes.
    pub(crate) fn of_stream(sent: u64, waiting: Option<u64>) -> Self {
        Self(waiting.map_or(Counts::Unknown, |waiting| Counts::Bytes {
            acknowledged: sent.saturating_sub(waiting),
            waiting,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_waited_before_are_progress_and_a_ping_alone_is_none() {
        let at = |sent, waiting| SendProgress::of_stream(sent, Some(waiting));
        assert!(at(1000, 300).advanced_since(&at(1000, 400)));
        assert!(!at(1000, 400).advanced_since(&at(1000, 400)));
        // PINGREQ, acknowledged by a system whose program hangs.
        assert!(!at(1002, 0).advanced_since(&at(1000, 0)));
        assert!(!at(1000, 0).advanced_since(&SendProgress::default()));
    }

    #[cfg(feature = "quic")]
    #[test]
    fn frames_beyond_a_ping_are_progress_once_acknowledged() {
        let at = |streams, acks| SendProgress(Counts::Frames { streams, acks });
        assert!(at(10, 4).advanced_since(&at(5, 3)));
        assert!(!at(10, 3).advanced_since(&at(5, 3)));
        assert!(!at(7, 4).advanced_since(&at(5, 3)));
    }
}
