//! From records to values: which runs count, what a metric is of them, and their distributions.

use std::{collections::BTreeMap, path::Path};

use mq_measure::{LatencyRecorder, recorder::read_log, stats};

use crate::campaign::{
    file::Campaign,
    record::{METRICS, Record},
};

/// Levels by factor.
pub(crate) type Levels = BTreeMap<String, String>;

/// The runs of a campaign that count: the last attempt of each repetition of each cell, in the order
/// of repetitions.
pub(crate) struct Finished<'a> {
    pub(crate) campaign: &'a Campaign,
    pub(crate) runs: Vec<&'a Record>,
    /// The attempts before them.
    pub(crate) repeated: Vec<&'a Record>,
}

impl<'a> Finished<'a> {
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
        }
    }

    /// Those with all of these levels. What is no factor of the campaign is looked up in its work.
    pub(crate) fn with(&self, levels: &Levels) -> impl Iterator<Item = &'a Record> {
        let has = |run: &Record, factor: &str, level: &str| match run.levels.get(factor) {
            Some(own) => own == level,
            None => serde_json::to_value(&run.cell).is_ok_and(|cell| plain(&cell[factor]) == level),
        };
        self.runs
            .iter()
            .copied()
            .filter(move |run| levels.iter().all(|(factor, level)| has(run, factor, level)))
    }

    /// A factor's levels, in the order of the file.
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

    /// The value of a metric of every run with these levels, by repetition.
    pub(crate) fn values(&self, metric: &Metric, levels: &Levels) -> Vec<f64> {
        let Metric { name, xi, .. } = metric;
        let Some(xi) = xi else {
            return self
                .with(levels)
                .filter_map(|run| value(run, name))
                .collect();
        };
        let factor = &self.campaign.plot.series;
        let Some(baseline) = self.baseline() else {
            return Vec::new();
        };
        let runs = self
            .with(levels)
            .filter(|run| run.levels.get(factor) != Some(&baseline));
        let mut values = Vec::new();
        for run in runs {
            let mut beside = run.levels.clone();
            beside.insert(factor.clone(), baseline.clone());
            let tcp = match xi {
                Xi::W20 => self
                    .with(&beside)
                    .find(|other| other.repetition == run.repetition)
                    .and_then(|other| value(other, name)),
                Xi::S21 => {
                    let all: Vec<_> = self.with(&beside).filter_map(|r| value(r, name)).collect();
                    stats::mean(&all)
                }
            };
            if let (Some(own), Some(tcp)) = (value(run, name), tcp) {
                values.extend(stats::xi(own, tcp));
            }
        }
        values
    }

    /// The series that ξ divides by: `tls` or else `tcp`, or else the first one.
    pub(crate) fn baseline(&self) -> Option<String> {
        let series = self.levels(&self.campaign.plot.series);
        let named = |name: &str| series.iter().find(|level| *level == name).cloned();
        named("tls")
            .or_else(|| named("tcp"))
            .or_else(|| series.first().cloned())
    }

    /// Everything that was recorded within the runs with these levels, as one recorder; `None` if
    /// there is nothing.
    pub(crate) fn pooled(&self, of: &str, levels: &Levels) -> Option<LatencyRecorder> {
        let mut all = LatencyRecorder::new();
        for run in self.with(levels) {
            if let Some(text) = run.outcome.histograms.get(of) {
                decode(text, &mut all);
            }
        }
        (!all.is_empty()).then_some(all)
    }
}

fn plain(value: &serde_json::Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn value(run: &Record, metric: &str) -> Option<f64> {
    run.outcome
        .metrics
        .get(metric)
        .copied()
        .filter(|value| value.is_finite())
}

/// A recorded histogram; one that cannot be read is none.
fn decode(text: &str, into: &mut LatencyRecorder) {
    // A line of a log, whose times nothing here needs.
    let line = format!("0.0,0.0,0.0,{text}\n");
    for logged in read_log(line.as_bytes(), Path::new("a record")).unwrap_or_default() {
        for bucket in logged.histogram.iter_recorded() {
            let value = logged
                .histogram
                .median_equivalent(bucket.value_iterated_to());
            into.extend((0..bucket.count_at_value()).map(|_| value));
        }
    }
}

/// All recorded values, ascending, in ms.
pub(crate) fn milliseconds(recorder: &LatencyRecorder) -> Vec<f64> {
    let histogram = recorder.histogram();
    let mut values = Vec::new();
    for bucket in histogram.iter_recorded() {
        let value = ms(histogram.median_equivalent(bucket.value_iterated_to()));
        values.extend((0..bucket.count_at_value()).map(|_| value));
    }
    values
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 104 days")]
pub(crate) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A quantity that a plot or a claim asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Metric {
    /// As it is asked for.
    pub(crate) asked: String,
    /// That of the records.
    pub(crate) name: String,
    pub(crate) xi: Option<Xi>,
    pub(crate) unit: String,
    pub(crate) meaning: String,
}

/// A ratio to the series that is the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Xi {
    /// Each run over the baseline's run of the same repetition (W20 eq. 1).
    W20,
    /// Each run over the mean of the baseline's (S21 eq. 1).
    S21,
}

impl Metric {
    /// `NAME`, `xi_w20:NAME` or `xi_s21:NAME`.
    pub(crate) fn parse(asked: &str) -> Self {
        let (xi, name) = match asked.split_once(':') {
            Some(("xi_w20", name)) => (Some(Xi::W20), name),
            Some(("xi_s21", name)) => (Some(Xi::S21), name),
            _ => (None, asked),
        };
        let known = METRICS.iter().find(|(known, ..)| *known == name);
        let (unit, meaning) = known.map_or(("", name), |(_, unit, meaning)| (*unit, *meaning));
        let (unit, meaning) = match xi {
            None => (unit, meaning.to_owned()),
            Some(Xi::W20) => ("", format!("ξ, run by run (W20 eq. 1), of: {meaning}")),
            Some(Xi::S21) => (
                "",
                format!("ξ, over the baseline's mean (S21 eq. 1), of: {meaning}"),
            ),
        };
        Self {
            asked: asked.to_owned(),
            name: name.to_owned(),
            xi,
            unit: unit.to_owned(),
            meaning,
        }
    }

    /// The statistic of messages that it is, and what of; `None` if it is not one of messages.
    pub(crate) fn of_messages(&self) -> Option<(String, Statistic)> {
        let statistics = [
            ("_mean", Statistic::Mean),
            ("_p50", Statistic::Percentile(50.0)),
            ("_p95", Statistic::Percentile(95.0)),
            ("_p99", Statistic::Percentile(99.0)),
            ("_rsd", Statistic::Rsd),
        ];
        if self.xi.is_some() {
            return None;
        }
        for (end, statistic) in statistics {
            if let Some(of) = self.name.strip_suffix(end) {
                return Some((of.to_owned(), statistic));
            }
        }
        // Means by another name.
        matches!(&self.name[..], "delta_dagger" | "dial_to_sent")
            .then(|| (self.name.clone(), Statistic::Mean))
    }

    /// The histogram of a run that its metric is of, such as `latency` of `latency_max`.
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
