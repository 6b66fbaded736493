//! The one door to what all connections share: sessions, subscriptions, retained messages.

mod bans;
mod cluster;
#[cfg(feature = "mqtt-next")]
mod flows;
mod inspect;
mod publish;
mod publisher;
mod refusals;
mod restore;
mod shared;
mod subscribe;
mod sys;
mod topic_rates;
mod will;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use mq_codec::{ByteStr, ReasonCode, TopicFilter};
use mq_proto::{Delivery, Received};
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::{
    Quotas,
    auth::{Authorizer, Guard, Principal, TakeOver},
    bridge,
    ceiling::{Ceiling, Share},
    clock,
    journal::Journal,
    lock::{lock, read, write},
    mailbox::{Mailbox, MailboxRules, Waiting},
    metrics::Metrics,
    notice::Notices,
    router::{RetainedStore, Router, SessionKey},
    session::{KeptWill, Presence, Registration, Session, State},
    store::{SessionChange, Snapshot, Store, User, to_wall_clock},
    workers::Couriers,
};
use bans::Bans;
pub(crate) use cluster::{Later, MemberState, Nodes, Overfull, RIVALS, Receivers, Restoring};
#[cfg(feature = "mqtt-next")]
pub(crate) use flows::keep_flow;
pub(crate) use inspect::BridgeState;
pub(crate) use publisher::{Publisher, dropped, expired, unqueued};
pub(crate) use sys::OwnTopics;
use topic_rates::TopicCounts;

/// All clients that were not let in yet may hold this part of the memory together.
const STRANGERS: usize = 4;

/// Why a client's message is refused that only the broker publishes.
pub(crate) const OWN_TOPIC: &str = "topic of the broker's own";

/// Subscriptions of a session that ends at a time: messages wait meanwhile.
const ENDED_AT_ONCE: usize = 64;

/// How often an absent session is looked at by whoever [waits for it](Hub::something_waits).
const LOOK_AT_ABSENT: Duration = Duration::from_millis(250);

/// How long a client waits until an earlier connection has given its session back.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(5);

/// What all connections of a broker share.
#[derive(Debug)]
pub(crate) struct Hub {
    quotas: Quotas,
    /// Of all sessions but those of bridges.
    mailboxes: Arc<MailboxRules>,
    take_over: TakeOver,
    bridges: bridge::Queues,
    pub(crate) own_topics: OwnTopics,
    /// What waits for all sessions, and retained messages.
    ceiling: Arc<Ceiling>,
    routing: RwLock<Routing>,
    retained: RwLock<RetainedTopics>,
    /// What clients hold before they are let in.
    strangers: Arc<Ceiling>,
    sessions: Mutex<Sessions>,
    /// What is due: wills and ends of sessions.
    due: Mutex<BTreeSet<(Instant, SessionKey)>>,
    due_changed: Notify,
    /// Held by the session that [ends its subscriptions](Hub::end_subscriptions).
    ending: tokio::sync::Mutex<()>,
    assigned: AtomicU64,
    store: Option<Arc<dyn Store>>,
    /// The other nodes, where it is one of a cluster.
    cluster: Option<Arc<dyn Nodes>>,
    pub(crate) guard: Guard,
    pub(crate) metrics: Metrics,
    pub(crate) notices: Notices,
    pub(crate) bans: Bans,
    topics: TopicCounts,
    couriers: Arc<Couriers>,
}

/// Subscriptions, and the mailboxes that they lead to.
#[derive(Debug)]
struct Routing {
    router: Router,
    /// What the router's nodes take.
    share: Share,
    /// By session key.
    sessions: Vec<Option<Arc<Session>>>,
}

/// Retained messages, which count themselves, and what finding them takes.
#[derive(Debug)]
struct RetainedTopics {
    store: RetainedStore,
    share: Share,
}

#[derive(Debug, Default)]
struct Sessions {
    by_id: HashMap<ByteStr, Arc<Session>>,
    free_keys: Vec<SessionKey>,
}

/// A session in the hands of a connection.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) session: Arc<Session>,
    pub(crate) state: OwnedMutexGuard<State>,
    pub(crate) present: bool,
    /// Shows the connection to operators, once its client is let in.
    pub(crate) shown: Option<Registration>,
    /// The claim that was this connection's own.
    claim: u64,
}

impl Hold {
    /// Whether another connection wants the session.
    pub(crate) fn is_claimed(&self) -> bool {
        !self.session.is_last_claim(self.claim)
    }

    /// Shows the connection to operators.
    pub(crate) fn show(&mut self, presence: Presence) {
        self.shown = Some(Registration::new(&self.session, presence));
    }
}

impl Hub {
    /// A hub that goes on from what the store has kept.
    pub(crate) fn new(
        quotas: Quotas,
        (store, kept): (Option<Arc<dyn Store>>, Snapshot),
        guard: Guard,
        take_over: TakeOver,
        bridges: bridge::Queues,
    ) -> Self {
        let mut hub = Self::empty(quotas, store, guard, take_over);
        hub.bridges = bridges;
        hub.restore(kept);
        hub
    }

    fn empty(
        quotas: Quotas,
        store: Option<Arc<dyn Store>>,
        guard: Guard,
        take_over: TakeOver,
    ) -> Self {
        let can_spill = store.as_ref().is_some_and(|store| store.can_spill());
        let ceiling = Arc::new(Ceiling::new(quotas.memory));
        let strangers = Ceiling::part_of(&ceiling, quotas.memory / STRANGERS);
        Self {
            take_over,
            bridges: bridge::Queues::default(),
            own_topics: OwnTopics::default(),
            strangers: Arc::new(strangers),
            routing: RwLock::new(Routing {
                router: Router::new(),
                share: Share::new(&ceiling),
                sessions: Vec::new(),
            }),
            retained: RwLock::new(RetainedTopics {
                store: RetainedStore::new(),
                share: Share::new(&ceiling),
            }),
            ceiling,
            mailboxes: Arc::new(MailboxRules::new(
                quotas.mailbox,
                quotas.overflow_policy(can_spill),
            )),
            quotas,
            store,
            cluster: None,
            guard,
            sessions: Mutex::default(),
            due: Mutex::default(),
            due_changed: Notify::new(),
            ending: tokio::sync::Mutex::default(),
            assigned: AtomicU64::new(0),
            metrics: Metrics::default(),
            notices: Notices::default(),
            bans: Bans::default(),
            topics: TopicCounts::default(),
            couriers: Arc::default(),
        }
    }

    /// The same, with readers on workers told by `couriers`, as a node of a cluster, which is its store as well, and
    /// with topics that it keeps to itself.
    pub(crate) fn with(
        self,
        couriers: Arc<Couriers>,
        cluster: Option<Arc<dyn Nodes>>,
        own_topics: OwnTopics,
    ) -> Self {
        Self {
            own_topics,
            cluster,
            couriers,
            ..self
        }
    }

    pub(crate) fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.as_ref()
    }

    /// Bytes that count against [`Quotas::memory`].
    pub(crate) fn memory_used(&self) -> usize {
        self.ceiling.used()
    }

    /// [`Quotas::memory`].
    pub(crate) fn memory_limit(&self) -> usize {
        self.quotas.memory
    }

    /// Whether all memory that [`Quotas::memory`] gives is counted.
    pub(crate) fn is_full(&self) -> bool {
        self.ceiling.left() == 0
    }

    /// A share for what one connection holds: of a client that was let in, or not yet.
    pub(crate) fn share(&self, let_in: bool) -> Share {
        Share::new(if let_in {
            &self.ceiling
        } else {
            &self.strangers
        })
    }

    /// What a connection publishes with.
    pub(crate) fn publisher(&self) -> Publisher {
        Publisher::new(
            self.journal(),
            Arc::clone(&self.ceiling),
            Arc::clone(&self.couriers),
        )
    }

    fn journal(&self) -> Journal {
        Journal::new(self.store.as_ref())
    }

    /// Makes a client identifier for a client that sent none. No two of this broker are the same.
    pub(crate) fn assign_client_id(&self) -> ByteStr {
        use std::hash::{BuildHasher, RandomState};

        let count = self.assigned.fetch_add(1, Ordering::Relaxed);
        // Nobody can guess it by counting, and no restart repeats it.
        let random = RandomState::new().hash_one(count);
        ByteStr::new(format!("auto-{count:x}-{random:016x}")).expect("a short string of ASCII")
    }

    /// Gives the session of `client_id` to a connection. With `clean`, or where there is none, that
    /// is a new session. A connection that has the session now is made to leave (take-over,
    /// `[MQTT-3.1.4-3]`).
    ///
    /// The session is `user`'s, with the rights of `who` if they matter. Another user's session is
    /// not handed over: [`TakeOver`] says whether it ends or stays as it is.
    ///
    /// # Errors
    /// Why the connection gets none: the session is another user's, a later connection claimed it,
    /// the earlier connection did not give it back in time, or there are as many sessions as may
    /// be.
    pub(crate) async fn attach(
        &self,
        client_id: &ByteStr,
        clean: bool,
        user: &User,
        who: Option<&Principal>,
        journal: &mut Journal,
    ) -> Result<Hold, ReasonCode> {
        let mut rivals = 0;
        loop {
            if let Some(cluster) = &self.cluster {
                cluster.claim(client_id, user, self.take_over).await?;
            }
            let most = self.quotas.sessions;
            let Some(session) = self.find_or_create(client_id, Some(user), most) else {
                self.metrics.sessions_refused.add(1);
                if let Some(cluster) = &self.cluster {
                    cluster.ended(client_id);
                }
                return Err(ReasonCode::QuotaExceeded);
            };
            // Before the connection that has it is disturbed.
            if self.take_over == TakeOver::SameUser && !session.is_of(user) {
                return Err(ReasonCode::ClientIdentifierNotValid);
            }
            let claim = session.claim();
            let Some(mut state) = in_time(&session).await else {
                return Err(ReasonCode::ServerBusy);
            };
            if !session.is_last_claim(claim) {
                return Err(ReasonCode::ServerBusy);
            }
            if state.ended {
                continue;
            }
            if let Some(cluster) = &self.cluster
                && !cluster.has(client_id)
            {
                // It has begun to go to another node since it was claimed.
                if !state.used {
                    self.forget(&session, &mut state, || {});
                }
                rivals += 1;
                if rivals == RIVALS {
                    return Err(ReasonCode::ServerBusy);
                }
                continue;
            }
            let will = session.come_back();
            let is_others = !session.is_of(user);
            if (clean || is_others) && state.used {
                // The session ends here, so its will is due (§3.1.3.2.2).
                if let Some(will) = will {
                    self.publish_will(&session, *will);
                }
                self.end_subscriptions(&session).await;
                self.end_session(&session, &mut state, journal);
                continue;
            }
            let present = core::mem::replace(&mut state.used, true);
            self.resume_wanted(&mut state.wanted);
            session.give_to(user);
            if let Some(who) = who {
                self.hand_over(&session, &state, who, journal);
            }
            return Ok(Hold {
                session,
                state,
                present,
                shown: None,
                claim,
            });
        }
    }

    /// Attaches the session to `who` and drops queued messages that its rules no longer allow.
    fn hand_over(&self, session: &Session, state: &State, who: &Principal, journal: &mut Journal) {
        session.belong_to(who, &self.guard, state);
        if !state.subscriptions.lock().is_empty() {
            // The receivers of messages have changed, although no subscription has.
            write(&self.routing).router.changed();
        }
        self.remove_forbidden(session, journal);
    }

    /// Gives the session's client other rights; its user stays the same.
    pub(crate) fn rights_changed(&self, hold: &Hold, who: &Principal) {
        hold.session.belong_to(who, &self.guard, &hold.state);
        write(&self.routing).router.changed();
    }

    /// Removes messages from a mailbox that the present rules do not let its owner receive.
    pub(crate) fn remove_forbidden(&self, session: &Session, journal: &mut Journal) {
        let (Some(authorizer), Some(who)) = (&self.guard.authorizer, session.principal()) else {
            return;
        };
        // By topic, not by subscription: the one that a message came by may be gone.
        let may_receive =
            |delivery: &Delivery| authorizer.may_receive(&who, &delivery.message.topic);
        for delivery in session.mailbox.keep(may_receive) {
            unqueued(session, &delivery, journal);
        }
    }

    /// Whether the rules let `who` publish that message. A refusal is counted.
    pub(crate) fn may_publish(
        &self,
        who: &Principal,
        received: &Received,
        publisher: &mut Publisher,
    ) -> bool {
        let topic = &received.message.topic;
        let kind = (received.qos, received.retain);
        let may = publisher.may_publish(&self.guard, who, topic, kind);
        if !may {
            self.metrics.not_authorized.add(1);
        }
        may
    }

    /// Ends the subscriptions of a session that has many and is about to end: a few at a time, and of one session at a
    /// time, so that a crowd that leaves holds up no messages. Shared ones stay, whose messages others get.
    ///
    /// Cancel-safe: the others stay as well.
    pub(crate) async fn end_subscriptions(&self, session: &Session) {
        let all = &session.subscriptions;
        if all.lock().len() <= ENDED_AT_ONCE {
            return;
        }
        let _turn = self.ending.lock().await;
        loop {
            let some: Vec<TopicFilter> = all
                .lock()
                .extract_if(|filter, _| filter.shared().is_none())
                .take(ENDED_AT_ONCE)
                .map(|(filter, _)| filter)
                .collect();
            if some.is_empty() {
                return;
            }
            {
                let mut routing = write(&self.routing);
                for filter in &some {
                    routing.unsubscribe(filter, session.key);
                }
            }
            self.metrics.subscriptions.sub(some.len());
            tokio::task::yield_now().await;
        }
    }

    /// Takes the session back from a connection that has ended.
    ///
    /// `expiry` is how long the session lives on. Zero ends it now, `None` never.
    pub(crate) fn detach(
        &self,
        hold: Hold,
        now: Instant,
        will: Option<Box<KeptWill>>,
        expiry: Option<Duration>,
        journal: &mut Journal,
    ) {
        let Hold {
            session,
            mut state,
            shown,
            ..
        } = hold;
        drop(shown);
        let ends_now = expiry == Some(Duration::ZERO);
        session.leave(now, will, expiry);
        if let Some(will) = session.take_due_will(now) {
            self.publish_will(&session, *will);
        } else if !session.has_will() {
            self.note_will(&session, None, journal);
        }
        if ends_now {
            self.end_session(&session, &mut state, journal);
            return;
        }
        self.tell_of_member(&session, MemberState::Away, journal);
        let expires_at = session.expires_at().map(to_wall_clock);
        journal.record_of(&session, SessionChange::Detached { expires_at });
        drop(state);
        self.note_due(&session);
    }

    /// Waits until something waits for an absent session.
    pub(crate) async fn something_waits(&self, client_id: &ByteStr) {
        loop {
            let session = lock(&self.sessions).by_id.get(client_id).cloned();
            // Nobody rings for a session without a connection.
            if session.is_some_and(|session| session.has_work()) {
                return;
            }
            tokio::time::sleep(LOOK_AT_ABSENT).await;
        }
    }

    /// Tells the timers when something of the session is due next.
    fn note_due(&self, session: &Session) {
        if let Some(due) = session.next_due() {
            lock(&self.due).insert((due, session.key));
            self.due_changed.notify_one();
        }
    }

    /// Publishes wills and ends sessions as they become due. Runs until it is dropped.
    pub(crate) async fn run_timers(&self) {
        tokio::join!(self.run_dues(), self.notices.run());
    }

    async fn run_dues(&self) {
        loop {
            let next = lock(&self.due).first().map(|(due, _)| *due);
            let changed = self.due_changed.notified();
            match next {
                Some(due) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(due.into()) => self.run_due(clock::now()).await,
                        () = changed => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    async fn run_due(&self, now: Instant) {
        let mut journal = self.journal();
        loop {
            let key = {
                let mut due = lock(&self.due);
                match due.first().copied() {
                    Some(first @ (at, key)) if at <= now => {
                        due.remove(&first);
                        key
                    }
                    _ => break,
                }
            };
            let session = read(&self.routing).session(key).cloned();
            let Some(session) = session else { continue };
            // A connection that holds the state sees to it, also one that has just come back.
            let Ok(mut state) = Arc::clone(&session.state).try_lock_owned() else {
                continue;
            };
            if let Some(will) = session.take_due_will(now) {
                self.publish_will(&session, *will);
            }
            if session.is_expired(now) {
                self.end_subscriptions(&session).await;
                self.end_session(&session, &mut state, &mut journal);
            } else if let Some(next) = session.next_due() {
                lock(&self.due).insert((next, key));
            }
        }
        write(&self.retained).expire(now);
    }

    /// What may wait for the session of a bridge, whether it is there or not.
    fn rules_of_bridge(&self, session: &ByteStr) -> MailboxRules {
        let queue = self.bridges.get(session).copied().unwrap_or_default();
        let quotas = queue.within(self.quotas);
        let can_spill = self.store.as_ref().is_some_and(|store| store.can_spill());
        let mut rules = MailboxRules::new(quotas.mailbox, quotas.overflow_policy(can_spill));
        rules.lets_past = true;
        rules.age = queue.age;
        rules
    }

    /// The session of that client identifier. A new one is `user`'s. `None` if it would be a new
    /// one and there are `most` already.
    fn find_or_create(
        &self,
        client_id: &ByteStr,
        user: Option<&User>,
        most: usize,
    ) -> Option<Arc<Session>> {
        let mut sessions = lock(&self.sessions);
        if let Some(session) = sessions.by_id.get(client_id) {
            return Some(Arc::clone(session));
        }
        if sessions.by_id.len() >= most {
            return None;
        }
        let mut share = Share::new(&self.ceiling);
        let bytes = Session::empty_bytes(client_id);
        if most == usize::MAX {
            // A restored session counts, room or not.
            share.set_anyway(bytes);
        } else if !share.set(bytes) {
            return None;
        }
        let mut routing = write(&self.routing);
        let key = sessions.free_keys.pop().unwrap_or_else(|| {
            routing.sessions.push(None);
            SessionKey(u32::try_from(routing.sessions.len() - 1).expect("fewer than 2^32 sessions"))
        });
        // The identifier outlives the packet that it came in.
        let client_id = client_id.detached();
        let ceiling = Arc::clone(&self.ceiling);
        let mailbox = if client_id.starts_with(bridge::PREFIX) {
            Mailbox::new(&Arc::new(self.rules_of_bridge(&client_id)), ceiling)
        } else {
            Mailbox::new(&self.mailboxes, ceiling)
        };
        let user = user.cloned();
        let session = Arc::new(Session::new(client_id.clone(), key, mailbox, user, share));
        routing.sessions[key.index()] = Some(Arc::clone(&session));
        sessions.by_id.insert(client_id, Arc::clone(&session));
        self.metrics.sessions.add(1);
        Some(session)
    }

    /// Ends a session. Its subscriptions and queued messages go, but for messages that other
    /// members of its shared subscriptions get.
    fn end_session(&self, session: &Arc<Session>, state: &mut State, journal: &mut Journal) {
        let Some(waiting) = self.remove_from_routing(session, state, || {}) else {
            return;
        };
        self.tell_of_member(session, MemberState::Gone, journal);
        let left = self.left_to_others(session, state, waiting);
        // Before another session of the same name can begin.
        self.remove(session, state, || {
            journal.record_of(session, SessionChange::Ended);
            if let Some(cluster) = &self.cluster {
                cluster.ended(&session.client_id);
            }
        });
        self.pass_on(left, journal);
    }

    /// Takes a session out of the way of messages, and returns what waits for it; `None` if it has ended before.
    /// `then` is called at the moment from which on no publisher finds it.
    fn remove_from_routing(
        &self,
        session: &Session,
        state: &mut State,
        then: impl FnOnce(),
    ) -> Option<Waiting> {
        if core::mem::replace(&mut state.ended, true) {
            return None;
        }
        let mut routing = write(&self.routing);
        let subscriptions = state.subscriptions.lock();
        for filter in subscriptions.keys() {
            routing.unsubscribe(filter, session.key);
        }
        self.metrics.subscriptions.sub(subscriptions.len());
        drop(subscriptions);
        routing.sessions[session.key.index()] = None;
        let waiting = session.mailbox.end();
        then();
        Some(waiting)
    }

    /// Takes a session off the list. `then` is done before another of the same name can begin.
    fn remove(&self, session: &Arc<Session>, state: &mut State, then: impl FnOnce()) {
        let mut sessions = lock(&self.sessions);
        let current = sessions.by_id.get(&session.client_id);
        if current.is_some_and(|current| Arc::ptr_eq(current, session)) {
            sessions.by_id.remove(&session.client_id);
        }
        then();
        sessions.free_keys.push(session.key);
        drop(sessions);
        state.subscriptions.lock().clear();
        #[cfg(feature = "mqtt-next")]
        state.flows.clear();
        state.wanted.clear();
        state.share.set_anyway(0);
        self.metrics.sessions.sub(1);
    }
}

impl RetainedTopics {
    fn expire(&mut self, now: Instant) {
        self.store.expire(now);
        self.share.set_anyway(self.store.bytes());
    }
}

impl Routing {
    /// Counts the router's nodes. False if there is no room for the new ones.
    #[must_use]
    fn count_nodes(&mut self) -> bool {
        self.share.set(self.router.bytes())
    }

    fn unsubscribe(&mut self, filter: &TopicFilter, key: SessionKey) {
        self.router.unsubscribe(filter, key);
        self.share.set_anyway(self.router.bytes());
    }

    fn session(&self, key: SessionKey) -> Option<&Arc<Session>> {
        self.sessions.get(key.index())?.as_ref()
    }

    /// Whether a session is a good choice for a shared subscription now.
    fn is_ready(&self, key: SessionKey) -> bool {
        let session = self.session(key);
        session.is_some_and(|session| session.mailbox.is_ready())
    }

    /// Whether the rules let a session have a message of that topic.
    fn may_receive(&self, key: SessionKey, rules: &dyn Authorizer, topic: &str) -> bool {
        let session = self.session(key);
        session.is_some_and(|session| session.may_receive(rules, topic))
    }
}

/// A session, once its connection has given it back; `None` if that takes too long.
async fn in_time(session: &Session) -> Option<OwnedMutexGuard<State>> {
    let given_back = Arc::clone(&session.state).lock_owned();
    let given_back = tokio::time::timeout(TAKE_OVER_TIMEOUT, given_back).await;
    given_back.ok()
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Poll};

    use mq_codec::{QoS, Subscription};

    use super::*;
    use crate::router::LaneSlot;

    #[tokio::test]
    async fn a_session_ends_many_subscriptions_a_few_at_a_time() {
        const COUNT: usize = 1_000;
        let guard = Guard::new(None, None, None);
        let hub = Hub::empty(Quotas::default(), None, guard, TakeOver::SameUser);
        let mut journal = hub.journal();
        let id = ByteStr::new("many").unwrap();
        let hold = hub.attach(&id, true, &User::Anonymous, None, &mut journal);
        let mut hold = hold.await.unwrap();
        let own = (0..COUNT).map(|number| format!("level/{number}"));
        for filter in own.chain(["$share/group/level".into()]) {
            let filter = TopicFilter::new(filter).unwrap();
            let options = QoS::AtMostOnce.into();
            let wanted = Subscription { filter, options };
            let granted = hub.subscribe(&mut hold, &wanted, None, LaneSlot::CONTROL, &mut journal);
            assert!(!granted.is_error());
        }
        let left = || read(&hub.routing).router.len();
        let mut counts = vec![left()];
        {
            let mut ending = pin!(hub.end_subscriptions(&hold.session));
            while poll_fn(|cx| Poll::Ready(ending.as_mut().poll(cx).is_pending())).await {
                counts.push(left());
            }
        }
        let steps: Vec<_> = counts.windows(2).map(|two| two[0] - two[1]).collect();
        assert!(steps.len() >= COUNT / ENDED_AT_ONCE, "{steps:?}");
        assert!(steps.iter().all(|step| *step <= ENDED_AT_ONCE), "{steps:?}");
        assert_eq!(left(), 1, "of the shared one others get what is left");
        assert_eq!(hub.metrics.subscriptions.get(), 1);
        let end = Some(Duration::ZERO);
        hub.detach(hold, clock::now(), None, end, &mut journal);
        assert_eq!(left(), 0);
        assert_eq!(hub.metrics.subscriptions.get(), 0);
    }
}
