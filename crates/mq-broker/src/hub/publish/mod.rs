//! The way of a message from its publisher to the mailboxes of its receivers.
//!
//! ```text
//!  Received --> cluster: appended to a log, or sent to the other nodes; its own log brings it back
//!     |
//!     +-------> retained: the topic's retained message
//!               route:    the receivers, from the trie or from the cache of the last topic
//!               record:   the changes that the store gets, in one call
//!               deliver:  one delivery a receiver, into its mailbox
//!               outcome:  the reason code for the publisher
//! ```
//!
//! Three lifetimes meet here. A [`Publisher`] lives as long as a connection and has caches and buffers. A
//! [`Publication`] is the message under way: each step gets it, and it is dropped when the message is in the
//! mailboxes. A [`RoutedMessage`] lives until the message is acknowledged: at once, or once each receiver has had room.

mod acknowledge;
mod cluster;
mod deliver;
mod no_client;
mod outcome;
mod permission;
mod publisher;
mod record;
mod repeats;
mod route;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mq_codec::{PublishProperties, QoS};
use mq_proto::{Message, Received};

use super::{Hub, NoRoomToRetain, Routing};
use crate::{
    auth::Principal,
    journal::Journal,
    lock::read,
    mailbox::SMALL_PAYLOAD_BYTES,
    router::SessionKey,
    session::Session,
    store::{Change, LogPosition},
};
pub(crate) use acknowledge::Acknowledgement;
pub(crate) use cluster::{ClusterMessage, ClusterReceivers};
use deliver::Delivering;
pub(crate) use outcome::RoutedMessage;
pub(crate) use publisher::Publisher;
use repeats::Repeat;
pub(super) use repeats::Repeats;

/// The message under way, and its part of PUBLISH.
struct Publication {
    message: Arc<Message>,
    qos: QoS,
    retain: bool,
    expires_at: Option<Instant>,
    now: Instant,
    /// The session of its client, if that is one of this node's.
    sender: Option<SessionKey>,
    /// The members of shared subscriptions that get the message at this node of a cluster. Without a cluster the router
    /// chooses.
    group_members: Option<Vec<SessionKey>>,
    /// `true` if a bridge has brought it to this broker.
    is_bridged: bool,
    /// The sessions at this node of a cluster that have the message by another way.
    already_delivered: Vec<SessionKey>,
    /// The message's place in a cluster's logs, if it came from one.
    origin: Option<LogPosition>,
}

impl Hub {
    /// Returns `true` if the rules let `who` publish that message. A refusal is counted.
    pub(crate) fn may_publish(
        &self,
        who: &Principal,
        received: &Received,
        publisher: &mut Publisher,
    ) -> bool {
        let Received {
            message,
            qos,
            retain,
            ..
        } = received;
        let cache = &mut publisher.permission_cache;
        let may = cache.may_publish(&self.access_control, who, &message.topic, *qos, *retain);
        if !may {
            self.metrics.not_authorized.add(1);
        }
        may
    }

    /// Routes a message to the mailboxes of all who subscribed to its topic. Without a sender it is
    /// one of the broker's own.
    ///
    /// Runs in the publisher's task, which keeps its messages in order. [`Publisher::wake_readers`] wakes the readers
    /// afterwards, of many messages together.
    pub(crate) fn publish(
        &self,
        from: Option<&Session>,
        received: Received,
        now: Instant,
        publisher: &mut Publisher,
    ) -> RoutedMessage {
        let Received {
            message,
            qos,
            retain,
            ticket,
            ..
        } = received;
        // A message that waits for the store or for its acknowledgement must not keep the buffer of a whole read. One of
        // QoS 0 waits in mailboxes alone, which look at that themselves.
        let is_kept = qos > QoS::AtMostOnce
            && (message.payload.len() <= SMALL_PAYLOAD_BYTES || publisher.journal.is_behind());
        let message = if is_kept { message.detached() } else { message };
        let mut publication = Publication {
            expires_at: expiry(&message.properties, now),
            message: Arc::new(message),
            qos,
            retain,
            now,
            sender: from.map(|from| from.key),
            is_bridged: from.is_some_and(Session::is_bridge),
            group_members: None,
            already_delivered: Vec::new(),
            origin: None,
        };
        let mut routed = RoutedMessage::new(ticket);
        if let Some(from) = from {
            self.metrics.messages_in.add(1);
            self.topic_counts.count(&publication.message, now);
            if self.publish_to_cluster(from, &mut publication, &mut routed, publisher) {
                return routed;
            }
        }
        let mut changes = Vec::new();
        // Held from here on, so that a subscription made meanwhile gets a retained message once: by
        // the subscription, or as a retained one.
        let routing = read(&self.routing);
        let is_recorded = retain && publisher.journal.has_store();
        let turn = is_recorded.then(|| self.retained.turn(&publication.message.topic));
        if retain {
            if let Ok(change) = self.retain(&publication, publisher) {
                changes.extend(change);
            } else {
                self.metrics.retained_refused.add(1);
                // Nobody gets the message, so that its publisher may try again. A publisher that
                // gets no reason code cannot know that: then the present subscribers get it.
                if publisher.can_refuse && routed.ticket.is_some() {
                    routed.refuse(&publication.message.topic);
                    return routed;
                }
            }
        }
        if let Some(from) = from {
            changes.extend(record::received(
                &publication,
                from,
                &mut routed,
                &publisher.journal,
            ));
        }
        let receivers = self.fan_out(&routing, &publication, changes, &mut routed, publisher);
        drop(turn);
        routed.note_receivers(&publication, receivers);
        routed
    }

    /// Makes the message its topic's retained one. Returns the change to record, if there is a store.
    fn retain(
        &self,
        publication: &Publication,
        publisher: &Publisher,
    ) -> Result<Option<Change>, NoRoomToRetain> {
        let Publication {
            message,
            qos,
            expires_at,
            ..
        } = publication;
        let effect = self
            .retained
            .retain(message, *qos, *expires_at, &self.metrics)?;
        let change = || record::retained(publication, effect, self.store_clock());
        Ok(publisher.journal.has_store().then(change))
    }

    /// Finds the receivers of a message and queues it for them, recorded together with `changes`. Returns the number
    /// of receivers.
    fn fan_out(
        &self,
        routing: &Routing,
        publication: &Publication,
        changes: Vec<Change>,
        routed: &mut RoutedMessage,
        publisher: &mut Publisher,
    ) -> usize {
        let Publisher {
            journal,
            route_cache,
            mailbox_writer,
            ..
        } = publisher;
        let targets = route_cache.targets(routing, &self.access_control, publication);
        let mut delivering = Delivering::new(&self.metrics, journal, mailbox_writer, routed);
        for target in targets {
            let Some(session) = routing.session(target.session) else {
                continue;
            };
            if publication.already_delivered.contains(&target.session)
                || publication.is_bridged && self.is_loop(session, publication)
            {
                continue;
            }
            delivering.add(session, publication.delivery(target, session));
        }
        match (publication.origin, &self.cluster) {
            (Some(origin), Some(cluster)) => {
                delivering.record_logged_and_queue(&**cluster, origin, changes);
            }
            _ => delivering.record_and_queue(changes),
        }
        targets.len()
    }

    /// Returns `true` if a message that a bridge has brought is left out for a bridge that has had too many like it, and
    /// counts it. No other message can have gone round.
    fn is_loop(&self, session: &Session, publication: &Publication) -> bool {
        let Some(most) = session.equal_per_s() else {
            return false;
        };
        let Publication { message, now, .. } = publication;
        let repeat = self.repeats.count(session.key, message, most.get(), *now);
        if repeat == Repeat::Passes {
            return false;
        }
        self.metrics.dropped.add(1);
        if repeat == Repeat::FirstLeftOut {
            self.refused_publish(session, &message.topic, "loop of a bridge", *now);
        }
        true
    }

    /// Tries the deliveries of a message again, in order, that found no room. Those that still find none go on
    /// waiting, unless `is_over` says that they have waited for long enough.
    pub(crate) fn retry(
        &self,
        blocked: &mut RoutedMessage,
        publisher: &mut Publisher,
        is_over: bool,
    ) {
        // No session ends meanwhile.
        let routing = read(&self.routing);
        publisher.delivering(&self.metrics, blocked).retry(is_over);
        drop(routing);
    }

    /// Drops the deliveries of a message that found no room.
    pub(crate) fn give_up(&self, blocked: RoutedMessage, journal: &mut Journal) {
        // No session ends meanwhile.
        let routing = read(&self.routing);
        blocked.give_up(&self.metrics, journal);
        drop(routing);
    }
}

fn expiry(properties: &PublishProperties, now: Instant) -> Option<Instant> {
    let seconds = properties.message_expiry_interval?;
    now.checked_add(Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Condvar, Mutex},
        thread,
    };

    use mq_codec::{TopicFilter, TopicName};
    use tokio::sync::watch;

    use super::*;
    use crate::{
        MemoryStore, Quotas, Store, clock,
        lock::lock,
        router::{Cursor, Retained},
        store::{Position, Snapshot, StoreError},
    };

    /// A store whose first call waits until another one has overtaken it, or for a while.
    #[derive(Debug, Default)]
    struct OvertakingStore {
        kept: MemoryStore,
        calls: Mutex<usize>,
        called: Condvar,
    }

    impl OvertakingStore {
        /// Waits until there were so many calls, or until that time is over.
        fn wait_for_calls(&self, count: usize, most: Duration) {
            let calls = lock(&self.calls);
            let waited = self
                .called
                .wait_timeout_while(calls, most, |calls| *calls < count);
            drop(waited.unwrap());
        }
    }

    impl Store for OvertakingStore {
        fn load(&self) -> Result<Snapshot, StoreError> {
            self.kept.load()
        }

        fn record(&self, changes: Vec<Change>) -> Position {
            let mut calls = lock(&self.calls);
            *calls += 1;
            self.called.notify_all();
            if *calls > 1 {
                return self.kept.record(changes);
            }
            drop(calls);
            self.wait_for_calls(2, Duration::from_millis(300));
            self.kept.record(changes)
        }

        fn settled(&self) -> watch::Receiver<Position> {
            self.kept.settled()
        }
    }

    #[test]
    fn a_topic_has_the_same_retained_message_in_memory_and_in_the_store() {
        let store = Arc::new(OvertakingStore::default());
        let hub = Hub::for_test(Quotas::default(), Some(Arc::clone(&store) as _));
        let topic = TopicName::new("t").unwrap();
        let retain = |payload: &'static str| {
            let message = Message::new(topic.clone(), payload);
            let received = Received {
                retain: true,
                ..Received::own(message, QoS::AtLeastOnce)
            };
            hub.publish(None, received, clock::now(), &mut hub.publisher());
        };
        thread::scope(|scope| {
            scope.spawn(|| retain("first"));
            store.wait_for_calls(1, Duration::from_secs(20));
            retain("second");
        });
        let mut in_memory = Vec::new();
        let filter = TopicFilter::new("t").unwrap();
        let mut cursor = Cursor::default();
        let mut take = |retained: &Retained, _: u64| {
            in_memory.push(retained.message.payload.clone());
            true
        };
        hub.retained
            .search(&filter, &mut cursor, clock::now(), 100, &mut take);
        assert_eq!(in_memory, ["second"]);
        let kept = store.load().unwrap();
        assert_eq!(kept.retained[&topic].message.payload, "second");
    }
}
