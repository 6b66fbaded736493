//! The requests of an attached client: PUBLISH, SUBSCRIBE and UNSUBSCRIBE.

use std::time::Instant;

use mq_codec::{ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe};
use mq_proto::{LaneId, Received};

use super::Attached;
use crate::{hub, router};

impl Attached<'_> {
    pub(super) fn publish(&mut self, now: Instant, mut received: Received) {
        self.messages_received += 1;
        if !self.bridge_received(now, &mut received) {
            return;
        }
        if self
            .publish_rate_limiter
            .spend(received.message.payload.len(), now)
        {
            self.wire.hub.metrics.throttled.add(1);
        }
        if self.is_back(now, &mut received) {
            return;
        }
        let session = &self.hold.session;
        let topic = &received.message.topic;
        if router::is_too_deep(topic.as_bytes()) {
            let reason = "topic of too many levels";
            self.wire.hub.refused_publish(session, topic, reason, now);
            match received.ticket.take() {
                Some(ticket) if self.wire.connection.has_reason_codes() => {
                    self.wire
                        .connection
                        .ack(now, ticket, ReasonCode::TopicNameInvalid);
                }
                // The client cannot be told of this message alone.
                _ => self.wire.disconnect_for(ReasonCode::TopicNameInvalid),
            }
            return;
        }
        let publisher = &mut self.publisher;
        let is_own = self.wire.hub.is_own_topic(topic, &session.client_id);
        if is_own {
            self.wire.hub.metrics.not_authorized.add(1);
        }
        let who = self.client.principal.as_ref();
        if is_own || who.is_some_and(|who| !self.wire.hub.may_publish(who, &received, publisher)) {
            let topic = &received.message.topic;
            let reason = if is_own {
                hub::OWN_TOPIC
            } else {
                ReasonCode::NotAuthorized.name()
            };
            self.wire.hub.refused_publish(session, topic, reason, now);
            // Before 5.0 it is acknowledged like any other.
            if let Some(ticket) = received.ticket.take() {
                self.wire
                    .connection
                    .ack(now, ticket, ReasonCode::NotAuthorized);
            }
            return;
        }
        if !self.passes_hooks(now, &mut received) {
            return;
        }
        let (hub, session) = (&self.wire.hub, &self.hold.session);
        let routed = hub.publish(Some(session), received, now, &mut self.publisher);
        if routed.is_delivered() {
            self.acknowledge(routed, now);
        } else {
            self.blocked_publish = Some(routed);
        }
    }

    /// Refuses a message whose payload found no memory. One of QoS 0 is dropped.
    pub(super) fn refuse_discarded(&mut self, now: Instant, received: Received) {
        self.messages_received += 1;
        let hub = &self.wire.hub;
        let (session, topic) = (&self.hold.session, &received.message.topic);
        hub.refused_publish(session, topic, "no memory for it", now);
        match received.ticket {
            Some(ticket) => {
                let reason = ReasonCode::QuotaExceeded;
                self.wire.connection.ack(now, ticket, reason);
            }
            None => hub.metrics.dropped.add(1),
        }
    }

    pub(super) fn subscribe(&mut self, now: Instant, lane: LaneId, subscribe: &Subscribe) {
        let id = subscribe.properties.subscription_id;
        let state = &mut self.hold.state;
        let slot = self.lanes.slot_of(lane, &self.wire.connection, state);
        let reasons = subscribe
            .subscriptions
            .iter()
            .map(|subscription| {
                let reason = if router::is_too_deep(subscription.filter.as_bytes()) {
                    ReasonCode::TopicFilterInvalid
                } else if let Err(refused) = self.ask_hooks(subscription) {
                    refused
                } else {
                    let wanted = self.as_bridge_wants(subscription);
                    let journal = &mut self.publisher.journal;
                    self.wire
                        .hub
                        .subscribe(&mut self.hold, &wanted, id, slot, journal)
                };
                if reason.is_error() {
                    let (session, filter) = (&self.hold.session, &subscription.filter);
                    self.wire
                        .hub
                        .refused_subscription(session, filter, reason.name(), now);
                }
                reason
            })
            .collect();
        let ack = SubAck {
            packet_id: subscribe.packet_id,
            reasons,
            properties: mq_codec::SubAckProperties::default(),
        };
        self.wire
            .answer(|connection| connection.suback(now, lane, ack));
    }

    pub(super) fn unsubscribe(&mut self, now: Instant, lane: LaneId, unsubscribe: &Unsubscribe) {
        let reasons = unsubscribe
            .filters
            .iter()
            .map(|filter| {
                let journal = &mut self.publisher.journal;
                self.wire.hub.unsubscribe(&mut self.hold, filter, journal)
            })
            .collect();
        let ack = UnsubAck {
            packet_id: unsubscribe.packet_id,
            reasons,
            properties: mq_codec::UnsubAckProperties::default(),
        };
        self.wire
            .answer(|connection| connection.unsuback(now, lane, ack));
    }
}
