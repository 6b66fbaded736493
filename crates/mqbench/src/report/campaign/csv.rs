//! The values as CSV in long form: a line for each metric of each run that counts.

use std::collections::BTreeSet;

use super::metric_values::FinishedRuns;
use crate::campaign::{file::Campaign, record::Record};

/// Formats all values as CSV with the columns `campaign`, one for each factor, `repetition`, `metric`, `value`.
pub(crate) fn long(campaigns: &[Campaign], records: &[Record]) -> String {
    let cells = || campaigns.iter().flat_map(|campaign| &campaign.cells);
    let factors: BTreeSet<&String> = cells().flat_map(|cell| cell.levels.keys()).collect();
    let mut text = row(std::iter::once("campaign")
        .chain(factors.iter().map(|factor| &factor[..]))
        .chain(["repetition", "metric", "value"]));
    for campaign in campaigns {
        for run in FinishedRuns::of(campaign, records).runs {
            for (metric, value) in &run.outcome.metrics {
                let levels = factors.iter().map(|factor| run.levels.get(*factor));
                let levels = levels.map(|level| level.map_or("", |level| &level[..]));
                let (repetition, value) = (run.repetition.to_string(), value.to_string());
                text.push_str(&row(std::iter::once(&campaign.name[..])
                    .chain(levels)
                    .chain([&repetition[..], metric, &value])));
            }
        }
    }
    text
}

/// Formats a line by RFC 4180, with a plain line end.
pub(super) fn row<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let quoted = |cell: &str| {
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.to_owned()
        }
    };
    let cells: Vec<_> = cells.into_iter().map(quoted).collect();
    cells.join(",") + "\n"
}
