//! First and later connections of a run, told apart: the first makes a full handshake, the later ones may resume.
//!
//! A run of `reconnect` that resumes has connections of two kinds. A figure of boxes shows them as two series, since a
//! median of both is a time that no connection took.

use mq_measure::LatencyRecorder;

use super::{
    metric_values::{FinishedRuns, Levels, Metric, recorded},
    model::PlotReport,
};
use crate::{
    campaign::{file::BoxesOf, record::Record},
    units::serialized_name,
    workload::resumption::Resumption,
};

/// The histogram of all connections of a run, with the metric's name.
const ALL: &str = "dial_to_sent";
/// The histogram of a run's first connection.
const FIRST: &str = "dial_to_sent_first";
/// The histogram of a run's later connections.
const LATER: &str = "dial_to_sent_later";

/// Cells that a figure draws in one colour.
#[derive(Clone, Debug)]
pub(super) struct SeriesCells {
    pub(super) name: String,
    /// The levels of the cells, except for the abscissa's.
    pub(super) levels: Levels,
    /// The handshake of the connections that count; `None` if all do.
    pub(super) handshake: Option<Resumption>,
}

impl SeriesCells {
    /// Makes the series of all connections of these cells.
    pub(super) fn of_all(name: String, levels: Levels) -> Self {
        Self {
            name,
            levels,
            handshake: None,
        }
    }

    /// Returns the levels of the series at a place of the abscissa.
    pub(super) fn at(&self, factor: &str, x: &str) -> Levels {
        let mut levels = self.levels.clone();
        levels.insert(factor.to_owned(), x.to_owned());
        levels
    }
}

/// Splits each series by the handshakes of its connections, if the figure draws single connections and some of them
/// resume.
pub(super) fn by_handshake(
    finished: &FinishedRuns,
    metric: &Metric,
    series: Vec<SeriesCells>,
) -> Vec<SeriesCells> {
    let plot = &finished.campaign.plot;
    let is_of_connections = metric.asked == ALL;
    if !is_of_connections || !plot.kind.is_boxes() || plot.boxes != BoxesOf::Messages {
        return series;
    }
    let split: Vec<SeriesCells> = series
        .iter()
        .flat_map(|one| {
            handshakes(finished, &one.levels)
                .into_iter()
                .map(|handshake| SeriesCells {
                    name: format!("{} {}", one.name, serialized_name(handshake)),
                    levels: one.levels.clone(),
                    handshake: Some(handshake),
                })
        })
        .collect();
    if split.len() == series.len() {
        return series;
    }
    split
}

/// Returns the handshakes of the connections of these cells, the full one first: each run begins with one.
fn handshakes(finished: &FinishedRuns, levels: &Levels) -> Vec<Resumption> {
    let mut all = vec![Resumption::Full];
    let cells = finished.campaign.cells.iter();
    let mine = cells.filter(|one| {
        let mut levels = levels.iter();
        levels.all(|(factor, level)| one.levels.get(factor) == Some(level))
    });
    for resumption in mine.map(|one| one.cell.resumption) {
        if !all.contains(&resumption) {
            all.push(resumption);
        }
    }
    all
}

/// Returns the note of a figure whose series are split, for its caption.
pub(super) fn note(plot: &PlotReport, source: &str, series: &[SeriesCells]) -> Option<String> {
    let is_split = plot.kind.is_boxes() && series.iter().any(|one| one.handshake.is_some());
    let theirs = match source.split_whitespace().next() {
        Some("W20") => "; W20 draws one box of both",
        _ => "",
    };
    is_split.then(|| {
        format!("The first connection of a run and the later ones have boxes of their own{theirs}.")
    })
}

/// Returns the times of a run's connections with this handshake.
pub(super) fn times(run: &Record, handshake: Resumption) -> LatencyRecorder {
    let later = run.cell.resumption;
    let name = match handshake {
        Resumption::Full if later == Resumption::Full => ALL,
        Resumption::Full => FIRST,
        resumed if resumed == later => LATER,
        _ => return LatencyRecorder::new(),
    };
    recorded(run, name).unwrap_or_else(|| of_earlier_version(run, handshake))
}

/// Returns these times from a record of an earlier version, which has those of all connections in one histogram. The
/// first connection's is taken to be the longest, since it alone waits for a whole handshake.
fn of_earlier_version(run: &Record, handshake: Resumption) -> LatencyRecorder {
    let mut times = LatencyRecorder::new();
    let Some(all) = recorded(run, ALL) else {
        return times;
    };
    let histogram = all.histogram();
    let mut ascending: Vec<u64> = Vec::new();
    for bucket in histogram.iter_recorded() {
        let value = histogram.median_equivalent(bucket.value_iterated_to());
        ascending.extend((0..bucket.count_at_value()).map(|_| value));
    }
    let first = ascending.pop();
    match handshake {
        Resumption::Full => times.extend(first),
        _ => times.extend(ascending),
    }
    times
}

#[cfg(test)]
mod tests {
    use mq_measure::recorder::encode;

    use super::*;
    use crate::campaign::{cell::Cell, record::Outcome};

    fn run(resumption: Resumption, histograms: &[(&str, &[u64])]) -> Record {
        let histograms = histograms.iter().map(|(name, values)| {
            let mut recorder = LatencyRecorder::new();
            recorder.extend(values.iter().copied());
            ((*name).to_owned(), encode(&recorder).unwrap())
        });
        let cell = Cell {
            resumption,
            ..Cell::default()
        };
        let outcome = Outcome {
            histograms: histograms.collect(),
            ..Outcome::default()
        };
        Record::of(cell, outcome)
    }

    /// Returns the number of times, and the longest in ms.
    fn found(run: &Record, handshake: Resumption) -> (u64, Option<u64>) {
        let times = times(run, handshake);
        let most = times.moments().max();
        (times.count(), most.map(|ns| (ns + 500_000) / 1_000_000))
    }

    #[test]
    fn a_first_connection_is_known_even_if_a_later_one_took_longer() {
        use Resumption::{Full, Resumed, ZeroRtt};
        const MS: u64 = 1_000_000;
        let all = ("dial_to_sent", &[27 * MS, MS, 90 * MS][..]);
        let parts = [
            all,
            ("dial_to_sent_first", &[27 * MS]),
            ("dial_to_sent_later", &[MS, 90 * MS]),
        ];
        let recorded = run(ZeroRtt, &parts);
        assert_eq!(found(&recorded, Full), (1, Some(27)));
        assert_eq!(found(&recorded, ZeroRtt), (2, Some(90)));
        assert_eq!(found(&recorded, Resumed), (0, None));
        // Every connection of such a run makes a full handshake.
        assert_eq!(found(&run(Full, &parts), Full), (3, Some(90)));
        let earlier = run(ZeroRtt, &[("dial_to_sent", &[MS, 27 * MS])]);
        assert_eq!(found(&earlier, Full), (1, Some(27)));
        assert_eq!(found(&earlier, ZeroRtt), (1, Some(1)));
    }
}
