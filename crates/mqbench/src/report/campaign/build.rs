//! The report from the records, as a pure function.

use std::collections::BTreeMap;

use mq_measure::stats;
use serde_json::Value;

use super::{
    context,
    distribution::distributions,
    estimators,
    model::{
        Basis, BoxReport, CampaignReport, ClaimReport, Pair, Panel, PlotReport, Point, Report,
        Runs, SCHEMA, Series, Test,
    },
    names,
    papers::papers,
    resample::Resample,
    shows,
    values::{Finished, Levels, Metric, Statistic, TRANSPORT, milliseconds},
    verdict,
};
use crate::campaign::{
    claims::Claim,
    file::{Campaign, PlotKind},
    record::Record,
    store::SetHead,
    tally::Tally,
};

/// From so many repetitions on, boxes and tests are over repetitions; with fewer, over messages.
const ENOUGH: usize = 5;
/// The most outliers of one box that are drawn.
const OUTLIERS: usize = 200;

/// The report of these campaigns. Claims about other campaigns are not measured.
pub(crate) fn report(
    head: &SetHead,
    campaigns: &[Campaign],
    records: &[Record],
    claims: &[Claim],
) -> Report {
    let finished: Vec<_> = campaigns
        .iter()
        .map(|one| Finished::of(one, records))
        .collect();
    let claims: Vec<_> = claims
        .iter()
        .map(|claim| verdict::of(claim, &finished))
        .collect();
    let held_against = |report: &&ClaimReport| {
        let mut campaigns = finished.iter();
        campaigns.any(|one| one.is_held_against(&report.claim))
    };
    let of_campaigns: Vec<_> = claims.iter().filter(held_against).collect();
    Report {
        schema: SCHEMA,
        extent: head.extent,
        manifest: head.manifest.clone(),
        continued: head.continued.clone(),
        papers: papers(&of_campaigns),
        campaigns: finished
            .iter()
            .map(|one| campaign(one, Tally::of(one.campaign, records), &claims))
            .collect(),
        claims,
    }
}

fn campaign(finished: &Finished, tally: Tally, claims: &[ClaimReport]) -> CampaignReport {
    let Campaign {
        name,
        title,
        source,
        plot,
        ..
    } = finished.campaign;
    let metric = Metric::parse(&plot.metric);
    let plot = PlotReport {
        kind: plot.kind,
        metric: plot.metric.clone(),
        quantity: names::quantity(&metric, &finished.baseline().unwrap_or_default()),
        meaning: meaning(finished, &metric),
        unit: metric.unit.clone(),
        x: plot.x.clone(),
        abscissa: abscissa(finished.campaign),
        series: plot.series.clone(),
        facet: plot.facet.clone(),
    };
    let claims: Vec<_> = claims
        .iter()
        .filter(|report| finished.is_held_against(&report.claim))
        .collect();
    CampaignReport {
        name: name.clone(),
        title: title.clone(),
        source: source.clone(),
        runs: Runs {
            tally,
            warned: finished
                .runs
                .iter()
                .filter(|run| !run.outcome.warnings.is_empty() || run.outcome.error.is_some())
                .count(),
        },
        energy: context::energy(&finished.runs),
        fixed: fixed(finished.campaign),
        panels: facets(finished, &metric)
            .iter()
            .map(|levels| panel(finished, &metric, &plot, levels))
            .collect(),
        plot,
        links: context::links(&finished.runs),
        warnings: context::warnings(&finished.runs),
        repeated: context::repeated(&finished.repeated),
        claims: claims
            .iter()
            .map(|report| report.claim.id.clone())
            .collect(),
        estimators: estimators::compare(&claims),
    }
}

/// The abscissa in words.
fn abscissa(campaign: &Campaign) -> String {
    let mut cells = campaign.cells.iter();
    if campaign.plot.x == "loss" && cells.all(|one| one.cell.medium.is_some()) {
        return names::FRAMES.to_owned();
    }
    names::factor(&campaign.plot.x)
}

/// The meaning of the metric; for an energy also whether it was measured.
fn meaning(finished: &Finished, metric: &Metric) -> String {
    let meaning = metric.meaning.clone();
    match finished.energy_basis(metric) {
        Some(basis) => format!("{meaning}: {basis}"),
        None => meaning,
    }
}

/// The keys that all cells have in common.
fn fixed(campaign: &Campaign) -> BTreeMap<String, Value> {
    let cells = campaign
        .cells
        .iter()
        .filter_map(|c| serde_json::to_value(&c.cell).ok());
    let mut cells = cells.filter_map(|cell| cell.as_object().cloned());
    let Some(mut common) = cells.next() else {
        return BTreeMap::new();
    };
    for cell in cells {
        common.retain(|key, value| cell.get(key) == Some(value));
    }
    common
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .collect()
}

/// The levels of each figure: a figure for each combination of all factors except the abscissa, the series,
/// factors that follow from others, and the transport of ξ. So no level is pooled unless the plot names it.
fn facets(finished: &Finished, metric: &Metric) -> Vec<Levels> {
    let plot = &finished.campaign.plot;
    let mut all: Vec<Levels> = Vec::new();
    for cell in &finished.campaign.cells {
        let mut levels = cell.levels.clone();
        levels.retain(|factor, _| {
            let drawn = *factor == plot.x || *factor == plot.series;
            let of_xi = metric.xi.is_some() && factor == TRANSPORT;
            !drawn && !of_xi && !finished.follows.contains(factor)
        });
        if !all.contains(&levels) {
            all.push(levels);
        }
    }
    all
}

fn panel(finished: &Finished, metric: &Metric, plot: &PlotReport, facet: &Levels) -> Panel {
    let xs = finished.levels(&plot.x);
    let mut names = finished.levels(&plot.series);
    // The baseline of ξ is 1.
    let baseline = metric.xi.and_then(|_| finished.baseline());
    if plot.series == TRANSPORT {
        names.retain(|name| baseline.as_ref() != Some(name));
    }
    let cell = |x: &str, series: &str| -> Levels {
        let mut levels = facet.clone();
        levels.insert(plot.x.clone(), x.to_owned());
        levels.insert(plot.series.clone(), series.to_owned());
        levels
    };
    let groups: Vec<Vec<Group>> = xs
        .iter()
        .map(|x| {
            let series = names.iter();
            series
                .map(|name| Group::of(finished, metric, &cell(x, name)))
                .collect()
        })
        .collect();
    let seed = finished.campaign.seed;
    let series = names.iter().enumerate().map(|(at, name)| Series {
        name: name.clone(),
        points: groups
            .iter()
            .map(|x| x[at].point(metric, plot.kind, seed))
            .collect(),
    });
    let tests = xs
        .iter()
        .zip(&groups)
        .filter_map(|(x, groups)| test(x, &names, groups, seed));
    let mut panel = Panel {
        levels: facet.clone(),
        shows: String::new(),
        disturbed: disturbed(finished, facet),
        baseline: finished.link_delay(metric, facet),
        series: series.collect(),
        tests: tests.collect(),
        distributions: distributions(
            finished,
            &recorded(finished, metric),
            &xs,
            &lines(finished, metric, facet),
        ),
        x: xs,
    };
    panel.shows = shows::sentence(plot, &panel, &baseline.unwrap_or_default());
    panel
}

/// The runs with these levels whose last attempt was disturbed.
fn disturbed(finished: &Finished, levels: &Levels) -> usize {
    let runs = finished.with(levels);
    runs.filter(|run| run.outcome.is_disturbed()).count()
}

/// The series of distributions; for ξ those of both sides.
fn lines(finished: &Finished, metric: &Metric, facet: &Levels) -> Vec<(String, Levels)> {
    let plot = &finished.campaign.plot;
    let mut all = Vec::new();
    for name in finished.levels(&plot.series) {
        let mut levels = facet.clone();
        levels.insert(plot.series.clone(), name.clone());
        if metric.xi.is_none() || plot.series == TRANSPORT {
            all.push((name, levels));
            continue;
        }
        for transport in finished.levels(TRANSPORT) {
            let mut levels = levels.clone();
            levels.insert(TRANSPORT.to_owned(), transport.clone());
            all.push((format!("{name} {transport}"), levels));
        }
    }
    all
}

/// The histograms that the metric belongs to; other histograms if no run has these.
fn recorded(finished: &Finished, metric: &Metric) -> String {
    let wanted = metric.histogram();
    let mut names = finished
        .runs
        .iter()
        .flat_map(|run| run.outcome.histograms.keys());
    if names.clone().any(|name| *name == wanted) {
        wanted
    } else {
        names.next().cloned().unwrap_or(wanted)
    }
}

/// The runs of one cell.
struct Group {
    /// One value for each repetition.
    values: Vec<f64>,
    /// The values recorded within the runs, in ms, ascending.
    messages: Vec<f64>,
    /// The statistic of messages that the metric is, if it is one.
    statistic: Option<Statistic>,
    /// Repetitions whose last attempt was disturbed.
    disturbed: usize,
}

impl Group {
    fn of(finished: &Finished, metric: &Metric, levels: &Levels) -> Self {
        let values = finished.values(metric, levels);
        let of_messages = metric.of_messages().filter(|_| values.len() < ENOUGH);
        let messages = of_messages
            .as_ref()
            .and_then(|(of, _)| finished.pooled(of, levels))
            .map_or_else(Vec::new, |recorder| milliseconds(&recorder));
        Self {
            values,
            messages,
            statistic: of_messages.map(|(_, statistic)| statistic),
            disturbed: disturbed(finished, levels),
        }
    }

    fn point(&self, metric: &Metric, kind: PlotKind, seed: u64) -> Option<Point> {
        let mean = stats::mean(&self.values)?;
        let resample = Resample::new(seed);
        let (interval, interval_of) = if self.values.len() >= 2 {
            (
                resample.interval(&self.values, Statistic::Mean),
                Basis::Repetitions,
            )
        } else {
            let statistic = self.statistic;
            let interval = statistic.and_then(|of| resample.interval(&self.messages, of));
            let of = if interval.is_some() {
                Basis::Messages
            } else {
                Basis::None
            };
            (interval, of)
        };
        let (of, boxed) = self.basis(metric);
        Some(Point {
            n: self.values.len(),
            disturbed: self.disturbed,
            values: self.values.clone(),
            mean,
            median: stats::median(&self.values)?,
            low: interval.map(|interval| interval.0),
            high: interval.map(|interval| interval.1),
            interval_of,
            quartiles: quartiles(of, boxed, kind),
        })
    }

    /// What boxes and tests are over: repetitions if there are enough, else messages if the metric has their
    /// unit.
    fn basis(&self, metric: &Metric) -> (Basis, &[f64]) {
        if self.values.len() >= ENOUGH {
            (Basis::Repetitions, &self.values)
        } else if metric.unit == "ms" && !self.messages.is_empty() {
            (Basis::Messages, &self.messages)
        } else {
            (Basis::None, &[])
        }
    }
}

fn quartiles(of: Basis, values: &[f64], kind: PlotKind) -> Option<BoxReport> {
    let plot = match kind {
        PlotKind::BoxPercentiles => stats::BoxPlot::percentiles(values),
        _ => stats::BoxPlot::tukey(values),
    }?;
    let outlier_count = plot.outliers.len();
    Some(BoxReport {
        of,
        n: values.len() as u64,
        q1: plot.q1,
        median: plot.median,
        q3: plot.q3,
        low: plot.low,
        high: plot.high,
        outlier_count,
        outliers: thinned(plot.outliers),
    })
}

/// Thins values out evenly by rank; the first and the last stay.
fn thinned(values: Vec<f64>) -> Vec<f64> {
    if values.len() <= OUTLIERS {
        return values;
    }
    let last = values.len() - 1;
    (0..OUTLIERS)
        .map(|i| values[i * last / (OUTLIERS - 1)])
        .collect()
}

/// The tests of all series at one level of the abscissa; `None` with fewer than two series.
fn test(x: &str, names: &[String], groups: &[Group], seed: u64) -> Option<Test> {
    let some = names
        .iter()
        .zip(groups)
        .filter(|(_, group)| !group.values.is_empty());
    let (names, groups): (Vec<_>, Vec<_>) = some.unzip();
    if groups.len() < 2 {
        return None;
    }
    let enough = groups.iter().all(|group| group.values.len() >= ENOUGH);
    // A jitter has one value a run; messages have none.
    let of_messages = groups.iter().all(|group| {
        group.statistic.is_some_and(|s| s != Statistic::Rsd) && !group.messages.is_empty()
    });
    let (of, values): (_, Vec<&[f64]>) = if enough {
        (
            Basis::Repetitions,
            groups.iter().map(|group| &group.values[..]).collect(),
        )
    } else if of_messages {
        (
            Basis::Messages,
            groups.iter().map(|group| &group.messages[..]).collect(),
        )
    } else {
        return None;
    };
    let dunn = stats::dunn(&values).unwrap_or_default();
    let resample = Resample::new(seed);
    // How the later one lies to the earlier: QUIC to TLS.
    let pairs = (0..values.len()).flat_map(|b| (b + 1..values.len()).map(move |a| (a, b)));
    let pairs = pairs.filter_map(|(a, b)| {
        let cliffs_delta = stats::cliffs_delta(values[a], values[b])?;
        let (below, above) = shares(values[a], values[b]);
        Some(Pair {
            a: names[a].clone(),
            b: names[b].clone(),
            p: dunn
                .iter()
                .find(|test| test.pair == (b, a))
                .map(|test| test.holm_p),
            below,
            above,
            cliffs_delta,
            size: size(cliffs_delta),
            ratio: resample.ratio(values[a], values[b]),
        })
    });
    Some(Test {
        x: x.to_owned(),
        of,
        kruskal_wallis: stats::kruskal_wallis(&values),
        pairs: pairs.collect(),
    })
}

/// The share of all pairs in which the value of `a` is less, and in which it is more.
#[expect(clippy::cast_precision_loss, reason = "a share needs no more")]
fn shares(a: &[f64], b: &[f64]) -> (f64, f64) {
    let mut sorted = b.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (mut below, mut above) = (0, 0);
    for value in a {
        above += sorted.partition_point(|other| other < value);
        below += sorted.len() - sorted.partition_point(|other| other <= value);
    }
    let all = (a.len() * b.len()).max(1) as f64;
    (below as f64 / all, above as f64 / all)
}

/// Romano's word for a size of Cliff's δ.
fn size(cliffs_delta: f64) -> &'static str {
    match cliffs_delta.abs() {
        delta if delta < 0.147 => "negligible",
        delta if delta < 0.33 => "small",
        delta if delta < 0.474 => "medium",
        _ => "large",
    }
}
