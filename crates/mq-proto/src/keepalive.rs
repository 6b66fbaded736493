//! Keep-alive (§3.1.2.10), both roles, as pure arithmetic on instants.

use std::time::{Duration, Instant};

/// When to ask for a sign of life, and when to stop waiting for one.
///
/// Any packet sent or any byte received counts as life: a connection is never timed out while data
/// flows. The client asks (PINGREQ) when it has sent nothing *or* heard nothing for the keep-alive:
/// the second finds a dead server even while QoS 0 messages go out into the void.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    interval: Option<Duration>,
    role: Watch,
    last_sent: Instant,
    last_received: Instant,
}

#[derive(Debug)]
enum Watch {
    /// Client: pings, and since when an answer is due.
    Asks {
        timeout: Duration,
        asked: Option<Instant>,
    },
    /// Server: waits for one and a half times the interval `[MQTT-3.1.2-22]`.
    Waits,
}

/// What is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    Nothing,
    Ping,
    Dead,
}

impl KeepAlive {
    /// For a client; `seconds` 0 switches it off.
    pub(crate) fn client(now: Instant, seconds: u16, timeout: Duration) -> Self {
        Self::new(
            now,
            seconds,
            Watch::Asks {
                timeout,
                asked: None,
            },
        )
    }

    /// For a server; `seconds` 0 switches it off.
    pub(crate) fn server(now: Instant, seconds: u16) -> Self {
        Self::new(now, seconds, Watch::Waits)
    }

    fn new(now: Instant, seconds: u16, role: Watch) -> Self {
        Self {
            interval: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
            role,
            last_sent: now,
            last_received: now,
        }
    }

    pub(crate) fn sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    pub(crate) fn received(&mut self, now: Instant) {
        self.last_received = now;
        if let Watch::Asks { asked, .. } = &mut self.role {
            *asked = None;
        }
    }

    /// When [`due`](Self::due) has something to say next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let interval = self.interval?;
        Some(match self.role {
            Watch::Asks {
                timeout,
                asked: Some(asked),
            } => asked + timeout,
            Watch::Asks { asked: None, .. } => self.last_sent.min(self.last_received) + interval,
            Watch::Waits => self.last_received + interval + interval / 2,
        })
    }

    /// What is due at `now`. After [`Due::Ping`] the caller has sent one.
    pub(crate) fn due(&mut self, now: Instant) -> Due {
        if self.next().is_none_or(|next| now < next) {
            return Due::Nothing;
        }
        match &mut self.role {
            Watch::Asks {
                asked: asked @ None,
                ..
            } => {
                *asked = Some(now);
                Due::Ping
            }
            Watch::Asks { .. } | Watch::Waits => Due::Dead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_client_pings_when_it_was_silent_and_dies_without_an_answer() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 10, 5 * SECOND);
        keep_alive.sent(start + 4 * SECOND);
        keep_alive.received(start + 4 * SECOND);
        assert_eq!(keep_alive.next(), Some(start + 14 * SECOND));
        assert_eq!(keep_alive.due(start + 13 * SECOND), Due::Nothing);
        assert_eq!(keep_alive.due(start + 14 * SECOND), Due::Ping);
        assert_eq!(keep_alive.due(start + 18 * SECOND), Due::Nothing);
        assert_eq!(keep_alive.due(start + 19 * SECOND), Due::Dead);
    }

    #[test]
    fn any_byte_answers_a_ping() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 10, 5 * SECOND);
        assert_eq!(keep_alive.due(start + 10 * SECOND), Due::Ping);
        keep_alive.sent(start + 10 * SECOND);
        keep_alive.received(start + 14 * SECOND);
        assert_eq!(keep_alive.due(start + 19 * SECOND), Due::Nothing);
        assert_eq!(keep_alive.next(), Some(start + 20 * SECOND));
    }

    #[test]
    fn a_client_that_only_sends_still_finds_a_dead_server() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 10, 5 * SECOND);
        for second in 1..=10 {
            keep_alive.sent(start + second * SECOND);
        }
        assert_eq!(keep_alive.due(start + 10 * SECOND), Due::Ping);
        keep_alive.sent(start + 14 * SECOND);
        assert_eq!(keep_alive.due(start + 15 * SECOND), Due::Dead);
    }

    #[test]
    fn a_server_waits_one_and_a_half_times_the_interval() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::server(start, 10);
        keep_alive.received(start + SECOND);
        assert_eq!(keep_alive.due(start + 15 * SECOND), Due::Nothing);
        assert_eq!(keep_alive.due(start + 16 * SECOND), Due::Dead);
    }

    #[test]
    fn zero_switches_it_off() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::server(start, 0);
        assert_eq!(keep_alive.next(), None);
        assert_eq!(keep_alive.due(start + 1_000_000 * SECOND), Due::Nothing);
    }
}
