//! The runs of one cell, and the cell's figure.

use mq_measure::stats;

use super::{
    connections::{self, SeriesCells},
    metric_values::{FinishedRuns, Levels, Metric, Statistic, milliseconds},
    model::{Basis, BoxReport, Point},
    resample::Resample,
};
use crate::{
    campaign::file::{BoxesOf, PlotKind},
    workload::resumption::Resumption,
};

/// Number of repetitions from which on boxes and tests are over repetitions; with fewer, they are over messages.
pub(super) const ENOUGH: usize = 5;
/// Greatest number of outliers of a box that are drawn.
const OUTLIERS: usize = 200;

/// The runs of one cell.
pub(super) struct RunGroup {
    /// The metric's value of each repetition.
    pub(super) values: Vec<f64>,
    /// The values recorded within the runs, in ms, ascending.
    pub(super) messages: Vec<f64>,
    /// The statistic of messages that the metric stands for; `None` for other metrics.
    pub(super) statistic: Option<Statistic>,
    boxes: BoxesOf,
    /// Number of repetitions whose last attempt was disturbed.
    disturbed: usize,
}

impl RunGroup {
    /// Groups the runs of a series with these levels.
    pub(super) fn of(
        finished: &FinishedRuns,
        metric: &Metric,
        series: &SeriesCells,
        levels: &Levels,
    ) -> Self {
        if let Some(handshake) = series.handshake {
            return Self::of_connections(finished, levels, handshake);
        }
        let values = finished.values(metric, levels);
        let boxes = finished.campaign.plot.boxes;
        let wants_messages = values.len() < ENOUGH || boxes == BoxesOf::Messages;
        let of_messages = metric.of_messages().filter(|_| wants_messages);
        let messages = of_messages
            .as_ref()
            .and_then(|(of, _)| finished.pooled(of, levels))
            .map_or_else(Vec::new, |recorder| milliseconds(&recorder));
        Self {
            values,
            messages,
            statistic: of_messages.map(|(_, statistic)| statistic),
            boxes,
            disturbed: disturbed(finished, levels),
        }
    }

    /// Groups the connections with this handshake; a run's value is the mean of its connections.
    fn of_connections(finished: &FinishedRuns, levels: &Levels, handshake: Resumption) -> Self {
        let runs = finished.runs_at(levels);
        let times: Vec<Vec<f64>> = runs
            .map(|run| milliseconds(&connections::times(run, handshake)))
            .collect();
        let mut messages = times.concat();
        messages.sort_by(f64::total_cmp);
        Self {
            values: times.iter().filter_map(|run| stats::mean(run)).collect(),
            messages,
            statistic: Some(Statistic::Mean),
            boxes: BoxesOf::Messages,
            disturbed: disturbed(finished, levels),
        }
    }

    pub(super) fn point(&self, metric: &Metric, kind: PlotKind, seed: u64) -> Option<Point> {
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

    /// Returns the values for boxes and tests: repetitions if there are enough, else messages if the metric has their
    /// unit.
    fn basis(&self, metric: &Metric) -> (Basis, &[f64]) {
        if self.values.len() >= ENOUGH && self.boxes == BoxesOf::Runs {
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

/// Counts the runs with these levels whose last attempt was disturbed.
pub(super) fn disturbed(finished: &FinishedRuns, levels: &Levels) -> usize {
    let runs = finished.runs_at(levels);
    runs.filter(|run| run.outcome.is_disturbed()).count()
}
