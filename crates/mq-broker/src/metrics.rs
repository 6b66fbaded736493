//! Counts of what the broker does.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A number that many threads change, each change by itself and in no order with others.
#[derive(Debug, Default)]
pub struct Gauge(AtomicUsize);

impl Gauge {
    /// Adds.
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts.
    pub fn sub(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Replaces.
    pub fn set(&self, count: usize) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the broker counts: things that are there now (`connections`, `sessions`, `subscriptions`,
/// `retained`) and things that have happened since its start (the others).
#[derive(Debug, Default)]
pub struct Metrics {
    /// Links that are open: past the handshake, before and after CONNECT.
    pub connections: Gauge,
    /// Links that were refused because too many were open or in their handshake.
    pub refused: Gauge,
    /// CONNECTs that were refused because of who sent them, too many failures included.
    pub log_ins_refused: Gauge,
    /// Messages, wills and subscriptions that their client may not publish or have: they were
    /// dropped or refused.
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
