//! The points at which a bridge's connection differs from a client's: names of topics, hops, and the remote broker's
//! answers.

use std::{sync::Arc, time::Instant};

use mq_codec::{ConnAck, QoS, RetainHandling, SubAck, SubscribeProperties, Version};
use mq_proto::{CommandError, Connection, Delivery, Received, Session};
use tracing::{info, warn};

use super::Bridge;
use crate::{
    broker_mark::BrokerMark,
    conn::{BridgeConnection, BridgeHooks},
    router::LaneSlot,
    session::Presence,
    store::SessionChange,
};

/// The hooks of one connection of a bridge.
pub(super) struct Hooks {
    bridge: Arc<Bridge>,
    /// The mark of the remote broker, if it has one.
    remote_mark: Option<BrokerMark>,
    /// The time at which the remote broker accepted the connection.
    since: Option<Instant>,
    /// The number of messages carried.
    carried: u64,
    /// The last time at which a connection that is closed when idle was busy.
    busy_at: Instant,
    /// The message to the remote broker about this connection, until the window has room for it.
    unsent: Option<Delivery>,
    /// The store's records of exchanges that the remote broker may have forgotten: QoS 2 messages that were received
    /// and not released, and those that were sent and released.
    forgettable: Vec<SessionChange>,
}

impl Hooks {
    pub(super) fn new(bridge: Arc<Bridge>, session: &Session, now: Instant) -> Self {
        let flow = None;
        let received = session.received();
        let received =
            received.map(|packet_id| SessionChange::ReceivedReleased { packet_id, flow });
        let released = session.released();
        let released = released.map(|packet_id| SessionChange::Completed { packet_id });
        Self {
            bridge,
            remote_mark: None,
            forgettable: received.chain(released).collect(),
            since: None,
            carried: 0,
            busy_at: now,
            unsent: None,
        }
    }

    /// Sends the state of this connection to the remote broker, at its beginning and its end.
    fn send_state(&mut self, now: Instant, at: &mut BridgeConnection<'_>) {
        let Some([mut first, mut last]) = self.bridge.remote_states() else {
            return;
        };
        let connection = &mut *at.connection;
        first.qos = first.qos.min(connection.maximum_qos());
        for state in [&mut first, &mut last] {
            state.retain &= connection.retain_available();
        }
        self.unsent = Some(first);
        *at.last_word = Some(Box::new(last));
        self.send_own(now, connection);
    }

    /// Sends the retained messages of this broker to a remote broker that has no state of the
    /// session.
    fn send_retained_again(&self, at: &mut BridgeConnection<'_>) {
        for wanted in self.bridge.topics.wanted_here() {
            debug_assert_eq!(wanted.options.retain_handling, RetainHandling::Send);
            let slot = LaneSlot::CONTROL;
            // The subscription exists already, so there is room for it.
            let _ = at.hub.subscribe(at.hold, &wanted, None, slot, at.journal);
        }
    }
}

impl BridgeHooks for Hooks {
    fn connected(
        &mut self,
        now: Instant,
        ack: &ConnAck,
        mut at: BridgeConnection<'_>,
    ) -> Result<(), CommandError> {
        self.since = Some(now);
        self.busy_at = now;
        self.remote_mark = BrokerMark::of_peer(&ack.properties.user_properties);
        let bridge = Arc::clone(&self.bridge);
        info!(
            bridge = bridge.name,
            peer = at.link.peer_address.map(tracing::field::display),
            transport = %at.link.scheme,
            session_present = ack.session_present,
            "bridge: connected"
        );
        let version = at.connection.version();
        at.hold.show_to_operators(Presence::new(
            at.link.scheme,
            at.link.peer_address,
            version,
            bridge.clean,
            bridge.keep_alive(),
            super::session::expiry(&bridge),
        ));
        bridge.publish_state(at.hub, true);
        self.send_state(now, &mut at);
        let forgettable = core::mem::take(&mut self.forgettable);
        if !ack.session_present {
            for change in forgettable {
                at.journal.record_of(&at.hold.session, change);
            }
            self.send_retained_again(&mut at);
        }
        let wanted = bridge.topics.wanted_there(version >= Version::V5);
        if wanted.is_empty() {
            return Ok(());
        }
        let properties = SubscribeProperties::default();
        let sent = at.connection.subscribe(now, wanted, properties);
        sent.map(drop)
    }

    fn subscribed(&self, ack: &SubAck) {
        let bridge = &self.bridge;
        let wanted = bridge.topics.wanted_there(false);
        for (wanted, reason) in wanted.iter().zip(&ack.reasons) {
            if reason.is_error() {
                let (bridge, topic) = (&bridge.name, wanted.filter.as_str());
                let reason = reason.name();
                warn!(
                    bridge,
                    topic, reason, "bridge: remote broker refused subscription"
                );
            }
        }
    }

    /// Sends the state of this connection. Messages in flight of an earlier connection are sent
    /// first.
    fn send_own(&mut self, now: Instant, connection: &mut Connection) {
        let has_room = connection.window() > 0;
        let may_go = |unsent: &mut Delivery| has_room || unsent.qos == QoS::AtMostOnce;
        if let Some(unsent) = self.unsent.take_if(may_go) {
            // Fails if the message is larger than the remote broker accepts.
            let _ = connection.publish(now, unsent);
        }
    }

    fn rename_incoming(&self, received: &mut Received) -> Result<(), &'static str> {
        self.bridge.received(self.remote_mark.as_ref(), received)
    }

    /// Converts a delivery for the remote broker: its topic, at most the QoS that the broker
    /// accepts, and RETAIN if that is available. Returns `false` if it is not sent.
    fn rename_outgoing(&self, connection: &Connection, delivery: &mut Delivery) -> bool {
        let Some(sent) = self.bridge.sent(delivery) else {
            return false;
        };
        *delivery = sent;
        delivery.qos = delivery.qos.min(connection.maximum_qos());
        delivery.retain &= connection.retain_available();
        true
    }

    fn idle_deadline(
        &mut self,
        now: Instant,
        carried: u64,
        connection: &Connection,
    ) -> Option<Instant> {
        let timeout = self.bridge.idle_timeout?;
        let is_busy = connection.in_flight() > 0 || !connection.is_open();
        if carried != self.carried || is_busy {
            self.carried = carried;
            self.busy_at = now;
        }
        Some(self.busy_at + timeout)
    }

    fn connected_since(&self) -> Option<Instant> {
        self.since
    }
}
