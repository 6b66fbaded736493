//! A broker of several nodes.
//!
//! Clients come to any node. What nodes share is in an [`Engine`]: logs of messages, one value a session, and little
//! else. Everything rests on two rules:
//!
//! - **The log is the truth.** A message of QoS 1 or 2, or a retained one, is appended to one of a few logs, by its
//!   topic. Each node reads all logs in their order and queues the messages for its own sessions. The publisher gets
//!   its acknowledgement when its node has read the message back: then it is on the disks of a majority, in its place.
//! - **A session has one owner**: the node that its record (`sessions/record.rs`) names. Each write of the record is a
//!   compare-and-set on its last version, so that an owner that has lost the session learns it by its next write.
//!
//! Around them: a checkpoint of each log (`log/checkpoint.rs`) and retained messages as values let a node begin; a floor
//! (`sessions/floor.rs`) says up to where records are complete, written or not; living nodes adopt the sessions of dead ones
//! (`sessions/adopt.rs`), with their wills and the time they have left, and of those that leave in order (`leave.rs`); which member
//! of a shared subscription gets a message follows from its log (`log/groups.rs`); messages that wait for long are copied into
//! the records of their sessions (`sessions/copies.rs`); and what nobody needs is trimmed (`trim.rs`).
//!
//! A node that takes a session over reads the logs on from the places that the record names, mostly in its own memory
//! (`log/recent.rs`). If the owner lives it is
//! asked to let go first. If it does not answer, its life is ended: a fence (`log/fences.rs`) in each log, behind which what it
//! appends counts for nothing, for any reader. A node that reads its own fence ends itself.
//!
//! ```text
//!  publisher --> node A --append--> log 0..n (engine) --follow--> node A --> its sessions
//!                   ^                          |                    | read back: PUBACK
//!                   +--------------------------|--------------------+
//!                                              +-------follow--> node B --> its sessions --> subscriber
//! ```
//!
//! QoS 0 that is not retained goes without the engine's log to the nodes that may have a subscriber (`interest/`), and may
//! be lost; what comes late, by then for sessions that have come from another node, is not for them
//! (`log/arrival_marks.rs`).
//!
//! # Rooms
//!
//! ```text
//!  mod, status, leave, trim     the node, and what needs all rooms
//!  known_places, requests
//!    |
//!  sessions/                    records; claims, releases, adoptions; the messages that a session has to get
//!    |
//!  interest/                    the filters of each node, in short
//!    |
//!  life                         signs of life, and the ends of lives
//!    |
//!  question                     the form of requests from node to node
//!    |
//!  log/                         entries; the way into a log and out of it; what follows from a log alone
//!    |
//!  cluster_clock                the time of the servers, by which nodes keep the times of what they share
//!    |
//!  engine/                      what nodes share: the trait, NATS, memory; the byte form of entries and values
//! ```
//!
//! A room names those below it and none above; `Cluster`, whose methods each room has its part of, is above all.
//!
//! # What is not there yet
//! A session that is away keeps its logs from being trimmed while more than 256 KiB, or a message larger than 64 KiB,
//! waits for it, until they have no more room; then it loses the oldest messages. What does not fit into a session's
//! mailbox is dropped and counted. A session whose record no value has room for ends. What a member of a shared
//! subscription leaves with its session goes to members of its node alone, and to nobody if it ends with its node.

mod cluster_clock;
mod engine;
mod interest;
mod known_places;
mod leave;
mod life;
mod log;
mod question;
mod requests;
mod sessions;
mod settings;
mod status;
mod trim;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc, Mutex, OnceLock, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use mq_codec::{ByteStr, ReasonCode, TopicFilter};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep},
};
use tracing::error;

use crate::{
    auth::TakeOverPolicy,
    hub::{AppendAnswers, LocalSessions, LogMark, NodeFuture, Nodes, NotAppended},
    session::MemberState,
    store::{
        Change, LogPosition, Position, Snapshot, Store, StoreError, StoredMessage, StoredWill, User,
    },
};
pub use cluster_clock::WallClock;
pub use engine::{
    DEDUPLICATION_WINDOW, Engine, EngineCause, EngineError, EngineFuture, Entry, Expiry, Faults,
    Key, KeyKind, MemoryCopy, MemoryEngine, MemoryWorld, NodeRequest, PutOutcome, ServerTime,
    VALUE_TTL, Value,
};
#[cfg(feature = "cluster")]
pub use engine::{NatsEngine, NatsSettings};
pub use settings::{ClusterSettings, EngineSettings};

use cluster_clock::ClusterClock;
use engine::{Outage, RETRY_INTERVAL};
use interest::Interest;
use life::Lives;
use log::{ArrivalMarks, Author, Fences, Ledger, Membership, Shard, Storage, load_checkpoints};
use sessions::{Floor, MAX_RECORD_WRITES, OwnedSession, TakeUps};

/// Time for which a node tries to append an entry or to put a value. Then its life ends: it could not know any more
/// that a further try is the same one.
const GIVE_UP_AFTER: Duration = Duration::from_mins(1);

/// Time for which a starting node retries calls of the engine that fail.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// This node, as one of a cluster.
pub(crate) struct Cluster {
    engine: Arc<dyn Engine>,
    /// This node in its present life.
    author: Author,
    clock: ClusterClock,
    lease: Duration,
    log_max_bytes: u64,
    /// The logs, by number.
    shards: Box<[Shard]>,
    sessions: Mutex<BTreeMap<ByteStr, OwnedSession>>,
    /// Locks that let one claim of a session run at a time.
    claims: Mutex<HashMap<ByteStr, Arc<tokio::sync::Mutex<()>>>>,
    fences: RwLock<Fences>,
    /// Counts what was noted in `fences`.
    fences_noted: watch::Sender<u64>,
    lives: Mutex<Lives>,
    /// Lock that lets one life be ended at a time.
    ending_lives: tokio::sync::Mutex<()>,
    /// The version of this node's last heartbeat.
    heartbeat_version: AtomicU64,
    /// Counts the signs of this node's life that have come back.
    own_heartbeats: watch::Sender<u64>,
    floor: Mutex<Floor>,
    /// The turn of members of shared subscriptions, for messages that are in no log.
    qos0_turn: AtomicU64,
    /// Counts [entries that say nothing](log).
    empty_entries_sent: AtomicU64,
    arrival_marks: Mutex<ArrivalMarks>,
    interest: Interest,
    take_ups: TakeUps,
    /// Permits of the records that are on their way to the engine.
    record_writes: Semaphore,
    /// Records of sessions that cannot be read or written.
    value_outage: Mutex<Outage>,
    /// The fences of dead nodes that cannot be appended.
    fence_outage: Mutex<Outage>,
    storage: Storage,
    ledger: Ledger,
    /// `true` once this node ends its life itself.
    is_leaving: AtomicBool,
    /// Values are written on it, from whichever thread they change.
    runtime: Handle,
    this: Weak<Self>,
    local: OnceLock<Weak<dyn LocalSessions>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let author = &self.author;
        f.debug_struct("Cluster")
            .field("author", author)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Begins a life of this node, for packets of at most so many bytes.
    ///
    /// # Errors
    /// If the engine cannot be asked.
    pub(crate) async fn begin(
        settings: &ClusterSettings,
        largest_packet: usize,
    ) -> Result<Arc<Self>, EngineError> {
        let ClusterSettings {
            node,
            lease,
            log_max_bytes,
            wall_clock,
            ..
        } = settings.clone();
        let engine = settings.connect(largest_packet).await?;
        let author = retry_at_start(|| life::begin_life(&*engine, node.clone())).await?;
        let clock = ClusterClock::new(wall_clock);
        clock.measure(&*engine).await;
        let mut fences = Fences::default();
        let mut shards = Vec::new();
        for (number, checkpoint) in (0..).zip(retry_at_start(|| load_checkpoints(&*engine)).await?)
        {
            for (author, entry) in &checkpoint.fences {
                fences.note(author, number, *entry);
            }
            shards.push(Shard::new(number, &checkpoint, settings.recent_bytes));
        }
        Ok(Arc::new_cyclic(|this| Self {
            engine,
            arrival_marks: Mutex::new(ArrivalMarks::new(author.clone())),
            interest: Interest::new(author.clone()),
            author,
            clock,
            lease,
            log_max_bytes,
            storage: Storage::new(shards.len()),
            shards: shards.into(),
            sessions: Mutex::default(),
            claims: Mutex::default(),
            fences: RwLock::new(fences),
            fences_noted: watch::Sender::new(0),
            lives: Mutex::default(),
            ending_lives: tokio::sync::Mutex::default(),
            heartbeat_version: AtomicU64::default(),
            own_heartbeats: watch::Sender::new(0),
            floor: Mutex::default(),
            qos0_turn: AtomicU64::default(),
            empty_entries_sent: AtomicU64::default(),
            take_ups: TakeUps::default(),
            record_writes: Semaphore::new(MAX_RECORD_WRITES),
            value_outage: Mutex::new(Outage::new("session record access", None)),
            fence_outage: Mutex::new(Outage::new("node fencing", None)),
            ledger: Ledger::new(),
            is_leaving: AtomicBool::default(),
            runtime: Handle::current(),
            this: this.clone(),
            local: OnceLock::new(),
        }))
    }

    /// Takes part: reads the logs, writes what is appended, and answers other nodes. Ready once it has
    /// read them, and its earlier lives cannot append any more. The tasks end when the set is dropped.
    ///
    /// # Errors
    /// If the engine cannot be asked.
    pub(crate) async fn join(
        self: &Arc<Self>,
        local: &Arc<dyn LocalSessions>,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), EngineError> {
        // The first one stays: a node has one hub.
        let _ = self.local.set(Arc::downgrade(local));
        // Before the rest, which may take longer than a lease: the other nodes would end this life.
        self.spawn(tasks, Arc::clone(self).send_heartbeats());
        retry_at_start(|| self.load_retained(&**local)).await?;
        for shard in 0..self.engine.shards() {
            self.spawn(tasks, Arc::clone(self).follow_log(shard, Arc::clone(local)));
            self.spawn(tasks, Arc::clone(self).append_batches(shard));
        }
        self.spawn(
            tasks,
            Arc::clone(self).receive_qos0(self.engine.broadcasts(), Arc::clone(local)),
        );
        self.spawn(
            tasks,
            Arc::clone(self).serve_requests(self.engine.requests(), Arc::clone(local)),
        );
        let this = Arc::clone(self);
        self.spawn(tasks, async move {
            this.clock.keep_measuring(&*this.engine).await;
        });
        self.spawn(tasks, Arc::clone(self).watch_heartbeats());
        self.spawn(tasks, Arc::clone(self).adopt_sessions());
        self.spawn(tasks, Arc::clone(self).watch_checkpoints());
        self.spawn(tasks, Arc::clone(self).write_checkpoints());
        self.spawn(tasks, Arc::clone(self).copy_old_messages());
        self.spawn(tasks, Arc::clone(self).trim_logs());
        self.spawn(tasks, Arc::clone(self).watch_storage());
        self.spawn(tasks, Arc::clone(self).watch_log_ends());
        self.spawn(tasks, Arc::clone(self).announce_summary(Arc::clone(local)));
        if self.author.life > 1 {
            let earlier = Author {
                life: self.author.life - 1,
                ..self.author.clone()
            };
            retry_at_start(|| self.end_life(&earlier)).await?;
        }
        self.catch_up().await?;
        self.check_known_places().await
    }

    /// Starts a task without which this node is none.
    fn spawn(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let guard = FailsOnPanic(Arc::clone(self));
        tasks.spawn(async move {
            task.await;
            drop(guard);
        });
    }

    /// Returns the sessions of this node's broker; `None` before this node takes part, and once its broker has gone.
    fn local(&self) -> Option<Arc<dyn LocalSessions>> {
        self.local.get()?.upgrade()
    }

    /// Ends this life: nothing is acknowledged from here on.
    fn fail(&self, reason: &str) {
        if !self.ledger.has_failed() && !self.is_leaving.load(Ordering::Acquire) {
            error!(
                node = self.author.node,
                reason, "cluster: node failed; it acknowledges no further message"
            );
        }
        self.ledger.fail();
    }
}

/// Fails a node while a task of it panics: without the task it would wait for ever, and live on for the other nodes.
struct FailsOnPanic(Arc<Cluster>);

impl Drop for FailsOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("a task has panicked");
        }
    }
}

/// Does a step of the beginning, if need be again.
async fn retry_at_start<T, F>(mut step: impl FnMut() -> F) -> Result<T, EngineError>
where
    F: Future<Output = Result<T, EngineError>>,
{
    let began = Instant::now();
    loop {
        match step().await {
            Err(_) if began.elapsed() < START_TIMEOUT => sleep(RETRY_INTERVAL).await,
            done => return done,
        }
    }
}

impl Store for Cluster {
    /// Loads nothing: sessions come when they are claimed.
    fn load(&self) -> Result<Snapshot, StoreError> {
        Ok(Snapshot::default())
    }

    fn record(&self, changes: Vec<Change>) -> Position {
        self.record_changes(None, changes)
    }

    fn settled(&self) -> watch::Receiver<Position> {
        self.ledger.settled()
    }

    /// Returns the time of the cluster: other nodes read what this one writes.
    fn now(&self) -> SystemTime {
        self.clock.now()
    }
}

impl Nodes for Cluster {
    fn append(
        &self,
        from: &ByteStr,
        mark: LogMark,
        message: StoredMessage,
        answers: Option<&Arc<AppendAnswers>>,
    ) -> Result<Position, NotAppended> {
        self.append_message(from, mark, message, answers)
    }

    fn send_qos0(&self, from: &ByteStr, message: StoredMessage) -> Vec<ByteStr> {
        self.send_qos0_to_nodes(from, message)
    }

    fn note_filter(&self, filter: &TopicFilter) -> Option<Position> {
        self.announce_filter(filter)
    }

    fn refuses_members(&self, filter: &TopicFilter) -> bool {
        self.refuses_memberships(filter)
    }

    fn update_membership(
        &self,
        client: &ByteStr,
        filter: &TopicFilter,
        state: MemberState,
        is_persistent: bool,
    ) -> Position {
        self.append_membership(Membership {
            client: client.clone(),
            filter: filter.clone(),
            state,
            is_persistent,
        })
    }

    fn record_logged(&self, origin: LogPosition, changes: Vec<Change>) -> Position {
        self.record_changes(Some(origin), changes)
    }

    fn record_will(&self, client: &ByteStr, will: Option<Box<StoredWill>>) -> Position {
        self.record_change(client, |owned, round| owned.set_will(will, round))
    }

    fn record_published_will(&self, client: &ByteStr) -> Position {
        self.record_change(client, |owned, round| {
            self.note_will_published(owned);
            owned.set_will(None, round)
        })
    }

    fn claim<'a>(
        &'a self,
        id: &'a ByteStr,
        user: &'a User,
        take_over: TakeOverPolicy,
    ) -> NodeFuture<'a, Result<(), ReasonCode>> {
        Box::pin(self.claim_session(id, user, take_over))
    }

    fn is_elsewhere<'a>(&'a self, id: &'a ByteStr) -> NodeFuture<'a, bool> {
        Box::pin(self.is_owned_elsewhere(id))
    }

    fn owns(&self, id: &ByteStr) -> bool {
        self.is_owned(id)
    }

    fn session_ended(&self, id: &ByteStr) {
        self.end_session(id);
    }
}
