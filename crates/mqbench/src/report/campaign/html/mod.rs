//! The report as one HTML file that needs no network.
//!
//! All text and all tables are in the file itself; the script only draws, from data that is JSON.

mod details;
mod figures;

use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use details::{links, repeated, tests, warnings};
use figures::{distribution, figure};

use super::{
    chart,
    model::{CampaignReport, ClaimReport, Panel, Report},
    words,
};
use crate::{
    campaign::{claims::Verdict, file::Extent},
    units::time,
};

/// The chart library, compressed: unpacked it would be a tenth of the program on a small machine.
const ECHARTS: &[u8] = include_bytes!("../../../../assets/echarts.min.js.gz");
const SCRIPT: &str = include_str!("../../../../assets/report.js");
const STYLE: &str = include_str!("../../../../assets/report.css");

/// The script that draws the charts.
pub(super) fn charts_library() -> String {
    let mut text = String::new();
    let read = GzDecoder::new(ECHARTS).read_to_string(&mut text);
    read.expect("the vendored file is packed text");
    text
}

/// The report as a page.
pub(crate) fn page(report: &Report) -> String {
    let mut charts = Vec::new();
    let mut sections = String::new();
    for (number, campaign) in report.campaigns.iter().enumerate() {
        sections.push_str(&section(report, campaign, number, &mut charts));
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
         <a class=\"skip\" href=\"#main\">To the figures</a>\n{head}<main id=\"main\">\n{claims}\
         {sections}</main>\n{foot}\
         <script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>{library}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        head = header(report),
        claims = claims(report),
        foot = footer(report),
        library = charts_library(),
    )
}

fn header(report: &Report) -> String {
    let manifest = &report.manifest;
    let host = &manifest.host;
    let unknown = || "unknown".to_owned();
    let facts = [
        ("Begun", manifest.started_at.clone()),
        (
            "Program",
            format!(
                "{} {} ({})",
                manifest.program.name,
                manifest.program.version.clone().unwrap_or_default(),
                manifest.profile
            ),
        ),
        (
            "Revision",
            manifest.program.revision.clone().unwrap_or_else(unknown),
        ),
        ("Broker", manifest.broker.name.clone()),
        (
            "Machine",
            format!(
                "{}, {} cores",
                host.cpu.clone().unwrap_or_else(unknown),
                host.cores
            ),
        ),
        ("Kernel", host.kernel.clone().unwrap_or_else(unknown)),
    ];
    let continued = words::continued(report).map(|others| ("Continued by", others));
    let facts = facts
        .iter()
        .chain(&continued)
        .map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(value)));
    let mut warnings = report.campaigns.iter().flat_map(|one| &one.warnings);
    let notices = [
        (
            report.extent == Extent::Quick,
            "<strong>A quick run.</strong> It has fewer messages, levels and repetitions than the \
             papers: a look at the shape of things, no figures to quote.",
        ),
        (
            manifest.profile == "debug",
            "<strong>A debug build.</strong> It was built without optimisation: its times are not \
             those of the program.",
        ),
        (
            warnings.any(|warning| warning.kind == "emulated"),
            "<strong>Emulated.</strong> An emulator did what a machine was to do: no time is that \
             of such a machine. The warnings name it.",
        ),
    ];
    let notices = notices.into_iter().filter(|(applies, _)| *applies);
    let notices = notices.map(|(_, text)| format!("<p class=\"notice\">{text}</p>\n"));
    let entries = report
        .campaigns
        .iter()
        .enumerate()
        .map(|(number, campaign)| {
            format!(
                "<li><a href=\"#c{number}\">{}</a> <span class=\"quiet\">{}</span></li>",
                escape(&campaign.title),
                escape(&campaign.source)
            )
        });
    format!(
        "<header>\n<h1>MQTT over TCP, TLS and QUIC</h1>\n<dl class=\"facts\">{}</dl>\n{}\
         <nav aria-label=\"Campaigns\"><ul>{}</ul></nav>\n</header>\n",
        facts.collect::<String>(),
        notices.collect::<String>(),
        entries.collect::<String>()
    )
}

fn claims(report: &Report) -> String {
    // A set of a few campaigns does not list the claims about other campaigns.
    let known = report.claims_of_campaigns();
    if known.is_empty() {
        return String::new();
    }
    let verdicts = Verdict::ALL;
    let mut papers: Vec<&str> = known.iter().map(|claim| paper(claim)).collect();
    papers.dedup();
    let count = |paper_name: Option<&str>, verdict| {
        let of = known.iter().filter(|claim| claim.verdict == verdict);
        of.filter(|claim| paper_name.is_none_or(|name| paper(claim) == name))
            .count()
    };
    let rows = papers.iter().map(|name| Some(*name)).chain([None]);
    let rows = rows.map(|name| {
        let counts = verdicts.map(|verdict| count(name, verdict).to_string());
        let head = name.map_or_else(|| "<b>all</b>".to_owned(), escape);
        [vec![head], counts.to_vec()].concat()
    });
    let heads = verdicts.map(badge);
    let columns: Vec<&str> = std::iter::once("paper")
        .chain(heads.iter().map(|head| &head[..]))
        .collect();
    let counts = table_of("Verdicts of each paper's claims", &columns, rows, 1);
    let open = if known.len() <= 12 { " open" } else { "" };
    format!(
        "<section id=\"claims\">\n<h2>What the papers claim</h2>\n<div class=\"counts\">{counts}</div>\n\
         <details class=\"more claims\"{open}><summary>All claims <span class=\"quiet\">{}</span>\
         </summary>\n{}</details>\n</section>\n",
        known.len(),
        claim_table(&known)
    )
}

/// `S22` of `S22 §5.1`.
fn paper(claim: &ClaimReport) -> &str {
    let source = &claim.claim.source;
    source.split([' ', ',']).next().unwrap_or(source)
}

fn claim_table(claims: &[&ClaimReport]) -> String {
    let rows = claims.iter().map(|report| {
        let claim = &report.claim;
        let note = claim
            .note
            .as_ref()
            .map(|note| format!("<small>{}</small>", escape(note)));
        vec![
            badge(report.verdict) + &format!("<small>{}</small>", escape(&report.why)),
            escape(&claim.says) + &note.unwrap_or_default(),
            escape(&claim.source),
            escape(&words::printed(report)),
            escape(&words::measured(report)),
        ]
    });
    table(
        "Claims and verdicts",
        &["verdict", "claim", "source", "printed", "here (90 %)"],
        rows,
        3,
    )
}

fn badge(verdict: Verdict) -> String {
    let (class, sign) = match verdict {
        Verdict::Reproduced => ("yes", "✓"),
        Verdict::NotReproduced => ("no", "✗"),
        Verdict::Opposite => ("opposite", "⇄"),
        Verdict::Undecided => ("none", "?"),
        Verdict::NotTested => ("none", "∅"),
        Verdict::NotMeasured => ("none", "–"),
    };
    let words = verdict.words();
    format!("<span class=\"badge {class}\"><span aria-hidden=\"true\">{sign}</span> {words}</span>")
}

fn section(
    report: &Report,
    campaign: &CampaignReport,
    number: usize,
    charts: &mut Vec<Value>,
) -> String {
    let mut text = format!(
        "<section id=\"c{number}\" class=\"campaign\">\n<h2>{}</h2>\n<p class=\"quiet\">{} · {} · \
         {}</p>\n<p class=\"quiet\">{}</p>\n{}{}<div class=\"figures\">\n",
        escape(&campaign.title),
        escape(&campaign.source),
        escape(&campaign.name),
        escape(&runs(campaign)),
        escape(&fixed(campaign)),
        energy(campaign),
        missing(campaign),
    );
    for (at, panel) in campaign.panels.iter().enumerate() {
        if panel
            .series
            .iter()
            .flat_map(|one| &one.points)
            .flatten()
            .next()
            .is_none()
        {
            text.push_str(&format!(
                "<p class=\"notice\">{}: no run has {} yet.</p>\n",
                escape(&panel_title(campaign, panel)),
                escape(&campaign.plot.metric)
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
    let mine = |claim: &&ClaimReport| campaign.claims.contains(&claim.claim.id);
    let claims: Vec<_> = report.claims.iter().filter(mine).collect();
    if !claims.is_empty() {
        text.push_str(&more(
            "Claims",
            claims.len(),
            &format!("<div class=\"claims\">{}</div>\n", claim_table(&claims)),
        ));
    }
    text.push_str(&tests(campaign));
    text.push_str(&links(campaign));
    text.push_str(&warnings(campaign));
    text.push_str(&repeated(campaign));
    text.push_str("</section>\n");
    text
}

fn runs(campaign: &CampaignReport) -> String {
    let runs = &campaign.runs;
    let mut text = runs.tally.to_string();
    if runs.warned > 0 {
        text.push_str(&format!("; {} with warnings", runs.warned));
    }
    text
}

/// Which energy is measured, and which is modelled.
fn energy(campaign: &CampaignReport) -> String {
    let each = campaign.energy.iter();
    let each = each.map(|of| format!("<p class=\"quiet\">{}</p>\n", escape(&words::energy(of))));
    each.collect()
}

fn missing(campaign: &CampaignReport) -> String {
    let runs = &campaign.runs.tally;
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

/// The keys that all cells have in common, in short.
fn fixed(campaign: &CampaignReport) -> String {
    let fixed = &campaign.fixed;
    let mut parts = Vec::new();
    for (key, value) in fixed {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match key.strip_suffix("_ns") {
            Some(key) => parts.push(format!("{key} {}", time(value.parse().unwrap_or(0)))),
            None => parts.push(format!("{key} {value}")),
        }
    }
    parts.join(", ")
}

/// `link s22/wifi`, or the campaign's own title if it has one figure.
fn panel_title(campaign: &CampaignReport, panel: &Panel) -> String {
    if panel.levels.is_empty() {
        campaign.title.clone()
    } else {
        words::levels(&panel.levels)
    }
}

fn more(title: &str, count: usize, content: &str) -> String {
    format!(
        "<details class=\"more\"><summary>{title} <span class=\"quiet\">{count}</span></summary>\n\
         {content}</details>\n"
    )
}

/// A table with a caption; the first `texts` columns are text, the others numbers. Cells are HTML.
fn table(
    caption: &str,
    columns: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    texts: usize,
) -> String {
    let columns: Vec<String> = columns.iter().map(|name| escape(name)).collect();
    let columns: Vec<&str> = columns.iter().map(|name| &name[..]).collect();
    table_of(caption, &columns, rows, texts)
}

/// The same, with column names that are HTML already.
fn table_of(
    caption: &str,
    columns: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    texts: usize,
) -> String {
    let head = columns
        .iter()
        .map(|name| format!("<th scope=\"col\">{name}</th>"));
    let class = |at: usize| if at < texts { "" } else { " class=\"num\"" };
    let rows = rows.map(|row| {
        let cells = row.iter().enumerate();
        let cells = cells.map(|(at, cell)| format!("<td{}>{cell}</td>", class(at)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    });
    format!(
        "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table>\
         <caption>{caption}</caption><thead><tr>{}</tr></thead>\n<tbody>{}</tbody></table></div>\n",
        head.collect::<String>(),
        rows.collect::<String>(),
        caption = escape(caption),
    )
}

fn footer(report: &Report) -> String {
    format!(
        "<footer>\n<h2>How to read it</h2>\n<ul>\n\
         <li>Intervals are of 95 % and by bootstrap: over the runs of a cell where there are at \
         least two, or else over the messages of its one run. Messages of one run are not \
         independent, so that such an interval is too narrow.</li>\n\
         <li>Boxes and tests are over runs where a cell has at least five, or else over \
         messages.</li>\n\
         <li>A run that was disturbed is repeated; only its last attempt counts.</li>\n\
         <li>A claim is <b>reproduced</b> if the interval shows its direction and is compatible \
         with its size: within a quarter of the printed effect, or a tenth of a printed value. It \
         is <b>opposite</b> if the interval shows the other direction.</li>\n</ul>\n\
         <p class=\"quiet\">{}, schema {}. Charts: Apache ECharts, under the Apache License \
         2.0. This page loads nothing.</p>\n</footer>\n",
        escape(&report.manifest.program.name),
        report.schema
    )
}

pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}
