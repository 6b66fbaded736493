//! The hub's side of operators' requests: pages of clients, sessions, subscriptions and retained messages; clients that
//! are disconnected or banned.

use std::{collections::BTreeMap, num::NonZeroU16, sync::Arc, time::Duration};

use mq_codec::{ByteStr, ReasonCode, TopicError, TopicFilter};
use mq_transport::{EarlyData, HandshakeKind};
use tokio::{task::yield_now, time::Instant};
use tracing::info;

use super::{Hub, bans::banned_network};
use crate::{
    clock,
    escaped::Escaped,
    mailbox::{MailboxLoad, MailboxRules},
    router::Cursor,
    session::{ConnectionFigures, Presence, Session},
    store::{StoreClock, User},
    view::{
        self, Ban, Banned, CannotBan, LONGEST_BAN_MINUTES, NotConnected, Page, Query, TopicRates,
    },
};

/// Levels of retained topics that are looked at under the lock at a time.
const LEVELS_A_TURN: usize = 256;

/// Bytes of texts after which a page ends.
const PAGE_TEXT_BYTES: usize = 256 * 1024;

/// Time that connections have to answer. All of a page are asked at once.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Separates filter and client identifier in the place of a page of subscriptions; no MQTT string has it.
const SEPARATOR: char = '\0';

/// The first items behind a place, by key: a few of many.
struct PageItems<K, V> {
    most: usize,
    kept: BTreeMap<K, V>,
}

impl<K: Ord, V> PageItems<K, V> {
    /// Keeps one item more than the page takes, which shows that another page follows.
    fn new(query: &Query) -> Self {
        Self {
            most: query.most() + 1,
            kept: BTreeMap::new(),
        }
    }

    fn add(&mut self, key: K, value: V) {
        self.kept.insert(key, value);
        if self.kept.len() > self.most {
            self.kept.pop_last();
        }
    }

    /// Cuts to a page: the items, and the key of the last one if more follow.
    fn into_page(self, bytes: impl Fn(&K) -> usize) -> (Vec<(K, V)>, bool) {
        let (limit, found) = (self.most - 1, self.kept.len());
        let mut sum = 0;
        let fits = |(key, _): &(K, V)| {
            let is_first = sum == 0;
            sum += bytes(key);
            is_first || sum <= PAGE_TEXT_BYTES
        };
        let items: Vec<_> = self.kept.into_iter().take(limit).take_while(fits).collect();
        let more = items.len() < found;
        (items, more)
    }
}

/// A bridge's session, at one moment.
pub(crate) struct BridgeStatus {
    /// `true` if a connection has it.
    pub(crate) is_connected: bool,
    /// Messages that wait for the bridge.
    pub(crate) load: MailboxLoad,
    /// Messages that were dropped since the session began.
    pub(crate) dropped: u64,
    /// The bounds of its messages.
    pub(crate) rules: MailboxRules,
}

fn name(user: Option<User>) -> Option<String> {
    match user? {
        User::Named(name) => Some(name.as_str().to_owned()),
        User::Anonymous => None,
    }
}

/// The hub as operators see it, and act on it.
#[derive(Clone, Copy)]
pub(crate) struct Operators<'a>(pub(super) &'a Hub);

impl Operators<'_> {
    /// Returns the state of the session of a bridge.
    pub(crate) fn bridge_status(self, session: &ByteStr) -> BridgeStatus {
        let Self(hub) = self;
        let rules = hub.sessions.bridge_mailbox_rules(session);
        let session = hub.sessions.get(session);
        // There is none before a bridge that keeps nothing has connected.
        let session = session.as_ref();
        let load = session.map(|session| session.mailbox.load());
        BridgeStatus {
            is_connected: session.is_some_and(|session| session.presence().is_some()),
            load: load.unwrap_or_default(),
            dropped: session.map_or(0, |session| session.mailbox.dropped()),
            rules,
        }
    }

    /// Returns a page of the sessions that `is_wanted`, by their identifiers.
    async fn sessions_of(
        self,
        query: &Query,
        is_wanted: impl Fn(&Session) -> bool,
    ) -> (Vec<(ByteStr, Arc<Session>)>, Option<String>) {
        let mut first = PageItems::new(query);
        self.0
            .each_session(|session| {
                let id = session.client_id.as_str();
                if query.after.as_deref().is_none_or(|after| after < id)
                    && id.contains(&query.matching)
                    && is_wanted(session)
                {
                    first.add(session.client_id.clone(), Arc::clone(session));
                }
            })
            .await;
        let (items, more) = first.into_page(ByteStr::len);
        let last = items.last().map(|(id, _)| id.as_str().to_owned());
        (items, last.filter(|_| more))
    }

    /// Returns the connected clients, by their identifiers.
    pub(crate) async fn clients(self, query: &Query) -> Page<view::Client> {
        let (sessions, next) = self
            .sessions_of(query, |session| session.presence().is_some())
            .await;
        let asked: Vec<_> = sessions
            .iter()
            .filter_map(|(_, session)| Some((session, session.request_figures()?)))
            .collect();
        let until = Instant::now() + ANSWER_TIMEOUT;
        let mut items = Vec::with_capacity(asked.len());
        for (session, (presence, figures)) in asked {
            let figures = tokio::time::timeout_at(until, figures).await;
            let figures = figures.ok().and_then(Result::ok);
            items.push(client(session, &presence, figures.as_ref()));
        }
        Page { items, next }
    }

    /// Returns the connected client of that identifier.
    pub(crate) async fn client(self, client_id: &str) -> Result<view::Client, NotConnected> {
        let unknown = || NotConnected(client_id.to_owned());
        let session = self.session_of(client_id).ok_or_else(unknown)?;
        let (presence, figures) = session.request_figures().ok_or_else(unknown)?;
        let figures = tokio::time::timeout(ANSWER_TIMEOUT, figures).await;
        Ok(client(
            &session,
            &presence,
            figures.ok().and_then(Result::ok).as_ref(),
        ))
    }

    /// Returns the sessions without a connection, by their identifiers.
    pub(crate) async fn absent_sessions(self, query: &Query) -> Page<view::Session> {
        let (sessions, next) = self
            .sessions_of(query, |session| {
                // A connection that has just taken it up holds its state.
                session.presence().is_none() && session.state.try_lock().is_ok()
            })
            .await;
        let items = sessions.iter().map(|(_, session)| view::Session {
            client_id: session.client_id.as_str().to_owned(),
            user: name(session.user()),
            ends_at: session
                .expires_at()
                .map(|at| StoreClock::MACHINE.time_at(at)),
            queue: session.mailbox.len(),
            dropped: session.mailbox.dropped(),
            subscriptions: session.subscriptions.lock().len(),
        });
        Page {
            items: items.collect(),
            next,
        }
    }

    /// Returns the subscriptions of all sessions, by filter and then by identifier. The place of one is its filter, U+0000
    /// and the identifier. With `of` only those of that client identifier.
    pub(crate) async fn all_subscriptions(
        self,
        query: &Query,
        of: Option<&str>,
    ) -> Page<view::Subscription> {
        let after = query.after.as_deref();
        let after = after.map(|after| after.split_once(SEPARATOR).unwrap_or((after, "")));
        let mut first = PageItems::new(query);
        let mut look = |session: &Arc<Session>| {
            for (filter, subscriber) in session.subscriptions.lock().iter() {
                let place = (filter.as_str(), session.client_id.as_str());
                if after.is_none_or(|after| after < place)
                    && filter.as_str().contains(&query.matching)
                {
                    let key = (filter.as_str().to_owned(), session.client_id.clone());
                    first.add(key, subscriber.options.qos as u8);
                }
            }
        };
        match of {
            Some(client_id) => self.session_of(client_id).iter().for_each(look),
            None => self.0.each_session(&mut look).await,
        }
        let (items, more) = first.into_page(|(filter, id)| filter.len() + id.len());
        let last = items
            .last()
            .map(|((filter, id), _)| format!("{filter}{SEPARATOR}{id}"));
        let items = items
            .into_iter()
            .map(|((filter, id), qos)| view::Subscription {
                filter,
                client_id: id.as_str().to_owned(),
                qos,
            });
        Page {
            items: items.collect(),
            next: last.filter(|_| more),
        }
    }

    /// Returns the retained messages, by topic, level by level. An empty [`Query::matching`] is `#`.
    pub(crate) async fn retained_topics(
        self,
        query: &Query,
    ) -> Result<Page<view::Retained>, TopicError> {
        let filter = match query.matching.as_str() {
            "" => "#",
            filter => filter,
        };
        let filter = TopicFilter::new(filter)?;
        let (limit, now) = (query.most(), clock::now());
        let mut cursor = query
            .after
            .as_deref()
            .map_or_else(Cursor::default, Cursor::behind);
        let mut items: Vec<view::Retained> = Vec::new();
        let mut text = 0;
        let mut is_full = false;
        while !cursor.is_at_end() && !is_full {
            {
                let found = &mut |found: &crate::router::Retained, _| {
                    let topic = found.message.topic.as_str();
                    text += topic.len();
                    items.push(view::Retained {
                        topic: topic.to_owned(),
                        qos: found.qos as u8,
                        payload_bytes: found.message.payload.len(),
                    });
                    is_full = items.len() == limit || text >= PAGE_TEXT_BYTES;
                    !is_full
                };
                let retained = &self.0.retained;
                retained.search(&filter, &mut cursor, now, LEVELS_A_TURN, found);
            }
            yield_now().await;
        }
        let last = items.last().map(|last| last.topic.clone());
        Ok(Page {
            next: last.filter(|_| !cursor.is_at_end()),
            items,
        })
    }

    /// Disconnects a client with 0x98 (Administrative action, §3.14.2.1).
    pub(crate) fn kick(self, client_id: &str) -> Result<(), NotConnected> {
        let session = self.session_of(client_id);
        if !session.is_some_and(|session| session.kick(ReasonCode::AdministrativeAction)) {
            return Err(NotConnected(client_id.to_owned()));
        }
        info!(client = %Escaped(client_id), "client disconnected by operator");
        Ok(())
    }

    /// Refuses a client, a user or an address for some minutes, and disconnects the clients that it is about.
    pub(crate) fn ban(self, banned: Banned, minutes: u32) -> Result<Ban, CannotBan> {
        if !(1..=LONGEST_BAN_MINUTES).contains(&minutes) {
            return Err(CannotBan::Minutes);
        }
        let Self(hub) = self;
        let now = clock::now();
        let until = now + Duration::from_secs(60 * u64::from(minutes));
        let banned = hub.bans.add(banned, until, now)?;
        info!(banned = %Escaped(&banned.to_string()), minutes, "ban added by operator");
        let is_meant = |session: &Session| match &banned {
            Banned::Client(id) => session.client_id.as_str() == id,
            Banned::User(user) => {
                matches!(session.user(), Some(User::Named(name)) if name.as_str() == user)
            }
            Banned::Address(_) => session
                .presence()
                .and_then(|presence| presence.peer)
                .is_some_and(|peer| banned_network(peer.ip()) == banned),
        };
        hub.sessions.for_each(|session| {
            if is_meant(session) {
                session.kick(ReasonCode::AdministrativeAction);
            }
        });
        Ok(Ban {
            banned,
            ends_at: StoreClock::MACHINE.time_at(until),
        })
    }

    /// Returns topics by the rate of their messages, the busiest first; no pages. The first look in 15 s takes 2 s.
    pub(crate) async fn topic_rates(self, query: &Query) -> TopicRates {
        let topics = &self.0.topic_counts;
        let wait = topics.look(clock::now());
        tokio::time::sleep(wait).await;
        topics.rates(query, clock::now())
    }

    fn session_of(self, client_id: &str) -> Option<Arc<Session>> {
        let client_id = ByteStr::new(client_id.to_owned()).ok()?;
        self.0.sessions.get(&client_id)
    }
}

fn client(
    session: &Session,
    presence: &Presence,
    figures: Option<&ConnectionFigures>,
) -> view::Client {
    let stats = figures.map(|figures| &figures.stats);
    let peer = figures.and_then(|figures| figures.peer);
    view::Client {
        client_id: session.client_id.as_str().to_owned(),
        user: name(session.user()),
        transport: presence.scheme.to_string(),
        peer: peer.or(presence.peer),
        mqtt_version: presence.version.to_string(),
        connected_at: presence.connected_at,
        clean_start: presence.clean_start,
        session_expiry: presence.expiry,
        keep_alive: NonZeroU16::new(presence.keep_alive)
            .map(|seconds| Duration::from_secs(seconds.get().into())),
        queue: session.mailbox.len(),
        dropped: session.mailbox.dropped(),
        subscriptions: session.subscriptions.lock().len(),
        in_flight: figures.map(|figures| figures.in_flight),
        handshake: stats.map(|stats| match stats.handshake {
            HandshakeKind::None => view::Handshake::None,
            HandshakeKind::Pending => view::Handshake::Pending,
            HandshakeKind::Full => view::Handshake::Full,
            HandshakeKind::Resumed => view::Handshake::Resumed,
        }),
        early_data: stats.map(|stats| stats.early_data == EarlyData::Accepted),
        rtt: stats.and_then(|stats| stats.rtt),
        packets_lost: stats.and_then(|stats| stats.packets_lost),
        packets_retransmitted: stats.and_then(|stats| stats.packets_retransmitted),
        messages_received: figures.map(|figures| figures.messages_received),
        messages_sent: figures.map(|figures| figures.messages_sent),
        bytes_received: stats.map(|stats| stats.bytes_received),
        bytes_sent: stats.map(|stats| stats.bytes_sent),
    }
}
