//! The state of the service, for systemd.

use sd_notify::NotifyState;
use tracing::warn;

/// Tells systemd the service's state, if systemd started this process.
pub(crate) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot notify systemd");
    }
}

/// Tells systemd that a reload has begun; systemd requires the time with it.
pub(crate) fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}
