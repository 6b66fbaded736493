//! Backoff of reconnects: pure arithmetic.

use std::time::Duration;

/// Backoff after a connection was lost or could not be made.
///
/// The first wait is about `initial`, each further one `factor` times as long, up to `max`. A
/// connection that lasted longer than the last wait, and longer than 5 s, starts the sequence anew. A
/// shorter connection does not, so that a server that accepts and drops is not hammered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reconnect {
    /// The first wait. Default: 250 ms, hardly noticed, and long enough for a broker to restart
    /// its listener.
    pub initial: Duration,
    /// The longest wait. Default: 30 s.
    pub max: Duration,
    /// Factor by which each wait is longer than the one before. Default: 2.
    pub factor: f64,
    /// The share of each wait that is random, from 0 to 1: clients that lost the same broker must
    /// not come back together. Default: 0.5, from half of the wait to all of it.
    pub jitter: f64,
    /// Attempts without a connection in between; `None` is no limit, 0 never connects again.
    /// Default: none.
    pub attempts: Option<u32>,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(250),
            max: Duration::from_secs(30),
            factor: 2.0,
            jitter: 0.5,
            attempts: None,
        }
    }
}

impl Reconnect {
    /// Does not connect again: the first loss ends the client.
    #[must_use]
    pub fn never() -> Self {
        Self {
            attempts: Some(0),
            ..Self::default()
        }
    }
}

/// A connection has to last this long to prove that the server can serve this client. Otherwise a server
/// that drops each client after 1 s would see it come back each second.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// The waits of one client.
#[derive(Debug)]
pub(crate) struct Backoff {
    policy: Reconnect,
    attempts: u32,
    wait: Duration,
}

impl Backoff {
    pub(crate) fn new(policy: Reconnect) -> Self {
        Self {
            policy,
            attempts: 0,
            wait: Duration::ZERO,
        }
    }

    /// Returns the number of the next attempt and the wait before it; `None` if the attempts are used up.
    pub(crate) fn next(&mut self) -> Option<(u32, Duration)> {
        let Reconnect {
            initial,
            max,
            factor,
            jitter,
            attempts,
        } = self.policy;
        if attempts.is_some_and(|limit| self.attempts >= limit) {
            return None;
        }
        self.attempts = self.attempts.saturating_add(1);
        let longer = self.wait.as_secs_f64() * factor.max(1.0);
        self.wait = Duration::try_from_secs_f64(longer)
            .unwrap_or(max)
            .clamp(initial.min(max), max);
        let random = self
            .wait
            .mul_f64(jitter.clamp(0.0, 1.0) * rand::random::<f64>());
        Some((self.attempts, self.wait.saturating_sub(random)))
    }

    /// Records that a connection was made and has ended after `lasted`.
    pub(crate) fn connected(&mut self, lasted: Duration) {
        self.attempts = 0;
        if lasted > self.wait.max(STABLE_AFTER) {
            self.wait = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed() -> Reconnect {
        Reconnect {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(1),
            jitter: 0.0,
            ..Reconnect::default()
        }
    }

    fn waits(backoff: &mut Backoff, count: usize) -> Vec<u128> {
        (0..count)
            .map(|_| backoff.next().unwrap().1.as_millis())
            .collect()
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut backoff = Backoff::new(fixed());
        assert_eq!(waits(&mut backoff, 6), [100, 200, 400, 800, 1000, 1000]);
    }

    #[test]
    fn a_connection_that_lasted_starts_anew() {
        let mut backoff = Backoff::new(fixed());
        assert_eq!(waits(&mut backoff, 2), [100, 200]);
        backoff.connected(Duration::from_millis(150));
        assert_eq!(waits(&mut backoff, 1), [400]);
        backoff.connected(Duration::from_mins(1));
        assert_eq!(waits(&mut backoff, 1), [100]);
    }

    #[test]
    fn a_server_that_soon_drops_its_clients_is_not_hammered() {
        let mut backoff = Backoff::new(fixed());
        let mut last = 0;
        for _ in 0..10 {
            last = backoff.next().unwrap().1.as_millis();
            backoff.connected(Duration::from_secs(4));
        }
        assert_eq!(last, 1000);
        backoff.connected(Duration::from_secs(6));
        assert_eq!(waits(&mut backoff, 1), [100]);
    }

    #[test]
    fn jitter_takes_away_its_share_at_most() {
        let policy = Reconnect {
            jitter: 0.5,
            max: Duration::from_millis(100),
            ..fixed()
        };
        let mut backoff = Backoff::new(policy);
        let waits = waits(&mut backoff, 100);
        assert!(waits.iter().all(|wait| (50..=100).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 75) && waits.iter().any(|wait| *wait > 75));
    }

    #[test]
    fn attempts_are_counted_without_a_connection() {
        let policy = Reconnect {
            attempts: Some(2),
            ..fixed()
        };
        let mut backoff = Backoff::new(policy);
        assert_eq!(backoff.next().unwrap().0, 1);
        assert_eq!(backoff.next().unwrap().0, 2);
        assert!(backoff.next().is_none());
        backoff.connected(Duration::ZERO);
        assert_eq!(backoff.next().unwrap().0, 1);
        assert!(Backoff::new(Reconnect::never()).next().is_none());
    }
}
