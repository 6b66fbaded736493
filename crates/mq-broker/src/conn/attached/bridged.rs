//! What a bridge's session does besides: names of topics, hops, and the other broker's answers.

use std::{sync::Arc, time::Instant};

use mq_codec::{ConnAck, QoS, ReasonCode, RetainHandling, SubAck, SubscribeProperties, Version};
use mq_proto::{Connection, Delivery, Received, Session};
use tracing::{info, warn};

use super::Attached;
use crate::{bridge::Bridge, router::LaneSlot, session::Presence, store::SessionChange};

/// The bridge whose session this is.
pub(in crate::conn) struct Bridged {
    bridge: Arc<Bridge>,
    /// Since when the other broker has let this one in.
    since: Option<Instant>,
    /// Messages that were carried, and until when a connection that is closed when idle has had nothing to do.
    carried: u64,
    busy_at: Instant,
    /// What the other broker is to be told of this connection, once the window has room for it.
    untold: Option<Delivery>,
    /// What the store knows of exchanges that the other broker may have forgotten: QoS 2 messages that were received
    /// and not released, and those that were sent and released.
    forgettable: Vec<SessionChange>,
}

impl Bridged {
    pub(in crate::conn) fn new(bridge: Arc<Bridge>, session: &Session, now: Instant) -> Self {
        let flow = None;
        let received = session.received();
        let received =
            received.map(|packet_id| SessionChange::ReceivedReleased { packet_id, flow });
        let released = session.released();
        let released = released.map(|packet_id| SessionChange::Completed { packet_id });
        Self {
            bridge,
            forgettable: received.chain(released).collect(),
            since: None,
            carried: 0,
            busy_at: now,
            untold: None,
        }
    }
}

/// Gives a delivery the form in which it goes over the bridge, if this is one: of no higher QoS than the other broker
/// takes, and retained if that may be. False for a delivery that does not go there.
pub(super) fn rename(
    bridged: Option<&Bridged>,
    connection: &Connection,
    delivery: &mut Delivery,
) -> bool {
    let Some(bridged) = bridged else {
        return true;
    };
    let Some(sent) = bridged.bridge.sent(delivery) else {
        return false;
    };
    *delivery = sent;
    delivery.qos = delivery.qos.min(connection.maximum_qos());
    delivery.retain &= connection.retain_available();
    true
}

impl Attached<'_> {
    /// Makes it a bridge's session.
    pub(in crate::conn) fn bridge(&mut self, bridged: Bridged) {
        self.bridged = Some(Box::new(bridged));
    }

    /// Since when the other broker has let a bridge in.
    pub(in crate::conn) fn bridged_since(&self) -> Option<Instant> {
        self.bridged.as_ref().and_then(|bridged| bridged.since)
    }

    /// The other broker has let this one in.
    pub(super) fn bridge_connected(&mut self, now: Instant, ack: &ConnAck) {
        let Some(bridged) = &mut self.bridged else {
            return;
        };
        bridged.since = Some(now);
        bridged.busy_at = now;
        let forgettable = core::mem::take(&mut bridged.forgettable);
        let bridge = Arc::clone(&bridged.bridge);
        let link = self.wire.link.info();
        info!(
            bridge = bridge.name,
            peer = link.peer_address.map(tracing::field::display),
            transport = %link.scheme,
            session_present = ack.session_present,
            "a bridge is connected"
        );
        let version = self.wire.connection.version();
        let (scheme, peer) = (link.scheme, link.peer_address);
        let presence = Presence::new(
            scheme,
            peer,
            version,
            bridge.clean,
            bridge.keep_alive(),
            self.afterwards.expiry,
        );
        self.hold.show_to_operators(presence);
        self.wire.hub.publish_bridge_state(&bridge, true);
        self.bridge_says(now, &bridge);
        if !ack.session_present {
            for change in forgettable {
                self.record(change);
            }
            self.send_retained_again(&bridge);
        }
        let wanted = bridge.topics.wanted_there(version >= Version::V5);
        if !wanted.is_empty() {
            let properties = SubscribeProperties::default();
            self.wire.answer(|connection| {
                let sent = connection.subscribe(now, wanted, properties);
                sent.map(drop)
            });
        }
    }

    /// Has something to say at the other broker of this connection, at its beginning and its end.
    fn bridge_says(&mut self, now: Instant, bridge: &Bridge) {
        let (Some([mut first, mut last]), Some(bridged)) = (bridge.says_there(), &mut self.bridged)
        else {
            return;
        };
        let connection = &self.wire.connection;
        first.qos = first.qos.min(connection.maximum_qos());
        for said in [&mut first, &mut last] {
            said.retain &= connection.retain_available();
        }
        bridged.untold = Some(first);
        self.wire.last_word = Some(Box::new(last));
        self.bridge_tells(now);
    }

    /// Tells the other broker of this connection. What is in flight of an earlier one goes first.
    pub(super) fn bridge_tells(&mut self, now: Instant) {
        let Some(bridged) = &mut self.bridged else {
            return;
        };
        let has_room = self.wire.connection.window() > 0;
        let may_go = |untold: &mut Delivery| has_room || untold.qos == QoS::AtMostOnce;
        if let Some(untold) = bridged.untold.take_if(may_go) {
            // Larger than the other broker takes, if it fails.
            let _ = self.wire.connection.publish(now, untold);
        }
    }

    /// The other broker knows nothing of the session: it gets what is retained here.
    fn send_retained_again(&mut self, bridge: &Bridge) {
        for wanted in bridge.topics.wanted_here() {
            debug_assert_eq!(wanted.options.retain_handling, RetainHandling::Send);
            let journal = &mut self.publisher.journal;
            let slot = LaneSlot::CONTROL;
            // It is there already, so there is room for it.
            let _ = self
                .wire
                .hub
                .subscribe(&mut self.hold, &wanted, None, slot, journal);
        }
    }

    /// The other broker has answered SUBSCRIBE.
    pub(super) fn bridge_subscribed(&self, ack: &SubAck) {
        let Some(bridged) = &self.bridged else {
            return;
        };
        let bridge = &bridged.bridge;
        let wanted = bridge.topics.wanted_there(false);
        for (wanted, reason) in wanted.iter().zip(&ack.reasons) {
            if reason.is_error() {
                let (bridge, filter) = (&bridge.name, wanted.filter.as_str());
                let reason = reason.name();
                warn!(
                    bridge,
                    filter, reason, "the other broker refuses a bridge's topic"
                );
            }
        }
    }

    /// Gives a message from the other broker the name that it has here. False for one that does not come in, which is
    /// acknowledged.
    pub(super) fn bridge_received(&mut self, now: Instant, received: &mut Received) -> bool {
        let Some(bridged) = &self.bridged else {
            return true;
        };
        let Err(why) = bridged.bridge.received(received) else {
            return true;
        };
        let (session, topic) = (&self.hold.session, &received.message.topic);
        self.wire.hub.refused_publish(session, topic, why, now);
        if let Some(ticket) = received.ticket.take() {
            self.wire.connection.ack(now, ticket, ReasonCode::Success);
        }
        false
    }

    /// Ends a connection that is to end when it carries nothing. Returns when to look again.
    pub(super) fn bridge_idle(&mut self, now: Instant) -> Option<Instant> {
        let bridged = self.bridged.as_mut()?;
        let timeout = bridged.bridge.idle_timeout?;
        let carried = self.messages_sent + self.messages_received;
        let is_busy = self.wire.connection.in_flight() > 0 || !self.wire.connection.is_open();
        if carried != bridged.carried || is_busy {
            bridged.carried = carried;
            bridged.busy_at = now;
        }
        let at = bridged.busy_at + timeout;
        if at <= now {
            self.wire.leave(ReasonCode::Success);
            return None;
        }
        Some(at)
    }
}
