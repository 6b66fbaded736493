//! Addresses whose clients broke the protocol: the next ones from there wait before their CONNECT is read.
//!
//! A client that is let in, breaks the protocol and connects anew costs handshakes, sessions and lines of the log, as fast
//! as it can. Each such end counts against its IPv4 address or IPv6 /64. Five cost nothing, each further one 100 ms, 2 s at
//! most, and [`Quotas::protocol_errors_per_minute`] are forgiven. A client that keeps to the protocol waits only if others at its address do not.

use std::{
    net::SocketAddr,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mq_transport::network_of;

#[cfg(doc)]
use crate::Quotas;
use crate::{
    auth::{Throttle, Tried},
    lock::lock,
    memory_limit::{MemoryLimit, MemoryShare},
};

/// Violations of an address that cost nothing: a client with a defect is seldom alone, and people try again.
const FREE: f64 = 5.0;
/// Time by which each violation beyond [`FREE`] delays the address's next client.
const STEP: Duration = Duration::from_millis(100);
/// Upper bound of a client's delay, together with half of the timeout of CONNECT.
const MAX_DELAY: Duration = Duration::from_secs(2);
/// Greatest number of addresses that are remembered; beyond it, forgiven ones make room, else any other.
const MAX_ADDRESSES: usize = 4_096;

/// Violations by address.
#[derive(Debug)]
pub(crate) struct Violations {
    /// `None` where no client waits.
    throttle: Option<Throttle>,
    /// The memory of the table, which counts.
    memory: Mutex<MemoryShare>,
}

impl Violations {
    pub(crate) fn new(per_minute: Option<NonZeroU32>, memory: &Arc<MemoryLimit>) -> Self {
        Self {
            throttle: per_minute.map(|count| Throttle::with_capacity(count, MAX_ADDRESSES)),
            memory: Mutex::new(MemoryShare::new(memory)),
        }
    }

    /// Counts a connection that ended because its client broke the protocol.
    pub(crate) fn note(&self, peer: Option<SocketAddr>, now: Instant) {
        if let (Some(throttle), Some(peer)) = (&self.throttle, peer) {
            throttle.failed(of(peer), now);
            lock(&self.memory).set_anyway(throttle.bytes());
        }
    }

    /// Returns the time that the next client from that address waits, at most `most`.
    pub(crate) fn delay(&self, peer: Option<SocketAddr>, most: Duration, now: Instant) -> Duration {
        let (Some(throttle), Some(peer)) = (&self.throttle, peer) else {
            return Duration::ZERO;
        };
        let violations = throttle.owed(of(peer), now);
        STEP.mul_f64((violations - FREE).max(0.0))
            .min(MAX_DELAY)
            .min(most)
    }
}

fn of(peer: SocketAddr) -> Tried {
    Tried::Network(network_of(peer.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> SocketAddr {
        SocketAddr::from((std::net::Ipv4Addr::from(number), 1))
    }

    #[test]
    fn the_sixth_violation_costs_time_up_to_a_bound_and_all_are_forgiven() {
        let memory = Arc::new(MemoryLimit::new(0));
        let violations = Violations::new(NonZeroU32::new(30), &memory);
        let start = Instant::now();
        let delay = |from, after| {
            let now = start + Duration::from_secs(after);
            violations.delay(from, Duration::from_secs(5), now)
        };
        for number in 0..100_u32 {
            let expected = STEP * number.saturating_sub(5);
            // The throttle remembers so many.
            assert_eq!(delay(Some(peer(1)), 0), expected.min(MAX_DELAY), "{number}");
            violations.note(Some(peer(1)), start);
        }
        assert_eq!(violations.delay(Some(peer(1)), STEP, start), STEP);
        assert_eq!(delay(Some(peer(2)), 0), Duration::ZERO, "another address");
        assert_eq!(delay(None, 0), Duration::ZERO);
        assert!(delay(Some(peer(1)), 80) < MAX_DELAY);
        assert_eq!(delay(Some(peer(1)), 110), Duration::ZERO);
    }

    #[test]
    fn addresses_are_bounded_and_their_memory_counts() {
        let memory = Arc::new(MemoryLimit::new(0));
        let violations = Violations::new(NonZeroU32::new(30), &memory);
        assert_eq!(memory.used(), 0);
        let now = Instant::now();
        for number in 0..3 * u32::try_from(MAX_ADDRESSES).unwrap() {
            violations.note(Some(peer(number)), now);
        }
        let used = memory.used();
        assert!(
            (MAX_ADDRESSES * 32..MAX_ADDRESSES * 200).contains(&used),
            "{used}"
        );
        drop(violations);
        assert_eq!(memory.used(), 0);
    }
}
