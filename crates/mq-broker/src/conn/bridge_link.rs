//! A link that this broker has dialled for a bridge, served to the remote broker.
//!
//! The link has the last two phases of a client's connection alone. The state machine sends CONNECT in the place of
//! taking one, and until CONNACK comes an attached session has nothing to do.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mq_proto::{ClientConfig, CloseReason, Connection};
use mq_transport::Link;
use tokio::sync::watch;
use tracing::debug;

use super::{
    attached::{Attached, Client},
    bridge_hooks::BridgeHooks,
    closing::Closing,
    session_end::SessionEnd,
    wire::Wire,
};
use crate::{
    Settings, clock,
    hub::{HeldSession, Hub, Publisher},
    metrics::ListenerMetrics,
};

/// A dialled link, and the parts of the broker that it is served with.
pub(crate) struct BridgeLink {
    pub(crate) link: Link,
    pub(crate) config: ClientConfig,
    pub(crate) hub: Arc<Hub>,
    pub(crate) metrics: Arc<ListenerMetrics>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) shutdown: watch::Receiver<bool>,
}

/// The session that a dialled link serves.
pub(crate) struct BridgeSession {
    pub(crate) hold: HeldSession,
    pub(crate) publisher: Publisher,
    /// Time for which the session outlives the connection; `None` for ever.
    pub(crate) expiry: Option<Duration>,
}

/// The end of a dialled connection.
pub(crate) struct BridgeLinkEnd {
    /// Time since which the remote broker had let this one in, if it had.
    pub(crate) since: Option<Instant>,
    pub(crate) reason: CloseReason,
}

impl BridgeLink {
    /// Closes the link: there is no session for it.
    pub(crate) async fn close(self) -> BridgeLinkEnd {
        let mut wire = self.wire(mq_proto::Session::new());
        wire.connection.handle_link_lost();
        let reason = Box::pin(Closing::new(wire, None).run()).await;
        BridgeLinkEnd {
            since: None,
            reason,
        }
    }

    /// Sends CONNECT, and serves the link until it ends; then gives the session back.
    pub(crate) async fn serve(
        self,
        session: BridgeSession,
        hooks: impl FnOnce(&mq_proto::Session) -> Box<dyn BridgeHooks>,
    ) -> BridgeLinkEnd {
        let BridgeSession {
            mut hold,
            publisher,
            expiry,
        } = session;
        let rules = self.hub.access_control.generation();
        hold.session.serve_on_this_worker();
        hold.session.mailbox.connect();
        let protocol = hold.state.take_protocol();
        let hooks = hooks(&protocol);
        let mut wire = self.wire(protocol);
        wire.incoming_memory = wire.hub.memory_share();
        if let Err(error) = wire.connection.connect(clock::now()) {
            let session = &*hold.session.client_id;
            debug!(session, %error, "bridge: cannot send CONNECT");
            wire.connection.handle_link_lost();
        }
        let connack_at = wire.connection.outbox().position();
        let session_end = SessionEnd { will: None, expiry };
        let client = Client::new(None, rules, None);
        let attached = Attached::new(&mut wire, hold, publisher, client, session_end, connack_at);
        let mut attached = Box::new(attached);
        attached.bridge = Some(hooks);
        attached.run().await;
        let bridge = attached.bridge.as_ref();
        let since = bridge.and_then(|bridge| bridge.connected_since());
        let last_state = attached.into_last_state();
        let reason = Box::pin(Closing::new(wire, Some(last_state)).run()).await;
        BridgeLinkEnd { since, reason }
    }

    fn wire(self, protocol: mq_proto::Session) -> Box<Wire> {
        let connection = Connection::client(clock::now(), self.config, protocol);
        Box::new(Wire::with(
            self.link,
            connection,
            self.hub,
            self.metrics,
            self.settings,
            self.shutdown,
        ))
    }
}
