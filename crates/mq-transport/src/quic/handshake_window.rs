//! Room in the congestion window for handshake data that is lost.
//!
//! A client that misses a part of the `ServerHello` cannot read the packets behind it, so it acknowledges none of them,
//! and for the server they stay in flight. If the missing part is declared lost then, the window shrinks below what is
//! in flight. quinn-proto sends the part no more: its probes (RFC 9002 §6.2.4) carry data of packet number spaces that
//! have packets in flight, and the part's space has none left. It takes a `ServerHello` of two packets, which one with
//! X25519MLKEM768 is, and a certificate that nearly fills the window.
//!
//! So until a whole initial window has been acknowledged, what is lost may be replaced: the window is as large as the
//! bytes in flight at the loss.

use std::{any::Any, sync::Arc, time::Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;

/// The size of the packets that a window counts, in bytes.
pub(super) const WINDOW_PACKET: u64 = 1200;

/// Makers of congestion controllers that replace lost handshake data.
pub(super) struct HandshakeControllers(pub(super) Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for HandshakeControllers {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(HandshakeController {
            inner: self.0.clone().build(now, current_mtu),
            in_flight: 0,
            acknowledged: 0,
            floor: 0,
        })
    }
}

struct HandshakeController {
    inner: Box<dyn Controller>,
    /// Bytes in flight: exact at the last acknowledgement, and too many by the packets that no acknowledgement is due for
    /// since.
    in_flight: u64,
    acknowledged: u64,
    /// Least window until a whole initial window has been acknowledged, in bytes.
    floor: u64,
}

impl Controller for HandshakeController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
        self.acknowledged = self.acknowledged.saturating_add(bytes);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.inner
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        self.in_flight = in_flight;
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.inner
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
        if lost_bytes > 0 {
            // What is sent in place of a small packet may be a large one, and quinn-proto leaves a packet of the window
            // unused.
            let replaced = self.in_flight + 2 * WINDOW_PACKET;
            self.floor = replaced.min(2 * self.initial_window());
        }
        self.in_flight = self.in_flight.saturating_sub(lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        let window = self.inner.window();
        if self.acknowledged < self.initial_window() {
            window.max(self.floor)
        } else {
            window
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.inner.metrics();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            ..*self
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.into_any()
    }
}
