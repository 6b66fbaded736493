//! Sessions by client identifier.

use std::sync::{
    Arc, Mutex, RwLock,
    atomic::{AtomicU64, Ordering},
};

use hashbrown::HashMap;
use mq_codec::ByteStr;

use super::Routing;
use crate::{
    Quotas,
    bridge::{self, Queues},
    lock::{lock, write},
    mailbox::{Mailbox, MailboxRules},
    memory_limit::{MemoryLimit, MemoryShare},
    metrics::Metrics,
    router::SessionKey,
    session::Session,
    store::User,
};

/// All sessions by their client identifiers, and the rules that new ones begin with.
///
/// Its lock is taken before that of [`Routing`], never within it.
#[derive(Debug)]
pub(super) struct SessionRegistry {
    table: Mutex<Table>,
    quotas: Quotas,
    /// `true` if the store takes what has no room in a mailbox.
    can_spill: bool,
    /// Rules of all mailboxes but those of bridges.
    mailbox_rules: Arc<MailboxRules>,
    bridge_queues: Queues,
    memory_limit: Arc<MemoryLimit>,
    /// Client identifiers that were assigned.
    assigned: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<ByteStr, Arc<Session>>,
    free_keys: Vec<SessionKey>,
}

/// There are as many sessions as may be, or there is no memory for another.
pub(super) struct NoRoomForSession;

impl SessionRegistry {
    pub(super) fn new(
        quotas: Quotas,
        can_spill: bool,
        bridge_queues: Queues,
        memory_limit: &Arc<MemoryLimit>,
    ) -> Self {
        let rules = MailboxRules::new(quotas.mailbox, quotas.overflow_policy(can_spill));
        Self {
            table: Mutex::default(),
            quotas,
            can_spill,
            mailbox_rules: Arc::new(rules),
            bridge_queues,
            memory_limit: Arc::clone(memory_limit),
            assigned: AtomicU64::new(0),
        }
    }

    /// Makes a client identifier for a client that sent none. No two of this broker are the same.
    pub(super) fn assign_client_id(&self) -> ByteStr {
        use std::hash::{BuildHasher, RandomState};

        let count = self.assigned.fetch_add(1, Ordering::Relaxed);
        // Nobody can guess it by counting, and no restart repeats it.
        let random = RandomState::new().hash_one(count);
        ByteStr::new(format!("auto-{count:x}-{random:016x}")).expect("a short string of ASCII")
    }

    pub(super) fn get(&self, client_id: &ByteStr) -> Option<Arc<Session>> {
        lock(&self.table).by_id.get(client_id).cloned()
    }

    pub(super) fn key_of(&self, client_id: &ByteStr) -> Option<SessionKey> {
        let table = lock(&self.table);
        table.by_id.get(client_id).map(|session| session.key)
    }

    /// Returns the keys of those clients that have a session on this node.
    pub(super) fn keys_of(&self, clients: &[ByteStr]) -> Vec<SessionKey> {
        if clients.is_empty() {
            return Vec::new();
        }
        let table = lock(&self.table);
        let present = clients.iter().filter_map(|id| table.by_id.get(id));
        present.map(|session| session.key).collect()
    }

    /// Calls `visit` with every session, under the lock.
    pub(super) fn for_each(&self, visit: impl FnMut(&Arc<Session>)) {
        lock(&self.table).by_id.values().for_each(visit);
    }

    /// Returns `true` if a bridge of that client identifier is configured.
    pub(super) fn has_bridge(&self, client_id: &ByteStr) -> bool {
        self.bridge_queues.contains_key(client_id)
    }

    /// Returns the rules of the mailbox of a bridge, whether its session exists or not.
    pub(super) fn bridge_mailbox_rules(&self, client_id: &ByteStr) -> MailboxRules {
        let queue = self.bridge_queues.get(client_id).copied();
        let queue = queue.unwrap_or_default();
        let quotas = queue.within(self.quotas);
        let policy = quotas.overflow_policy(self.can_spill);
        let mut rules = MailboxRules::new(quotas.mailbox, policy);
        rules.lets_past = true;
        rules.age = queue.age;
        rules
    }

    /// Returns the session of that client identifier. A new one is `user`'s.
    ///
    /// # Errors
    /// If it would be a new one and there is no room for it.
    pub(super) fn find_or_create(
        &self,
        client_id: &ByteStr,
        user: &User,
        routing: &RwLock<Routing>,
        metrics: &Metrics,
    ) -> Result<Arc<Session>, NoRoomForSession> {
        let mut table = lock(&self.table);
        if let Some(session) = table.by_id.get(client_id) {
            return Ok(Arc::clone(session));
        }
        if table.by_id.len() >= self.quotas.sessions {
            return Err(NoRoomForSession);
        }
        let mut share = MemoryShare::new(&self.memory_limit);
        if !share.set(Session::empty_bytes(client_id)) {
            return Err(NoRoomForSession);
        }
        let routing = &mut write(routing);
        let session = self.insert(&mut table, client_id, Some(user), share, routing);
        metrics.sessions.add(1);
        Ok(session)
    }

    /// Returns the session of that client identifier, or makes one for a restored session: that one counts, room or not.
    pub(super) fn find_or_restore(
        &self,
        client_id: &ByteStr,
        user: Option<&User>,
        routing: &RwLock<Routing>,
        metrics: &Metrics,
    ) -> Arc<Session> {
        let mut table = lock(&self.table);
        if let Some(session) = table.by_id.get(client_id) {
            return Arc::clone(session);
        }
        let mut share = MemoryShare::new(&self.memory_limit);
        share.set_anyway(Session::empty_bytes(client_id));
        let routing = &mut write(routing);
        let session = self.insert(&mut table, client_id, user, share, routing);
        metrics.sessions.add(1);
        session
    }

    fn insert(
        &self,
        table: &mut Table,
        client_id: &ByteStr,
        user: Option<&User>,
        share: MemoryShare,
        routing: &mut Routing,
    ) -> Arc<Session> {
        let key = table.free_keys.pop();
        let key = key.unwrap_or_else(|| routing.new_key());
        // The identifier outlives the packet that it came in.
        let client_id = client_id.detached();
        let memory_limit = Arc::clone(&self.memory_limit);
        let mailbox = if client_id.starts_with(bridge::PREFIX) {
            let rules = self.bridge_mailbox_rules(&client_id);
            Mailbox::new(&Arc::new(rules), memory_limit)
        } else {
            Mailbox::new(&self.mailbox_rules, memory_limit)
        };
        let user = user.cloned();
        let session = Arc::new(Session::new(client_id.clone(), key, mailbox, user, share));
        routing.insert_session(&session);
        table.by_id.insert(client_id, Arc::clone(&session));
        session
    }

    /// Removes a session that routing has no more. `then` runs before another session of that client identifier, or
    /// with that key, can begin.
    pub(super) fn remove(&self, session: &Arc<Session>, then: impl FnOnce()) {
        let mut table = lock(&self.table);
        let current = table.by_id.get(&session.client_id);
        if current.is_some_and(|current| Arc::ptr_eq(current, session)) {
            table.by_id.remove(&session.client_id);
        }
        then();
        table.free_keys.push(session.key);
    }
}
