//! The engine of a cluster: logs that all nodes read in one order, values that change by compare-and-set, and messages
//! from node to node that may be lost.

mod encoding;
mod memory;
#[cfg(feature = "cluster")]
mod nats;
mod outage;

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

pub(super) use encoding::{Malformed, Reader, Writer};
pub use memory::{Faults, MemoryCopy, MemoryEngine, MemoryWorld};
#[cfg(feature = "cluster")]
pub use nats::{NatsEngine, NatsSettings};
pub(super) use outage::Outage;

/// Time for which an engine knows the identifier of an appended entry, and does not append the entry again.
pub const DEDUPLICATION_WINDOW: Duration = Duration::from_mins(2);

/// Time for which a value with [`Expiry::AfterTtl`] is kept.
pub const VALUE_TTL: Duration = Duration::from_hours(1);

/// Interval between two tries.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The result of an engine's call, once it has come.
pub type EngineFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'a>>;

/// The error of an engine: one line. The request may have been done all the same.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine, or another node, did not answer, or refused for now: a later try may succeed.
    #[error("{0}")]
    Unavailable(#[source] EngineCause),
    /// The servers have no room: the request was not done. A later try succeeds once there is room.
    #[error("the storage of the servers is full: {0}")]
    Full(#[source] EngineCause),
    /// No server leads the log, or the values: the request was not done. A later try may succeed.
    #[error("the stream has no leader: {0}")]
    NoLeader(#[source] EngineCause),
    /// The settings of this node, or of the servers, are wrong: waiting mends nothing.
    #[error("{0}")]
    Misconfigured(#[source] EngineCause),
    /// A value in the engine is of a form that this version does not know: a later version wrote it.
    #[error("{0}")]
    UnknownForm(#[source] EngineCause),
    /// The cluster has ended this start of the node: start the broker again.
    #[error("{0}")]
    NodeEnded(#[source] EngineCause),
}

/// The cause of an [`EngineError`], which its clones share.
pub type EngineCause = Arc<dyn Error + Send + Sync>;

impl EngineError {
    /// Makes an [`Unavailable`](Self::Unavailable).
    pub fn unavailable(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(cause.into().into())
    }

    /// Makes a [`Full`](Self::Full).
    pub fn full(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Full(cause.into().into())
    }

    /// Makes a [`NoLeader`](Self::NoLeader).
    pub fn no_leader(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::NoLeader(cause.into().into())
    }

    /// Makes a [`Misconfigured`](Self::Misconfigured).
    pub fn misconfigured(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Misconfigured(cause.into().into())
    }

    pub(super) fn unknown_form(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::UnknownForm(cause.into().into())
    }
}

/// The access of one node to the logs and values that all nodes of a cluster share. [`MemoryEngine`] is an example.
///
/// Nothing is believed but what comes back: an entry is appended once [`follow`](Self::follow) brings it, and a value
/// is written once [`put`](Self::put) or [`get`](Self::get) says so.
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// Returns the number of logs: at least one, and the same for all nodes at all times.
    fn shards(&self) -> u16;

    /// Returns the largest size of a value, in bytes.
    fn max_value_bytes(&self) -> usize;

    /// Appends an entry to a log, durable on a majority, and returns its number. An entry with an id that was appended
    /// within [`DEDUPLICATION_WINDOW`] is not appended again, which is no error: the number is that of then. The entry may
    /// come only behind another one.
    fn append(&self, shard: u16, id: String, entry: Bytes) -> EngineFuture<'_, u64>;

    /// Returns the number of a log's last entry; 0 if there was none yet.
    fn last_entry(&self, shard: u16) -> EngineFuture<'_, u64>;

    /// Returns the size of the entries of a log that are kept, in bytes.
    fn log_bytes(&self, shard: u16) -> EngineFuture<'_, u64>;

    /// Returns how full the servers' storage is, in percent; `None` if nobody says how much room there is.
    fn fill_percent(&self) -> EngineFuture<'_, Option<u8>>;

    /// Removes the entries before `first`, which nobody needs any more. The engine may keep some of them.
    fn trim(&self, shard: u16, first: u64) -> EngineFuture<'_, ()>;

    /// Receives the entries behind `after`, in their order and without a gap, as they come. An entry that the servers have
    /// lost, while they keep earlier ones, [has no bytes](Entry::is_lost). Goes on over outages of the engine. Ends if the
    /// entry behind `after` is not kept any more.
    fn follow(&self, shard: u16, after: u64) -> mpsc::Receiver<Entry>;

    /// Returns the value of a key; `None` if it has none.
    fn get(&self, key: Key) -> EngineFuture<'_, Option<Value>>;

    /// Puts a value under a key, if the key's version is still `expected` (0 for none). The value is on a majority's disks
    /// before the call returns.
    fn put(
        &self,
        key: Key,
        expected: u64,
        bytes: Bytes,
        expiry: Expiry,
    ) -> EngineFuture<'_, PutOutcome>;

    /// Returns all values of a kind, by name, as they are now. A value that changes meanwhile may be an earlier one;
    /// none is left out.
    fn values(&self, kind: KeyKind) -> EngineFuture<'_, Vec<(String, Value)>>;

    /// Receives the values of a kind, by name, and then their changes, each key's in order. They may come late.
    fn watch(&self, kind: KeyKind) -> mpsc::Receiver<(String, Value)>;

    /// Sends a message to all other nodes, or loses it.
    fn broadcast(&self, message: Bytes);

    /// Sends a message to another node, or loses it. Those to one node keep their order.
    fn send(&self, node: &str, message: Bytes);

    /// Receives the messages that other nodes broadcast, or send to this one. Called once.
    fn broadcasts(&self) -> mpsc::Receiver<Bytes>;

    /// Sends a request to another node, and returns its reply. Without a reply it fails, after 2 s at most.
    fn request(&self, node: &str, payload: Bytes) -> EngineFuture<'_, Bytes>;

    /// Receives the requests of other nodes to this one. Called once.
    fn requests(&self) -> mpsc::Receiver<NodeRequest>;

    /// Returns the present times of the servers, each by its own clock. Nodes keep the times of what they share by them.
    /// Fails if not most of the servers answer.
    fn server_times(&self) -> EngineFuture<'_, Vec<ServerTime>>;
}

/// The time of one server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerTime {
    /// The server's name.
    pub server: String,
    /// The time that its clock shows.
    pub time: SystemTime,
    /// The instant at which the clock shows it, as well as that is known: to half a second.
    pub at: Instant,
}

/// Time that the next entry or value that is there may take.
pub(super) const ENTRY_TIMEOUT: Duration = Duration::from_secs(10);

/// An entry of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The entry's number, higher than those before.
    pub number: u64,
    /// The bytes that were appended; none if they are lost.
    pub bytes: Bytes,
}

impl Entry {
    pub(super) fn lost(number: u64) -> Self {
        let bytes = Bytes::new();
        Self { number, bytes }
    }

    /// Returns `true` if the servers have lost what was appended under this number.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The kind of thing that a key names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KeyKind {
    /// A session, by its client identifier.
    Session,
    /// A node, by its name.
    Node,
    /// A retained message, by its topic.
    Retained,
    /// The checkpoint of a log, by the log's number.
    Log,
}

/// The time for which a value is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// The value is kept until another is put in its place.
    Never,
    /// Nobody needs the value after [`VALUE_TTL`]: the key may have none from then on.
    AfterTtl,
}

/// The name of a value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The kind of thing that it names.
    pub kind: KeyKind,
    /// Any text but an empty one.
    pub name: String,
}

impl Key {
    pub(super) fn new(kind: KeyKind, name: impl Into<String>) -> Self {
        let name = name.into();
        Self { kind, name }
    }
}

/// A value with its version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    /// The version, higher than those before.
    pub version: u64,
    /// The bytes that were put.
    pub bytes: Bytes,
}

/// The outcome of a [`put`](Engine::put).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutOutcome {
    /// The value is written, in this version.
    Written(u64),
    /// Another node has put a value meanwhile.
    Conflict,
}

/// A request of another node.
#[derive(Debug)]
pub struct NodeRequest {
    /// The request's content.
    pub payload: Bytes,
    /// The sender for the reply; dropped if there is none.
    pub reply: oneshot::Sender<Bytes>,
}
