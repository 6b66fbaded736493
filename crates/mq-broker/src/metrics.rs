//! The broker's metrics.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use mq_transport::{Address, EarlyData, HandshakeKind, Link, LinkStats};

use crate::lock::lock;

/// A number that many threads change. Each change is atomic, and has no order with other changes.
#[derive(Debug, Default)]
pub struct Gauge(AtomicUsize);

impl Gauge {
    /// Adds `count`.
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts `count`.
    pub(crate) fn sub(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Replaces the number.
    pub(crate) fn set(&self, count: usize) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// Returns the present number.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter of refusals or disconnections by reason.
///
/// Reasons are the broker's own words, so clients cannot make many of them.
#[derive(Debug, Default)]
pub struct ByReason(Mutex<Vec<(&'static str, usize)>>);

impl ByReason {
    /// Counts one event.
    pub(crate) fn add(&self, reason: &'static str) {
        let mut counts = self.lock();
        match counts.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => counts.push((reason, 1)),
        }
    }

    /// Returns the count over all reasons.
    #[must_use]
    pub fn get(&self) -> usize {
        self.lock().iter().map(|(_, count)| count).sum()
    }

    /// Returns the count of each reason so far, in the order in which the reasons first occurred.
    #[must_use]
    pub fn by_reason(&self) -> Vec<(&'static str, usize)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(&'static str, usize)>> {
        lock(&self.0)
    }
}

/// The broker's metrics: the present state (`connections`, `handshakes`, `sessions`,
/// `subscriptions`, `retained`) and events since its start (the others).
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Links that are open: past the handshake, before and after CONNECT.
    pub connections: Gauge,
    /// Links that are not open yet: in their handshake, or silent since.
    pub handshakes: Gauge,
    /// Links that were refused because too many were open, in their handshake, or from one address.
    pub refused: ByReason,
    /// QUIC clients that had to prove their address first, as many handshakes were in progress.
    pub retried: Gauge,
    /// Clients that were refused because there were too many sessions.
    pub sessions_refused: Gauge,
    /// Subscriptions that were refused.
    pub subscriptions_refused: ByReason,
    /// Messages and wills that were refused. A client before 5.0 receives no reason.
    pub publishes_refused: ByReason,
    /// Messages that could not be retained: too many topics, or too much memory.
    pub retained_refused: Gauge,
    /// Times that a client was left unread because it published faster than it may.
    pub throttled: Gauge,
    /// QoS 1 and 2 messages that were put into the store because there was no room for them in
    /// memory.
    pub spilled: Gauge,
    /// Clients that the broker disconnected, such as readers too slow for their messages.
    pub evicted: ByReason,
    /// CONNECTs that were refused, and re-authentications on open connections.
    pub log_ins_refused: ByReason,
    /// Messages, wills and subscriptions that the access rules forbid: they were dropped or
    /// refused.
    pub not_authorized: Gauge,
    /// Sessions, connected or not.
    pub sessions: Gauge,
    /// Subscriptions.
    pub subscriptions: Gauge,
    /// Topics with a retained message.
    pub retained: Gauge,
    /// Messages received from clients.
    pub messages_in: Gauge,
    /// Messages sent to clients.
    pub messages_out: Gauge,
    /// Messages that did not reach a receiver: its mailbox was full, its session away and the
    /// message of QoS 0, or the publisher left while the message waited for room.
    pub dropped: Gauge,
}

/// A number that only grows; wide enough for bytes on 32-bit machines.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`.
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the present number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Metrics of a listener. Bytes, packets and round-trip times are as of each link's last sample:
/// every 30 s while a link is active, and at its end.
#[derive(Debug)]
#[non_exhaustive]
pub struct ListenerMetrics {
    /// The address, with the port that was chosen.
    pub address: Address,
    /// Links that are open.
    pub connections: Gauge,
    /// Links whose handshake was complete enough to read from.
    pub accepted: Counter,
    /// Handshakes that failed or took too long.
    pub handshakes_failed: Counter,
    /// Links that resumed an earlier session by a ticket (RFC 8446 §2.2).
    pub resumed: Counter,
    /// Links whose early data (0-RTT) was accepted. A server does not learn which early data it
    /// refuses.
    pub early_data_accepted: Counter,
    /// Application bytes received.
    pub bytes_received: Counter,
    /// Application bytes sent.
    pub bytes_sent: Counter,
    /// QUIC packets declared lost.
    pub packets_lost: Counter,
    /// QUIC datagrams sent a second time before anything showed that they were lost.
    pub packets_repeated: Counter,
    /// Times that a QUIC client reported that it waits for more streams than it was granted.
    pub streams_blocked: Counter,
    /// QUIC data streams that the broker closed because no data arrived on them.
    pub streams_closed_idle: Counter,
    /// Messages that were sent as QUIC datagrams.
    pub messages_as_datagrams: Counter,
    /// TCP segments retransmitted.
    pub packets_retransmitted: Counter,
    /// QUIC links whose client was at another address than at the sample before (RFC 9000 §9).
    pub migrations: Counter,
    /// Round-trip times, as the kernel or the QUIC stack estimated them.
    pub rtt: DurationHistogram,
}

impl ListenerMetrics {
    pub(crate) fn new(address: Address) -> Self {
        Self {
            address,
            connections: Gauge::default(),
            accepted: Counter::default(),
            handshakes_failed: Counter::default(),
            resumed: Counter::default(),
            early_data_accepted: Counter::default(),
            bytes_received: Counter::default(),
            bytes_sent: Counter::default(),
            packets_lost: Counter::default(),
            packets_repeated: Counter::default(),
            streams_blocked: Counter::default(),
            streams_closed_idle: Counter::default(),
            messages_as_datagrams: Counter::default(),
            packets_retransmitted: Counter::default(),
            migrations: Counter::default(),
            rtt: DurationHistogram::default(),
        }
    }
}

/// A histogram of durations, such as round-trip times.
#[derive(Debug, Default)]
pub struct DurationHistogram {
    counts: [Counter; DurationHistogram::BOUNDS_MS.len() + 1],
    sum_us: Counter,
}

impl DurationHistogram {
    /// The upper bounds of all buckets but the last, which has none; in milliseconds.
    pub const BOUNDS_MS: [u32; 10] = [1, 3, 10, 30, 60, 100, 200, 500, 1_000, 3_000];

    pub(crate) fn observe(&self, time: Duration) {
        let mut bounds = Self::BOUNDS_MS.iter();
        let place = bounds.position(|bound| time <= Duration::from_millis((*bound).into()));
        self.counts[place.unwrap_or(Self::BOUNDS_MS.len())].add(1);
        self.sum_us
            .add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Returns the number of durations in each bucket, in the buckets' order.
    pub fn counts(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().map(Counter::get)
    }

    /// Returns the sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us.get())
    }
}

/// The interval of a link's samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(30);

/// Adds the statistics of one link to its listener's metrics, every 30 s and at its end.
#[derive(Debug)]
pub(crate) struct Sampler {
    metrics: Arc<ListenerMetrics>,
    due: Instant,
    last: Sampled,
    peer: Option<SocketAddr>,
}

/// The part of [`LinkStats`] that was added before.
#[derive(Debug, Default)]
struct Sampled {
    bytes_received: u64,
    bytes_sent: u64,
    packets_retransmitted: u64,
    was_resumed: bool,
    was_early: bool,
    /// The statistics of QUIC alone; `None` on other transports.
    quic: Option<Box<SampledQuic>>,
}

#[derive(Debug, Default)]
struct SampledQuic {
    packets_lost: u64,
    packets_repeated: u64,
    messages_as_datagrams: u64,
    streams_blocked: u64,
}

impl From<&LinkStats> for Sampled {
    fn from(stats: &LinkStats) -> Self {
        Self {
            bytes_received: stats.bytes_received,
            bytes_sent: stats.bytes_sent,
            packets_retransmitted: stats.packets_retransmitted.unwrap_or(0),
            was_resumed: stats.handshake == HandshakeKind::Resumed,
            was_early: stats.early_data == EarlyData::Accepted,
            quic: stats.packets_lost.map(|packets_lost| {
                Box::new(SampledQuic {
                    packets_lost,
                    packets_repeated: stats.packets_repeated.unwrap_or(0),
                    messages_as_datagrams: stats.messages_as_datagrams.unwrap_or(0),
                    streams_blocked: stats.streams_blocked.unwrap_or(0),
                })
            }),
        }
    }
}

impl Sampler {
    pub(crate) fn new(metrics: Arc<ListenerMetrics>, link: &Link, now: Instant) -> Self {
        Self {
            metrics,
            due: now + SAMPLE_EVERY,
            last: Sampled::default(),
            peer: link.info().peer_address,
        }
    }

    /// Returns the metrics of the link's listener.
    pub(crate) fn metrics(&self) -> &ListenerMetrics {
        &self.metrics
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Adds a link's statistics since the last call. Returns `true` if the client has begun to wait for more QUIC streams.
    pub(crate) fn sample(&mut self, link: &Link, now: Instant) -> bool {
        self.due = now + SAMPLE_EVERY;
        let stats = link.stats();
        let (metrics, last, now) = (&self.metrics, &self.last, Sampled::from(&stats));
        let since = |field: fn(&Sampled) -> u64| field(&now).saturating_sub(field(last));
        metrics.bytes_received.add(since(|all| all.bytes_received));
        metrics.bytes_sent.add(since(|all| all.bytes_sent));
        metrics
            .packets_retransmitted
            .add(since(|all| all.packets_retransmitted));
        let is_blocked = now.quic.as_ref().is_some_and(|quic| self.sample_quic(quic));
        let resumed = now.was_resumed && !last.was_resumed;
        metrics.resumed.add(resumed.into());
        let early = now.was_early && !last.was_early;
        metrics.early_data_accepted.add(early.into());
        if let Some(rtt) = stats.rtt {
            metrics.rtt.observe(rtt);
        }
        let peer = link.info().peer_address;
        metrics.migrations.add((peer != self.peer).into());
        self.peer = peer;
        self.last = now;
        is_blocked
    }

    fn sample_quic(&self, now: &SampledQuic) -> bool {
        let (metrics, last) = (&self.metrics, self.last.quic.as_deref());
        let since =
            |field: fn(&SampledQuic) -> u64| field(now).saturating_sub(last.map_or(0, field));
        metrics.packets_lost.add(since(|all| all.packets_lost));
        metrics
            .packets_repeated
            .add(since(|all| all.packets_repeated));
        metrics
            .messages_as_datagrams
            .add(since(|all| all.messages_as_datagrams));
        let blocked = since(|all| all.streams_blocked);
        metrics.streams_blocked.add(blocked);
        blocked > 0 && last.is_none_or(|last| last.streams_blocked == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_time_falls_into_the_first_bucket_that_holds_it() {
        let histogram = DurationHistogram::default();
        for ms in [0, 1, 2, 3_000, 3_001] {
            histogram.observe(Duration::from_millis(ms));
        }
        let counts: Vec<_> = histogram.counts().collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(histogram.sum(), Duration::from_millis(6_004));
    }
}
