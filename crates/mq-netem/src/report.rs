//! Reports of a lab: counts and timing of its links and shared media.

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

/// Counts and timing of the packets of one direction.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct DirectionReport {
    /// Numbers of packets by fate: lost, dropped, duplicated and the like.
    pub counts: Counts,
    /// Lateness of the departures, and packets that the emulator missed.
    pub timing: Timing,
}

/// Accuracy of the emulator's departures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timing {
    /// `None` before the first packet.
    pub lateness: Option<Lateness>,
    /// Packets that came faster than the emulator took them. They were never on the link, and are in no other
    /// count.
    pub missed: u64,
}

/// Lateness of all packets so far: the time from the departure that the model computes to the actual one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lateness {
    /// The median lateness.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The greatest lateness.
    pub max: Duration,
    /// Packets that left.
    pub packets: u64,
    /// Packets that left later than [`LIMIT`](Self::LIMIT); part of `packets`.
    pub late: u64,
}

impl Lateness {
    /// A packet that is no later than this is on time.
    pub const LIMIT: Duration = Duration::from_micros(500);
}

/// Both directions of a link.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct LinkReport {
    /// Packets in the direction of [`Link::up`](crate::Link::up).
    pub up: DirectionReport,
    /// Packets in the direction of [`Link::down`](crate::Link::down).
    pub down: DirectionReport,
}

/// Counts and timing of the frames on a shared medium.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MediumReport {
    /// The counts of each station, in the order of connection; the access point is the last.
    pub stations: Vec<StationCounts>,
    /// Time for which ended transmissions have kept the channel; see [`Channel::in_use`](crate::Channel::in_use).
    pub in_use: Duration,
    /// Time since the emulation of the medium began.
    pub elapsed: Duration,
    /// Lateness of the deliveries, and frames that the emulator missed.
    pub timing: Timing,
}

/// Counts of a packet capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CaptureReport {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that came too fast and are missing.
    pub dropped: u64,
}
