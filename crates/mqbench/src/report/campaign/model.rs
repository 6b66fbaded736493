//! The report as a value: what `--json` writes, and what every other form is made of.
//!
//! `docs/spec/report.schema.json` says the same of the JSON; a test holds both together.

use std::collections::BTreeMap;

use mq_measure::{Warning, manifest::Manifest, stats::Interval};
use serde::Serialize;
use serde_json::Value;

use crate::campaign::{
    claims::{Claim, Verdict},
    file::{Extent, PlotKind},
};

/// The `schema` of this version.
pub(crate) const SCHEMA: &str = "mq-report/1";

/// All campaigns of a result set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    pub(crate) extent: Extent,
    pub(crate) manifest: Manifest,
    /// One for each time that the set was gone on with.
    pub(crate) continued: Vec<Manifest>,
    pub(crate) claims: Vec<ClaimReport>,
    pub(crate) campaigns: Vec<CampaignReport>,
}

/// A claim, and what the runs say of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ClaimReport {
    pub(crate) claim: Claim,
    pub(crate) verdict: Verdict,
    /// Why, in a few words.
    pub(crate) why: String,
    /// What was measured, in the claim's own form.
    pub(crate) measured: Option<Interval>,
    /// What the interval is over.
    pub(crate) of: Basis,
}

/// What a statistic is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Basis {
    /// One value a repetition: independent values.
    Repetitions,
    /// The messages of the runs, pooled. Those of one run are not independent, so that intervals
    /// are too narrow and probabilities too small.
    Messages,
    /// There is too little.
    None,
}

/// One campaign.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CampaignReport {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) source: String,
    pub(crate) plot: PlotReport,
    pub(crate) runs: Runs,
    /// What the energy of its runs is from; none where they have no energy.
    pub(crate) energy: Vec<EnergyReport>,
    /// What is the same in every cell, by the names of campaign files.
    pub(crate) fixed: BTreeMap<String, Value>,
    /// One for each level of the facet, and of every factor that the plot does not name.
    pub(crate) panels: Vec<Panel>,
    pub(crate) links: Vec<LinkReport>,
    pub(crate) warnings: Vec<WarningReport>,
    /// Attempts that were disturbed and repeated; nothing else here counts them.
    pub(crate) repeated: Vec<Repeated>,
    /// The ids of its claims, in the order of the report's.
    pub(crate) claims: Vec<String>,
    /// For those of DL that are held against both of its estimators.
    pub(crate) estimators: Option<Estimators>,
}

/// The same claims by two estimators of a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Estimators {
    /// What the difference does to the conclusion, in whole sentences.
    pub(crate) conclusion: String,
    pub(crate) pairs: Vec<EstimatorPair>,
}

/// One sentence by both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EstimatorPair {
    pub(crate) says: String,
    /// The claim's id by DL's own, which times from the last job sent.
    pub(crate) last: String,
    /// Its id with each result matched with its own job.
    pub(crate) matched: String,
    /// Whether both show a difference, and not the same one.
    pub(crate) turned: bool,
}

/// What its figures draw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PlotReport {
    #[serde(serialize_with = "kind_name")]
    pub(crate) kind: PlotKind,
    pub(crate) metric: String,
    /// What the metric is.
    pub(crate) meaning: String,
    /// Empty for a ratio or a number.
    pub(crate) unit: String,
    pub(crate) x: String,
    pub(crate) series: String,
    pub(crate) facet: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn kind_name<S: serde::Serializer>(kind: &PlotKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match kind {
        PlotKind::Bars => "bars",
        PlotKind::Lines => "lines",
        PlotKind::BoxTukey => "box-tukey",
        PlotKind::BoxPercentiles => "box-percentiles",
    })
}

/// How many runs there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Runs {
    pub(crate) planned: usize,
    pub(crate) finished: usize,
    /// Attempts that were repeated.
    pub(crate) repeated: usize,
    /// Finished runs that have warnings.
    pub(crate) warned: usize,
}

/// A meter that runs have their energy from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EnergyReport {
    /// As the command line names it.
    pub(crate) meter: String,
    /// Whether it measures or computes.
    pub(crate) basis: mq_energy::Basis,
    /// What its energy is of, if it measures.
    pub(crate) scope: Option<String>,
    /// How many have it from there.
    pub(crate) runs: usize,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Panel {
    /// The levels that it is of; none if it is the only one.
    pub(crate) levels: BTreeMap<String, String>,
    /// What a message needs at least over the link, in the metric's unit: its delay one way.
    pub(crate) baseline: Option<f64>,
    /// The levels along the abscissa.
    pub(crate) x: Vec<String>,
    pub(crate) series: Vec<Series>,
    pub(crate) tests: Vec<Test>,
    pub(crate) distributions: Vec<Distribution>,
}

/// A line, or the bars or boxes of one colour.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// For each level along the abscissa; null where there is no run.
    pub(crate) points: Vec<Option<Point>>,
}

/// A cell's figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    /// Repetitions.
    pub(crate) n: usize,
    /// Each repetition's value, in their order.
    pub(crate) values: Vec<f64>,
    pub(crate) mean: f64,
    pub(crate) median: f64,
    /// The 95 % interval of the mean, by bootstrap.
    pub(crate) low: Option<f64>,
    pub(crate) high: Option<f64>,
    /// What the interval is over.
    pub(crate) interval_of: Basis,
    #[serde(rename = "box")]
    pub(crate) quartiles: Option<BoxReport>,
}

/// A box with whiskers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct BoxReport {
    pub(crate) of: Basis,
    /// How many values.
    pub(crate) n: u64,
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
    /// The whiskers' ends.
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// How many values are beyond the whiskers.
    pub(crate) outlier_count: usize,
    /// Those values, thinned out evenly where they are too many to draw; first and last are kept.
    pub(crate) outliers: Vec<f64>,
}

/// Whether the series differ at one level of the abscissa.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Test {
    pub(crate) x: String,
    pub(crate) of: Basis,
    /// Kruskal and Wallis: whether all series are of one distribution.
    pub(crate) kruskal_wallis: Option<KruskalWallisReport>,
    pub(crate) pairs: Vec<Pair>,
}

/// The outcome of a Kruskal-Wallis test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct KruskalWallisReport {
    pub(crate) h: f64,
    pub(crate) degrees: u32,
    pub(crate) p: f64,
}

/// Two series at one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Pair {
    pub(crate) a: String,
    pub(crate) b: String,
    /// By Dunn's test, adjusted by Holm for the pairs of this level.
    pub(crate) p: Option<f64>,
    /// In what share of all pairs a's value is the larger, less the share where b's is.
    pub(crate) cliffs_delta: f64,
    /// Romano's word for it.
    pub(crate) size: &'static str,
    /// The mean of a over that of b.
    pub(crate) ratio: Option<Interval>,
}

/// How the values within the runs of one cell are distributed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Distribution {
    pub(crate) x: String,
    pub(crate) series: String,
    /// What of, such as `latency`.
    pub(crate) of: String,
    pub(crate) count: u64,
    /// Bounds in ms, one more than shares; the same for all series of an x.
    pub(crate) bounds_ms: Vec<f64>,
    /// The share of all values within each two bounds.
    pub(crate) shares: Vec<f64>,
    /// Percent, and the value in ms that so many do not exceed.
    pub(crate) percentiles_ms: Vec<(f64, f64)>,
}

/// One direction of a link of some runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LinkReport {
    /// Whose, such as `publisher`.
    pub(crate) of: String,
    pub(crate) name: String,
    /// `up` or `down`; `all` for a shared channel.
    pub(crate) direction: String,
    pub(crate) runs: usize,
    pub(crate) configured: LinkConfigured,
    pub(crate) measured: LinkMeasured,
}

/// As it was to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LinkConfigured {
    pub(crate) delay_ns: Option<u64>,
    pub(crate) rate_bps: Option<u64>,
    pub(crate) queue: Option<String>,
    pub(crate) loss: Option<f64>,
}

/// As it was, over all its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LinkMeasured {
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    pub(crate) overflowed: u64,
    /// The worst run's: how much later than due packets left the emulator.
    pub(crate) lateness_p99_ns: Option<u64>,
}

/// A kind of warning of finished runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct WarningReport {
    /// Its name in a record.
    pub(crate) kind: String,
    /// Runs that have it.
    pub(crate) runs: usize,
    /// Each of them: where, and what.
    pub(crate) found: Vec<WarningFound>,
}

/// A warning of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct WarningFound {
    pub(crate) levels: BTreeMap<String, String>,
    pub(crate) repetition: u32,
    pub(crate) says: String,
}

/// A run that was repeated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Repeated {
    pub(crate) levels: BTreeMap<String, String>,
    pub(crate) repetition: u32,
    pub(crate) attempt: u32,
    pub(crate) warnings: Vec<Warning>,
    /// Why it ended early, if it did.
    pub(crate) error: Option<String>,
}
