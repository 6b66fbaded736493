//! From records to values: which runs count, the values of a metric, and their distributions.

use std::collections::{BTreeMap, BTreeSet};

use mq_energy::Basis;
use mq_measure::{
    LatencyRecorder, recorder,
    stats::{self, Estimate},
};

use crate::{
    campaign::{
        changes::base_and_changes,
        claims::Claim,
        file::{Campaign, Combination},
        record::{METRICS, Record, is_energy},
    },
    meter,
    units::{json_text, ns_to_ms},
};

/// The factor that ξ is a ratio of levels of.
pub(super) const TRANSPORT: &str = "transport";

/// Levels by factor.
pub(crate) type Levels = BTreeMap<String, String>;

/// The runs of a campaign that count: the last attempt of each repetition of each cell, in the order
/// of repetitions.
pub(crate) struct FinishedRuns<'a> {
    pub(crate) campaign: &'a Campaign,
    pub(crate) runs: Vec<&'a Record>,
    /// Attempts that a later attempt of the same repetition has replaced; they do not count.
    pub(crate) repeated: Vec<&'a Record>,
    /// Factors that the plot does not name and whose level follows from all others.
    pub(crate) dependent_factors: Vec<String>,
}

impl<'a> FinishedRuns<'a> {
    pub(crate) fn of(campaign: &'a Campaign, records: &'a [Record]) -> Self {
        let mut last: BTreeMap<(&Levels, u32), &Record> = BTreeMap::new();
        let mut repeated = Vec::new();
        for record in records.iter().filter(|r| r.campaign == campaign.name) {
            let before = last.insert((&record.levels, record.repetition), record);
            repeated.extend(before);
        }
        let mut runs: Vec<_> = last.into_values().collect();
        runs.sort_by_key(|run| run.repetition);
        Self {
            campaign,
            runs,
            repeated,
            dependent_factors: dependent_factors(campaign),
        }
    }

    /// Returns the runs with all of these levels. A key that is not a factor is looked up in the campaign's work.
    pub(crate) fn runs_at(&self, levels: &Levels) -> impl Iterator<Item = &'a Record> {
        let has = |run: &Record, factor: &str, level: &str| match run.levels.get(factor) {
            Some(own) => own == level,
            None => {
                serde_json::to_value(&run.cell).is_ok_and(|cell| json_text(&cell[factor]) == level)
            }
        };
        self.runs
            .iter()
            .copied()
            .filter(move |run| levels.iter().all(|(factor, level)| has(run, factor, level)))
    }

    /// Returns, in words, the basis of an energy's runs: measured or modelled.
    pub(crate) fn energy_basis(&self, metric: &Metric) -> Option<String> {
        if !is_energy(&metric.name) {
            return None;
        }
        let meters = self
            .runs
            .iter()
            .filter_map(|run| run.outcome.energy_meter.as_deref());
        let bases: BTreeSet<_> = meters.map(|name| meter::basis(name).to_string()).collect();
        let bases: Vec<_> = bases.into_iter().collect();
        (!bases.is_empty()).then(|| bases.join(" or "))
    }

    /// Returns true if the metric is an energy that a model computed, in one run at least.
    pub(crate) fn is_modelled(&self, metric: &Metric) -> bool {
        let meters = self.runs.iter();
        let mut meters = meters.filter_map(|run| run.outcome.energy_meter.as_deref());
        is_energy(&metric.name) && meters.any(|name| meter::basis(name) == Basis::Modelled)
    }

    /// Returns true if this is the claim's campaign, without changes.
    pub(crate) fn is_held_against(&self, claim: &Claim) -> bool {
        self.changes_of(claim) == Some("")
    }

    /// Returns the changes in the campaign's name, if it is the claim's campaign with some.
    pub(crate) fn changes_beside(&self, claim: &Claim) -> Option<&str> {
        self.changes_of(claim).filter(|changes| !changes.is_empty())
    }

    /// Returns the changes in the campaign's name, if it is the claim's campaign and names the claim's file: a claim's
    /// name begins with that of its file.
    fn changes_of(&self, claim: &Claim) -> Option<&str> {
        let campaign = self.campaign;
        let paper = |paper: &String| {
            let rest = claim.id.strip_prefix(&paper[..]);
            rest.is_some_and(|rest| rest.starts_with('-'))
        };
        let (base, changes) = base_and_changes(&campaign.name);
        (claim.campaign == base && campaign.claims.iter().any(paper)).then_some(changes)
    }

    /// Returns a factor's levels, in the order of the file.
    pub(crate) fn levels(&self, factor: &str) -> Vec<String> {
        let mut levels: Vec<String> = Vec::new();
        for cell in &self.campaign.cells {
            if let Some(level) = cell.levels.get(factor)
                && !levels.contains(level)
            {
                levels.push(level.clone());
            }
        }
        levels
    }

    /// Returns the value of a metric for every run with these levels, by repetition. For ξ the runs are QUIC's if the
    /// levels do not name a transport.
    pub(crate) fn values(&self, metric: &Metric, levels: &Levels) -> Vec<f64> {
        let Metric { name, xi, .. } = metric;
        if metric.is_spread {
            return self.deviations(name, levels);
        }
        let Some(xi) = xi else {
            return self.plain_values(name, levels);
        };
        let Some(levels) = self.of_xi(levels) else {
            return Vec::new();
        };
        let mut values = Vec::new();
        for run in self.runs_at(&levels) {
            let beside = self.baseline_levels(&run.levels);
            let tcp = match xi {
                Xi::W20 => self
                    .runs_at(&beside)
                    .find(|other| other.repetition == run.repetition)
                    .and_then(|other| metric_of(other, name)),
                Xi::S21 => stats::mean(&self.plain_values(name, &beside)),
            };
            if let (Some(own), Some(tcp)) = (metric_of(run, name), tcp) {
                values.extend(stats::xi(own, tcp));
            }
        }
        values
    }

    /// Returns the links' delay from publisher to subscriber, if the metric is a time of that way and the delay is the
    /// same in all cells with these levels.
    pub(crate) fn link_delay(&self, metric: &Metric, levels: &Levels) -> Option<f64> {
        if metric.unit != "ms" || metric.is_spread || !metric.name.starts_with("latency") {
            return None;
        }
        let cells = self.campaign.cells.iter();
        let cells = cells.filter(|c| {
            levels
                .iter()
                .all(|(f, level)| c.levels.get(f) == Some(level))
        });
        let mut delays = cells.map(|combination| combination.cell.one_way());
        let first = delays.next()??;
        let alike = delays.all(|other| other == Some(first));
        alike.then_some(first.as_secs_f64() * 1e3)
    }

    /// Estimates the mean of a metric over all cells with these levels, and how well its runs know it. `None` if a cell
    /// has fewer than two runs. S21's ξ has the spread of both of its sides.
    pub(crate) fn estimate(&self, metric: &Metric, levels: &Levels) -> Option<Estimate> {
        let levels = match metric.xi {
            Some(_) => self.of_xi(levels)?,
            None => levels.clone(),
        };
        let cells: BTreeSet<&Levels> = self.runs_at(&levels).map(|run| &run.levels).collect();
        let each = cells.into_iter().map(|cell| {
            // For a spread these are deviations, whose mean it is.
            if metric.xi != Some(Xi::S21) {
                return Estimate::of_mean(&self.values(metric, cell));
            }
            let of = |levels: &Levels| Estimate::of_mean(&self.plain_values(&metric.name, levels));
            of(cell)?.over(&of(&self.baseline_levels(cell))?)
        });
        Estimate::of_all(&each.collect::<Option<Vec<_>>>()?)
    }

    fn plain_values(&self, name: &str, levels: &Levels) -> Vec<f64> {
        let runs = self.runs_at(levels);
        runs.filter_map(|run| metric_of(run, name)).collect()
    }

    /// Returns the distance of each run from the median of its cell's runs.
    fn deviations(&self, name: &str, levels: &Levels) -> Vec<f64> {
        let cells: BTreeSet<&Levels> = self.runs_at(levels).map(|run| &run.levels).collect();
        let each = cells.into_iter().flat_map(|cell| {
            let values = self.plain_values(name, cell);
            let middle = stats::median(&values).unwrap_or_default();
            values.into_iter().map(move |value| (value - middle).abs())
        });
        each.collect()
    }

    /// Returns the levels of ξ's dividend, QUIC's if they do not name a transport; `None` if that is the baseline.
    fn of_xi(&self, levels: &Levels) -> Option<Levels> {
        let baseline = self.baseline()?;
        let mut levels = levels.clone();
        let transport = levels.entry(TRANSPORT.to_owned());
        (*transport.or_insert_with(|| "quic".to_owned()) != baseline).then_some(levels)
    }

    /// Returns the levels of ξ's divisor. A level that follows from the transport differs for it.
    fn baseline_levels(&self, levels: &Levels) -> Levels {
        let mut beside = levels.clone();
        if let Some(baseline) = self.baseline() {
            beside.insert(TRANSPORT.to_owned(), baseline);
        }
        beside.retain(|factor, _| !self.dependent_factors.contains(factor));
        beside
    }

    /// Returns the transport that ξ divides by: TLS, or else plain TCP.
    pub(crate) fn baseline(&self) -> Option<String> {
        let transports = self.levels(TRANSPORT);
        let named = |name: &str| transports.iter().find(|level| *level == name).cloned();
        named("tls").or_else(|| named("tcp"))
    }

    /// Pools all values recorded within the runs with these levels in one recorder; `None` without any value.
    pub(crate) fn pooled(&self, of: &str, levels: &Levels) -> Option<LatencyRecorder> {
        let mut all = LatencyRecorder::new();
        for run in self.runs_at(levels) {
            if let Some(text) = run.outcome.histograms.get(of) {
                decode(text, &mut all);
            }
        }
        (!all.is_empty()).then_some(all)
    }
}

/// Returns the factors that follow from others: without them, too, no two cells have the same levels. The transport is
/// never one of them.
fn dependent_factors(campaign: &Campaign) -> Vec<String> {
    let plot = &campaign.plot;
    let named = [&plot.x, &plot.series].into_iter().chain(&plot.facet);
    let named: Vec<&String> = named.collect();
    let cells = &campaign.cells;
    let factors = cells.first().into_iter().flat_map(|one| one.levels.keys());
    let mut follows = Vec::new();
    for factor in factors.filter(|factor| *factor != TRANSPORT && !named.contains(factor)) {
        let without = |cell: &Combination| {
            let mut levels = cell.levels.clone();
            levels.retain(|other, _| other != factor && !follows.contains(other));
            levels
        };
        if cells
            .iter()
            .map(without)
            .collect::<BTreeSet<Levels>>()
            .len()
            == cells.len()
        {
            follows.push(factor.clone());
        }
    }
    follows
}

fn metric_of(run: &Record, metric: &str) -> Option<f64> {
    run.outcome
        .metrics
        .get(metric)
        .copied()
        .filter(|value| value.is_finite())
}

/// Adds a recorded histogram to a recorder; a text that cannot be read adds nothing.
fn decode(text: &str, into: &mut LatencyRecorder) {
    let Some(histogram) = recorder::decode(text) else {
        return;
    };
    for bucket in histogram.iter_recorded() {
        let value = histogram.median_equivalent(bucket.value_iterated_to());
        into.extend((0..bucket.count_at_value()).map(|_| value));
    }
}

/// Returns the values of a run's histogram; `None` if the run does not have it.
pub(super) fn recorded(run: &Record, of: &str) -> Option<LatencyRecorder> {
    let mut all = LatencyRecorder::new();
    decode(run.outcome.histograms.get(of)?, &mut all);
    Some(all)
}

/// Returns all recorded values, ascending, in ms.
pub(crate) fn milliseconds(recorder: &LatencyRecorder) -> Vec<f64> {
    let histogram = recorder.histogram();
    let mut values = Vec::new();
    for bucket in histogram.iter_recorded() {
        let value = ns_to_ms(histogram.median_equivalent(bucket.value_iterated_to()));
        values.extend((0..bucket.count_at_value()).map(|_| value));
    }
    values
}

/// A quantity that a plot or a claim asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Metric {
    /// Name by which the plot or the claim asks for the quantity.
    pub(crate) asked: String,
    /// The metric's name in the records.
    pub(crate) name: String,
    pub(crate) xi: Option<Xi>,
    /// `true` for the spread of the metric's runs, and not their mean.
    pub(crate) is_spread: bool,
    pub(crate) unit: String,
    pub(crate) meaning: String,
}

/// The way in which runs are divided by those of the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Xi {
    /// Each run over the baseline's run of the same repetition (W20 eq. 1).
    W20,
    /// Each run over the mean of the baseline's (S21 eq. 1).
    S21,
}

impl Metric {
    /// Parses `NAME`, `xi_w20:NAME`, `xi_s21:NAME` or `spread:NAME`.
    pub(crate) fn parse(asked: &str) -> Self {
        let (xi, name) = match asked.split_once(':') {
            Some(("xi_w20", name)) => (Some(Xi::W20), name),
            Some(("xi_s21", name)) => (Some(Xi::S21), name),
            Some(("spread", name)) => (None, name),
            _ => (None, asked),
        };
        let is_spread = asked.starts_with("spread:");
        let known = METRICS.iter().find(|(known, ..)| *known == name);
        let (unit, meaning) = known.map_or(("", name), |(_, unit, meaning)| (*unit, *meaning));
        let (unit, meaning) = match xi {
            None if is_spread => (
                unit,
                format!("spread of the runs, mean distance from their median, of: {meaning}"),
            ),
            None => (unit, meaning.to_owned()),
            Some(Xi::W20) => ("", format!("ξ, run by run (W20 eq. 1), of: {meaning}")),
            Some(Xi::S21) => ("", format!("ξ, over TLS's mean (S21 eq. 1), of: {meaning}")),
        };
        Self {
            asked: asked.to_owned(),
            name: name.to_owned(),
            xi,
            is_spread,
            unit: unit.to_owned(),
            meaning,
        }
    }

    /// Returns the statistic of messages that the metric is, with the histogram; `None` if it is not a statistic of
    /// messages.
    pub(crate) fn of_messages(&self) -> Option<(String, Statistic)> {
        let statistics = [
            ("_mean", Statistic::Mean),
            ("_p50", Statistic::Percentile(50.0)),
            ("_p95", Statistic::Percentile(95.0)),
            ("_p99", Statistic::Percentile(99.0)),
            ("_rsd", Statistic::Rsd),
        ];
        if self.xi.is_some() || self.is_spread {
            return None;
        }
        for (end, statistic) in statistics {
            if let Some(of) = self.name.strip_suffix(end) {
                return Some((of.to_owned(), statistic));
            }
        }
        // These metrics are means.
        let means = [
            "delta_dagger",
            "dial_to_sent",
            "dial_to_sent_first",
            "dial_to_sent_later",
        ];
        means
            .contains(&&self.name[..])
            .then(|| (self.name.clone(), Statistic::Mean))
    }

    /// Returns the histogram that the metric belongs to, such as `latency` for `latency_max`.
    pub(crate) fn histogram(&self) -> String {
        let ends = ["_mean", "_p50", "_p95", "_p99", "_max", "_rsd"];
        let end = ends.iter().find_map(|end| self.name.strip_suffix(end));
        end.unwrap_or(&self.name).to_owned()
    }
}

/// A statistic of the messages of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Statistic {
    Mean,
    Percentile(f64),
    Rsd,
}

impl Statistic {
    pub(crate) fn of(self, values: &[f64]) -> Option<f64> {
        match self {
            Self::Mean => stats::mean(values),
            Self::Rsd => stats::rsd(values),
            Self::Percentile(percent) => {
                let mut sorted = values.to_vec();
                sorted.sort_by(f64::total_cmp);
                stats::nearest_rank(&sorted, percent)
            }
        }
    }
}
