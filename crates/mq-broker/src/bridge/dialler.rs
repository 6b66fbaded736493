//! The addresses that a bridge dials, and the backoff between two connections.

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use mq_transport::{Address, Connector, Dial, Error, Link};
use tracing::debug;

use crate::clock;

/// Time for which an address that has failed is not the first to be tried, if another one did not fail.
const FALLBACK_TIME: Duration = Duration::from_mins(5);

/// The first backoff before connecting again.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);

/// The duration of a connection from which on the remote broker counts as one that serves this one.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Dials the addresses of a remote broker in their order.
#[derive(Debug)]
pub(super) struct Dialler {
    /// The addresses, at least one; the first is preferred.
    addresses: Vec<Address>,
    connector: Connector,
    /// An address that is tried before the first one, and the time until which that is so.
    fallen_back: Option<(usize, Instant)>,
}

impl Dialler {
    pub(super) fn new(addresses: Vec<Address>, connector: Connector) -> Self {
        Self {
            addresses,
            connector,
            fallen_back: None,
        }
    }

    /// Returns a link to the first address that answers. Over TLS and QUIC the link may still
    /// accept early data.
    ///
    /// # Errors
    /// The error of the last address, if none answers.
    pub(super) async fn dial(&mut self) -> Result<Link, Error> {
        let first = self.first(clock::now());
        let others = (0..self.addresses.len()).filter(|index| *index != first);
        let dial = Dial {
            quic_keep_alive: self.connector.options().quic.keep_alive_below_idle(),
            ..Dial::default()
        };
        let mut failed = None;
        for index in [first].into_iter().chain(others) {
            let address = &self.addresses[index];
            match self.connector.connect_with(address, dial).await {
                Ok(link) => {
                    self.answered(index, clock::now());
                    return Ok(link);
                }
                Err(error) => {
                    debug!(%address, %error, "bridge: cannot connect to address");
                    failed = Some(error);
                }
            }
        }
        Err(failed.expect("there is an address"))
    }

    fn first(&self, now: Instant) -> usize {
        match self.fallen_back {
            Some((index, until)) if now < until => index,
            _ => 0,
        }
    }

    fn answered(&mut self, index: usize, now: Instant) {
        if index == 0 {
            self.fallen_back = None;
        } else if index != self.first(now) {
            self.fallen_back = Some((index, now + FALLBACK_TIME));
        }
    }
}

/// The backoff before connecting again: each is twice as long as the one before, the second half of
/// it by chance, as many bridges may have lost the same broker.
#[derive(Debug)]
pub(super) struct Backoff {
    longest: Duration,
    last: Duration,
}

impl Backoff {
    pub(super) fn up_to(longest: Duration) -> Self {
        Self {
            longest,
            last: Duration::ZERO,
        }
    }

    /// Records the end of a connection; `lasted` is the time since the remote broker accepted it,
    /// if it did.
    pub(super) fn ended(&mut self, lasted: Option<Duration>) {
        if lasted.is_some_and(|lasted| lasted > self.last.max(STABLE_AFTER)) {
            self.last = Duration::ZERO;
        }
    }

    pub(super) fn next(&mut self) -> Duration {
        self.last = (self.last * 2).clamp(FIRST_BACKOFF.min(self.longest), self.longest);
        let chance = RandomState::new().hash_one(0) % 1_024;
        let half = self.last / 2;
        half + half.mul_f64(f64::from(u32::try_from(chance).unwrap_or(0)) / 1_024.0)
    }
}

#[cfg(test)]
mod tests {
    use mq_transport::ConnectOptions;

    use super::*;

    #[test]
    fn the_first_address_is_tried_again_some_minutes_after_another_one_answered() {
        let addresses = ["quic://a", "tls://b", "tls://c"];
        let addresses = addresses.map(|url| url.parse().unwrap());
        let connector = Connector::new(ConnectOptions::new()).unwrap();
        let mut dialler = Dialler::new(addresses.into(), connector);
        let now = clock::now();
        assert_eq!(dialler.first(now), 0);
        dialler.answered(0, now);
        assert_eq!(dialler.first(now), 0);
        dialler.answered(1, now);
        assert_eq!(dialler.first(now), 1);
        // It goes on answering, which does not put the first one off.
        dialler.answered(1, now + FALLBACK_TIME / 2);
        assert_eq!(dialler.first(now + FALLBACK_TIME * 9 / 10), 1);
        assert_eq!(dialler.first(now + FALLBACK_TIME), 0);
        dialler.answered(2, now);
        assert_eq!(dialler.first(now), 2);
        dialler.answered(0, now);
        assert_eq!(dialler.first(now), 0);
    }

    #[test]
    fn waits_grow_until_a_connection_has_lasted() {
        let mut backoff = Backoff::up_to(Duration::from_secs(30));
        for most in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            let most = Duration::from_millis(most);
            let wait = backoff.next();
            assert!(wait >= most / 2 && wait <= most, "{wait:?} of {most:?}");
        }
        backoff.ended(None);
        backoff.ended(Some(Duration::from_secs(29)));
        assert!(
            backoff.next() >= Duration::from_secs(15),
            "it accepts and drops"
        );
        backoff.ended(Some(Duration::from_secs(31)));
        assert!(backoff.next() <= FIRST_BACKOFF);
    }
}
