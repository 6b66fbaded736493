//! The connection of a bridge: where it differs from a client's, it calls its [`BridgeHooks`].
//!
//! [`BridgeHooks`]: crate::conn::BridgeHooks

use std::time::Instant;

use mq_codec::{ConnAck, ReasonCode};
use mq_proto::Received;

use super::Attached;
use crate::conn::bridge_hooks::BridgeConnection;

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
