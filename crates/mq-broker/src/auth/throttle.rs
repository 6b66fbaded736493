//! A limit of failed log-ins by address, against the guessing of passwords.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use mq_transport::{Scheme, network_of};

use crate::{clock, lock::lock};

/// The most addresses remembered, at about 100 bytes each. Those without failures left are evicted
/// first. An attacker with enough addresses to evict others could also try from each of them.
const CAPACITY: usize = 16_384;

const MINUTE: Duration = Duration::from_mins(1);

/// Counts failed log-ins: `per_minute` of them at once, and as many again in each minute. Further
/// log-ins from the same IPv4 address or IPv6 /64 are refused unseen.
#[derive(Debug)]
pub(crate) struct Throttle {
    per_minute: f64,
    capacity: usize,
    failures: Mutex<HashMap<Tried, Failures>>,
}

/// The key that failed log-ins are counted by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Tried {
    Network(IpAddr),
    /// Addresses that clients have not proven. They count together, as any of them could be
    /// another's.
    Unproven,
}

/// Failures that are not forgiven yet, as of a time.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: f64,
    at: Instant,
}

impl Tried {
    /// Returns the key of a log-in; `None` without an address, on mem.
    ///
    /// Early data over QUIC can come from an address that is not the sender's. TCP's handshake
    /// proves it.
    pub(crate) fn new(peer: Option<SocketAddr>, scheme: Scheme, early: bool) -> Option<Self> {
        if early && scheme == Scheme::Quic {
            return Some(Self::Unproven);
        }
        Some(Self::Network(network_of(peer?.ip())))
    }
}

impl Throttle {
    pub(crate) fn new(per_minute: NonZeroU32) -> Self {
        Self::with_capacity(per_minute, CAPACITY)
    }

    pub(crate) fn with_capacity(per_minute: NonZeroU32, capacity: usize) -> Self {
        Self {
            per_minute: per_minute.get().into(),
            capacity,
            failures: Mutex::default(),
        }
    }

    /// Returns `true` if another log-in from that address may be tried.
    pub(crate) fn may_try(&self, tried: Tried, now: Instant) -> bool {
        self.owed(tried, now) + 1.0 <= self.per_minute
    }

    /// Returns the failures from that address that are not forgiven.
    pub(crate) fn owed(&self, tried: Tried, now: Instant) -> f64 {
        let failures = self.lock().get(&tried).copied();
        failures.map_or(0.0, |failures| self.left(failures, now))
    }

    /// Returns the approximate memory of the addresses, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        // The map has one byte a place besides, and keeps an eighth of them free.
        let places = self.lock().capacity() * 8 / 7;
        places * (size_of::<(Tried, Failures)>() + 1)
    }

    /// Counts a failure.
    pub(crate) fn failed(&self, tried: Tried, now: Instant) {
        let mut failures = self.lock();
        if failures.len() >= self.capacity && !failures.contains_key(&tried) {
            failures.retain(|_, failures| self.left(*failures, now) > 0.0);
            if failures.len() >= self.capacity
                && let Some(any) = failures.keys().next().copied()
            {
                failures.remove(&any);
            }
        }
        let entry = failures.entry(tried).or_insert(Failures {
            count: 0.0,
            at: now,
        });
        // Failures beyond the limit count as well, up to twice the limit.
        let count = (self.left(*entry, now) + 1.0).min(2.0 * self.per_minute);
        *entry = Failures { count, at: now };
    }

    /// Returns the failures that are not forgiven at `now`.
    fn left(&self, failures: Failures, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(failures.at);
        let forgiven = self.per_minute * passed.as_secs_f64() / MINUTE.as_secs_f64();
        (failures.count - forgiven).max(0.0)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Tried, Failures>> {
        lock(&self.failures)
    }
}

/// The throttle and the key of one log-in, for a check right before a costly attempt.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    throttle: Arc<Throttle>,
    tried: Tried,
}

impl Gate {
    pub(super) fn new(throttle: &Arc<Throttle>, tried: Tried) -> Self {
        Self {
            throttle: Arc::clone(throttle),
            tried,
        }
    }

    pub(super) fn is_shut(&self) -> bool {
        !self.throttle.may_try(self.tried, clock::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttle(per_minute: u32) -> Throttle {
        Throttle::new(NonZeroU32::new(per_minute).unwrap())
    }

    fn from(address: &str) -> Tried {
        let address = SocketAddr::new(address.parse().unwrap(), 1);
        Tried::new(Some(address), Scheme::Tcp, false).unwrap()
    }

    #[test]
    fn so_many_failures_at_once_and_as_many_a_minute() {
        let throttle = throttle(10);
        let start = Instant::now();
        let tried = from("192.0.2.1");
        for _ in 0..10 {
            assert!(throttle.may_try(tried, start));
            throttle.failed(tried, start);
        }
        assert!(!throttle.may_try(tried, start));
        assert!(throttle.may_try(from("192.0.2.2"), start), "somebody else");
        assert!(!throttle.may_try(tried, start + Duration::from_millis(5_900)));
        let later = start + Duration::from_millis(6_100);
        assert!(throttle.may_try(tried, later));
        throttle.failed(tried, later);
        assert!(!throttle.may_try(tried, later));
        assert!(throttle.may_try(tried, start + 3 * MINUTE));
    }

    #[test]
    fn many_at_once_are_owed_for() {
        let throttle = throttle(10);
        let start = Instant::now();
        let tried = from("192.0.2.1");
        for _ in 0..1000 {
            throttle.failed(tried, start);
        }
        assert!(!throttle.may_try(tried, start + MINUTE));
        assert!(throttle.may_try(tried, start + MINUTE + Duration::from_secs(7)));
    }

    #[test]
    fn one_network_is_one_customer() {
        assert_eq!(from("2001:db8:1:2::1"), from("2001:db8:1:2:ffff::9"));
        assert_ne!(from("2001:db8:1:2::1"), from("2001:db8:1:3::1"));
        assert_eq!(from("::ffff:192.0.2.1"), from("192.0.2.1"));
        let peer = Some("192.0.2.1:1".parse().unwrap());
        let early = |scheme| Tried::new(peer, scheme, true);
        assert_eq!(early(Scheme::Quic), Some(Tried::Unproven));
        assert_eq!(early(Scheme::Tls), Some(from("192.0.2.1")));
        assert_eq!(Tried::new(None, Scheme::Mem, false), None);
    }

    #[test]
    fn memory_is_bounded_and_the_forgiven_go_first() {
        let throttle = Throttle::with_capacity(NonZeroU32::MIN, 3);
        let start = Instant::now();
        let address = |last: u8| Tried::Network(IpAddr::from([192, 0, 2, last]));
        throttle.failed(address(0), start);
        for last in 1..3 {
            throttle.failed(address(last), start + MINUTE);
        }
        throttle.failed(address(3), start + MINUTE);
        let known = |last| throttle.lock().contains_key(&address(last));
        assert!(!known(0) && known(1) && known(2) && known(3));
        for last in 4..100 {
            throttle.failed(address(last), start + MINUTE);
            assert!(throttle.lock().len() <= 3);
        }
    }
}
