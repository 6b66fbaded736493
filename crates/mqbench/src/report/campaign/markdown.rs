//! The report as Markdown: tables and verdicts.

use super::{
    formatting,
    model::{CampaignReport, Report},
    paper_findings,
};
use crate::campaign::file::Extent;

/// Formats the report as Markdown.
pub(crate) fn render(report: &Report) -> String {
    let mut text = "# MQTT over TCP, TLS and QUIC\n\n".to_owned();
    let manifest = &report.manifest;
    text.push_str(&format!(
        "{} {}, begun {}.\n",
        manifest.program.name,
        manifest.program.version.clone().unwrap_or_default(),
        manifest.started_at
    ));
    if let Some(others) = formatting::continued(report) {
        text.push_str(&format!("Continued by {others}.\n"));
    }
    if report.extent == Extent::Quick {
        text.push_str("A quick run: a look, no figures to quote.\n");
    }
    text.push('\n');
    for paper in &report.papers {
        text.push_str(&format!(
            "**{}**: {} held, {} did not hold, {} open. {}\n\n",
            paper.name,
            paper.held,
            paper.failed,
            paper.open,
            paper.says.join(" ")
        ));
    }
    let (claims, changes) = (report.claims_of_campaigns(), report.changes());
    if !claims.is_empty() {
        text.push_str("## What the papers claim\n\n");
        for sentence in paper_findings::changed_verdicts(&claims, &changes) {
            text.push_str(&format!("{sentence}\n\n"));
        }
        let rows = claims.iter().map(|claim| {
            let mut row = vec![
                claim.verdict.label().to_owned(),
                claim.claim.says.clone(),
                claim.claim.source.clone(),
                formatting::claimed_value(claim),
                formatting::measured_value(claim),
            ];
            row.extend(
                changes
                    .iter()
                    .map(|changes| formatting::verdict_with_changes(claim, changes)),
            );
            row.push(formatting::why_and_note(claim));
            row
        });
        let columns = formatting::claim_columns(&changes);
        let columns = columns.iter().map(|name| &name[..]);
        let columns: Vec<&str> = columns.chain(["why"]).collect();
        text.push_str(&table(&columns, rows));
    }
    for campaign in &report.campaigns {
        text.push_str(&section(campaign));
    }
    text
}

fn section(campaign: &CampaignReport) -> String {
    let (plot, runs) = (&campaign.plot, &campaign.runs);
    let mut text = format!(
        "## {}\n\n{}. {}; {} with warnings.\n\n",
        campaign.title, campaign.source, runs.counts, runs.warned
    );
    if let Some(assumed) = formatting::initial_rtts(campaign) {
        text.push_str(&format!("{assumed}.\n\n"));
    }
    for energy in &campaign.energy {
        text.push_str(&format!("{}\n\n", formatting::energy(energy)));
    }
    for panel in &campaign.panels {
        if !panel.levels.is_empty() {
            text.push_str(&format!("### {}\n\n", formatting::levels(&panel.levels)));
        }
        if !panel.shows.is_empty() {
            text.push_str(&format!("{}\n\n", panel.shows));
        }
        if panel.disturbed > 0 {
            text.push_str(&format!(
                "Disturbed in their last attempt: {} runs.\n\n",
                panel.disturbed
            ));
        }
        let mut rows = Vec::new();
        for (at, x) in panel.x.iter().enumerate() {
            for series in &panel.series {
                if let Some(point) = &series.points[at] {
                    rows.push(vec![
                        x.clone(),
                        series.name.clone(),
                        point.n.to_string(),
                        formatting::number(point.mean),
                        formatting::interval(point).unwrap_or_else(formatting::dash),
                        formatting::basis(point.interval_of).to_owned(),
                        formatting::number(point.median),
                    ]);
                }
            }
        }
        let mean = formatting::with_unit(&plot.metric, &plot.unit);
        let columns = [
            &plot.x,
            &plot.series,
            "runs",
            &mean,
            "95 % interval",
            "over",
            "median",
        ];
        text.push_str(&table(&columns, rows.into_iter()));
    }
    if let Some(estimators) = &campaign.estimators {
        text.push_str(&format!(
            "### Two estimators\n\n{}\n\n",
            estimators.conclusion
        ));
    }
    for warning in &campaign.warnings {
        let first = warning.found.first().map_or("", |found| &found.says);
        text.push_str(&format!(
            "- {} in {} runs: {first}\n",
            warning.kind, warning.runs
        ));
    }
    if !campaign.warnings.is_empty() {
        text.push('\n');
    }
    text
}

pub(super) fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let names: Vec<_> = columns.iter().map(|name| (*name).to_owned()).collect();
    let mut text = line(&names) + &format!("|{}\n", "---|".repeat(columns.len()));
    for row in rows {
        text.push_str(&line(&row));
    }
    text + "\n"
}
