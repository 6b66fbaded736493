//! Subscriptions and the sessions that they lead to, under one lock.

use std::sync::Arc;

use mq_codec::TopicFilter;

use crate::{
    auth::Authorizer,
    memory_limit::{MemoryLimit, MemoryShare},
    router::{Router, SessionKey, Subscriber},
    session::Session,
};

/// Subscriptions, and the sessions whose mailboxes they lead to.
///
/// A publisher holds the read lock for as long as it queues one message, so that no receiver ends meanwhile.
#[derive(Debug)]
pub(super) struct Routing {
    pub(super) router: Router,
    /// Memory of the router's nodes.
    share: MemoryShare,
    /// Counts the subscriptions that have ended.
    pub(super) ended: u64,
    /// The sessions by key; `None` is a free key.
    sessions: Vec<Option<Arc<Session>>>,
}

/// The router has no memory for the nodes of a new subscription.
pub(super) struct NoRoomForNodes;

impl Routing {
    pub(super) fn new(memory_limit: &Arc<MemoryLimit>) -> Self {
        Self {
            router: Router::new(),
            share: MemoryShare::new(memory_limit),
            ended: 0,
            sessions: Vec::new(),
        }
    }

    /// Makes or replaces a subscription. Returns `true` if it existed.
    pub(super) fn subscribe(
        &mut self,
        filter: &TopicFilter,
        subscriber: Subscriber,
    ) -> Result<bool, NoRoomForNodes> {
        let session = subscriber.session;
        let existed = self.router.subscribe(filter, subscriber);
        if !self.share.set(self.router.bytes()) {
            self.router.unsubscribe(filter, session);
            return Err(NoRoomForNodes);
        }
        Ok(existed)
    }

    /// Makes a subscription that was promised before, room or not.
    pub(super) fn restore_subscription(&mut self, filter: &TopicFilter, subscriber: Subscriber) {
        self.router.subscribe(filter, subscriber);
        self.share.set_anyway(self.router.bytes());
    }

    pub(super) fn unsubscribe(&mut self, filter: &TopicFilter, key: SessionKey) {
        self.router.unsubscribe(filter, key);
        self.ended += 1;
        self.share.set_anyway(self.router.bytes());
    }

    /// Returns a key that no session has had yet.
    pub(super) fn new_key(&mut self) -> SessionKey {
        self.sessions.push(None);
        SessionKey(u32::try_from(self.sessions.len() - 1).expect("fewer than 2^32 sessions"))
    }

    pub(super) fn insert_session(&mut self, session: &Arc<Session>) {
        self.sessions[session.key.index()] = Some(Arc::clone(session));
    }

    pub(super) fn remove_session(&mut self, key: SessionKey) {
        self.sessions[key.index()] = None;
    }

    pub(super) fn session(&self, key: SessionKey) -> Option<&Arc<Session>> {
        self.sessions.get(key.index())?.as_ref()
    }

    /// Returns the sessions whose keys are `count` numbers from `from` on, and `true` if there are no higher keys.
    pub(super) fn sessions_from(&self, from: usize, count: usize) -> (Vec<Arc<Session>>, bool) {
        let end = (from + count).min(self.sessions.len());
        let some = self.sessions[from.min(end)..end].iter().flatten();
        (some.cloned().collect(), end < from + count)
    }

    /// Returns `true` if a session is a good choice for a shared subscription now.
    pub(super) fn is_ready(&self, key: SessionKey) -> bool {
        let session = self.session(key);
        session.is_some_and(|session| session.mailbox.is_ready())
    }

    /// Returns `true` if the rules let a session have a message of that topic.
    pub(super) fn may_receive(&self, key: SessionKey, rules: &dyn Authorizer, topic: &str) -> bool {
        let session = self.session(key);
        session.is_some_and(|session| session.may_receive(rules, topic))
    }
}
