//! Early data (0-RTT): a link whose handshake is not complete yet.
//!
//! Nothing here waits by itself: each phase's own loop goes on, and can give up its session or shut down
//! meanwhile.

use std::{
    future::poll_fn,
    time::{Duration, Instant},
};

use mq_proto::{Connection, EarlyPackets, Outbox};
use mq_transport::{EarlyDataPolicy, Error, Link, Progress};

/// A link whose handshake is not complete yet, so that nobody has proved to be at its other end.
pub(super) struct Early {
    /// The time by which the handshake has to be complete.
    pub(super) deadline: Instant,
    /// `true` if a packet has come that has to wait until then. Nothing more is read meanwhile, as it
    /// would have to be kept as well.
    pub(super) holds: bool,
}

impl Early {
    /// Returns the state of a link that begins with early data. Tells `connection` which packets it may act on.
    pub(super) fn of(
        link: &Link,
        connection: &mut Connection,
        policy: EarlyDataPolicy,
        now: Instant,
        handshake_timeout: Duration,
    ) -> Option<Self> {
        if !link.is_early() {
            return None;
        }
        connection.restrict_early(match policy {
            EarlyDataPolicy::Full => EarlyPackets::Repeatable,
            // With `Off` a link never begins with early data.
            EarlyDataPolicy::Connect | EarlyDataPolicy::Off => EarlyPackets::Connect,
        });
        Some(Self {
            deadline: now + handshake_timeout,
            holds: false,
        })
    }
}

/// Waits like [`Link::progress`], and also for the end of a handshake that is not complete: then `None`.
pub(super) async fn progress(
    link: &mut Link,
    outbox: &mut Outbox,
    want_read: bool,
    is_early: bool,
) -> Option<Result<Progress, Error>> {
    poll_fn(|cx| {
        if is_early {
            link.poll_progress_or_handshake(cx, outbox, want_read)
        } else {
            link.poll_progress(cx, outbox, want_read).map(Some)
        }
    })
    .await
}
