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
    /// Manifest of each resumption of the set.
    pub(crate) continued: Vec<Manifest>,
    /// The papers with a measured claim; papers with more verdicts come first.
    pub(crate) papers: Vec<PaperReport>,
    pub(crate) claims: Vec<ClaimReport>,
    pub(crate) campaigns: Vec<CampaignReport>,
}

impl Report {
    /// Returns the changes of campaigns that stand beside others in this set, each once.
    pub(super) fn changes(&self) -> Vec<&str> {
        let all = self.claims.iter().flat_map(|claim| &claim.beside);
        let all: BTreeSet<&str> = all.map(|beside| &beside.changes[..]).collect();
        all.into_iter().collect()
    }

    /// Returns the claims that the results' campaigns are judged by.
    pub(super) fn claims_of_campaigns(&self) -> Vec<&ClaimReport> {
        let ids = || self.campaigns.iter().flat_map(|campaign| &campaign.claims);
        let held = |claim: &&ClaimReport| ids().any(|id| *id == claim.claim.id);
        self.claims.iter().filter(held).collect()
    }
}

/// Verdicts on the claims of a paper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PaperReport {
    /// The abbreviation by which claims and campaigns name the paper.
    pub(crate) name: String,
    pub(crate) title: String,
    /// Authors, place and year.
    pub(crate) authors: String,
    pub(crate) doi: Option<String>,
    /// Number of claims that are reproduced.
    pub(crate) held: usize,
    /// Number of claims that are not reproduced, or whose opposite is.
    pub(crate) failed: usize,
    /// Number of claims among `failed` that state a difference where the runs found no difference that counts.
    pub(crate) no_difference: usize,
    /// Number of claims without a verdict: undecided, not tested, not measured.
    pub(crate) open: usize,
    /// Summary of the verdicts in one to three sentences.
    pub(crate) says: Vec<String>,
}

/// A claim with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ClaimReport {
    pub(crate) claim: Claim,
    pub(crate) verdict: Verdict,
    /// The reason for the verdict, in a few words.
    pub(crate) why: String,
    /// The measured value, in the claim's own form.
    pub(crate) measured: Option<Interval>,
    /// The test of a `differs`, in place of a value.
    pub(crate) test: Option<ClaimTest>,
    /// Basis of the interval or of the test.
    pub(crate) of: Basis,
    /// Verdicts by the campaign with changes, such as `repeat=probe`, if the set has it.
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
    /// The test of a `differs`, in place of a value.
    pub(crate) test: Option<ClaimTest>,
    /// Basis of the interval or of the test.
    pub(crate) of: Basis,
}

/// Test of a claim that levels differ, over the runs of each level.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct ClaimTest {
    #[serde(flatten)]
    pub(crate) kruskal_wallis: KruskalWallis,
    /// The p-value adjusted by Holm for all such tests of the paper.
    pub(crate) holm_p: f64,
}

/// Values that a statistic is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Basis {
    /// Values of the repetitions, one each, which are independent.
    Repetitions,
    /// Messages of all runs, pooled. Messages of one run are not independent, so intervals are too narrow and p-values
    /// too small.
    Messages,
    /// No statistic, since there are too few values.
    None,
}

/// Report of a campaign.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CampaignReport {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) source: String,
    pub(crate) plot: PlotReport,
    pub(crate) runs: CampaignRuns,
    /// The meters of the campaign's runs; none if the runs have no energy.
    pub(crate) energy: Vec<EnergyReport>,
    /// The keys that are the same in every cell, with the names of campaign files.
    pub(crate) fixed: BTreeMap<String, Value>,
    /// Round-trip times in nanoseconds that QUIC assumed before its first measurement; none if no run spoke QUIC.
    pub(crate) initial_rtts_ns: BTreeSet<u64>,
    /// A figure for each level of the facet, and of every factor that the plot does not name.
    pub(crate) panels: Vec<Panel>,
    /// The parameters of the transports, by their names in the records, each with all values of the campaign's runs.
    pub(crate) parameters: BTreeMap<String, BTreeSet<String>>,
    pub(crate) links: Vec<LinkReport>,
    pub(crate) warnings: Vec<WarningReport>,
    /// Attempts that were disturbed and repeated; no other count includes them.
    pub(crate) repeated: Vec<RepeatedAttempts>,
    /// The ids of the campaign's claims, in the order of the report.
    pub(crate) claims: Vec<String>,
    /// The comparison of DL's two estimators; `None` for campaigns of other papers.
    pub(crate) estimators: Option<Estimators>,
}

/// Verdicts on claims by two estimators of a round-trip time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Estimators {
    /// The effect of the difference on the conclusion, in whole sentences.
    pub(crate) conclusion: String,
    pub(crate) pairs: Vec<EstimatorPair>,
}

/// A claim by both estimators.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EstimatorPair {
    pub(crate) says: String,
    /// The id of the claim by DL's own estimator, which times from the last job sent.
    pub(crate) last: String,
    /// The id of the claim with each result matched with its own job.
    pub(crate) matched: String,
    /// `true` if both estimators show a difference, in opposite directions.
    pub(crate) turned: bool,
}

/// The plot of a campaign's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PlotReport {
    pub(crate) kind: PlotKind,
    pub(crate) metric: String,
    /// The metric in words, as an axis names it.
    pub(crate) quantity: String,
    /// The meaning of the metric.
    pub(crate) meaning: String,
    /// The unit; empty for a ratio or a count.
    pub(crate) unit: String,
    pub(crate) x: String,
    /// The abscissa in words.
    pub(crate) abscissa: String,
    pub(crate) series: String,
    pub(crate) facet: Option<String>,
}

/// Counts of a campaign's runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CampaignRuns {
    #[serde(flatten)]
    pub(crate) counts: RunCounts,
    /// Number of finished runs that have warnings.
    pub(crate) warned: usize,
}

/// A meter from which runs have their energy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EnergyReport {
    /// The meter's name, as the command line takes it.
    pub(crate) meter: String,
    /// Measured or modelled energy.
    pub(crate) basis: mq_energy::Basis,
    /// Part of the machine whose energy is measured; `None` for a model.
    pub(crate) scope: Option<String>,
    /// Number of runs with this meter.
    pub(crate) runs: usize,
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Panel {
    /// The levels of the figure; empty for a campaign's only figure.
    pub(crate) levels: BTreeMap<String, String>,
    /// Description of the figure in a sentence; empty without a run.
    pub(crate) shows: String,
    /// Number of runs of the figure whose last attempt was disturbed, with a value or without.
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
    /// A cell for each level along the abscissa; `None` without a run.
    pub(crate) points: Vec<Option<Point>>,
}

/// Statistics of one cell, in the unit of the campaign's metric: a point, a bar or a box of a [`Panel`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    /// Number of repetitions.
    pub(crate) n: usize,
    /// Number of runs of the cell whose last attempt was disturbed, with a value or without.
    pub(crate) disturbed: usize,
    /// The value of each repetition, in their order.
    pub(crate) values: Vec<f64>,
    pub(crate) mean: f64,
    pub(crate) median: f64,
    /// Lower end of the 95 % interval of the mean, by bootstrap; `high` is its upper end.
    pub(crate) low: Option<f64>,
    pub(crate) high: Option<f64>,
    /// Basis of the interval.
    pub(crate) interval_of: Basis,
    #[serde(rename = "box")]
    pub(crate) quartiles: Option<BoxReport>,
}

/// A box with whiskers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct BoxReport {
    pub(crate) of: Basis,
    /// Number of values.
    pub(crate) n: u64,
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
    /// Lower end of the whiskers; `high` is their upper end.
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Number of values beyond the whiskers.
    pub(crate) outlier_count: usize,
    /// Values beyond the whiskers, thinned out evenly by rank if they are too many to draw; the first and the last
    /// stay.
    pub(crate) outliers: Vec<f64>,
}

/// Test of the differences between the series at one level of the abscissa.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SignificanceTest {
    pub(crate) x: String,
    pub(crate) of: Basis,
    /// Kruskal–Wallis test of the hypothesis that all series have one distribution.
    pub(crate) kruskal_wallis: Option<KruskalWallis>,
    pub(crate) pairs: Vec<Pair>,
}

/// Comparison of two series at one level of the abscissa: of `a` with `b`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Pair {
    pub(crate) a: String,
    pub(crate) b: String,
    /// p-value of Dunn's test, adjusted by Holm for the pairs of this level.
    pub(crate) p: Option<f64>,
    /// Share of all pairs of a value of `a` and one of `b` in which the value of `a` is less.
    pub(crate) below: f64,
    /// Share of these pairs in which the value of `a` is greater.
    pub(crate) above: f64,
    /// `above` less `below`.
    pub(crate) cliffs_delta: f64,
    /// Romano's word for the size of `cliffs_delta`.
    pub(crate) size: &'static str,
    /// Mean of `a` over the mean of `b`.
    pub(crate) ratio: Option<Interval>,
}

/// Distribution of the values within the runs of one cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Distribution {
    pub(crate) x: String,
    pub(crate) series: String,
    /// The name of the values, such as `latency`.
    pub(crate) of: String,
    pub(crate) count: u64,
    /// Bounds of the bins in ms, one more than `shares`; all series of an x have equal bounds.
    pub(crate) bounds_ms: Vec<f64>,
    /// Share of all values in each bin.
    pub(crate) shares: Vec<f64>,
    /// Percentiles: a percentage, and the value in ms that this percentage of values does not exceed.
    pub(crate) percentiles_ms: Vec<(f64, f64)>,
}

/// A direction of a link, over some runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LinkReport {
    /// The role at the link, such as `publisher`.
    pub(crate) of: String,
    pub(crate) name: String,
    /// `up` or `down`; `all` for a shared channel.
    pub(crate) direction: String,
    pub(crate) runs: usize,
    pub(crate) configured: LinkConfigured,
    pub(crate) measured: LinkMeasured,
}

/// Configuration of a direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LinkConfigured {
    pub(crate) delay_ns: Option<u64>,
    pub(crate) rate_bps: Option<u64>,
    pub(crate) queue: Option<String>,
    pub(crate) loss: Option<f64>,
}

/// Measurements of a direction of a link, summed over all runs with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LinkMeasured {
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    pub(crate) overflowed: u64,
    /// 99th percentile of the time between a packet's due time and its leaving the emulator, of the worst run.
    pub(crate) lateness_p99_ns: Option<u64>,
}

/// Warnings of one kind in finished runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct WarningReport {
    /// The kind's name in a record.
    pub(crate) kind: String,
    /// Number of runs with such a warning.
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

/// A disturbed attempt that was repeated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RepeatedAttempts {
    pub(crate) levels: BTreeMap<String, String>,
    pub(crate) repetition: u32,
    pub(crate) attempt: u32,
    pub(crate) warnings: Vec<Warning>,
    /// The error that ended the attempt early; `None` if it was completed.
    pub(crate) error: Option<String>,
}
