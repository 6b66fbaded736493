//! How a node gets a session, and how it lets one go.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use mq_codec::{ByteStr, PacketId, QoS, ReasonCode};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Cluster,
    engine::{Asked, Key, Kind, Lasts},
    entry::{Author, Item, LogEntry},
    log_state::Counts,
    owned::{Future, Owned},
    record::{Form, Kept, Owed, Record},
};
use crate::{
    auth::TakeOver,
    hub::{Hub, RIVALS, Restoring},
    lock::lock,
    store::{At, LogPosition, SessionRecord, StoredMessage, User},
};

/// For so long a client waits for its session.
const PATIENCE: Duration = Duration::from_secs(8);

/// How long a node waits before it looks again whether the owner of a session lives.
const LOOK: Duration = Duration::from_millis(100);

/// How often a node that is behind looks how far it has come.
const STEP: Duration = Duration::from_millis(5);

/// For so long a node goes on with a log that brings nothing.
const SILENCE: Duration = Duration::from_secs(5);

/// Why a node does not get a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    /// It is another user's.
    Others,
    /// The engine or the owner did not answer, or not in time.
    Busy,
}

/// What a node reads again for a session that it takes over: by log, from where on, and up to where.
type Ranges = BTreeMap<u16, (At, At)>;

impl Cluster {
    /// See [`Nodes::claim`](crate::hub::Nodes::claim).
    pub(super) async fn claim_in_turn(
        &self,
        id: &ByteStr,
        user: &User,
        take_over: TakeOver,
    ) -> Result<(), ReasonCode> {
        let (Some(this), Some(hub)) = (self.this.upgrade(), self.hub()) else {
            return Err(ReasonCode::ServerShuttingDown);
        };
        let (id, user) = (id.clone(), user.clone());
        // It goes on to its end, whether the client waits for it or not: a session that is half here would be taken for
        // a whole one.
        let claiming = self.runtime.spawn(async move {
            let turn = Arc::clone(lock(&this.claims).entry(id.clone()).or_default());
            let held = Arc::clone(&turn).lock_owned().await;
            let claimed = this.try_claim(&hub, &id, &user, take_over).await;
            drop(held);
            let mut claims = lock(&this.claims);
            // Two: this one, and the table's.
            if Arc::strong_count(&turn) == 2 {
                claims.remove(&id);
            }
            claimed
        });
        match timeout(PATIENCE, claiming).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(Refused::Others))) => Err(ReasonCode::ClientIdentifierNotValid),
            Ok(_) | Err(_) => Err(ReasonCode::ServerBusy),
        }
    }

    async fn try_claim(
        &self,
        hub: &Hub,
        id: &ByteStr,
        user: &User,
        take_over: TakeOver,
    ) -> Result<(), Refused> {
        let key = Key::new(Kind::Session, &**id);
        let began = Instant::now();
        let mut asked = 0;
        while began.elapsed() < PATIENCE {
            let leaves = {
                let sessions = lock(&self.sessions);
                match sessions.get(id) {
                    None => None,
                    Some(owned) if owned.future == Future::Stays => return Ok(()),
                    Some(owned) => Some(owned.gone()),
                }
            };
            if let Some(mut leaves) = leaves {
                // Either way it is looked at again.
                let _ = leaves.changed().await;
                continue;
            }
            if self.ledger.has_failed() {
                return Err(Refused::Busy);
            }
            let value = self.engine.value(key.clone()).await;
            let value = value.map_err(|error| {
                warn!(client = %id, %error, "a session cannot be read");
                Refused::Busy
            })?;
            let version = value.as_ref().map_or(0, |value| value.version);
            let record = match value {
                None => Record::default(),
                Some(value) => Record::decode(&value.bytes).map_err(|_| {
                    warn!(client = %id, "a session is of no known form");
                    Refused::Busy
                })?,
            };
            let known = record.session.as_ref().and_then(|kept| kept.user.as_ref());
            if take_over == TakeOver::SameUser && known.is_some_and(|known| known != user) {
                return Err(Refused::Others);
            }
            if let Some(owner) = &record.owner
                && *owner != self.author
                && !self.is_over(owner)
            {
                if asked == RIVALS {
                    return Err(Refused::Busy);
                }
                asked += u32::from(self.ask_to_let_go(owner, id).await);
                continue;
            }
            let coming = timeout(PATIENCE, self.come_to(&record.next));
            coming.await.map_err(|_| Refused::Busy)?;
            let mine = Record {
                owner: Some(self.author.clone()),
                ..record.clone()
            };
            let bytes = mine.encode().map_err(|_| Refused::Busy)?;
            let put = self.put(key.clone(), version, bytes, Lasts::Always).await;
            let Some(version) = put.map_err(|_| Refused::Busy)? else {
                continue;
            };
            return self.take_up(hub, id, record, version).await;
        }
        Err(Refused::Busy)
    }

    /// Waits until this node has read the logs as far as a session's last owner: what that has looked at must not come
    /// to the session again.
    async fn come_to(&self, next: &[At]) {
        let is_behind = || {
            let mut all = self.shards.iter().zip(next);
            all.any(|(shard, next)| shard.progress.finished().next() < *next)
        };
        while is_behind() {
            sleep(STEP).await;
        }
    }

    /// Asks the owner of a session to let it go, and ends its life if it has none any more. Returns whether it has
    /// answered.
    async fn ask_to_let_go(&self, owner: &Author, id: &ByteStr) -> bool {
        if self.is_dead(owner) {
            if let Err(error) = self.end_life(owner).await {
                warn!(node = owner.node, %error, "a node's life cannot be ended");
                sleep(LOOK).await;
            }
            return false;
        }
        let question = Bytes::copy_from_slice(id.as_bytes());
        let answer = self.engine.ask(&owner.node, question).await;
        if let Err(error) = &answer {
            debug!(node = owner.node, %error, "a node does not let a session go");
            sleep(LOOK).await;
        }
        answer.is_ok()
    }

    /// Lets sessions go that other nodes ask for.
    pub(super) async fn answer(self: Arc<Self>, mut asked: mpsc::Receiver<Asked>, hub: Arc<Hub>) {
        while let Some(Asked { question, answer }) = asked.recv().await {
            let id = std::str::from_utf8(&question).ok().map(str::to_owned);
            let Some(id) = id.and_then(|id| ByteStr::new(id).ok()) else {
                continue;
            };
            let (cluster, hub) = (Arc::clone(&self), Arc::clone(&hub));
            // Each has its own time: one that does not end holds up no other.
            tokio::spawn(async move {
                let end = || -> Vec<At> {
                    let shards = cluster.shards.iter();
                    shards.map(|shard| shard.progress.begun().next()).collect()
                };
                if !cluster.begin_to_let_go(&id).await {
                    // The asker may have gone.
                    let _ = answer.send(Bytes::new());
                    return;
                }
                if let Some(end) = hub.let_go(&id, end).await {
                    // What its client has published is in the logs before its next owner reads them.
                    let last = cluster.ledger.last();
                    let mut settled = cluster.ledger.settled();
                    if settled.wait_for(|settled| *settled >= last).await.is_err() {
                        return;
                    }
                    cluster.let_go(&id, end).await;
                } else {
                    cluster.keep(&id);
                }
                // Of a session that has ended meanwhile the record says so before another begins. The asker may have
                // gone.
                let _ = answer.send(Bytes::new());
            });
        }
    }

    /// Makes a claimed session one of this node's hub.
    async fn take_up(
        &self,
        hub: &Hub,
        id: &ByteStr,
        record: Record,
        version: u64,
    ) -> Result<(), Refused> {
        let Record { session, next, .. } = record;
        let kept = session.filter(|kept| !kept.ends_with_connection());
        let Some(kept) = kept else {
            let owned = Owned::new(Kept::default(), version);
            lock(&self.sessions).insert(id.clone(), owned);
            return Ok(());
        };
        // Messages queue up from here on; those before are put in front of them.
        let subscriptions = kept.subscriptions.iter();
        let subscriptions =
            subscriptions.map(|(filter, (options, id))| (filter.clone(), *options, *id));
        let begun = || -> Vec<At> {
            // What is queued from here on is noted: in the record it stands behind the rest.
            let mut owned = Owned::new(kept.clone(), version);
            owned.kept.waiting.clear();
            lock(&self.sessions).insert(id.clone(), owned);
            let shards = self.shards.iter();
            shards.map(|shard| shard.progress.begun()).collect()
        };
        let (restoring, begun) = hub.begin_restored(id, kept.user.as_ref(), subscriptions, begun);
        let fallback = At::default();
        let from = |shard: u16| next.get(usize::from(shard)).copied().unwrap_or(fallback);
        let mut ranges = Ranges::new();
        for (shard, begun) in (0..).zip(begun) {
            ranges.insert(shard, (from(shard), begun));
        }
        for position in kept.positions() {
            let range = ranges.entry(position.shard).or_default();
            range.0 = range.0.min(position.at);
        }
        let found = match self.read_again(&kept, &ranges, id, &next).await {
            Ok(found) => found,
            Err(refused) => {
                // The record has all that it had.
                lock(&self.sessions).remove(id);
                hub.abandon(restoring);
                return Err(refused);
            }
        };
        info!(
            client = %id,
            waiting = found.waiting.len(),
            in_flight = kept.in_flight.len(),
            "a session of another node goes on here"
        );
        let mut sessions = lock(&self.sessions);
        let Some(owned) = sessions.get_mut(id) else {
            return Err(Refused::Busy);
        };
        owned.kept.received.extend(found.received.iter().copied());
        let received = owned.kept.received.iter().copied().collect();
        let waiting = found.waiting.into_iter();
        // Numbers of their own, below those that were given meanwhile.
        let mut queued = BTreeMap::new();
        for (number, (owed, message)) in Restoring::numbers_in_front().zip(waiting) {
            owned.kept.waiting.insert(number, owed);
            queued.insert(number, message);
        }
        let record = SessionRecord {
            life: kept.life,
            queued,
            in_flight: found.in_flight,
            received,
            ..SessionRecord::default()
        };
        drop(sessions);
        hub.finish_restored(restoring, record);
        Ok(())
    }

    /// Reads again what a session has to get.
    async fn read_again(
        &self,
        kept: &Kept,
        ranges: &Ranges,
        id: &ByteStr,
        next: &[At],
    ) -> Result<Found, Refused> {
        let mut wanted = Wanted::new(kept, id, next);
        for (&shard, &(from, to)) in ranges {
            if from > to || to == At::default() {
                continue;
            }
            let mut entries = self.engine.follow(shard, from.entry().saturating_sub(1));
            let mut counts = Counts::default();
            let began = Instant::now();
            loop {
                let entry = timeout(SILENCE, entries.recv()).await;
                let Ok(Some(entry)) = entry else {
                    warn!(
                        shard,
                        after = began.elapsed().as_millis(),
                        "a log cannot be read again"
                    );
                    return Err(Refused::Busy);
                };
                if entry.number > to.entry() {
                    break;
                }
                if let Ok(LogEntry::Batch {
                    author,
                    count,
                    items,
                }) = LogEntry::decode(&entry.bytes)
                    && counts.is_new(&author, count)
                    && !self.rejects(&author, shard, &entry)
                {
                    for (index, item) in items.into_iter().enumerate() {
                        let at = At::new(entry.number, index);
                        if at <= to {
                            wanted.look(LogPosition { shard, at }, item);
                        }
                    }
                }
                if entry.number == to.entry() {
                    break;
                }
            }
        }
        Ok(wanted.found())
    }
}

/// What a session has to get.
struct Found {
    waiting: Vec<(Owed, StoredMessage)>,
    in_flight: Vec<(PacketId, Option<StoredMessage>)>,
    received: HashSet<PacketId>,
}

/// Looks for it.
struct Wanted<'a> {
    kept: &'a Kept,
    id: &'a ByteStr,
    next: &'a [At],
    /// In the record by name.
    named: HashMap<LogPosition, StoredMessage>,
    names: HashSet<LogPosition>,
    /// Behind what the record has looked at.
    behind: Vec<(Owed, StoredMessage)>,
    received: HashSet<PacketId>,
}

impl<'a> Wanted<'a> {
    fn new(kept: &'a Kept, id: &'a ByteStr, next: &'a [At]) -> Self {
        Self {
            kept,
            id,
            next,
            named: HashMap::new(),
            names: kept.positions().collect(),
            behind: Vec::new(),
            received: HashSet::new(),
        }
    }

    fn look(&mut self, position: LogPosition, item: Item) {
        let next = self.next.get(usize::from(position.shard));
        let is_behind = next.is_none_or(|next| position.at >= *next);
        if is_behind
            && item.from == *self.id
            && let Some(packet_id) = item.packet_id
        {
            self.received.insert(packet_id);
        }
        if self.names.contains(&position) {
            self.named.insert(position, item.message);
            return;
        }
        if !is_behind {
            return;
        }
        let Some(form) = self.form(&item) else {
            return;
        };
        let message = form.of(&item.message);
        self.behind.push((Owed::Logged(position, form), message));
    }

    /// How the session gets a message; `None` if it does not, or at QoS 0, which is not kept.
    fn form(&self, item: &Item) -> Option<Form> {
        let topic = &item.message.message.topic;
        let mut form: Option<Form> = None;
        for (filter, (options, id)) in &self.kept.subscriptions {
            let is_own = options.no_local && item.from == *self.id;
            if is_own || filter.shared().is_some() || !filter.matches(topic) {
                continue;
            }
            let form = form.get_or_insert_with(|| Form {
                qos: QoS::AtMostOnce,
                retain: false,
                subscription_ids: Vec::new(),
            });
            form.qos = form.qos.max(options.qos.min(item.message.qos));
            form.retain |= options.retain_as_published && item.message.retain;
            form.subscription_ids.extend(*id);
        }
        form.filter(|form| form.qos > QoS::AtMostOnce)
    }

    fn found(self) -> Found {
        let Self {
            kept,
            named,
            behind,
            received,
            ..
        } = self;
        let message = |owed: &Owed| match owed {
            Owed::Own(message) => Some((**message).clone()),
            Owed::Logged(position, form) => named.get(position).map(|logged| form.of(logged)),
        };
        let waiting = kept.waiting.values();
        let waiting = waiting.filter_map(|owed| Some((owed.clone(), message(owed)?)));
        let in_flight = kept.in_flight.iter().filter_map(|(id, owed)| match owed {
            None => Some((*id, None)),
            Some(owed) => Some((*id, Some(message(owed)?))),
        });
        Found {
            waiting: waiting.chain(behind).collect(),
            in_flight: in_flight.collect(),
            received,
        }
    }
}
