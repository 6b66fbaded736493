//! A device's day: what its transport costs it, from the runs of the parts of a day.
//!
//! A variant of the campaign is `TRANSPORT / PART`, with the parts `wakes` (a connection for one message), `stays` (a message over
//! a connection that stays) and `moves` (as `stays`, with a hand-over in the middle). The day is a sum of these:
//!
//! ```text
//! wakes * a connection + stays * a message + moves * messages of a run * (a message of "moves" - a message of "stays")
//! ```

use std::collections::BTreeSet;

use anyhow::bail;
use mq_measure::{convert::float, stats::Estimate};
use serde::Deserialize;

use super::{
    formatting, markdown,
    metric_values::{FinishedRuns, Levels, Metric},
};
use crate::{
    campaign::{cell::Cell, file::Campaign, store::ResultSet},
    workload::handover::OnHandover,
};

const CONFIDENCE: f64 = 0.95;
const VARIANT: &str = "variant";

/// The day of a device: how often it wakes, publishes and moves.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Day {
    description: String,
    /// Number of connections, each for one message.
    wakes: u32,
    /// Number of messages over a connection that stays.
    stays: u32,
    /// Number of hand-overs of a connection that stays.
    moves: u32,
}

/// The columns that add up over a day: head, metric of a message, and the factor to the head's unit.
const SUMS: [(&str, &str, f64); 4] = [
    ("packets", "link_packets_per_message", 1.0),
    ("kB", "link_bytes_per_message", 1e-3),
    ("wake-ups of the radio", "link_wakes_per_message", 1.0),
    ("CPU, s", "publisher_cpu_per_message", 1e-6),
];

/// The columns of a single event: head, part of the day, and metric.
const DELAYS: [(&str, &str, &str); 3] = [
    ("message after waking, ms", "wakes", "delta_dagger"),
    ("message, ms", "stays", "latency_mean"),
    ("silence at a hand-over, ms", "moves", "gap"),
];

/// Formats the cost of a day as Markdown: a table for each level of the other factors.
///
/// # Errors
/// If no campaign of the set has the parts of a day.
pub(crate) fn render(set: &ResultSet, day: &Day) -> anyhow::Result<String> {
    let has_parts = |campaign: &&Campaign| {
        let mut variants = campaign.cells.iter().filter_map(|c| c.levels.get(VARIANT));
        variants.any(|variant| variant.ends_with(" / wakes"))
    };
    let Some(campaign) = set.campaigns.iter().find(has_parts) else {
        bail!(
            "{} has no runs of profiles/campaigns/day.toml: run this campaign first",
            set.directory().display()
        );
    };
    let Day {
        description,
        wakes,
        stays,
        moves,
    } = day;
    let mut text = format!(
        "# {description}\n\n{wakes} connections for one message each, {stays} messages over a connection that stays, and {moves} \
         hand-overs, a day; means of the runs of `{}`, with their 95 % interval in brackets.\n\n",
        campaign.name
    );
    let finished = FinishedRuns::of(campaign, &set.records);
    let others: BTreeSet<Levels> = campaign
        .cells
        .iter()
        .map(|c| without_variant(&c.levels))
        .collect();
    for others in others {
        text.push_str(&format!("## {}\n\n", formatting::levels(&others)));
        text.push_str(&table(&finished, &others, day));
    }
    Ok(text)
}

fn without_variant(levels: &Levels) -> Levels {
    let mut levels = levels.clone();
    levels.remove(VARIANT);
    levels
}

fn table(finished: &FinishedRuns, others: &Levels, day: &Day) -> String {
    let variants = finished.levels(VARIANT);
    let transports = variants
        .iter()
        .filter_map(|one| one.strip_suffix(" / wakes"));
    let heads = ["transport", "connections"].into_iter();
    let heads: Vec<_> = heads
        .chain(SUMS.map(|(head, ..)| head))
        .chain(DELAYS.map(|(head, ..)| head))
        .collect();
    let rows = transports.map(|transport| {
        let arm = Arm {
            finished,
            others,
            transport,
        };
        let connections =
            day.wakes + u32::from(day.stays > 0) + arm.connects_at_moves() * day.moves;
        let mut cells = vec![transport.to_owned(), connections.to_string()];
        cells.extend(SUMS.map(|(_, metric, unit)| shown(arm.sum(day, metric, unit))));
        cells.extend(DELAYS.map(|(_, part, metric)| {
            let happens = match part {
                "wakes" => day.wakes,
                "stays" => day.stays,
                _ => day.moves,
            };
            shown(arm.of(part, metric).filter(|_| happens > 0))
        }));
        cells
    });
    markdown::table(&heads, rows)
}

fn shown(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(formatting::dash, |estimate| {
        let interval = estimate.interval(CONFIDENCE);
        let range = formatting::range(interval.low.max(0.0), interval.high);
        format!("{} ({range})", formatting::number(estimate.value))
    })
}

/// The runs of a transport under the same other levels.
struct Arm<'a> {
    finished: &'a FinishedRuns<'a>,
    others: &'a Levels,
    transport: &'a str,
}

impl Arm<'_> {
    fn levels(&self, part: &str) -> Levels {
        let mut levels = self.others.clone();
        levels.insert(VARIANT.to_owned(), format!("{} / {part}", self.transport));
        levels
    }

    /// Estimates a metric of a part of the day; `None` with fewer than two runs.
    fn of(&self, part: &str, metric: &str) -> Option<Estimate> {
        let values = self
            .finished
            .values(&Metric::parse(metric), &self.levels(part));
        Estimate::of_mean(&values)
    }

    /// Estimates the sum of a metric over the day.
    fn sum(&self, day: &Day, metric: &str, unit: f64) -> Option<Estimate> {
        let part = |name| self.of(name, metric);
        let moves = f64::from(day.moves) * self.messages_of_a_move();
        let counts = [
            ("wakes", f64::from(day.wakes)),
            ("stays", f64::from(day.stays) - moves),
            ("moves", moves),
        ];
        let terms = counts.into_iter().filter(|(_, count)| *count != 0.0);
        let terms = terms.map(|(name, count)| Some((count * unit, part(name)?)));
        Some(Estimate::of_sum(&terms.collect::<Option<Vec<_>>>()?))
    }

    /// Returns the cell of the runs with one hand-over each.
    fn with_a_move(&self) -> Option<&Cell> {
        let levels = self.levels("moves");
        let run = self.finished.runs_at(&levels).next();
        run.map(|run| &run.cell)
    }

    /// Returns the number of messages of a run with one hand-over.
    fn messages_of_a_move(&self) -> f64 {
        self.with_a_move().map_or(0.0, |cell| float(cell.messages))
    }

    /// Returns 1 if the client connects again at a hand-over.
    fn connects_at_moves(&self) -> u32 {
        let connects = |cell: &Cell| cell.on_handover == OnHandover::Reconnect;
        self.with_a_move().is_some_and(connects).into()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        campaign::{
            file::Extent,
            record::{Outcome, Record},
        },
        report::campaign::tests::fixture,
    };

    /// Makes two runs of each cell of the campaign, which differ by nothing: 20 packets for a connection, 3 for a message, and 10
    /// for a hand-over in the midst of eight messages.
    fn set(folder: &Path) -> ResultSet {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../profiles/campaigns/day.toml"
        );
        let files = [file.into()];
        let results = folder.join("results");
        let mut set =
            ResultSet::create(&results, Extent::Quick, &files, fixture::manifest()).unwrap();
        let cells = set.campaigns[0].cells.clone();
        for combination in cells {
            let (_, part) = combination.levels[VARIANT].split_once(" / ").unwrap();
            let packets = match part {
                "wakes" => 20.0,
                "stays" => 3.0,
                _ => (8.0 * 3.0 + 10.0) / 8.0,
            };
            for repetition in 0..2 {
                let mut outcome = Outcome::default();
                let metrics = &mut outcome.metrics;
                metrics.insert("link_packets_per_message".to_owned(), packets);
                metrics.insert("latency_mean".to_owned(), 25.0 + f64::from(repetition));
                let mut record = Record::of(combination.cell.clone(), outcome);
                record.campaign = "day".to_owned();
                record.levels = combination.levels.clone();
                record.repetition = repetition;
                set.add(record).unwrap();
            }
        }
        ResultSet::load(&results).unwrap()
    }

    fn row<'a>(text: &'a str, transport: &str) -> Vec<&'a str> {
        let begin = format!("| {transport} |");
        let line = text.lines().find(|line| line.starts_with(&begin)).unwrap();
        line.split('|').map(str::trim).collect()
    }

    #[test]
    fn a_day_is_the_sum_of_its_parts() {
        let folder = tempfile::tempdir().unwrap();
        let set = set(folder.path());
        let day = Day {
            description: "a device".to_owned(),
            wakes: 10,
            stays: 100,
            moves: 2,
        };
        let text = render(&set, &day).unwrap();
        let packets = "520.0 (520.0 to 520.0)";
        assert_eq!(row(&text, "TLS")[2..4], ["13", packets], "{text}");
        // QUIC moves its connection.
        assert_eq!(row(&text, "QUIC 0-RTT")[2..4], ["11", packets], "{text}");
        assert_eq!(row(&text, "QUIC")[8], "25.50 (19.15 to 31.85)", "{text}");
        let asleep = Day {
            stays: 0,
            moves: 0,
            ..day
        };
        let text = render(&set, &asleep).unwrap();
        assert_eq!(
            row(&text, "TLS")[2..4],
            ["10", "200.0 (200.0 to 200.0)"],
            "{text}"
        );
        assert_eq!(row(&text, "TLS")[8], "–", "{text}");
    }

    #[test]
    fn the_days_of_this_project_are_read_and_a_set_of_other_runs_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let set = fixture::set(folder.path());
        let days = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/day");
        for file in std::fs::read_dir(days).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let day: Day = toml::from_str(&text).unwrap();
            let error = render(&set, &day).unwrap_err().to_string();
            assert!(error.contains("run this campaign first"), "{error}");
        }
    }
}
