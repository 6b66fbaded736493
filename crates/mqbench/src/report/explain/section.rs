//! The section of the report on late messages, of each campaign whose samples and captures were kept.

use super::{Explained, Summary, agreement, kept::of_cells, svg};
use crate::{
    campaign::{record::Record, store::ResultSet},
    report::campaign::{FinishedRuns, Sections, escape, levels_title, table},
    units::format_time,
};

/// Greatest number of runs of a cell that a report explains, the first ones: reading captures takes time.
const RUNS: usize = 3;
/// Share of a run's messages that a report explains, the latest.
const SHARE: f64 = 0.01;
/// Greatest number of messages of a cell in the picture.
const BARS: usize = 10;

/// Makes the section of each campaign that has kept samples and captures.
pub(crate) fn sections(set: &ResultSet) -> Sections {
    let mut all = Sections::new();
    for campaign in &set.campaigns {
        let finished = FinishedRuns::of(campaign, &set.records);
        let name = |run: &Record| {
            if run.levels.is_empty() {
                "all runs".to_owned()
            } else {
                levels_title(&run.levels)
            }
        };
        let content = match of_cells(set, &finished, SHARE, RUNS, name) {
            Ok(cells) if cells.is_empty() => continue,
            Ok(cells) => section(&campaign.name, &cells),
            // The figures are as good without it.
            Err(error) => format!(
                "<p class=\"notice\">The captures cannot be read: {}.</p>\n",
                escape(&format!("{error:#}"))
            ),
        };
        let section = format!(
            "<details class=\"more late\"><summary>Why messages were late</summary>\n{content}</details>\n"
        );
        all.insert(campaign.name.clone(), section);
    }
    all
}

fn section(campaign: &str, cells: &[Explained]) -> String {
    let kept: usize = cells.iter().map(|cell| cell.kept).sum();
    let explained: usize = cells.iter().map(|cell| cell.kept.min(RUNS)).sum();
    let which = if explained < kept {
        format!("the first {RUNS} of each cell")
    } else {
        "all of them".to_owned()
    };
    let agreement = agreement(cells).map_or_else(String::new, |says| format!(" {says}"));
    let tables: String = cells.iter().map(|cell| causes(campaign, cell)).collect();
    format!(
        "<p class=\"quiet\">The latest {:.0} % of each run\u{2019}s messages, ten at least, by what each waited for longest, from \
         the hosts\u{2019} captures. Explained: {explained} of {kept} runs with samples and captures, {which}.{}</p>\n{tables}\
         <p class=\"quiet\">A bar for each of up to {BARS} messages of a cell, the latest first, from the intended sending to the \
         arrival.</p>\n<div class=\"table picture\" tabindex=\"0\" role=\"region\" aria-label=\"Late messages of {}, \
         drawn\">{}</div>\n",
        SHARE * 100.0,
        escape(&agreement),
        escape(campaign),
        svg(cells, BARS),
    )
}

/// Formats the latencies of a cell's late messages, and a table of what they waited for.
fn causes(campaign: &str, cell: &Explained) -> String {
    let name = escape(&cell.name);
    let Some(summary) = Summary::of(cell) else {
        return format!("<p><b>{name}</b>: no message arrived.</p>\n");
    };
    let rows = summary.rows.iter();
    let rows = rows.map(|row| vec![row.count.to_string(), row.wait(), escape(&row.cause())]);
    let columns = ["messages", "median wait", "for what, mostly"];
    format!(
        "<p><b>{name}</b>: the latest {} of {} messages took {} or more; the median is {}.</p>\n{}",
        summary.late,
        summary.all,
        format_time(summary.least_ns),
        format_time(summary.usual_ns),
        table(
            &format!("Late messages of {campaign}: {}", cell.name),
            &columns,
            rows,
            3
        ),
    )
}
