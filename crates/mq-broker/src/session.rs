//! A session: what the broker keeps for one client identifier.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use mq_codec::{ByteStr, TopicFilter, Will};
use mq_proto::Session as ProtocolSession;
use tokio::sync::watch;

use crate::{
    auth::{Authorizer, Grant, Guard, Principal},
    mailbox::Mailbox,
    router::{SessionKey, Subscriber},
};

/// What the broker keeps for one client identifier, connected or not.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client_id: ByteStr,
    pub(crate) key: SessionKey,
    pub(crate) mailbox: Mailbox,
    /// Held by the connection that has the session, for as long as it lives. Whoever wants the
    /// session next claims it and waits for this.
    pub(crate) state: Arc<tokio::sync::Mutex<State>>,
    /// Counts those who wanted the session; the connection that has it leaves when it changes.
    pub(crate) claims: watch::Sender<u64>,
    /// What happens after the connection has ended. Apart from `state`, because timers look at it
    /// while a connection may hold that.
    away: Mutex<Away>,
    /// It outlives its connections, and so it is in the store.
    kept: AtomicBool,
    /// What the last message that was queued is known by in the store.
    last_number: AtomicU64,
    /// Whose it is, where that matters and is known: it is not of a session that was restored and
    /// that no connection has had since.
    owner: RwLock<Option<Owner>>,
}

/// Who has a session.
#[derive(Clone, Debug)]
struct Owner {
    principal: Principal,
    /// The generation of the rules that grant every subscription of the session in whole, so that
    /// its messages need not be looked at one by one.
    covered_at: Option<u64>,
}

/// What moves from connection to connection.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) protocol: ProtocolSession,
    pub(crate) subscriptions: HashMap<TopicFilter, Subscriber>,
    /// The session has ended; who waited for it begins a new one.
    pub(crate) ended: bool,
    /// A connection has had it before, so it counts as present.
    pub(crate) used: bool,
}

/// What is to happen while no connection has the session.
#[derive(Debug, Default)]
struct Away {
    will: Option<(Instant, Will)>,
    expires_at: Option<Instant>,
}

impl Session {
    pub(crate) fn new(client_id: ByteStr, key: SessionKey, mailbox: Mailbox) -> Self {
        Self {
            client_id,
            key,
            mailbox,
            state: Arc::default(),
            claims: watch::Sender::new(0),
            away: Mutex::default(),
            kept: AtomicBool::new(false),
            last_number: AtomicU64::new(0),
            owner: RwLock::new(None),
        }
    }

    /// Has the connection that has it look whether it must leave, without anybody claiming it.
    pub(crate) fn remind(&self) {
        self.claims.send_modify(|_| {});
    }

    pub(crate) fn principal(&self) -> Option<Principal> {
        let owner = self.owner.read().unwrap_or_else(PoisonError::into_inner);
        owner.as_ref().map(|owner| owner.principal.clone())
    }

    /// Gives the session with these subscriptions to somebody.
    pub(crate) fn belong_to(&self, principal: &Principal, guard: &Guard, state: &State) {
        let generation = guard.generation();
        let mut filters = state.subscriptions.keys();
        let is_covered =
            filters.all(|filter| guard.subscription(Some(principal), filter) == Grant::All);
        *self.owner.write().unwrap_or_else(PoisonError::into_inner) = Some(Owner {
            principal: principal.clone(),
            covered_at: is_covered.then_some(generation),
        });
    }

    /// A subscription is there of which only a part is granted.
    pub(crate) fn uncover(&self) {
        let mut owner = self.owner.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = &mut *owner {
            owner.covered_at = None;
        }
    }

    /// Whether a message of this topic, which one of the subscriptions matches, may go there. What
    /// comes for a session that nobody has had yet waits until it is known whose it is.
    pub(crate) fn may_receive(&self, authorizer: &dyn Authorizer, topic: &str) -> bool {
        let owner = self.owner.read().unwrap_or_else(PoisonError::into_inner);
        owner.as_ref().is_none_or(|owner| {
            owner.covered_at == Some(authorizer.generation())
                || authorizer.may_receive(&owner.principal, topic)
        })
    }

    /// It will outlive its connections from now on, until it ends.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    /// A number for a message, higher than all before; 0 stands for none.
    pub(crate) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Numbers up to this one were given before the broker was started.
    pub(crate) fn skip_numbers(&self, up_to: u64) {
        self.last_number.store(up_to, Ordering::Relaxed);
    }

    /// The connection has ended: what is due, and when.
    pub(crate) fn leave(&self, now: Instant, will: Option<Will>, expiry: Option<Duration>) {
        let mut away = self.away();
        away.expires_at = expiry.and_then(|expiry| now.checked_add(expiry));
        away.will = will.map(|will| {
            let delay = will.properties.will_delay_interval.unwrap_or(0);
            let due = now + Duration::from_secs(delay.into());
            // The will is due when the session ends, if that is earlier (§3.1.3.2.2).
            (away.expires_at.map_or(due, |at| at.min(due)), will)
        });
    }

    /// A connection is back: nothing is due any more. Returns a will that was waiting.
    pub(crate) fn come_back(&self) -> Option<Will> {
        let mut away = self.away();
        away.expires_at = None;
        away.will.take().map(|(_, will)| will)
    }

    /// The will, if it is due.
    pub(crate) fn take_due_will(&self, now: Instant) -> Option<Will> {
        let mut away = self.away();
        match &away.will {
            Some((due, _)) if *due <= now => away.will.take().map(|(_, will)| will),
            _ => None,
        }
    }

    /// Whether the session's time is over.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// When it ends, if no connection comes back.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.away().expires_at
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let away = self.away();
        let will = away.will.as_ref().map(|(due, _)| *due);
        will.into_iter().chain(away.expires_at).min()
    }

    fn away(&self) -> MutexGuard<'_, Away> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
