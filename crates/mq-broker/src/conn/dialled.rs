//! A link that a bridge has dialled: its session here, served to the other broker.
//!
//! It has the last two phases of a client's connection alone. The state machine sends CONNECT in the place of
//! taking one, and until CONNACK comes an attached session has nothing to do.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mq_codec::{ByteStr, ReasonCode, TopicFilter, Version};
use mq_proto::{CloseReason, Connection};
use mq_transport::Link;
use tokio::sync::watch;
use tracing::debug;

use super::{
    afterwards::Afterwards,
    attached::{Attached, Bridged, Client},
    leaving::Leaving,
    wire::Wire,
};
use crate::{
    Settings,
    bridge::{self, Bridge},
    clock,
    hub::{Hold, Hub},
    journal::Journal,
    metrics::ListenerMetrics,
    router::LaneSlot,
    store::{SessionChange, User},
};

/// What came of a bridge's connection.
pub(crate) struct Ended {
    /// Since when the other broker had let this one in, if it had.
    pub(crate) since: Option<Instant>,
    /// Why it ended.
    pub(crate) reason: CloseReason,
}

/// What a bridge's connections have in common.
pub(crate) struct Dialled {
    pub(crate) bridge: Arc<Bridge>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) metrics: Arc<ListenerMetrics>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) shutdown: watch::Receiver<bool>,
}

impl Dialled {
    /// Takes the bridge's session, sends CONNECT, and serves one link until it ends; then puts the session in order.
    pub(crate) async fn serve(self, link: Link) -> Ended {
        let Self {
            bridge,
            hub,
            metrics,
            settings,
            shutdown,
        } = self;
        let mut publisher = hub.publisher();
        publisher.can_refuse = bridge.version() >= Version::V5;
        let hold = attach(&hub, &bridge, &mut publisher.journal).await;
        let rules = hub.guard.generation();
        let now = clock::now();
        let wire = |protocol| {
            let connection = Connection::client(now, bridge.config(), protocol);
            Box::new(Wire::with(
                link, connection, hub, metrics, settings, shutdown,
            ))
        };
        let mut hold = match hold {
            Ok(hold) => hold,
            Err(reason) => {
                debug!(bridge = bridge.name, %reason, "a bridge gets no session");
                let mut wire = wire(mq_proto::Session::new());
                wire.connection.handle_link_lost();
                let reason = Box::pin(Leaving::new(wire, None).run()).await;
                return Ended {
                    since: None,
                    reason,
                };
            }
        };
        hold.session.served_here();
        hold.session.mailbox.connect();
        let protocol = hold.state.protocol.take().map(|session| *session);
        let protocol = protocol.unwrap_or_default();
        let bridged = Bridged::new(Arc::clone(&bridge), &protocol, now);
        let mut wire = wire(protocol);
        wire.share = wire.hub.memory_share();
        if let Err(error) = wire.connection.connect(now) {
            debug!(bridge = bridge.name, %error, "CONNECT could not be sent");
            wire.connection.handle_link_lost();
        }
        let let_in_at = wire.connection.outbox().position();
        let afterwards = Afterwards {
            will: None,
            expiry: expiry(&bridge),
        };
        let client = Client::new(None, rules, None);
        let attached = Attached::new(&mut wire, hold, publisher, client, afterwards, let_in_at);
        let mut attached = Box::new(attached);
        attached.bridge(bridged);
        attached.run().await;
        let since = attached.bridged_since();
        let parting = attached.into_parting();
        let reason = Box::pin(Leaving::new(wire, Some(parting)).run()).await;
        Ended { since, reason }
    }
}

/// Makes the bridge's session before it has its first connection, so that messages wait for that. Messages in flight
/// come from the store, under the names that they have here.
///
/// # Errors
/// Why there is none.
pub(crate) async fn open_session(hub: &Hub, bridge: &Bridge) -> Result<(), ReasonCode> {
    if bridge.clean {
        return Ok(());
    }
    let mut publisher = hub.publisher();
    let mut hold = attach(hub, bridge, &mut publisher.journal).await?;
    if let Some(protocol) = &mut hold.state.protocol {
        protocol.change_outgoing(|delivery| bridge.sent(delivery));
    }
    let journal = &mut publisher.journal;
    hub.detach(hold, clock::now(), None, expiry(bridge), journal);
    Ok(())
}

/// The bridge's session, with the subscriptions that its topics ask for and no others.
async fn attach(hub: &Hub, bridge: &Bridge, journal: &mut Journal) -> Result<Hold, ReasonCode> {
    let user = User::Named(ByteStr::new(bridge::PREFIX).expect("a few letters"));
    let hold = hub.attach(&bridge.session, bridge.clean, &user, None, journal);
    let mut hold = hold.await?;
    let expiry = expiry(bridge);
    if expiry != Some(Duration::ZERO) {
        hold.session.keep();
    }
    journal.record_of(&hold.session, SessionChange::Attached { expiry, user });
    let others: Vec<_> = {
        let subscriptions = hold.state.subscriptions.lock();
        let is_wanted =
            |filter: &TopicFilter| bridge.topics.wanted_here().any(|one| one.filter == *filter);
        let filters = subscriptions.keys().filter(|filter| !is_wanted(filter));
        filters.cloned().collect()
    };
    for filter in others {
        hub.unsubscribe(&mut hold, &filter, journal);
    }
    for wanted in bridge.topics.wanted_here() {
        let known = hold.state.subscriptions.lock();
        let is_known = known.get(&wanted.filter).map(|known| known.options);
        drop(known);
        if is_known == Some(wanted.options) {
            continue;
        }
        let granted = hub.subscribe(&mut hold, &wanted, None, LaneSlot::CONTROL, journal);
        if granted.is_error() {
            return Err(granted);
        }
    }
    Ok(hold)
}

/// How long its session outlives a connection.
fn expiry(bridge: &Bridge) -> Option<Duration> {
    bridge.clean.then_some(Duration::ZERO)
}
