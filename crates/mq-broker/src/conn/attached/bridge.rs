//! The connection of a bridge: where it differs from a client's, it calls its [`BridgeHooks`].
//!
//! [`BridgeHooks`]: crate::conn::BridgeHooks

use std::{borrow::Cow, time::Instant};

use mq_codec::{ConnAck, ReasonCode, Subscription, Version};
use mq_proto::Received;

use super::Attached;
use crate::conn::bridge_hooks::BridgeConnection;

/// The reason for which a message is refused that has been here.
const WAS_HERE: &str = "message that was here";

impl Attached<'_> {
    /// Acts on CONNACK of the remote broker.
    pub(super) fn bridge_connected(&mut self, now: Instant, ack: &ConnAck) {
        let Some(bridge) = &mut self.bridge else {
            return;
        };
        let wire = &mut *self.wire;
        let at = BridgeConnection {
            connection: &mut wire.connection,
            link: wire.link.info(),
            hub: &wire.hub,
            hold: &mut self.hold,
            journal: &mut self.publisher.journal,
            last_word: &mut wire.last_word,
        };
        let sent = bridge.connected(now, ack, at);
        wire.answer(|_| sent);
    }

    /// Gives a message from the remote broker the name that it has here. Returns `false` for one that is not published
    /// here, which is acknowledged.
    pub(super) fn bridge_received(&mut self, now: Instant, received: &mut Received) -> bool {
        let Some(bridge) = &self.bridge else {
            return true;
        };
        let Err(why) = bridge.rename_incoming(received) else {
            return true;
        };
        let (session, topic) = (&self.hold.session, &received.message.topic);
        self.wire.hub.refused_publish(session, topic, why, now);
        if let Some(ticket) = received.ticket.take() {
            self.wire.connection.ack(now, ticket, ReasonCode::Success);
        }
        false
    }

    /// Refuses a client's message that a bridge has carried away from this broker. Returns `true` if it is one; it is
    /// acknowledged.
    pub(super) fn is_back(&mut self, now: Instant, received: &mut Received) -> bool {
        let hub = &self.wire.hub;
        let properties = &received.message.properties.user_properties;
        if self.bridge.is_some() || properties.is_empty() || !hub.mark().is_on(&received.message) {
            return false;
        }
        hub.refused_publish(&self.hold.session, &received.message.topic, WAS_HERE, now);
        if let Some(ticket) = received.ticket.take() {
            self.wire.connection.ack(now, ticket, ReasonCode::Success);
        }
        true
    }

    /// Returns a subscription with the options of a remote broker's bridge: before 5.0 its messages do not come back to
    /// it, and those of others stay retained.
    pub(super) fn as_bridge_wants<'a>(&self, wanted: &'a Subscription) -> Cow<'a, Subscription> {
        let is_old = self.wire.connection.version() < Version::V5;
        if !is_old || !self.hold.session.is_bridge() {
            return Cow::Borrowed(wanted);
        }
        let mut wanted = wanted.clone();
        // `[MQTT-3.8.3-4]`
        wanted.options.no_local = wanted.filter.shared().is_none();
        wanted.options.retain_as_published = true;
        Cow::Owned(wanted)
    }

    /// Ends a connection that is to end when it carries nothing. Returns the time at which to look again.
    pub(super) fn bridge_idle(&mut self, now: Instant) -> Option<Instant> {
        let carried = self.messages_sent + self.messages_received;
        let bridge = self.bridge.as_mut()?;
        let at = bridge.idle_deadline(now, carried, &self.wire.connection)?;
        if at <= now {
            self.wire.disconnect_for(ReasonCode::Success);
            return None;
        }
        Some(at)
    }
}
