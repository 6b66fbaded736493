//! Cells with hosts in a row: brokers that are each bridged to the next one, or the same way without those in between.
//!
//! ```text
//!   fog      publisher --link--> edge's broker --uplink--> cloud's broker --sub_link--> subscriber
//!   direct   publisher --link--> edge, a router --uplink--> cloud's broker --sub_link--> subscriber
//! ```
//!
//! With three tiers there is a second edge, behind an uplink of its own.

use std::time::{Duration, Instant};

use mq_measure::Warning;

use super::{
    cell::{Cell, Transport},
    pattern::Pattern,
};
use crate::{
    clock::nanoseconds,
    testbed::{Outage, Topology},
    units::ns_to_ms,
};

/// Time that a network, its brokers and its clients usually need before the first message is due.
const SETTLED: Duration = Duration::from_secs(2);

impl Cell {
    /// Returns the number of hosts in a row that have a broker, or would have one: the subscriber's broker is the last.
    pub(crate) fn tiers(&self) -> u8 {
        let unless_given = if self.topology.is_row() { 2 } else { 1 };
        self.tiers.unwrap_or(unless_given)
    }

    /// Returns the names of the links from each host of the row to the next one; `None` for a perfect one.
    pub(crate) fn uplinks(&self) -> Vec<Option<String>> {
        let loss = self.uplink_loss.as_ref();
        let loss = loss.map(|loss| format!("loss={loss}"));
        let uplink = self.uplink.as_ref();
        let uplink = uplink.map(|name| super::cell::with_changes(name, [loss, None]));
        vec![uplink; usize::from(self.tiers()) - 1]
    }

    /// Returns the time in which the last uplink carries nothing: about the middle of the messages.
    pub(crate) fn outage(&self) -> Option<Outage> {
        let lasts = Duration::from_nanos(self.outage_ns?);
        let middle = SETTLED + self.schedule() / 2;
        let from = middle.saturating_sub(lasts / 2);
        Some(Outage { from, lasts })
    }

    /// Returns the time by which the subscriber waits longer for stragglers. If the tries before an outage's end were
    /// each twice as long apart, the next one may come as late again, and after two that are lost four times as late.
    pub(crate) fn patience_after_outage(&self) -> Duration {
        Duration::from_nanos(self.outage_ns.unwrap_or_default()) * 4
    }

    /// Returns the time in which messages are due.
    fn schedule(&self) -> Duration {
        let turns = self.messages.div_ceil(self.burst.get().into());
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        self.interval().saturating_mul(turns)
    }

    /// Returns the warning, if the outage was not within the time in which messages were due, `first` to `last`.
    pub(crate) fn outage_missed(
        &self,
        began: Instant,
        (first, last): (Instant, Instant),
    ) -> Option<Warning> {
        let outage = self.outage()?;
        let (from, until) = (began + outage.from, began + outage.ends());
        (from < first || until > last).then(|| Warning::LinkOffProfile {
            quantity: "outage's beginning in ms after the network was built".to_owned(),
            configured: ns_to_ms(nanoseconds(outage.from)),
            measured: ns_to_ms(nanoseconds(first.duration_since(began))),
        })
    }

    pub(crate) fn bridge_transport(&self) -> Transport {
        self.bridge.unwrap_or(Transport::Quic)
    }

    /// Returns a mistake in a row, or in its keys without one, with the key.
    pub(super) fn contradicts_row(&self) -> Option<(&'static str, String)> {
        let of_a_row = [
            ("uplink", self.uplink.is_some()),
            ("uplink_loss", self.uplink_loss.is_some()),
            ("outage", self.outage_ns.is_some()),
            ("bridge", self.bridge.is_some()),
            ("tiers", self.tiers.is_some()),
        ];
        if !self.topology.is_row() {
            let (key, _) = of_a_row.into_iter().find(|(_, given)| *given)?;
            return Some((key, "it takes the topology `fog` or `direct`".into()));
        }
        if self.pattern != Pattern::Periodic {
            return Some(("topology", "a row takes the pattern `periodic`".into()));
        }
        if self.uplink_loss.is_some() && self.uplink.is_none() {
            return Some((
                "uplink_loss",
                "it needs an `uplink`, which loses packets".into(),
            ));
        }
        if self.outage_ns.is_some() && self.tiers() == 1 {
            return Some(("outage", "it needs an uplink: `tiers` is 2 or more".into()));
        }
        let outage = Duration::from_nanos(self.outage_ns.unwrap_or_default());
        if outage > self.schedule() / 2 {
            let most = self.schedule() / 2;
            let why = format!("it is within the time of the messages: {most:?} at most");
            return Some(("outage", why));
        }
        if self.topology == Topology::Direct && self.bridge.is_some() {
            return Some(("bridge", "the topology `direct` has none".into()));
        }
        if self.topology == Topology::Direct && self.tiers() == 1 {
            return Some(("tiers", "one tier is the topology `fog`".into()));
        }
        self.contradicts_bridges()
    }

    /// Returns a key that the clients would follow and a bridge would not, with the reason; `None` if all keys hold for both.
    fn contradicts_bridges(&self) -> Option<(&'static str, String)> {
        if self.topology != Topology::Fog {
            return None;
        }
        let plain = Self::default();
        let tuned = [
            ("tls_version", self.tls_version.is_some()),
            ("group", self.group.is_some()),
            ("initial_rtt", self.initial_rtt_ns != plain.initial_rtt_ns),
            ("initial_window", self.initial_window.is_some()),
            ("packet_threshold", self.packet_threshold.is_some()),
            ("time_threshold", self.time_threshold.is_some()),
            ("repeat", self.repeat != plain.repeat),
            ("mtu_discovery", self.mtu_discovery),
            ("max_ack_delay", self.max_ack_delay_ns.is_some()),
        ];
        let (key, _) = tuned.into_iter().find(|(_, given)| *given)?;
        Some((key, "a bridge has the defaults of its transport".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fog() -> Cell {
        Cell {
            topology: Topology::Fog,
            link: Some("s21/wired-1ms".to_owned()),
            uplink: Some("w20/cellular".to_owned()),
            uplink_loss: Some("2%".to_owned()),
            messages: 100,
            interval_ns: 100_000_000,
            ..Cell::default()
        }
    }

    #[test]
    fn a_row_has_an_uplink_between_each_two_tiers() {
        let uplinks = |tiers| Cell { tiers, ..fog() }.uplinks();
        let lossy = Some("w20/cellular@loss=2%".to_owned());
        assert_eq!(uplinks(Some(3)), [lossy.clone(), lossy.clone()]);
        assert_eq!(uplinks(None), [lossy]);
        assert_eq!(uplinks(Some(1)), []);
        assert_eq!(Cell::default().uplinks(), []);
        let one_way = |tiers| {
            let delay = Cell { tiers, ..fog() }.one_way().unwrap();
            delay.as_micros()
        };
        let thing = one_way(Some(1));
        let uplink = one_way(None) - thing;
        assert!(uplink >= 50_000, "{uplink} µs");
        assert_eq!(one_way(Some(3)), thing + 2 * uplink);
    }

    #[test]
    fn an_outage_is_in_the_middle_of_the_messages_or_a_warning_says_that_it_is_not() {
        let cell = Cell {
            outage_ns: Some(4_000_000_000),
            ..fog()
        };
        let outage = cell.outage().unwrap();
        let seconds = Duration::from_secs;
        assert_eq!((outage.from, outage.ends()), (seconds(5), seconds(9)));
        assert!(cell.network().is_ok());
        let began = Instant::now();
        let missed = |first, last| cell.outage_missed(began, (began + first, began + last));
        assert_eq!(missed(seconds(2), seconds(12)), None);
        assert!(missed(seconds(6), seconds(16)).is_some());
        assert!(missed(seconds(0), seconds(8)).is_some());
        let changing = Cell {
            uplink: Some("leo".to_owned()),
            ..cell
        };
        let Err(error) = changing.network() else {
            panic!("an outage of a link that changes");
        };
        assert!(error.to_string().contains("changes already"), "{error}");
    }

    #[test]
    fn a_row_names_the_key_that_it_does_not_take() {
        assert_eq!(fog().contradiction(), None);
        let direct = Cell {
            topology: Topology::Direct,
            ..fog()
        };
        assert_eq!(direct.contradiction(), None);
        let tuned = Cell {
            repeat: "3ms".parse().unwrap(),
            transport: Transport::Quic,
            ..direct.clone()
        };
        assert_eq!(tuned.contradiction(), None);
        let outage_ns = Some(1_000_000_000);
        for (cell, key, says) in [
            (
                Cell {
                    topology: Topology::Publisher,
                    ..fog()
                },
                "uplink",
                "`fog` or `direct`",
            ),
            (
                Cell {
                    pattern: Pattern::StopAndWait,
                    ..fog()
                },
                "topology",
                "`periodic`",
            ),
            (
                Cell {
                    uplink: None,
                    ..fog()
                },
                "uplink_loss",
                "needs an `uplink`",
            ),
            (
                Cell {
                    tiers: Some(1),
                    outage_ns,
                    ..fog()
                },
                "outage",
                "needs an uplink",
            ),
            (
                Cell {
                    messages: 15,
                    outage_ns,
                    ..fog()
                },
                "outage",
                "750ms at most",
            ),
            (
                Cell {
                    bridge: Some(Transport::Tls),
                    ..direct.clone()
                },
                "bridge",
                "has none",
            ),
            (
                Cell {
                    tiers: Some(1),
                    ..direct
                },
                "tiers",
                "`fog`",
            ),
            (
                Cell {
                    topology: Topology::Fog,
                    ..tuned
                },
                "repeat",
                "defaults",
            ),
        ] {
            let (blamed, why) = cell.contradiction().expect(says);
            assert_eq!(blamed, key, "{why}");
            assert!(why.contains(says), "{why}");
        }
    }
}
