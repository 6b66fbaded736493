//! What a lab tells of its links.

use std::{net::Ipv4Addr, time::Duration};

use crate::Counts;

/// A link's address at each end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// Of the end that [`Link::up`](crate::Link::up) leads away from.
    pub near: Ipv4Addr,
    /// Of the other.
    pub far: Ipv4Addr,
}

/// What became of the packets of one direction, and how well its times were kept.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DirectionReport {
    /// What became of packets.
    pub counts: Counts,
    /// How much later than the model says packets left: median and 99th percentile of all packets
    /// so far; `None` before the first.
    pub lateness: Option<(Duration, Duration)>,
}

/// Both directions of a link.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LinkReport {
    /// As [`Link::up`](crate::Link::up).
    pub up: DirectionReport,
    /// As [`Link::down`](crate::Link::down).
    pub down: DirectionReport,
}

/// What a capture has in its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CaptureReport {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that came too fast and are missing.
    pub dropped: u64,
}
