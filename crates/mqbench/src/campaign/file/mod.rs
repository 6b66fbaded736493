//! Campaign files: factors, levels and the plot.

mod combinations;
mod mistake;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use toml::{Spanned, Value};

use super::{
    changes::{self, Changes},
    claims,
    record::{self, METRIC_PREFIXES, METRICS},
};
use crate::{hosts::file::line_number, suggestion};
pub(crate) use combinations::Combination;
use combinations::{Exclusion, Variants, check_exclusions, combinations};
use mistake::Mistake;

/// A campaign: its cells, how often each is run, and the plot of its report.
#[derive(Clone, Debug)]
pub(crate) struct Campaign {
    /// The file's name without its ending, with its changes: `s22-fig4`, `s22-fig4@repeat=probe`.
    pub(crate) name: String,
    pub(crate) title: String,
    /// The paper's figure, such as `S22 Fig. 4`.
    pub(crate) source: String,
    /// Every combination of levels, with the levels that make it, in the order of the file.
    pub(crate) cells: Vec<Combination>,
    pub(crate) repetitions: u32,
    pub(crate) seed: u64,
    pub(crate) plot: Plot,
    /// The files of `profiles/claims` that the campaign is judged against.
    pub(crate) claims: Vec<String>,
}

/// The extent to which a campaign is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Extent {
    /// The file with its `[quick]` changes: a look.
    Quick,
    /// The file as it is, with the papers' own numbers.
    Full,
}

/// The plot of a campaign.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Plot {
    pub(crate) kind: PlotKind,
    /// The quantity of a run, see `Metric`.
    pub(crate) metric: String,
    /// The factor along the abscissa.
    pub(crate) x: String,
    /// The factor that tells lines or bars apart.
    pub(crate) series: String,
    /// The factor with a plot for each level, if there is one.
    pub(crate) facet: Option<String>,
    /// The values that a box is made of.
    #[serde(default)]
    pub(crate) boxes: BoxesOf,
}

/// The values that a box of a plot is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BoxesOf {
    /// Runs, where a cell has enough of them.
    #[default]
    Runs,
    /// The messages of all runs.
    Messages,
}

/// Form of a plot, as the papers have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PlotKind {
    /// Bars with the mean and its interval, from the link's delay as a baseline.
    Bars,
    /// Lines with intervals.
    Lines,
    /// Boxes with whiskers at 1.5 times the box's height (S21).
    BoxTukey,
    /// Boxes with whiskers at the 5th and 95th percentile (S22).
    BoxPercentiles,
}

impl PlotKind {
    /// Returns `true` if the plot draws boxes.
    pub(crate) fn is_boxes(self) -> bool {
        matches!(self, Self::BoxTukey | Self::BoxPercentiles)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    title: String,
    source: String,
    #[serde(default)]
    claims: Vec<String>,
    #[serde(default)]
    repetitions: Option<u32>,
    #[serde(default)]
    seed: Option<u64>,
    work: BTreeMap<Spanned<String>, Spanned<Value>>,
    factors: BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
    /// The levels of the factor `variant`.
    #[serde(default)]
    variants: Variants,
    /// Combinations that are left out.
    #[serde(default)]
    exclude: Vec<Spanned<Exclusion>>,
    #[serde(default)]
    quick: RawQuick,
    plot: Plot,
}

/// The changes for a quick run.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawQuick {
    repetitions: Option<u32>,
    work: BTreeMap<Spanned<String>, Spanned<Value>>,
    /// Factors that have fewer levels in a quick run, with these levels.
    factors: BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
}

impl Campaign {
    /// Reads a campaign file.
    ///
    /// # Errors
    /// A line that names the file, the line in it, the key, and a value that would be right.
    pub(crate) fn load(path: &Path, extent: Extent) -> anyhow::Result<Self> {
        let (path, name) = changes::file_and_name(path);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read the campaign {}", path.display()))?;
        Self::parse(&name, &text, extent).map_err(|wrong| {
            let file = path.display();
            match wrong.at {
                Some(at) => anyhow::anyhow!("{file}:{}: {}", line_number(&text, at), wrong.problem),
                None => anyhow::anyhow!("{file}: {}", wrong.problem),
            }
        })
    }

    fn parse(name: &str, text: &str, extent: Extent) -> Result<Self, Mistake> {
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let at = error.span().map(|span| span.start);
            Mistake::at(at, error.message().replace('\n', " "))
        })?;
        let (mut work, mut factors) = (raw.work, raw.factors);
        check_exclusions(&raw.exclude, &factors, &raw.quick.factors)?;
        let mut repetitions = raw.repetitions.unwrap_or(1);
        if extent == Extent::Quick {
            repetitions = raw.quick.repetitions.unwrap_or(1);
            replace(&mut work, raw.quick.work);
            replace(&mut factors, raw.quick.factors);
        }
        let changes = Changes::of(name).map_err(|problem| Mistake::at(None, problem))?;
        if let Some(key) = changes
            .keys()
            .find(|key| factors.keys().any(|factor| factor.get_ref() == key))
        {
            let problem = format!("@{key}: it is a factor of this file, and has its levels");
            return Err(Mistake::at(None, problem));
        }
        let cells = combinations(&work, &factors, &raw.variants, &raw.exclude, &changes)?;
        let Plot {
            x, series, facet, ..
        } = &raw.plot;
        for factor in [x, series].into_iter().chain(facet) {
            if !factors.keys().any(|known| known.get_ref() == factor) {
                let known = factors.keys().map(|known| known.get_ref().as_str());
                let problem = suggestion::unknown("factor", factor, known);
                return Err(Mistake::at(None, format!("the plot: {problem}")));
            }
        }
        let metric = &raw.plot.metric;
        if !record::is_metric(metric) {
            let known = METRICS.iter().map(|(name, ..)| *name);
            let problem = match metric.split_once(':') {
                Some((prefix, _)) if !METRIC_PREFIXES.contains(&prefix) => {
                    suggestion::unknown("prefix of a metric", prefix, METRIC_PREFIXES)
                }
                Some((_, name)) => suggestion::unknown("metric", name, known),
                None => suggestion::unknown("metric", metric, known),
            };
            return Err(Mistake::at(None, format!("the plot: {problem}")));
        }
        for paper in &raw.claims {
            if !claims::papers().any(|known| known == paper) {
                let problem = suggestion::unknown("file of claims", paper, claims::papers());
                return Err(Mistake::at(None, format!("claims: {problem}")));
            }
        }
        Ok(Self {
            name: name.to_owned(),
            title: if changes.is_empty() {
                raw.title
            } else {
                let (_, changes) = changes::base_and_changes(name);
                format!("{} ({changes})", raw.title)
            },
            source: raw.source,
            cells,
            repetitions,
            seed: raw.seed.unwrap_or(1),
            plot: raw.plot,
            claims: raw.claims,
        })
    }
}

/// Replaces keys of `all` by those of `by`. Keys are equal if their texts are, at any place.
fn replace<V>(all: &mut BTreeMap<Spanned<String>, V>, by: BTreeMap<Spanned<String>, V>) {
    for (key, value) in by {
        all.retain(|known, _| known.get_ref() != key.get_ref());
        all.insert(key, value);
    }
}
