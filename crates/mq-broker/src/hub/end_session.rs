//! The end of a session: its subscriptions, its key, and the messages that it leaves to others (§4.8.2).

use std::{collections::VecDeque, ops::RangeInclusive, sync::Arc};

use mq_codec::{ByteStr, QoS, TopicFilter};
use mq_proto::Delivery;

use super::{Hub, RoutedMessage};
use crate::{
    clock,
    delivery::DeliveryTag as _,
    journal::Journal,
    lock::{read, write},
    mailbox::LeftMessages,
    session::{MemberState, Session, SessionState},
    store::{SessionChange, Store, StoredMessage},
};

/// Subscriptions of a session that ends at a time: messages wait meanwhile.
const ENDED_AT_ONCE: usize = 64;

/// Most payload bytes that are read of what a session has in the store: the session's end waits for the read.
const MAX_READ_BYTES: usize = 16 << 20;

/// Most payload bytes of those that have come while the others were read: a thread that serves connections reads them.
const MAX_LATE_BYTES: usize = 1 << 20;

/// Messages of a session that were read from the store before its end.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    messages: Vec<StoredMessage>,
    /// Numbers of the messages, in order.
    numbers: Vec<RangeInclusive<u64>>,
    /// Payload bytes that may still be read.
    bytes_left: usize,
}

/// Messages that a session leaves, and the shared subscriptions that it had.
#[derive(Debug, Default)]
struct Inheritance {
    filters: Vec<TopicFilter>,
    deliveries: VecDeque<Delivery>,
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            numbers: Vec::new(),
            bytes_left: MAX_READ_BYTES,
        }
    }
}

impl ReadAhead {
    /// Reads messages of a session. One that cannot be read is lost with the session, as it would be without other
    /// members of its shared subscriptions. Blocks.
    fn read(&mut self, store: &dyn Store, client_id: &ByteStr, numbers: Vec<RangeInclusive<u64>>) {
        for numbers in numbers {
            if self.bytes_left == 0 {
                return;
            }
            let rows = store.queued(client_id, numbers, self.bytes_left);
            for (number, message) in rows.unwrap_or_default() {
                let size = message.message.payload.len();
                self.bytes_left = self.bytes_left.saturating_sub(size);
                self.messages.push(message);
                let last = self.numbers.last_mut();
                if let Some(last) = last.filter(|last| *last.end() + 1 == number) {
                    *last = *last.start()..=number;
                } else {
                    self.numbers.push(number..=number);
                }
            }
        }
    }

    /// Returns the numbers of `all` whose messages were not read.
    fn unread(&self, all: Vec<RangeInclusive<u64>>) -> Vec<RangeInclusive<u64>> {
        let mut unread = Vec::new();
        for numbers in all {
            let (mut first, last) = numbers.into_inner();
            for read in &self.numbers {
                if *read.end() < first || *read.start() > last {
                    continue;
                }
                if first < *read.start() {
                    let before = *read.start() - 1;
                    unread.push(first..=before);
                }
                first = *read.end() + 1;
            }
            if first <= last {
                unread.push(first..=last);
            }
        }
        unread
    }
}

impl Hub {
    /// Prepares the end of a session: ends its subscriptions, if it has many, and reads its messages from the store that
    /// others get.
    ///
    /// Cancel-safe: the session goes on with the subscriptions that are left.
    pub(crate) async fn prepare_end(&self, session: &Session) -> ReadAhead {
        self.end_subscriptions(session).await;
        self.read_ahead(session).await
    }

    /// Ends the subscriptions of a session that has many and is about to end: a few at a time, and of one session at a
    /// time, so that a crowd that leaves holds up no messages. Shared ones stay, whose messages others get.
    async fn end_subscriptions(&self, session: &Session) {
        let all = &session.subscriptions;
        if all.lock().len() <= ENDED_AT_ONCE {
            return;
        }
        let _turn = self.unsubscribing.lock().await;
        loop {
            let some: Vec<TopicFilter> = all
                .lock()
                .extract_if(|filter, _| filter.shared().is_none())
                .take(ENDED_AT_ONCE)
                .map(|(filter, _)| filter)
                .collect();
            if some.is_empty() {
                return;
            }
            {
                let mut routing = write(&self.routing);
                for filter in &some {
                    routing.unsubscribe(filter, session.key);
                }
            }
            self.metrics.subscriptions.sub(some.len());
            tokio::task::yield_now().await;
        }
    }

    /// Reads the messages that wait in the store for a session with shared subscriptions, in a thread that may block.
    async fn read_ahead(&self, session: &Session) -> ReadAhead {
        let mut read = ReadAhead::default();
        let in_store = session.mailbox.in_store();
        let (Some(store), false) = (self.store(), in_store.is_empty()) else {
            return read;
        };
        if shared_filters(session).is_empty() {
            return read;
        }
        let (store, client_id) = (Arc::clone(store), session.client_id.clone());
        let reading = tokio::task::spawn_blocking(move || {
            read.read(&*store, &client_id, in_store);
            read
        });
        // A read that panicked has read nothing.
        reading.await.unwrap_or_default()
    }

    /// Ends a session that was [prepared](Self::prepare_end) for it. Its subscriptions and queued messages go, but for
    /// messages that other members of its shared subscriptions get.
    pub(super) fn end_session(
        &self,
        session: &Arc<Session>,
        state: &mut SessionState,
        read_ahead: ReadAhead,
        journal: &mut Journal,
    ) {
        let Some(waiting) = self.remove_from_routing(session, state, || {}) else {
            return;
        };
        self.update_memberships(session, MemberState::Gone, journal);
        let inheritance = self.inheritance_of(session, state, waiting, read_ahead);
        // Before another session of the same name can begin.
        self.remove(session, state, || {
            journal.record_of(session, SessionChange::Ended);
            if let Some(cluster) = &self.cluster {
                cluster.session_ended(&session.client_id);
            }
        });
        self.pass_on(inheritance, journal);
    }

    /// Takes a session out of the routing, and returns the messages that wait for it; `None` if it has ended before.
    /// `then` is called at the moment from which on no publisher finds it.
    pub(super) fn remove_from_routing(
        &self,
        session: &Session,
        state: &mut SessionState,
        then: impl FnOnce(),
    ) -> Option<LeftMessages> {
        if core::mem::replace(&mut state.ended, true) {
            return None;
        }
        let mut routing = write(&self.routing);
        let subscriptions = state.subscriptions.lock();
        for filter in subscriptions.keys() {
            routing.unsubscribe(filter, session.key);
        }
        self.metrics.subscriptions.sub(subscriptions.len());
        drop(subscriptions);
        routing.remove_session(session.key);
        let waiting = session.mailbox.end();
        then();
        Some(waiting)
    }

    /// Takes a session off the list. `then` is done before another of the same name can begin.
    pub(super) fn remove(
        &self,
        session: &Arc<Session>,
        state: &mut SessionState,
        then: impl FnOnce(),
    ) {
        self.sessions.remove(session, then);
        state.subscriptions.lock().clear();
        #[cfg(feature = "mqtt-next")]
        state.flows.clear();
        state.retained_searches.clear();
        state.share.set_anyway(0);
        self.metrics.sessions.sub(1);
    }

    /// Returns the messages of an ending session that other members of its shared subscriptions get: queued
    /// ones, and those of QoS 1 that were sent and not acknowledged. A QoS 2 message that was sent
    /// goes to nobody else `[MQTT-4.8.2-5]`. Neither does a refused one, which is gone by now
    /// `[MQTT-4.8.2-6]`.
    ///
    /// Messages in the store are found once they are settled.
    fn inheritance_of(
        &self,
        session: &Session,
        state: &mut SessionState,
        waiting: LeftMessages,
        mut read_ahead: ReadAhead,
    ) -> Inheritance {
        let filters = shared_filters(session);
        let mut deliveries = VecDeque::new();
        if !filters.is_empty() {
            if let Some(protocol) = &mut state.protocol {
                deliveries.extend(protocol.session_mut().take_unacknowledged());
            }
            deliveries.retain(|delivery| delivery.qos == QoS::AtLeastOnce);
            deliveries.extend(waiting.in_memory);
            if let Some(store) = self.store() {
                // Those that have come since.
                read_ahead.bytes_left = read_ahead.bytes_left.min(MAX_LATE_BYTES);
                let unread = read_ahead.unread(waiting.in_store);
                read_ahead.read(&**store, &session.client_id, unread);
            }
            let (messages, clock) = (read_ahead.messages.into_iter(), self.store_clock());
            deliveries.extend(messages.map(|message| message.into_delivery(0, clock)));
            deliveries.retain(Delivery::is_shared);
        }
        Inheritance {
            filters,
            deliveries,
        }
    }

    /// Gives to other members the messages that one of them has left. A message that no other takes is dropped.
    fn pass_on(&self, inheritance: Inheritance, journal: &mut Journal) {
        let Inheritance {
            filters,
            deliveries,
        } = inheritance;
        if deliveries.is_empty() {
            return;
        }
        let (mut publisher, mut routed) = (self.publisher(), RoutedMessage::default());
        let mut delivering = publisher.delivering(&self.metrics, &mut routed);
        let authorizer = self.access_control.authorizer.as_deref();
        let routing = read(&self.routing);
        let ready = |key| routing.is_ready(key);
        let now = clock::now();
        for delivery in deliveries {
            let topic = &delivery.message.topic;
            let may_receive =
                |key| authorizer.is_none_or(|rules| routing.may_receive(key, rules, topic));
            let mut passed_on = false;
            if delivery.expires_at.is_none_or(|at| at > now) {
                for filter in filters.iter().filter(|filter| filter.matches(topic)) {
                    let member = routing.router.member(filter, &ready, Some(&may_receive));
                    let Some((session, member)) =
                        member.and_then(|member| Some((routing.session(member.session)?, member)))
                    else {
                        continue;
                    };
                    let mut again = Delivery::new(
                        Arc::clone(&delivery.message),
                        delivery.qos.min(member.options.qos),
                    );
                    again.set_shared();
                    again.retain = delivery.retain && member.options.retain_as_published;
                    again.expires_at = delivery.expires_at;
                    again.subscription_ids.extend(member.subscription_id);
                    delivering.add_ready(session, again);
                    passed_on = true;
                }
            }
            if !passed_on {
                self.metrics.dropped.add(1);
            }
            delivering.record_and_queue(Vec::new());
            delivering.next_message();
        }
        delivering.finish();
        drop(routing);
        publisher.wake_readers();
        // The request that ended the session is answered once the store has this, too.
        journal.join(&publisher.journal);
    }
}

/// Returns the shared subscriptions of a session.
fn shared_filters(session: &Session) -> Vec<TopicFilter> {
    let subscriptions = session.subscriptions.lock();
    let shared = subscriptions
        .keys()
        .filter(|filter| filter.shared().is_some());
    shared.cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        pin::pin,
        sync::Mutex,
        task::Poll,
        thread::{self, ThreadId},
        time::Duration,
    };

    use mq_codec::Subscription;
    use tokio::sync::watch;

    use super::*;
    use crate::{
        MemoryStore, Quotas,
        lock::lock,
        router::LaneSlot,
        store::{Change, Position, Snapshot, StoreError, User},
    };

    #[tokio::test]
    async fn a_session_ends_many_subscriptions_a_few_at_a_time() {
        const COUNT: usize = 1_000;
        let hub = Hub::for_test(Quotas::default(), None);
        let mut journal = hub.journal();
        let id = ByteStr::new("many").unwrap();
        let hold = hub.attach(&id, true, &User::Anonymous, None, &mut journal);
        let mut hold = hold.await.unwrap();
        let own = (0..COUNT).map(|number| format!("level/{number}"));
        for filter in own.chain(["$share/group/level".into()]) {
            let filter = TopicFilter::new(filter).unwrap();
            let options = QoS::AtMostOnce.into();
            let wanted = Subscription { filter, options };
            let granted = hub.subscribe(&mut hold, &wanted, None, LaneSlot::CONTROL, &mut journal);
            assert!(!granted.is_error());
        }
        let left = || read(&hub.routing).router.len();
        let mut counts = vec![left()];
        {
            let mut ending = pin!(hub.end_subscriptions(&hold.session));
            while poll_fn(|cx| Poll::Ready(ending.as_mut().poll(cx).is_pending())).await {
                counts.push(left());
            }
        }
        let steps: Vec<_> = counts.windows(2).map(|two| two[0] - two[1]).collect();
        assert!(steps.len() >= COUNT / ENDED_AT_ONCE, "{steps:?}");
        assert!(steps.iter().all(|step| *step <= ENDED_AT_ONCE), "{steps:?}");
        assert_eq!(left(), 1, "of the shared one others get what is left");
        assert_eq!(hub.metrics.subscriptions.get(), 1);
        let end = Some(Duration::ZERO);
        let none = ReadAhead::default();
        hub.detach(hold, clock::now(), None, end, none, &mut journal);
        assert_eq!(left(), 0);
        assert_eq!(hub.metrics.subscriptions.get(), 0);
    }

    /// A store that notes the threads that read from it.
    #[derive(Debug, Default)]
    struct WatchedStore {
        kept: MemoryStore,
        readers: Mutex<Vec<ThreadId>>,
    }

    impl Store for WatchedStore {
        fn load(&self) -> Result<Snapshot, StoreError> {
            self.kept.load()
        }

        fn record(&self, changes: Vec<Change>) -> Position {
            self.kept.record(changes)
        }

        fn settled(&self) -> watch::Receiver<Position> {
            self.kept.settled()
        }

        fn can_spill(&self) -> bool {
            true
        }

        fn queued(
            &self,
            client_id: &ByteStr,
            numbers: RangeInclusive<u64>,
            most: usize,
        ) -> Result<Vec<(u64, StoredMessage)>, StoreError> {
            lock(&self.readers).push(thread::current().id());
            self.kept.queued(client_id, numbers, most)
        }
    }

    #[tokio::test]
    async fn the_end_of_a_session_reads_the_store_on_no_thread_that_serves_connections() {
        let store = Arc::new(WatchedStore::default());
        let hub = Hub::with_mailboxes_of_one(Arc::clone(&store) as _);
        let (mut journal, mut publisher) = (hub.journal(), hub.publisher());
        let [one, other] = ["one", "other"].map(|id| ByteStr::new(id).unwrap());
        hub.leave(hub.begin(&one, "$share/g/t", &mut journal).await);
        hub.publish_for_test(5, &mut publisher);
        hub.leave(hub.begin(&other, "$share/g/t", &mut journal).await);
        assert_eq!(store.load().unwrap().sessions[&one].queued.len(), 5);
        // Another session of the client ends the first one.
        hub.leave(hub.begin(&one, "u", &mut journal).await);
        let kept = store.load().unwrap();
        assert_eq!(kept.sessions[&other].queued.len(), 5);
        let readers = lock(&store.readers);
        assert!(!readers.is_empty());
        assert!(!readers.contains(&thread::current().id()));
    }

    #[test]
    fn messages_that_come_while_others_are_read_are_found_as_unread() {
        type Pairs = &'static [(u64, u64)];

        let ranges = |pairs: Pairs| -> Vec<RangeInclusive<u64>> {
            pairs.iter().map(|(first, last)| *first..=*last).collect()
        };
        let cases: [[Pairs; 3]; 4] = [
            [&[], &[(3, 9)], &[(3, 9)]],
            [&[(3, 9)], &[(3, 9)], &[]],
            [&[(4, 5), (8, 8)], &[(3, 9)], &[(3, 3), (6, 7), (9, 9)]],
            [&[(1, 2)], &[(3, 4), (6, 7)], &[(3, 4), (6, 7)]],
        ];
        for [known, all, expected] in cases {
            let read = ReadAhead {
                numbers: ranges(known),
                ..ReadAhead::default()
            };
            assert_eq!(read.unread(ranges(all)), ranges(expected));
        }
    }
}
