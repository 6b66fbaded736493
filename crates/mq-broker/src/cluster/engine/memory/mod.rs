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

use super::{
    Engine, EngineError, EngineFuture, Entry, Expiry, Key, KeyKind, NodeRequest, PutOutcome,
    ServerTime, Value,
};
use crate::lock::lock;
pub use world::{Faults, MemoryCopy, MemoryWorld};
use world::{Node, State, Trimmed};

/// Time for which a node waits for another one's reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Messages that wait in a channel, at most; [`broadcast`](Engine::broadcast) and others drop what finds no room.
const CHANNEL_CAPACITY: usize = 1_024;

/// The engine of one node in a [`MemoryWorld`].
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
    /// Kills the node: nothing that it does has any effect from here on, as after `kill -9`.
    pub fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        let mut state = lock(&self.world.state);
        if let Some(node) = state.nodes.get_mut(&self.node) {
            *node = Node::default();
        }
    }

    /// Returns `true` if nothing comes from the node or to it.
    fn is_cut_off(&self, state: &State) -> bool {
        let node = state.nodes.get(&self.node);
        self.is_dead.load(Ordering::Relaxed) || node.is_none_or(|node| node.is_partitioned)
    }

    /// Waits as long as the world is so.
    async fn wait_while(&self, is_so: impl Fn(&State) -> bool) {
        let mut changed = self.world.changed.subscribe();
        while is_so(&lock(&self.world.state)) {
            // The world outlives its engines.
            let _ = changed.changed().await;
        }
    }

    /// Waits as long as this node is there and is so.
    async fn wait_while_node(&self, is_so: impl Fn(&Node) -> bool) {
        let is_so = |state: &State| state.nodes.get(&self.node).is_some_and(&is_so);
        self.wait_while(is_so).await;
    }

    /// Waits for as long as a step takes, and while the node is cut off.
    async fn wait_for_network(&self) {
        let delay = lock(&self.world.state).random_delay();
        sleep(delay).await;
        self.wait_while(|state| self.is_cut_off(state)).await;
    }

    /// Does a step there and back, either of which may fail.
    async fn round_trip<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T, EngineError> {
        let lost = || EngineError::unavailable("lost on the way");
        self.wait_for_network().await;
        let done = {
            let mut state = lock(&self.world.state);
            if state.fails_at_random() {
                return Err(lost());
            }
            work(&mut state)
        };
        self.world.changed.send_modify(|count| *count += 1);
        self.wait_for_network().await;
        if lock(&self.world.state).fails_at_random() {
            return Err(lost());
        }
        Ok(done)
    }

    /// Sends what `next` finds, whenever there is more, until it finds an end.
    fn spawn_reader<T: Send + 'static>(
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
                here.wait_for_network().await;
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
        let shards = lock(&self.world.state).shared.logs.len();
        u16::try_from(shards).unwrap_or(u16::MAX)
    }

    fn max_value_bytes(&self) -> usize {
        let most = lock(&self.world.state).max_value_bytes;
        most.unwrap_or(usize::MAX)
    }

    fn append(&self, shard: u16, id: String, entry: Bytes) -> EngineFuture<'_, u64> {
        Box::pin(async move {
            self.wait_while(|state| state.shared.logs[usize::from(shard)].is_stalled)
                .await;
            let append = move |state: &mut State| {
                if state.is_full() {
                    return Err(EngineError::full("there is no room in memory"));
                }
                let log = &mut state.shared.logs[usize::from(shard)];
                let number = state.shared.entry_ids.entry((shard, id));
                Ok(*number.or_insert_with(|| log.append(entry)))
            };
            self.round_trip(append).await?
        })
    }

    fn last_entry(&self, shard: u16) -> EngineFuture<'_, u64> {
        Box::pin(self.round_trip(move |state| state.shared.logs[usize::from(shard)].last_number))
    }

    fn log_bytes(&self, shard: u16) -> EngineFuture<'_, u64> {
        Box::pin(self.round_trip(move |state| {
            let entries = state.shared.logs[usize::from(shard)].entries.iter();
            entries.map(|entry| entry.bytes.len() as u64).sum()
        }))
    }

    fn fill_percent(&self) -> EngineFuture<'_, Option<u8>> {
        Box::pin(self.round_trip(|state| state.fill_percent))
    }

    fn follow(&self, shard: u16, after: u64) -> mpsc::Receiver<Entry> {
        lock(&self.world.state).log_reads += 1;
        let mut last = after;
        let node = self.node.clone();
        self.spawn_reader(move |state| {
            let here = state.nodes.get(&node);
            if here.is_some_and(|node| node.lagging_logs.contains(&shard)) {
                return None;
            }
            let entry = match state.shared.logs[usize::from(shard)].entry_after(last) {
                Ok(entry) => entry?,
                Err(Trimmed) => return Some(None),
            };
            last = entry.number;
            Some(Some(entry.clone()))
        })
    }

    fn trim(&self, shard: u16, first: u64) -> EngineFuture<'_, ()> {
        Box::pin(self.round_trip(move |state| {
            let entries = &mut state.shared.logs[usize::from(shard)].entries;
            while entries.pop_front_if(|entry| entry.number < first).is_some() {}
        }))
    }

    fn get(&self, key: Key) -> EngineFuture<'_, Option<Value>> {
        Box::pin(self.round_trip(move |state| state.shared.values.get(&key).cloned()))
    }

    // All values last: there is no need to forget any.
    fn put(
        &self,
        key: Key,
        expected: u64,
        bytes: Bytes,
        _: Expiry,
    ) -> EngineFuture<'_, PutOutcome> {
        if bytes.len() > self.max_value_bytes() {
            let problem = format!("{} bytes are too many", bytes.len());
            return Box::pin(ready(Err(EngineError::unavailable(problem))));
        }
        let put = move |state: &mut State| {
            let known = state
                .shared
                .values
                .get(&key)
                .map_or(0, |value| value.version);
            if known != expected {
                return PutOutcome::Conflict;
            }
            state.shared.last_version += 1;
            let version = state.shared.last_version;
            state.shared.values.insert(key, Value { version, bytes });
            PutOutcome::Written(version)
        };
        Box::pin(async move {
            self.wait_while_node(|node| node.is_put_stalled).await;
            self.round_trip(put).await
        })
    }

    fn values(&self, kind: KeyKind) -> EngineFuture<'_, Vec<(String, Value)>> {
        let read = move |state: &mut State| {
            let values = state.shared.values.iter();
            let values = values.filter(|(key, _)| key.kind == kind);
            let values = values.map(|(key, value)| (key.name.clone(), value.clone()));
            values.collect()
        };
        Box::pin(async move {
            self.wait_while_node(|node| node.are_values_stalled).await;
            self.round_trip(read).await
        })
    }

    fn watch(&self, kind: KeyKind) -> mpsc::Receiver<(String, Value)> {
        let (mut seen, mut set_backs) = (0, 0);
        self.spawn_reader(move |state| {
            if state.set_backs != set_backs {
                // A reader of servers that have started again begins anew.
                (seen, set_backs) = (0, state.set_backs);
            }
            let values = state
                .shared
                .values
                .iter()
                .filter(|(key, _)| key.kind == kind);
            let next = values
                .filter(|(_, value)| value.version > seen)
                .min_by_key(|(_, value)| value.version);
            let (key, value) = next?;
            seen = value.version;
            Some(Some((key.name.clone(), value.clone())))
        })
    }

    fn broadcast(&self, message: Bytes) {
        let mut state = lock(&self.world.state);
        if self.is_cut_off(&state) {
            return;
        }
        let others = state.nodes.iter_mut();
        let others = others.filter(|(name, node)| **name != self.node && !node.is_partitioned);
        for (_, node) in others {
            node.deliver_broadcast(message.clone());
        }
    }

    fn send(&self, node: &str, message: Bytes) {
        let mut state = lock(&self.world.state);
        if self.is_cut_off(&state) {
            return;
        }
        if let Some(node) = state.nodes.get_mut(node)
            && !node.is_partitioned
        {
            node.sent += 1;
            node.deliver_broadcast(message);
        }
    }

    fn broadcasts(&self) -> mpsc::Receiver<Bytes> {
        let (sender, broadcasts) = mpsc::channel(CHANNEL_CAPACITY);
        if let Some(node) = lock(&self.world.state).nodes.get_mut(&self.node) {
            node.broadcasts = Some(sender);
        }
        broadcasts
    }

    fn request(&self, node: &str, payload: Bytes) -> EngineFuture<'_, Bytes> {
        let node = node.to_owned();
        Box::pin(async move {
            let silent = || EngineError::unavailable(format!("{node} does not answer"));
            let requests = self.round_trip(|state| {
                let peer = state.nodes.get(&node).filter(|node| !node.is_partitioned);
                peer.and_then(|node| node.requests.clone())
            });
            let requests = requests.await?.ok_or_else(silent)?;
            let (reply, replied) = oneshot::channel();
            requests
                .try_send(NodeRequest { payload, reply })
                .map_err(|_| silent())?;
            let replied = timeout(REQUEST_TIMEOUT, replied).await;
            let reply = replied.ok().and_then(Result::ok).ok_or_else(silent)?;
            self.round_trip(|_| reply).await
        })
    }

    fn server_times(&self) -> EngineFuture<'_, Vec<ServerTime>> {
        Box::pin(self.round_trip(|state| state.clocks.times()))
    }

    fn requests(&self) -> mpsc::Receiver<NodeRequest> {
        let (sender, requests) = mpsc::channel(CHANNEL_CAPACITY);
        if let Some(node) = lock(&self.world.state).nodes.get_mut(&self.node) {
            node.requests = Some(sender);
        }
        requests
    }
}
