//! Logs of messages: entries, their way into a log and out of it, and what follows from a log alone.

mod append;
mod arrival_marks;
mod author;
mod checkpoint;
mod empty_entries;
mod entry;
mod fences;
mod follow;
mod groups;
mod ledger;
mod log_state;
mod milestone;
mod progress;
mod qos0;
mod recent;
mod set_back;
mod set_backs;
mod storage;
mod sync;
mod trail;

pub(super) use append::{Shard, hash_partition};
pub(super) use arrival_marks::ArrivalMarks;
pub(super) use author::Author;
pub(super) use checkpoint::{checkpoint_key, load_checkpoints};
pub(super) use entry::{BatchItem, LogEntry, LogMessage};
pub(super) use fences::Fences;
pub(super) use groups::Membership;
pub(super) use ledger::Ledger;
pub(super) use log_state::{BatchCounts, Checkpoint};
pub(super) use storage::Storage;
pub(super) use sync::LOG_SILENCE_TIMEOUT;
