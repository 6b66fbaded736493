//! The one door to what all connections share: sessions, subscriptions, retained messages.
//!
//! ```text
//!               subscribe, unsubscribe            publish            attach, detach
//!  conn -----------------|---------------------------|-----------------------|-------- Hub
//!                        v                           v                       v
//!  RetainedMessages <- subscribe -> Routing <- publish/ -> mailboxes    SessionRegistry
//!                                   (router, sessions by key)           SessionTimers
//! ```
//!
//! | file | concern |
//! |---|---|
//! | `attach` | a session in the hands of a connection: its [`HeldSession`] |
//! | `publish/` | a message from its publisher to the mailboxes of its receivers |
//! | `subscribe`, `flows` | subscriptions, their retained messages, and those that end with a flow |
//! | `end_session` | the end of a session, and the messages that it leaves to others |
//! | `restore`, `relocate` | sessions from the store, and from and to other nodes |
//! | `nodes`, `local_sessions` | the other nodes of a cluster, and what they change here |
//! | `operators`, `bans`, `topic_rates`, `refusals`, `sys_topics` | what operators see and do |
//!
//! Locks are taken in this order: a session's state, the registry, the routing, the turn of a retained topic, the retained
//! messages, a mailbox.

mod append_answers;
mod attach;
mod bans;
mod end_session;
#[cfg(feature = "mqtt-next")]
mod flows;
mod local_sessions;
mod nodes;
mod operators;
mod publish;
mod queue_records;
mod refusals;
mod relocate;
mod restore;
mod retained;
mod routing;
mod session_registry;
mod session_timers;
mod subscribe;
mod sys_topics;
mod topic_rates;
mod violations;

use std::{
    collections::HashMap,
    iter,
    sync::{Arc, RwLock},
};

use mq_codec::{ByteStr, TopicName};
use tokio::task::yield_now;

use crate::{
    Quotas,
    auth::{AccessControl, TakeOverPolicy},
    broker_mark::BrokerMark,
    hooks::Hooks,
    journal::Journal,
    lock::read,
    mailbox::MailboxRules,
    memory_limit::{MemoryLimit, MemoryShare},
    metrics::Metrics,
    refusal_log::RefusalLog,
    session::Session,
    store::{Snapshot, Store, StoreClock},
    store_writer::{StorePatience, StoreWriter},
    workers::WorkerChannels,
};
pub(crate) use append_answers::AppendAnswers;
pub(crate) use attach::HeldSession;
use bans::Bans;
pub(crate) use end_session::ReadAhead;
#[cfg(feature = "mqtt-next")]
pub(crate) use flows::{end_flow, keep_flow};
pub(crate) use local_sessions::LocalSessions;
pub(crate) use nodes::{LogMark, MAX_RIVALS, NodeFuture, Nodes, NotAppended};
pub(crate) use operators::{BridgeStatus, Operators};
use publish::Repeats;
pub(crate) use publish::{
    Acknowledgement, ClusterMessage, ClusterReceivers, Publisher, RoutedMessage,
};
use queue_records::queued;
pub(crate) use queue_records::{dropped, expired, unqueued};
pub(crate) use relocate::ArrivingSession;
use restore::Restore;
use retained::{NoRoomToRetain, RetainEffect, RetainedMessages};
use routing::Routing;
use session_registry::SessionRegistry;
use session_timers::SessionTimers;
pub(crate) use sys_topics::{FigurePublisher, OwnTopics, bridge_state_topic};
use topic_rates::TopicCounts;
use violations::Violations;

/// Divisor of the memory for the part that all clients which were not let in yet may hold together.
const UNAUTHENTICATED_SHARE_DIVISOR: usize = 4;

/// Divisor of the memory for the part that changes may hold which the store has not settled.
const UNSETTLED_SHARE_DIVISOR: usize = 4;

/// Divisor of the memory for the part that flow-control windows of QUIC may grow by together.
#[cfg(feature = "quic")]
const WINDOWS_SHARE_DIVISOR: usize = 4;

/// The reason for which a client's message is refused that only the broker publishes.
pub(crate) const OWN_TOPIC: &str = "topic of the broker's own";

/// Sessions that are taken from the routing under its lock at a time.
const SESSIONS_A_TURN: usize = 256;

/// The settings of a hub, which do not change.
#[derive(Debug)]
pub(crate) struct HubSettings {
    pub(crate) quotas: Quotas,
    pub(crate) take_over: TakeOverPolicy,
    /// Topics to which no client may publish.
    pub(crate) own_topics: OwnTopics,
    pub(crate) store_patience: StorePatience,
    /// The mark of messages that have been at this broker.
    pub(crate) mark: BrokerMark,
    /// Rules of the mailboxes of the configured bridges, by the client identifiers of their sessions.
    pub(crate) bridge_mailboxes: HashMap<ByteStr, MailboxRules>,
}

/// The parts of the broker that a hub calls.
#[derive(Debug, Default)]
pub(crate) struct HubParts {
    pub(crate) access_control: AccessControl,
    pub(crate) store: Option<Arc<dyn Store>>,
    /// The other nodes, if the broker is one of a cluster, which is its store as well.
    pub(crate) cluster: Option<Arc<dyn Nodes>>,
    pub(crate) worker_channels: Arc<WorkerChannels>,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
}

/// The state that all connections of a broker share.
#[derive(Debug)]
pub(crate) struct Hub {
    settings: HubSettings,

    memory: HubMemory,
    sessions: SessionRegistry,
    routing: RwLock<Routing>,
    retained: RetainedMessages,
    timers: SessionTimers,
    /// Held by the session that [ends its subscriptions](Hub::end_subscriptions).
    unsubscribing: tokio::sync::Mutex<()>,
    pub(crate) bans: Bans,
    topic_counts: TopicCounts,
    repeats: Repeats,
    pub(crate) metrics: Metrics,
    pub(crate) refusal_log: RefusalLog,
    pub(crate) violations: Violations,

    pub(crate) access_control: AccessControl,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    store_writer: Option<Arc<StoreWriter>>,
    cluster: Option<Arc<dyn Nodes>>,
    worker_channels: Arc<WorkerChannels>,
}

/// The memory that clients may make the broker hold.
#[derive(Debug)]
struct HubMemory {
    /// Messages of all sessions, retained messages, subscriptions, and the buffers of clients.
    all: Arc<MemoryLimit>,
    /// The part for clients that were not let in yet.
    unauthenticated: Arc<MemoryLimit>,
    /// The part for flow-control windows of QUIC that have grown.
    #[cfg(feature = "quic")]
    windows: Arc<MemoryLimit>,
}

impl Hub {
    /// Makes a hub that goes on from the sessions and messages that the store has kept.
    pub(crate) fn new(mut settings: HubSettings, parts: HubParts, kept: Snapshot) -> Self {
        let HubParts {
            access_control,
            store,
            cluster,
            worker_channels,
            hooks,
        } = parts;
        let quotas = settings.quotas;
        let memory = HubMemory::new(quotas.memory);
        let can_spill = store.as_ref().is_some_and(|store| store.can_spill());
        let store_writer = store.map(|store| {
            let unsettled =
                MemoryLimit::part_of(&memory.all, quotas.memory / UNSETTLED_SHARE_DIVISOR);
            Arc::new(StoreWriter::new(store, unsettled, settings.store_patience))
        });
        let bridge_mailboxes = core::mem::take(&mut settings.bridge_mailboxes);
        let hub = Self {
            sessions: SessionRegistry::new(quotas, can_spill, bridge_mailboxes, &memory.all),
            routing: RwLock::new(Routing::new(&memory.all)),
            retained: RetainedMessages::new(quotas.retained, &memory.all),
            violations: Violations::new(quotas.protocol_errors_per_minute, &memory.all),
            memory,
            timers: SessionTimers::default(),
            unsubscribing: tokio::sync::Mutex::default(),
            bans: Bans::default(),
            topic_counts: TopicCounts::default(),
            repeats: Repeats::new(),
            metrics: Metrics::default(),
            refusal_log: RefusalLog::default(),
            settings,
            access_control,
            hooks,
            store_writer,
            cluster,
            worker_channels,
        };
        Restore(&hub).run(kept);
        hub
    }

    /// Publishes wills and ends sessions as they become due, writes the log's held-back lines, and watches the store.
    /// Runs until it is dropped.
    pub(crate) async fn run_timers(&self) {
        let watch_store = async {
            if let Some(writer) = self.store_writer() {
                writer.watch().await;
            }
        };
        tokio::join!(self.timers.run(self), self.refusal_log.run(), watch_store);
    }

    /// Returns the bounds of one session's messages in memory.
    #[cfg(feature = "mqtt-next")]
    pub(crate) fn mailbox_limits(&self) -> crate::mailbox::MailboxLimits {
        self.settings.quotas.mailbox
    }

    pub(crate) fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store_writer().map(StoreWriter::store)
    }

    /// Returns the clock of the times that the store keeps.
    pub(crate) fn store_clock(&self) -> StoreClock<'_> {
        StoreClock::new(self.store())
    }

    /// Returns `true` if the store is so far behind that it gets nothing new to keep.
    pub(crate) fn is_store_full(&self) -> bool {
        self.store_writer().is_some_and(StoreWriter::is_full)
    }

    pub(crate) fn store_writer(&self) -> Option<&StoreWriter> {
        self.store_writer.as_deref()
    }

    /// Returns the bytes that count against [`Quotas::memory`].
    pub(crate) fn memory_used(&self) -> usize {
        self.memory.all.used()
    }

    /// Returns [`Quotas::memory`].
    pub(crate) fn memory_limit(&self) -> usize {
        self.settings.quotas.memory
    }

    /// Returns `true` if all memory that [`Quotas::memory`] gives is counted.
    pub(crate) fn is_full(&self) -> bool {
        self.memory.all.left() == 0
    }

    /// Returns a share for what the connection of a client holds that was let in.
    pub(crate) fn memory_share(&self) -> MemoryShare {
        MemoryShare::new(&self.memory.all)
    }

    /// Returns a share for what a connection holds before its client is let in.
    pub(crate) fn unauthenticated_share(&self) -> MemoryShare {
        MemoryShare::new(&self.memory.unauthenticated)
    }

    /// Returns the memory of the windows of QUIC connections.
    #[cfg(feature = "quic")]
    pub(crate) fn window_memory(&self) -> Arc<dyn mq_transport::WindowMemory> {
        Arc::clone(&self.memory.windows) as _
    }

    /// Returns the publishing side of a new connection.
    pub(crate) fn publisher(&self) -> Publisher {
        let mut publisher = Publisher::new(self.journal(), &self.memory.all, &self.worker_channels);
        publisher.append_answers = self.cluster.is_some().then(Arc::default);
        publisher
    }

    fn journal(&self) -> Journal {
        Journal::new(self.store_writer.as_ref())
    }

    /// Makes a client identifier for a client that sent none. No two of this broker are the same.
    pub(crate) fn assign_client_id(&self) -> ByteStr {
        self.sessions.assign_client_id()
    }

    /// Returns `true` if that client may not publish to the topic, because the broker does.
    pub(crate) fn is_own_topic(&self, topic: &TopicName, client_id: &str) -> bool {
        self.settings.own_topics.has(topic, client_id)
    }

    /// Returns the mark of messages that have been at this broker.
    pub(crate) fn mark(&self) -> &BrokerMark {
        &self.settings.mark
    }

    /// Returns the door for operators.
    pub(crate) fn operators(&self) -> Operators<'_> {
        Operators(self)
    }

    /// Has every connection that has a session look whether it must leave.
    pub(crate) async fn remind_all(&self) {
        self.each_session(|session| session.remind()).await;
    }

    /// Calls `look` with every session that is there all the time, and perhaps with others. Others have
    /// their turn in between; the table is locked for a few microseconds at a time.
    async fn each_session(&self, mut look: impl FnMut(&Arc<Session>)) {
        for some in self.session_turns() {
            some.iter().for_each(&mut look);
            yield_now().await;
        }
    }

    /// Returns every session that is there all the time, and perhaps others, some at a time: the table is locked only
    /// between two of them.
    fn session_turns(&self) -> impl Iterator<Item = Vec<Arc<Session>>> {
        let mut next = Some(0);
        iter::from_fn(move || {
            let from = next?;
            let (some, is_end) = read(&self.routing).sessions_from(from, SESSIONS_A_TURN);
            next = (!is_end).then_some(from + SESSIONS_A_TURN);
            Some(some)
        })
    }
}

impl HubMemory {
    fn new(limit: usize) -> Self {
        let all = Arc::new(MemoryLimit::new(limit));
        let unauthenticated = MemoryLimit::part_of(&all, limit / UNAUTHENTICATED_SHARE_DIVISOR);
        Self {
            unauthenticated: Arc::new(unauthenticated),
            #[cfg(feature = "quic")]
            windows: Arc::new(MemoryLimit::part_of(&all, limit / WINDOWS_SHARE_DIVISOR)),
            all,
        }
    }
}

#[cfg(test)]
mod tests;
