//! The logs and values that the nodes of one process share, and their injected faults.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::{
    super::{Asked, Entry, Key, Value},
    MemoryEngine,
};
use crate::lock::lock;

/// What several brokers in one process share, as nodes of a cluster, apart from all of them: for tests and for
/// programs that embed brokers. It can be made as unreliable as a network.
#[derive(Debug)]
pub struct MemoryWorld {
    pub(super) state: Mutex<State>,
    /// Changes with each change of the state.
    pub(super) changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) logs: Vec<Log>,
    pub(super) ids: HashSet<(u16, String)>,
    pub(super) values: BTreeMap<Key, Value>,
    pub(super) version: u64,
    pub(super) nodes: HashMap<String, Node>,
    pub(super) faults: Faults,
    pub(super) random: u64,
    pub(super) reads: usize,
    pub(super) largest_value: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) entries: VecDeque<Entry>,
    /// The position of the last entry.
    pub(super) last: u64,
    /// Nothing can be appended for now.
    pub(super) is_stuck: bool,
    /// The number of an entry that comes only behind another one; 0 for none.
    pub(super) held_back: u64,
}

impl Log {
    pub(super) fn append(&mut self, bytes: Bytes) {
        self.last += 1;
        let number = self.last;
        self.entries.push_back(Entry { number, bytes });
    }

    /// The entry behind that number; an error if it is not kept any more.
    pub(super) fn behind(&self, number: u64) -> Result<Option<&Entry>, Trimmed> {
        let is_held_back = self.held_back == self.last;
        if number + u64::from(is_held_back) >= self.last {
            return Ok(None);
        }
        let first = self.last + 1 - self.entries.len() as u64;
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
    pub(super) is_cut: bool,
    /// Logs that bring it nothing for now.
    pub(super) lags: HashSet<u16>,
    /// While its link is stuck: what other nodes have told it. It comes when the link is well.
    pub(super) held_up: Option<Vec<Bytes>>,
    pub(super) told: Option<mpsc::Sender<Bytes>>,
    pub(super) asked: Option<mpsc::Sender<Asked>>,
}

/// The unreliability of a [`MemoryWorld`]; by default it has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The longest delay of each step.
    pub delay: Duration,
    /// Steps in a thousand that end in an error, after they were done or instead.
    pub errors: u64,
}

impl MemoryWorld {
    /// A world with so many logs. `seed` decides what happens by chance.
    #[must_use]
    pub fn new(shards: u16, seed: u64) -> Arc<Self> {
        let state = State {
            logs: vec![Log::default(); usize::from(shards)],
            random: seed,
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
        })
    }

    /// One node's way to it.
    #[must_use]
    pub fn engine(self: &Arc<Self>, node: &str) -> Arc<MemoryEngine> {
        lock(&self.state)
            .nodes
            .insert(node.to_owned(), Node::default());
        Arc::new(MemoryEngine {
            world: Arc::clone(self),
            node: node.to_owned(),
            is_dead: Arc::default(),
        })
    }

    /// From here on steps fail like that.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    /// A value has at most so many bytes.
    pub fn set_largest_value(&self, bytes: usize) {
        lock(&self.state).largest_value = Some(bytes);
    }

    /// The number of times that reading a log was begun.
    pub fn reads(&self) -> usize {
        lock(&self.state).reads
    }

    /// The number of entries that are kept, of all logs.
    pub fn entries(&self) -> usize {
        let state = lock(&self.state);
        state.logs.iter().map(|log| log.entries.len()).sum()
    }

    /// Has a log bring a node nothing more, or ends that: as one whose server has stopped.
    pub fn lag(&self, node: &str, shard: u16, lags: bool) {
        if let Some(node) = lock(&self.state).nodes.get_mut(node) {
            if lags {
                node.lags.insert(shard);
            } else {
                node.lags.remove(&shard);
            }
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// Holds up what other nodes tell a node, or brings all of it: as a link that is stuck for a while.
    pub fn hold_up(&self, node: &str, is_held_up: bool) {
        if let Some(node) = lock(&self.state).nodes.get_mut(node) {
            let held_up = is_held_up.then(Vec::new);
            let before = core::mem::replace(&mut node.held_up, held_up);
            for message in before.into_iter().flatten() {
                node.tell(message);
            }
        }
    }

    /// Has a log take nothing more, or ends that: as one whose servers have no majority.
    ///
    /// # Panics
    /// If there is no log of that number.
    pub fn stick(&self, shard: u16, is_stuck: bool) {
        lock(&self.state).logs[usize::from(shard)].is_stuck = is_stuck;
        self.changed.send_modify(|count| *count += 1);
    }

    /// Has the next entry of a log come only behind another one: as NATS may bring it when another server leads.
    ///
    /// # Panics
    /// If there is no log of that number.
    pub fn hold_back(&self, shard: u16) {
        let log = &mut lock(&self.state).logs[usize::from(shard)];
        log.held_back = log.last + 1;
    }

    /// Cuts a node off from all that is shared, or ends that.
    pub fn cut(&self, node: &str, is_cut: bool) {
        if let Some(node) = lock(&self.state).nodes.get_mut(node) {
            node.is_cut = is_cut;
        }
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Node {
    pub(super) fn tell(&mut self, message: Bytes) {
        if let Some(held_up) = &mut self.held_up {
            held_up.push(message);
        } else if let Some(told) = &self.told {
            // Or it is lost.
            let _ = told.try_send(message);
        }
    }
}

impl State {
    /// Returns a number below `bound`, by chance. `SplitMix64`, whose sequence no release of a library changes: a printed
    /// seed repeats its faults.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    pub(super) fn delay(&mut self) -> Duration {
        let most = u64::try_from(self.faults.delay.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.below(most))
    }

    pub(super) fn fails(&mut self) -> bool {
        let errors = self.faults.errors;
        self.below(1_000) < errors
    }
}
