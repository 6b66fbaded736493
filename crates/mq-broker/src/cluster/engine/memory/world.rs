//! The logs and values that the nodes of one process share, and their injected faults.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::{
    super::{Entry, Key, NodeRequest, ServerTime, Value},
    MemoryEngine,
};
use crate::{clock, lock::lock};

/// The logs and values that several brokers of one process share, as nodes of a cluster: for tests and for programs
/// that embed brokers. It can be made as unreliable as a network.
#[derive(Debug)]
pub struct MemoryWorld {
    pub(super) state: Mutex<State>,
    /// Changes with each change of the state.
    pub(super) changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) shared: Shared,
    /// The number of times that it was set back to a copy.
    pub(super) set_backs: u64,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) faults: Faults,
    pub(super) rng: u64,
    pub(super) log_reads: usize,
    pub(super) max_value_bytes: Option<usize>,
    /// The part of the storage that is in use, in percent; `None` if it has no end.
    pub(super) fill_percent: Option<u8>,
    pub(super) clocks: ServerClocks,
}

/// The clocks of the servers.
#[derive(Debug)]
pub(super) struct ServerClocks {
    /// An instant, and the right time then.
    began: (Instant, SystemTime),
    /// Seconds by which each clock is ahead of the right time.
    ahead_s: Vec<u64>,
}

impl Default for ServerClocks {
    fn default() -> Self {
        Self {
            began: (clock::now(), SystemTime::now()),
            ahead_s: vec![0],
        }
    }
}

impl ServerClocks {
    fn time_at(&self, instant: Instant) -> SystemTime {
        let (began, time) = self.began;
        time + instant.saturating_duration_since(began)
    }

    pub(super) fn times(&self) -> Vec<ServerTime> {
        let at = clock::now();
        let clocks = self.ahead_s.iter().enumerate();
        let times = clocks.map(|(n, ahead_s)| ServerTime {
            server: format!("server-{n}"),
            time: self.time_at(at) + Duration::from_secs(*ahead_s),
            at,
        });
        times.collect()
    }
}

/// Logs and values: the part of the state that servers of a real cluster have on their disks.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    pub(super) logs: Vec<Log>,
    /// The numbers of the entries, by log and identifier.
    pub(super) entry_ids: HashMap<(u16, String), u64>,
    pub(super) values: BTreeMap<Key, Value>,
    pub(super) last_version: u64,
}

/// A copy of everything that a [`MemoryWorld`] shares, as a back-up of the servers.
#[derive(Clone, Debug)]
pub struct MemoryCopy(Shared);

#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) entries: VecDeque<Entry>,
    /// The position of the last entry.
    pub(super) last_number: u64,
    /// `true` if nothing can be appended for now.
    pub(super) is_stalled: bool,
    /// The number of an entry that comes only behind another one; 0 for none.
    pub(super) delayed_entry: u64,
}

impl Log {
    pub(super) fn append(&mut self, bytes: Bytes) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        self.entries.push_back(Entry { number, bytes });
        number
    }

    /// Returns the entry after that number, if there is one; an error if it is not kept any more.
    pub(super) fn entry_after(&self, number: u64) -> Result<Option<&Entry>, Trimmed> {
        let is_delayed = self.delayed_entry == self.last_number;
        if number + u64::from(is_delayed) >= self.last_number {
            return Ok(None);
        }
        let first = self.last_number + 1 - self.entries.len() as u64;
        let index = (number + 1).checked_sub(first).ok_or(Trimmed)?;
        Ok(usize::try_from(index)
            .ok()
            .and_then(|index| self.entries.get(index)))
    }
}

/// An entry is not kept any more.
pub(super) struct Trimmed;

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) is_partitioned: bool,
    /// `true` if what the node puts is not written for now.
    pub(super) is_put_stalled: bool,
    /// `true` if the node does not get all values of a kind for now.
    pub(super) are_values_stalled: bool,
    /// Logs that bring it nothing for now.
    pub(super) lagging_logs: HashSet<u16>,
    /// Broadcasts of other nodes that wait while the node's link is stalled; `None` if it is not.
    pub(super) stalled_broadcasts: Option<Vec<Bytes>>,
    pub(super) broadcasts: Option<mpsc::Sender<Bytes>>,
    /// Messages that other nodes have sent to it, apart from broadcasts.
    pub(super) sent: usize,
    pub(super) requests: Option<mpsc::Sender<NodeRequest>>,
}

/// The unreliability of a [`MemoryWorld`]; by default it has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The longest delay of each step.
    pub max_delay: Duration,
    /// Steps in a thousand that end in an error, after they were done or instead.
    pub errors_per_thousand: u64,
}

impl MemoryWorld {
    /// Makes a world with so many logs. `seed` decides what happens by chance.
    #[must_use]
    pub fn new(shards: u16, seed: u64) -> Arc<Self> {
        let state = State {
            shared: Shared {
                logs: vec![Log::default(); usize::from(shards)],
                ..Shared::default()
            },
            rng: seed,
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
        })
    }

    /// Returns the engine of a node.
    #[must_use]
    pub fn engine(self: &Arc<Self>, node: &str) -> Arc<MemoryEngine> {
        lock(&self.state).nodes.entry(node.to_owned()).or_default();
        Arc::new(MemoryEngine {
            world: Arc::clone(self),
            node: node.to_owned(),
            is_dead: Arc::default(),
        })
    }

    /// Sets the faults of all calls from here on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    /// Sets the largest size of a value, in bytes.
    pub fn set_max_value_bytes(&self, bytes: usize) {
        lock(&self.state).max_value_bytes = Some(bytes);
    }

    /// Sets the part of the storage that is in use, in percent: from 100 on nothing can be appended. `None` if it has no
    /// end, as at first.
    pub fn set_fill_percent(&self, percent: Option<u8>) {
        lock(&self.state).fill_percent = percent;
    }

    /// Returns how often a node began to read a log.
    pub fn log_reads(&self) -> usize {
        lock(&self.state).log_reads
    }

    /// Returns how many messages other nodes have sent to a node, apart from broadcasts.
    pub fn sent_to(&self, node: &str) -> usize {
        let state = lock(&self.state);
        state.nodes.get(node).map_or(0, |node| node.sent)
    }

    /// Returns the number of entries that are kept, of all logs.
    pub fn entry_count(&self) -> usize {
        let state = lock(&self.state);
        state.shared.logs.iter().map(|log| log.entries.len()).sum()
    }

    /// Returns a copy of all logs and values.
    pub fn copy(&self) -> MemoryCopy {
        MemoryCopy(lock(&self.state).shared.clone())
    }

    /// Puts a copy in the place of all logs and values, as if the servers were restored while the nodes live.
    pub fn set_back(&self, to: &MemoryCopy) {
        let mut state = lock(&self.state);
        state.shared = to.0.clone();
        state.set_backs += 1;
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Puts a copy in the place of all logs, and leaves the values as they are.
    pub fn set_logs_back(&self, to: &MemoryCopy) {
        let mut state = lock(&self.state);
        state.shared.logs.clone_from(&to.0.logs);
        state.shared.entry_ids.clone_from(&to.0.entry_ids);
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Loses the entries that the logs have got since a copy, but not their numbers: as servers whose disks are damaged.
    pub fn lose_entries_since(&self, copy: &MemoryCopy) {
        let mut state = lock(&self.state);
        for (log, copied) in state.shared.logs.iter_mut().zip(&copy.0.logs) {
            let new = |entry: &&mut Entry| entry.number > copied.last_number;
            for entry in log.entries.iter_mut().filter(new) {
                *entry = Entry::lost(entry.number);
            }
        }
    }

    /// Puts a copy in the place of all values, and leaves the logs as they are.
    pub fn set_values_back(&self, to: &MemoryCopy) {
        let mut state = lock(&self.state);
        state.shared.values.clone_from(&to.0.values);
        state.shared.last_version = to.0.last_version;
        state.set_backs += 1;
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Stops a node's entries of a log, or lets them through again: as if its server had stopped.
    pub fn set_lagging(&self, node: &str, shard: u16, is_lagging: bool) {
        if let Some(node) = lock(&self.state).nodes.get_mut(node) {
            if is_lagging {
                node.lagging_logs.insert(shard);
            } else {
                node.lagging_logs.remove(&shard);
            }
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// Holds the broadcasts to a node back, or delivers all of them: as a link that is stuck for a while.
    pub fn set_link_stalled(&self, node: &str, is_stalled: bool) {
        if let Some(node) = lock(&self.state).nodes.get_mut(node) {
            let stalled_broadcasts = is_stalled.then(Vec::new);
            let before = core::mem::replace(&mut node.stalled_broadcasts, stalled_broadcasts);
            for message in before.into_iter().flatten() {
                node.deliver_broadcast(message);
            }
        }
    }

    /// Lets a node's puts wait, or go on: as behind thousands of others.
    pub fn set_puts_stalled(&self, node: &str, is_stalled: bool) {
        if let Some(node) = lock(&self.state).nodes.get_mut(node) {
            node.is_put_stalled = is_stalled;
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// Lets a node's reads of all values of a kind wait, or go on: as if there were a million of them.
    pub fn set_values_stalled(&self, node: &str, are_stalled: bool) {
        if let Some(node) = lock(&self.state).nodes.get_mut(node) {
            node.are_values_stalled = are_stalled;
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// Stops all appends to a log, or lets them through again: as if its servers had no majority.
    ///
    /// # Panics
    /// If there is no log of that number.
    pub fn set_log_stalled(&self, shard: u16, is_stalled: bool) {
        lock(&self.state).shared.logs[usize::from(shard)].is_stalled = is_stalled;
        self.changed.send_modify(|count| *count += 1);
    }

    /// Delays the next entry of a log until another one is appended: as NATS may deliver it after a change of leader.
    ///
    /// # Panics
    /// If there is no log of that number.
    pub fn delay_next_entry(&self, shard: u16) {
        let log = &mut lock(&self.state).shared.logs[usize::from(shard)];
        log.delayed_entry = log.last_number + 1;
    }

    /// Sets the clocks of the servers: one server for each number of seconds by which its clock is ahead of the right
    /// time. By default there is one, whose clock is right.
    pub fn set_server_clocks(&self, ahead_s: &[u64]) {
        ahead_s.clone_into(&mut lock(&self.state).clocks.ahead_s);
    }

    /// Sets the right time, by default that of the system, so that a run can be repeated.
    pub fn set_time(&self, time: SystemTime) {
        lock(&self.state).clocks.began = (clock::now(), time);
    }

    /// Returns the right time.
    pub fn time(&self) -> SystemTime {
        lock(&self.state).clocks.time_at(clock::now())
    }

    /// Cuts a node off from all that is shared, or ends that.
    pub fn set_partitioned(&self, node: &str, is_partitioned: bool) {
        if let Some(node) = lock(&self.state).nodes.get_mut(node) {
            node.is_partitioned = is_partitioned;
        }
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Node {
    pub(super) fn deliver_broadcast(&mut self, message: Bytes) {
        if let Some(stalled_broadcasts) = &mut self.stalled_broadcasts {
            stalled_broadcasts.push(message);
        } else if let Some(broadcasts) = &self.broadcasts {
            // Or it is lost.
            let _ = broadcasts.try_send(message);
        }
    }
}

impl State {
    /// Returns a number below `bound`, by chance. `SplitMix64`, whose sequence no release of a library changes: a printed
    /// seed repeats its faults.
    pub(super) fn random_below(&mut self, bound: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.rng;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    pub(super) fn random_delay(&mut self) -> Duration {
        let most = u64::try_from(self.faults.max_delay.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.random_below(most))
    }

    pub(super) fn is_full(&self) -> bool {
        self.fill_percent.is_some_and(|percent| percent >= 100)
    }

    pub(super) fn fails_at_random(&mut self) -> bool {
        let errors = self.faults.errors_per_thousand;
        self.random_below(1_000) < errors
    }
}
