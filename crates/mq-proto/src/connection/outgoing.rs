//! Outgoing messages and their acknowledgements.

use core::num::NonZeroU16;
use std::{collections::VecDeque, time::Instant};

use mq_codec::{
    Ack, Packet, PacketId, PacketType, PublishHead, QoS, ReasonCode, TopicName, Version,
};

use super::{Connection, State};
use crate::{
    CommandError, Delivery, Event, LaneId, ProtocolError, Session, alias::SendTopic,
    limits::PeerLimits, session::OutgoingState,
};

/// The greatest number of QoS 1 and 2 messages that a client sends before CONNACK announces the server's
/// Receive Maximum; the Receive Maximum of the connection before counts as well. Ten is less than common
/// brokers announce (mosquitto 20, EMQX 32), and more than a device sends in its first round trip.
const EARLY_WINDOW: u16 = 10;

/// The window of QoS 1 and 2 messages, and the messages that wait to be sent again.
#[derive(Debug)]
pub(super) struct SendWindow {
    maximum: u16,
    /// Number of QoS 1 and 2 messages that were sent on this connection and are not complete.
    sent: usize,
    /// Messages in flight that are to be sent again and were not yet, in order; before CONNACK those whose lane has
    /// broken. None of them counts in `sent`.
    again: VecDeque<PacketId>,
}

impl SendWindow {
    pub(super) fn new(maximum: NonZeroU16) -> Self {
        Self {
            maximum: maximum.get(),
            sent: 0,
            again: VecDeque::new(),
        }
    }

    /// Returns the greatest number of messages in flight.
    #[cfg(feature = "mqtt-next")]
    pub(super) fn maximum(&self) -> u16 {
        self.maximum
    }

    /// Lowers the window to the peer's Receive Maximum.
    pub(super) fn limit(&mut self, receive_maximum: NonZeroU16) {
        self.maximum = self.maximum.min(receive_maximum.get());
    }

    /// Returns the number of messages in flight that were not sent on this connection. Counts before
    /// [`resume`](Self::resume) alone.
    pub(super) fn carried_over(&self, session: &Session) -> usize {
        let of_this_connection = self.sent + self.again.len();
        (session.in_flight() - session.parked()).saturating_sub(of_this_connection)
    }

    /// Marks the messages in flight of earlier connections to be sent again, in order: they come first in
    /// the session, before those of this connection. Of those, the ones whose lane has broken already are sent again
    /// as well.
    pub(super) fn resume(&mut self, session: &Session) {
        let carried_over = self.carried_over(session);
        let broken = core::mem::take(&mut self.again);
        let ids = session.in_order_not_parked().into_iter().enumerate();
        let again = ids.filter(|(place, id)| *place < carried_over || broken.contains(id));
        self.again = again.map(|(_, id)| id).collect();
    }

    fn free(&self) -> usize {
        usize::from(self.maximum).saturating_sub(self.sent)
    }

    /// Returns the free window before CONNACK, where `earlier` are the server's limits on the connection
    /// before.
    fn free_early(&self, earlier: Option<&PeerLimits>) -> usize {
        let earlier = earlier.map_or(u16::MAX, |limits| limits.receive_maximum.get());
        let maximum = self.maximum.min(EARLY_WINDOW).min(earlier);
        usize::from(maximum).saturating_sub(self.sent)
    }

    /// Marks messages to be sent again, whether this connection has sent them or not.
    pub(super) fn send_anew(&mut self, ids: Vec<PacketId>) {
        for id in &ids {
            self.forget(*id);
        }
        self.send_later(ids);
    }

    /// Marks messages to be sent on this connection that it has not sent yet.
    pub(super) fn send_later(&mut self, ids: Vec<PacketId>) {
        self.again.extend(ids);
    }

    /// Forgets a message in flight. Returns `true` if it was sent on this connection, which frees its place in the
    /// window, and `false` if it still waited to be sent again.
    pub(super) fn forget(&mut self, id: PacketId) -> bool {
        let waiting = self.again.iter().position(|waiting| *waiting == id);
        if let Some(index) = waiting {
            self.again.remove(index);
        } else {
            self.sent = self.sent.saturating_sub(1);
        }
        waiting.is_none()
    }
}

impl Connection {
    /// Returns the number of QoS 1 and 2 messages that [`publish`](Self::publish) takes now (§4.9).
    #[must_use]
    pub fn window(&self) -> usize {
        match self.state {
            State::Open if self.window.again.is_empty() => self.window.free(),
            // Before CONNACK, messages of an earlier connection have to go first, and those whose lane has broken.
            State::Connecting
                if self.may_be_early()
                    && self.window.again.is_empty()
                    && self.window.carried_over(&self.session) == 0 =>
            {
                self.window.free_early(self.limits_before_connack())
            }
            _ => 0,
        }
    }

    /// Puts a message into the outbox. Returns the packet identifier of a QoS 1 or 2 message, which
    /// [`Event::Acked`] will have; the message is kept until then. `None` for QoS 0.
    ///
    /// A client may call it before CONNACK, right after [`connect`](Self::connect): at any QoS,
    /// with a window of ten for QoS 1 and 2, or of the server's Receive Maximum on the connection before
    /// if that is less. Not if CONNECT names an authentication method.
    ///
    /// # Errors
    /// Any [`CommandError`], with the delivery. [`CommandError::WindowFull`] and
    /// [`CommandError::NoPacketId`] pass: try again after the next [`Event::Acked`].
    /// [`CommandError::NotConnected`] before CONNACK passes with it: the server's limits on the connection
    /// before exclude the message, and the new ones are not known yet.
    pub fn publish(
        &mut self,
        now: Instant,
        delivery: Delivery,
    ) -> Result<Option<PacketId>, (CommandError, Delivery)> {
        self.publish_on(now, LaneId::CONTROL, delivery)
    }

    /// Puts a message into the outbox like [`publish`](Self::publish), on a data lane that the link has opened.
    /// A client's QoS 2 message goes on the control lane all the same, if the server counts packet identifiers
    /// by lane: a broken lane would leave it unknown whether the message has arrived.
    ///
    /// # Errors
    /// See [`publish`](Self::publish).
    pub fn publish_on(
        &mut self,
        now: Instant,
        lane: LaneId,
        delivery: Delivery,
    ) -> Result<Option<PacketId>, (CommandError, Delivery)> {
        let lane = self.lane_for(lane, delivery.qos);
        if let Err(error) = self.may_publish(&delivery) {
            return Err((error, delivery));
        }
        self.begin_own_flow(lane);
        if delivery.qos == QoS::AtMostOnce {
            return match self.write_publish(now, lane, &delivery, None, false) {
                Ok(()) => Ok(None),
                Err(error) => Err((error, delivery)),
            };
        }
        let Some(id) = self.unused_id() else {
            return Err((CommandError::NoPacketId, delivery));
        };
        if let Err(error) = self.write_publish(now, lane, &delivery, Some(id), false) {
            return Err((error, delivery));
        }
        self.window.sent += 1;
        let flow = self.keeper_of(lane);
        self.session.published(id, delivery, lane, flow);
        self.sent_on(lane);
        Ok(Some(id))
    }

    /// Returns a packet identifier that no exchange of this side uses.
    pub(super) fn unused_id(&mut self) -> Option<PacketId> {
        let (requests, ping) = (&self.requests, self.ping);
        self.session
            .allocate(|id| requests.contains_key(&id) || ping == Some(id))
    }

    pub(super) fn may_publish(&self, delivery: &Delivery) -> Result<(), CommandError> {
        if self.state != State::Open && !self.may_be_early() {
            return Err(CommandError::NotConnected);
        }
        if let Some(earlier) = self.limits_before_connack()
            && (delivery.qos > earlier.maximum_qos || delivery.retain && !earlier.retain_available)
        {
            return Err(CommandError::NotConnected);
        }
        self.check_peer_takes(delivery)?;
        if delivery.qos > QoS::AtMostOnce && self.window() == 0 {
            return Err(CommandError::WindowFull);
        }
        Ok(())
    }

    /// Checks what CONNACK allows `[MQTT-3.2.2-11]`, `[MQTT-3.2.2-14]`.
    fn check_peer_takes(&self, delivery: &Delivery) -> Result<(), CommandError> {
        if delivery.qos > self.peer.maximum_qos {
            return Err(CommandError::QosNotSupported);
        }
        if delivery.retain && !self.peer.retain_available {
            return Err(CommandError::RetainNotSupported);
        }
        Ok(())
    }

    fn write_publish(
        &mut self,
        now: Instant,
        lane: LaneId,
        delivery: &Delivery,
        packet_id: Option<PacketId>,
        dup: bool,
    ) -> Result<(), CommandError> {
        let no_name = TopicName::empty();
        let message = &*delivery.message;
        // Some peers count aliases by lane, others by connection.
        let topic = match lane {
            LaneId::CONTROL => self.send_aliases.look_up(&message.topic),
            _ => SendTopic::Name,
        };
        let (name, topic_alias) = match topic {
            SendTopic::Name => (&message.topic, None),
            SendTopic::Introduce(alias) => (&message.topic, Some(alias)),
            SendTopic::Alias(alias) => (&no_name, Some(alias)),
        };
        let head = PublishHead {
            dup,
            topic: name,
            packet_id,
            topic_alias,
            ..head(delivery, now)
        };
        let version = self.version;
        self.check_size(|| head.packet_size(version))?;
        self.outbox.put(lane, |out| head.encode(version, out))?;
        self.outbox.put_body(lane, &message.payload);
        if let SendTopic::Introduce(alias) = topic {
            self.send_aliases.introduced(&message.topic, alias);
        }
        self.keep_alive.sent(now);
        Ok(())
    }

    /// Sends messages in flight again, those of an earlier connection or of a lane that has ended, as far as
    /// the window allows `[MQTT-4.4.0-1]`.
    pub(super) fn send_again(&mut self, now: Instant) {
        while self.window.free() > 0 {
            let Some(id) = self.window.again.pop_front() else {
                return;
            };
            let Some(lane) = self.session.lane_of(id) else {
                continue;
            };
            match self.session.outgoing(id).cloned() {
                Some(OutgoingState::Published(delivery)) => {
                    let written = self
                        .check_peer_takes(&delivery)
                        .and_then(|()| self.write_publish(now, lane, &delivery, Some(id), true));
                    if let Err(error) = written {
                        // This server will never take the message, such as one that is too large.
                        self.session.completed(id);
                        self.events.push_back(Event::Acked {
                            packet_id: id,
                            reason: refusal(&error),
                            delivery: Some(delivery),
                        });
                        // A lane may have waited for this message alone.
                        self.finish_if_done(now, lane);
                        continue;
                    }
                }
                Some(OutgoingState::Released) => {
                    let release = Packet::PubRel(Ack::new(id, ReasonCode::Success));
                    self.send_on(now, lane, &release);
                }
                None => continue,
            }
            self.window.sent += 1;
            self.sent_on(lane);
        }
    }

    /// Returns `true` if a message waits to be sent again on a lane.
    pub(super) fn waits_for(&self, lane: LaneId) -> bool {
        let mut again = self.window.again.iter();
        again.any(|id| self.session.lane_of(*id) == Some(lane))
    }

    pub(super) fn puback_received(&mut self, now: Instant, ack: &Ack) -> Result<(), ProtocolError> {
        match self.session.outgoing(ack.packet_id) {
            Some(state) if state.is_published_at(QoS::AtLeastOnce) => {
                self.complete(now, ack.packet_id, ack.reason);
            }
            Some(_) => return Err(wrong_answer(PacketType::PubAck, ack)),
            // Late: it may answer a message of a session that is gone.
            None => {}
        }
        Ok(())
    }

    pub(super) fn pubrec_received(
        &mut self,
        now: Instant,
        lane: LaneId,
        ack: &Ack,
    ) -> Result<(), ProtocolError> {
        let id = ack.packet_id;
        let known = match self.session.outgoing(id) {
            Some(state) if state.is_published_at(QoS::AtLeastOnce) => {
                return Err(wrong_answer(PacketType::PubRec, ack));
            }
            Some(_) => true,
            None => false,
        };
        if ack.reason.is_error() {
            // The end of the exchange, which is not released (§4.3.3).
            if known {
                self.complete(now, id, ack.reason);
            }
            return Ok(());
        }
        let reason = if known {
            if let Some(delivery) = self.session.release(id) {
                let packet_id = id;
                let released = Event::Released {
                    packet_id,
                    delivery,
                };
                self.events.push_back(released);
            }
            ReasonCode::Success
        } else {
            ReasonCode::PacketIdentifierNotFound
        };
        let release = Packet::PubRel(Ack::new(id, reason));
        if let Some(lane) = self.answers_on(lane) {
            self.send_on(now, lane, &release);
        }
        Ok(())
    }

    pub(super) fn pubcomp_received(
        &mut self,
        now: Instant,
        ack: &Ack,
    ) -> Result<(), ProtocolError> {
        match self.session.outgoing(ack.packet_id) {
            Some(OutgoingState::Released) => {
                // "Not found" means that the receiver has finished with the message: as good as success.
                self.complete(now, ack.packet_id, ReasonCode::Success);
            }
            Some(OutgoingState::Published(_)) => {
                return Err(wrong_answer(PacketType::PubComp, ack));
            }
            None if self.ping == Some(ack.packet_id) => {
                self.ping = None;
                self.events.push_back(Event::PingResp);
            }
            None => {}
        }
        Ok(())
    }

    pub(super) fn complete(&mut self, now: Instant, id: PacketId, reason: ReasonCode) {
        // `None` for one that waits for its flow, and counts nowhere.
        let lane = self.session.lane_of(id);
        let delivery = self
            .session
            .completed(id)
            .and_then(OutgoingState::into_delivery);
        self.events.push_back(Event::Acked {
            packet_id: id,
            reason,
            delivery,
        });
        if let Some(lane) = lane {
            if self.window.forget(id) {
                self.completed_on(lane);
            }
            self.finish_if_done(now, lane);
        }
        if self.state == State::Open {
            self.send_again(now);
        }
    }

    /// Returns `true` for MQTT 5.0, where acknowledgements can refuse a message with a reason code.
    #[must_use]
    pub fn has_reason_codes(&self) -> bool {
        self.version >= Version::V5
    }
}

/// Returns the head of a message that is sent for the first time, with its topic name and without packet
/// identifier.
pub(super) fn head(delivery: &Delivery, now: Instant) -> PublishHead<'_> {
    let message = &*delivery.message;
    PublishHead {
        dup: false,
        qos: delivery.qos,
        retain: delivery.retain,
        topic: &message.topic,
        packet_id: None,
        topic_alias: None,
        message_expiry_interval: delivery.expiry_interval(now),
        subscription_ids: &delivery.subscription_ids,
        properties: &message.properties,
        payload_len: message.payload.len(),
    }
}

fn wrong_answer(packet: PacketType, ack: &Ack) -> ProtocolError {
    let id = ack.packet_id;
    ProtocolError::WrongAnswer { packet, id }
}

fn refusal(error: &CommandError) -> ReasonCode {
    match error {
        CommandError::TooLarge { .. } => ReasonCode::PacketTooLarge,
        CommandError::QosNotSupported => ReasonCode::QosNotSupported,
        CommandError::RetainNotSupported => ReasonCode::RetainNotSupported,
        _ => ReasonCode::UnspecifiedError,
    }
}
