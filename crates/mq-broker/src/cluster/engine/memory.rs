//! The engine that lives as long as the process.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt,
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{sleep, timeout},
};

use super::{Answer, Asked, Engine, EngineError, Entry, Key, Kind, Lasts, Put, Value};
use crate::lock::lock;

/// How long a node waits for another's answer.
const ANSWERED: Duration = Duration::from_secs(2);

/// What [`tell`](Engine::tell) and others may have on their way, in messages.
const ON_THE_WAY: usize = 1_024;

/// What several brokers in one process share, as nodes of a cluster, apart from all of them: for tests and for
/// programs that embed brokers. It can be made as unreliable as a network.
#[derive(Debug)]
pub struct MemoryWorld {
    state: Mutex<State>,
    /// Changes with each change of the state.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    logs: Vec<Log>,
    ids: HashSet<(u16, String)>,
    values: BTreeMap<Key, Value>,
    version: u64,
    nodes: HashMap<String, Node>,
    faults: Faults,
    random: u64,
    reads: usize,
    largest_value: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct Log {
    entries: VecDeque<Entry>,
    /// Of the last one.
    last: u64,
    /// Nothing can be appended for now.
    is_stuck: bool,
    /// The number of an entry that comes only behind another one; 0 for none.
    held_back: u64,
}

impl Log {
    fn append(&mut self, bytes: Bytes) {
        self.last += 1;
        let number = self.last;
        self.entries.push_back(Entry { number, bytes });
    }

    /// The entry behind that number; an error if it is not kept any more.
    fn behind(&self, number: u64) -> Result<Option<&Entry>, Trimmed> {
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
struct Trimmed;

#[derive(Debug, Default)]
struct Node {
    is_cut: bool,
    /// Logs that bring it nothing for now.
    lags: HashSet<u16>,
    /// While its link is stuck: what other nodes have told it. It comes when the link is well.
    held_up: Option<Vec<Bytes>>,
    told: Option<mpsc::Sender<Bytes>>,
    asked: Option<mpsc::Sender<Asked>>,
}

/// How unreliable a [`MemoryWorld`] is. Default: not at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The longest delay of each step.
    pub delay: Duration,
    /// Of a thousand steps so many end in an error, after they were done or instead.
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

    /// How often reading a log was begun.
    pub fn reads(&self) -> usize {
        lock(&self.state).reads
    }

    /// How many entries are kept, of all logs.
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
    fn tell(&mut self, message: Bytes) {
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
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    fn delay(&mut self) -> Duration {
        let most = u64::try_from(self.faults.delay.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.below(most))
    }

    fn fails(&mut self) -> bool {
        let errors = self.faults.errors;
        self.below(1_000) < errors
    }
}

/// One node's way to a [`MemoryWorld`].
pub struct MemoryEngine {
    world: Arc<MemoryWorld>,
    node: String,
    is_dead: Arc<AtomicBool>,
}

impl fmt::Debug for MemoryEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryEngine")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl MemoryEngine {
    /// Nothing that its node does has any effect from here on, as after `kill -9`.
    pub fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        let mut state = lock(&self.world.state);
        if let Some(node) = state.nodes.get_mut(&self.node) {
            *node = Node::default();
        }
    }

    /// Waits for as long as a step takes, and while the node is cut off.
    async fn pass(&self) {
        let mut changed = self.world.changed.subscribe();
        let delay = lock(&self.world.state).delay();
        sleep(delay).await;
        loop {
            let is_cut = {
                let state = lock(&self.world.state);
                let node = state.nodes.get(&self.node);
                self.is_dead.load(Ordering::Relaxed) || node.is_none_or(|node| node.is_cut)
            };
            if !is_cut {
                return;
            }
            // The world outlives its engines.
            let _ = changed.changed().await;
        }
    }

    /// Does a step there and back, either of which may fail.
    async fn step<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T, EngineError> {
        let lost = || EngineError::unavailable("lost on the way");
        self.pass().await;
        let done = {
            let mut state = lock(&self.world.state);
            if state.fails() {
                return Err(lost());
            }
            work(&mut state)
        };
        self.world.changed.send_modify(|count| *count += 1);
        self.pass().await;
        if lock(&self.world.state).fails() {
            return Err(lost());
        }
        Ok(done)
    }

    /// Sends what `next` finds, whenever there is more, until it finds an end.
    fn bring<T: Send + 'static>(
        &self,
        mut next: impl FnMut(&State) -> Option<Option<T>> + Send + 'static,
    ) -> mpsc::Receiver<T> {
        let (bring, brought) = mpsc::channel(16);
        let here = Self {
            world: Arc::clone(&self.world),
            node: self.node.clone(),
            is_dead: Arc::clone(&self.is_dead),
        };
        tokio::spawn(async move {
            let mut changed = here.world.changed.subscribe();
            loop {
                here.pass().await;
                changed.borrow_and_update();
                let found = next(&lock(&here.world.state));
                let Some(found) = found else {
                    tokio::select! {
                        () = bring.closed() => return,
                        _ = changed.changed() => continue,
                    }
                };
                let Some(found) = found else {
                    return;
                };
                if bring.send(found).await.is_err() {
                    return;
                }
            }
        });
        brought
    }
}

impl Engine for MemoryEngine {
    fn shards(&self) -> u16 {
        let shards = lock(&self.world.state).logs.len();
        u16::try_from(shards).unwrap_or(u16::MAX)
    }

    fn largest_value(&self) -> usize {
        let most = lock(&self.world.state).largest_value;
        most.unwrap_or(usize::MAX)
    }

    fn append(&self, shard: u16, id: String, entry: Bytes) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut changed = self.world.changed.subscribe();
            while lock(&self.world.state).logs[usize::from(shard)].is_stuck {
                // The world outlives its engines.
                let _ = changed.changed().await;
            }
            let append = move |state: &mut State| {
                if state.ids.insert((shard, id)) {
                    state.logs[usize::from(shard)].append(entry);
                }
            };
            self.step(append).await
        })
    }

    fn end(&self, shard: u16) -> Answer<'_, u64> {
        Box::pin(self.step(move |state| state.logs[usize::from(shard)].last))
    }

    fn bytes(&self, shard: u16) -> Answer<'_, u64> {
        Box::pin(self.step(move |state| {
            let entries = state.logs[usize::from(shard)].entries.iter();
            entries.map(|entry| entry.bytes.len() as u64).sum()
        }))
    }

    fn follow(&self, shard: u16, after: u64) -> mpsc::Receiver<Entry> {
        lock(&self.world.state).reads += 1;
        let mut last = after;
        let node = self.node.clone();
        self.bring(move |state| {
            let here = state.nodes.get(&node);
            if here.is_some_and(|node| node.lags.contains(&shard)) {
                return None;
            }
            let entry = match state.logs[usize::from(shard)].behind(last) {
                Ok(entry) => entry?,
                Err(Trimmed) => return Some(None),
            };
            last = entry.number;
            Some(Some(entry.clone()))
        })
    }

    fn trim(&self, shard: u16, first: u64) -> Answer<'_, ()> {
        Box::pin(self.step(move |state| {
            let entries = &mut state.logs[usize::from(shard)].entries;
            while entries.pop_front_if(|entry| entry.number < first).is_some() {}
        }))
    }

    fn value(&self, key: Key) -> Answer<'_, Option<Value>> {
        Box::pin(self.step(move |state| state.values.get(&key).cloned()))
    }

    // All values last: there is no need to forget any.
    fn put(&self, key: Key, last: u64, bytes: Bytes, _: Lasts) -> Answer<'_, Put> {
        if bytes.len() > self.largest_value() {
            let problem = format!("{} bytes are too many", bytes.len());
            return Box::pin(ready(Err(EngineError::unavailable(problem))));
        }
        Box::pin(self.step(move |state| {
            let known = state.values.get(&key).map_or(0, |value| value.version);
            if known != last {
                return Put::Conflict;
            }
            state.version += 1;
            let version = state.version;
            state.values.insert(key, Value { version, bytes });
            Put::Done(version)
        }))
    }

    fn all(&self, kind: Kind) -> Answer<'_, Vec<(String, Value)>> {
        Box::pin(self.step(move |state| {
            let values = state.values.iter().filter(|(key, _)| key.kind == kind);
            let values = values.map(|(key, value)| (key.name.clone(), value.clone()));
            values.collect()
        }))
    }

    fn watch(&self, kind: Kind) -> mpsc::Receiver<(String, Value)> {
        let mut seen = 0;
        self.bring(move |state| {
            let values = state.values.iter().filter(|(key, _)| key.kind == kind);
            let next = values
                .filter(|(_, value)| value.version > seen)
                .min_by_key(|(_, value)| value.version);
            let (key, value) = next?;
            seen = value.version;
            Some(Some((key.name.clone(), value.clone())))
        })
    }

    fn tell(&self, message: Bytes) {
        if self.is_dead.load(Ordering::Relaxed) {
            return;
        }
        let mut state = lock(&self.world.state);
        if state.nodes.get(&self.node).is_none_or(|node| node.is_cut) {
            return;
        }
        let others = state.nodes.iter_mut();
        let others = others.filter(|(name, node)| **name != self.node && !node.is_cut);
        for (_, node) in others {
            node.tell(message.clone());
        }
    }

    fn told(&self) -> mpsc::Receiver<Bytes> {
        let (tell, told) = mpsc::channel(ON_THE_WAY);
        if let Some(node) = lock(&self.world.state).nodes.get_mut(&self.node) {
            node.told = Some(tell);
        }
        told
    }

    fn ask(&self, node: &str, question: Bytes) -> Answer<'_, Bytes> {
        let node = node.to_owned();
        Box::pin(async move {
            let silent = || EngineError::unavailable(format!("{node} does not answer"));
            let asked = self.step(|state| {
                let asked = state.nodes.get(&node).filter(|node| !node.is_cut);
                asked.and_then(|node| node.asked.clone())
            });
            let asked = asked.await?.ok_or_else(silent)?;
            let (answer, answered) = oneshot::channel();
            asked
                .try_send(Asked { question, answer })
                .map_err(|_| silent())?;
            let answered = timeout(ANSWERED, answered).await;
            let answer = answered.ok().and_then(Result::ok).ok_or_else(silent)?;
            self.step(|_| answer).await
        })
    }

    fn asked(&self) -> mpsc::Receiver<Asked> {
        let (ask, asked) = mpsc::channel(ON_THE_WAY);
        if let Some(node) = lock(&self.world.state).nodes.get_mut(&self.node) {
            node.asked = Some(ask);
        }
        asked
    }
}
