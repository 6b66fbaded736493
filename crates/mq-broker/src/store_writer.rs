//! The way of changes into the store, and the count of those that it has not settled yet.
//!
//! ```text
//!  journals --record--> StoreWriter --record--> Store
//!                          |   ^                  |
//!        memory, age <-----+   +---- settled -----+
//! ```
//!
//! A store settles in its own time: a disk may take seconds for a commit, or hang. Until then it holds the messages of
//! all changes that it was given. They count against the memory of all clients, in a part of their own: once that part
//! is full, clients whose messages the store has to keep are not read ([`StoreWriter::is_full`]).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mq_proto::Message;
use tokio::{sync::watch, time::MissedTickBehavior};
use tracing::{info, warn};

use crate::{
    clock,
    lock::lock,
    memory_limit::{MemoryLimit, message_weight},
    metrics::DurationHistogram,
    store::{Change, Position, SessionChange, Store},
};

/// Bytes from which on messages are copied out of the buffers that they were read into before they are recorded: a
/// store this far behind would keep the buffers, with whatever else they hold.
const COPY_FROM: usize = 256 * 1024;

/// Interval at which the age of the oldest unsettled change is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The ages of the oldest unsettled change at which the broker reports its store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StorePatience {
    /// Age from which on the broker is not ready for clients, and logs it. Default 5 s.
    pub not_ready_after: Duration,
    /// Age from which on the broker is not healthy, so that a supervisor may start it again. Default 60 s.
    pub unhealthy_after: Duration,
}

impl Default for StorePatience {
    fn default() -> Self {
        Self {
            not_ready_after: Duration::from_secs(5),
            unhealthy_after: Duration::from_mins(1),
        }
    }
}

/// Records changes in a store, and knows which of them are not settled.
#[derive(Debug)]
pub(crate) struct StoreWriter {
    store: Arc<dyn Store>,
    settled: watch::Receiver<Position>,
    unsettled: Mutex<Unsettled>,
    memory: MemoryLimit,
    patience: StorePatience,
    /// Time from the recording of a change until it was settled, of the oldest one of each commit.
    pub(crate) settling_times: DurationHistogram,
}

/// Calls of the store that are not settled, in the order of their positions but for calls of several threads at the same
/// time. Bounded by their bytes, see [`StoreWriter::is_full`].
#[derive(Debug, Default)]
struct Unsettled {
    calls: VecDeque<Call>,
    messages: usize,
}

#[derive(Debug)]
struct Call {
    position: Position,
    since: Instant,
    bytes: usize,
    messages: usize,
}

impl StoreWriter {
    /// Makes the way into `store`; what it has not settled counts in `memory`, a part of that of all clients.
    pub(crate) fn new(store: Arc<dyn Store>, memory: MemoryLimit, patience: StorePatience) -> Self {
        Self {
            settled: store.settled(),
            store,
            unsettled: Mutex::default(),
            memory,
            patience,
            settling_times: DurationHistogram::default(),
        }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Records changes that belong together.
    pub(crate) fn record(&self, changes: Vec<Change>) -> Position {
        let (bytes, messages) = weight(&changes);
        let since = clock::now();
        let position = self.store.record(changes);
        self.add(Call {
            position,
            since,
            bytes,
            messages,
        });
        position
    }

    /// Counts a message that a cluster appends to a log, until it is settled.
    pub(crate) fn note_appended(&self, position: Position, message: &Message) {
        self.add(Call {
            position,
            since: clock::now(),
            bytes: size_of::<Call>() + message_weight(message),
            messages: 1,
        });
    }

    fn add(&self, call: Call) {
        let mut unsettled = lock(&self.unsettled);
        // Below the lock: nobody finds memory in use that settled calls have, and waits for a settled call.
        self.memory.take_anyway(call.bytes);
        unsettled.messages += call.messages;
        unsettled.calls.push_back(call);
        self.forget_settled(&mut unsettled);
    }

    /// Returns `true` if unsettled changes hold all memory that is for them: no more messages are to be read which the
    /// store has to keep.
    pub(crate) fn is_full(&self) -> bool {
        let is_full =
            || self.memory.left() == 0 || (self.is_behind() && self.memory.is_whole_full());
        if !is_full() {
            return false;
        }
        self.forget_settled(&mut lock(&self.unsettled));
        is_full()
    }

    /// Returns `true` if the store is so far behind that what is recorded has to be in memory of its own.
    pub(crate) fn is_behind(&self) -> bool {
        self.memory.used() >= COPY_FROM
    }

    /// Returns the time for which the oldest unsettled change has waited.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let mut unsettled = lock(&self.unsettled);
        self.forget_settled(&mut unsettled);
        let oldest = unsettled.calls.front()?;
        Some(clock::now().saturating_duration_since(oldest.since))
    }

    /// Returns the number of messages that are not settled.
    pub(crate) fn unsettled_messages(&self) -> usize {
        let mut unsettled = lock(&self.unsettled);
        self.forget_settled(&mut unsettled);
        unsettled.messages
    }

    /// Resolves to `true` when everything that was recorded until now is settled, and to `false` if the store has
    /// failed.
    pub(crate) async fn all_settled(&self) -> bool {
        let last = lock(&self.unsettled)
            .calls
            .iter()
            .map(|call| call.position)
            .max();
        let Some(last) = last else { return true };
        let mut settled = self.settled.clone();
        settled.wait_for(|settled| *settled >= last).await.is_ok()
    }

    /// Returns the reason why the broker is not to be given clients, if there is one.
    pub(crate) fn why_not_ready(&self) -> Option<String> {
        self.why_not_within(self.patience.not_ready_after)
    }

    /// Returns the reason why the broker has to be started again, if there is one.
    pub(crate) fn why_not_healthy(&self) -> Option<String> {
        self.why_not_within(self.patience.unhealthy_after)
    }

    fn has_failed(&self) -> bool {
        self.settled.has_changed().is_err()
    }

    fn why_not_within(&self, limit: Duration) -> Option<String> {
        if self.has_failed() {
            return Some("the store has failed".to_owned());
        }
        let oldest = self.oldest()?;
        let seconds = oldest.as_secs();
        (oldest >= limit).then(|| format!("the store has not written for {seconds} s"))
    }

    /// Logs when the store begins to be slow and when that is over, and forgets what it has settled. Runs until the
    /// store has failed.
    pub(crate) async fn watch(&self) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Time of the first look at which the store was slow, and the age of its oldest change then.
        let mut slow = None;
        while !self.has_failed() {
            let now = looks.tick().await;
            let oldest = self.oldest().unwrap_or_default();
            match slow {
                None if oldest >= self.patience.not_ready_after => {
                    slow = Some((now, oldest));
                    let messages = self.unsettled_messages();
                    let oldest_s = oldest.as_secs();
                    warn!(oldest_s, messages, "store: changes wait for the disk");
                }
                Some((since, age)) if oldest < self.patience.not_ready_after => {
                    slow = None;
                    let waited_s = (age + (now - since)).as_secs();
                    info!(waited_s, "store: disk writes again");
                }
                _ => {}
            }
        }
    }

    /// Takes calls that are settled off the front, with what they count for.
    fn forget_settled(&self, unsettled: &mut Unsettled) {
        if self.has_failed() {
            // The store keeps nothing any more, and settles nothing.
            for call in unsettled.calls.drain(..) {
                self.memory.give(call.bytes);
            }
            unsettled.messages = 0;
            return;
        }
        let settled = *self.settled.borrow();
        let mut oldest = None;
        while let Some(call) = unsettled
            .calls
            .pop_front_if(|call| call.position <= settled)
        {
            self.memory.give(call.bytes);
            unsettled.messages -= call.messages;
            oldest.get_or_insert(call.since);
        }
        if let Some(oldest) = oldest {
            let took = clock::now().saturating_duration_since(oldest);
            self.settling_times.observe(took);
            if unsettled.calls.is_empty() && unsettled.calls.capacity() > 1_024 {
                unsettled.calls = VecDeque::new();
            }
        }
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        self.memory.give(self.memory.used());
    }
}

/// Returns the memory of changes, about, and the number of their messages. A message that several of them have counts
/// once where they follow one another, as those of one PUBLISH do.
fn weight(changes: &[Change]) -> (usize, usize) {
    let mut bytes = size_of::<Call>() + size_of_val(changes);
    let mut last = None;
    for change in changes {
        let (own, message) = match change {
            Change::Session(client_id, SessionChange::Queued { message, .. }) => {
                (client_id.len(), Some(&message.message))
            }
            Change::Session(client_id, change) => {
                let filter = match change {
                    SessionChange::Subscribed { filter, .. }
                    | SessionChange::Unsubscribed { filter } => filter.len(),
                    _ => 0,
                };
                (client_id.len() + filter, None)
            }
            Change::Retained(message) => (0, Some(&message.message)),
            Change::Unretained(topic) => (topic.len(), None),
            Change::BrokerId(_) => (0, None),
        };
        bytes += own;
        if let Some(message) = message
            && last.is_none_or(|last| !Arc::ptr_eq(last, message))
        {
            bytes += message_weight(message);
            last = Some(message);
        }
    }
    // The changes of one call are those of one message at most.
    (bytes, usize::from(last.is_some()))
}
