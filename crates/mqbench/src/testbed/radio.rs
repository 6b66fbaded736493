//! The report of a testbed on its shared channel: as configured, and as measured.

use std::time::Duration;

use mq_measure::Validity;
use mq_netem::{Medium, MediumReport, StationCounts, Timing};
use serde_json::{Value, json};

use super::{
    Testbed,
    named::NamedProfile,
    report::{emulated, late, missed, share, share_off, title},
};
use crate::{clock::nanoseconds, units::format_time};

/// The channel, and the counts of its frames.
pub(super) struct Channel<'a> {
    medium: &'a NamedProfile<Medium>,
    /// The stations' roles, in the order of the report.
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

/// Use of a channel: its time, and the attempts of all its stations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChannelUse {
    in_use: Duration,
    elapsed: Duration,
    transmissions: u64,
    collisions: u64,
    retries: u64,
}

impl Testbed {
    /// Returns the use of the channel since it exists; `None` without one. It may lack the last 50 ms if the channel is
    /// never idle.
    pub(crate) fn channel_use(&self) -> Option<ChannelUse> {
        let reports = self.lab.medium_reports();
        reports.first().map(ChannelUse::of)
    }
}

impl ChannelUse {
    fn of(report: &MediumReport) -> Self {
        let sum = |part: fn(&StationCounts) -> u64| report.stations.iter().map(part).sum();
        Self {
            in_use: report.in_use,
            elapsed: report.elapsed,
            transmissions: sum(|counts| counts.transmissions),
            collisions: sum(|counts| counts.collisions),
            retries: sum(|counts| counts.retries),
        }
    }

    /// Returns the use from `earlier` until this one.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            in_use: self.in_use.saturating_sub(earlier.in_use),
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
            transmissions: self.transmissions - earlier.transmissions,
            collisions: self.collisions - earlier.collisions,
            retries: self.retries - earlier.retries,
        }
    }

    /// Returns the share of the time in which the channel was in use, by [`mq_netem::Channel::in_use`]; `None` for no
    /// time.
    pub(crate) fn air_time_share(&self) -> Option<f64> {
        (!self.elapsed.is_zero()).then(|| self.in_use.div_duration_f64(self.elapsed))
    }

    /// Returns the share of transmissions that collided; `None` without a transmission.
    pub(crate) fn collision_rate(&self) -> Option<f64> {
        (self.transmissions > 0).then(|| share(self.collisions, self.transmissions))
    }

    /// Retries over first attempts; `None` without a first attempt.
    pub(crate) fn retries_per_frame(&self) -> Option<f64> {
        let first = self.transmissions - self.retries;
        (first > 0).then(|| share(self.retries, first))
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
                "air_time_ns": nanoseconds(counts.air_time),
            })
        };
        let timing = self.report.timing;
        let lateness = timing.lateness;
        json!({
            "of": "medium",
            "stations": self.stations().map(station).collect::<Value>(),
            "in_use_ns": nanoseconds(self.report.in_use),
            "in_use_share": ChannelUse::of(&self.report).air_time_share(),
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
        let channel = ChannelUse::of(&self.report);
        text.push_str(&format!(
            "  all: in use for {:.2} % of {}, {:.2} % of {} transmissions collided\n",
            100.0 * channel.air_time_share().unwrap_or_default(),
            format_time(nanoseconds(channel.elapsed)),
            100.0 * channel.collision_rate().unwrap_or_default(),
            channel.transmissions,
        ));
        if let Some(late) = self.report.timing.lateness {
            text.push_str(&format!("  {}\n", emulated(late)));
        }
        text
    }
}

fn describe(counts: &StationCounts) -> String {
    let mut text = format!(
        "{} packets, {} lost; {} transmissions, {} retries, {} collisions, {} on the air",
        counts.arrived,
        counts.lost,
        counts.transmissions,
        counts.retries,
        counts.collisions,
        format_time(nanoseconds(counts.air_time))
    );
    if counts.overflowed > 0 {
        text.push_str(&format!("; {} dropped by the queue", counts.overflowed));
    }
    text
}

#[cfg(test)]
mod tests {
    use mq_netem::Lateness;

    use super::*;

    /// Returns the warnings of a channel with a frame error rate of 10 %, after 1000 transmissions that did not
    /// collide.
    fn warnings(delivered: u64, late: u64) -> Vec<String> {
        let mut validity = Validity::default();
        channel(&medium(), delivered, late).check(&mut validity);
        let warnings = validity.warnings.iter();
        warnings.map(ToString::to_string).collect()
    }

    fn medium() -> NamedProfile<Medium> {
        NamedProfile::load("s21/medium@frame_error_rate=10%", Medium::load).unwrap()
    }

    /// Makes a channel that was in use for a quarter of its first second.
    fn channel(medium: &NamedProfile<Medium>, delivered: u64, late: u64) -> Channel<'_> {
        let counts = StationCounts {
            transmissions: 1500,
            collisions: 500,
            delivered,
            air_time: Duration::from_millis(300),
            ..StationCounts::default()
        };
        Channel {
            medium,
            roles: vec!["publisher"],
            report: MediumReport {
                stations: vec![counts],
                in_use: Duration::from_millis(250),
                elapsed: Duration::from_secs(1),
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
        }
    }

    #[test]
    fn the_description_has_air_time_and_collisions() {
        let text = channel(&medium(), 900, 0).describe();
        for said in [
            "publisher: 0 packets, 0 lost; 1500 transmissions, 0 retries, 500 collisions, 300 ms on the air",
            "all: in use for 25.00 % of 1.00 s, 33.33 % of 1500 transmissions collided",
        ] {
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn use_is_counted_from_one_moment_to_another() {
        let medium = medium();
        let before = ChannelUse::of(&channel(&medium, 900, 0).report);
        let after = ChannelUse {
            in_use: before.in_use + Duration::from_millis(30),
            elapsed: before.elapsed + Duration::from_millis(200),
            transmissions: before.transmissions + 50,
            collisions: before.collisions + 5,
            retries: before.retries + 10,
        };
        let meanwhile = after.since(&before);
        let near = |value: Option<f64>, right: f64| (value.unwrap() - right).abs() < 1e-9;
        assert!(near(meanwhile.air_time_share(), 0.15), "{meanwhile:?}");
        assert!(near(meanwhile.collision_rate(), 0.1), "{meanwhile:?}");
        assert!(near(meanwhile.retries_per_frame(), 0.25), "{meanwhile:?}");
        let none = after.since(&after);
        assert_eq!(none.air_time_share(), None);
        assert_eq!(none.collision_rate().or(none.retries_per_frame()), None);
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
