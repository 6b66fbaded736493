//! Bans: clients, users and addresses that are refused for some minutes.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mq_codec::ReasonCode;
use tracing::info;

use super::Hub;
use crate::{
    clock,
    lock::lock,
    quota::network_of,
    session::Session,
    shown::Shown,
    store::{User, to_wall_clock},
    view::{Ban, Banned, CannotBan, LONGEST_BAN_MINUTES, Page, Query},
};

/// Bans at once.
const MOST: usize = 10_000;

/// The bans of one broker. They are kept in memory alone: a restart lifts every ban.
#[derive(Debug, Default)]
pub(crate) struct Bans {
    /// Whether there are any, so that clients of a broker without bans wait for no lock.
    any: AtomicBool,
    until: Mutex<BTreeMap<Banned, Instant>>,
}

impl Bans {
    /// Whether clients from that address are refused.
    pub(crate) fn has_address(&self, peer: Option<SocketAddr>, now: Instant) -> bool {
        self.is_used() && peer.is_some_and(|peer| self.has(&network(peer.ip()), now))
    }

    /// Whether clients of that identifier are refused.
    pub(crate) fn has_client(&self, client_id: &str, now: Instant) -> bool {
        self.is_used() && self.has(&Banned::Client(client_id.to_owned()), now)
    }

    /// Whether that user is refused.
    pub(crate) fn has_user(&self, user: &str, now: Instant) -> bool {
        self.is_used() && self.has(&Banned::User(user.to_owned()), now)
    }

    fn is_used(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn has(&self, banned: &Banned, now: Instant) -> bool {
        self.lock().get(banned).is_some_and(|until| *until > now)
    }

    fn add(&self, banned: Banned, until: Instant, now: Instant) -> Result<(), CannotBan> {
        let mut bans = self.lock();
        bans.retain(|_, until| *until > now);
        if bans.len() >= MOST && !bans.contains_key(&banned) {
            return Err(CannotBan::TooMany);
        }
        bans.insert(banned, until);
        self.any.store(true, Ordering::Relaxed);
        Ok(())
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
            info!(banned = %Shown(&banned.to_string()), "an operator lifts a ban");
        }
        was_banned
    }

    /// The bans, in the order of their texts. The place of a ban is its text.
    pub(crate) fn list(&self, query: &Query) -> Page<Ban> {
        let now = clock::now();
        let bans = self.lock();
        let bans = bans.iter().filter(|(_, until)| **until > now);
        let all = bans.map(|(banned, until)| Ban {
            banned: banned.clone(),
            ends_at: to_wall_clock(*until),
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

/// An IPv6 address counts by its network, as everywhere.
fn network(address: IpAddr) -> Banned {
    Banned::Address(network_of(address))
}

fn as_kept(banned: Banned) -> Banned {
    match banned {
        Banned::Address(address) => network(address),
        other => other,
    }
}

impl Hub {
    /// Refuses a client, a user or an address for some minutes, and disconnects the clients that it is about.
    pub(crate) fn ban(&self, banned: Banned, minutes: u32) -> Result<Ban, CannotBan> {
        if !(1..=LONGEST_BAN_MINUTES).contains(&minutes) {
            return Err(CannotBan::Minutes);
        }
        let now = clock::now();
        let until = now + Duration::from_secs(60 * u64::from(minutes));
        let banned = as_kept(banned);
        self.bans.add(banned.clone(), until, now)?;
        info!(banned = %Shown(&banned.to_string()), minutes, "an operator bans");
        let sessions = lock(&self.sessions);
        let is_meant = |session: &Session| match &banned {
            Banned::Client(id) => session.client_id.as_str() == id,
            Banned::User(user) => {
                matches!(session.user(), Some(User::Named(name)) if name.as_str() == user)
            }
            Banned::Address(_) => session
                .presence()
                .and_then(|presence| presence.peer)
                .is_some_and(|peer| network(peer.ip()) == banned),
        };
        for session in sessions.by_id.values() {
            if is_meant(session) {
                session.kick(ReasonCode::AdministrativeAction);
            }
        }
        drop(sessions);
        Ok(Ban {
            banned,
            ends_at: to_wall_clock(until),
        })
    }
}
