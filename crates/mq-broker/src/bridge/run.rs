//! Connects a bridge to its remote broker, and connects it again.

use std::sync::Arc;

use mq_codec::{ReasonCode, Version};
use mq_proto::CloseReason;
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use super::{
    Bridge, Origin,
    dialler::{Backoff, Dialler},
    hooks::Hooks,
    session,
};
use crate::{
    admin::BridgeFigures,
    broker_mark::BrokerMark,
    clock,
    conn::{BridgeLink, BridgeLinkEnd, BridgeSession},
    error::Error,
    escaped::Escaped,
    hub::Hub,
    metrics::ListenerMetrics,
    settings::Settings,
    store::{BrokerId, Change, Snapshot, Store, StoreError},
};

/// A bridge that is to run.
#[derive(Clone, Debug)]
pub(crate) struct BridgeTask {
    pub(crate) bridge: Arc<Bridge>,
    /// The metrics of the bridge's links, under its first address, whichever address is connected.
    links: Arc<ListenerMetrics>,
}

/// Makes all bridges of a broker, and the mark of messages that have passed it. If there is a
/// store, it then has the broker's part of the client identifiers.
///
/// # Errors
/// The errors of [`Bridge::all`], and [`Error::Store`] if the store fails.
pub(crate) async fn open_all(
    settings: &Settings,
    store: Option<&Arc<dyn Store>>,
    kept: &Snapshot,
) -> Result<(Vec<BridgeTask>, BrokerMark), Error> {
    let mark = BrokerMark::random();
    let origin = match (&settings.cluster, store) {
        (Some(_), _) => Origin::Cluster,
        (None, Some(_)) => Origin::Store(kept.broker_id.unwrap_or_else(BrokerId::random)),
        (None, None) => Origin::without_store(),
    };
    let bridges = Bridge::all(&settings.bridges, &settings.protocol, &origin, &mark)?;
    let is_needed = settings.bridges.iter().any(|one| one.client_id.is_none());
    if let (Origin::Store(id), Some(store)) = (origin, store)
        && kept.broker_id.is_none()
        && is_needed
    {
        keep(&**store, id).await?;
    }
    let tasks = bridges.into_iter().map(|bridge| {
        let links = ListenerMetrics::new(bridge.addresses[0].clone());
        let links = Arc::new(links);
        BridgeTask { bridge, links }
    });
    Ok((tasks.collect(), mark))
}

/// Resolves when a restart would find the identifier: no remote broker receives one that may be
/// lost, as its session for that identifier has no end.
async fn keep(store: &dyn Store, id: BrokerId) -> Result<(), StoreError> {
    let position = store.record(vec![Change::BrokerId(id)]);
    let mut settled = store.settled();
    let reached = settled.wait_for(|settled| *settled >= position).await;
    reached.map(drop).map_err(|_| StoreError::Failed)
}

impl BridgeTask {
    /// Returns the part that operators see.
    pub(crate) fn figures(&self) -> BridgeFigures {
        let Self { bridge, links } = self;
        BridgeFigures {
            name: bridge.name.clone(),
            client_id: bridge.client_id().clone(),
            session: bridge.session.clone(),
            addresses: bridge.addresses.clone(),
            links: Arc::clone(links),
        }
    }

    /// Connects, and reconnects, until shutdown.
    pub(crate) async fn run(
        self,
        hub: Arc<Hub>,
        settings: Arc<Settings>,
        shutdown: watch::Receiver<bool>,
    ) {
        let Self { bridge, links } = self;
        bridge.publish_state(&hub, false);
        let mut stops = shutdown.clone();
        tokio::select! {
            () = open_session(&hub, &bridge) => {}
            _ = stops.wait_for(|stops| *stops) => return,
        }
        let mut dialler = Dialler::new(bridge.addresses.clone(), bridge.connector.clone());
        let mut backoff = Backoff::up_to(bridge.longest_wait);
        // `true` once the log has a line that no address answers.
        let mut is_told = false;
        let mut config = bridge.config();
        loop {
            let link = async {
                if bridge.idle_timeout.is_some() {
                    hub.wait_for_messages(&bridge.session).await;
                }
                dialler.dial().await
            };
            let link = tokio::select! {
                link = link => link,
                _ = stops.wait_for(|stops| *stops) => return,
            };
            match link {
                Ok(link) => {
                    links.accepted.add(1);
                    is_told = false;
                    let connection = BridgeLink {
                        link,
                        config: config.clone(),
                        hub: Arc::clone(&hub),
                        metrics: Arc::clone(&links),
                        settings: Arc::clone(&settings),
                        shutdown: shutdown.clone(),
                    };
                    // The connection sees the shutdown by itself, and sends DISCONNECT.
                    let ended = Box::pin(serve(&bridge, connection)).await;
                    if ended.since.is_some() {
                        bridge.publish_state(&hub, false);
                    }
                    if config.connect.is_bridge && refuses_version(&ended) {
                        config.connect.is_bridge = false;
                        info!(
                            bridge = bridge.name,
                            "bridge: remote broker refused the bridge bit of CONNECT; connecting as a client"
                        );
                        continue;
                    }
                    log_end(&bridge, &ended);
                    backoff.ended(ended.since.map(|since| clock::now() - since));
                }
                Err(error) => {
                    links.handshakes_failed.add(1);
                    if !core::mem::replace(&mut is_told, true) {
                        // Escaped, as it may quote the peer.
                        let error = error.to_string();
                        warn!(bridge = bridge.name, error = %Escaped(&error), "bridge: cannot reach remote broker");
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                _ = stops.wait_for(|stops| *stops) => return,
            }
        }
    }
}

/// Opens the bridge's session, and tries that again where it fails: there is room once other sessions end.
async fn open_session(hub: &Hub, bridge: &Bridge) {
    let mut backoff = Backoff::up_to(bridge.longest_wait);
    let mut is_told = false;
    while let Err(reason) = session::open_session(hub, bridge).await {
        if !core::mem::replace(&mut is_told, true) {
            error!(
                bridge = bridge.name,
                reason = reason.name(),
                "bridge: cannot open session"
            );
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

/// Returns `true` if the remote broker does not speak the version that CONNECT names `[MQTT-3.1.2-2]`.
fn refuses_version(ended: &BridgeLinkEnd) -> bool {
    let CloseReason::Refused(ack) = &ended.reason else {
        return false;
    };
    ack.reason == ReasonCode::UnsupportedProtocolVersion
}

/// Takes the bridge's session, and serves one link until it ends.
async fn serve(bridge: &Arc<Bridge>, connection: BridgeLink) -> BridgeLinkEnd {
    let mut publisher = connection.hub.publisher();
    publisher.can_refuse = bridge.version() >= Version::V5;
    let hold = session::attach(&connection.hub, bridge, &mut publisher.journal).await;
    let hold = match hold {
        Ok(hold) => hold,
        Err(reason) => {
            debug!(bridge = bridge.name, %reason, "bridge: cannot attach session");
            return connection.close().await;
        }
    };
    let session = BridgeSession {
        hold,
        publisher,
        expiry: session::expiry(bridge),
    };
    let bridge = Arc::clone(bridge);
    let hooks = |protocol: &_| Box::new(Hooks::new(bridge, protocol, clock::now())) as _;
    connection.serve(session, hooks).await
}

/// Writes the end of a connection to the log.
fn log_end(bridge: &Bridge, ended: &BridgeLinkEnd) {
    let (bridge, reason) = (&bridge.name, &ended.reason);
    match reason {
        CloseReason::Refused(ack) => {
            let reason = ack.reason.name();
            warn!(bridge, reason, "bridge: remote broker refused CONNECT");
        }
        CloseReason::ByPeer(by) if by.reason == ReasonCode::SessionTakenOver => {
            warn!(
                bridge,
                "bridge: session at the remote broker taken over by another client of the same identifier"
            );
        }
        reason => info!(bridge, %reason, "bridge: disconnected"),
    }
}
