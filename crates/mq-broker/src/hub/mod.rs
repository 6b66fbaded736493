//! The one door to what all connections share: sessions, subscriptions, retained messages.

mod publisher;
mod restore;
mod sys;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use mq_codec::{
    ByteStr, PublishProperties, QoS, ReasonCode, RetainHandling, SubscriptionId, TopicFilter, Will,
};
use mq_proto::{AckTicket, Delivery, Message, Received};
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::{
    Quotas,
    auth::{Grant, Guard, Principal},
    clock,
    mailbox::Mailbox,
    memory::Ceiling,
    metrics::Metrics,
    router::{Retained, RetainedStore, Router, SessionKey, Subscriber, Target},
    session::{Session, State},
    store::{Change, Journal, SessionChange, Store, StoreError, StoredMessage, to_wall_clock},
};
pub(crate) use publisher::{Publisher, dropped, unqueued};
pub(crate) use sys::PREFIX as OWN_TOPICS;

/// How long a client waits for the connection that has its session to let go.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(5);

/// What all connections of a broker share.
#[derive(Debug)]
pub(crate) struct Hub {
    quotas: Quotas,
    /// What waits for all sessions, and retained messages.
    ceiling: Arc<Ceiling>,
    routing: RwLock<Routing>,
    retained: RwLock<RetainedStore>,
    sessions: Mutex<Sessions>,
    /// What is due: wills and ends of sessions.
    due: Mutex<BTreeSet<(Instant, SessionKey)>>,
    due_changed: Notify,
    assigned: AtomicU64,
    store: Option<Arc<dyn Store>>,
    pub(crate) guard: Guard,
    pub(crate) metrics: Metrics,
}

/// Subscriptions, and the mailboxes that they lead to.
#[derive(Debug, Default)]
struct Routing {
    router: Router,
    /// By session key.
    sessions: Vec<Option<Arc<Session>>>,
}

#[derive(Debug, Default)]
struct Sessions {
    by_id: HashMap<ByteStr, Arc<Session>>,
    free_keys: Vec<SessionKey>,
}

/// A session in the hands of a connection.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) session: Arc<Session>,
    pub(crate) state: OwnedMutexGuard<State>,
    pub(crate) present: bool,
    /// Tells when somebody else wants the session, or wants its connection to look at it.
    pub(crate) claims: tokio::sync::watch::Receiver<u64>,
    /// The claim that was this connection's own.
    claim: u64,
}

impl Attached {
    /// Whether somebody else wants the session.
    pub(crate) fn is_claimed(&self) -> bool {
        *self.claims.borrow() != self.claim
    }
}

impl Hub {
    /// A hub that goes on from what the store has kept.
    pub(crate) fn new(
        quotas: Quotas,
        store: Option<Arc<dyn Store>>,
        guard: Guard,
    ) -> Result<Self, StoreError> {
        let kept = store.as_ref().map(|store| store.load()).transpose()?;
        let hub = Self::empty(quotas, store, guard);
        if let Some(kept) = kept {
            hub.restore(kept);
        }
        Ok(hub)
    }

    fn empty(quotas: Quotas, store: Option<Arc<dyn Store>>, guard: Guard) -> Self {
        Self {
            ceiling: Arc::new(Ceiling::new(quotas.memory)),
            quotas,
            store,
            guard,
            routing: RwLock::default(),
            retained: RwLock::default(),
            sessions: Mutex::default(),
            due: Mutex::default(),
            due_changed: Notify::new(),
            assigned: AtomicU64::new(0),
            metrics: Metrics::default(),
        }
    }

    pub(crate) fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.as_ref()
    }

    /// Bytes that count against [`Quotas::memory`].
    pub(crate) fn memory_used(&self) -> usize {
        self.ceiling.used()
    }

    /// What a connection publishes with.
    pub(crate) fn publisher(&self) -> Publisher {
        Publisher::new(self.journal(), Arc::clone(&self.ceiling))
    }

    fn journal(&self) -> Journal {
        Journal::new(self.store.as_ref())
    }

    /// A client identifier for a client that brought none: unlike any other of this broker.
    pub(crate) fn assign_client_id(&self) -> ByteStr {
        use std::hash::{BuildHasher, RandomState};

        let count = self.assigned.fetch_add(1, Ordering::Relaxed);
        // Not to be guessed by counting, and not repeated after a restart.
        let random = RandomState::new().hash_one(count);
        ByteStr::new(format!("auto-{count:x}-{random:016x}")).expect("a short string of ASCII")
    }

    /// Gives the session of `client_id` to a connection: an earlier one, or with `clean` or
    /// without one, a new one. Who has it now is made to leave (take-over, `[MQTT-3.1.4-3]`).
    ///
    /// It belongs to `who` from now on, if that matters; one of another user's is not handed over.
    ///
    /// # Errors
    /// Why it does not get one: yet another connection claimed it meanwhile, nobody let go in time,
    /// or there are as many sessions as may be.
    pub(crate) async fn attach(
        &self,
        client_id: &ByteStr,
        clean: bool,
        who: Option<&Principal>,
        journal: &mut Journal,
    ) -> Result<Attached, ReasonCode> {
        loop {
            let Some(session) = self.find_or_create(client_id, self.quotas.sessions) else {
                self.metrics.sessions_refused.add(1);
                return Err(ReasonCode::QuotaExceeded);
            };
            session.claims.send_modify(|claims| *claims += 1);
            let mut claims = session.claims.subscribe();
            let claim = *claims.borrow_and_update();
            let wait = Arc::clone(&session.state).lock_owned();
            let Ok(mut state) = tokio::time::timeout(TAKE_OVER_TIMEOUT, wait).await else {
                return Err(ReasonCode::ServerBusy);
            };
            if *claims.borrow_and_update() != claim {
                return Err(ReasonCode::ServerBusy);
            }
            if state.ended {
                continue;
            }
            let will = session.come_back();
            let is_others = who.is_some_and(|who| {
                let owner = session.principal();
                owner.is_some_and(|owner| !owner.is_same_user(who))
            });
            if (clean || is_others) && state.used {
                // The session ends here, so its will is due (§3.1.3.2.2).
                if let Some(will) = will {
                    self.publish_will(&session, will);
                }
                self.end_session(&session, &mut state, journal);
                continue;
            }
            let present = core::mem::replace(&mut state.used, true);
            if let Some(who) = who {
                self.hand_over(&session, &state, who, journal);
            }
            return Ok(Attached {
                session,
                state,
                present,
                claims,
                claim,
            });
        }
    }

    /// Gives a session to `who`, without what that one may not receive.
    fn hand_over(&self, session: &Session, state: &State, who: &Principal, journal: &mut Journal) {
        session.belong_to(who, &self.guard, state);
        if !state.subscriptions.is_empty() {
            // Where messages go has changed, although no subscription has.
            write(&self.routing).router.changed();
        }
        self.remove_forbidden(session, journal);
    }

    /// The client of this session is the same user with other rights.
    pub(crate) fn rights_changed(&self, attached: &Attached, who: &Principal) {
        attached
            .session
            .belong_to(who, &self.guard, &attached.state);
        write(&self.routing).router.changed();
    }

    /// Takes out of a mailbox what the rules of now do not let its owner receive.
    pub(crate) fn remove_forbidden(&self, session: &Session, journal: &mut Journal) {
        let (Some(authorizer), Some(who)) = (&self.guard.authorizer, session.principal()) else {
            return;
        };
        // Whatever is granted now: the subscription that a message came by may be gone.
        let may_receive =
            |delivery: &Delivery| authorizer.may_receive(&who, &delivery.message.topic);
        for delivery in session.mailbox.keep(may_receive) {
            unqueued(session, &delivery, journal);
        }
    }

    /// Whether the rules let `who` publish that; what they do not is counted.
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

    /// Takes the session back from a connection that has ended.
    ///
    /// `expiry`: how long it lives on; zero ends it now, `None` never.
    pub(crate) fn detach(
        &self,
        attached: Attached,
        now: Instant,
        will: Option<Will>,
        expiry: Option<Duration>,
        journal: &mut Journal,
    ) {
        let Attached {
            session, mut state, ..
        } = attached;
        let ends_now = expiry == Some(Duration::ZERO);
        session.leave(now, will, expiry);
        if let Some(will) = session.take_due_will(now) {
            self.publish_will(&session, will);
        }
        if ends_now {
            self.end_session(&session, &mut state, journal);
            return;
        }
        let expires_at = session.expires_at().map(to_wall_clock);
        journal.record_of(&session, SessionChange::Detached { expires_at });
        drop(state);
        self.note_due(&session);
    }

    /// Has the timers look at the session when something of it is due.
    fn note_due(&self, session: &Session) {
        if let Some(due) = session.next_due() {
            lock(&self.due).insert((due, session.key));
            self.due_changed.notify_one();
        }
    }

    /// Publishes wills and ends sessions as they become due. Runs until it is dropped.
    pub(crate) async fn run_timers(&self) {
        loop {
            let next = lock(&self.due).first().map(|(due, _)| *due);
            let changed = self.due_changed.notified();
            match next {
                Some(due) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(due.into()) => self.run_due(clock::now()),
                        () = changed => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    fn run_due(&self, now: Instant) {
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
            // A connection that holds the state is in charge of it; so is one that came back.
            let Ok(mut state) = Arc::clone(&session.state).try_lock_owned() else {
                continue;
            };
            if let Some(will) = session.take_due_will(now) {
                self.publish_will(&session, will);
            }
            if session.is_expired(now) {
                self.end_session(&session, &mut state, &mut journal);
            } else if let Some(next) = session.next_due() {
                lock(&self.due).insert((next, key));
            }
        }
        write(&self.retained).expire(now);
    }

    /// The session of that name; `None` if there is none and there are `most` already.
    fn find_or_create(&self, client_id: &ByteStr, most: usize) -> Option<Arc<Session>> {
        let mut sessions = lock(&self.sessions);
        if let Some(session) = sessions.by_id.get(client_id) {
            return Some(Arc::clone(session));
        }
        if sessions.by_id.len() >= most {
            return None;
        }
        let mut routing = write(&self.routing);
        let key = sessions.free_keys.pop().unwrap_or_else(|| {
            routing.sessions.push(None);
            SessionKey(u32::try_from(routing.sessions.len() - 1).expect("fewer than 2^32 sessions"))
        });
        // The identifier outlives the packet that it came in.
        let client_id = client_id.detached();
        let mailbox = Mailbox::new(self.quotas.mailbox, Arc::clone(&self.ceiling));
        let session = Arc::new(Session::new(client_id.clone(), key, mailbox));
        routing.sessions[key.index()] = Some(Arc::clone(&session));
        sessions.by_id.insert(client_id, Arc::clone(&session));
        self.metrics.sessions.add(1);
        Some(session)
    }

    /// Ends a session: its subscriptions and everything that waits for it are gone.
    fn end_session(&self, session: &Arc<Session>, state: &mut State, journal: &mut Journal) {
        if core::mem::replace(&mut state.ended, true) {
            return;
        }
        journal.record_of(session, SessionChange::Ended);
        let mut sessions = lock(&self.sessions);
        let mut routing = write(&self.routing);
        for filter in state.subscriptions.keys() {
            routing.router.unsubscribe(filter, session.key);
        }
        self.metrics.subscriptions.sub(state.subscriptions.len());
        state.subscriptions.clear();
        routing.sessions[session.key.index()] = None;
        if sessions
            .by_id
            .get(&session.client_id)
            .is_some_and(|current| Arc::ptr_eq(current, session))
        {
            sessions.by_id.remove(&session.client_id);
        }
        sessions.free_keys.push(session.key);
        session.mailbox.clear();
        self.metrics.sessions.sub(1);
    }

    /// Makes or replaces a subscription and queues the retained messages that it asks for, as far
    /// as the rules let them be received.
    pub(crate) fn subscribe(
        &self,
        attached: &mut Attached,
        subscription: &mq_codec::Subscription,
        subscription_id: Option<SubscriptionId>,
        publisher: &mut Publisher,
        now: Instant,
    ) -> ReasonCode {
        let session = &attached.session;
        let subscriptions = &attached.state.subscriptions;
        if subscriptions.len() >= self.quotas.subscriptions
            && !subscriptions.contains_key(&subscription.filter)
        {
            self.metrics.subscriptions_refused.add(1);
            return ReasonCode::QuotaExceeded;
        }
        let who = session.principal();
        let grant = self.guard.subscription(who.as_ref(), &subscription.filter);
        match grant {
            Grant::All => {}
            Grant::Some => session.uncover(),
            Grant::None => {
                self.metrics.not_authorized.add(1);
                return ReasonCode::NotAuthorized;
            }
        }
        let options = subscription.options;
        let subscriber = Subscriber {
            session: session.key,
            options,
            subscription_id,
        };
        let filter = subscription.filter.detached();
        let existed = write(&self.routing)
            .router
            .subscribe(&filter, subscriber.clone());
        if !existed {
            self.metrics.subscriptions.add(1);
        }
        // A shared subscription gets no retained messages (§4.8.2).
        let wanted = match options.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => !existed,
            RetainHandling::DoNotSend => false,
        } && filter.shared().is_none();
        if wanted {
            let target = Target {
                session: session.key,
                qos: options.qos,
                retain_as_published: true,
                subscription_ids: subscription_id.into_iter().collect(),
            };
            let authorizer = self.guard.authorizer.as_ref();
            let checked = authorizer.filter(|_| grant != Grant::All);
            read(&self.retained).matching(&filter, now, &mut |retained| {
                if let Some(authorizer) = checked
                    && !session.may_receive(&**authorizer, &retained.message.topic)
                {
                    return;
                }
                let delivery = Delivery {
                    retain: true,
                    expires_at: retained.expires_at,
                    ..deliver(&retained.message, retained.qos, &target)
                };
                publisher.ready.push((Arc::clone(session), delivery));
            });
        }
        let mut changes = Vec::new();
        if publisher.journal.keeps(session) {
            let change = SessionChange::Subscribed {
                filter: filter.clone(),
                options,
                subscription_id,
            };
            changes.push(Change::Session(session.client_id.clone(), change));
        }
        publisher.queue_ready(&self.metrics, changes);
        publisher.message_done();
        attached.state.subscriptions.insert(filter, subscriber);
        ReasonCode::granted(options.qos)
    }

    /// Ends a subscription.
    pub(crate) fn unsubscribe(
        &self,
        attached: &mut Attached,
        filter: &TopicFilter,
        journal: &mut Journal,
    ) -> ReasonCode {
        if attached.state.subscriptions.remove(filter).is_none() {
            return ReasonCode::NoSubscriptionExisted;
        }
        write(&self.routing)
            .router
            .unsubscribe(filter, attached.session.key);
        self.metrics.subscriptions.sub(1);
        let filter = filter.detached();
        journal.record_of(&attached.session, SessionChange::Unsubscribed { filter });
        ReasonCode::Success
    }

    /// Brings a received message, or with no sender one of the broker's own, to all who subscribed to
    /// it.
    ///
    /// Runs in the publisher's task, which keeps its messages in order. Readers are told by
    /// [`Publisher::tell_readers`], and what found no room is in [`Publisher::waiting`]. Returns
    /// the message's ticket, and what it is to be given back with.
    pub(crate) fn publish(
        &self,
        from: Option<&Session>,
        received: Received,
        now: Instant,
        publisher: &mut Publisher,
    ) -> Option<(AckTicket, ReasonCode)> {
        let Received {
            message,
            qos,
            retain,
            ticket,
            ..
        } = received;
        let expires_at = expiry(&message.properties, now);
        let message = Arc::new(message);
        self.metrics.messages_in.add(from.is_some().into());
        let mut changes = Vec::new();
        if retain {
            if let Ok(change) = self.retain(&message, qos, expires_at, &publisher.journal) {
                changes.extend(change);
            } else {
                // Nobody gets it, so that its publisher may try again; where it cannot be told, at
                // least those get it who are there.
                self.metrics.retained_refused.add(1);
                if publisher.can_refuse && ticket.is_some() {
                    return ticket.map(|ticket| (ticket, ReasonCode::QuotaExceeded));
                }
            }
        }
        let journal = &publisher.journal;
        let received = match (&ticket, from) {
            (Some(ticket), Some(from)) if qos == QoS::ExactlyOnce && journal.keeps(from) => {
                Some((ticket.packet_id(), from))
            }
            _ => None,
        };
        if let Some((packet_id, from)) = received {
            let change = SessionChange::Received { packet_id };
            changes.push(Change::Session(from.client_id.clone(), change));
        }
        let routing = read(&self.routing);
        let sender = from.map(|from| from.key);
        publisher.route(&routing, &self.guard, &message.topic, sender);
        let targets = core::mem::take(&mut publisher.fan_out);
        for target in targets.targets() {
            let Some(session) = routing.session(target.session) else {
                continue;
            };
            let delivery = Delivery {
                retain: retain && target.retain_as_published,
                expires_at,
                ..deliver(&message, qos, target)
            };
            if publisher.journal.is_open() {
                publisher.ready.push((Arc::clone(session), delivery));
            } else {
                publisher.queue(&self.metrics, session, delivery);
            }
        }
        publisher.queue_ready(&self.metrics, changes);
        let receivers = targets.targets().len();
        let lost = publisher.message_done();
        publisher.fan_out = targets;
        let reason = if receivers == 0 {
            ReasonCode::NoMatchingSubscribers
        } else if lost == receivers && !retain && publisher.can_refuse {
            // Not one had room for it.
            if let Some((packet_id, from)) = received {
                let journal = &mut publisher.journal;
                journal.record_of(from, SessionChange::ReceivedReleased { packet_id });
            }
            ReasonCode::QuotaExceeded
        } else {
            ReasonCode::Success
        };
        ticket.map(|ticket| (ticket, reason))
    }

    /// Makes the message its topic's retained one; an empty one takes it away. Returns what there
    /// is to record.
    fn retain(
        &self,
        message: &Message,
        qos: QoS,
        expires_at: Option<Instant>,
        journal: &Journal,
    ) -> Result<Option<Change>, NoRoom> {
        if message.payload.is_empty() {
            let mut retained = write(&self.retained);
            retained.remove(&message.topic);
            self.metrics.retained.set(retained.len());
            let change = || Change::Unretained(message.topic.detached());
            return Ok(journal.is_open().then(change));
        }
        let message = Arc::new(self.ceiling.keep(message).ok_or(NoRoom)?);
        self.set_retained(&message, qos, expires_at, self.quotas.retained)?;
        let change = || {
            Change::Retained(StoredMessage {
                message,
                qos,
                retain: true,
                subscription_ids: Vec::new(),
                expires_at: expires_at.map(to_wall_clock),
            })
        };
        Ok(journal.is_open().then(change))
    }

    /// `most`: how many topics may have a retained message.
    fn set_retained(
        &self,
        message: &Arc<Message>,
        qos: QoS,
        expires_at: Option<Instant>,
        most: usize,
    ) -> Result<(), NoRoom> {
        let mut retained = write(&self.retained);
        if retained.len() >= most && !retained.contains(&message.topic) {
            return Err(NoRoom);
        }
        retained.insert(Retained {
            message: Arc::clone(message),
            qos,
            expires_at,
        });
        self.metrics.retained.set(retained.len());
        Ok(())
    }

    /// Publishes a will, if its owner still may. Nobody waits for room here: a mailbox that is full
    /// drops it.
    fn publish_will(&self, session: &Session, will: Will) {
        let who = session.principal();
        if !self.guard.may_have_will(who.as_ref(), &will) {
            self.metrics.not_authorized.add(1);
            return;
        }
        let Will {
            topic,
            payload,
            qos,
            retain,
            properties,
        } = will;
        let received = Received {
            message: Message {
                topic,
                payload,
                properties: PublishProperties {
                    payload_is_utf8: properties.payload_is_utf8,
                    message_expiry_interval: properties.message_expiry_interval,
                    content_type: properties.content_type,
                    response_topic: properties.response_topic,
                    correlation_data: properties.correlation_data,
                    user_properties: properties.user_properties,
                    ..PublishProperties::default()
                }
                .into(),
            },
            qos,
            retain,
            dup: false,
            subscription_ids: Vec::new(),
            ticket: None,
        };
        let mut publisher = self.publisher();
        self.publish(Some(session), received, clock::now(), &mut publisher);
        publisher.tell_readers();
        publisher.give_up(&self.metrics);
    }
}

/// A retained message finds no room.
struct NoRoom;

impl Routing {
    fn session(&self, key: SessionKey) -> Option<&Arc<Session>> {
        self.sessions.get(key.index())?.as_ref()
    }
}

/// The delivery of `message`, published at `qos`, to `target`.
fn deliver(message: &Arc<Message>, qos: QoS, target: &Target) -> Delivery {
    let mut delivery = Delivery::new(Arc::clone(message), qos.min(target.qos));
    if !target.subscription_ids.is_empty() {
        delivery.subscription_ids = target.subscription_ids.to_vec();
    }
    delivery
}

fn expiry(properties: &PublishProperties, now: Instant) -> Option<Instant> {
    let seconds = properties.message_expiry_interval?;
    now.checked_add(Duration::from_secs(seconds.into()))
}

// A panic while one of these is held leaves the structure whole, so poisoning is not passed on.

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
