//! The records of a session's queue: deliveries that begin to wait in it, and those that leave it unsent.

use mq_proto::Delivery;

use crate::{
    delivery::DeliveryTag as _,
    journal::Journal,
    metrics::Metrics,
    session::Session,
    store::{Change, SessionChange, StoreClock, StoredMessage},
};

/// Numbers a delivery, and makes the change that records it as queued, with times by that clock.
pub(super) fn queued(session: &Session, delivery: &mut Delivery, clock: StoreClock<'_>) -> Change {
    let number = session.next_number();
    delivery.set_number(number);
    let message = StoredMessage::new(delivery, clock);
    let change = SessionChange::Queued { number, message };
    Change::Session(session.client_id.clone(), change)
}

/// Counts a delivery as dropped, and records that it no longer waits.
pub(crate) fn dropped(
    metrics: &Metrics,
    session: &Session,
    delivery: &Delivery,
    journal: &mut Journal,
) {
    metrics.dropped.add(1);
    unqueued(session, delivery, journal);
}

/// Records that a delivery has expired, and counts it if it was too old for its mailbox.
pub(crate) fn expired(
    metrics: &Metrics,
    session: &Session,
    delivery: &Delivery,
    journal: &mut Journal,
) {
    if session.mailbox.count_expired() {
        metrics.dropped.add(1);
    }
    unqueued(session, delivery, journal);
}

/// Records that a delivery no longer waits, without having been sent. The caller holds the session's state or the
/// routing, so that the session does not end meanwhile.
///
/// Nothing is recorded for a session that has ended: the store has ended it, too, and a later session of its client has
/// messages of the same numbers.
pub(crate) fn unqueued(session: &Session, delivery: &Delivery, journal: &mut Journal) {
    if let Some(number) = delivery.number()
        && !session.mailbox.has_ended()
    {
        journal.record_of(session, SessionChange::Unqueued { number });
        session.mailbox.unqueued(number, journal.position().0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mq_codec::ByteStr;

    use crate::{
        MemoryStore, Store as _,
        hub::{Hub, RoutedMessage},
    };

    /// A client ends its session by Clean Start while a message waits for room in the mailbox.
    #[tokio::test]
    async fn a_message_for_an_ended_session_removes_none_of_its_successor() {
        for gives_up in [false, true] {
            let store = Arc::new(MemoryStore::new());
            let hub = Hub::with_mailboxes_of_one(Arc::clone(&store) as _);
            let (mut journal, mut publisher) = (hub.journal(), hub.publisher());
            let client_id = ByteStr::new("reader").unwrap();
            let first = hub.begin(&client_id, "t", &mut journal).await;
            let mut blocked = hub.publish_for_test(2, &mut publisher).pop().unwrap();
            assert!(!blocked.is_delivered());
            hub.leave(first);
            let second = hub.begin(&client_id, "t", &mut journal).await;
            hub.leave(second);
            let others = hub.publish_for_test(2, &mut publisher);
            assert!(others.iter().all(RoutedMessage::is_delivered));

            if gives_up {
                hub.give_up(blocked, &mut publisher.journal);
            } else {
                hub.retry(&mut blocked, &mut publisher, true);
            }
            let kept = store.load().unwrap();
            let numbers = kept.sessions[&client_id].queued.keys().copied();
            assert_eq!(numbers.collect::<Vec<_>>(), [1, 2], "gives up: {gives_up}");
        }
    }
}
