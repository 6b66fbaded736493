//! What a testbed says of its links: as they were to be, and as they were.

use std::time::Duration;

use mq_measure::{Validity, Warning, validity};
use mq_netem::{Addresses, Direction, DirectionReport, LinkReport};
use serde_json::{Value, json};

use super::{Station, Testbed};
use crate::{report::units::time, workload::nanoseconds};

/// Departures later than this at the 99th percentile are not what the profile says.
const LATE: Duration = Duration::from_micros(500);

impl Testbed {
    fn links(&self) -> impl Iterator<Item = (&Station, LinkReport)> {
        self.stations().zip(self.lab.reports())
    }

    /// The links as they were to be.
    pub(crate) fn configured(&self) -> Value {
        let direction = |direction: &Direction| {
            json!({
                "delay_ns": nanoseconds(direction.delay),
                "jitter_ns": nanoseconds(direction.jitter),
                "distribution": format!("{:?}", direction.distribution).to_lowercase(),
                "reorder": direction.reorder.share(),
                "rate_bps": direction.rate.map(mq_netem::Rate::bits_per_second),
                "trace_mean_bps": direction.trace.as_ref().map(|trace| trace.mean_rate().bits_per_second()),
                "queue": format!("{:?}", direction.queue),
                "loss": format!("{:?}", direction.loss),
                "mean_loss": direction.loss.mean(),
                "duplicate": direction.duplicate.share(),
                "corrupt": direction.corrupt.share(),
            })
        };
        let link = |station: &Station| {
            json!({
                "of": station.role,
                "name": station.name,
                "description": station.link.description,
                "up": direction(&station.link.up),
                "down": direction(&station.link.down),
            })
        };
        self.stations().map(link).collect()
    }

    /// The links as they were.
    pub(crate) fn measured(&self) -> Value {
        let direction = |report: &DirectionReport| {
            let counts = &report.counts;
            json!({
                "packets": counts.arrived,
                "lost": counts.lost,
                "overflowed": counts.overflowed,
                "duplicated": counts.duplicated,
                "corrupted": counts.corrupted,
                "reordered": counts.reordered,
                "lateness_p50_ns": report.lateness.map(|late| nanoseconds(late.p50)),
                "lateness_p99_ns": report.lateness.map(|late| nanoseconds(late.p99)),
            })
        };
        let link = |(station, report): (&Station, LinkReport)| {
            json!({
                "of": station.role,
                "up": direction(&report.up),
                "down": direction(&report.down),
            })
        };
        self.links().map(link).collect()
    }

    /// Warns of links that were not what they were to be.
    pub(crate) fn check(&self, validity: &mut Validity) {
        for (station, report) in self.links() {
            let directions = [
                ("up", &station.link.up, report.up),
                ("down", &station.link.down, report.down),
            ];
            for (name, direction, report) in directions {
                let what =
                    |quantity| format!("{quantity} of the {}'s {name} direction", station.role);
                validity.note(loss_off(&what("loss"), direction.loss.mean(), &report));
                let late = report.lateness.filter(|late| late.p99 > LATE);
                validity.note(late.map(|late| Warning::LinkOffProfile {
                    quantity: what("p99 lateness in µs"),
                    configured: LATE.as_secs_f64() * 1e6,
                    measured: late.p99.as_secs_f64() * 1e6,
                }));
            }
        }
    }

    /// A line a host with a link: its address, the broker's, and what the link is.
    pub(crate) fn map(&self) -> String {
        let line = |station: &Station| {
            let Addresses { near, far } = station.addresses;
            format!(
                "{:<10}  {near}  broker at {far}  {}\n",
                station.role,
                station.link_name()
            )
        };
        self.stations().map(line).collect()
    }

    /// A line a link: what it was to be, and what it was.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (station, report) in self.links() {
            text.push_str(&format!(
                "{}'s link: {}\n",
                station.role,
                station.link_name()
            ));
            for (name, report) in [("up", report.up), ("down", report.down)] {
                text.push_str(&format!("  {name}: {}\n", describe(&report)));
            }
        }
        text
    }
}

impl Station {
    fn link_name(&self) -> String {
        match self.link.description.as_str() {
            "" => self.name.clone(),
            description => format!("{} ({description})", self.name),
        }
    }
}

fn describe(report: &DirectionReport) -> String {
    let counts = &report.counts;
    let mut text = format!("{} packets, {} lost", counts.arrived, counts.lost);
    for (count, what) in [
        (counts.overflowed, "dropped by the queue"),
        (counts.duplicated, "duplicated"),
        (counts.corrupted, "corrupted"),
        (counts.reordered, "reordered"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    if let Some(late) = report.lateness {
        let (median, p99) = (time(nanoseconds(late.p50)), time(nanoseconds(late.p99)));
        text.push_str(&format!("; emulated {median} late (p50), {p99} (p99)"));
    }
    text
}

/// Whether the share that was lost is outside what chance explains in 99 of 100 runs.
fn loss_off(quantity: &str, configured: f64, report: &DirectionReport) -> Option<Warning> {
    #[expect(clippy::cast_precision_loss, reason = "counts of packets")]
    let (lost, all) = (report.counts.lost as f64, report.counts.arrived as f64);
    if all == 0.0 {
        return None;
    }
    // Bursts make a share less certain; the interval is that of single losses.
    let likely = 2.58 * (configured * (1.0 - configured) / all).sqrt();
    let measured = lost / all;
    if (measured - configured).abs() <= likely {
        return None;
    }
    validity::link_off_profile(quantity, configured, measured, 0.0)
}
