//! The engine that lives as long as the process.

mod world;

use std::{
    fmt,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{Answer, Asked, Engine, EngineError, Entry, Key, Kind, Lasts, Put, Value};
use crate::lock::lock;
pub use world::{Faults, MemoryWorld};
use world::{Node, State, Trimmed};

/// How long a node waits for another's answer.
const ANSWERED: Duration = Duration::from_secs(2);

/// What [`tell`](Engine::tell) and others may have on their way, in messages.
const ON_THE_WAY: usize = 1_024;

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
