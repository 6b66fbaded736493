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
    bridge::Bridge,
    clock,
    conn::{self, Dialled, Ended},
    hub::Hub,
    metrics::ListenerMetrics,
    settings::Settings,
    shown::Shown,
};
use dialler::{Dialler, Waits};

/// Connects, and connects again, until shutdown.
pub(crate) async fn run(
    bridge: Arc<Bridge>,
    hub: Arc<Hub>,
    settings: Arc<Settings>,
    shutdown: watch::Receiver<bool>,
) {
    // Under its first address, wherever it is connected.
    let metrics = Arc::new(ListenerMetrics::new(bridge.addresses[0].clone()));
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
    let mut waits = Waits::default();
    loop {
        let link = async {
            if bridge.idle_timeout.is_some() {
                hub.something_waits(&bridge.session).await;
            }
            dialler.dial().await
        };
        let link = tokio::select! {
            link = link => link,
            _ = stops.wait_for(|stops| *stops) => return,
        };
        match link {
            Ok(link) => {
                let connection = Dialled {
                    bridge: Arc::clone(&bridge),
                    hub: Arc::clone(&hub),
                    metrics: Arc::clone(&metrics),
                    settings: Arc::clone(&settings),
                    shutdown: shutdown.clone(),
                };
                // Sees the shutdown by itself, and says goodbye.
                let ended = Box::pin(connection.serve(link)).await;
                tell(&bridge, &ended);
                waits.ended(ended.since.map(|since| clock::now() - since));
            }
            Err(error) => {
                // Escaped, as it may quote the peer.
                let error = error.to_string();
                warn!(bridge = bridge.name, error = %Shown(&error), "a bridge reaches nobody");
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
