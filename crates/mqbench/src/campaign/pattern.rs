//! Traffic patterns, and the properties in which they differ.

use serde::{Deserialize, Serialize};

/// The traffic pattern: which client sends when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pattern {
    /// A message every interval, whatever became of its predecessor (S22).
    Periodic,
    /// A message as soon as its predecessor has arrived (W20, S21 pattern A).
    StopAndWait,
    /// A new connection for every message (W20, S21 pattern B).
    Reconnect,
    /// A job every interval, answered by a worker (DL).
    JobResult,
    /// Connections without messages (DL).
    Connect,
    /// A restart of the broker under devices that hold a connection each.
    Storm,
    /// A message every interval from a `CoAP` thing to a `CoAP` server, without a broker.
    Coap,
    /// Clients that vanish in a phase of their connection (KD19).
    HalfOpen,
    /// Many publishers, with a subscriber each (LW26).
    Load,
}

impl Pattern {
    /// Returns true if messages or jobs are due on a schedule, whatever became of their predecessors.
    pub(crate) fn is_scheduled(self) -> bool {
        matches!(self, Self::Periodic | Self::JobResult | Self::Coap)
    }

    /// Returns true if clients connect more than once, so that they can resume a session.
    pub(crate) fn reconnects(self) -> bool {
        matches!(self, Self::Reconnect | Self::Connect | Self::Storm)
    }

    /// Returns true if the run stops its broker and starts it again. That takes the broker's process on this machine,
    /// at an address that stays the same.
    pub(crate) fn restarts_broker(self) -> bool {
        matches!(self, Self::Storm)
    }

    /// Returns true if all clients are on the broker's host and reach it over its loopback, without a link.
    pub(crate) fn is_on_broker_host(self) -> bool {
        matches!(self, Self::Storm)
    }

    /// Returns true if what is measured depends on when packets leave the emulated links: CPU time and memory do not.
    pub(crate) fn depends_on_link_times(self) -> bool {
        !self.is_on_broker_host() && self != Self::HalfOpen
    }

    /// Returns true if messages go one way on a schedule.
    pub(crate) fn is_one_way(self) -> bool {
        matches!(self, Self::Periodic | Self::Coap)
    }

    /// Returns true if messages of a cell can be due together, and go to several topics in turn.
    pub(crate) fn has_bursts_and_topics(self) -> bool {
        matches!(self, Self::Periodic | Self::Load)
    }

    /// Returns true if broker and clients may compute without a pause. Such a run takes all processors, and neither side
    /// gets a priority over ordinary processes: one would starve the other.
    pub(crate) fn saturates_processors(self) -> bool {
        matches!(self, Self::Storm | Self::Load)
    }
}
