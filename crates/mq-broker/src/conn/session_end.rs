//! The consequences of a connection's end for its session: the will, and the session's expiry.

use std::time::Duration;

use mq_codec::{Disconnect, ReasonCode};

use crate::session::KeptWill;

/// The will and the expiry that take effect once the connection has ended.
pub(super) struct SessionEnd {
    pub(super) will: Option<Box<KeptWill>>,
    /// Time for which the session lives on: zero ends it with the connection, `None` never.
    pub(super) expiry: Option<Duration>,
}

impl SessionEnd {
    /// Takes DISCONNECT, which has the last word about the will and the session's life.
    pub(super) fn disconnected_by_client(
        &mut self,
        disconnect: &Disconnect,
        maximum: Option<Duration>,
    ) {
        // Only a normal disconnection takes it back `[MQTT-3.14.4-3]`; before 5.0 there is no other.
        if disconnect.reason == ReasonCode::Success {
            self.will = None;
        }
        // A session that was to end with the connection cannot be kept after all: the state machine has
        // refused that before.
        if let Some(seconds) = disconnect.properties.session_expiry_interval {
            self.expiry = bounded_expiry(seconds, maximum);
        }
    }
}

/// Returns the life of a session whose client asks for `seconds`; `maximum` is the longest life. `None`
/// is for ever, and so is the largest number of seconds (§3.1.2.11.2).
pub(super) fn bounded_expiry(seconds: u32, maximum: Option<Duration>) -> Option<Duration> {
    let wanted = (seconds < u32::MAX).then(|| Duration::from_secs(seconds.into()));
    match (wanted, maximum) {
        (Some(wanted), Some(maximum)) => Some(wanted.min(maximum)),
        (wanted, maximum) => wanted.or(maximum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lives_as_long_as_asked_for_and_never_longer_than_the_longest() {
        let seconds = |count| Some(Duration::from_secs(count));
        for (wanted, maximum, lives) in [
            (0, None, seconds(0)),
            (9, None, seconds(9)),
            (u32::MAX, None, None),
            (9, seconds(5), seconds(5)),
            (3, seconds(5), seconds(3)),
            (u32::MAX, seconds(5), seconds(5)),
            // A maximum beyond what 32 bits say.
            (u32::MAX, seconds(1 << 33), seconds(1 << 33)),
        ] {
            assert_eq!(
                bounded_expiry(wanted, maximum),
                lives,
                "{wanted} {maximum:?}"
            );
        }
    }
}
