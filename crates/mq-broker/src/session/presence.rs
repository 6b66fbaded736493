//! The connection that has a session, as operators see it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use mq_codec::{ReasonCode, Version};
use mq_transport::{LinkStats, Scheme};
use tokio::sync::oneshot;

use super::Session;
use crate::{clock, lock::lock};

/// The facts of a connection that are known from its beginning on, and the way to ask for the rest.
///
/// A connection's own figures are its task's. An operator asks for them by [`Session::request_figures`], which
/// reminds the task to look; the task itself does nothing for each message.
#[derive(Debug)]
pub(crate) struct Presence {
    pub(crate) scheme: Scheme,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) version: Version,
    pub(crate) connected_at: SystemTime,
    /// Time at which the client connected, by a clock that never jumps.
    pub(crate) since: Instant,
    pub(crate) clean_start: bool,
    /// The keep-alive as granted, in seconds; zero for none.
    pub(crate) keep_alive: u16,
    /// Time for which the session outlives the connection; `None` for ever.
    pub(crate) expiry: Option<Duration>,
    /// The reason code, once the client is to be disconnected; 0 before.
    kick_reason: AtomicU8,
    requests: Mutex<Vec<oneshot::Sender<ConnectionFigures>>>,
}

/// The figures that a connection's task alone has.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionFigures {
    pub(crate) in_flight: usize,
    /// The peer's address now: QUIC connections move.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) stats: LinkStats,
    pub(crate) messages_received: u64,
    pub(crate) messages_sent: u64,
}

impl Presence {
    pub(crate) fn new(
        scheme: Scheme,
        peer: Option<SocketAddr>,
        version: Version,
        clean_start: bool,
        keep_alive: u16,
        expiry: Option<Duration>,
    ) -> Self {
        Self {
            scheme,
            peer,
            version,
            connected_at: SystemTime::now(),
            since: clock::now(),
            clean_start,
            keep_alive,
            expiry,
            kick_reason: AtomicU8::new(0),
            requests: Mutex::default(),
        }
    }

    /// Returns the reason for which the client is to be disconnected, if it is.
    pub(crate) fn kick_reason(&self) -> Option<ReasonCode> {
        let reason = self.kick_reason.load(Ordering::Relaxed);
        ReasonCode::from_byte(reason).filter(|reason| reason.is_error())
    }

    /// Answers all operators that have asked.
    pub(crate) fn answer(&self, figures: impl FnOnce() -> ConnectionFigures) {
        let asking = core::mem::take(&mut *lock(&self.requests));
        if asking.is_empty() {
            return;
        }
        let figures = figures();
        for one in asking {
            // An operator that does not wait any more needs no answer.
            let _ = one.send(figures.clone());
        }
    }
}

/// The last connection of a session.
#[derive(Debug, Default)]
pub(super) enum Seen {
    #[default]
    Never,
    /// The connection has the session.
    Now(Arc<Presence>),
    /// The connection has ended; its client had connected at this time.
    Before(Instant),
}

/// Shows a connection to operators until it is dropped, whichever way the connection ends.
#[derive(Debug)]
pub(crate) struct OperatorView {
    session: Arc<Session>,
    pub(crate) presence: Arc<Presence>,
}

impl OperatorView {
    pub(crate) fn new(session: &Arc<Session>, presence: Presence) -> Self {
        let presence = Arc::new(presence);
        *lock(&session.presence) = Seen::Now(Arc::clone(&presence));
        Self {
            session: Arc::clone(session),
            presence,
        }
    }
}

impl Drop for OperatorView {
    fn drop(&mut self) {
        let mut seen = lock(&self.session.presence);
        // Not the next connection, should that have been faster.
        if matches!(&*seen, Seen::Now(current) if Arc::ptr_eq(current, &self.presence)) {
            *seen = Seen::Before(self.presence.since);
        }
    }
}

impl Session {
    /// Returns the connection that has it.
    pub(crate) fn presence(&self) -> Option<Arc<Presence>> {
        match &*lock(&self.presence) {
            Seen::Now(presence) => Some(Arc::clone(presence)),
            Seen::Never | Seen::Before(_) => None,
        }
    }

    /// Returns the time at which a client has last connected to it here, by a clock that never jumps; `None` if none has.
    pub(crate) fn last_connected(&self) -> Option<Instant> {
        match &*lock(&self.presence) {
            Seen::Never => None,
            Seen::Now(presence) => Some(presence.since),
            Seen::Before(since) => Some(*since),
        }
    }

    /// Asks the connection that has it for its figures, which come as soon as its task has a turn.
    pub(crate) fn request_figures(
        &self,
    ) -> Option<(Arc<Presence>, oneshot::Receiver<ConnectionFigures>)> {
        let presence = self.presence()?;
        let (answer, figures) = oneshot::channel();
        {
            let mut asking = lock(&presence.requests);
            asking.retain(|one| !one.is_closed());
            asking.push(answer);
        }
        self.remind();
        Some((presence, figures))
    }

    /// Disconnects the client that is connected; false if there is none.
    pub(crate) fn kick(&self, reason: ReasonCode) -> bool {
        let Some(presence) = self.presence() else {
            return false;
        };
        presence.kick_reason.store(reason as u8, Ordering::Relaxed);
        // Its task sees the mark, as it sees a claim.
        self.remind();
        true
    }
}
