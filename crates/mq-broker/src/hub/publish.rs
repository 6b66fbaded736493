//! The way of a message from its publisher to the mailboxes of its receivers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mq_codec::{PublishProperties, QoS};
use mq_proto::{AckTicket, Delivery, Message, Received};

use super::{
    Hub, Publisher, RetainedTopics, Routing, cluster::ToAll, publisher::AtHand, read, write,
};
use crate::{
    delivery::Marks as _,
    journal::Journal,
    router::{LaneSlot, Retained, SessionKey, Target},
    session::Session,
    store::{Change, SessionChange, StoredMessage, to_wall_clock},
};

impl Hub {
    /// Routes a message to the mailboxes of all who subscribed to its topic. Without a sender it is
    /// one of the broker's own.
    ///
    /// Runs in the publisher's task, which keeps its messages in order. Readers are told by
    /// [`Publisher::tell_readers`], and what found no room is in [`Publisher::waiting`]. Returns
    /// the message's ticket, which [`Publisher::outcome`] answers.
    pub(crate) fn publish(
        &self,
        from: Option<&Session>,
        received: Received,
        now: Instant,
        publisher: &mut Publisher,
    ) -> Option<AckTicket> {
        let Received {
            message,
            qos,
            retain,
            ticket,
            ..
        } = received;
        let expires_at = expiry(&message.properties, now);
        let message = Arc::new(message);
        publisher.only = None;
        if from.is_some() {
            self.metrics.messages_in.add(1);
            self.topics.count(&message, now);
        }
        if let Some(from) = from {
            let publish = ToAll {
                from,
                message: &message,
                qos,
                retain,
                expires_at,
                ticket: ticket.as_ref(),
            };
            if self.publish_to_all(publish, publisher) {
                return ticket;
            }
        }
        let mut changes = Vec::new();
        // Held from here on, so that a subscription made meanwhile gets a retained message once: by
        // the subscription, or as a retained one.
        let routing = read(&self.routing);
        if retain {
            if let Ok(change) = self.retain(&message, qos, expires_at, &publisher.journal) {
                changes.extend(change);
            } else {
                // Nobody gets the message, so that its publisher may try again. A publisher that
                // gets no reason code cannot know that: then the present subscribers get it.
                self.metrics.retained_refused.add(1);
                if publisher.can_refuse && ticket.is_some() {
                    publisher.at_hand = AtHand::refused(&message.topic);
                    return ticket;
                }
            }
        }
        let journal = &publisher.journal;
        let received = match (&ticket, from) {
            (Some(ticket), Some(from)) if qos == QoS::ExactlyOnce && journal.keeps(from) => {
                let is_kept = ticket.is_of_session() || ticket.flow().is_some();
                is_kept.then(|| (ticket.packet_id(), ticket.flow(), from))
            }
            _ => None,
        };
        if let Some((packet_id, flow, from)) = received {
            let change = SessionChange::Received { packet_id, flow };
            changes.push(Change::Session(from.client_id.clone(), change));
        }
        let sender = from.map(|from| from.key);
        let flags = (qos, retain, expires_at, now);
        let receivers = self.fan_out(&routing, &message, flags, sender, changes, publisher);
        let may_be_refused = publisher.at_hand.lost > 0 || !publisher.waiting.is_empty();
        let at_hand = &mut publisher.at_hand;
        at_hand.receivers = u32::try_from(receivers).unwrap_or(u32::MAX);
        at_hand.retained = retain;
        at_hand.received = received.map(|(packet_id, flow, _)| (packet_id, flow));
        if may_be_refused && ticket.is_some() {
            at_hand.topic = Some(Box::new(message.topic.clone()));
        }
        ticket
    }

    /// Finds the receivers of a message and queues it for them, recorded together with `changes`. Returns how many
    /// they are.
    pub(super) fn fan_out(
        &self,
        routing: &Routing,
        message: &Arc<Message>,
        (qos, retain, expires_at, now): (QoS, bool, Option<Instant>, Instant),
        sender: Option<SessionKey>,
        changes: Vec<Change>,
        publisher: &mut Publisher,
    ) -> usize {
        publisher.route(routing, &self.guard, &message.topic, sender);
        let targets = core::mem::take(&mut publisher.fan_out);
        for target in targets.targets() {
            let Some(session) = routing.session(target.session) else {
                continue;
            };
            if publisher.late.contains(&target.session) {
                continue;
            }
            let mut delivery = deliver(message, qos, target);
            delivery.retain = retain && target.retain_as_published;
            delivery.expires_at = session.mailbox.expires_at(expires_at, now);
            if publisher.journal.is_open() {
                publisher.ready.push((Arc::clone(session), delivery));
            } else {
                publisher.queue(&self.metrics, session, delivery);
            }
        }
        publisher.queue_ready(&self.metrics, changes);
        let count = targets.targets().len();
        publisher.fan_out = targets;
        count
    }

    /// Tries deliveries again, in order, that found no room. Those that still find none go on
    /// waiting, unless `is_over` says that they have waited for long enough.
    pub(crate) fn retry(&self, publisher: &mut Publisher, is_over: bool) {
        // No session ends meanwhile.
        let routing = read(&self.routing);
        publisher.retry(&self.metrics, is_over);
        drop(routing);
    }

    /// Makes the message its topic's retained one; an empty payload removes that. Returns the
    /// changes to record.
    pub(super) fn retain(
        &self,
        message: &Message,
        qos: QoS,
        expires_at: Option<Instant>,
        journal: &Journal,
    ) -> Result<Option<Change>, NoRoom> {
        if message.payload.is_empty() {
            let mut retained = write(&self.retained);
            let RetainedTopics { store, share } = &mut *retained;
            store.remove(&message.topic);
            share.set_anyway(store.bytes());
            self.metrics.retained.set(store.len());
            let change = || Change::Unretained(message.topic.detached());
            return Ok(journal.is_open().then(change));
        }
        let message = Arc::new(self.memory_limit.keep(message).ok_or(NoRoom)?);
        self.set_retained(&message, qos, expires_at, self.quotas.retained)?;
        let change = || {
            Change::Retained(StoredMessage {
                message,
                qos,
                retain: true,
                subscription_ids: Vec::new(),
                expires_at: expires_at.map(to_wall_clock),
                shared: false,
                slot: 0,
            })
        };
        Ok(journal.is_open().then(change))
    }

    /// `most`: how many topics may have a retained message.
    pub(super) fn set_retained(
        &self,
        message: &Arc<Message>,
        qos: QoS,
        expires_at: Option<Instant>,
        most: usize,
    ) -> Result<(), NoRoom> {
        let mut retained = write(&self.retained);
        let RetainedTopics { store, share } = &mut *retained;
        let is_new = !store.contains(&message.topic);
        if store.len() >= most && is_new {
            return Err(NoRoom);
        }
        store.insert(Retained {
            message: Arc::clone(message),
            qos,
            expires_at,
        });
        if is_new && most < usize::MAX && !share.set(store.bytes()) {
            store.remove(&message.topic);
            return Err(NoRoom);
        }
        share.set_anyway(store.bytes());
        self.metrics.retained.set(store.len());
        Ok(())
    }
}

/// A retained message finds no room.
pub(super) struct NoRoom;

/// The delivery of `message`, published at `qos`, to `target`.
fn deliver(message: &Arc<Message>, qos: QoS, target: &Target) -> Delivery {
    let mut delivery = Delivery::new(Arc::clone(message), qos.min(target.qos));
    if target.is_shared {
        delivery.set_shared();
    }
    if target.lane != LaneSlot::CONTROL {
        delivery.set_lane(target.lane);
    }
    if !target.subscription_ids.is_empty() {
        delivery.subscription_ids = target.subscription_ids.to_vec();
    }
    delivery
}

fn expiry(properties: &PublishProperties, now: Instant) -> Option<Instant> {
    let seconds = properties.message_expiry_interval?;
    now.checked_add(Duration::from_secs(seconds.into()))
}
