//! The servers' storage, and the refusal of messages while it is full.
//!
//! The storage is full if the servers refuse something, or before: what the logs leave is for the records of sessions, without
//! which readers could not go on, and no client could connect. Once a server has refused something, messages are refused
//! without a try: the node itself tries each log until it takes something.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, error, info, warn};

use crate::{
    cluster::{Cluster, engine::EngineError},
    lock::lock,
};

/// Part of the storage, in percent, from which on the log warns.
const WARN_PERCENT: u8 = 80;

/// Part of the storage, in percent, from which on messages are refused.
const REFUSE_PERCENT: u8 = 95;

/// Interval at which a node asks how full the storage is.
const STORAGE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The interval from [`WARN_PERCENT`] on, and that at which logs are tried that have refused something.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// State of the servers' storage, as a node knows it.
#[derive(Debug)]
pub(in crate::cluster) struct Storage {
    /// The number of logs.
    shards: u16,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The part that is in use, in percent, if it is known.
    percent: Option<u8>,
    /// Logs that have taken nothing since the servers refused something, of whichever log or of the values.
    refused: BTreeSet<u16>,
    /// The time since which it is full, with the number of messages that were refused since.
    full: Option<(Instant, u64)>,
    has_warned: bool,
}

impl Storage {
    pub(in crate::cluster) fn new(shards: usize) -> Self {
        Self {
            shards: u16::try_from(shards).unwrap_or(u16::MAX),
            state: Mutex::default(),
        }
    }

    /// Returns the part that is in use, in percent, if it is known.
    pub(in crate::cluster) fn percent(&self) -> Option<u8> {
        lock(&self.state).percent
    }

    /// Returns `true` if messages are refused, of some logs at least.
    pub(in crate::cluster) fn is_full(&self) -> bool {
        lock(&self.state).full.is_some()
    }

    fn is_nearly_full(&self) -> bool {
        let percent = self.percent();
        percent.is_some_and(|percent| percent >= WARN_PERCENT)
    }

    /// Returns `true` if messages for a log are refused.
    pub(super) fn refuses(&self, shard: u16) -> bool {
        let state = lock(&self.state);
        state.is_over_limit() || state.refused.contains(&shard)
    }

    pub(super) fn count_refused(&self, messages: u64) {
        if let Some((_, refused)) = &mut lock(&self.state).full {
            *refused += messages;
        }
    }

    /// Notes that the servers have refused something for want of room. The others of them have no more, mostly.
    pub(in crate::cluster) fn note_refusal(&self, error: &EngineError) {
        let mut state = lock(&self.state);
        state.refused.extend(0..self.shards);
        state.note_change(Some(error));
    }

    /// Notes that a log has taken something.
    pub(super) fn note_room(&self, shard: u16) {
        let mut state = lock(&self.state);
        if state.refused.remove(&shard) {
            state.note_change(None);
        }
    }

    fn refused(&self) -> BTreeSet<u16> {
        lock(&self.state).refused.clone()
    }

    fn note_percent(&self, percent: Option<u8>) {
        let mut state = lock(&self.state);
        state.percent = percent;
        let is_high = percent.is_some_and(|percent| percent >= WARN_PERCENT);
        if is_high && !state.has_warned {
            warn!(
                percent,
                refused_from = REFUSE_PERCENT,
                "cluster: storage nearly full"
            );
        }
        state.has_warned = is_high;
        state.note_change(None);
    }
}

impl State {
    fn is_over_limit(&self) -> bool {
        let percent = self.percent;
        percent.is_some_and(|percent| percent >= REFUSE_PERCENT)
    }

    /// Writes a line if the storage has become full, or has room again.
    fn note_change(&mut self, error: Option<&EngineError>) {
        let is_full = !self.refused.is_empty() || self.is_over_limit();
        match self.full {
            None if is_full => {
                self.full = Some((Instant::now(), 0));
                let error = error.map(tracing::field::display);
                error!(
                    percent = self.percent,
                    error, "cluster: storage full; messages of QoS 1 and 2 are refused"
                );
            }
            Some((since, refused)) if !is_full => {
                self.full = None;
                let seconds = since.elapsed().as_secs();
                info!(refused, seconds, "cluster: storage has room again");
            }
            _ => {}
        }
    }
}

impl Cluster {
    /// Asks how full the storage is, as long as the node lives, and tries logs that have refused something.
    pub(in crate::cluster) async fn watch_storage(self: Arc<Self>) {
        let mut ticks = interval(PROBE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = Instant::now();
        let mut is_first = true;
        loop {
            ticks.tick().await;
            if self.storage.is_nearly_full() || due <= Instant::now() {
                due = Instant::now() + STORAGE_CHECK_INTERVAL;
                match self.engine.fill_percent().await {
                    Ok(None) if core::mem::take(&mut is_first) => {
                        info!("cluster: storage limit unknown; set store_max_bytes");
                    }
                    Ok(percent) => self.storage.note_percent(percent),
                    // What was known stands: logs of a full server have no leader, which could be asked.
                    Err(error) => debug!(%error, "cluster: cannot read storage usage"),
                }
            }
            for shard in self.storage.refused() {
                if self.append_empty_entry(shard).await.is_ok() {
                    self.storage.note_room(shard);
                }
            }
        }
    }
}
