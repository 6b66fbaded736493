//! Session tickets: the server's single-use store and the client's cache.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
};

use rustls::{
    client::{ClientSessionMemoryCache, ClientSessionStore},
    server::StoresServerSessions,
};

use crate::{Address, sync::lock};

/// Bytes of a session for each place of a store, of all its sessions together. A session has some 100 bytes, and the
/// certificates that the client has shown: the client may have added others to them, 64 KiB at most.
const BYTES_PER_PLACE: usize = 1024;

/// The scope of a ticket: see [`ListenOptions::ticket_scope`](crate::ListenOptions::ticket_scope).
pub(crate) type Scope = [u8; 32];

/// A server's tickets: bounded, in memory, each of a TLS 1.3 session good for one use.
///
/// Resuming takes the ticket out of the store: single use bounds the replay of early data
/// (RFC 8446 §8.1). Clones share one store, so several TLS and QUIC listeners can use one. A ticket is
/// good at every listener with the same [scope](crate::ListenOptions::ticket_scope) as the listener that
/// gave it, and at no other. When the store is full, it drops the oldest ticket, whose client does a
/// full handshake next time.
///
/// [`drain`](Self::drain) and [`restore`](Self::restore) carry the tickets over a restart.
#[derive(Clone)]
pub struct TicketStore {
    inner: Arc<Mutex<Tickets>>,
}

struct Tickets {
    /// Each session, with the scope under which it was made in front of it.
    by_id: HashMap<Vec<u8>, Vec<u8>>,
    /// Bytes of all sessions in `by_id`.
    bytes: usize,
    /// Ids from oldest to newest; ids of used tickets stay until a sweep.
    order: VecDeque<Vec<u8>>,
    capacity: usize,
}

impl Tickets {
    fn remove(&mut self, id: &[u8]) -> Option<Vec<u8>> {
        let tagged = self.by_id.remove(id)?;
        self.bytes -= tagged.len();
        Some(tagged)
    }

    fn is_too_full(&self) -> bool {
        let most = self.capacity.saturating_mul(BYTES_PER_PLACE);
        self.by_id.len() > self.capacity || self.bytes > most
    }
}

impl TicketStore {
    /// Makes an empty store for at most `capacity` tickets, of about 200 bytes each. Where clients show certificates a ticket
    /// is larger, and the store holds fewer of them: 1 KiB for each place in all.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Tickets {
                by_id: HashMap::new(),
                bytes: 0,
                order: VecDeque::new(),
                capacity,
            })),
        }
    }

    /// Returns the number of tickets that could be used now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.with(|tickets| tickets.by_id.len())
    }

    /// Returns `true` if the store holds no ticket that could be used now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all tickets: every client does a full handshake next time.
    pub fn clear(&self) {
        self.with(|tickets| {
            tickets.by_id.clear();
            tickets.bytes = 0;
            tickets.order.clear();
        });
    }

    /// Takes all tickets out, oldest first, as opaque pairs, so that no ticket is in two places. The
    /// pairs are secrets: they let a reader decrypt the early data of the sessions that they resume.
    #[must_use]
    pub fn drain(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.with(|tickets| {
            let order = std::mem::take(&mut tickets.order);
            let mut by_id = std::mem::take(&mut tickets.by_id);
            tickets.bytes = 0;
            let live = order.into_iter();
            live.filter_map(|id| {
                let session = by_id.remove(&id)?;
                Some((id, session))
            })
            .collect()
        })
    }

    /// Adds tickets that [`drain`](Self::drain) gave, oldest first.
    ///
    /// Restore them at most once, or tickets are no longer single-use.
    pub fn restore(&self, tickets: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
        for (id, session) in tickets {
            self.put(id, session);
        }
    }

    /// Returns the store as one listener sees it.
    pub(crate) fn scoped(&self, scope: Scope) -> ScopedTickets {
        ScopedTickets {
            store: self.clone(),
            scope,
        }
    }

    /// Forgets the tickets that were given under one scope.
    pub(crate) fn forget(&self, scope: &Scope) {
        self.with(|tickets| {
            tickets.by_id.retain(|_, tagged| !tagged.starts_with(scope));
            tickets.bytes = tickets.by_id.values().map(Vec::len).sum();
            let live = &tickets.by_id;
            tickets.order.retain(|id| live.contains_key(id));
        });
    }

    fn put(&self, id: Vec<u8>, tagged: Vec<u8>) -> bool {
        self.with(|tickets| {
            if tickets.capacity == 0 {
                return false;
            }
            tickets.bytes += tagged.len();
            match tickets.by_id.insert(id.clone(), tagged) {
                Some(before) => tickets.bytes -= before.len(),
                None => tickets.order.push_back(id),
            }
            while tickets.is_too_full() {
                match tickets.order.pop_front() {
                    Some(oldest) => tickets.remove(&oldest),
                    None => break,
                };
            }
            if tickets.order.len() > 2 * tickets.capacity {
                let live = &tickets.by_id;
                tickets.order.retain(|id| live.contains_key(id));
            }
            true
        })
    }

    fn with<T>(&self, body: impl FnOnce(&mut Tickets) -> T) -> T {
        body(&mut lock(&self.inner))
    }
}

impl Default for TicketStore {
    /// Makes a store with room for 40,000 tickets, 8 MB: four for each of 10,000 clients. A client gets two for each
    /// connection, and when a whole fleet comes back after a restart, the new tickets of the first must not push out
    /// those of the last.
    fn default() -> Self {
        Self::new(40_000)
    }
}

impl fmt::Debug for TicketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketStore")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A store's tickets of one scope.
///
/// A handshake that began before a reload may end after it. Its tickets still rest on the old
/// configuration, so the scope decides where a ticket is good, not the time.
#[derive(Debug)]
pub(crate) struct ScopedTickets {
    store: TicketStore,
    scope: Scope,
}

impl StoresServerSessions for ScopedTickets {
    fn put(&self, id: Vec<u8>, session: Vec<u8>) -> bool {
        let mut tagged = Vec::with_capacity(self.scope.len() + session.len());
        tagged.extend_from_slice(&self.scope);
        tagged.extend_from_slice(&session);
        self.store.put(id, tagged)
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.store.with(|tickets| {
            let session = tickets.by_id.get(id)?.strip_prefix(&self.scope)?;
            Some(session.to_vec())
        })
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.store.with(|tickets| {
            let session = tickets.by_id.get(id)?.strip_prefix(&self.scope)?.to_vec();
            tickets.remove(id);
            Some(session)
        })
    }

    fn can_cache(&self) -> bool {
        self.store.with(|tickets| tickets.capacity > 0)
    }
}

/// Tickets that were given: ids and sessions.
type Given = Vec<(Vec<u8>, Vec<u8>)>;

/// The store of tickets for one connection whose tickets are held back until its
/// [release](Self::release).
///
/// A client that only completes a handshake takes no place in the store, and pushes no ticket out.
#[derive(Debug)]
pub(crate) struct HeldTickets {
    store: ScopedTickets,
    /// The tickets of the connection so far; `None` from its release on.
    held: Mutex<Option<Given>>,
}

impl HeldTickets {
    pub(crate) fn new(store: &TicketStore, scope: Scope) -> Self {
        Self {
            store: store.scoped(scope),
            held: Mutex::new(Some(Vec::new())),
        }
    }

    /// Makes the tickets of the connection valid, those given so far and those to come.
    pub(crate) fn release(&self) {
        let held = lock(&self.held).take();
        for (id, session) in held.into_iter().flatten() {
            self.store.put(id, session);
        }
    }
}

impl StoresServerSessions for HeldTickets {
    fn put(&self, id: Vec<u8>, session: Vec<u8>) -> bool {
        match &mut *lock(&self.held) {
            Some(held) => {
                held.push((id, session));
                true
            }
            None => self.store.put(id, session),
        }
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.store.get(id)
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.store.take(id)
    }

    fn can_cache(&self) -> bool {
        self.store.can_cache()
    }
}

/// A client's tickets, up to 8 for each of 256 servers; clones share one cache.
///
/// Tickets live in memory only (rustls cannot write them out): a restarted process starts with a
/// full handshake. Give each simulated device a cache of its own, or the devices use up each
/// other's tickets; see [`Connector::with_ticket_cache`](crate::Connector::with_ticket_cache).
#[derive(Clone, Default)]
pub struct TicketCache {
    /// A store for each server, because rustls' own key is the name alone, without the port and
    /// without TLS or QUIC.
    servers: Arc<Mutex<HashMap<Address, Arc<ClientSessionMemoryCache>>>>,
}

/// Servers that a client remembers; for one more it forgets one of them.
const MAX_SERVERS: usize = 256;

impl TicketCache {
    /// Makes an empty cache; allocates nothing until a server gives a ticket.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all tickets.
    pub fn clear(&self) {
        lock(&self.servers).clear();
    }

    pub(crate) fn for_server(&self, address: &Address) -> Arc<dyn ClientSessionStore> {
        debug_assert!(address.scheme.is_encrypted());
        let mut servers = lock(&self.servers);
        if let Some(store) = servers.get(address) {
            return store.clone();
        }
        if servers.len() >= MAX_SERVERS
            && let Some(other) = servers.keys().next().cloned()
        {
            servers.remove(&other);
        }
        let store = Arc::new(ClientSessionMemoryCache::new(1));
        servers.insert(address.clone(), store.clone());
        store
    }
}

impl fmt::Debug for TicketCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketCache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_once() {
        let store = TicketStore::new(4).scoped([0; 32]);
        assert!(store.put(vec![1], vec![10]));
        assert_eq!(store.get(&[1]), Some(vec![10]));
        assert_eq!(store.take(&[1]), Some(vec![10]));
        assert_eq!(store.take(&[1]), None);
    }

    #[test]
    fn a_ticket_is_good_in_its_scope_alone() {
        let store = TicketStore::new(4);
        let (one, other) = (store.scoped([1; 32]), store.scoped([2; 32]));
        one.put(vec![1], vec![10]);
        other.put(vec![2], vec![20]);
        assert_eq!(other.get(&[1]), None);
        assert_eq!(other.take(&[1]), None);
        store.forget(&[2; 32]);
        assert_eq!(other.take(&[2]), None);
        // One whose handshake was under way when its scope was given up.
        other.put(vec![3], vec![30]);
        assert_eq!(one.take(&[3]), None);
        assert_eq!(one.take(&[1]), Some(vec![10]));
    }

    #[test]
    fn tickets_of_a_connection_are_no_good_before_its_release() {
        let store = TicketStore::new(4);
        let (one, other) = [(); 2].map(|()| HeldTickets::new(&store, [0; 32])).into();
        assert!(one.put(vec![1], vec![10]));
        assert!(other.put(vec![2], vec![20]));
        assert!(store.is_empty());
        one.release();
        assert!(one.put(vec![3], vec![30]));
        assert_eq!(other.take(&[1]), Some(vec![10]));
        assert_eq!(other.take(&[3]), Some(vec![30]));
        drop(other);
        assert!(store.is_empty());
    }

    #[test]
    fn a_full_store_forgets_the_oldest() {
        let store = TicketStore::new(2);
        for id in 0..10 {
            store.put(vec![id], vec![id]);
        }
        assert_eq!(store.len(), 2);
        assert_eq!(store.drain(), [(vec![8], vec![8]), (vec![9], vec![9])]);
    }

    #[test]
    fn a_store_with_large_sessions_holds_fewer_of_them() {
        let store = TicketStore::new(64);
        for id in 0..64 {
            store.put(vec![id], vec![id; 4 * BYTES_PER_PLACE]);
        }
        assert_eq!(store.len(), 16);
        let scoped = store.scoped([63; 32]);
        assert!(scoped.take(&[63]).is_some(), "the newest");
        store.put(vec![64], vec![64; 4 * BYTES_PER_PLACE]);
        assert_eq!(store.len(), 16, "a place that is free again");
        store.forget(&[64; 32]);
        assert_eq!(store.drain().len(), 15);
        store.with(|tickets| assert_eq!(tickets.bytes, 0));
    }

    #[test]
    fn used_tickets_leave_nothing_behind() {
        let store = TicketStore::new(2);
        for id in 0..100 {
            let scoped = store.scoped([0; 32]);
            scoped.put(vec![id], vec![id]);
            scoped.take(&[id]);
        }
        assert!(store.is_empty());
        store.with(|tickets| assert!(tickets.order.len() <= 5));
    }

    #[test]
    fn drained_tickets_carry_over_a_restart() {
        let store = TicketStore::new(2);
        store.scoped([0; 32]).put(vec![1], vec![10]);
        let restarted = TicketStore::new(2);
        restarted.restore(store.drain());
        assert_eq!(store.scoped([0; 32]).take(&[1]), None);
        assert_eq!(restarted.scoped([1; 32]).take(&[1]), None);
        assert_eq!(restarted.scoped([0; 32]).take(&[1]), Some(vec![10]));
    }
}
