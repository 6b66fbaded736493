//! Quotas: bounds of the memory and the records kept for clients, of their rate of publishing, and
//! of the connections from one address.

use std::{
    net::IpAddr,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use mq_transport::network_of;

use crate::{
    lock::lock,
    mailbox::{MailboxLimits, Overflow, OverflowPolicy},
    memory_limit::default_memory_limit,
};

/// Bounds of the memory and the records that the broker keeps for clients. At each bound it answers
/// [`QuotaExceeded`](mq_codec::ReasonCode::QuotaExceeded), where the client's version has reason
/// codes, and one of the [`Metrics`](crate::Metrics) counts the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quotas {
    /// The bounds of messages that wait for one session in memory. Default 10,000 messages and 16
    /// MiB: ten seconds of 1,000 messages a second.
    pub mailbox: MailboxLimits,
    /// The policy for QoS 1 and 2 messages beyond these bounds. Default `None`: [`Overflow::Spill`]
    /// where there is a store, so that no acknowledged message is lost, and [`Overflow::Evict`]
    /// where there is none. Neither lets a slow reader hold up publishers.
    pub overflow: Option<Overflow>,
    /// Bytes of one session that [`Overflow::Spill`] puts into the store, topics and 64 bytes a
    /// message included. Default 1 GiB: three hours of 1,000 messages of 100 bytes a second.
    pub spill_bytes: usize,
    /// Bytes that clients may make the broker hold: messages that wait for readers that lag or are
    /// disconnected, in flight and retained ones included, each message once; incomplete packets,
    /// topics of aliases; sessions, subscriptions, wills. At the limit QoS 0 is dropped,
    /// [`overflow`](Self::overflow) decides about QoS 1 and 2, and anything else is refused, or its
    /// client disconnected. Some KiB of each session and connection are not counted. No client gets
    /// more than is left for all others: `docs/reference/operation.md` has the numbers.
    ///
    /// Default: a quarter of the memory that the process may use, and 64 MiB at least. The process
    /// takes more than this: some KiB for each connection, and memory that the allocator cannot
    /// return to the system.
    pub memory: usize,
    /// Sessions at once, connected or not; further clients are refused. Default 1,000,000.
    pub sessions: usize,
    /// Subscriptions of one session. Default 10,000.
    pub subscriptions: usize,
    /// Topics with a retained message. Default 1,000,000. A message for a further topic is refused.
    /// From a publisher without reason codes it is delivered and not retained.
    pub retained: usize,
    /// Protocol errors of accepted clients, from one IPv4 address or IPv6 /64, that are
    /// forgiven each minute. Five have no effect. With more that are not forgiven, the next client
    /// of that address waits before its CONNECT is read: 100 ms for each, 2 s at most. Default 30;
    /// `None`: no client waits.
    pub protocol_errors_per_minute: Option<NonZeroU32>,
}

impl Quotas {
    /// Returns the policy of mailboxes; `can_spill` is `true` if there is a store for it.
    pub(crate) fn overflow_policy(&self, can_spill: bool) -> OverflowPolicy {
        let overflow = match self.overflow {
            None | Some(Overflow::Spill) if can_spill => Overflow::Spill,
            None | Some(Overflow::Spill) => Overflow::Evict,
            Some(other) => other,
        };
        OverflowPolicy {
            overflow,
            spill_bytes: self.spill_bytes,
        }
    }
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            mailbox: MailboxLimits {
                messages: 10_000,
                bytes: 16 << 20,
            },
            overflow: None,
            spill_bytes: 1 << 30,
            memory: default_memory_limit(),
            sessions: 1_000_000,
            subscriptions: 10_000,
            retained: 1_000_000,
            protocol_errors_per_minute: NonZeroU32::new(30),
        }
    }
}

/// The rate at which one client may publish; `None` is no bound. A second's worth may arrive at
/// once. A faster client is read more slowly, which TCP's and QUIC's flow control pass on to it: no
/// message is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PublishRate {
    /// Messages a second.
    pub messages: Option<u32>,
    /// Payload bytes a second.
    pub bytes: Option<u32>,
}

/// Two token buckets, which give the time for which a client must be left unread.
#[derive(Debug)]
pub(crate) struct PublishRateLimiter(
    /// The buckets; `None` if the client may publish at any rate.
    Option<Box<Buckets>>,
);

#[derive(Debug)]
struct Buckets {
    messages: Option<Bucket>,
    bytes: Option<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    per_second: f64,
    /// Tokens that are left; a negative number is a debt.
    left: f64,
    at: Instant,
}

impl PublishRateLimiter {
    pub(crate) fn new(rate: PublishRate, now: Instant) -> Self {
        let bucket = |per_second: u32| Bucket {
            per_second: per_second.into(),
            left: per_second.into(),
            at: now,
        };
        let buckets = Buckets {
            messages: rate.messages.map(bucket),
            bytes: rate.bytes.map(bucket),
        };
        Self((rate != PublishRate::default()).then(|| Box::new(buckets)))
    }

    /// Counts a message that was received. Returns `true` if it is the first one that was too fast.
    pub(crate) fn spend(&mut self, bytes: usize, now: Instant) -> bool {
        let Some(buckets) = &mut self.0 else {
            return false;
        };
        let was_on_time = buckets.resumes_at(now).is_none();
        if let Some(bucket) = &mut buckets.messages {
            bucket.spend(1.0, now);
        }
        if let Some(bucket) = &mut buckets.bytes {
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            bucket.spend(bytes as f64, now);
        }
        was_on_time && buckets.resumes_at(now).is_some()
    }

    /// Returns the time until which the client must not be read; `None` if it may be read now.
    pub(crate) fn resumes_at(&self, now: Instant) -> Option<Instant> {
        self.0.as_ref()?.resumes_at(now)
    }
}

impl Buckets {
    fn resumes_at(&self, now: Instant) -> Option<Instant> {
        let buckets = self.messages.iter().chain(&self.bytes);
        buckets
            .filter_map(Bucket::paid_at)
            .max()
            .filter(|at| *at > now)
    }
}

impl Bucket {
    fn spend(&mut self, tokens: f64, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * self.per_second).min(self.per_second) - tokens;
        self.at = now;
    }

    /// Returns the time at which the debt is paid; `None` if there is none.
    fn paid_at(&self) -> Option<Instant> {
        let owed = (self.left < 0.0).then_some(-self.left)?;
        self.at
            .checked_add(Duration::try_from_secs_f64(owed / self.per_second).ok()?)
    }
}

/// Counts the connections of each network.
#[derive(Debug)]
pub(crate) struct PerNetwork {
    most: usize,
    counts: Mutex<HashMap<IpAddr, usize>>,
}

impl PerNetwork {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            counts: Mutex::default(),
        })
    }

    /// Returns a place for a connection from that address, until it is dropped; `None` if none is
    /// left. A peer without an address always gets one.
    pub(crate) fn enter(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<Place> {
        let network = peer.map(network_of);
        if let Some(network) = network {
            let mut counts = self.lock();
            let count = counts.entry(network).or_default();
            if *count >= self.most {
                return None;
            }
            *count += 1;
        }
        let counts = Arc::clone(self);
        Some(Place { network, counts })
    }

    /// Returns `true` if half of the places for connections from that address are taken. The others are for clients that
    /// have proved their address: packets with a false source must not take all of them.
    pub(crate) fn is_half_full(&self, peer: Option<IpAddr>) -> bool {
        let Some(network) = peer.map(network_of) else {
            return false;
        };
        let count = self.lock().get(&network).copied();
        count.unwrap_or_default() >= self.most / 2
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        // Each change is complete in itself.
        lock(&self.counts)
    }
}

/// A counted connection of a network.
#[derive(Debug)]
pub(crate) struct Place {
    network: Option<IpAddr>,
    counts: Arc<PerNetwork>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(network) = self.network else { return };
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_s_worth_may_come_at_once_and_more_has_to_wait() {
        let start = Instant::now();
        let rate = PublishRate {
            messages: Some(10),
            bytes: None,
        };
        let mut limiter = PublishRateLimiter::new(rate, start);
        for _ in 0..10 {
            limiter.spend(1_000_000, start);
        }
        assert_eq!(limiter.resumes_at(start), None);
        limiter.spend(0, start);
        let wait = limiter.resumes_at(start).unwrap() - start;
        assert!((wait.as_secs_f64() - 0.1).abs() < 1e-6, "{wait:?}");
        let later = start + Duration::from_secs(100);
        assert_eq!(limiter.resumes_at(later), None);
        for _ in 0..10 {
            limiter.spend(0, later);
        }
        assert_eq!(
            limiter.resumes_at(later),
            None,
            "no more than a second's worth is saved up"
        );
        limiter.spend(0, later);
        assert!(limiter.resumes_at(later).is_some());
    }

    #[test]
    fn a_message_larger_than_the_rate_is_taken_and_paid_for_later() {
        let start = Instant::now();
        let rate = PublishRate {
            messages: Some(1_000),
            bytes: Some(100),
        };
        let mut limiter = PublishRateLimiter::new(rate, start);
        limiter.spend(1_100, start);
        let wait = limiter.resumes_at(start).unwrap() - start;
        assert!((wait.as_secs_f64() - 10.0).abs() < 1e-6, "{wait:?}");
    }

    #[test]
    fn connections_are_counted_for_each_network() {
        let networks = PerNetwork::new(2);
        let enter = |text: &str| networks.enter(Some(text.parse().unwrap()));
        let first = enter("192.0.2.1");
        let _second = enter("::ffff:192.0.2.1").expect("the same in another form");
        assert!(enter("192.0.2.1").is_none());
        let _other = enter("192.0.2.2").expect("another address");
        drop(first);
        let _again = enter("192.0.2.1").expect("one has left");
        let _six = enter("2001:db8::1").expect("IPv6");
        let _same_network = enter("2001:db8::2").expect("IPv6");
        assert!(enter("2001:db8::3").is_none());
        assert!(enter("2001:db8:0:1::3").is_some());
        assert!((0..9).all(|_| networks.enter(None).is_some()));
    }

    #[test]
    fn half_of_the_places_of_an_address_are_for_clients_that_have_proved_it() {
        let networks = PerNetwork::new(2);
        let peer: Option<IpAddr> = Some("192.0.2.1".parse().unwrap());
        assert!(!networks.is_half_full(peer));
        let _forged = networks.enter(peer).expect("there is room");
        assert!(networks.is_half_full(peer));
        let _proved = networks.enter(peer).expect("the other half");
        assert!(!networks.is_half_full(None));
        assert!(PerNetwork::new(1).is_half_full(peer));
        assert!(!PerNetwork::new(usize::MAX).is_half_full(peer));
    }

    #[test]
    fn nothing_is_left_of_networks_that_have_gone() {
        let networks = PerNetwork::new(1);
        drop(networks.enter(Some("192.0.2.1".parse().unwrap())));
        assert!(networks.lock().is_empty());
    }
}
