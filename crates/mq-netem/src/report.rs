//! What a lab reports of its links.

use std::{net::Ipv4Addr, time::Duration};

use crate::{Counts, StationCounts};

/// A link's address at each end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The address at the end that [`Link::up`](crate::Link::up) leads away from.
    pub near: Ipv4Addr,
    /// The address at the other end.
    pub far: Ipv4Addr,
}

/// What became of the packets of one direction, and how late they left.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DirectionReport {
    /// What became of packets.
    pub counts: Counts,
    /// How well times were kept.
    pub timing: Timing,
}

/// How well the emulator kept time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timing {
    /// `None` before the first packet.
    pub lateness: Option<Lateness>,
    /// Packets that came faster than the emulator took them. They were never on the link, and are in no other
    /// count.
    pub missed: u64,
}

/// How much later packets left than the model says; of all packets so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lateness {
    /// The median.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The maximum.
    pub max: Duration,
    /// Packets that left.
    pub packets: u64,
    /// Those of them that left later than [`LIMIT`](Self::LIMIT).
    pub late: u64,
}

impl Lateness {
    /// A packet that is no later than this is on time.
    pub const LIMIT: Duration = Duration::from_micros(500);
}

/// Both directions of a link.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LinkReport {
    /// As [`Link::up`](crate::Link::up).
    pub up: DirectionReport,
    /// As [`Link::down`](crate::Link::down).
    pub down: DirectionReport,
}

/// What became of the frames on a shared medium, and how late they left.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MediumReport {
    /// The counts of each station, in the order of connection; the access point is the last.
    pub stations: Vec<StationCounts>,
    /// How long transmissions have kept the channel; see [`Channel::in_use`](crate::Channel::in_use).
    pub in_use: Duration,
    /// How long the channel exists.
    pub elapsed: Duration,
    /// How well times were kept.
    pub timing: Timing,
}

/// What a capture has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CaptureReport {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that came too fast and are missing.
    pub dropped: u64,
}
