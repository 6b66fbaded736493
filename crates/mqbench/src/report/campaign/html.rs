//! The report as one HTML file that needs no network.
//!
//! All text and all tables are in the file itself; the script only draws, from data that is JSON.

use serde_json::{Value, json};

use super::{
    chart,
    model::{Basis, CampaignReport, ClaimReport, Panel, Point, Report},
    words,
};
use crate::{
    campaign::{
        claims::Verdict,
        file::{Extent, PlotKind},
    },
    report::units::time,
};

const ECHARTS: &str = include_str!("../../../assets/echarts.min.js");
const SCRIPT: &str = include_str!("../../../assets/report.js");
const STYLE: &str = include_str!("../../../assets/report.css");

/// The page.
pub(crate) fn page(report: &Report) -> String {
    let mut charts = Vec::new();
    let mut sections = String::new();
    for (number, campaign) in report.campaigns.iter().enumerate() {
        sections.push_str(&section(report, campaign, number, &mut charts));
    }
    let data = json!({ "charts": charts }).to_string();
    // Neither the end of a script nor a comment can begin in it.
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
         <script>{ECHARTS}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        head = header(report),
        claims = claims(report),
        foot = footer(report),
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
    let facts = facts
        .iter()
        .map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(value)));
    let quick = if report.extent == Extent::Quick {
        "<p class=\"notice\"><strong>A quick run.</strong> It has fewer messages, levels and \
         repetitions than the papers: a look at the shape of things, no figures to quote.</p>\n"
    } else {
        ""
    };
    let debug = if manifest.profile == "debug" {
        "<p class=\"notice\"><strong>A debug build.</strong> It was built without optimisation: \
         its times are not those of the program.</p>\n"
    } else {
        ""
    };
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
        "<header>\n<h1>MQTT over TCP, TLS and QUIC</h1>\n<dl class=\"facts\">{}</dl>\n{quick}{debug}\
         <nav aria-label=\"Campaigns\"><ul>{}</ul></nav>\n</header>\n",
        facts.collect::<String>(),
        entries.collect::<String>()
    )
}

fn claims(report: &Report) -> String {
    // A set of a few campaigns says nothing of the claims of others.
    let run = |claim: &&ClaimReport| {
        report
            .campaigns
            .iter()
            .any(|campaign| campaign.name == claim.claim.campaign)
    };
    let known: Vec<_> = report.claims.iter().filter(run).collect();
    if known.is_empty() {
        return String::new();
    }
    let verdicts = [
        Verdict::Reproduced,
        Verdict::NotReproduced,
        Verdict::Opposite,
        Verdict::NotMeasured,
    ];
    let counts = verdicts.into_iter().filter_map(|verdict| {
        let count = known
            .iter()
            .filter(|claim| claim.verdict == verdict)
            .count();
        (count > 0).then(|| format!("<li>{} <b>{count}</b></li>", badge(verdict)))
    });
    format!(
        "<section id=\"claims\">\n<h2>What the papers claim</h2>\n<ul class=\"counts\">{}</ul>\n{}\
         </section>\n",
        counts.collect::<String>(),
        claim_table(&known)
    )
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
        &["verdict", "claim", "source", "printed", "measured (95 %)"],
        rows,
        3,
    )
}

fn badge(verdict: Verdict) -> String {
    let (class, sign) = match verdict {
        Verdict::Reproduced => ("yes", "✓"),
        Verdict::NotReproduced => ("no", "✗"),
        Verdict::Opposite => ("opposite", "⇄"),
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
         {}</p>\n<p class=\"quiet\">{}</p>\n{}<div class=\"figures\">\n",
        escape(&campaign.title),
        escape(&campaign.source),
        escape(&campaign.name),
        escape(&runs(campaign)),
        escape(&fixed(campaign)),
        missing(campaign),
    );
    for (at, panel) in campaign.panels.iter().enumerate() {
        let id = format!("c{number}p{at}");
        charts.push(chart::figure(campaign, panel, &id));
        text.push_str(&figure(campaign, panel, &id));
    }
    text.push_str("</div>\n");
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
        text.push_str(&more("Claims", claims.len(), &claim_table(&claims)));
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
    let mut text = format!("{} of {} runs", runs.finished, runs.planned);
    if runs.repeated > 0 {
        text.push_str(&format!(", {} disturbed ones repeated", runs.repeated));
    }
    if runs.warned > 0 {
        text.push_str(&format!(", {} with warnings", runs.warned));
    }
    text
}

fn missing(campaign: &CampaignReport) -> String {
    let runs = &campaign.runs;
    let missing = runs.planned.saturating_sub(runs.finished);
    if missing == 0 {
        return String::new();
    }
    format!(
        "<p class=\"notice\">{missing} of {} runs are not done yet: the figures are of the \
         others.</p>\n",
        runs.planned
    )
}

/// What all cells have in common, in short.
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

fn figure(campaign: &CampaignReport, panel: &Panel, id: &str) -> String {
    let plot = &campaign.plot;
    let drawn = match plot.kind {
        PlotKind::Bars => "Bars are means, with their 95 % intervals",
        PlotKind::Lines => "Points are means, with their 95 % intervals",
        PlotKind::BoxTukey => "Boxes are quartiles and median, whiskers reach 1.5 heights",
        PlotKind::BoxPercentiles => "Boxes are quartiles and median, whiskers p5 and p95",
    };
    let base = match panel.baseline {
        Some(delay) if plot.kind == PlotKind::Bars => {
            format!(
                "; they stand on the link's delay of {} ms",
                words::number(delay)
            )
        }
        Some(delay) => format!(
            "; the dashed line is the link's delay of {} ms",
            words::number(delay)
        ),
        None if chart::mark(campaign, panel).is_some() => {
            "; at the dashed line both are alike".to_owned()
        }
        None => String::new(),
    };
    let points = panel.series.iter().flat_map(|series| &series.points);
    let mut boxes = points
        .flatten()
        .filter_map(|point| point.quartiles.as_ref());
    let of = match plot.kind {
        PlotKind::Bars | PlotKind::Lines => "",
        _ if boxes.any(|one| one.of == Basis::Messages) => " of all messages",
        _ => " of the runs",
    };
    format!(
        "<figure aria-labelledby=\"{id}-t\">\n<figcaption><h3 id=\"{id}-t\">{}</h3>\
         <p>{}. {drawn}{of}{base}.</p></figcaption>\n\
         <div class=\"tools\" role=\"group\" aria-label=\"Tools of this figure\">\
         <button type=\"button\" data-for=\"{id}\" data-do=\"log\" aria-pressed=\"{log}\">log axis</button>\
         {}</div>\n<div class=\"chart\" id=\"{id}\" role=\"img\" aria-label=\"{}\"></div>\n\
         <details class=\"data\"><summary>Data</summary>{}</details>\n</figure>\n",
        escape(&panel_title(campaign, panel)),
        escape(&capital(&plot.meaning)),
        tools(id),
        escape(&alternative(campaign, panel)),
        data_table(campaign, panel),
        log = chart::starts_logarithmic(campaign, panel),
    )
}

fn tools(id: &str) -> String {
    let button = |action: &str, label: &str, title: &str| {
        format!(
            "<button type=\"button\" data-for=\"{id}\" data-do=\"{action}\" title=\"{title}\" \
             aria-label=\"{title}\">{label}</button>"
        )
    };
    [
        button("in", "+", "Zoom in"),
        button("out", "−", "Zoom out"),
        button("reset", "reset", "Show all again"),
        button("csv", "CSV", "Save the data as CSV"),
        button("svg", "SVG", "Save the figure as SVG"),
    ]
    .concat()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_ascii_uppercase().to_string() + letters.as_str()
    })
}

/// The figure in words, for who does not see it.
fn alternative(campaign: &CampaignReport, panel: &Panel) -> String {
    let plot = &campaign.plot;
    let mut text = format!(
        "{} over {}, {}.",
        plot.metric,
        plot.x,
        panel_title(campaign, panel)
    );
    for series in &panel.series {
        let points = panel.x.iter().zip(&series.points).filter_map(|(x, point)| {
            Some(format!("{} at {x}", words::number(point.as_ref()?.mean)))
        });
        let points: Vec<_> = points.collect();
        if !points.is_empty() {
            text.push_str(&format!(
                " {}: {} {}.",
                series.name,
                points.join(", "),
                plot.unit
            ));
        }
    }
    text.push_str(" The table below has all values.");
    text
}

fn data_table(campaign: &CampaignReport, panel: &Panel) -> String {
    let plot = &campaign.plot;
    let unit = if plot.unit.is_empty() {
        String::new()
    } else {
        format!(" [{}]", plot.unit)
    };
    let mut rows = Vec::new();
    for (at, x) in panel.x.iter().enumerate() {
        for series in &panel.series {
            let head = vec![escape(x), escape(&series.name)];
            let cells = series.points[at]
                .as_ref()
                .map_or_else(|| vec!["–".to_owned(); 8], cells);
            rows.push([head, cells].concat());
        }
    }
    let mean = format!("mean{unit}");
    table(
        &panel_title(campaign, panel),
        &[
            &plot.x,
            &plot.series,
            "runs",
            &mean,
            "95 % interval",
            "over",
            "median",
            "quartiles",
            "whiskers",
            "outliers",
        ],
        rows.into_iter(),
        2,
    )
}

fn cells(point: &Point) -> Vec<String> {
    let dash = || "–".to_owned();
    let one = point.quartiles.as_ref();
    // Quartiles of messages stand beside the median of messages.
    let median = one.map_or(point.median, |one| one.median);
    vec![
        point.n.to_string(),
        words::number(point.mean),
        words::interval(point).unwrap_or_else(dash),
        words::basis(point.interval_of).to_owned(),
        words::number(median),
        one.map_or_else(dash, |one| words::range(one.q1, one.q3)),
        one.map_or_else(dash, |one| words::range(one.low, one.high)),
        one.map_or_else(dash, |one| format!("{} of {}", one.outlier_count, one.n)),
    ]
}

fn distribution(campaign: &CampaignReport, panel: &Panel, id: &str) -> String {
    let of = panel.distributions.first().map_or("", |one| &one.of);
    let with = |x: &&String| panel.distributions.iter().any(|one| one.x == **x);
    let options = panel
        .x
        .iter()
        .filter(with)
        .map(|x| format!("<option>{}</option>", escape(x)));
    let shown = [5.0, 25.0, 50.0, 75.0, 95.0, 99.0, 99.9, 100.0];
    let rows = panel.distributions.iter().map(|one| {
        let at = |percent: &f64| {
            let found = one
                .percentiles_ms
                .iter()
                .find(|(p, _)| (p - percent).abs() < 0.01);
            found.map_or_else(|| "–".to_owned(), |(_, value)| words::number(*value))
        };
        let head = vec![escape(&one.x), escape(&one.series), one.count.to_string()];
        [head, shown.iter().map(at).collect()].concat()
    });
    let percentiles = table(
        "Percentiles in ms",
        &[
            &campaign.plot.x,
            &campaign.plot.series,
            "messages",
            "p5",
            "p25",
            "p50",
            "p75",
            "p95",
            "p99",
            "p99.9",
            "max",
        ],
        rows,
        2,
    );
    let title = escape(&panel_title(campaign, panel));
    format!(
        "<figure aria-labelledby=\"{id}-t\">\n<figcaption><h3 id=\"{id}-t\">{title}</h3>\
         <p>All messages of all runs: {of}.</p></figcaption>\n\
         <div class=\"tools\" role=\"group\" aria-label=\"Tools of this figure\">\
         <label>{x} <select data-for=\"{id}\" data-do=\"cell\">{options}</select></label>\
         <button type=\"button\" data-for=\"{id}\" data-do=\"cdf\" aria-pressed=\"true\">cumulative</button>\
         <button type=\"button\" data-for=\"{id}\" data-do=\"log\" aria-pressed=\"{log}\">log axis</button>\
         {tools}</div>\n<div class=\"chart\" id=\"{id}\" role=\"img\" aria-label=\"How {of} is \
         distributed: {title}. The table below has percentiles.\"></div>\n\
         <details class=\"data\"><summary>Percentiles</summary>{percentiles}</details>\n</figure>\n",
        x = escape(&campaign.plot.x),
        of = escape(of),
        options = options.collect::<String>(),
        log = chart::is_wide(panel),
        tools = tools(id),
    )
}

fn more(title: &str, count: usize, content: &str) -> String {
    format!(
        "<details class=\"more\"><summary>{title} <span class=\"quiet\">{count}</span></summary>\n\
         {content}</details>\n"
    )
}

fn tests(campaign: &CampaignReport) -> String {
    let mut rows = Vec::new();
    for panel in &campaign.panels {
        for test in &panel.tests {
            let all = test.kruskal_wallis.as_ref();
            let dash = || "–".to_owned();
            for pair in &test.pairs {
                rows.push(vec![
                    escape(&words::levels(&panel.levels)),
                    escape(&test.x),
                    words::basis(test.of).to_owned(),
                    all.map_or_else(dash, |all| words::number(all.h)),
                    all.map_or_else(dash, |all| words::probability(all.p)),
                    escape(&format!("{} / {}", pair.a, pair.b)),
                    pair.p.map_or_else(dash, words::probability),
                    format!("{:+.3} ({})", pair.cliffs_delta, pair.size),
                    pair.ratio.map_or_else(dash, |ratio| {
                        format!(
                            "{} ({})",
                            words::number(ratio.estimate),
                            words::range(ratio.low, ratio.high)
                        )
                    }),
                ]);
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let count = rows.len();
    let caution = if campaign
        .panels
        .iter()
        .flat_map(|p| &p.tests)
        .any(|t| t.of == Basis::Messages)
    {
        "<p class=\"quiet\">Messages of one run are not independent: those probabilities are too \
         small. Look at the size.</p>\n"
    } else {
        ""
    };
    let columns = [
        "figure",
        &campaign.plot.x,
        "over",
        "Kruskal–Wallis H",
        "p",
        "pair",
        "Dunn–Holm p",
        "Cliff’s δ",
        "ratio of means (95 %)",
    ];
    let table = table("Tests across the series", &columns, rows.into_iter(), 2);
    more("Tests", count, &format!("{caution}{table}"))
}

fn links(campaign: &CampaignReport) -> String {
    if campaign.links.is_empty() {
        return String::new();
    }
    let rows = campaign.links.iter().map(|link| {
        let measured = &link.measured;
        vec![
            escape(&format!("{} {}", link.of, link.direction)),
            escape(&link.name),
            link.runs.to_string(),
            escape(&words::configured(&link.configured)),
            measured.packets.to_string(),
            words::lost(measured),
            measured.overflowed.to_string(),
            measured
                .lateness_p99_ns
                .map_or_else(|| "–".to_owned(), time),
        ]
    });
    let columns = [
        "direction",
        "link",
        "runs",
        "configured",
        "packets",
        "lost",
        "overflowed",
        "late by (p99, worst run)",
    ];
    let table = table("Links as configured and as measured", &columns, rows, 2);
    more("Links", campaign.links.len(), &table)
}

fn warnings(campaign: &CampaignReport) -> String {
    let mut text = String::new();
    for warning in &campaign.warnings {
        let each = warning.found.iter().map(|found| {
            format!(
                "<li>{} <span class=\"quiet\">{}, run {}</span></li>",
                escape(&found.says),
                escape(&words::levels(&found.levels)),
                found.repetition + 1
            )
        });
        let first = warning.found.first().map_or("", |found| &found.says);
        text.push_str(&format!(
            "<details><summary><b>{}</b> in {} of {} runs: {}</summary><ul>{}</ul></details>\n",
            escape(&warning.kind),
            warning.runs,
            campaign.runs.finished,
            escape(first),
            each.collect::<String>()
        ));
    }
    if text.is_empty() {
        return String::new();
    }
    more(
        "Warnings",
        campaign.warnings.len(),
        &format!("<div class=\"warnings\">{text}</div>"),
    )
}

fn repeated(campaign: &CampaignReport) -> String {
    if campaign.repeated.is_empty() {
        return String::new();
    }
    let rows = campaign.repeated.iter().map(|attempt| {
        let says: Vec<_> = attempt.warnings.iter().map(ToString::to_string).collect();
        vec![
            escape(&words::levels(&attempt.levels)),
            (attempt.repetition + 1).to_string(),
            attempt.attempt.to_string(),
            escape(&says.join("; ")),
        ]
    });
    let columns = ["cell", "run", "attempt", "why it was repeated"];
    let table = table("Attempts that do not count", &columns, rows, 4);
    more("Repeated attempts", campaign.repeated.len(), &table)
}

/// A table with a caption; the first `texts` columns are text, the others numbers. Cells are HTML.
fn table(
    caption: &str,
    columns: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    texts: usize,
) -> String {
    let head = columns
        .iter()
        .map(|name| format!("<th scope=\"col\">{}</th>", escape(name)));
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
