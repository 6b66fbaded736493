//! Bans: clients, users and addresses that are refused for some minutes.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use mq_transport::network_of;
use tracing::info;

use crate::{
    clock,
    escaped::Escaped,
    lock::lock,
    store::StoreClock,
    view::{Ban, Banned, CannotBan, Page, Query},
};

/// Bans at once.
const MAX_BANS: usize = 10_000;

/// The bans of one broker. They are kept in memory alone: a restart lifts every ban.
#[derive(Debug, Default)]
pub(crate) struct Bans {
    /// `true` if there are any, so that clients of a broker without bans wait for no lock.
    any: AtomicBool,
    until: Mutex<BTreeMap<Banned, Instant>>,
}

impl Bans {
    /// Returns `true` if clients from that address are refused.
    pub(crate) fn has_address(&self, peer: Option<SocketAddr>, now: Instant) -> bool {
        self.is_used() && peer.is_some_and(|peer| self.has(&banned_network(peer.ip()), now))
    }

    /// Returns `true` if clients of that identifier are refused.
    pub(crate) fn has_client(&self, client_id: &str, now: Instant) -> bool {
        self.is_used() && self.has(&Banned::Client(client_id.to_owned()), now)
    }

    /// Returns `true` if that user is refused.
    pub(crate) fn has_user(&self, user: &str, now: Instant) -> bool {
        self.is_used() && self.has(&Banned::User(user.to_owned()), now)
    }

    fn is_used(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn has(&self, banned: &Banned, now: Instant) -> bool {
        self.lock().get(banned).is_some_and(|until| *until > now)
    }

    /// Adds a ban. Returns what is banned: of an IPv6 address its network.
    pub(super) fn add(
        &self,
        banned: Banned,
        until: Instant,
        now: Instant,
    ) -> Result<Banned, CannotBan> {
        let banned = as_kept(banned);
        let mut bans = self.lock();
        bans.retain(|_, until| *until > now);
        if bans.len() >= MAX_BANS && !bans.contains_key(&banned) {
            return Err(CannotBan::TooMany);
        }
        bans.insert(banned.clone(), until);
        self.any.store(true, Ordering::Relaxed);
        Ok(banned)
    }

    /// Lifts a ban; false if there is none.
    pub(crate) fn lift(&self, banned: &Banned) -> bool {
        let now = clock::now();
        let mut bans = self.lock();
        let was = bans.remove(&as_kept(banned.clone()));
        bans.retain(|_, until| *until > now);
        self.any.store(!bans.is_empty(), Ordering::Relaxed);
        drop(bans);
        let was_banned = was.is_some_and(|until| until > now);
        if was_banned {
            info!(banned = %Escaped(&banned.to_string()), "ban lifted by operator");
        }
        was_banned
    }

    /// Returns the bans, in the order of their texts. The place of a ban is its text.
    pub(crate) fn list(&self, query: &Query) -> Page<Ban> {
        let now = clock::now();
        let bans = self.lock();
        let bans = bans.iter().filter(|(_, until)| **until > now);
        let all = bans.map(|(banned, until)| Ban {
            banned: banned.clone(),
            ends_at: StoreClock::MACHINE.time_at(*until),
        });
        let mut all: Vec<_> = all
            .filter(|ban| {
                let text = ban.banned.to_string();
                text.contains(&query.matching)
                    && query.after.as_ref().is_none_or(|after| *after < text)
            })
            .collect();
        all.sort_by_cached_key(|ban| ban.banned.to_string());
        let most = query.most();
        let more = all.len() > most;
        all.truncate(most);
        Page {
            next: all
                .last()
                .filter(|_| more)
                .map(|last| last.banned.to_string()),
            items: all,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Banned, Instant>> {
        lock(&self.until)
    }
}

/// Returns the ban of an address; an IPv6 address counts by its network, as everywhere.
pub(super) fn banned_network(address: IpAddr) -> Banned {
    Banned::Address(network_of(address))
}

fn as_kept(banned: Banned) -> Banned {
    match banned {
        Banned::Address(address) => banned_network(address),
        other => other,
    }
}
