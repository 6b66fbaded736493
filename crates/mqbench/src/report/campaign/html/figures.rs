//! A figure on the page: caption, tools, the place where it is drawn, and its data as a table.

use super::{
    elements::{escape, panel_title},
    tables::table,
};
use crate::{
    campaign::file::PlotKind,
    report::campaign::{
        caption, chart, formatting, labels,
        model::{Basis, CampaignReport, Panel, Point},
    },
};

pub(super) fn figure(campaign: &CampaignReport, panel: &Panel, id: &str) -> String {
    format!(
        "<figure aria-labelledby=\"{id}-t\">\n<figcaption><h3 id=\"{id}-t\">{}</h3>\
         <p class=\"shows\">{}</p></figcaption>\n{}\
         <div class=\"tools\" role=\"group\" aria-label=\"Tools of this figure\">\
         <button type=\"button\" data-for=\"{id}\" data-do=\"log\" aria-pressed=\"{log}\">log axis</button>\
         {}</div>\n<div class=\"chart\" id=\"{id}\" role=\"img\" aria-label=\"{}\"></div>\n\
         <p class=\"quiet\">{}</p>\n\
         <details class=\"data\"><summary>Data</summary>{}</details>\n</figure>\n",
        escape(&panel_title(campaign, panel)),
        escape(&panel.shows),
        disturbed(panel),
        tools(id),
        escape(&alternative(campaign, panel)),
        escape(&drawn(campaign, panel)),
        data_table(campaign, panel),
        log = chart::starts_logarithmic(campaign, panel),
    )
}

/// Formats a banner, if the last attempt of a run was disturbed. A failed run may have no value.
fn disturbed(panel: &Panel) -> String {
    let runs = match panel.disturbed {
        0 => return String::new(),
        1 => "1 run of this figure was disturbed in its last attempt; what it".to_owned(),
        many => {
            format!("{many} runs of this figure were disturbed in their last attempts; what they")
        }
    };
    format!("<p class=\"notice\">{runs} measured is drawn all the same.</p>\n")
}

/// Describes the marks of a figure: bars, points or boxes, their intervals, and the line of the link's delay.
fn drawn(campaign: &CampaignReport, panel: &Panel) -> String {
    let plot = &campaign.plot;
    let drawn = match plot.kind {
        PlotKind::Bars => "Bars are means, with their 95 % intervals",
        PlotKind::Lines => "Points are means, with their 95 % intervals",
        PlotKind::BoxTukey => "Boxes are quartiles and median, whiskers reach 1.5 heights",
        PlotKind::BoxPercentiles => "Boxes are quartiles and median, whiskers p5 and p95",
    };
    let mut boxes = panel.points().filter_map(|point| point.quartiles.as_ref());
    let of = match plot.kind {
        PlotKind::Bars | PlotKind::Lines => "",
        _ if boxes.any(|one| one.of == Basis::Messages) => " of all messages",
        _ => " of the runs",
    };
    let base = match panel.baseline {
        Some(delay) if plot.kind == PlotKind::Bars => {
            format!(
                "; they stand on the link's delay of {} ms",
                formatting::tick(delay)
            )
        }
        Some(delay) => format!(
            "; the dashed line is the link's delay of {} ms",
            formatting::tick(delay)
        ),
        None if chart::mark(campaign, panel).is_some() => {
            "; at the dashed line both are alike".to_owned()
        }
        None => String::new(),
    };
    let split = if chart::split_axis(campaign, panel).is_some() {
        " The axis is linear up to the break, and logarithmic above it, for the outliers."
    } else if chart::starts_logarithmic(campaign, panel) {
        " The axis is logarithmic."
    } else {
        ""
    };
    let meaning = caption::capital(&plot.meaning);
    format!("{meaning}. {drawn}{of}{base}.{split}")
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
        button("reset", "reset", "reset: show all again"),
        button("csv", "CSV", "Save the data as CSV"),
        button("svg", "SVG", "Save the figure as SVG"),
    ]
    .concat()
}

/// Describes the figure as text, for screen readers.
fn alternative(campaign: &CampaignReport, panel: &Panel) -> String {
    let plot = &campaign.plot;
    let mut text = format!(
        "{} over {}, {}.",
        plot.quantity,
        plot.abscissa,
        panel_title(campaign, panel)
    );
    for series in &panel.series {
        let points = panel.x.iter().zip(&series.points).filter_map(|(x, point)| {
            let place = labels::place(&plot.x, x);
            Some(format!(
                "{} {place}",
                formatting::number(point.as_ref()?.mean)
            ))
        });
        let points: Vec<_> = points.collect();
        if !points.is_empty() {
            text.push_str(&format!(
                " {}: {} {}.",
                labels::series(&plot.series, &series.name),
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
    let mut rows = Vec::new();
    for (at, x) in panel.x.iter().enumerate() {
        for series in &panel.series {
            let head = vec![escape(x), escape(&series.name)];
            let cells = series.points[at]
                .as_ref()
                .map_or_else(|| vec![formatting::dash(); 8], cells);
            rows.push([head, cells].concat());
        }
    }
    let mean = formatting::with_unit(&plot.metric, &plot.unit);
    table(
        &format!(
            "Data of {}, {}",
            campaign.name,
            panel_title(campaign, panel)
        ),
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
    let one = point.quartiles.as_ref();
    // Quartiles of messages are shown beside the median of messages.
    let median = one.map_or(point.median, |one| one.median);
    vec![
        match point.disturbed {
            0 => point.n.to_string(),
            1 => format!("{} values, 1 run disturbed", point.n),
            many => format!("{} values, {many} runs disturbed", point.n),
        },
        formatting::number(point.mean),
        formatting::interval(point).unwrap_or_else(formatting::dash),
        formatting::basis(point.interval_of).to_owned(),
        formatting::number(median),
        one.map_or_else(formatting::dash, |one| formatting::range(one.q1, one.q3)),
        one.map_or_else(formatting::dash, |one| formatting::range(one.low, one.high)),
        one.map_or_else(formatting::dash, |one| {
            format!("{} of {}", one.outlier_count, one.n)
        }),
    ]
}

pub(super) fn distribution(campaign: &CampaignReport, panel: &Panel, id: &str) -> String {
    let of = panel.distributions.first().map_or("", |one| &one.of);
    let of = labels::recorded(of);
    let factor = &campaign.plot.x;
    let with = |x: &&String| panel.distributions.iter().any(|one| one.x == **x);
    let options = panel
        .x
        .iter()
        .filter(with)
        .map(|x| format!("<option>{}</option>", escape(&labels::level(factor, x))));
    let shown = [5.0, 25.0, 50.0, 75.0, 95.0, 99.0, 99.9, 100.0];
    let rows = panel.distributions.iter().map(|one| {
        let at = |percent: &f64| {
            let found = one
                .percentiles_ms
                .iter()
                .find(|(p, _)| (p - percent).abs() < 0.01);
            found.map_or_else(formatting::dash, |(_, value)| formatting::number(*value))
        };
        let head = vec![escape(&one.x), escape(&one.series), one.count.to_string()];
        [head, shown.iter().map(at).collect()].concat()
    });
    let percentiles = table(
        &format!(
            "Percentiles in ms of {}, {}",
            campaign.name,
            panel_title(campaign, panel)
        ),
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
        x = escape(&campaign.plot.abscissa),
        of = escape(&of),
        options = options.collect::<String>(),
        log = chart::is_wide(panel),
        tools = tools(id),
    )
}
