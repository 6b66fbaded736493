//! The part of a campaign's section below its figures: tests, links, warnings, repeated attempts.

use super::{
    elements::{escape, more, panel_title},
    tables::table,
};
use crate::{
    report::campaign::{
        caption, formatting, labels,
        model::{Basis, CampaignReport, Pair},
    },
    units::format_time,
};

pub(super) fn tests(campaign: &CampaignReport) -> String {
    let mut rows = Vec::new();
    for panel in &campaign.panels {
        for test in &panel.tests {
            let all = test.kruskal_wallis.as_ref();
            for pair in &test.pairs {
                rows.push(vec![
                    escape(&panel_title(campaign, panel)),
                    escape(&labels::level(&campaign.plot.x, &test.x)),
                    escape(&effect(campaign, pair)),
                    format!("{:+.3} ({})", pair.cliffs_delta, pair.size),
                    pair.ratio.map_or_else(formatting::dash, |ratio| {
                        format!(
                            "{} ({})",
                            formatting::number(ratio.estimate),
                            formatting::range(ratio.low, ratio.high)
                        )
                    }),
                    formatting::basis(test.of).to_owned(),
                    pair.p
                        .map_or_else(formatting::dash, formatting::probability),
                    all.map_or_else(formatting::dash, |all| formatting::number(all.h)),
                    all.map_or_else(formatting::dash, |all| formatting::probability(all.p)),
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
        &campaign.plot.abscissa,
        "effect",
        "Cliff’s δ",
        "ratio of means (95 %)",
        "over",
        "Dunn–Holm p",
        "Kruskal–Wallis H",
        "p",
    ];
    let title = format!("Tests across the series of {}", campaign.name);
    let table = table(&title, &columns, rows.into_iter(), 3);
    let sides = "<p class=\"quiet\">δ and the ratio are of the series named first: below 0 and below 1 it \
                 is the lower one.</p>\n";
    more("Tests", count, &format!("{sides}{caution}{table}"))
}

/// Formats the effect in words: `QUIC below TLS in 93 % of pairs, mean 16 % lower`.
fn effect(campaign: &CampaignReport, pair: &Pair) -> String {
    let name = |name: &str| labels::series(&campaign.plot.series, name);
    if pair.below + pair.above <= 0.0 {
        return format!("{} and {} are equal", name(&pair.a), name(&pair.b));
    }
    let (side, share, other) = if pair.below >= pair.above {
        ("below", pair.below, pair.above)
    } else {
        ("above", pair.above, pair.below)
    };
    let mut text = format!(
        "{} {side} {} in {:.0} % of pairs",
        name(&pair.a),
        name(&pair.b),
        share * 100.0
    );
    let Some(ratio) = pair.ratio else {
        return text;
    };
    let mean = caption::difference(ratio.estimate, 1.0);
    text.push_str(&match &mean {
        Some(mean) => format!(", its mean {mean}"),
        None => ", the means within 1 %".to_owned(),
    });
    let ranks = (share - other > 0.01).then_some(side == "below");
    if mean.is_some() && ranks.is_some_and(|lower| lower != (ratio.estimate < 1.0)) {
        text.push_str(": a few large values make up the mean");
    }
    text
}

/// Formats the parameters, also those that nobody asked for: they shape a result as much.
pub(super) fn parameters(campaign: &CampaignReport) -> String {
    let rows = campaign.parameters.iter().map(|(name, values)| {
        let values: Vec<_> = values.iter().map(|value| parameter(name, value)).collect();
        vec![escape(name), escape(&values.join(" or "))]
    });
    let title = format!("Parameters of the transports of {}", campaign.name);
    let table = table(&title, &["parameter", "value"], rows, 2);
    more(
        "Parameters of the transports",
        campaign.parameters.len(),
        &table,
    )
}

/// Formats a parameter: a time in the unit that reads best, other values as they are.
fn parameter(name: &str, value: &str) -> String {
    let ns = name.strip_suffix("_ns").and_then(|_| value.parse().ok());
    ns.map_or_else(|| value.to_owned(), format_time)
}

pub(super) fn links(campaign: &CampaignReport) -> String {
    if campaign.links.is_empty() {
        return String::new();
    }
    let rows = campaign.links.iter().map(|link| {
        let measured = &link.measured;
        vec![
            escape(&format!("{} {}", link.of, link.direction)),
            escape(&link.name),
            link.runs.to_string(),
            escape(&formatting::configured(&link.configured)),
            measured.packets.to_string(),
            formatting::lost(measured),
            measured.overflowed.to_string(),
            measured
                .lateness_p99_ns
                .map_or_else(formatting::dash, format_time),
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
    let table = table(&format!("Links of {}", campaign.name), &columns, rows, 2);
    more("Links", campaign.links.len(), &table)
}

pub(super) fn warnings(campaign: &CampaignReport) -> String {
    let mut text = String::new();
    for warning in &campaign.warnings {
        let each = warning.found.iter().map(|found| {
            format!(
                "<li>{} <span class=\"quiet\">{}, run {}</span></li>",
                escape(&found.says),
                escape(&formatting::levels(&found.levels)),
                found.repetition + 1
            )
        });
        let first = warning.found.first().map_or("", |found| &found.says);
        text.push_str(&format!(
            "<details><summary><b>{}</b> in {} of {} runs: {}</summary><ul>{}</ul></details>\n",
            escape(&warning.kind),
            warning.runs,
            campaign.runs.counts.finished,
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

pub(super) fn repeated(campaign: &CampaignReport) -> String {
    if campaign.repeated.is_empty() {
        return String::new();
    }
    let rows = campaign.repeated.iter().map(|attempt| {
        let warnings = attempt.warnings.iter().map(ToString::to_string);
        let says: Vec<_> = warnings.chain(attempt.error.clone()).collect();
        vec![
            escape(&formatting::levels(&attempt.levels)),
            (attempt.repetition + 1).to_string(),
            attempt.attempt.to_string(),
            escape(&says.join("; ")),
        ]
    });
    let columns = ["cell", "run", "attempt", "why it was repeated"];
    let table = table(
        &format!("Attempts of {} that do not count", campaign.name),
        &columns,
        rows,
        4,
    );
    more("Repeated attempts", campaign.repeated.len(), &table)
}
