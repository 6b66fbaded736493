//! The report from the records, as a pure function.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    caption,
    connections::{self, SeriesCells},
    context,
    distribution::distributions,
    estimators,
    group::{RunGroup, disturbed},
    labels,
    metric_values::{FinishedRuns, Levels, Metric, TRANSPORT},
    model::{CampaignReport, CampaignRuns, ClaimReport, Panel, PlotReport, Report, SCHEMA, Series},
    pairs::test,
    paper_findings::papers,
    verdict,
};
use crate::campaign::{
    cell::Cell,
    claims::Claim,
    file::{Campaign, Combination},
    record::Record,
    run_counts::RunCounts,
    store::SetHead,
};

/// Makes the report of these campaigns. Claims about other campaigns are not measured.
pub(crate) fn report(
    head: &SetHead,
    campaigns: &[Campaign],
    records: &[Record],
    claims: &[Claim],
) -> Report {
    let finished: Vec<_> = campaigns
        .iter()
        .map(|one| FinishedRuns::of(one, records))
        .collect();
    let claims = verdict::judge_all(claims, &finished);
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
            .map(|one| campaign(one, RunCounts::of(one.campaign, records), &claims))
            .collect(),
        claims,
    }
}

fn campaign(finished: &FinishedRuns, counts: RunCounts, claims: &[ClaimReport]) -> CampaignReport {
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
        quantity: quantity(finished, &metric),
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
        runs: CampaignRuns {
            counts,
            warned: finished
                .runs
                .iter()
                .filter(|run| !run.outcome.warnings.is_empty() || run.outcome.error.is_some())
                .count(),
        },
        energy: context::energy(&finished.runs),
        fixed: fixed(finished),
        initial_rtts_ns: context::initial_rtts(&finished.runs),
        panels: facets(finished, &metric)
            .iter()
            .map(|levels| panel(finished, &metric, &plot, levels))
            .collect(),
        plot,
        parameters: context::parameters(&finished.runs),
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

/// Names the abscissa in words.
fn abscissa(campaign: &Campaign) -> String {
    let mut cells = campaign.cells.iter();
    if campaign.plot.x == "loss" && cells.all(|one| one.cell.medium.is_some()) {
        return labels::FRAMES.to_owned();
    }
    labels::factor(&campaign.plot.x)
}

/// Names the metric as an axis does; for an energy also whether it was measured.
fn quantity(finished: &FinishedRuns, metric: &Metric) -> String {
    let quantity = labels::quantity(metric, &finished.baseline().unwrap_or_default());
    match finished.energy_basis(metric) {
        Some(basis) => format!("{quantity}, {basis}"),
        None => quantity,
    }
}

/// Returns the meaning of the metric; for an energy also whether it was measured.
fn meaning(finished: &FinishedRuns, metric: &Metric) -> String {
    let meaning = metric.meaning.clone();
    match finished.energy_basis(metric) {
        Some(basis) => format!("{meaning}: {basis}"),
        None => meaning,
    }
}

/// Returns the keys that all cells have in common: the cells of the runs, and of combinations without a run those of the
/// file. The program that made the runs may have had other defaults than this one.
fn fixed(finished: &FinishedRuns) -> BTreeMap<String, Value> {
    let mut cells: Vec<&Cell> = Vec::new();
    for run in &finished.runs {
        if !cells.contains(&&run.cell) {
            cells.push(&run.cell);
        }
    }
    let has_run = |one: &&Combination| finished.runs.iter().any(|run| run.levels == one.levels);
    let planned = finished.campaign.cells.iter().filter(|one| !has_run(one));
    cells.extend(planned.map(|one| &one.cell));
    let cells = cells
        .iter()
        .filter_map(|cell| serde_json::to_value(cell).ok());
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

/// Returns the levels of each figure: a figure for each combination of all factors except the abscissa, the series,
/// factors that follow from others, and the transport of ξ. So no level is pooled unless the plot names it.
fn facets(finished: &FinishedRuns, metric: &Metric) -> Vec<Levels> {
    let plot = &finished.campaign.plot;
    let mut all: Vec<Levels> = Vec::new();
    for cell in &finished.campaign.cells {
        let mut levels = cell.levels.clone();
        levels.retain(|factor, _| {
            let drawn = *factor == plot.x || *factor == plot.series;
            let of_xi = metric.xi.is_some() && factor == TRANSPORT;
            !drawn && !of_xi && !finished.dependent_factors.contains(factor)
        });
        if !all.contains(&levels) {
            all.push(levels);
        }
    }
    all
}

fn panel(finished: &FinishedRuns, metric: &Metric, plot: &PlotReport, facet: &Levels) -> Panel {
    let xs = finished.levels(&plot.x);
    let mut names = finished.levels(&plot.series);
    // The baseline of ξ is 1.
    let baseline = metric.xi.and_then(|_| finished.baseline());
    if plot.series == TRANSPORT {
        names.retain(|name| baseline.as_ref() != Some(name));
    }
    let cells = names.into_iter().map(|name| {
        let mut levels = facet.clone();
        levels.insert(plot.series.clone(), name.clone());
        SeriesCells::of_all(name, levels)
    });
    let cells = connections::by_handshake(finished, metric, cells.collect());
    let names: Vec<String> = cells.iter().map(|one| one.name.clone()).collect();
    let groups: Vec<Vec<RunGroup>> = xs
        .iter()
        .map(|x| {
            let series = cells.iter();
            series
                .map(|one| RunGroup::of(finished, metric, one, &one.at(&plot.x, x)))
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
    panel.shows = caption::sentence(plot, &panel, &baseline.unwrap_or_default());
    if let Some(note) = connections::note(plot, &finished.campaign.source, &cells) {
        panel.shows.push(' ');
        panel.shows.push_str(&note);
    }
    panel
}

/// Returns the series of distributions; for ξ those of both sides.
fn lines(finished: &FinishedRuns, metric: &Metric, facet: &Levels) -> Vec<SeriesCells> {
    let plot = &finished.campaign.plot;
    let mut all = Vec::new();
    for name in finished.levels(&plot.series) {
        let mut levels = facet.clone();
        levels.insert(plot.series.clone(), name.clone());
        if metric.xi.is_none() || plot.series == TRANSPORT {
            all.push(SeriesCells::of_all(name, levels));
            continue;
        }
        for transport in finished.levels(TRANSPORT) {
            let mut levels = levels.clone();
            levels.insert(TRANSPORT.to_owned(), transport.clone());
            let name = format!("{name} {transport}");
            all.push(SeriesCells::of_all(name, levels));
        }
    }
    connections::by_handshake(finished, metric, all)
}

/// Returns the name of the histograms that the metric belongs to; of other histograms if no run has these.
fn recorded(finished: &FinishedRuns, metric: &Metric) -> String {
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
