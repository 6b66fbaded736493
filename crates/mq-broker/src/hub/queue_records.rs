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

/// Records that a delivery no longer waits, without having been sent.
pub(crate) fn unqueued(session: &Session, delivery: &Delivery, journal: &mut Journal) {
    if let Some(number) = delivery.number() {
        journal.record_of(session, SessionChange::Unqueued { number });
        session.mailbox.unqueued(number, journal.position().0);
    }
}
