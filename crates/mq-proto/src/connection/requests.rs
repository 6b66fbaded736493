//! SUBSCRIBE, UNSUBSCRIBE and their answers.

use std::time::Instant;

use mq_codec::{
    Packet, PacketId, PacketType, SubAck, Subscribe, SubscribeProperties, Subscription,
    TopicFilter, UnsubAck, Unsubscribe, UnsubscribeProperties,
};

use super::{Connection, Role, State};
use crate::{CommandError, Event, LaneId, ProtocolError};

impl Connection {
    /// Client: asks for subscriptions, at least one; [`Event::SubAck`] answers.
    ///
    /// Returns the packet identifier that the answer will have. May be called before CONNACK, right
    /// after [`connect`](Self::connect), unless that names an authentication method.
    ///
    /// # Errors
    /// [`CommandError::NotConnected`] before CONNECT, after the end, and on a server;
    /// [`CommandError::NoPacketId`]; [`CommandError::Encode`] or [`CommandError::TooLarge`] if the
    /// packet cannot be sent.
    pub fn subscribe(
        &mut self,
        now: Instant,
        subscriptions: Vec<Subscription>,
        properties: SubscribeProperties,
    ) -> Result<PacketId, CommandError> {
        self.subscribe_on(now, LaneId::CONTROL, subscriptions, properties)
    }

    /// Client: asks for subscriptions like [`subscribe`](Self::subscribe), on a data lane that the link has
    /// opened: the server sends the messages of these subscriptions there, as long as the lane is open.
    /// [`Event::RequestLost`] follows if the lane ends before the answer.
    ///
    /// # Errors
    /// See [`subscribe`](Self::subscribe).
    pub fn subscribe_on(
        &mut self,
        now: Instant,
        lane: LaneId,
        subscriptions: Vec<Subscription>,
        properties: SubscribeProperties,
    ) -> Result<PacketId, CommandError> {
        let packet_id = self.request_id()?;
        let packet = Packet::Subscribe(Subscribe {
            packet_id,
            subscriptions,
            properties,
        });
        if lane != LaneId::CONTROL {
            self.data_lane(lane);
        }
        self.request(now, lane, packet_id, &packet)
    }

    /// Client: ends subscriptions, at least one; [`Event::UnsubAck`] answers.
    ///
    /// # Errors
    /// See [`subscribe`](Self::subscribe).
    pub fn unsubscribe(
        &mut self,
        now: Instant,
        filters: Vec<TopicFilter>,
        properties: UnsubscribeProperties,
    ) -> Result<PacketId, CommandError> {
        let packet_id = self.request_id()?;
        let packet = Packet::Unsubscribe(Unsubscribe {
            packet_id,
            filters,
            properties,
        });
        self.request(now, LaneId::CONTROL, packet_id, &packet)
    }

    /// Server: answers [`Event::Subscribe`], with its packet identifier and a reason for each
    /// subscription `[MQTT-3.8.4-6]`.
    ///
    /// # Errors
    /// [`CommandError::NotConnected`] if the connection is not open, or on a client;
    /// [`CommandError::Encode`] or [`CommandError::TooLarge`] if the packet cannot be sent.
    pub fn suback(&mut self, now: Instant, lane: LaneId, ack: SubAck) -> Result<(), CommandError> {
        self.answer(now, lane, &Packet::SubAck(Box::new(ack)))
    }

    /// Server: answers [`Event::Unsubscribe`], with its packet identifier and a reason for each
    /// filter.
    ///
    /// # Errors
    /// See [`suback`](Self::suback).
    pub fn unsuback(
        &mut self,
        now: Instant,
        lane: LaneId,
        ack: UnsubAck,
    ) -> Result<(), CommandError> {
        self.answer(now, lane, &Packet::UnsubAck(Box::new(ack)))
    }

    pub(super) fn suback_received(&mut self, ack: SubAck) -> Result<(), ProtocolError> {
        self.request_answered(PacketType::SubAck, ack.packet_id)?;
        self.events.push_back(Event::SubAck(ack));
        Ok(())
    }

    pub(super) fn unsuback_received(&mut self, ack: UnsubAck) -> Result<(), ProtocolError> {
        self.request_answered(PacketType::UnsubAck, ack.packet_id)?;
        self.events.push_back(Event::UnsubAck(ack));
        Ok(())
    }

    fn request_id(&mut self) -> Result<PacketId, CommandError> {
        let open = self.role == Role::Client && self.state == State::Open;
        if !open && !self.may_be_early() {
            return Err(CommandError::NotConnected);
        }
        self.unused_id().ok_or(CommandError::NoPacketId)
    }

    fn request(
        &mut self,
        now: Instant,
        lane: LaneId,
        id: PacketId,
        packet: &Packet,
    ) -> Result<PacketId, CommandError> {
        self.try_send(now, lane, packet)?;
        self.requests.insert(id, lane);
        Ok(id)
    }

    fn answer(&mut self, now: Instant, lane: LaneId, packet: &Packet) -> Result<(), CommandError> {
        if self.role != Role::Server || self.state != State::Open {
            return Err(CommandError::NotConnected);
        }
        self.try_send(now, self.open_lane_or_control(lane), packet)
    }

    fn request_answered(&mut self, packet: PacketType, id: PacketId) -> Result<(), ProtocolError> {
        if self.requests.remove(&id).is_some() {
            Ok(())
        } else {
            Err(ProtocolError::UnknownRequest { packet, id })
        }
    }
}
