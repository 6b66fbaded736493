//! The report of a testbed on its links: as configured, and as measured.

use mq_measure::{Validity, Warning, convert::float, validity};
use mq_netem::{Addresses, Direction, DirectionReport, Lateness, Link, LinkReport};
use serde_json::{Value, json};

use super::{Station, Testbed, named::NamedProfile};
use crate::{clock::nanoseconds, units::format_time};

impl Testbed {
    /// Returns each link with its station and its counts.
    fn links(&self) -> impl Iterator<Item = (&Station, &NamedProfile<Link>, LinkReport)> {
        let linked = self.stations().flat_map(|station| {
            let next = station.next.as_ref().map(|(link, _)| link);
            let links = station.link.iter().chain(next);
            links.map(move |link| (station, link))
        });
        let reports = self.lab.reports().into_iter();
        linked
            .zip(reports)
            .map(|((station, link), report)| (station, link, report))
    }

    /// Describes the channel and the links as configured.
    pub(crate) fn configured(&self) -> Value {
        let direction = |direction: &Direction| {
            let mut fields = json!({
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
            });
            if !direction.changes.is_empty() {
                fields["changes"] = direction.changes.len().into();
                let length = direction.changes.repeat_after();
                fields["repeat_after_ns"] = length.map(nanoseconds).into();
            }
            fields
        };
        let links = self.links().map(|(station, link, _)| {
            json!({
                "of": station.role,
                "name": link.name,
                "description": link.profile.description,
                "up": direction(&link.profile.up),
                "down": direction(&link.profile.down),
            })
        });
        let channel = self.channel().map(|channel| channel.configured());
        channel.into_iter().chain(links).collect()
    }

    /// Describes the channel and the links as measured.
    pub(crate) fn measured(&self) -> Value {
        let direction = |report: &DirectionReport| {
            let (counts, lateness) = (&report.counts, report.timing.lateness);
            json!({
                "packets": counts.arrived,
                "bytes": counts.bytes,
                "lost": counts.lost,
                "overflowed": counts.overflowed,
                "duplicated": counts.duplicated,
                "corrupted": counts.corrupted,
                "reordered": counts.reordered,
                "lateness_p50_ns": lateness.map(|late| nanoseconds(late.p50)),
                "lateness_p99_ns": lateness.map(|late| nanoseconds(late.p99)),
                "lateness_max_ns": lateness.map(|late| nanoseconds(late.max)),
                "late": lateness.map(|late| late.late),
                "missed": report.timing.missed,
            })
        };
        let links = self.links().map(|(station, _, report)| {
            json!({
                "of": station.role,
                "up": direction(&report.up),
                "down": direction(&report.down),
            })
        });
        let channel = self.channel().map(|channel| channel.measured());
        channel.into_iter().chain(links).collect()
    }

    /// Warns of links that measured differently from their configuration.
    pub(crate) fn check(&self, validity: &mut Validity) {
        if let Some(channel) = self.channel() {
            channel.check(validity);
        }
        for (station, link, report) in self.links() {
            let directions = [
                ("up", &link.profile.up, report.up),
                ("down", &link.profile.down, report.down),
            ];
            for (name, direction, report) in directions {
                let of = format!("of the {}'s {name} direction", station.role);
                let (counts, loss) = (report.counts, direction.loss.mean());
                // A link that changes has no one share.
                if direction.changes.is_empty() {
                    // Bursts make a share less certain; the interval is that of single losses.
                    let off = share_off(&format!("loss {of}"), loss, counts.lost, counts.arrived);
                    validity.note(off);
                }
                validity.note(late(&of, report.timing.lateness));
                validity.note(missed(&of, report.timing.missed));
            }
        }
    }

    /// Warns if the emulator was late, or missed packets.
    pub(crate) fn check_timing(&self, validity: &mut Validity) {
        let links = self.links();
        let links = links.flat_map(|(_, _, report)| [report.up.timing, report.down.timing]);
        let channel = self.channel().map(|channel| channel.timing());
        let all: Vec<_> = links.chain(channel).collect();
        // All links share one warning for their packets.
        let lateness = all.iter().filter_map(|timing| timing.lateness);
        validity.note(late("of the links", lateness));
        let missing = all.iter().map(|timing| timing.missed).sum();
        validity.note(missed("of the links", missing));
    }

    /// Formats a line for each host: its address, the broker's, and the host's link.
    pub(crate) fn map(&self) -> String {
        let line = |station: &Station| {
            let Addresses { near, far } = station.addresses;
            format!(
                "{:<12}  {near}  broker at {far}  {}\n",
                station.role,
                self.way(station)
            )
        };
        self.stations().map(line).collect()
    }

    /// Names the link or channel by which the station reaches the broker.
    fn way(&self, station: &Station) -> String {
        let link = station.link.as_ref().map(NamedProfile::<Link>::title);
        let channel = || self.channel().map(|channel| channel.title());
        link.or_else(channel).unwrap_or_default()
    }

    /// Formats a paragraph for the channel and for each link: its configuration and its counts.
    pub(crate) fn describe(&self) -> String {
        let channel = self.channel().map(|channel| channel.describe());
        let mut text = channel.unwrap_or_default();
        for (station, link, report) in self.links() {
            text.push_str(&format!("{}'s link: {}\n", station.role, link.title()));
            for (name, report) in [("up", report.up), ("down", report.down)] {
                text.push_str(&format!("  {name}: {}\n", describe(&report)));
            }
        }
        text
    }
}

impl NamedProfile<Link> {
    fn title(&self) -> String {
        title(&self.name, &self.profile.description)
    }
}

/// Formats a profile's name, with what it stands for.
pub(super) fn title(name: &str, description: &str) -> String {
    match description {
        "" => name.to_owned(),
        description => format!("{name} ({description})"),
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
    if let Some(late) = report.timing.lateness {
        text.push_str(&format!("; {}", emulated(late)));
    }
    text
}

/// Formats the time between a packet's due time and its leaving the emulator.
pub(super) fn emulated(late: Lateness) -> String {
    let (median, p99) = (
        format_time(nanoseconds(late.p50)),
        format_time(nanoseconds(late.p99)),
    );
    format!("emulated {median} late (p50), {p99} (p99)")
}

/// Warns if more than one packet in a hundred left late, beyond chance.
pub(super) fn late(of: &str, lateness: impl IntoIterator<Item = Lateness>) -> Option<Warning> {
    const ALLOWED: f64 = 0.01;
    let (mut late, mut packets) = (0, 0);
    for one in lateness {
        late += one.late;
        packets += one.packets;
    }
    let limit = Lateness::LIMIT.as_micros();
    (late > validity::most_by_chance(ALLOWED, packets)).then(|| Warning::LinkOffProfile {
        quantity: format!("share of packets later than {limit} µs {of}"),
        configured: ALLOWED,
        measured: share(late, packets),
    })
}

pub(super) fn share(part: u64, all: u64) -> f64 {
    float(part) / float(all)
}

/// Warns if the emulator missed packets, which no profile asks for.
pub(super) fn missed(of: &str, packets: u64) -> Option<Warning> {
    let measured = float(packets);
    (packets > 0).then(|| Warning::LinkOffProfile {
        quantity: format!("number of packets that the emulator missed {of}"),
        configured: 0.0,
        measured,
    })
}

/// Warns if a share is outside what chance explains in 99 of 100 runs.
pub(super) fn share_off(quantity: &str, configured: f64, part: u64, all: u64) -> Option<Warning> {
    if all == 0 {
        return None;
    }
    let likely = 2.58 * (configured * (1.0 - configured) / float(all)).sqrt();
    let measured = share(part, all);
    if (measured - configured).abs() <= likely {
        return None;
    }
    validity::link_off_profile(quantity, configured, measured, 0.0)
}
