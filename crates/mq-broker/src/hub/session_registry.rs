//! Sessions by client identifier.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use mq_codec::ByteStr;
use tokio::sync::OwnedMutexGuard;

use super::Routing;
use crate::{
    Quotas,
    lock::{lock, write},
    mailbox::{Mailbox, MailboxRules},
    memory_limit::{MemoryLimit, MemoryShare},
    metrics::Metrics,
    router::SessionKey,
    session::{Session, SessionState},
    store::{BRIDGE_PREFIX, User},
};

/// All sessions by their client identifiers, and the rules that new ones begin with.
///
/// The lock is taken before that of [`Routing`], never within it.
#[derive(Debug)]
pub(super) struct SessionRegistry {
    table: Mutex<Table>,
    quotas: Quotas,
    /// Rules of all mailboxes but those of bridges.
    client_mailboxes: Arc<MailboxRules>,
    /// Rules of the mailboxes of the configured bridges.
    bridge_mailboxes: HashMap<ByteStr, MailboxRules>,
    /// Rules of the mailboxes of bridges that are configured at another node alone.
    unknown_bridge_mailboxes: MailboxRules,
    memory_limit: Arc<MemoryLimit>,
    /// Client identifiers that were assigned.
    assigned: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    by_id: hashbrown::HashMap<ByteStr, Arc<Session>>,
    free_keys: Vec<SessionKey>,
}

/// There are as many sessions as may be, or there is no memory for another.
pub(super) struct NoRoomForSession;

impl SessionRegistry {
    pub(super) fn new(
        quotas: Quotas,
        can_spill: bool,
        bridge_mailboxes: HashMap<ByteStr, MailboxRules>,
        memory_limit: &Arc<MemoryLimit>,
    ) -> Self {
        let policy = quotas.overflow_policy(can_spill);
        let client_mailboxes = MailboxRules::new(quotas.mailbox, policy);
        Self {
            table: Mutex::default(),
            quotas,
            client_mailboxes: Arc::new(client_mailboxes),
            bridge_mailboxes,
            unknown_bridge_mailboxes: MailboxRules::of_bridge(quotas.mailbox, policy),
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
        self.bridge_mailboxes.contains_key(client_id)
    }

    /// Returns the rules of the mailbox of a bridge, whether its session exists or not.
    pub(super) fn bridge_mailbox_rules(&self, client_id: &ByteStr) -> MailboxRules {
        let configured = self.bridge_mailboxes.get(client_id);
        configured.copied().unwrap_or(self.unknown_bridge_mailboxes)
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
        let (session, _) = self.insert(&mut table, client_id, Some(user), share, routing);
        metrics.sessions.add(1);
        Ok(session)
    }

    /// Returns the session of that client identifier, or makes one for a restored session: that one counts, room or not.
    /// `None` if somebody else has its state.
    pub(super) fn find_or_restore(
        &self,
        client_id: &ByteStr,
        user: Option<&User>,
        routing: &RwLock<Routing>,
        metrics: &Metrics,
    ) -> Option<(Arc<Session>, OwnedMutexGuard<SessionState>)> {
        let mut table = lock(&self.table);
        if let Some(session) = table.by_id.get(client_id) {
            let state = Arc::clone(&session.state).try_lock_owned().ok()?;
            return Some((Arc::clone(session), state));
        }
        let mut share = MemoryShare::new(&self.memory_limit);
        share.set_anyway(Session::empty_bytes(client_id));
        let routing = &mut write(routing);
        let inserted = self.insert(&mut table, client_id, user, share, routing);
        metrics.sessions.add(1);
        Some(inserted)
    }

    fn insert(
        &self,
        table: &mut Table,
        client_id: &ByteStr,
        user: Option<&User>,
        share: MemoryShare,
        routing: &mut Routing,
    ) -> (Arc<Session>, OwnedMutexGuard<SessionState>) {
        let key = table.free_keys.pop();
        let key = key.unwrap_or_else(|| routing.new_key());
        // The identifier outlives the packet that it came in.
        let client_id = client_id.detached();
        let memory_limit = Arc::clone(&self.memory_limit);
        let mailbox = if client_id.starts_with(BRIDGE_PREFIX) {
            let rules = self.bridge_mailbox_rules(&client_id);
            Mailbox::new(&Arc::new(rules), memory_limit)
        } else {
            Mailbox::new(&self.client_mailboxes, memory_limit)
        };
        let user = user.cloned();
        let session = Arc::new(Session::new(client_id.clone(), key, mailbox, user, share));
        let state = Arc::clone(&session.state);
        let state = state
            .try_lock_owned()
            .expect("nobody else knows the session yet");
        routing.insert_session(&session);
        table.by_id.insert(client_id, Arc::clone(&session));
        (session, state)
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
