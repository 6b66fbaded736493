//! The claims and their verdicts: counts for each paper, and a table.

use super::{
    elements::escape,
    tables::{table, table_of},
};
use crate::{
    campaign::claims::Verdict,
    report::campaign::{
        formatting,
        model::{ClaimReport, Report},
        paper_findings,
    },
};

/// Formats all claims that the results' campaigns are judged by.
pub(super) fn claims(report: &Report) -> String {
    // A set of a few campaigns does not list the claims about other campaigns.
    let (known, changes) = (report.claims_of_campaigns(), report.changes());
    if known.is_empty() {
        return String::new();
    }
    let mut names: Vec<&str> = known
        .iter()
        .map(|claim| paper_findings::name_of(claim))
        .collect();
    names.dedup();
    let rows = names.iter().map(|name| Some(*name)).chain([None]);
    let rows = rows.map(|name| {
        let mine = known.iter().copied();
        let mine =
            mine.filter(|claim| name.is_none_or(|name| paper_findings::name_of(claim) == name));
        let mine: Vec<_> = mine.collect();
        let counts = Verdict::ALL.map(|verdict| count(&mine, verdict));
        let head = name.map_or_else(|| "<b>all</b>".to_owned(), escape);
        let counts = Verdict::ALL.into_iter().zip(counts);
        let counts = counts.map(|(verdict, count)| labelled(verdict.label(), &count));
        std::iter::once(head).chain(counts).collect()
    });
    let heads = Verdict::ALL.map(|verdict| badge(verdict, false));
    let columns: Vec<&str> = std::iter::once("paper")
        .chain(heads.iter().map(|head| &head[..]))
        .collect();
    let counts = table_of("Verdicts of each paper's claims", &columns, rows, 1);
    let turned = paper_findings::changed_verdicts(&known, &changes).into_iter();
    let turned = turned.map(|sentence| format!("<p>{}</p>\n", escape(&sentence)));
    let turned: String = turned.collect();
    let open = if known.len() <= 12 { " open" } else { "" };
    format!(
        "<section id=\"claims\">\n<h2>What the papers claim</h2>\n<div class=\"counts\">{counts}</div>\n{turned}\
         <details class=\"more claims\"{open}><summary>All claims <span class=\"quiet\">{}</span>\
         </summary>\n{}</details>\n</section>\n",
        known.len(),
        claim_table("All claims and their verdicts", &known, &changes)
    )
}

/// Formats the number of claims with this verdict, and how many of them found no difference.
fn count(claims: &[&ClaimReport], verdict: Verdict) -> String {
    let with: Vec<_> = claims
        .iter()
        .filter(|claim| claim.verdict == verdict)
        .collect();
    let none = with
        .iter()
        .filter(|claim| paper_findings::no_difference(claim))
        .count();
    if none == 0 {
        return with.len().to_string();
    }
    format!("{}<small>{none} of no difference</small>", with.len())
}

/// Formats the table of claims, with a column for each change that campaigns of the set have.
pub(super) fn claim_table(caption: &str, claims: &[&ClaimReport], changes: &[&str]) -> String {
    let columns = formatting::claim_columns(changes);
    let rows = claims.iter().map(|report| {
        let claim = &report.claim;
        let note = claim
            .note
            .as_ref()
            .map(|note| format!("<small>{}</small>", escape(note)));
        let badge = badge(report.verdict, paper_findings::no_difference(report));
        let own = [
            badge + &format!("<small>{}</small>", escape(&report.why)),
            escape(&claim.says) + &note.unwrap_or_default(),
            escape(&claim.source),
            formatting::claimed_value(report),
            formatting::measured_value(report),
        ];
        let beside = changes
            .iter()
            .map(|changes| formatting::verdict_with_changes(report, changes));
        let cells = own.into_iter().chain(beside).enumerate();
        // The first three columns speak for themselves, and are HTML.
        let cells = cells.map(|(at, cell)| match at {
            0..3 => cell,
            _ => labelled(&columns[at], &escape(&cell)),
        });
        cells.collect()
    });
    let names: Vec<&str> = columns.iter().map(|name| &name[..]).collect();
    table(caption, &names, rows, 3)
}

/// Formats a cell with its column's name, which is shown where the page is too narrow for the table's head.
fn labelled(column: &str, cell: &str) -> String {
    format!("<span data-label=\"{}\">{cell}</span>", escape(column))
}

/// Formats a verdict's badge. With `no_difference` it says that the runs found no difference, where the claim has one.
fn badge(verdict: Verdict, no_difference: bool) -> String {
    let (class, sign) = match verdict {
        Verdict::Reproduced => ("yes", "✓"),
        Verdict::NotReproduced if no_difference => ("same", "≈"),
        Verdict::NotReproduced => ("no", "✗"),
        Verdict::Opposite => ("opposite", "⇄"),
        Verdict::Undecided => ("none", "?"),
        Verdict::NotTested => ("none", "∅"),
        Verdict::NotMeasured => ("none", "–"),
    };
    let more = if no_difference { ": no difference" } else { "" };
    let words = verdict.label();
    format!(
        "<span class=\"badge {class}\"><span aria-hidden=\"true\">{sign}</span> {words}{more}</span>"
    )
}
