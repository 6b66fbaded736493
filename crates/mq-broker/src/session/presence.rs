//! The connection that has a session, as operators see it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, SystemTime},
};

use mq_codec::{ReasonCode, Version};
use mq_transport::{LinkStats, Scheme};
use tokio::sync::oneshot;

use super::Session;
use crate::lock::lock;

/// What is known of a connection from its beginning on, and how it is asked for the rest.
///
/// A connection's own figures are its task's. An operator asks for them by [`Session::ask`], which
/// reminds the task to look; the task itself does nothing for each message.
#[derive(Debug)]
pub(crate) struct Presence {
    pub(crate) scheme: Scheme,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) version: Version,
    pub(crate) connected_at: SystemTime,
    pub(crate) clean_start: bool,
    /// As granted, in seconds; zero for none.
    pub(crate) keep_alive: u16,
    /// How long the session outlives the connection; `None` for ever.
    pub(crate) expiry: Option<Duration>,
    /// A reason code, once the client is to leave; 0 before.
    leaves: AtomicU8,
    asking: Mutex<Vec<oneshot::Sender<Figures>>>,
}

/// What a connection's task knows alone.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
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
            clean_start,
            keep_alive,
            expiry,
            leaves: AtomicU8::new(0),
            asking: Mutex::default(),
        }
    }

    /// Why the client is to leave, if it is.
    pub(crate) fn leaves(&self) -> Option<ReasonCode> {
        let reason = self.leaves.load(Ordering::Relaxed);
        ReasonCode::from_byte(reason).filter(|reason| reason.is_error())
    }

    /// Answers all that have asked.
    pub(crate) fn answer(&self, figures: impl FnOnce() -> Figures) {
        let asking = core::mem::take(&mut *lock(&self.asking));
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

/// Shows a connection to operators until it is dropped, whichever way the connection ends.
#[derive(Debug)]
pub(crate) struct OperatorView {
    session: Arc<Session>,
    pub(crate) presence: Arc<Presence>,
}

impl OperatorView {
    pub(crate) fn new(session: &Arc<Session>, presence: Presence) -> Self {
        let presence = Arc::new(presence);
        *lock(&session.presence) = Some(Arc::clone(&presence));
        Self {
            session: Arc::clone(session),
            presence,
        }
    }
}

impl Drop for OperatorView {
    fn drop(&mut self) {
        let mut shown = lock(&self.session.presence);
        // Not the next connection, should that have been faster.
        if shown
            .as_ref()
            .is_some_and(|shown| Arc::ptr_eq(shown, &self.presence))
        {
            *shown = None;
        }
    }
}

impl Session {
    /// The connection that has it.
    pub(crate) fn presence(&self) -> Option<Arc<Presence>> {
        lock(&self.presence).clone()
    }

    /// Asks the connection that has it for its figures, which come as soon as its task has a turn.
    pub(crate) fn ask(&self) -> Option<(Arc<Presence>, oneshot::Receiver<Figures>)> {
        let presence = self.presence()?;
        let (answer, figures) = oneshot::channel();
        {
            let mut asking = lock(&presence.asking);
            asking.retain(|one| !one.is_closed());
            asking.push(answer);
        }
        self.remind();
        Some((presence, figures))
    }

    /// Has the client that is connected leave; false if there is none.
    pub(crate) fn kick(&self, reason: ReasonCode) -> bool {
        let Some(presence) = self.presence() else {
            return false;
        };
        presence.leaves.store(reason as u8, Ordering::Relaxed);
        // Its task sees the mark, as it sees a claim.
        self.remind();
        true
    }
}
