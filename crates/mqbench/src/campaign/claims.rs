//! Claims: sentences of papers, and the rule by which our figures are judged against them.

use std::collections::BTreeMap;

use anyhow::Context as _;
use mq_measure::stats::Interval;
use serde::{Deserialize, Serialize};

/// A sentence of a paper, in a form that can be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    /// The claim's name, which no other claim has.
    pub(crate) id: String,
    /// The campaign that measures it.
    pub(crate) campaign: String,
    /// Its place in the papers, such as `S22 §5.1`.
    pub(crate) source: String,
    /// The sentence, in our words.
    pub(crate) says: String,
    /// The quantity, as a campaign's plot names it.
    pub(crate) metric: String,
    /// Levels held fixed; runs of all others are pooled.
    #[serde(default)]
    pub(crate) at: BTreeMap<String, String>,
    /// The two levels that are compared, for `relative`, `ratio` and `order`.
    pub(crate) compare: Option<Compare>,
    pub(crate) form: Form,
    /// The printed figure, for `relative`, `ratio` and `value`.
    pub(crate) figure: Option<f64>,
    /// For `order`: how `of` compares with `with`. With a figure: the side of a bound.
    pub(crate) expected: Option<Expected>,
    /// The factor that a `trend` runs along.
    pub(crate) along: Option<String>,
    /// Which way a `trend` goes.
    pub(crate) direction: Option<Direction>,
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
    /// The level that it is compared with.
    pub(crate) with: String,
}

/// The form of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Form {
    /// `(of - with) / with`.
    Relative,
    /// `of / with`.
    Ratio,
    /// `of` itself.
    Value,
    /// Which of the two is smaller.
    Order,
    /// Whether the quantity grows along the factor, from its first level to its last.
    Trend,
}

/// An order of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Expected {
    Less,
    More,
    Alike,
}

/// Which way a trend goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Direction {
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
    NotMeasured,
}

impl Verdict {
    /// In words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::Opposite => "opposite",
            Self::NotMeasured => "not measured",
        }
    }

    /// The verdict with its reason.
    fn since(self, why: impl Into<String>) -> (Self, String) {
        (self, why.into())
    }
}

impl Claim {
    /// The rule: the verdict on the measured value, with the reason.
    ///
    /// `measured` is in the claim's own form: a relative difference for `relative`, a ratio for
    /// `ratio`, `order` and `trend` (there the last level's mean over the first's), a mean for
    /// `value`. Its interval is of 95 % confidence.
    ///
    /// | claimed | reproduced | opposite |
    /// |---|---|---|
    /// | `relative`, `ratio` | the whole interval is on the figure's side of no difference, and, made wider by the tolerance at both ends, has the figure in it | the whole interval is on the other side |
    /// | the same, with a figure of no difference; `alike`; `flat` | the interval, made wider by the tolerance, has no difference in it | never |
    /// | `value` | the interval, made wider by the tolerance, has the figure in it | never |
    /// | a figure with `less` or `more`: a bound | the whole interval is beyond the figure, on that side | as without it |
    /// | `less`, `more`, `grows`, `shrinks` | the whole interval is on the claimed side of 1 | the whole interval is on the other side |
    ///
    /// The tolerance is a quarter of the printed effect and at least 0.05 for `relative` and
    /// `ratio`, a tenth of the figure for `value`, 0.1 for `alike`, and 0.25 for `flat`. Papers print neither
    /// their spread nor their stacks' settings, so a stricter rule would mean nothing. Any other measured value
    /// is `not reproduced`.
    pub(crate) fn judge(&self, measured: Option<&Interval>) -> (Verdict, String) {
        let Some(measured) = measured else {
            return Verdict::NotMeasured.since("no run measured it");
        };
        let Some(neutral) = self.neutral() else {
            return self.judge_value(measured);
        };
        // The claimed side, the printed figure, and its tolerance.
        let (wanted, figure, tolerance) =
            match (self.form, self.expected, self.direction) {
                (Form::Order, Some(Expected::Less), _)
                | (Form::Trend, _, Some(Direction::Shrinks)) => (-1, None, 0.0),
                (Form::Order, Some(Expected::More), _)
                | (Form::Trend, _, Some(Direction::Grows)) => (1, None, 0.0),
                (Form::Order, ..) => (0, Some(1.0), 0.1),
                (Form::Trend, ..) => (0, Some(1.0), 0.25),
                _ => {
                    let figure = self.figure.unwrap_or(neutral);
                    let tolerance = (0.25 * (figure - neutral).abs()).max(0.05);
                    (side(figure, figure, neutral), Some(figure), tolerance)
                }
            };
        let found = side(measured.low, measured.high, neutral);
        let near = self
            .is_beyond(measured)
            .unwrap_or_else(|| figure.is_none_or(|figure| within(measured, figure, tolerance)));
        if wanted == 0 {
            return if near {
                Verdict::Reproduced.since("no difference either")
            } else {
                Verdict::NotReproduced.since("there is a difference")
            };
        }
        match found {
            0 => Verdict::NotReproduced.since("the interval shows no difference"),
            found if found != wanted => Verdict::Opposite.since("the other way round"),
            _ if near => Verdict::Reproduced.since("the same direction"),
            _ if self.is_beyond(measured).is_some() => Verdict::NotReproduced
                .since("the same direction, but not all of it beyond the bound"),
            _ => Verdict::NotReproduced.since(format!(
                "the same direction, but farther from it than {tolerance:.2}"
            )),
        }
    }

    /// The value that means no difference, in the claim's form; a `value` has none.
    fn neutral(&self) -> Option<f64> {
        match self.form {
            Form::Relative => Some(0.0),
            Form::Ratio | Form::Order | Form::Trend => Some(1.0),
            Form::Value => None,
        }
    }

    /// The side of no difference that has the whole interval: 1 above, -1 below, 0 neither. `None` for a
    /// `value`, which has no sides.
    pub(crate) fn side_of(&self, measured: &Interval) -> Option<i8> {
        Some(side(measured.low, measured.high, self.neutral()?))
    }

    /// For a bound: whether the whole interval is on the claimed side.
    fn is_beyond(&self, measured: &Interval) -> Option<bool> {
        let (figure, wanted) = match (self.figure?, self.expected?) {
            (_, Expected::Alike) => return None,
            (figure, Expected::More) => (figure, 1),
            (figure, Expected::Less) => (figure, -1),
        };
        Some(side(measured.low, measured.high, figure) == wanted)
    }

    fn judge_value(&self, measured: &Interval) -> (Verdict, String) {
        if let Some(beyond) = self.is_beyond(measured) {
            return if beyond {
                Verdict::Reproduced.since("all of it is beyond the bound")
            } else {
                Verdict::NotReproduced.since("not all of it is beyond the bound")
            };
        }
        let figure = self.figure.unwrap_or_default();
        if within(measured, figure, 0.1 * figure.abs()) {
            Verdict::Reproduced.since("within a tenth of it")
        } else {
            Verdict::NotReproduced.since("farther from it than a tenth")
        }
    }

    /// The problem of a claim with missing or impossible fields.
    fn mistake(&self) -> Option<&'static str> {
        match self.form {
            Form::Relative | Form::Ratio | Form::Value if self.figure.is_none() => {
                Some("this form needs a `figure`")
            }
            Form::Relative | Form::Ratio | Form::Order if self.compare.is_none() => {
                Some("this form needs `compare`")
            }
            Form::Order if self.figure.is_some() => Some("an order has no `figure`"),
            Form::Order if self.expected.is_none() => {
                Some("an order needs `expected`: `less`, `more` or `alike`")
            }
            Form::Trend if self.along.is_none() || self.direction.is_none() => {
                Some("a trend needs `along`, and `direction`: `grows`, `shrinks` or `flat`")
            }
            _ => None,
        }
    }
}

/// The side of `neutral` that has the whole interval: 1 above, -1 below, 0 neither.
fn side(low: f64, high: f64, neutral: f64) -> i8 {
    i8::from(low > neutral) - i8::from(high < neutral)
}

fn within(interval: &Interval, figure: f64, tolerance: f64) -> bool {
    (interval.low - tolerance..=interval.high + tolerance).contains(&figure)
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
const SHIPPED: &[(&str, &str)] = shipped! { "w20" "s21" "s22" "dl" };

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    claim: Vec<Claim>,
}

/// All claims that ship with the program.
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

/// The claims of one file; `file` is for messages.
pub(super) fn parse(file: &str, text: &str) -> anyhow::Result<Vec<Claim>> {
    let raw: RawFile = toml::from_str(text)
        .map_err(|error| anyhow::anyhow!(error.message().replace('\n', " ")))
        .context(file.to_owned())?;
    for claim in &raw.claim {
        if let Some(mistake) = claim.mistake() {
            anyhow::bail!("{file}: {}: {mistake}", claim.id);
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
        let interval = Interval {
            estimate: f64::midpoint(low, high),
            low,
            high,
            confidence: 0.95,
        };
        claim.judge(Some(&interval)).0
    }

    #[test]
    fn shipped_claims_are_right() {
        assert!(!shipped().unwrap().is_empty());
    }

    #[test]
    fn a_relative_figure_asks_for_direction_and_size() {
        use Verdict::{NotReproduced, Opposite, Reproduced};
        let claim = claim("relative", "figure = -0.255");
        // The tolerance is a quarter: 0.06375.
        for (low, high, expected) in [
            (-0.28, -0.22, Reproduced),
            (-0.40, -0.31, Reproduced),
            (-0.40, -0.33, NotReproduced),
            (-0.19, -0.10, NotReproduced),
            (-0.30, 0.01, NotReproduced),
            (0.01, 0.20, Opposite),
        ] {
            assert_eq!(verdict(&claim, low, high), expected, "{low} to {high}");
        }
        assert_eq!(claim.judge(None).0, Verdict::NotMeasured);
    }

    #[test]
    fn small_effects_have_the_least_tolerance() {
        let claim = claim("ratio", "figure = 0.97");
        assert_eq!(verdict(&claim, 0.90, 0.93), Verdict::Reproduced);
        assert_eq!(verdict(&claim, 0.80, 0.91), Verdict::NotReproduced);
    }

    #[test]
    fn alike_is_a_ratio_of_one() {
        let claim = claim("ratio", "figure = 1.0");
        assert_eq!(verdict(&claim, 0.9, 1.1), Verdict::Reproduced);
        assert_eq!(verdict(&claim, 1.02, 1.04), Verdict::Reproduced);
        assert_eq!(verdict(&claim, 1.06, 1.1), Verdict::NotReproduced);
    }

    #[test]
    fn a_value_may_be_a_tenth_off() {
        let claim = claim("value", "figure = 40.0");
        assert_eq!(verdict(&claim, 43.9, 45.0), Verdict::Reproduced);
        assert_eq!(verdict(&claim, 44.1, 45.0), Verdict::NotReproduced);
    }

    #[test]
    fn a_bound_asks_for_its_side_alone() {
        let value = claim("value", "figure = 40.0\nexpected = 'more'");
        assert_eq!(verdict(&value, 40.1, 90.0), Verdict::Reproduced);
        assert_eq!(verdict(&value, 39.9, 41.0), Verdict::NotReproduced);
        assert_eq!(verdict(&value, 20.0, 30.0), Verdict::NotReproduced);
        let ratio = claim("ratio", "figure = 2.0\nexpected = 'more'");
        assert_eq!(verdict(&ratio, 2.1, 7.0), Verdict::Reproduced);
        assert_eq!(verdict(&ratio, 1.5, 7.0), Verdict::NotReproduced);
        assert_eq!(verdict(&ratio, 0.8, 1.2), Verdict::NotReproduced);
        assert_eq!(verdict(&ratio, 0.5, 0.8), Verdict::Opposite);
        let below = claim("relative", "figure = -0.2\nexpected = 'less'");
        assert_eq!(verdict(&below, -0.5, -0.3), Verdict::Reproduced);
        assert_eq!(verdict(&below, -0.3, -0.1), Verdict::NotReproduced);
    }

    #[test]
    fn order_and_trend_have_a_side_only() {
        let below = claim("order", "expected = 'less'");
        assert_eq!(verdict(&below, 0.2, 0.9), Verdict::Reproduced);
        assert_eq!(verdict(&below, 0.9, 1.1), Verdict::NotReproduced);
        assert_eq!(verdict(&below, 1.1, 1.2), Verdict::Opposite);
        let grows = claim("trend", "along = 'loss'\ndirection = 'grows'");
        assert_eq!(verdict(&grows, 1.1, 9.0), Verdict::Reproduced);
        assert_eq!(verdict(&grows, 0.5, 0.9), Verdict::Opposite);
        let alike = claim("order", "expected = 'alike'");
        assert_eq!(verdict(&alike, 1.05, 1.08), Verdict::Reproduced);
        assert_eq!(verdict(&alike, 0.5, 0.8), Verdict::NotReproduced);
        let flat = claim("trend", "along = 'loss'\ndirection = 'flat'");
        assert_eq!(verdict(&flat, 1.1, 1.3), Verdict::Reproduced);
        assert_eq!(verdict(&flat, 1.3, 1.6), Verdict::NotReproduced);
    }

    #[test]
    fn mistakes_name_file_and_claim() {
        let whole = "id = 'a'\ncampaign = 'c'\nsource = 's'\nsays = ''\nmetric = 'm'\n";
        for (rest, says) in [
            ("form = 'value'", "x.toml: a: this form needs a `figure`"),
            ("form = 'ratio'\nfigure = 1.0", "needs `compare`"),
            ("form = 'order'", "needs `compare`"),
            ("form = 'trend'", "needs `along`"),
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
