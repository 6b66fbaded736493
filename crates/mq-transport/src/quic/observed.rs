//! Congestion controllers that an observer follows.

use std::{any::Any, time::Instant};

use quinn::congestion::{Controller, ControllerMetrics};
use quinn_proto::RttEstimator;

/// Follower of a congestion control, which may give it another window. It is called once the control has learned the same.
pub(super) trait Observer: Clone + Send + Sync + 'static {
    /// Notes that bytes were sent.
    fn note_sent(&mut self, now: Instant, bytes: u64);

    /// Notes that a packet, sent at `sent`, was acknowledged.
    fn note_acknowledged(&mut self, now: Instant, sent: Instant, bytes: u64, rtt: &RttEstimator);

    /// Notes that these were all acknowledgements of a packet, after which so many bytes are in flight.
    fn note_end_of_acknowledgements(&mut self, in_flight: u64, control: &dyn Controller);

    /// Notes that bytes were declared lost; 0 bytes are a mark of congestion (ECN).
    fn note_lost(&mut self, now: Instant, bytes: u64, control: &dyn Controller);

    /// Returns the window, in bytes: by default that of the control.
    fn window(&self, control: &dyn Controller) -> u64 {
        control.window()
    }
}

/// Makes a congestion controller that an observer follows.
pub(super) fn observed(
    control: Box<dyn Controller>,
    observer: impl Observer,
) -> Box<dyn Controller> {
    Box::new(Observed { control, observer })
}

struct Observed<O> {
    control: Box<dyn Controller>,
    observer: O,
}

impl<O: Observer> Controller for Observed<O> {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.control.on_sent(now, bytes, last_packet_number);
        self.observer.note_sent(now, bytes);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.control.on_ack(now, sent, bytes, app_limited, rtt);
        self.observer.note_acknowledged(now, sent, bytes, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.control
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        self.observer
            .note_end_of_acknowledgements(in_flight, &*self.control);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.control
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
        self.observer.note_lost(now, lost_bytes, &*self.control);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.control.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.observer.window(&*self.control)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.control.metrics();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        observed(self.control.clone_box(), self.observer.clone())
    }

    fn initial_window(&self) -> u64 {
        self.control.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.control.into_any()
    }
}
