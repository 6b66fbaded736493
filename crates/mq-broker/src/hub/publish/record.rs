//! The changes that the store gets for a message, besides its deliveries.

use mq_codec::QoS;

use super::{super::RetainEffect, Publication, RoutedMessage};
use crate::{
    journal::Journal,
    session::Session,
    store::{Change, SessionChange, StoreClock, StoredMessage},
};

/// Returns the change of a topic's retained message, with times by that clock.
pub(super) fn retained(
    publication: &Publication,
    effect: RetainEffect,
    clock: StoreClock<'_>,
) -> Change {
    match effect {
        RetainEffect::Removed => Change::Unretained(publication.message.topic.detached()),
        RetainEffect::Set(message) => Change::Retained(StoredMessage {
            message,
            qos: publication.qos,
            retain: true,
            subscription_ids: Vec::new(),
            expires_at: publication.expires_at.map(|at| clock.time_at(at)),
            shared: false,
            slot: 0,
        }),
    }
}

/// Returns the change by which the store knows a received QoS 2 message until it is released, if the store keeps the
/// session of its client.
pub(super) fn received(
    publication: &Publication,
    from: &Session,
    routed: &mut RoutedMessage,
    journal: &Journal,
) -> Option<Change> {
    let ticket = routed.ticket.as_ref()?;
    if publication.qos != QoS::ExactlyOnce || !journal.records_session(from) {
        return None;
    }
    let (packet_id, flow) = (ticket.packet_id(), ticket.flow());
    if !ticket.is_of_session() && flow.is_none() {
        return None;
    }
    routed.outcome.received = Some((packet_id, flow));
    let change = SessionChange::Received { packet_id, flow };
    Some(Change::Session(from.client_id.clone(), change))
}
