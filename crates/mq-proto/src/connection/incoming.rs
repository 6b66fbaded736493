//! Incoming messages and their acknowledgements.

use core::num::NonZeroU16;
use std::{collections::VecDeque, time::Instant};

use mq_codec::{Ack, Packet, PacketId, PacketType, Publish, QoS, ReasonCode, Version};

use super::Connection;
use crate::{
    AckTicket, Event, FlowId, LaneId, Message, ProtocolError, event::Received, session::Incoming,
};

/// Acknowledgements that are due, in the order of the messages.
#[derive(Debug)]
pub(super) struct AckQueue {
    maximum: u16,
    /// The slot number of the first entry of `waiting`; the next entries follow in sequence.
    first_slot: u64,
    /// Acknowledgements; the reason of each is `None` until the owner has returned its ticket.
    waiting: VecDeque<DueAck>,
    /// The number of `waiting` entries of QoS 1; the session counts the QoS 2 ones.
    waiting_at_qos1: usize,
}

#[derive(Debug)]
struct DueAck {
    packet_id: PacketId,
    qos: QoS,
    reason: Option<ReasonCode>,
}

impl AckQueue {
    pub(super) fn new(maximum: NonZeroU16) -> Self {
        Self {
            maximum: maximum.get(),
            first_slot: 0,
            waiting: VecDeque::new(),
            waiting_at_qos1: 0,
        }
    }

    /// Returns the Receive Maximum that was announced.
    pub(super) fn maximum(&self) -> NonZeroU16 {
        NonZeroU16::new(self.maximum).unwrap_or(NonZeroU16::MIN)
    }

    /// Returns the number of acknowledgements that are due.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of QoS 1 acknowledgements that are due.
    pub(super) fn at_qos1(&self) -> usize {
        self.waiting_at_qos1
    }

    fn push(
        &mut self,
        packet_id: PacketId,
        qos: QoS,
        lane: LaneId,
        (of_session, flow): (bool, Option<FlowId>),
    ) -> AckTicket {
        let slot = self.first_slot + self.waiting.len() as u64;
        self.waiting_at_qos1 += usize::from(qos == QoS::AtLeastOnce);
        self.waiting.push_back(DueAck {
            packet_id,
            qos,
            reason: None,
        });
        AckTicket {
            slot,
            packet_id,
            qos,
            lane,
            of_session,
            flow,
        }
    }

    /// Returns `true` if a QoS 2 message with the identifier waits for its acknowledgement.
    fn has(&self, packet_id: PacketId) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|due| due.packet_id == packet_id && due.qos == QoS::ExactlyOnce)
    }

    /// Records the outcome of a ticket; returns `false` if the ticket is not of this queue.
    fn fill(&mut self, ticket: &AckTicket, reason: ReasonCode) -> bool {
        let due = ticket
            .slot
            .checked_sub(self.first_slot)
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| self.waiting.get_mut(index))
            .filter(|due| due.packet_id == ticket.packet_id && due.qos == ticket.qos);
        match due {
            Some(due) => {
                due.reason = Some(reason);
                true
            }
            None => false,
        }
    }

    /// Takes the first acknowledgement, if its ticket was returned.
    fn pop(&mut self) -> Option<(DueAck, ReasonCode)> {
        let reason = self.waiting.front()?.reason?;
        self.first_slot += 1;
        let due = self.waiting.pop_front()?;
        self.waiting_at_qos1 -= usize::from(due.qos == QoS::AtLeastOnce);
        Some((due, reason))
    }
}

impl Connection {
    /// Acknowledges a received message with success or a refusal (5.0; earlier versions can only
    /// acknowledge).
    ///
    /// PUBACK or PUBREC is put into the outbox now, or once the messages before this one are acknowledged too
    /// `[MQTT-4.6.0-2]`. Return tickets to their own connection, also after it has ended: then a QoS 2 message
    /// that the peer sends again is known.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a ticket is used once, which taking it by value enforces"
    )]
    pub fn ack(&mut self, now: Instant, ticket: AckTicket, reason: ReasonCode) {
        let lane = ticket.lane;
        let Some(acks) = self.acks_of(lane) else {
            return self.ack_of_gone_lane(now, &ticket, reason);
        };
        if !acks.fill(&ticket, reason) {
            return;
        }
        if ticket.qos == QoS::ExactlyOnce {
            let kept = self.keeps(reason);
            self.receiving_on(lane, |messages| messages.kept(ticket.packet_id, kept));
        }
        if self.is_closed() {
            return;
        }
        while let Some((due, reason)) = self.acks_of(lane).and_then(AckQueue::pop) {
            let is_qos1 = due.qos == QoS::AtLeastOnce;
            if lane != LaneId::CONTROL && is_qos1 {
                self.lanes_at_qos1 -= 1;
            }
            let answer = acknowledgement(due.packet_id, due.qos, reason);
            self.send_on(now, lane, &answer);
            if !is_qos1 && let Some(lane) = self.repeated.remove(&due.packet_id) {
                let lane = self.open_lane_or_control(lane);
                self.send_on(now, lane, &answer);
            }
        }
        if lane != LaneId::CONTROL {
            self.finish_if_done(now, lane);
        }
    }

    /// Returns `true` if the acknowledgement takes the message. A message that a version before 5.0 cannot
    /// refuse counts as taken. So does a message that the owner took while the connection ended: its repetition
    /// must not be delivered `[MQTT-4.3.3-10]`.
    pub(super) fn keeps(&self, reason: ReasonCode) -> bool {
        !reason.is_error() || self.version < Version::V5
    }

    /// Acknowledges a message whose lane has ended before its acknowledgement.
    fn ack_of_gone_lane(&mut self, now: Instant, ticket: &AckTicket, reason: ReasonCode) {
        if let Some(flow) = ticket.flow {
            return self.ack_of_flow(now, flow, ticket, reason);
        }
        if !ticket.of_session {
            return;
        }
        if ticket.qos == QoS::ExactlyOnce {
            let kept = self.keeps(reason);
            self.session.incoming.kept(ticket.packet_id, kept);
            self.repeated.remove(&ticket.packet_id);
        }
        if !self.is_closed() {
            self.send(now, &acknowledgement(ticket.packet_id, ticket.qos, reason));
        }
    }

    /// Returns the number of received QoS 1 and 2 messages whose PUBACK or PUBREC is not in the outbox yet.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        let on_lanes = self.lanes.values().map(|lane| lane.acks.len());
        self.acks.len() + on_lanes.sum::<usize>()
    }

    pub(super) fn publish_received(
        &mut self,
        now: Instant,
        lane: LaneId,
        publish: Publish,
    ) -> Result<(), ProtocolError> {
        let Publish {
            dup,
            qos,
            retain,
            mut topic,
            packet_id,
            mut properties,
            payload,
        } = publish;
        if let Some(config) = &self.server_config {
            if qos > config.maximum_qos {
                return Err(ProtocolError::Qos);
            }
            if retain && !config.retain_available {
                return Err(ProtocolError::Retain);
            }
            if !properties.subscription_ids.is_empty() {
                return Err(ProtocolError::SubscriptionId);
            }
        }
        let mut subscription_ids = Vec::new();
        // Written only if there is something, so that an empty set stays one word.
        if !properties.is_untouched() {
            if let Some(alias) = properties.topic_alias.take() {
                topic = self.aliases_of(lane).resolve(alias, topic)?;
            }
            subscription_ids = core::mem::take(&mut properties.subscription_ids);
        }
        let ticket = match packet_id {
            None => None,
            Some(id) => match self.take_responsibility(now, lane, id, qos)? {
                Some(ticket) => Some(ticket),
                None => return Ok(()),
            },
        };
        self.events.push_back(Event::Publish(Received {
            message: Message {
                topic,
                payload,
                properties,
            },
            qos,
            retain,
            dup,
            subscription_ids,
            lane,
            ticket,
        }));
        Ok(())
    }

    /// Returns a ticket for a message to deliver; `None` for a QoS 2 message that was delivered before.
    fn take_responsibility(
        &mut self,
        now: Instant,
        lane: LaneId,
        id: PacketId,
        qos: QoS,
    ) -> Result<Option<AckTicket>, ProtocolError> {
        let Some(lane) = self.answers_on(lane) else {
            return Err(ProtocolError::Unexpected(PacketType::Publish));
        };
        if qos == QoS::ExactlyOnce {
            match self.receiving_on(lane, |messages| messages.published(id)) {
                Incoming::New => {}
                Incoming::Taken => {
                    // A peer whose lane has broken repeats the message on another lane. This side may hear of
                    // the break later, after it has acknowledged the message on the broken lane.
                    if self.acks_of(lane).is_some_and(|acks| !acks.has(id)) {
                        self.repeated.insert(id, lane);
                    }
                    return Ok(None);
                }
                Incoming::Kept => {
                    let again = Packet::PubRec(Ack::new(id, ReasonCode::Success));
                    self.send_on(now, lane, &again);
                    return Ok(None);
                }
            }
        }
        // Only MQTT 5.0 peers were told how many they may send (§4.9), on all lanes together. A QoS 2
        // message whose PUBREC has left counts until its PUBREL.
        let kept = self.session.incoming.len();
        let kept = kept.saturating_sub(self.carried_incoming);
        let kept = kept + self.lanes_at_qos2 - self.lanes_carried;
        let qos1 = self.acks.at_qos1() + self.lanes_at_qos1;
        let unacknowledged = qos1 + usize::from(qos == QoS::AtLeastOnce) + kept;
        let maximum = self.acks.maximum;
        if self.version >= Version::V5 && unacknowledged > usize::from(maximum) {
            return Err(ProtocolError::ReceiveMaximum(maximum));
        }
        let of_session = self.is_of_session(lane);
        let flow = self.keeper_of(lane);
        if lane != LaneId::CONTROL && qos == QoS::AtLeastOnce {
            self.lanes_at_qos1 += 1;
        }
        let acks = self.acks_of(lane);
        Ok(acks.map(|acks| acks.push(id, qos, lane, (of_session, flow))))
    }

    pub(super) fn pubrel_received(&mut self, now: Instant, lane: LaneId, release: &Ack) {
        let Some(lane) = self.answers_on(lane) else {
            return;
        };
        let id = release.packet_id;
        let known = self.receiving_on(lane, |messages| messages.released(id));
        let (of_session, flow) = (self.is_of_session(lane), self.keeper_of(lane));
        if known && (of_session || flow.is_some()) {
            let released = Event::IncomingReleased {
                packet_id: id,
                flow,
            };
            self.events.push_back(released);
        }
        // An unknown identifier is answered all the same: the PUBCOMP may have been lost with an
        // earlier connection (§4.3.3).
        let reason = if known {
            ReasonCode::Success
        } else {
            ReasonCode::PacketIdentifierNotFound
        };
        let complete = Packet::PubComp(Ack::new(id, reason));
        self.send_on(now, lane, &complete);
        self.finish_if_complete(lane);
    }
}

pub(super) fn acknowledgement(id: PacketId, qos: QoS, reason: ReasonCode) -> Packet {
    let ack = Ack::new(id, reason);
    match qos {
        QoS::ExactlyOnce => Packet::PubRec(ack),
        QoS::AtMostOnce | QoS::AtLeastOnce => Packet::PubAck(ack),
    }
}
