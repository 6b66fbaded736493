//! What operators see and do: pages of what there is, and clients that are made to leave.

use std::{collections::BTreeMap, num::NonZeroU16, sync::Arc, time::Duration};

use mq_codec::{ByteStr, ReasonCode, TopicError, TopicFilter};
use mq_transport::{EarlyData, HandshakeKind};
use tokio::{task::yield_now, time::Instant};
use tracing::info;

use super::{Hub, lock, read};
use crate::{
    clock,
    mailbox::{Load, MailboxRules},
    router::Cursor,
    session::{Figures, Presence, Session},
    shown::Shown,
    store::{User, to_wall_clock},
    view::{self, NotConnected, Page, Query},
};

/// Sessions that are taken from the table under its lock at a time, and steps through retained topics.
const AT_A_TIME: usize = 256;

/// Bytes of texts after which a page ends.
const TEXT: usize = 256 * 1024;

/// How long connections may take to answer. All of a page are asked at once.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Ends the identifier's part of a place among subscriptions; no MQTT string has it.
const END: char = '\0';

/// The first items behind a place, by key: a few of many.
struct First<K, V> {
    most: usize,
    kept: BTreeMap<K, V>,
}

impl<K: Ord, V> First<K, V> {
    /// One more than the page takes shows whether another page follows.
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
            is_first || sum <= TEXT
        };
        let items: Vec<_> = self.kept.into_iter().take(limit).take_while(fits).collect();
        let more = items.len() < found;
        (items, more)
    }
}

/// A bridge's session, at one moment.
pub(crate) struct BridgeState {
    /// Whether a connection has it.
    pub(crate) is_connected: bool,
    /// What waits for it.
    pub(crate) load: Load,
    /// Messages that were dropped since it began.
    pub(crate) dropped: u64,
    /// What may wait for it.
    pub(crate) rules: MailboxRules,
}

fn name(user: Option<User>) -> Option<String> {
    match user? {
        User::Named(name) => Some(name.as_str().to_owned()),
        User::Anonymous => None,
    }
}

impl Hub {
    /// What is seen of the session of a bridge.
    pub(crate) fn state_of_bridge(&self, session: &ByteStr) -> BridgeState {
        let rules = self.rules_of_bridge(session);
        let session = lock(&self.sessions).by_id.get(session).cloned();
        // There is none before a bridge that keeps nothing has connected.
        let session = session.as_ref();
        let load = session.map(|session| session.mailbox.load());
        BridgeState {
            is_connected: session.is_some_and(|session| session.presence().is_some()),
            load: load.unwrap_or_default(),
            dropped: session.map_or(0, |session| session.mailbox.dropped()),
            rules,
        }
    }

    /// Has every connection that has a session look whether it must leave.
    pub(crate) async fn remind_all(&self) {
        self.each_session(|session| session.remind()).await;
    }

    /// Calls `look` with every session that is there all the time, and perhaps with others. Others have
    /// their turn in between; the table is locked for a few microseconds at a time.
    async fn each_session(&self, mut look: impl FnMut(&Arc<Session>)) {
        let mut from = 0;
        loop {
            let (some, end) = {
                let routing = read(&self.routing);
                let end = (from + AT_A_TIME).min(routing.sessions.len());
                let some: Vec<_> = routing.sessions[from.min(end)..end]
                    .iter()
                    .flatten()
                    .cloned()
                    .collect();
                (some, end)
            };
            some.iter().for_each(&mut look);
            if end < from + AT_A_TIME {
                return;
            }
            from = end;
            yield_now().await;
        }
    }

    /// A page of the sessions that `is_wanted`, by their identifiers.
    async fn sessions_of(
        &self,
        query: &Query,
        is_wanted: impl Fn(&Session) -> bool,
    ) -> (Vec<(ByteStr, Arc<Session>)>, Option<String>) {
        let mut first = First::new(query);
        self.each_session(|session| {
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

    /// Connected clients, by their identifiers.
    pub(crate) async fn clients(&self, query: &Query) -> Page<view::Client> {
        let (sessions, next) = self
            .sessions_of(query, |session| session.presence().is_some())
            .await;
        let asked: Vec<_> = sessions
            .iter()
            .filter_map(|(_, session)| Some((session, session.ask()?)))
            .collect();
        let until = Instant::now() + ANSWER_WITHIN;
        let mut items = Vec::with_capacity(asked.len());
        for (session, (presence, figures)) in asked {
            let figures = tokio::time::timeout_at(until, figures).await;
            let figures = figures.ok().and_then(Result::ok);
            items.push(client(session, &presence, figures.as_ref()));
        }
        Page { items, next }
    }

    /// The client of that identifier.
    pub(crate) async fn client(&self, client_id: &str) -> Result<view::Client, NotConnected> {
        let unknown = || NotConnected(client_id.to_owned());
        let session = self.session_of(client_id).ok_or_else(unknown)?;
        let (presence, figures) = session.ask().ok_or_else(unknown)?;
        let figures = tokio::time::timeout(ANSWER_WITHIN, figures).await;
        Ok(client(
            &session,
            &presence,
            figures.ok().and_then(Result::ok).as_ref(),
        ))
    }

    /// Sessions without a connection, by their identifiers.
    pub(crate) async fn absent_sessions(&self, query: &Query) -> Page<view::Session> {
        let (sessions, next) = self
            .sessions_of(query, |session| {
                // A connection that has just taken it up holds its state.
                session.presence().is_none() && session.state.try_lock().is_ok()
            })
            .await;
        let items = sessions.iter().map(|(_, session)| view::Session {
            client_id: session.client_id.as_str().to_owned(),
            user: name(session.user()),
            ends_at: session.expires_at().map(to_wall_clock),
            queue: session.mailbox.len(),
            dropped: session.mailbox.dropped(),
            subscriptions: session.subscriptions.lock().len(),
        });
        Page {
            items: items.collect(),
            next,
        }
    }

    /// Subscriptions of all sessions, by filter and then by identifier. The place of one is its filter, U+0000
    /// and the identifier. With `of` only those of that client identifier.
    pub(crate) async fn all_subscriptions(
        &self,
        query: &Query,
        of: Option<&str>,
    ) -> Page<view::Subscription> {
        let after = query.after.as_deref();
        let after = after.map(|after| after.split_once(END).unwrap_or((after, "")));
        let mut first = First::new(query);
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
            None => self.each_session(&mut look).await,
        }
        let (items, more) = first.into_page(|(filter, id)| filter.len() + id.len());
        let last = items
            .last()
            .map(|((filter, id), _)| format!("{filter}{END}{id}"));
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

    /// Retained messages, by topic, level by level. An empty [`Query::matching`] is `#`.
    pub(crate) async fn retained_topics(
        &self,
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
                let retained = read(&self.retained);
                let found = &mut |found: &crate::router::Retained, _| {
                    let topic = found.message.topic.as_str();
                    text += topic.len();
                    items.push(view::Retained {
                        topic: topic.to_owned(),
                        qos: found.qos as u8,
                        payload_bytes: found.message.payload.len(),
                    });
                    is_full = items.len() == limit || text >= TEXT;
                    !is_full
                };
                retained
                    .store
                    .matching(&filter, &mut cursor, now, AT_A_TIME, found);
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
    pub(crate) fn kick(&self, client_id: &str) -> Result<(), NotConnected> {
        let session = self.session_of(client_id);
        if !session.is_some_and(|session| session.kick(ReasonCode::AdministrativeAction)) {
            return Err(NotConnected(client_id.to_owned()));
        }
        info!(client = %Shown(client_id), "an operator disconnects a client");
        Ok(())
    }

    fn session_of(&self, client_id: &str) -> Option<Arc<Session>> {
        let client_id = ByteStr::new(client_id.to_owned()).ok()?;
        lock(&self.sessions).by_id.get(&client_id).cloned()
    }
}

fn client(session: &Session, presence: &Presence, figures: Option<&Figures>) -> view::Client {
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
