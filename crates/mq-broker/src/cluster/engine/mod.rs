//! What a cluster stands on: logs that all nodes read in one order, values that change by compare-and-set, and
//! messages from node to node that may be lost.

mod encoding;
mod memory;
#[cfg(feature = "cluster")]
mod nats;

use std::{error::Error, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

pub(super) use encoding::{Malformed, Reader, Writer};
pub use memory::{Faults, MemoryEngine, MemoryWorld};
#[cfg(feature = "cluster")]
pub use nats::{NatsEngine, NatsSettings};

/// For so long an engine knows an entry that was appended, and does not append it again.
pub const APPENDED_ONCE: Duration = Duration::from_mins(2);

/// A value that was put for [`a while`](Lasts::AWhile) is there for so long.
pub const FORGOTTEN: Duration = Duration::from_hours(1);

/// Between two tries.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// What an engine answers, later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'a>>;

/// The error of an engine: one line. The request may have been done all the same.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine, or another node, did not answer, or refused for now: a later try may succeed.
    #[error("{0}")]
    Unavailable(#[source] EngineCause),
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

    /// Makes a [`Misconfigured`](Self::Misconfigured).
    pub fn misconfigured(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Misconfigured(cause.into().into())
    }

    pub(super) fn unknown_form(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::UnknownForm(cause.into().into())
    }
}

/// One node's way to what all nodes of a cluster share. [`MemoryEngine`] is an example.
///
/// Nothing is believed but what comes back: an entry is appended once [`follow`](Self::follow) brings it, and a value
/// is written once [`put`](Self::put) or [`value`](Self::value) says so.
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// How many logs there are: at least one, and the same for all nodes at all times.
    fn shards(&self) -> u16;

    /// Bytes that a value may have.
    fn largest_value(&self) -> usize;

    /// Appends an entry to a log, durable on a majority. An entry with an id that was appended within
    /// [`APPENDED_ONCE`] is not appended again, which is no error. It may come only behind another one.
    fn append(&self, shard: u16, id: String, entry: Bytes) -> Answer<'_, ()>;

    /// The number of a log's last entry; 0 if there was none yet.
    fn end(&self, shard: u16) -> Answer<'_, u64>;

    /// Bytes of the entries of a log that are kept.
    fn bytes(&self, shard: u16) -> Answer<'_, u64>;

    /// Nobody needs the entries before that number any more. They may stay.
    fn trim(&self, shard: u16, first: u64) -> Answer<'_, ()>;

    /// Brings the entries behind that number, in their order and without a gap, as they come. Goes on over outages of
    /// the engine. Ends if the entry behind `after` is not kept any more.
    fn follow(&self, shard: u16, after: u64) -> mpsc::Receiver<Entry>;

    /// The value of a key; `None` if it has none.
    fn value(&self, key: Key) -> Answer<'_, Option<Value>>;

    /// Puts a value under a key, if the version that the key has is still `last` (0 for none). It is on a majority's disks
    /// before the answer.
    fn put(&self, key: Key, last: u64, bytes: Bytes, lasts: Lasts) -> Answer<'_, Put>;

    /// All values of a kind, by name, as they are now. Of one that changes meanwhile an earlier value may come; but none
    /// is left out.
    fn all(&self, kind: Kind) -> Answer<'_, Vec<(String, Value)>>;

    /// Brings the values of a kind, by name, and then their changes, each key's in order. They may come late.
    fn watch(&self, kind: Kind) -> mpsc::Receiver<(String, Value)>;

    /// Sends a message to all other nodes, or loses it.
    fn tell(&self, message: Bytes);

    /// Brings what other nodes tell. Called once.
    fn told(&self) -> mpsc::Receiver<Bytes>;

    /// Asks another node. Without an answer it is an error, after 2 s at most.
    fn ask(&self, node: &str, question: Bytes) -> Answer<'_, Bytes>;

    /// Brings what other nodes ask this one. Called once.
    fn asked(&self) -> mpsc::Receiver<Asked>;
}

/// Time that the next entry or value that is there may take.
pub(super) const ENTRY_TIMEOUT: Duration = Duration::from_secs(10);

/// An entry of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its number, higher than those before.
    pub number: u64,
    /// What was appended.
    pub bytes: Bytes,
}

/// What kind of thing a key names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// A session, by its client identifier.
    Session,
    /// A node, by its name.
    Node,
    /// A retained message, by its topic.
    Retained,
    /// What was noted of a log, by its number.
    Log,
}

/// For how long a value is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lasts {
    /// Until another is put in its place.
    Always,
    /// Nobody needs it after [`FORGOTTEN`]: the key may have no value from then on.
    AWhile,
}

/// The name of a value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// What it names.
    pub kind: Kind,
    /// Any text but an empty one.
    pub name: String,
}

impl Key {
    pub(super) fn new(kind: Kind, name: impl Into<String>) -> Self {
        let name = name.into();
        Self { kind, name }
    }
}

/// A value with its version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    /// Higher than those before.
    pub version: u64,
    /// What was put.
    pub bytes: Bytes,
}

/// What became of a [`put`](Engine::put).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// It is there, in this version.
    Done(u64),
    /// Somebody has put another value meanwhile.
    Conflict,
}

/// A question of another node.
#[derive(Debug)]
pub struct Asked {
    /// The question.
    pub question: Bytes,
    /// Where the answer goes; dropped for none.
    pub answer: oneshot::Sender<Bytes>,
}
