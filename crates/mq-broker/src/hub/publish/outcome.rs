//! A message that was routed, and its outcome.

use std::{sync::Arc, time::Instant};

use mq_codec::{PacketId, TopicName};
use mq_proto::{AckTicket, Delivery, FlowId, Message};

use super::Publication;
use crate::{hub, journal::Journal, metrics::Metrics, session::Session, store::Position};

/// A message that was routed, until it is acknowledged.
///
/// Most are acknowledged at once. A message waits while one of its receivers has no room, and its publisher's later
/// requests wait for it.
#[derive(Debug, Default)]
pub(crate) struct RoutedMessage {
    /// The duty to acknowledge it; `None` at QoS 0.
    pub(super) ticket: Option<AckTicket>,
    pub(super) outcome: Outcome,
    /// Deliveries that found no room, in order.
    pub(super) undelivered: Vec<(Arc<Session>, Delivery)>,
    /// Time since which the first of them waits.
    pub(super) waiting_since: Option<Instant>,
    /// The message in memory of its own, for all readers that lag.
    pub(super) shared_copy: Option<SharedCopy>,
}

/// A message, and the copy of it that counts against the memory limit.
#[derive(Debug)]
pub(super) struct SharedCopy {
    pub(super) of: Arc<Message>,
    pub(super) copy: Arc<Message>,
}

/// The effect of a message on its receivers.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) receivers: u32,
    /// Receivers for which it was dropped.
    pub(super) lost: u32,
    /// `true` if one of them had no room for it. A session without a connection keeps no QoS 0 message, however much room
    /// it has (MQTT 5.0, §4.1).
    pub(super) lacked_room: bool,
    pub(super) is_retained: bool,
    /// The packet identifier by which the store knows it, at QoS 2, and the flow that keeps it.
    pub(super) received: Option<(PacketId, Option<FlowId>)>,
    /// The topic of a message that may have to be refused; in a box, as that is seldom.
    pub(super) topic: Option<Box<TopicName>>,
    /// The position of a message on its way to the cluster; 0 if it is not.
    pub(super) appended: Position,
    /// `true` if no publisher may take the message for delivered, even one that can be told no reason.
    pub(super) is_refused: bool,
}

impl RoutedMessage {
    pub(super) fn new(ticket: Option<AckTicket>) -> Self {
        Self {
            ticket,
            ..Self::default()
        }
    }

    /// Notes that no receiver gets it.
    pub(super) fn refuse(&mut self, topic: &TopicName) {
        self.outcome = Outcome {
            receivers: 1,
            lost: 1,
            lacked_room: true,
            topic: Some(Box::new(topic.clone())),
            ..Outcome::default()
        };
    }

    /// Notes that the cluster does not take it.
    pub(super) fn refuse_whoever(&mut self, topic: &TopicName) {
        self.refuse(topic);
        self.outcome.is_refused = true;
    }

    /// Notes that it is on its way to the cluster, whose receivers are not known here.
    pub(super) fn passed_on(&mut self, position: Position) {
        self.outcome = Outcome {
            receivers: 1,
            appended: position,
            ..Outcome::default()
        };
    }

    /// Notes the receivers to which it was routed.
    pub(super) fn note_receivers(&mut self, publication: &Publication, receivers: usize) {
        let may_be_refused = self.outcome.lost > 0 || !self.undelivered.is_empty();
        self.outcome.receivers = u32::try_from(receivers).unwrap_or(u32::MAX);
        self.outcome.is_retained = publication.retain;
        if may_be_refused && self.ticket.is_some() {
            self.outcome.topic = Some(Box::new(publication.message.topic.clone()));
        }
    }

    /// Returns `true` if no delivery waits for room.
    pub(crate) fn is_delivered(&self) -> bool {
        self.undelivered.is_empty()
    }

    /// Returns the session for whose room the first delivery waits.
    pub(crate) fn blocked_by(&self) -> Option<&Arc<Session>> {
        self.undelivered.first().map(|(session, _)| session)
    }

    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        self.waiting_since
    }

    /// Drops the deliveries that found no room. The caller holds the routing, so that no session ends meanwhile.
    pub(super) fn give_up(self, metrics: &Metrics, journal: &mut Journal) {
        for (session, delivery) in self.undelivered {
            hub::dropped(metrics, &session, &delivery, journal);
        }
    }
}
