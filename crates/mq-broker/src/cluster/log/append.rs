//! The way of a message into its log.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use mq_codec::{ByteStr, QoS, TopicFilter, TopicName};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};

use super::{
    author::Author,
    entry::{BatchItem, LogEntry, LogMessage},
    groups::Membership,
    ledger::Ledger,
    log_state::{Checkpoint, CheckpointCandidates, LogState},
    progress::Progress,
    recent::RecentEntries,
    set_backs::SetBacks,
    storage::PROBE_INTERVAL,
};
use crate::{
    cluster::{
        Cluster, GIVE_UP_AFTER,
        engine::{EngineError, Outage, RETRY_INTERVAL},
    },
    fnv::{FNV_BASIS, fnv1a},
    hub::{AppendAnswers, LogMark, NotAppended},
    lock::lock,
    store::{At, Position, StoredMessage},
};

/// Messages in a batch, and their bytes, at most; one message may have more.
const MAX_BATCH_MESSAGES: usize = 1_000;
const MAX_BATCH_BYTES: usize = 256 * 1024;

/// Bytes that wait to be appended to one log, at most.
const MAX_QUEUE_BYTES: usize = 64 << 20;

/// Items that wait for a log without room, from which on those are looked for that a later one has replaced.
const MIN_ITEMS_TO_SEARCH: usize = 1_000;

/// Time that an entry may take to come back after the engine has taken it.
const READ_BACK_TIMEOUT: Duration = Duration::from_secs(1);

/// This node's part of one log.
#[derive(Debug)]
pub(in crate::cluster) struct Shard {
    pub(in crate::cluster) number: u16,
    queue: Mutex<Queue>,
    queue_grew: Notify,
    /// The number of messages that are being appended, and the time since which they are.
    appending: Mutex<Option<(usize, Instant)>>,
    pub(in crate::cluster) progress: Progress,
    /// The last of this node's batches that was read back.
    pub(super) read_back: watch::Sender<u64>,
    pub(in crate::cluster) state: Mutex<LogState>,
    pub(in crate::cluster) recent: Mutex<RecentEntries>,
    /// The last checkpoint, with its version.
    pub(in crate::cluster) checkpoint: Mutex<(u64, Checkpoint)>,
    pub(super) candidates: Mutex<CheckpointCandidates>,
    pub(in crate::cluster) set_backs: SetBacks,
}

/// Messages that wait to be appended.
#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<QueuedItem>,
    bytes: usize,
    /// The position of the last item in it, or that was.
    last_position: Position,
    /// The number of items from which on replaced ones are looked for once more.
    search_from: usize,
}

/// An item of a batch that is to be appended.
#[derive(Debug)]
struct QueuedItem {
    bytes: Bytes,
    position: Position,
    /// The way to refuse it; `None` if it cannot be.
    answers: Option<Arc<AppendAnswers>>,
    /// The client and the shared subscription whose state it has; `None` if it is no [`Membership`].
    member: Option<(ByteStr, TopicFilter)>,
}

/// The outcome of the tries to append a batch.
enum Appended {
    Done,
    /// The log has no room for the batch, and nothing of the batch is in it.
    Refused,
    /// The log may have the batch or not: no further try would be known as the same one.
    Unknown,
}

impl Queue {
    fn push(&mut self, item: QueuedItem) {
        self.bytes += item.bytes.len();
        self.last_position = item.position;
        self.items.push_back(item);
    }

    fn push_first(&mut self, item: QueuedItem) {
        self.bytes += item.bytes.len();
        if self.items.is_empty() {
            self.last_position = item.position;
        }
        self.items.push_front(item);
    }

    /// Removes states of members that a later item replaces, once there may be many. Returns their positions.
    fn drop_replaced(&mut self) -> Vec<Position> {
        if self.items.len() < self.search_from.max(MIN_ITEMS_TO_SEARCH) {
            return Vec::new();
        }
        let mut replaced = Vec::new();
        let mut seen = HashSet::new();
        let mut kept = VecDeque::new();
        for item in self.items.drain(..).rev() {
            let is_last = item
                .member
                .as_ref()
                .is_none_or(|member| seen.insert(member.clone()));
            if is_last {
                kept.push_front(item);
            } else {
                self.bytes -= item.bytes.len();
                replaced.push(item.position);
            }
        }
        self.search_from = 2 * kept.len();
        self.items = kept;
        replaced
    }
}

impl Shard {
    /// Goes on from a checkpoint.
    pub(in crate::cluster) fn new(number: u16, checkpoint: &Checkpoint, recent: usize) -> Self {
        let progress = Progress::default();
        progress.finish(At::end_of(checkpoint.entry));
        Self {
            number,
            queue: Mutex::default(),
            queue_grew: Notify::new(),
            appending: Mutex::default(),
            progress,
            read_back: watch::Sender::new(0),
            state: Mutex::new(LogState::from_checkpoint(checkpoint)),
            recent: Mutex::new(RecentEntries::new(recent)),
            checkpoint: Mutex::default(),
            candidates: Mutex::default(),
            set_backs: SetBacks::new(),
        }
    }

    /// Returns the position of the last call that has an item for this log.
    pub(in crate::cluster) fn last_position(&self) -> Position {
        lock(&self.queue).last_position
    }

    /// Returns the number of messages that are not in the log yet, and the time for which the first of them has been on
    /// its way.
    pub(in crate::cluster) fn backlog(&self) -> (usize, Duration) {
        let queued = lock(&self.queue).items.len();
        let appending = *lock(&self.appending);
        let (sent, since) = appending.unzip();
        let time = since.map_or(Duration::ZERO, |since| since.elapsed());
        (queued + sent.unwrap_or_default(), time)
    }

    /// Has an item appended before all that waits.
    pub(super) fn append_first(&self, bytes: Bytes, ledger: &Ledger) {
        let mut queue = lock(&self.queue);
        let position = ledger.begin(1);
        queue.push_first(QueuedItem {
            bytes,
            position,
            answers: None,
            member: None,
        });
        drop(queue);
        self.queue_grew.notify_one();
    }

    /// Waits for the next batch.
    async fn next_batch(&self) -> Vec<QueuedItem> {
        loop {
            let queue_grew = self.queue_grew.notified();
            {
                let mut queue = lock(&self.queue);
                let mut bytes = 0;
                let fits = |item: &&QueuedItem| {
                    let before = bytes;
                    bytes += item.bytes.len();
                    before == 0 || bytes <= MAX_BATCH_BYTES
                };
                let count = queue
                    .items
                    .iter()
                    .take(MAX_BATCH_MESSAGES)
                    .take_while(fits)
                    .count();
                if count > 0 {
                    let batch: Vec<_> = queue.items.drain(..count).collect();
                    queue.bytes -= batch.iter().map(|item| item.bytes.len()).sum::<usize>();
                    return batch;
                }
            }
            queue_grew.await;
        }
    }
}

impl Cluster {
    /// Returns the log of a topic.
    pub(in crate::cluster) fn shard_of_topic(&self, topic: &TopicName) -> &Shard {
        &self.shards[hash_partition(topic.as_bytes(), self.shards.len())]
    }

    /// See [`Nodes::append`](crate::hub::Nodes::append).
    pub(in crate::cluster) fn append_message(
        &self,
        from: &ByteStr,
        mark: LogMark,
        message: StoredMessage,
        answers: Option<&Arc<AppendAnswers>>,
    ) -> Result<Position, NotAppended> {
        // Neither has a promise behind it, unlike a will.
        let may_be_refused = answers.is_some() || message.qos == QoS::AtMostOnce;
        let shard = self.shard_of_topic(&message.message.topic);
        if may_be_refused && self.storage.refuses(shard.number) {
            self.storage.count_refused(1);
            return Err(NotAppended);
        }
        let (packet_id, session) = match mark {
            LogMark::None => (None, None),
            LogMark::PacketId(packet_id) => (Some(packet_id), self.session_number(from)),
            LogMark::Will => (None, self.session_number(from)),
        };
        let item = LogMessage {
            from: from.clone(),
            packet_id,
            session: session.unwrap_or_default(),
            message,
        };
        // MQTT has a form for each message that has come by it.
        let item = BatchItem::Message(item).encode().map_err(|_| NotAppended)?;
        let mut queue = lock(&shard.queue);
        if queue.bytes + item.len() > MAX_QUEUE_BYTES && !queue.items.is_empty() {
            return Err(NotAppended);
        }
        // The session of a publisher counts a message of QoS 2 as received while it waits here.
        let position = match packet_id {
            Some(_) => self.ledger.begin_of_client(from),
            None => self.ledger.begin(1),
        };
        queue.push(QueuedItem {
            bytes: item,
            position,
            answers: answers.cloned(),
            member: None,
        });
        drop(queue);
        shard.queue_grew.notify_one();
        Ok(position)
    }

    /// Returns the logs that may have messages of a filter.
    fn shards_of_filter(&self, filter: &TopicFilter) -> &[Shard] {
        if filter.has_wildcard() {
            return &self.shards;
        }
        let shard = hash_partition(filter.matching().as_bytes(), self.shards.len());
        &self.shards[shard..=shard]
    }

    /// See [`Nodes::refuses_members`](crate::hub::Nodes::refuses_members).
    pub(in crate::cluster) fn refuses_memberships(&self, filter: &TopicFilter) -> bool {
        let mut shards = self.shards_of_filter(filter).iter();
        shards.any(|shard| self.storage.refuses(shard.number))
    }

    /// See [`Nodes::update_membership`](crate::hub::Nodes::update_membership).
    pub(in crate::cluster) fn append_membership(&self, membership: Membership) -> Position {
        let member = (membership.client.clone(), membership.filter.clone());
        let shards = self.shards_of_filter(&member.1);
        let item = BatchItem::Member(membership);
        let Ok(item) = item.encode() else {
            return self.ledger.last_position();
        };
        let position = self.ledger.begin(shards.len());
        for shard in shards {
            let mut queue = lock(&shard.queue);
            queue.push(QueuedItem {
                bytes: item.clone(),
                position,
                answers: None,
                member: Some(member.clone()),
            });
            let replaced = if self.storage.refuses(shard.number) {
                queue.drop_replaced()
            } else {
                Vec::new()
            };
            drop(queue);
            for position in replaced {
                self.ledger.complete_part(position);
            }
            shard.queue_grew.notify_one();
        }
        position
    }

    /// Appends what waits for one log, a batch at a time: the next one only once the last was read back, so that no
    /// batch overtakes another, whatever has to be tried again.
    pub(in crate::cluster) async fn append_batches(self: Arc<Self>, shard: u16) {
        let shard = &self.shards[usize::from(shard)];
        let mut outage = Outage::new("log append", Some(shard.number));
        for count in 1.. {
            let mut batch = shard.next_batch().await;
            let began = Instant::now();
            while !batch.is_empty() {
                *lock(&shard.appending) = Some((batch.len(), began));
                match self.append_batch(shard, count, &batch, &mut outage).await {
                    Appended::Done => {
                        for item in batch.drain(..) {
                            if let Some(answers) = &item.answers {
                                answers.release(item.position);
                            }
                            self.ledger.complete_part(item.position);
                        }
                    }
                    Appended::Refused => {
                        batch = self.refuse(shard, batch);
                        sleep(PROBE_INTERVAL).await;
                    }
                    Appended::Unknown => {
                        return self.fail("cannot append messages for a minute");
                    }
                }
            }
            *lock(&shard.appending) = None;
        }
    }

    /// Tries to append a batch until this node has read it back.
    async fn append_batch(
        &self,
        shard: &Shard,
        count: u64,
        batch: &[QueuedItem],
        outage: &mut Outage,
    ) -> Appended {
        let items: Vec<_> = batch.iter().map(|item| item.bytes.clone()).collect();
        let read = lock(&shard.state).trail.last();
        let entry = LogEntry::batch(&self.author, count, read, &items);
        let mut read_back = shard.read_back.subscribe();
        let is_back = read_back.wait_for(|last| *last >= count);
        let is_back = self.appending_empty_entries(shard.number..shard.number + 1, is_back);
        let tries = async {
            // The first try of which it is not known that nothing came of it.
            let mut unsure_since: Option<Instant> = None;
            let mut set_backs = shard.set_backs.count();
            while unsure_since.is_none_or(|since| since.elapsed() < GIVE_UP_AFTER) {
                shard.set_backs.until_filled().await;
                if core::mem::replace(&mut set_backs, shard.set_backs.count()) != set_backs {
                    unsure_since = None;
                }
                let began = Instant::now();
                let Author { node, life } = &self.author;
                let id = format!("{node}.{life}.{}.{set_backs}.{count}", shard.number);
                match self.engine.append(shard.number, id, entry.clone()).await {
                    Ok(number) => {
                        outage.end();
                        self.storage.note_room(shard.number);
                        unsure_since.get_or_insert(began);
                        sleep(READ_BACK_TIMEOUT).await;
                        let read = shard.progress.finished().entry();
                        if number <= read {
                            self.note_set_back(shard, number, read);
                        }
                        continue;
                    }
                    Err(error @ EngineError::Full(_)) => self.storage.note_refusal(&error),
                    Err(error @ EngineError::NoLeader(_)) => outage.failed(&error),
                    Err(error) => {
                        outage.failed(&error);
                        unsure_since.get_or_insert(began);
                    }
                }
                if self.storage.is_full() {
                    // Only the time counts in which there was room.
                    unsure_since = unsure_since.map(|_| Instant::now());
                }
                // A server without room does not lead the log any longer.
                if self.storage.refuses(shard.number) {
                    if unsure_since.is_none() {
                        return Appended::Refused;
                    }
                    // The log may have this batch, and has nothing of what waits behind it.
                    self.withhold_answers(batch);
                    self.refuse(shard, Vec::new());
                }
                sleep(RETRY_INTERVAL).await;
            }
            Appended::Unknown
        };
        tokio::select! {
            // The sender is this node's.
            _ = is_back => Appended::Done,
            outcome = tries => outcome,
        }
    }

    /// Lets no client wait for a batch but the publishers of its messages.
    fn withhold_answers(&self, batch: &[QueuedItem]) {
        for item in batch {
            if let Some(answers) = &item.answers {
                answers.withhold(item.position);
            }
            self.ledger.detach(item.position);
        }
    }

    /// Refuses what can be refused of a batch and of what waits behind it. Returns the rest of the batch, for which no
    /// other call waits any longer.
    fn refuse(&self, shard: &Shard, batch: Vec<QueuedItem>) -> Vec<QueuedItem> {
        let mut count = 0;
        let mut stays = |item: &QueuedItem| {
            let answers = item.answers.as_ref();
            let is_refused = answers.is_some_and(|answers| answers.refuse(item.position));
            if is_refused {
                count += 1;
                self.ledger.complete_part(item.position);
            } else {
                self.ledger.detach(item.position);
            }
            !is_refused
        };
        let mut batch = batch;
        batch.retain(&mut stays);
        let mut queue = lock(&shard.queue);
        queue.items.retain(stays);
        queue.bytes = queue.items.iter().map(|item| item.bytes.len()).sum();
        drop(queue);
        self.storage.count_refused(count);
        batch
    }
}

/// Returns the part, of so many, that a name belongs to, such as the log of a topic: the same in each version of this
/// software.
pub(in crate::cluster) fn hash_partition(name: &[u8], parts: usize) -> usize {
    let hash = fnv1a(FNV_BASIS, name);
    usize::try_from(hash % parts as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(position: u64, member: Option<(&str, &str)>) -> QueuedItem {
        QueuedItem {
            bytes: Bytes::from_static(b"item"),
            position: Position(position),
            answers: None,
            member: member.map(|(client, filter)| {
                (
                    ByteStr::new(client).unwrap(),
                    TopicFilter::new(filter).unwrap(),
                )
            }),
        }
    }

    fn positions(queue: &Queue) -> Vec<u64> {
        queue.items.iter().map(|item| item.position.0).collect()
    }

    #[test]
    fn a_client_that_joins_and_leaves_for_ever_adds_one_state_for_each_subscription() {
        let mut queue = Queue::default();
        queue.push(item(1, None));
        for position in 2..100_000 {
            let filter = if position % 2 == 0 {
                "$share/g/a"
            } else {
                "$share/g/b"
            };
            queue.push(item(position, Some(("c", filter))));
            let dropped = queue.drop_replaced();
            assert!(dropped.iter().all(|dropped| dropped.0 < position - 1));
            assert!(queue.items.len() <= MIN_ITEMS_TO_SEARCH, "{position}");
        }
        queue.search_from = 0;
        while queue.items.len() < MIN_ITEMS_TO_SEARCH {
            queue.push(item(100_000, Some(("c", "$share/g/a"))));
        }
        queue.drop_replaced();
        assert_eq!(positions(&queue), [1, 99_999, 100_000]);
        assert_eq!(queue.bytes, 3 * b"item".len());
    }

    /// The record of a published will stays until that position is settled.
    #[test]
    fn the_last_position_is_that_of_the_last_item() {
        let mut queue = Queue::default();
        queue.push(item(1, None));
        queue.push_first(item(2, None));
        assert_eq!(positions(&queue), [2, 1]);
        assert_eq!(queue.last_position, Position(1));
        queue.items.clear();
        queue.push_first(item(3, None));
        assert_eq!(queue.last_position, Position(3));
    }
}
