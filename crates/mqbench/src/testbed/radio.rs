//! The report of a testbed on its shared channel: as configured, and as measured.

use mq_measure::Validity;
use mq_netem::{Medium, MediumReport, StationCounts, Timing};
use serde_json::{Value, json};

use super::{
    Named, Testbed,
    report::{emulated, late, missed, share_off, title},
};
use crate::clock::nanoseconds;

/// The channel, and what became of its frames.
pub(super) struct Channel<'a> {
    medium: &'a Named<Medium>,
    /// In the order of the report's stations.
    roles: Vec<&'a str>,
    report: MediumReport,
}

impl Testbed {
    pub(super) fn channel(&self) -> Option<Channel<'_>> {
        let stations = self.stations().filter(|station| station.link.is_none());
        let roles = stations.map(|station| &station.role[..]);
        Some(Channel {
            medium: self.channel.as_ref()?,
            roles: roles.chain(["broker"]).collect(),
            report: self.lab.medium_reports().pop()?,
        })
    }
}

impl Channel<'_> {
    pub(super) fn title(&self) -> String {
        title(&self.medium.name, &self.medium.profile.description)
    }

    fn stations(&self) -> impl Iterator<Item = (&str, &StationCounts)> {
        self.roles.iter().copied().zip(&self.report.stations)
    }

    pub(super) fn configured(&self) -> Value {
        let medium = &self.medium.profile;
        json!({
            "of": "medium",
            "name": self.medium.name,
            "description": medium.description,
            "stations": self.roles,
            "frame_error_rate": medium.frame_error_rate.share(),
            "retries": medium.retries,
            "queue": medium.queue,
            "rate_bps": medium.rate.bits_per_second(),
            "basic_rate_bps": medium.basic_rate.bits_per_second(),
            "slot_ns": nanoseconds(medium.slot),
            "sifs_ns": nanoseconds(medium.sifs),
            "difs_ns": nanoseconds(medium.difs),
            "preamble_ns": nanoseconds(medium.preamble),
            "header_bytes": medium.header,
            "ack_bytes": medium.ack,
            "cw_min": medium.cw_min,
            "cw_max": medium.cw_max,
        })
    }

    pub(super) fn measured(&self) -> Value {
        let station = |(role, counts): (&str, &StationCounts)| {
            json!({
                "of": role,
                "arrived": counts.arrived,
                "delivered": counts.delivered,
                "lost": counts.lost,
                "overflowed": counts.overflowed,
                "transmissions": counts.transmissions,
                "collisions": counts.collisions,
                "retries": counts.retries,
            })
        };
        let timing = self.report.timing;
        let lateness = timing.lateness;
        json!({
            "of": "medium",
            "stations": self.stations().map(station).collect::<Value>(),
            "lateness_p50_ns": lateness.map(|late| nanoseconds(late.p50)),
            "lateness_p99_ns": lateness.map(|late| nanoseconds(late.p99)),
            "lateness_max_ns": lateness.map(|late| nanoseconds(late.max)),
            "late": lateness.map(|late| late.late),
            "missed": timing.missed,
        })
    }

    pub(super) fn check(&self, validity: &mut Validity) {
        let sum = |part: fn(&StationCounts) -> u64| self.report.stations.iter().map(part).sum();
        // A transmission that did not collide was delivered or damaged.
        let alone = sum(|counts| counts.transmissions - counts.collisions);
        let damaged = alone - sum(|counts| counts.delivered);
        let rate = self.medium.profile.frame_error_rate.share();
        let quantity = "frame error rate of the medium";
        validity.note(share_off(quantity, rate, damaged, alone));
        validity.note(late("of the medium", self.report.timing.lateness));
        validity.note(missed("of the medium", self.report.timing.missed));
    }

    pub(super) fn timing(&self) -> Timing {
        self.report.timing
    }

    pub(super) fn describe(&self) -> String {
        let mut text = format!("medium: {}\n", self.title());
        for (role, counts) in self.stations() {
            text.push_str(&format!("  {role}: {}\n", describe(counts)));
        }
        if let Some(late) = self.report.timing.lateness {
            text.push_str(&format!("  {}\n", emulated(late)));
        }
        text
    }
}

fn describe(counts: &StationCounts) -> String {
    let mut text = format!(
        "{} packets, {} lost; {} transmissions, {} retries, {} collisions",
        counts.arrived, counts.lost, counts.transmissions, counts.retries, counts.collisions
    );
    if counts.overflowed > 0 {
        text.push_str(&format!("; {} dropped by the queue", counts.overflowed));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mq_netem::Lateness;

    use super::*;

    /// The warnings of a channel with a frame error rate of 10 %, after 1000 transmissions that did not
    /// collide.
    fn warnings(delivered: u64, late: u64) -> Vec<String> {
        let medium = Named::load("s21/medium@frame_error_rate=10%", Medium::load).unwrap();
        let counts = StationCounts {
            transmissions: 1500,
            collisions: 500,
            delivered,
            ..StationCounts::default()
        };
        let channel = Channel {
            medium: &medium,
            roles: vec!["publisher"],
            report: MediumReport {
                stations: vec![counts],
                timing: Timing {
                    lateness: Some(Lateness {
                        p50: Duration::ZERO,
                        p99: Duration::ZERO,
                        max: Duration::ZERO,
                        packets: 1500,
                        late,
                    }),
                    missed: 0,
                },
            },
        };
        let mut validity = Validity::default();
        channel.check(&mut validity);
        let warnings = validity.warnings.iter();
        warnings.map(ToString::to_string).collect()
    }

    #[test]
    fn frame_errors_that_chance_explains_are_no_warning() {
        // 2.58 standard deviations are 24 frames.
        for (delivered, rate) in [(900, None), (877, None), (923, None), (860, Some("0.14"))] {
            let warnings = warnings(delivered, 0);
            let says =
                |rate| warnings[0].contains("frame error rate") && warnings[0].contains(rate);
            assert!(rate.map_or(warnings.is_empty(), says), "{warnings:?}");
        }
    }

    #[test]
    fn late_frames_are_a_warning() {
        assert_eq!(warnings(900, 24), [""; 0]);
        let late = warnings(900, 30);
        assert!(
            late[0].contains("later than 500 µs of the medium"),
            "{late:?}"
        );
        assert!(late[0].contains("0.02"), "{late:?}");
    }
}
