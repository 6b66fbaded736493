//! Claims: sentences of papers, and the rule by which our figures are judged against them.

use std::collections::BTreeMap;

use anyhow::Context as _;
use mq_measure::stats::Interval;
use serde::{Deserialize, Serialize};

use super::record::{self, METRICS};
use crate::suggestion;

/// A sentence of a paper, in a form that can be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    /// The claim's name, which no other claim has.
    pub(crate) id: String,
    /// The campaign that measures the claim.
    pub(crate) campaign: String,
    /// Citation of the sentence, such as `S22 §5.1`.
    pub(crate) source: String,
    /// The sentence, in our words.
    pub(crate) says: String,
    /// The metric, as a campaign's plot names it.
    pub(crate) metric: String,
    /// Levels held fixed; runs of all others are pooled.
    #[serde(default)]
    pub(crate) at: BTreeMap<String, String>,
    /// The two levels that are compared, for `relative`, `ratio` and `order`.
    pub(crate) compare: Option<Compare>,
    pub(crate) form: ClaimForm,
    /// The printed figure, for `relative`, `ratio` and `value`.
    pub(crate) figure: Option<f64>,
    /// Expected order of `of` and `with` in an `order`. With a figure: the side of a bound.
    pub(crate) expected: Option<ExpectedOrder>,
    /// The factor along which a `trend` is judged, or whose levels a `differs` compares.
    pub(crate) along: Option<String>,
    /// Expected direction of a `trend`.
    pub(crate) direction: Option<TrendDirection>,
    /// The unit of a `value`; empty otherwise.
    #[serde(default)]
    pub(crate) unit: String,
    /// A remark on the claim.
    pub(crate) note: Option<String>,
}

/// Two levels of one factor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Compare {
    pub(crate) factor: String,
    /// The level that the claim is about.
    pub(crate) of: String,
    /// The level that `of` is compared with.
    pub(crate) with: String,
}

/// The form of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ClaimForm {
    /// `(of - with) / with`.
    Relative,
    /// `of / with`.
    Ratio,
    /// `of` itself.
    Value,
    /// The smaller of `of` and `with`.
    Order,
    /// Growth of the metric along the factor, from its first level to its last.
    Trend,
    /// Difference between any levels of the factor, by the Kruskal–Wallis test over runs.
    Differs,
}

/// Expected order of the two compared values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ExpectedOrder {
    Less,
    More,
    Alike,
}

/// Direction that a claim expects of a trend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TrendDirection {
    Grows,
    Shrinks,
    Flat,
}

/// The verdict of our runs on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    Reproduced,
    NotReproduced,
    Opposite,
    /// The interval of the value is too wide to say, or the value has no interval.
    Undecided,
    /// The value is a model's, which has the claim built in.
    NotTested,
    NotMeasured,
}

impl Verdict {
    /// All verdicts, in the order of tables.
    pub(crate) const ALL: [Self; 6] = [
        Self::Reproduced,
        Self::NotReproduced,
        Self::Opposite,
        Self::Undecided,
        Self::NotTested,
        Self::NotMeasured,
    ];

    /// Returns the verdict's name in reports.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::Opposite => "opposite",
            Self::Undecided => "undecided",
            Self::NotTested => "not tested",
            Self::NotMeasured => "not measured",
        }
    }

    /// Joins the verdict and its reason.
    fn since(self, why: impl Into<String>) -> (Self, String) {
        (self, why.into())
    }
}

/// Measured value of a claim in the claim's own form: a relative difference for `relative`, a ratio for `ratio`,
/// `order` and `trend` (there the last level's mean over the first's), a mean for `value`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Interval of the value at [`CONFIDENCE`], so that each end is a one-sided test at 5 %. `None` if there are too
    /// few runs.
    pub(crate) interval: Option<Interval>,
    /// The share of the compared value that lies above the link's own delay.
    pub(crate) effect: f64,
}

/// Largest deviation from no difference, or from a printed figure, that still agrees with it, as a share of the effect.
pub(crate) const TOLERANCE: f64 = 0.2;
/// Smallest difference that counts as better or worse, as a share of the whole value: a smaller one would not be
/// noticed.
pub(crate) const LEAST: f64 = 0.02;
/// Level of significance of a `differs`, for the p-value after Holm's adjustment.
pub(crate) const SIGNIFICANCE: f64 = 0.05;
/// Confidence of all intervals that claims are judged by.
pub(crate) const CONFIDENCE: f64 = 0.9;

impl Claim {
    /// Judges what was measured by the rule of the claim; returns the verdict with its reason. A `differs` has no
    /// value, and is judged by [`judge_test`](Self::judge_test).
    ///
    /// | claimed | reproduced: the whole interval is | opposite: it is |
    /// |---|---|---|
    /// | `relative`, `ratio`, `value` with a figure | within the tolerance of the figure | on the other side of no difference; never for a `value` |
    /// | a figure of no difference, `alike`, `flat` | within the tolerance of no difference | never |
    /// | a figure with `less` or `more`: a bound | beyond the figure | on the other side of no difference |
    /// | `less`, `more` | on that side by the least difference | on the other side by as much |
    /// | `grows`, `shrinks` | on that side by the tolerance of `flat`, and by the least difference | on the other side by as much |
    ///
    /// The [tolerance](TOLERANCE) is a share of the printed effect; where none is printed, of what lies above the link's
    /// own delay. An interval that has room for "reproduced" and for something else is `undecided`, so that a noisier
    /// run turns no verdict into "reproduced".
    pub(crate) fn judge(&self, measured: Option<&Measured>) -> (Verdict, String) {
        let Some(measured) = measured else {
            return Verdict::NotMeasured.since("no run measured it");
        };
        let Some(interval) = measured.interval else {
            return Verdict::Undecided.since("one run each, so without an interval");
        };
        let (low, high) = (interval.low, interval.high);
        let neutral = self.neutral();
        match self.region(measured.effect) {
            Region::Within(figure, tolerance) => {
                let (from, to) = (figure - tolerance, figure + tolerance);
                // 0 if the claim is that there is no difference.
                let wanted = neutral.map(|neutral| (neutral, side(figure, figure, neutral)));
                if from <= low && high <= to {
                    return Verdict::Reproduced.since(match wanted {
                        Some((_, 0)) => "no difference either",
                        Some(_) => "the same direction and size",
                        None => "the same size",
                    });
                }
                if let Some((neutral, wanted @ (-1 | 1))) = wanted
                    && side(low, high, neutral) == -wanted
                {
                    return Verdict::Opposite.since("the other way round");
                }
                if high < from || low > to {
                    return Verdict::NotReproduced.since(match wanted {
                        Some((_, 0)) => "there is a difference",
                        _ => "another size",
                    });
                }
                Verdict::Undecided.since("the interval is wider than the tolerance")
            }
            Region::Beyond(bound, wanted, least) => {
                if side(low, high, bound) == wanted {
                    return Verdict::Reproduced.since(if self.figure.is_some() {
                        "all of it is beyond the bound"
                    } else {
                        "the same direction"
                    });
                }
                if let Some(neutral) = neutral
                    && side(low, high, neutral - f64::from(wanted) * least) == -wanted
                {
                    return Verdict::Opposite.since("the other way round");
                }
                if side(low, high, bound) == -wanted {
                    return Verdict::NotReproduced.since(if self.figure.is_some() {
                        "none of it is beyond the bound"
                    } else {
                        "no difference that counts"
                    });
                }
                Verdict::Undecided.since("the interval has room for more than one verdict")
            }
        }
    }

    /// Judges a `differs` by the p-value of its test, adjusted for all tests of the paper.
    ///
    /// A p-value that is not significant shows no equality, so that no test is `opposite`.
    pub(crate) fn judge_test(holm_p: f64) -> (Verdict, String) {
        if holm_p < SIGNIFICANCE {
            Verdict::Reproduced.since("the runs differ significantly")
        } else {
            Verdict::NotReproduced.since("no significant difference of the runs")
        }
    }

    /// Returns the range of values that agree with the claim.
    fn region(&self, effect: f64) -> Region {
        let neutral = self.neutral();
        let same = TOLERANCE * effect;
        let beyond = |wanted: i8, least: f64| {
            let bound = neutral.unwrap_or_default() + f64::from(wanted) * least;
            Region::Beyond(bound, wanted, least)
        };
        if let Some(figure) = self.figure {
            return match (self.expected, neutral) {
                (Some(ExpectedOrder::More), _) => Region::Beyond(figure, 1, 0.0),
                (Some(ExpectedOrder::Less), _) => Region::Beyond(figure, -1, 0.0),
                (_, Some(neutral)) if side(figure, figure, neutral) == 0 => {
                    Region::Within(figure, same)
                }
                (_, Some(neutral)) => Region::Within(figure, TOLERANCE * (figure - neutral).abs()),
                (_, None) => Region::Within(figure, same * figure.abs()),
            };
        }
        let notable = same.max(LEAST);
        match (self.expected, self.direction) {
            (Some(ExpectedOrder::Less), _) => beyond(-1, LEAST),
            (Some(ExpectedOrder::More), _) => beyond(1, LEAST),
            (_, Some(TrendDirection::Shrinks)) => beyond(-1, notable),
            (_, Some(TrendDirection::Grows)) => beyond(1, notable),
            _ => Region::Within(neutral.unwrap_or_default(), same),
        }
    }

    /// Returns the value that means no difference, in the claim's form; a `value` and a `differs` have none.
    fn neutral(&self) -> Option<f64> {
        match self.form {
            ClaimForm::Relative => Some(0.0),
            ClaimForm::Ratio | ClaimForm::Order | ClaimForm::Trend => Some(1.0),
            ClaimForm::Value | ClaimForm::Differs => None,
        }
    }

    /// Returns the side of no difference on which the whole interval lies: 1 above, -1 below, 0 neither. `None` for a
    /// `value` and a `differs`, which have no sides.
    pub(crate) fn side_of(&self, measured: &Interval) -> Option<i8> {
        Some(side(measured.low, measured.high, self.neutral()?))
    }

    /// Returns the problem of a claim with missing or impossible fields; `None` for a good claim.
    fn mistake(&self) -> Option<&'static str> {
        match self.form {
            ClaimForm::Relative | ClaimForm::Ratio | ClaimForm::Value if self.figure.is_none() => {
                Some("this form needs a `figure`")
            }
            ClaimForm::Relative | ClaimForm::Ratio | ClaimForm::Order if self.compare.is_none() => {
                Some("this form needs `compare`")
            }
            ClaimForm::Order if self.figure.is_some() => Some("an order has no `figure`"),
            ClaimForm::Order if self.expected.is_none() => {
                Some("an order needs `expected`: `less`, `more` or `alike`")
            }
            ClaimForm::Trend if self.along.is_none() || self.direction.is_none() => {
                Some("a trend needs `along`, and `direction`: `grows`, `shrinks` or `flat`")
            }
            ClaimForm::Differs if self.along.is_none() => {
                Some("this form needs `along`: the factor whose levels differ")
            }
            _ => None,
        }
    }
}

/// Range in which a measured value agrees with a claim.
enum Region {
    /// A value, and the largest distance from it.
    Within(f64, f64),
    /// A bound, its side (1 above, -1 below), and the smallest difference that counts.
    Beyond(f64, i8, f64),
}

/// Returns the side of `neutral` on which the whole interval lies: 1 above, -1 below, 0 neither.
fn side(low: f64, high: f64, neutral: f64) -> i8 {
    i8::from(low > neutral) - i8::from(high < neutral)
}

macro_rules! shipped {
    ($($name:literal)*) => {
        &[$((
            concat!("profiles/claims/", $name, ".toml"),
            include_str!(concat!("../../claims/", $name, ".toml")),
        ),)*]
    };
}

/// The claims that ship with the program: files and texts.
const SHIPPED: &[(&str, &str)] = shipped! { "w20" "s21" "s22" "dl" "lw26" };

/// Lists the papers' names in campaign files: `w20` of `profiles/claims/w20.toml`.
pub(super) fn papers() -> impl Iterator<Item = &'static str> {
    let files = SHIPPED.iter().map(|(file, _)| *file);
    files.filter_map(|file| file.rsplit('/').next()?.strip_suffix(".toml"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    claim: Vec<Claim>,
}

/// Reads all claims that ship with the program.
///
/// # Errors
/// One line that names the file and the claim, and says what is wrong.
pub(crate) fn shipped() -> anyhow::Result<Vec<Claim>> {
    let mut all: Vec<Claim> = Vec::new();
    for (file, text) in SHIPPED {
        for claim in parse(file, text)? {
            if all.iter().any(|other| other.id == claim.id) {
                anyhow::bail!("{file}: two claims are called {}", claim.id);
            }
            all.push(claim);
        }
    }
    Ok(all)
}

/// Parses the claims of one file; `file` is for messages.
pub(crate) fn parse(file: &str, text: &str) -> anyhow::Result<Vec<Claim>> {
    let raw: RawFile = toml::from_str(text)
        .map_err(|error| anyhow::anyhow!(error.message().replace('\n', " ")))
        .context(file.to_owned())?;
    for claim in &raw.claim {
        if let Some(mistake) = claim.mistake() {
            anyhow::bail!("{file}: {}: {mistake}", claim.id);
        }
        if !record::is_metric(&claim.metric) {
            let known = METRICS.iter().map(|(name, ..)| *name);
            let problem = suggestion::unknown("metric", &claim.metric, known);
            anyhow::bail!("{file}: {}: {problem}", claim.id);
        }
    }
    Ok(raw.claim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(form: &str, rest: &str) -> Claim {
        let text = format!(
            "[[claim]]\nid = 'a'\ncampaign = 'c'\nsource = 's'\nsays = ''\nmetric = 'latency_mean'\n\
             form = '{form}'\ncompare = {{ factor = 'transport', of = 'quic', with = 'tls' }}\n{rest}"
        );
        parse("x.toml", &text).unwrap().remove(0)
    }

    fn verdict(claim: &Claim, low: f64, high: f64) -> Verdict {
        verdict_of(claim, low, high, 1.0)
    }

    fn verdict_of(claim: &Claim, low: f64, high: f64, effect: f64) -> Verdict {
        let interval = Interval {
            estimate: f64::midpoint(low, high),
            low,
            high,
            confidence: CONFIDENCE,
        };
        let measured = Measured {
            interval: Some(interval),
            effect,
        };
        claim.judge(Some(&measured)).0
    }

    #[test]
    fn shipped_claims_are_right() {
        assert!(!shipped().unwrap().is_empty());
    }

    #[test]
    fn a_printed_difference_asks_for_direction_and_size() {
        use Verdict::{NotReproduced, Opposite, Reproduced, Undecided};
        let claim = claim("relative", "figure = -0.255");
        // The tolerance is a fifth: 0.051.
        for (low, high, expected) in [
            (-0.30, -0.21, Reproduced),
            (-0.40, -0.29, Undecided),
            (-0.90, 0.90, Undecided),
            (-0.40, -0.31, NotReproduced),
            (-0.19, -0.10, NotReproduced),
            (-0.19, 0.01, NotReproduced),
            (0.01, 0.20, Opposite),
        ] {
            assert_eq!(verdict(&claim, low, high), expected, "{low} to {high}");
        }
        assert_eq!(claim.judge(None).0, Verdict::NotMeasured);
        let single = Measured {
            interval: None,
            effect: 1.0,
        };
        assert_eq!(claim.judge(Some(&single)).0, Undecided);
    }

    #[test]
    fn alike_means_within_a_fifth_of_what_lies_above_the_links_delay() {
        use Verdict::{NotReproduced, Reproduced, Undecided};
        for claim in [
            claim("ratio", "figure = 1.0"),
            claim("order", "expected = 'alike'"),
            claim("trend", "along = 'loss'\ndirection = 'flat'"),
        ] {
            assert_eq!(verdict(&claim, 0.81, 1.19), Reproduced);
            assert_eq!(verdict(&claim, 0.7, 1.0), Undecided);
            assert_eq!(verdict(&claim, 1.21, 1.3), NotReproduced);
            // A tenth of the delay is above the link's.
            assert_eq!(verdict_of(&claim, 0.99, 1.01, 0.1), Reproduced);
            assert_eq!(verdict_of(&claim, 0.97, 1.01, 0.1), Undecided);
            assert_eq!(verdict_of(&claim, 1.03, 1.1, 0.1), NotReproduced);
        }
    }

    #[test]
    fn a_value_may_be_off_by_a_fifth_of_its_effect() {
        let claim = claim("value", "figure = 40.0");
        assert_eq!(verdict(&claim, 33.0, 47.0), Verdict::Reproduced);
        assert_eq!(verdict(&claim, 47.0, 49.0), Verdict::Undecided);
        assert_eq!(verdict(&claim, 48.1, 49.0), Verdict::NotReproduced);
        // 25 of the 40 are the link's: 3 of 15.
        assert_eq!(verdict_of(&claim, 37.1, 42.9, 0.375), Verdict::Reproduced);
        assert_eq!(
            verdict_of(&claim, 43.1, 45.0, 0.375),
            Verdict::NotReproduced
        );
    }

    #[test]
    fn a_bound_asks_for_its_side_alone() {
        use Verdict::{NotReproduced, Opposite, Reproduced, Undecided};
        let value = claim("value", "figure = 40.0\nexpected = 'more'");
        assert_eq!(verdict(&value, 40.1, 90.0), Reproduced);
        assert_eq!(verdict(&value, 39.9, 41.0), Undecided);
        assert_eq!(verdict(&value, 20.0, 30.0), NotReproduced);
        let ratio = claim("ratio", "figure = 2.0\nexpected = 'more'");
        assert_eq!(verdict(&ratio, 2.1, 7.0), Reproduced);
        assert_eq!(verdict(&ratio, 1.5, 7.0), Undecided);
        assert_eq!(verdict(&ratio, 0.8, 1.2), NotReproduced);
        assert_eq!(verdict(&ratio, 0.5, 0.8), Opposite);
        let below = claim("relative", "figure = -0.2\nexpected = 'less'");
        assert_eq!(verdict(&below, -0.5, -0.3), Reproduced);
        assert_eq!(verdict(&below, -0.3, -0.1), Undecided);
    }

    #[test]
    fn better_asks_for_a_difference_that_counts() {
        use Verdict::{NotReproduced, Opposite, Reproduced, Undecided};
        let below = claim("order", "expected = 'less'");
        for (low, high, expected) in [
            (0.2, 0.97, Reproduced),
            (0.9, 0.99, Undecided),
            (0.9, 1.1, Undecided),
            (0.985, 0.995, NotReproduced),
            (0.99, 1.1, NotReproduced),
            (1.03, 1.2, Opposite),
        ] {
            assert_eq!(verdict(&below, low, high), expected, "{low} to {high}");
        }
    }

    #[test]
    fn nothing_is_flat_and_grows() {
        let [grows, shrinks, flat] = ["grows", "shrinks", "flat"]
            .map(|way| claim("trend", &format!("along = 'loss'\ndirection = '{way}'")));
        for effect in [0.0, 0.05, 0.3, 1.0] {
            for low in (50..150).map(|percent| f64::from(percent) / 100.0) {
                for width in [0.0, 0.01, 0.05, 0.2, 0.5] {
                    let all = [&grows, &shrinks, &flat];
                    let verdicts = all.map(|claim| verdict_of(claim, low, low + width, effect));
                    let count = verdicts.iter().filter(|one| **one == Verdict::Reproduced);
                    assert!(count.count() <= 1, "{low}, {width}, {effect}: {verdicts:?}");
                }
            }
        }
        assert_eq!(verdict(&grows, 1.21, 9.0), Verdict::Reproduced);
        assert_eq!(verdict(&grows, 0.5, 0.79), Verdict::Opposite);
    }

    /// A narrower interval never loses the verdict "reproduced", and a wider one never gains it.
    #[test]
    fn a_wider_interval_is_never_reproduced_where_a_narrower_one_is_not() {
        for claim in [
            claim("relative", "figure = -0.255"),
            claim("ratio", "figure = 1.0"),
            claim("value", "figure = 1.0"),
            claim("ratio", "figure = 0.8\nexpected = 'less'"),
            claim("order", "expected = 'less'"),
            claim("trend", "along = 'loss'\ndirection = 'grows'"),
        ] {
            for middle in (-200..200).map(|percent| f64::from(percent) / 100.0) {
                let reproduced = [0.3, 0.1, 0.03, 0.01, 0.0].map(|reach| {
                    verdict(&claim, middle - reach, middle + reach) == Verdict::Reproduced
                });
                assert!(reproduced.is_sorted(), "{claim:?} {middle}: {reproduced:?}");
            }
        }
    }

    #[test]
    fn mistakes_name_file_and_claim() {
        let whole = "id = 'a'\ncampaign = 'c'\nsource = 's'\nsays = ''\nmetric = 'delta'\n";
        for (rest, says) in [
            ("form = 'value'", "x.toml: a: this form needs a `figure`"),
            ("form = 'ratio'\nfigure = 1.0", "needs `compare`"),
            ("form = 'order'", "needs `compare`"),
            ("form = 'trend'", "needs `along`"),
            ("form = 'differs'", "needs `along`"),
            ("form = 'value'\nfigrue = 1", "figrue"),
            ("form = 'guess'", "guess"),
        ] {
            let error = parse("x.toml", &format!("[[claim]]\n{whole}{rest}")).unwrap_err();
            let error = format!("{error:#}");
            assert!(
                error.starts_with("x.toml") && error.contains(says),
                "{error}"
            );
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
