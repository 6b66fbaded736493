//! The table of what late messages waited for.

use std::fmt::Write as _;

use mq_measure::{
    explain::{Cause, Explanation, HopName, Host, Repair, Report},
    stats::nearest_rank,
};
use serde::Serialize;

use crate::{clock::nanoseconds, units::format_time};

/// The late messages of one transport's or one cell's runs.
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    /// The transport, or the campaign and its levels.
    pub(crate) name: String,
    /// The runs, each with its latest messages.
    runs: Vec<Report>,
}

impl Explained {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            runs: Vec::new(),
        }
    }

    /// Adds a run; none if nothing arrived in it.
    pub(crate) fn add(&mut self, run: Option<Report>) {
        self.runs.extend(run);
    }

    pub(super) fn late(&self) -> impl Iterator<Item = &Explanation> {
        self.runs.iter().flat_map(|run| &run.late)
    }
}

/// Formats the tables, one for each part, with a line for each message if `messages` asks for it.
pub(crate) fn text(explained: &[Explained], messages: bool) -> String {
    let mut text = explained
        .iter()
        .map(|one| table(one, messages))
        .collect::<Vec<_>>()
        .join("\n");
    text.push_str(&agreement(explained));
    text
}

/// The messages with one cause.
struct Row {
    what: String,
    count: usize,
    waits: Vec<u64>,
    ack_delays: Vec<u64>,
}

fn table(explained: &Explained, messages: bool) -> String {
    let mut text = String::new();
    let late: Vec<_> = explained.late().collect();
    let (Some(least), Some(usual)) = (
        late.iter().map(|one| one.latency_ns).min(),
        median(explained.runs.iter().map(|run| run.median_ns).collect()),
    ) else {
        let _ = writeln!(text, "{}: no message arrived", explained.name);
        return text;
    };
    let all: usize = explained.runs.iter().map(|run| run.messages).sum();
    let _ = writeln!(
        text,
        "{}: the latest {} of {all} messages{} took {} or more; the median is {}",
        explained.name,
        late.len(),
        match explained.runs.len() {
            1 => String::new(),
            runs => format!(", by each of {runs} runs,"),
        },
        format_time(least),
        format_time(usual)
    );
    text.push_str("  messages      wait  for what, mostly\n");
    let mut rows: Vec<Row> = Vec::new();
    for one in &late {
        let longest = one.longest();
        let what = longest.map_or_else(|| UNKNOWN.to_owned(), |wait| describe(&wait.cause));
        let place = rows.iter().position(|row| row.what == what);
        let place = place.unwrap_or_else(|| {
            rows.push(Row {
                what,
                count: 0,
                waits: Vec::new(),
                ack_delays: Vec::new(),
            });
            rows.len() - 1
        });
        rows[place].waits.extend(longest.map(|wait| wait.ns));
        rows[place].count += 1;
        rows[place].ack_delays.extend(one.ack_delay_ns);
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    for row in rows {
        let wait = median(row.waits).map_or_else(String::new, format_time);
        let delay = median(row.ack_delays).filter(|ns| *ns >= nanoseconds(WORTH_A_WORD));
        let delay = delay.map(|ns| format!(" (ACK delay {} or more)", format_time(ns)));
        let _ = writeln!(
            text,
            "  {:>8}  {wait:>8}  {}{}",
            row.count,
            row.what,
            delay.unwrap_or_default()
        );
    }
    if messages {
        for one in late {
            let _ = writeln!(
                text,
                "  message {:>6}: {:>8} = {}",
                one.seq,
                format_time(one.latency_ns),
                way(one)
            );
        }
    }
    text
}

/// Formats the parts of a message's way that matter: from a twentieth of its latency on.
fn way(one: &Explanation) -> String {
    let waits = one.waits.iter();
    let parts = waits.filter(|wait| wait.ns >= one.latency_ns / 20);
    let parts = parts.map(|wait| format!("{} {}", format_time(wait.ns), describe(&wait.cause)));
    let parts: Vec<_> = parts.collect();
    if parts.is_empty() {
        return UNKNOWN.to_owned();
    }
    parts.join(" + ")
}

const UNKNOWN: &str = "unknown: the captures lack its packets";

/// An acknowledgement that is held back for less is not worth a word.
const WORTH_A_WORD: std::time::Duration = std::time::Duration::from_millis(1);

/// Says how many explanations the emulator's record of lost packets confirms; nothing without a record.
fn agreement(explained: &[Explained]) -> String {
    let confirmed = explained.iter().flat_map(Explained::late);
    let confirmed: Vec<bool> = confirmed.filter_map(|one| one.confirmed).collect();
    if confirmed.is_empty() {
        return String::new();
    }
    let agree = confirmed.iter().filter(|agrees| **agrees).count();
    format!(
        "\nThe emulator's own record has the packets as lost, or not, of {agree} of {} explanations.\n",
        confirmed.len()
    )
}

fn describe(cause: &Cause) -> String {
    let by = |repair: &Repair| match repair {
        Repair::Acknowledgement => "repaired by an acknowledgement",
        Repair::Timer => "repaired by a timer",
    };
    let link = |hop: &HopName| match hop {
        HopName::Publisher => "publisher's link",
        HopName::Subscriber => "subscriber's link",
    };
    match cause {
        Cause::Lost { hop, times, repair } => {
            let times = match times {
                1 => "lost".to_owned(),
                2 => "lost twice".to_owned(),
                times => format!("lost {times} times"),
            };
            format!("{times} on the {}, {}", link(hop), by(repair))
        }
        Cause::BehindLoss { hop, repair } => {
            format!("behind a loss on the {}, {}", link(hop), by(repair))
        }
        Cause::Window { hop } => match hop {
            HopName::Publisher => {
                "until an acknowledgement opened the publisher's window".to_owned()
            }
            HopName::Subscriber => "until an acknowledgement opened the broker's window".to_owned(),
        },
        Cause::Held { at } => match at {
            Host::Publisher => "held back by the publisher's host".to_owned(),
            Host::Broker => "held back by the broker's host".to_owned(),
            Host::Subscriber => "held back by the subscriber's host".to_owned(),
        },
        Cause::Link { hop } => format!("on the {} (delay, jitter, queue)", link(hop)),
    }
}

/// Returns the median, the lower of two in the middle; `None` without any.
fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    nearest_rank(&values, 50.0)
}
