//! A session: the state that the broker keeps for one client identifier.

mod kept_protocol;
mod member_state;
mod presence;
mod retained_search;
mod subscriptions;
mod will;

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mq_codec::{ByteStr, TopicFilter};
use mq_proto::{FlowId, Session as ProtocolSession};

use crate::{
    auth::{AccessControl, Authorizer, Grant, Principal},
    lock::{lock, read, write},
    mailbox::{DEFAULT_EQUAL_PER_S, Mailbox},
    memory_limit::MemoryShare,
    router::{LaneSlot, SessionKey, Subscriber},
    store::User,
    worker_thread,
};

pub(crate) use kept_protocol::KeptProtocol;
pub(crate) use member_state::MemberState;
use presence::Seen;
pub(crate) use presence::{ConnectionFigures, OperatorView, Presence};
pub(crate) use retained_search::RetainedSearch;
pub(crate) use subscriptions::Subscriptions;
pub(crate) use will::KeptWill;

/// The state that the broker keeps for one client identifier, connected or not.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client_id: ByteStr,
    pub(crate) key: SessionKey,
    pub(crate) mailbox: Mailbox,
    /// Locked by the connection that has the session, for as long as it lives. The next connection
    /// claims the session and waits for this lock.
    pub(crate) state: Arc<tokio::sync::Mutex<SessionState>>,
    /// Counts the connections that claimed the session. The one that has it leaves when this
    /// changes.
    claims: AtomicU32,
    /// `true` if the connection that has it is to look whether it must leave.
    reminded: AtomicBool,
    /// The will and the expiry that take effect after the connection has ended. Apart from `state`, because timers look at it
    /// while a connection may hold that.
    away: Mutex<Away>,
    /// `true` if it is in the store.
    persistent: AtomicBool,
    /// The number of the last queued message in the store.
    last_number: AtomicU64,
    /// The user, from the session's beginning on and over a restart. Unknown for a session of a store of an
    /// earlier format, until a client takes it up.
    user: RwLock<Option<User>>,
    /// The rights of its client, where there are rules. Unknown for a restored session that no
    /// connection has had since.
    owner: RwLock<Option<Owner>>,
    /// The subscriptions, which are also in `state`: operators read them while a connection holds that.
    pub(crate) subscriptions: Subscriptions,
    /// The connection that has it, for operators, or the time of the last one.
    presence: Mutex<Seen>,
    /// The worker of the last connection that had it.
    worker: WorkerOfConnection,
    /// `true` if the client that has it is a remote broker's bridge.
    has_remote_bridge: AtomicBool,
    /// The part in its shared subscriptions that the nodes of a cluster know; `Gone` before they know any.
    member_state: Mutex<MemberState>,
}

/// The number of a worker, or none, in one atomic word.
#[derive(Debug, Default)]
struct WorkerOfConnection(AtomicU32);

impl WorkerOfConnection {
    fn set(&self, worker: Option<usize>) {
        let number = worker.and_then(|worker| u32::try_from(worker + 1).ok());
        self.0.store(number.unwrap_or_default(), Ordering::Relaxed);
    }

    fn get(&self) -> Option<usize> {
        let number_from_one = self.0.load(Ordering::Relaxed);
        usize::try_from(number_from_one.checked_sub(1)?).ok()
    }
}

/// The user of a session, with the rights of its last log-in.
#[derive(Clone, Debug)]
struct Owner {
    principal: Principal,
    /// The generation of the rules that grant every subscription of the session in whole, so that
    /// its messages need not be looked at one by one.
    fully_granted_at: Option<u64>,
}

/// The part of a session that moves from connection to connection.
#[derive(Debug)]
pub(crate) struct SessionState {
    /// The memory of the session and its subscriptions.
    pub(crate) share: MemoryShare,
    /// `None` while a connection has it, and before the first one.
    pub(crate) protocol: Option<KeptProtocol>,
    pub(crate) subscriptions: Subscriptions,
    /// Retained messages that subscriptions have not got yet; one for each filter at most.
    pub(crate) retained_searches: VecDeque<RetainedSearch>,
    /// The last slot that was given to a data lane or flow.
    pub(crate) last_lane: LaneSlot,
    /// The slots of flows (MQTT-next).
    #[cfg(feature = "mqtt-next")]
    pub(crate) flows: Vec<(FlowId, LaneSlot)>,
    /// `true` if the session has ended: a connection that waited for it begins a new one.
    pub(crate) ended: bool,
    /// `true` if a connection has had it before, so that it counts as present.
    pub(crate) was_attached: bool,
}

/// The will and the expiry of a session that no connection has.
#[derive(Debug, Default)]
struct Away {
    will: Option<(Instant, Box<KeptWill>)>,
    expires_at: Option<Instant>,
}

/// The memory of an empty session, about: itself, its places in tables, and four in its queue.
const EMPTY_SESSION_BYTES: usize = size_of::<Session>() + size_of::<SessionState>() + 540;

/// The memory of a session's table of subscriptions with its first one, besides that one.
const SUBSCRIPTIONS_BYTES: usize = 3 * size_of::<(TopicFilter, Subscriber)>() + 64;

/// The memory of a subscription besides its filter, of which there are two copies: in the session
/// and its cursor.
const SUBSCRIPTION_BYTES: usize = 2 * size_of::<Subscriber>() + size_of::<RetainedSearch>() + 64;

/// The memory of the group of a shared subscription besides, about: its place in a table that is half full.
const GROUP_BYTES: usize = 96;

impl SessionState {
    fn new(share: MemoryShare) -> Self {
        Self {
            share,
            protocol: None,
            subscriptions: Subscriptions::default(),
            retained_searches: VecDeque::new(),
            last_lane: LaneSlot::CONTROL,
            #[cfg(feature = "mqtt-next")]
            flows: Vec::new(),
            ended: false,
            was_attached: false,
        }
    }

    /// Keeps the protocol's part between two connections, and counts its memory: it is held already.
    pub(crate) fn keep_protocol(&mut self, session: ProtocolSession) {
        self.protocol = Some(KeptProtocol::new(session, self.share.beside()));
    }

    /// Returns the protocol's part for a connection: a new one if none is kept.
    pub(crate) fn take_protocol(&mut self) -> ProtocolSession {
        let kept = self.protocol.take();
        kept.map_or_else(ProtocolSession::new, KeptProtocol::into_session)
    }

    /// Returns a slot that no flow has.
    pub(crate) fn new_slot(&mut self) -> LaneSlot {
        let mut slot = self.last_lane.next();
        while self.flow_of(slot).is_some() {
            slot = slot.next();
        }
        self.last_lane = slot;
        slot
    }

    /// Returns the flow that has a slot.
    #[cfg(feature = "mqtt-next")]
    pub(crate) fn flow_of(&self, slot: LaneSlot) -> Option<FlowId> {
        let known = self.flows.iter().find(|(_, of)| *of == slot);
        known.map(|(flow, _)| *flow)
    }

    /// Returns the flow that has a slot: none.
    #[cfg(not(feature = "mqtt-next"))]
    #[expect(clippy::unused_self, reason = "as with flows")]
    pub(crate) fn flow_of(&self, _slot: LaneSlot) -> Option<FlowId> {
        None
    }

    /// Returns the slot of a flow.
    #[cfg(feature = "mqtt-next")]
    pub(crate) fn slot_of(&self, flow: FlowId) -> Option<LaneSlot> {
        let known = self.flows.iter().find(|(of, _)| *of == flow);
        known.map(|(_, slot)| *slot)
    }

    /// Returns the store's form of a slot: those of lanes end with the connection.
    pub(crate) fn kept_slot(&self, slot: LaneSlot) -> u16 {
        match self.flow_of(slot) {
            Some(_) => slot.number(),
            None => 0,
        }
    }

    /// Counts a subscription; false if there is no room for it.
    #[must_use]
    pub(crate) fn count_subscription(&mut self, filter: &TopicFilter) -> bool {
        self.share.set(self.share.bytes() + self.weight(filter))
    }

    /// Counts a restored subscription, room or not.
    pub(crate) fn count_subscription_anyway(&mut self, filter: &TopicFilter) {
        self.share
            .set_anyway(self.share.bytes() + self.weight(filter));
    }

    /// Takes back the memory that a subscription was counted as, which the table does not have (any more).
    pub(crate) fn uncount_subscription(&mut self, filter: &TopicFilter) {
        let bytes = self.share.bytes().saturating_sub(self.weight(filter));
        self.share.set_anyway(bytes);
    }

    /// Returns the memory of a subscription that the table does not have.
    fn weight(&self, filter: &TopicFilter) -> usize {
        let is_first = self.subscriptions.lock().is_empty();
        let table = if is_first { SUBSCRIPTIONS_BYTES } else { 0 };
        let group = filter.shared().map_or(0, |_| GROUP_BYTES);
        table + 2 * filter.len() + SUBSCRIPTION_BYTES + group
    }
}

impl Session {
    /// Returns the number of bytes that an empty session of that client identifier takes.
    pub(crate) fn empty_bytes(client_id: &ByteStr) -> usize {
        EMPTY_SESSION_BYTES + 2 * client_id.len()
    }

    pub(crate) fn new(
        client_id: ByteStr,
        key: SessionKey,
        mailbox: Mailbox,
        user: Option<User>,
        share: MemoryShare,
    ) -> Self {
        let state = SessionState::new(share);
        Self {
            client_id,
            key,
            has_remote_bridge: AtomicBool::new(false),
            mailbox,
            subscriptions: state.subscriptions.clone(),
            presence: Mutex::default(),
            worker: WorkerOfConnection::default(),
            state: Arc::new(tokio::sync::Mutex::new(state)),
            claims: AtomicU32::new(0),
            reminded: AtomicBool::new(false),
            away: Mutex::default(),
            persistent: AtomicBool::new(false),
            last_number: AtomicU64::new(0),
            user: RwLock::new(user),
            owner: RwLock::new(None),
            member_state: Mutex::new(MemberState::Gone),
        }
    }

    /// Returns the part in its shared subscriptions that the nodes of a cluster know. Publishing another one is done under
    /// this lock, so that the last one published is the present one.
    pub(crate) fn member_state(&self) -> MutexGuard<'_, MemberState> {
        lock(&self.member_state)
    }

    /// Notes whether the client that has it is a remote broker's bridge.
    pub(crate) fn set_remote_bridge(&self, is_bridge: bool) {
        self.has_remote_bridge.store(is_bridge, Ordering::Relaxed);
    }

    /// Returns `true` for the session of a bridge, of this broker or of a remote one.
    pub(crate) fn is_bridge(&self) -> bool {
        self.equal_per_s().is_some()
    }

    /// Returns the bound on equal messages a second, if it is the session of a bridge.
    pub(crate) fn equal_per_s(&self) -> Option<NonZeroU32> {
        let of_remote = || self.has_remote_bridge.load(Ordering::Relaxed);
        let of_own = NonZeroU32::new(self.mailbox.equal_per_s());
        of_own.or_else(|| of_remote().then_some(DEFAULT_EQUAL_PER_S))
    }

    /// Claims the session for a connection, and asks the one that has it to leave. Returns the claim's
    /// number.
    pub(crate) fn claim(&self) -> u32 {
        let claim = self.claims.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.remind();
        claim
    }

    /// Returns `true` if no other connection has claimed the session since that claim.
    pub(crate) fn is_last_claim(&self, claim: u32) -> bool {
        self.claims.load(Ordering::Relaxed) == claim
    }

    /// Notes that a connection on this thread has it.
    pub(crate) fn serve_on_this_worker(&self) {
        self.worker.set(worker_thread::current());
    }

    /// Returns the worker of the connection that has it, or had it last; `None` on a thread of another runtime.
    pub(crate) fn worker(&self) -> Option<usize> {
        self.worker.get()
    }

    /// Has the connection that has it look whether it must leave, without a claim.
    pub(crate) fn remind(&self) {
        // A connection that sees it sees the claim, too, or that the reader is to be evicted.
        self.reminded.store(true, Ordering::Release);
        self.mailbox.wake_reader();
    }

    /// Returns `true` if [`remind`](Self::remind) was called since the last time; for the connection that has it.
    pub(crate) fn take_reminder(&self) -> bool {
        self.reminded.load(Ordering::Relaxed) && self.reminded.swap(false, Ordering::AcqRel)
    }

    /// Returns `true` if the session is this user's. A session without a known user is this user's from now on.
    pub(crate) fn is_of_user(&self, user: &User) -> bool {
        let mut own = write(&self.user);
        own.get_or_insert_with(|| user.clone()) == user
    }

    /// Returns the session's user, if known.
    pub(crate) fn user(&self) -> Option<User> {
        let own = read(&self.user);
        own.clone()
    }

    /// Makes the session this user's, whoever had it before.
    pub(crate) fn set_user(&self, user: &User) {
        let mut own = write(&self.user);
        *own = Some(user.clone());
    }

    pub(crate) fn principal(&self) -> Option<Principal> {
        let owner = read(&self.owner);
        owner.as_ref().map(|owner| owner.principal.clone())
    }

    /// Gives the session, with these subscriptions, to a principal.
    pub(crate) fn set_principal(
        &self,
        principal: &Principal,
        access_control: &AccessControl,
        state: &SessionState,
    ) {
        let generation = access_control.generation();
        let subscriptions = state.subscriptions.lock();
        let mut filters = subscriptions.keys();
        let is_fully_granted = filters
            .all(|filter| access_control.subscription(Some(principal), filter) == Grant::All);
        drop(subscriptions);
        *write(&self.owner) = Some(Owner {
            principal: principal.clone(),
            fully_granted_at: is_fully_granted.then_some(generation),
        });
    }

    /// Notes a subscription of which only a part is granted.
    pub(crate) fn note_partial_grant(&self) {
        let mut owner = write(&self.owner);
        if let Some(owner) = &mut *owner {
            owner.fully_granted_at = None;
        }
    }

    /// Returns `true` if the session may get a message of this topic, which one of its subscriptions matches.
    /// Messages for a restored session wait until its user is known.
    pub(crate) fn may_receive(&self, authorizer: &dyn Authorizer, topic: &str) -> bool {
        let owner = read(&self.owner);
        owner.as_ref().is_none_or(|owner| {
            owner.fully_granted_at == Some(authorizer.generation())
                || authorizer.may_receive(&owner.principal, topic)
        })
    }

    /// Returns `true` if messages wait for the session, which no connection has, or exchanges to go on.
    pub(crate) fn has_work(&self) -> bool {
        if self.mailbox.len() > 0 {
            return true;
        }
        let Ok(state) = self.state.try_lock() else {
            return false;
        };
        let kept = state.protocol.as_ref();
        let is_idle = kept.is_none_or(KeptProtocol::is_empty);
        !is_idle || !state.retained_searches.is_empty()
    }

    /// Has the session kept in the store from now on, until it ends: it outlives its connections, or
    /// more waits for it than memory holds.
    pub(crate) fn make_persistent(&self) {
        // A task that sees it records after the changes so far.
        self.persistent.store(true, Ordering::Release);
    }

    pub(crate) fn is_persistent(&self) -> bool {
        self.persistent.load(Ordering::Acquire)
    }

    /// Draws a number for a message, higher than all before; 0 stands for none.
    pub(crate) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Continues the numbers after `up_to`: lower ones were given before the broker was started.
    pub(crate) fn continue_numbers_after(&self, up_to: u64) {
        self.last_number.store(up_to, Ordering::Relaxed);
    }

    /// Notes that the connection has ended, and sets the time of the will and of the expiry.
    pub(crate) fn set_away(
        &self,
        now: Instant,
        will: Option<Box<KeptWill>>,
        expiry: Option<Duration>,
    ) {
        let mut away = self.away();
        away.expires_at = expiry.and_then(|expiry| now.checked_add(expiry));
        away.will = will.map(|will| {
            let due = now + will.delay();
            // The will is due when the session ends, if that is earlier (§3.1.3.2.2).
            (away.expires_at.map_or(due, |at| at.min(due)), will)
        });
    }

    /// Notes that a connection is back: nothing is due any more. Returns a will that was waiting.
    pub(crate) fn resume(&self) -> Option<Box<KeptWill>> {
        let mut away = self.away();
        away.expires_at = None;
        away.will.take().map(|(_, will)| will)
    }

    /// Takes the will, if it is due.
    pub(crate) fn take_due_will(&self, now: Instant) -> Option<Box<KeptWill>> {
        let mut away = self.away();
        match &away.will {
            Some((due, _)) if *due <= now => away.will.take().map(|(_, will)| will),
            _ => None,
        }
    }

    /// Returns `true` if a will waits for its time.
    pub(crate) fn has_will(&self) -> bool {
        self.away().will.is_some()
    }

    /// Returns `true` if the session has expired.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// Returns the time of its expiry, if no connection comes back.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.away().expires_at
    }

    /// Returns the time at which its will or its expiry is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let away = self.away();
        let will = away.will.as_ref().map(|(due, _)| *due);
        will.into_iter().chain(away.expires_at).min()
    }

    fn away(&self) -> MutexGuard<'_, Away> {
        lock(&self.away)
    }
}

#[cfg(test)]
mod tests {
    use super::Session;

    #[test]
    fn a_session_takes_no_larger_block_of_the_allocator_than_it_has_to() {
        // With the counts of an Arc it is 512 bytes at most: the next size of mimalloc's is 640.
        assert!(size_of::<Session>() <= 496, "{}", size_of::<Session>());
    }
}
