//! The report as one HTML file that needs no network.
//!
//! All text and all tables are in the file itself; the script only draws, from data that is JSON.

mod cards;
mod claims;
mod details;
mod elements;
mod figures;
mod header;
mod provenance;
mod tables;

use std::{collections::BTreeMap, io::Read as _};

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use cards::cards;
use claims::{claim_table, claims};
use details::{links, parameters, repeated, tests, warnings};
pub(crate) use elements::escape;
use elements::{more, panel_title};
use figures::{distribution, figure};
use header::{contents, header};
use provenance::provenance;
pub(crate) use tables::table;

use super::{
    chart, formatting,
    model::{CampaignReport, ClaimReport, Report},
};
use crate::units::{format_time, json_text};

/// The chart library, compressed: unpacked it would be a tenth of the program on a small machine.
const ECHARTS: &[u8] = include_bytes!("../../../../assets/echarts.min.js.gz");
const SCRIPT: &str = include_str!("../../../../assets/report.js");
const STYLE: &str = include_str!("../../../../assets/report.css");

/// Unpacks the script that draws the charts.
pub(super) fn charts_library() -> String {
    let mut text = String::new();
    let read = GzDecoder::new(ECHARTS).read_to_string(&mut text);
    read.expect("the vendored file is packed text");
    text
}

/// Sections as HTML, by the names of their campaigns.
pub(crate) type Sections = BTreeMap<String, String>;

/// Formats the report as a page, with these sections on late messages.
pub(crate) fn page(report: &Report, late: &Sections) -> String {
    let mut charts = Vec::new();
    let mut sections = String::new();
    for (number, campaign) in report.campaigns.iter().enumerate() {
        sections.push_str(&section(report, campaign, late, number, &mut charts));
    }
    let data = json!({ "charts": charts }).to_string();
    // The data cannot contain the end of a script or the beginning of a comment.
    let data = data.replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>mqbench report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#answers\">To the answers</a>\n{head}<main>\n{cards}{contents}{claims}\
         {sections}</main>\n{foot}\
         <script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>{library}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        head = header(report),
        cards = cards(report),
        contents = contents(report),
        claims = claims(report),
        foot = provenance(report),
        library = charts_library(),
    )
}

fn section(
    report: &Report,
    campaign: &CampaignReport,
    late: &Sections,
    number: usize,
    charts: &mut Vec<Value>,
) -> String {
    let mut text = format!(
        "<section id=\"c{number}\" class=\"campaign\">\n<h2>{}</h2>\n<p class=\"quiet\">{} · {} · \
         {}</p>\n<p class=\"quiet\">In all runs: {}.{}</p>\n{}{}<div class=\"figures\">\n",
        escape(&campaign.title),
        escape(&campaign.source),
        escape(&campaign.name),
        escape(&runs(campaign)),
        escape(&fixed(campaign)),
        initial_rtts(campaign),
        energy(campaign),
        missing(campaign),
    );
    for (at, panel) in campaign.panels.iter().enumerate() {
        if panel.points().next().is_none() {
            text.push_str(&format!(
                "<p class=\"notice\">{}: no run has this value yet: {}.</p>\n",
                escape(&panel_title(campaign, panel)),
                escape(&campaign.plot.quantity)
            ));
            continue;
        }
        let id = format!("c{number}p{at}");
        charts.push(chart::figure(campaign, panel, &id));
        text.push_str(&figure(campaign, panel, &id));
    }
    text.push_str("</div>\n");
    if let Some(estimators) = &campaign.estimators {
        text.push_str(&format!(
            "<h3>Two estimators</h3>\n<p>{}</p>\n",
            escape(&estimators.conclusion)
        ));
    }
    let mut spread = String::new();
    for (at, panel) in campaign.panels.iter().enumerate() {
        let id = format!("c{number}d{at}");
        if let Some(chart) = chart::distributions(campaign, panel, &id) {
            charts.push(chart);
            spread.push_str(&distribution(campaign, panel, &id));
        }
    }
    if !spread.is_empty() {
        text.push_str(&format!(
            "<details class=\"more\"><summary>Distributions within the runs</summary>\n\
             <div class=\"figures\">\n{spread}</div>\n</details>\n"
        ));
    }
    text.push_str(late.get(&campaign.name).map_or("", |section| section));
    let mine = |claim: &&ClaimReport| campaign.claims.contains(&claim.claim.id);
    let claims: Vec<_> = report.claims.iter().filter(mine).collect();
    if !claims.is_empty() {
        text.push_str(&more(
            "Claims",
            claims.len(),
            &format!(
                "<div class=\"claims\">{}</div>\n",
                claim_table(
                    &format!("Claims held against {}", campaign.name),
                    &claims,
                    &report.changes()
                )
            ),
        ));
    }
    text.push_str(&tests(campaign));
    text.push_str(&parameters(campaign));
    text.push_str(&links(campaign));
    text.push_str(&warnings(campaign));
    text.push_str(&repeated(campaign));
    text.push_str("</section>\n");
    text
}

fn runs(campaign: &CampaignReport) -> String {
    let runs = &campaign.runs;
    let mut text = runs.counts.to_string();
    if runs.warned > 0 {
        text.push_str(&format!("; {} with warnings", runs.warned));
    }
    text
}

/// Formats a paragraph for each meter of the runs: its name, and measured or modelled energy.
fn energy(campaign: &CampaignReport) -> String {
    let each = campaign.energy.iter();
    let each = each.map(|of| {
        format!(
            "<p class=\"quiet\">{}</p>\n",
            escape(&formatting::energy(of))
        )
    });
    each.collect()
}

fn missing(campaign: &CampaignReport) -> String {
    let runs = &campaign.runs.counts;
    let missing = runs.missing();
    if missing == 0 {
        return String::new();
    }
    format!(
        "<p class=\"notice\">{missing} of {} runs are not done yet: the figures are of the \
         others.</p>\n",
        runs.planned
    )
}

fn initial_rtts(campaign: &CampaignReport) -> String {
    let assumed = formatting::initial_rtts(campaign);
    assumed.map_or_else(String::new, |text| format!(" {}.", escape(&text)))
}

/// Formats the keys that all cells have in common, in short.
fn fixed(campaign: &CampaignReport) -> String {
    let fixed = &campaign.fixed;
    let mut parts = Vec::new();
    for (key, value) in fixed {
        let value = json_text(value);
        match key.strip_suffix("_ns") {
            Some(key) => parts.push(format!("{key} {}", format_time(value.parse().unwrap_or(0)))),
            None => parts.push(format!("{key} {value}")),
        }
    }
    parts.join(", ")
}
