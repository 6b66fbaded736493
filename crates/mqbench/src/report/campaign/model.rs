//! The report as a value. `--json` writes it, and every other form is made from it.
//!
//! `docs/spec/report.schema.json` is the schema of the JSON; a test holds both together.

use std::collections::{BTreeMap, BTreeSet};

use mq_measure::{
    Warning,
    manifest::Manifest,
    stats::{Interval, KruskalWallis},
};
use serde::Serialize;
use serde_json::Value;

use crate::campaign::{
    claims::{Claim, Verdict},
    file::{Extent, PlotKind},
    run_counts::RunCounts,
};

/// The `schema` of a report that this version writes.
pub(crate) const SCHEMA: &str = "mq-report/1";

/// The report of all campaigns of a result set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    pub(crate) extent: Extent,
    pub(crate) manifest: Manifest,
    /// One manifest for each time that the set was resumed.
    pub(crate) continued: Vec<Manifest>,
    /// The papers with a measured claim; those with more verdicts come first.
    pub(crate) papers: Vec<PaperReport>,
    pub(crate) claims: Vec<ClaimReport>,
    pub(crate) campaigns: Vec<CampaignReport>,
}

impl Report {
    /// The changes of campaigns that stand beside others in this set, each once.
    pub(super) fn changes(&self) -> Vec<&str> {
        let all = self.claims.iter().flat_map(|claim| &claim.beside);
        let all: BTreeSet<&str> = all.map(|beside| &beside.changes[..]).collect();
        all.into_iter().collect()
    }

    /// The claims that the results' campaigns are held against.
    pub(super) fn claims_of_campaigns(&self) -> Vec<&ClaimReport> {
        let ids = || self.campaigns.iter().flat_map(|campaign| &campaign.claims);
        let held = |claim: &&ClaimReport| ids().any(|id| *id == claim.claim.id);
        self.claims.iter().filter(held).collect()
    }
}

/// What the runs say of a paper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PaperReport {
    /// The letters by which claims and campaigns name it.
    pub(crate) name: String,
    pub(crate) title: String,
    /// Authors, place and year.
    pub(crate) authors: String,
    pub(crate) doi: Option<String>,
    /// Claims that are reproduced.
    pub(crate) held: usize,
    /// Claims that are not reproduced, or opposite.
    pub(crate) failed: usize,
    /// Those of them that are of a difference, where there is none that counts.
    pub(crate) no_difference: usize,
    /// Claims without a verdict: undecided, not tested, not measured.
    pub(crate) open: usize,
    /// The verdicts in one to three sentences.
    pub(crate) says: Vec<String>,
}

/// A claim with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ClaimReport {
    pub(crate) claim: Claim,
    pub(crate) verdict: Verdict,
    /// Why, in a few words.
    pub(crate) why: String,
    /// The measured value, in the claim's own form.
    pub(crate) measured: Option<Interval>,
    /// What the interval is over.
    pub(crate) of: Basis,
    /// The same of the campaign with changes, such as `repeat=probe`, if the set has it.
    pub(crate) beside: Vec<ClaimBeside>,
}

/// The verdict on a claim by the runs of its campaign with changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ClaimBeside {
    /// The changes, such as `repeat=probe`.
    pub(crate) changes: String,
    pub(crate) verdict: Verdict,
    /// The measured value, in the claim's own form.
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
    /// The messages of the runs, pooled. Messages of one run are not independent, so intervals are too narrow
    /// and probabilities too small.
    Messages,
    /// There are too few values.
    None,
}

/// One campaign.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CampaignReport {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) source: String,
    pub(crate) plot: PlotReport,
    pub(crate) runs: CampaignRuns,
    /// The meters of its runs; none if the runs have no energy.
    pub(crate) energy: Vec<EnergyReport>,
    /// The keys that are the same in every cell, with the names of campaign files.
    pub(crate) fixed: BTreeMap<String, Value>,
    /// One figure for each level of the facet, and of every factor that the plot does not name.
    pub(crate) panels: Vec<Panel>,
    /// The parameters of the transports, by their names in the records, each with all values that its runs have.
    pub(crate) parameters: BTreeMap<String, BTreeSet<String>>,
    pub(crate) links: Vec<LinkReport>,
    pub(crate) warnings: Vec<WarningReport>,
    /// Attempts that were disturbed and repeated; no other number counts them.
    pub(crate) repeated: Vec<RepeatedAttempts>,
    /// The ids of its claims, in the order of the report.
    pub(crate) claims: Vec<String>,
    /// The comparison of DL's two estimators, for its campaigns.
    pub(crate) estimators: Option<Estimators>,
}

/// The same claims by two estimators of a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Estimators {
    /// The effect of the difference on the conclusion, in whole sentences.
    pub(crate) conclusion: String,
    pub(crate) pairs: Vec<EstimatorPair>,
}

/// One claim by both estimators.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EstimatorPair {
    pub(crate) says: String,
    /// The id of the claim by DL's own estimator, which times from the last job sent.
    pub(crate) last: String,
    /// The id of the claim with each result matched with its own job.
    pub(crate) matched: String,
    /// Whether both estimators show a difference, in opposite directions.
    pub(crate) turned: bool,
}

/// The plot of its figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PlotReport {
    pub(crate) kind: PlotKind,
    pub(crate) metric: String,
    /// The metric in words, as an axis names it.
    pub(crate) quantity: String,
    /// The meaning of the metric.
    pub(crate) meaning: String,
    /// The unit; empty for a ratio or a number.
    pub(crate) unit: String,
    pub(crate) x: String,
    /// The abscissa in words.
    pub(crate) abscissa: String,
    pub(crate) series: String,
    pub(crate) facet: Option<String>,
}

/// How many runs there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CampaignRuns {
    #[serde(flatten)]
    pub(crate) counts: RunCounts,
    /// Finished runs that have warnings.
    pub(crate) warned: usize,
}

/// A meter that runs have their energy from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EnergyReport {
    /// The meter's name, as the command line takes it.
    pub(crate) meter: String,
    /// Whether the meter measures or computes.
    pub(crate) basis: mq_energy::Basis,
    /// What the energy covers, if the meter measures.
    pub(crate) scope: Option<String>,
    /// How many runs have this meter.
    pub(crate) runs: usize,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Panel {
    /// The levels of the figure; none if it is the only one.
    pub(crate) levels: BTreeMap<String, String>,
    /// What the figure shows, in a sentence; empty without a run.
    pub(crate) shows: String,
    /// Runs of the figure whose last attempt was disturbed, with a value or without.
    pub(crate) disturbed: usize,
    /// The least time of a message, in the metric's unit: the links' delay one way.
    pub(crate) baseline: Option<f64>,
    /// The levels along the abscissa.
    pub(crate) x: Vec<String>,
    pub(crate) series: Vec<Series>,
    pub(crate) tests: Vec<SignificanceTest>,
    pub(crate) distributions: Vec<Distribution>,
}

impl Panel {
    /// Returns the figures of all cells that have a run.
    pub(super) fn points(&self) -> impl Iterator<Item = &Point> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.flatten()
    }
}

/// A line, or the bars or boxes of one colour.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// A cell for each level along the abscissa; null without a run.
    pub(crate) points: Vec<Option<Point>>,
}

/// A cell's figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    /// Repetitions.
    pub(crate) n: usize,
    /// Runs of the cell whose last attempt was disturbed, with a value or without.
    pub(crate) disturbed: usize,
    /// The value of each repetition, in their order.
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
    /// These values, thinned out evenly if they are too many to draw; the first and the last stay.
    pub(crate) outliers: Vec<f64>,
}

/// Whether the series differ at one level of the abscissa.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SignificanceTest {
    pub(crate) x: String,
    pub(crate) of: Basis,
    /// Kruskal and Wallis: whether all series are of one distribution.
    pub(crate) kruskal_wallis: Option<KruskalWallis>,
    pub(crate) pairs: Vec<Pair>,
}

/// Two series at one level; all of it says how a lies to b.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Pair {
    pub(crate) a: String,
    pub(crate) b: String,
    /// By Dunn's test, adjusted by Holm for the pairs of this level.
    pub(crate) p: Option<f64>,
    /// The share of all pairs of a value of a and one of b in which a's is less.
    pub(crate) below: f64,
    /// The share in which a's is more.
    pub(crate) above: f64,
    /// `above` less `below`.
    pub(crate) cliffs_delta: f64,
    /// Romano's word for it.
    pub(crate) size: &'static str,
    /// The mean of a over the mean of b.
    pub(crate) ratio: Option<Interval>,
}

/// The distribution of the values within the runs of one cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Distribution {
    pub(crate) x: String,
    pub(crate) series: String,
    /// The name of the values, such as `latency`.
    pub(crate) of: String,
    pub(crate) count: u64,
    /// Bounds in ms, one more than shares; the same for all series of an x.
    pub(crate) bounds_ms: Vec<f64>,
    /// The share of all values between each two bounds.
    pub(crate) shares: Vec<f64>,
    /// A percentage, and the value in ms that so many percent do not exceed.
    pub(crate) percentiles_ms: Vec<(f64, f64)>,
}

/// One direction of a link of some runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LinkReport {
    /// The role whose link it is, such as `publisher`.
    pub(crate) of: String,
    pub(crate) name: String,
    /// `up` or `down`; `all` for a shared channel.
    pub(crate) direction: String,
    pub(crate) runs: usize,
    pub(crate) configured: LinkConfigured,
    pub(crate) measured: LinkMeasured,
}

/// A direction as configured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LinkConfigured {
    pub(crate) delay_ns: Option<u64>,
    pub(crate) rate_bps: Option<u64>,
    pub(crate) queue: Option<String>,
    pub(crate) loss: Option<f64>,
}

/// A direction as measured, over all of its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LinkMeasured {
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    pub(crate) overflowed: u64,
    /// How much later than due packets left the emulator, of the worst run.
    pub(crate) lateness_p99_ns: Option<u64>,
}

/// A kind of warning of finished runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct WarningReport {
    /// The warning's name in a record.
    pub(crate) kind: String,
    /// Runs that have it.
    pub(crate) runs: usize,
    /// Each warning: its run and its text.
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
pub(crate) struct RepeatedAttempts {
    pub(crate) levels: BTreeMap<String, String>,
    pub(crate) repetition: u32,
    pub(crate) attempt: u32,
    pub(crate) warnings: Vec<Warning>,
    /// Why it ended early, if it did.
    pub(crate) error: Option<String>,
}
