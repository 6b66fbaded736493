//! Early data (0-RTT): what waits until the link's handshake is complete, and for how long.
//!
//! Nothing here waits by itself: the connection's loop goes on, and can leave its session or shut
//! down meanwhile.

use std::{
    future::poll_fn,
    time::{Duration, Instant},
};

use mq_codec::Connect;
use mq_proto::{Connection, EarlyPackets, LaneId, Outbox};
use mq_transport::{EarlyDataPolicy, Error, Link, Progress};
use tracing::debug;

use super::Conn;

/// A link whose handshake is not complete yet, so that nobody has proved to be at its other end.
pub(super) struct Early {
    /// When the handshake has to be complete.
    deadline: Instant,
    /// The CONNECT that an authenticator wants to see then.
    connect: Option<Box<Connect>>,
    /// Something came that is not to be acted on before.
    holds: bool,
}

impl Early {
    /// For a link that begins with early data; tells `connection` what it may act on.
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
            connect: None,
            holds: false,
        })
    }
}

impl Conn {
    /// When the handshake has to be complete, if it is not.
    pub(super) fn handshake_due(&self) -> Option<Instant> {
        self.early.as_ref().map(|early| early.deadline)
    }

    /// Keeps CONNECT until the handshake is complete; the client is then looked at anew.
    pub(super) fn connect_after_handshake(&mut self, connect: Connect) {
        if let Some(early) = &mut self.early {
            early.connect = Some(Box::new(connect));
        }
    }

    /// Whether what has come is not to be acted on before the handshake is complete. Nothing more is
    /// read until then: it would be kept as well.
    pub(super) fn waits_for_handshake(&self) -> bool {
        let early = self.early.as_ref();
        early.is_some_and(|early| early.holds || early.connect.is_some())
    }

    /// What the state machine has left of what came is this.
    pub(super) fn note_early(&mut self, lane: LaneId) {
        if let Some(early) = &mut self.early {
            early.holds = self.connection.is_too_early(self.link.received(lane));
        }
    }

    /// Goes on with what has waited, once the handshake is complete; or gives the link up.
    pub(super) async fn look_at_handshake(&mut self, now: Instant) {
        if self.early.is_none() || self.connection.is_closed() {
            return;
        }
        if self.link.is_early() {
            if self.handshake_due().is_some_and(|at| at <= now) {
                debug!(peer = ?self.link.info().peer_address, "a handshake was not completed in time");
                self.connection.handle_link_lost();
            }
            return;
        }
        self.take_what_waited();
        let early = self.early.take();
        if let Some(connect) = early.and_then(|early| early.connect) {
            Box::pin(self.connect(now, *connect)).await;
        }
    }

    /// Takes the packets that have waited, if the handshake is complete: also before the end of a
    /// link that ends at the same time is dealt with.
    pub(super) fn take_what_waited(&mut self) {
        if self.early.is_some() && !self.link.is_early() {
            self.connection.handshake_complete();
            self.handle_received(LaneId::CONTROL);
        }
    }

    /// Whether the connection ends and nobody has proved to have been at its other end.
    pub(super) fn was_never_proved(&self) -> bool {
        self.early.is_some() && self.link.is_early()
    }
}

/// [`Link::progress`] that also ends with the handshake, if it is not complete: then `None`.
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
