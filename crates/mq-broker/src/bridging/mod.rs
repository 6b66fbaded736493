//! Bridges: this broker as a client of others.
//!
//! [`bridge`](crate::bridge) says what a bridge is. Here it connects, and connects again.

mod dialler;

use std::sync::Arc;

use mq_codec::ReasonCode;
use mq_proto::CloseReason;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::{
    admin::BridgeFigures,
    bridge::{Bridge, Origin},
    clock,
    conn::{self, Dialled, Ended},
    error::Error,
    hub::Hub,
    metrics::ListenerMetrics,
    settings::Settings,
    shown::Shown,
    store::{BrokerId, Change, Snapshot, Store, StoreError},
};
use dialler::{Dialler, Waits};

/// All bridges of a broker. What other brokers know them by is in the store then, if there is one.
///
/// # Errors
/// As [`Bridge::all`], and [`Error::Store`] if the store fails.
pub(crate) async fn all(
    settings: &Settings,
    store: Option<&Arc<dyn Store>>,
    kept: &Snapshot,
) -> Result<Vec<BridgeFigures>, Error> {
    let origin = match (&settings.cluster, store) {
        (Some(_), _) => Origin::Cluster,
        (None, Some(_)) => Origin::Store(kept.broker_id.unwrap_or_else(BrokerId::random)),
        (None, None) => Origin::without_store(),
    };
    let bridges = Bridge::all(&settings.bridges, &settings.protocol, &origin)?;
    let is_needed = settings.bridges.iter().any(|one| one.client_id.is_none());
    if let (Origin::Store(id), Some(store)) = (origin, store)
        && kept.broker_id.is_none()
        && is_needed
    {
        keep(&**store, id).await?;
    }
    let figures = bridges.into_iter().map(|bridge| {
        // Under its first address, wherever it is connected.
        let links = ListenerMetrics::new(bridge.addresses[0].clone());
        let links = Arc::new(links);
        BridgeFigures { bridge, links }
    });
    Ok(figures.collect())
}

/// Resolves when a restart would find the identifier: no other broker hears of one that may be lost, as the session
/// that it would have there has no end.
async fn keep(store: &dyn Store, id: BrokerId) -> Result<(), StoreError> {
    let position = store.record(vec![Change::BrokerId(id)]);
    let mut settled = store.settled();
    let reached = settled.wait_for(|settled| *settled >= position).await;
    let failed = |_| StoreError("it has failed".to_owned());
    reached.map(drop).map_err(failed)
}

/// Connects, and connects again, until shutdown.
pub(crate) async fn run(
    bridge: BridgeFigures,
    hub: Arc<Hub>,
    settings: Arc<Settings>,
    shutdown: watch::Receiver<bool>,
) {
    let BridgeFigures { bridge, links } = bridge;
    hub.publish_bridge_state(&bridge, false);
    if let Err(reason) = conn::open_session(&hub, &bridge).await {
        error!(
            bridge = bridge.name,
            reason = reason.name(),
            "a bridge gets no session"
        );
        return;
    }
    let mut stops = shutdown.clone();
    let mut dialler = Dialler::new(bridge.addresses.clone(), bridge.connector.clone());
    let mut waits = Waits::up_to(bridge.longest_wait);
    // Whether the log has it that nobody answers.
    let mut is_told = false;
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
                let connection = Dialled {
                    bridge: Arc::clone(&bridge),
                    hub: Arc::clone(&hub),
                    metrics: Arc::clone(&links),
                    settings: Arc::clone(&settings),
                    shutdown: shutdown.clone(),
                };
                // Sees the shutdown by itself, and says goodbye.
                let ended = Box::pin(connection.serve(link)).await;
                if ended.since.is_some() {
                    hub.publish_bridge_state(&bridge, false);
                }
                tell(&bridge, &ended);
                waits.ended(ended.since.map(|since| clock::now() - since));
            }
            Err(error) => {
                links.handshakes_failed.add(1);
                if !core::mem::replace(&mut is_told, true) {
                    // Escaped, as it may quote the peer.
                    let error = error.to_string();
                    warn!(bridge = bridge.name, error = %Shown(&error), "a bridge reaches nobody");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(waits.next()) => {}
            _ = stops.wait_for(|stops| *stops) => return,
        }
    }
}

fn tell(bridge: &Bridge, ended: &Ended) {
    let (bridge, reason) = (&bridge.name, &ended.reason);
    match reason {
        CloseReason::Refused(ack) => {
            let reason = ack.reason.name();
            warn!(bridge, reason, "the other broker refuses a bridge");
        }
        CloseReason::ByPeer(by) if by.reason == ReasonCode::SessionTakenOver => {
            warn!(bridge, "another client has a bridge's client identifier");
        }
        reason => info!(bridge, %reason, "a bridge's connection has ended"),
    }
}
