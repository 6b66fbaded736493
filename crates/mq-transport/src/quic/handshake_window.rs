//! Room in the congestion window for handshake data that is lost.
//!
//! A client that misses a part of the `ServerHello` cannot read the packets behind it, so it acknowledges none of them,
//! and for the server they stay in flight. If the missing part is declared lost then, the window shrinks below what is
//! in flight. quinn-proto sends the part no more: its probes (RFC 9002 §6.2.4) carry data of packet number spaces that
//! have packets in flight, and the part's space has none left. It takes a `ServerHello` of two packets, which one with
//! X25519MLKEM768 is, and a certificate that nearly fills the window.
//!
//! The controllers here keep the window as large as the bytes in flight at a loss, until a whole initial window has been
//! acknowledged: what is lost may then be replaced.

use std::{sync::Arc, time::Instant};

use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

use super::observed::{Observer, observed};

/// The size of the packets that a window counts, in bytes.
pub(super) const WINDOW_PACKET: u64 = 1200;

/// Makers of congestion controllers that replace lost handshake data.
pub(super) struct HandshakeControllers(pub(super) Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for HandshakeControllers {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let control = self.0.clone().build(now, current_mtu);
        observed(control, HandshakeWindow::default())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct HandshakeWindow {
    /// Bytes in flight: exact at the last acknowledgement, and too many by the packets that no acknowledgement is due for
    /// since.
    in_flight: u64,
    acknowledged: u64,
    /// Least window until a whole initial window has been acknowledged, in bytes.
    floor: u64,
}

impl Observer for HandshakeWindow {
    fn note_sent(&mut self, _now: Instant, bytes: u64) {
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

    fn note_acknowledged(
        &mut self,
        _now: Instant,
        _sent: Instant,
        bytes: u64,
        _rtt: &RttEstimator,
    ) {
        self.acknowledged = self.acknowledged.saturating_add(bytes);
    }

    fn note_end_of_acknowledgements(&mut self, in_flight: u64, _control: &dyn Controller) {
        self.in_flight = in_flight;
    }

    fn note_lost(&mut self, _now: Instant, bytes: u64, control: &dyn Controller) {
        if bytes > 0 {
            // What is sent in place of a small packet may be a large one, and quinn-proto leaves a packet of the window
            // unused.
            let replaced = self.in_flight + 2 * WINDOW_PACKET;
            self.floor = replaced.min(2 * control.initial_window());
        }
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    fn window(&self, control: &dyn Controller) -> u64 {
        if self.acknowledged < control.initial_window() {
            control.window().max(self.floor)
        } else {
            control.window()
        }
    }
}
