//! The charts' options for ECharts, as JSON. `assets/report.js` adds what JSON cannot hold, functions and colours
//! of a theme: a series' `renderItem` is a name here.

use serde_json::{Value, json};

use super::{
    axis::Axis,
    csv, formatting, labels,
    metric_values::Metric,
    model::{Basis, CampaignReport, Panel, PlotReport, Point, Series},
};
use crate::campaign::file::PlotKind;

/// Makes the data from which the page draws one figure.
pub(super) fn figure(campaign: &CampaignReport, panel: &Panel, id: &str) -> Value {
    let plot = &campaign.plot;
    let series = panel.series.iter().map(|one| {
        let draw = match plot.kind {
            PlotKind::Bars => "bar",
            PlotKind::Lines => "line",
            PlotKind::BoxTukey | PlotKind::BoxPercentiles => "box",
        };
        custom(plot, one, draw, |point| ends(campaign, point))
    });
    let split = split_axis(campaign, panel).map(|axis| {
        let parts = axis.parts().iter();
        parts.map(|part| [part.low, part.high]).collect::<Vec<_>>()
    });
    let bars = plot.kind == PlotKind::Bars;
    json!({
        "id": id,
        "file": file_name(campaign, panel),
        "kind": "figure",
        "unit": plot.unit,
        "baseline": panel.baseline,
        "mark": mark(campaign, panel),
        "log": starts_logarithmic(campaign, panel),
        "floor": if bars { floor(panel) } else { None },
        "split": split,
        "points": panel.series.iter().map(|one| points(plot, one)).collect::<Value>(),
        "csv": table(campaign, panel),
        "option": {
            "xAxis": {
                "type": "category",
                "data": panel.x.iter().map(|x| labels::level(&plot.x, x)).collect::<Value>(),
                "name": plot.abscissa,
            },
            // Bars without a baseline stand on 0; other plots have their own range.
            "yAxis": {
                "type": "value",
                "name": ordinate(campaign, panel),
                "scale": !bars || panel.baseline.is_some(),
            },
            "series": series.collect::<Value>(),
        },
    })
}

/// Names the ordinate in words, with its unit.
pub(super) fn ordinate(campaign: &CampaignReport, panel: &Panel) -> String {
    let plot = &campaign.plot;
    let mut boxes = panel.points().filter_map(|p| p.quartiles.as_ref());
    let of_messages = plot.kind.is_boxes() && boxes.any(|one| one.of == Basis::Messages);
    if of_messages {
        let quantity = labels::recorded(&Metric::parse(&plot.metric).histogram());
        return formatting::with_unit(&quantity, &plot.unit);
    }
    formatting::with_unit(&plot.quantity, &plot.unit)
}

/// Makes the split ordinate of boxes with whiskers at p5 and p95: linear for the boxes, and above them logarithmic for
/// the outliers (S22 Figs. 5, 6). `None` for other plots, and where no outlier is far above the boxes.
pub(super) fn split_axis(campaign: &CampaignReport, panel: &Panel) -> Option<Axis> {
    if campaign.plot.kind != PlotKind::BoxPercentiles {
        return None;
    }
    let ends = panel.points().map(boxed);
    let (least, boxes, most) = ends.fold(
        (f64::MAX, f64::MIN, f64::MIN),
        |(least, boxes, most), ends| {
            let [_, _, _, _, whisker, lowest, highest] = ends[..] else {
                return (least, boxes, most);
            };
            (least.min(lowest), boxes.max(whisker), most.max(highest))
        },
    );
    let least = panel.baseline.map_or(least, |delay| least.min(delay));
    Axis::split(least, boxes, most)
}

/// Makes the data from which the page draws the distributions of one figure's cells; `None` without any.
pub(super) fn distributions(campaign: &CampaignReport, panel: &Panel, id: &str) -> Option<Value> {
    let of = &panel.distributions.first()?.of;
    let plot = &campaign.plot;
    let cells: Vec<Value> = panel
        .x
        .iter()
        .filter(|x| panel.distributions.iter().any(|one| one.x == **x))
        .map(|x| {
            let series = panel.distributions.iter().filter(|one| one.x == *x);
            json!({
                "x": labels::level(&plot.x, x),
                "series": series.map(|one| json!({
                    "key": one.series,
                    "name": labels::series(&plot.series, &one.series),
                    "bounds": one.bounds_ms,
                    "shares": one.shares,
                    "percentiles": one.percentiles_ms,
                })).collect::<Value>(),
            })
        })
        .collect();
    let mut text = csv::row([&plot.x[..], &plot.series, "percentile", "ms"]);
    for one in &panel.distributions {
        for (percent, value) in &one.percentiles_ms {
            let cells = [
                &one.x[..],
                &one.series,
                &percent.to_string(),
                &value.to_string(),
            ];
            text.push_str(&csv::row(cells));
        }
    }
    Some(json!({
        "id": id,
        "file": format!("{}-{of}", file_name(campaign, panel)),
        "kind": "distribution",
        "unit": "ms",
        "cells": cells,
        "log": is_wide(panel),
        "csv": text,
        "option": {
            "xAxis": { "type": "value", "name": format!("{} [ms]", labels::recorded(of)), "scale": true },
            "yAxis": { "type": "value", "name": "share of messages [%]", "min": 0 },
            "series": [],
        },
    }))
}

/// Returns the value of the dashed line: the link's delay, or 1 for ξ.
pub(super) fn mark(campaign: &CampaignReport, panel: &Panel) -> Option<f64> {
    let xi = Metric::parse(&campaign.plot.metric).xi;
    panel.baseline.or(xi.map(|_| 1.0))
}

/// Greatest quotient of two ends that boxes on a linear axis may have.
const BOXES_APART: f64 = 4.0;
/// Greatest quotient of two ends that bars or points on a linear axis may have: a bar of a hundredth of the axis is not
/// seen.
const BARS_APART: f64 = 100.0;

/// Returns `true` if a linear axis would press boxes, bars or points flat, since their ends are too far apart. Bars and
/// points with a line to compare them with have a linear axis.
pub(super) fn starts_logarithmic(campaign: &CampaignReport, panel: &Panel) -> bool {
    let is_boxes = campaign.plot.kind.is_boxes();
    if split_axis(campaign, panel).is_some() || !is_boxes && mark(campaign, panel).is_some() {
        return false;
    }
    let ends = panel.points().flat_map(|point| ends(campaign, point));
    let (least, most) = ends.fold((f64::MAX, 0.0_f64), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    let apart = if is_boxes { BOXES_APART } else { BARS_APART };
    least > 0.0 && most > apart * least
}

/// Returns the values of a point that its figure draws: a bar with its interval, or a box with its whiskers and the range
/// of its outliers.
pub(super) fn ends(campaign: &CampaignReport, point: &Point) -> Vec<f64> {
    if campaign.plot.kind.is_boxes() {
        return boxed(point);
    }
    vec![point.mean, low(point), high(point)]
}

/// Returns `true` if a linear axis would press a distribution flat: its last bound is more than four times its first.
pub(super) fn is_wide(panel: &Panel) -> bool {
    let ends = panel.distributions.iter();
    let mut ends = ends.filter_map(|one| Some((one.bounds_ms.first()?, one.bounds_ms.last()?)));
    ends.any(|(least, most)| *most > 4.0 * *least)
}

fn custom(
    plot: &PlotReport,
    series: &Series,
    draw: &str,
    of: impl Fn(&Point) -> Vec<f64>,
) -> Value {
    let points = series.points.iter().enumerate();
    let rows: Vec<Vec<Value>> = points
        .filter_map(|(x, point)| {
            let values = of(point.as_ref()?);
            (!values.is_empty()).then(|| {
                std::iter::once(json!(x))
                    .chain(values.into_iter().map(Value::from))
                    .collect()
            })
        })
        .collect();
    let width = rows.first().map_or(2, Vec::len);
    json!({
        "type": "custom",
        "name": labels::series(&plot.series, &series.name),
        "renderItem": draw,
        "clip": true,
        "data": rows,
        "encode": { "x": 0, "y": (1..width).collect::<Vec<_>>() },
    })
}

/// Quartiles and whiskers, then the range of all; without a box the value itself.
pub(super) fn boxed(point: &Point) -> Vec<f64> {
    let Some(one) = &point.quartiles else {
        return vec![point.mean; 7];
    };
    let least = one
        .outliers
        .first()
        .map_or(one.low, |value| value.min(one.low));
    let most = one
        .outliers
        .last()
        .map_or(one.high, |value| value.max(one.high));
    vec![one.q1, one.median, one.q3, one.low, one.high, least, most]
}

pub(super) fn low(point: &Point) -> f64 {
    point.low.unwrap_or(point.mean)
}

pub(super) fn high(point: &Point) -> f64 {
    point.high.unwrap_or(point.mean)
}

/// Returns the beginning of the axis of bars with a baseline: the baseline, or a lower value if a bar is below it.
fn floor(panel: &Panel) -> Option<f64> {
    let baseline = panel.baseline?;
    Some(panel.points().map(low).fold(baseline, f64::min))
}

/// Makes the tooltip of each point.
fn points(plot: &PlotReport, series: &Series) -> Value {
    let point = |point: &Option<Point>| {
        point.as_ref().map(|p| {
            json!({
                "mean": p.mean,
                "low": p.low,
                "high": p.high,
                "median": p.median,
                "n": p.n,
                "disturbed": p.disturbed,
                "of": formatting::basis(p.interval_of),
                "outliers": p.quartiles.as_ref().map(|one| &one.outliers),
            })
        })
    };
    json!({
        "key": series.name,
        "name": labels::series(&plot.series, &series.name),
        "points": series.points.iter().map(point).collect::<Value>(),
    })
}

/// Formats the shown data, as the page's button saves it.
fn table(campaign: &CampaignReport, panel: &Panel) -> String {
    let mut text = csv::row([
        &campaign.plot.x[..],
        &campaign.plot.series,
        "n",
        &campaign.plot.metric,
        "low",
        "high",
        "interval_of",
        "median",
        "q1",
        "q3",
        "whisker_low",
        "whisker_high",
        "box_of",
    ]);
    for (at, x) in panel.x.iter().enumerate() {
        for series in &panel.series {
            let Some(point) = &series.points[at] else {
                continue;
            };
            let n = point.n.to_string();
            let optional = |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
            let one = point.quartiles.as_ref();
            let numbers = [
                Some(point.mean),
                point.low,
                point.high,
                Some(point.median),
                one.map(|one| one.q1),
                one.map(|one| one.q3),
                one.map(|one| one.low),
                one.map(|one| one.high),
            ]
            .map(optional);
            let [mean, low, high, median, q1, q3, from, to] = &numbers;
            let of = formatting::basis(point.interval_of);
            let box_of = one.map_or("", |one| formatting::basis(one.of));
            let cells = [
                x,
                &series.name,
                &n,
                mean,
                low,
                high,
                of,
                median,
                q1,
                q3,
                from,
                to,
                box_of,
            ];
            text.push_str(&csv::row(cells));
        }
    }
    text
}

/// Returns the name of a figure's file, without an ending.
pub(super) fn file_name(campaign: &CampaignReport, panel: &Panel) -> String {
    let levels = panel.levels.values().map(|level| format!("-{level}"));
    let name = campaign.name.clone() + &levels.collect::<String>();
    name.replace(|c: char| !(c.is_ascii_alphanumeric() || c == '-'), "_")
}
