//! Reasons why messages were late: of kept runs, as a table, a picture, and a section of the report.

mod kept;
mod picture;
mod section;

use std::fmt::Write as _;

use mq_measure::{
    explain::{Cause, Explanation, HopName, Host, Repair, Report},
    stats::nearest_rank,
};
use serde::Serialize;

pub(crate) use kept::{of_comparison, of_set};
pub(crate) use picture::{MOST_BARS, svg};
pub(crate) use section::sections;

use crate::{clock::nanoseconds, units::format_time};

/// The late messages of one transport's or one cell's runs.
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    /// The transport, or the campaign and its levels.
    pub(crate) name: String,
    /// The runs, each with its latest messages.
    runs: Vec<Report>,
    /// Number of kept runs that could be explained.
    #[serde(skip)]
    kept: usize,
}

impl Explained {
    fn new(name: String) -> Self {
        Self {
            name,
            runs: Vec::new(),
            kept: 0,
        }
    }

    fn late(&self) -> impl Iterator<Item = &Explanation> {
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
    if let Some(agreement) = agreement(explained) {
        let _ = writeln!(text, "\n{agreement}");
    }
    text
}

/// The late messages of a transport or cell, by what they waited for.
struct Summary {
    /// Number of late messages.
    late: usize,
    /// Number of messages that arrived.
    all: usize,
    /// Least latency of the late messages, in nanoseconds.
    least_ns: u64,
    /// Median of the runs' median latencies, in nanoseconds.
    usual_ns: u64,
    /// The causes, the most frequent first.
    rows: Vec<Row>,
}

/// The messages with one cause.
struct Row {
    what: String,
    count: usize,
    waits: Vec<u64>,
    ack_delays: Vec<u64>,
}

impl Summary {
    /// Sums up the late messages; `None` if no message arrived.
    fn of(explained: &Explained) -> Option<Self> {
        let late: Vec<_> = explained.late().collect();
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
        Some(Self {
            late: late.len(),
            all: explained.runs.iter().map(|run| run.messages).sum(),
            least_ns: late.iter().map(|one| one.latency_ns).min()?,
            usual_ns: median(explained.runs.iter().map(|run| run.median_ns).collect())?,
            rows,
        })
    }
}

impl Row {
    /// Returns the median wait; empty if the captures lack the messages' packets.
    fn wait(&self) -> String {
        median(self.waits.clone()).map_or_else(String::new, format_time)
    }

    /// Describes the cause, with the acknowledgements' delay if that is worth a word.
    fn cause(&self) -> String {
        let delay = median(self.ack_delays.clone());
        match delay.filter(|ns| *ns >= nanoseconds(WORTH_A_WORD)) {
            Some(ns) => format!("{} (ACK delay {} or more)", self.what, format_time(ns)),
            None => self.what.clone(),
        }
    }
}

fn table(explained: &Explained, messages: bool) -> String {
    let mut text = String::new();
    let Some(summary) = Summary::of(explained) else {
        let _ = writeln!(text, "{}: no message arrived", explained.name);
        return text;
    };
    let _ = writeln!(
        text,
        "{}: the latest {} of {} messages{} took {} or more; the median is {}",
        explained.name,
        summary.late,
        summary.all,
        match explained.runs.len() {
            1 => String::new(),
            runs => format!(", by each of {runs} runs,"),
        },
        format_time(summary.least_ns),
        format_time(summary.usual_ns)
    );
    text.push_str("  messages      wait  for what, mostly\n");
    for row in &summary.rows {
        let _ = writeln!(
            text,
            "  {:>8}  {:>8}  {}",
            row.count,
            row.wait(),
            row.cause()
        );
    }
    if messages {
        for one in explained.late() {
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

/// Returns the number of explanations that the emulator's record of lost packets confirms, as a sentence; `None` without a
/// record.
fn agreement(explained: &[Explained]) -> Option<String> {
    let confirmed = explained.iter().flat_map(Explained::late);
    let confirmed: Vec<bool> = confirmed.filter_map(|one| one.confirmed).collect();
    let agree = confirmed.iter().filter(|agrees| **agrees).count();
    (!confirmed.is_empty()).then(|| {
        format!(
            "The emulator's own record has the packets as lost, or not, of {agree} of {} explanations.",
            confirmed.len()
        )
    })
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
