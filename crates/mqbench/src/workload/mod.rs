//! The traffic patterns, as functions that return what they measured and print nothing.

pub(crate) mod arrivals;
pub(crate) mod closed_loop_stations;
pub(crate) mod coap;
pub(crate) mod connect;
pub(crate) mod e2e;
pub(crate) mod half_open;
pub(crate) mod handover;
mod latency_stamps;
pub(crate) mod load;
#[cfg(target_os = "linux")]
pub(crate) mod ping;
pub(crate) mod reconnect;
pub(crate) mod resumption;
pub(crate) mod rtt;
pub(crate) mod scheduled_stations;
pub(crate) mod send_thread;
pub(crate) mod stopwait;
pub(crate) mod storm;
pub(crate) mod topics;

use std::time::{Duration, Instant};

use mq_measure::result::WireUse;
use mq_transport::LinkStats;

use crate::clock::{nanoseconds, system_ns};

/// The run's own clock: nanoseconds since the run began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock {
    start: Instant,
}

impl RunClock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.at_ns(Instant::now())
    }

    pub(crate) fn at_ns(&self, at: Instant) -> u64 {
        nanoseconds(at.saturating_duration_since(self.start))
    }

    /// Returns the clock's zero, in nanoseconds since the Unix epoch by the system's clock.
    pub(crate) fn origin_ns(&self) -> u64 {
        system_ns() - self.now_ns()
    }

    pub(crate) fn instant(&self, ns: u64) -> Instant {
        self.start + Duration::from_nanos(ns)
    }
}

/// Returns the traffic of a client's link, seen from the client: bytes of UDP or TCP payload if the transport counts
/// them, else bytes of the application.
pub(crate) fn wire_use(stats: &LinkStats) -> WireUse {
    WireUse {
        bytes_sent: stats.wire_bytes_sent.unwrap_or(stats.bytes_sent),
        bytes_received: stats.wire_bytes_received.unwrap_or(stats.bytes_received),
        packets_sent: stats.packets_sent,
        packets_received: stats.packets_received,
    }
}

/// Adds up two links' traffic; with packets only if both count them.
pub(crate) fn add_wire(a: &WireUse, b: &WireUse) -> WireUse {
    WireUse {
        bytes_sent: a.bytes_sent + b.bytes_sent,
        bytes_received: a.bytes_received + b.bytes_received,
        packets_sent: a.packets_sent.zip(b.packets_sent).map(|(a, b)| a + b),
        packets_received: a
            .packets_received
            .zip(b.packets_received)
            .map(|(a, b)| a + b),
    }
}
