//! The verdict on a claim, from the runs of its campaign.

use mq_measure::stats::{self, Estimate, Interval};

use super::{
    claim_tests,
    metric_values::{FinishedRuns, Levels, Metric},
    model::{Basis, ClaimBeside, ClaimReport},
};
use crate::campaign::claims::{CONFIDENCE, Claim, ClaimForm, Measured, TrendDirection, Verdict};

/// Smallest gain, as the distance of a ξ from 1, of which a tolerance is a share. A gain of zero would leave no
/// tolerance.
const LEAST_GAIN: f64 = 0.25;

/// Judges all claims, each by its campaign and by the same campaign with changes beside it.
pub(crate) fn judge_all(claims: &[Claim], all: &[FinishedRuns]) -> Vec<ClaimReport> {
    let mut reports: Vec<_> = claims.iter().map(|claim| judge(claim, all)).collect();
    claim_tests::adjust(&mut reports);
    reports
}

fn judge(claim: &Claim, all: &[FinishedRuns]) -> ClaimReport {
    let mine = all.iter().find(|one| one.is_held_against(claim));
    let beside = all.iter().filter_map(|one| {
        let changes = one.changes_beside(claim)?.to_owned();
        let ClaimReport {
            verdict,
            measured,
            test,
            of,
            ..
        } = by_runs_of(claim, Some(one));
        Some(ClaimBeside {
            changes,
            verdict,
            measured,
            test,
            of,
        })
    });
    ClaimReport {
        beside: beside.collect(),
        ..by_runs_of(claim, mine)
    }
}

fn by_runs_of(claim: &Claim, mine: Option<&FinishedRuns>) -> ClaimReport {
    let metric = Metric::parse(&claim.metric);
    if claim.form == ClaimForm::Differs {
        return claim_tests::report(claim, mine, &metric);
    }
    let found = mine.and_then(|finished| Found::of(claim, finished, &metric));
    let measured = found.as_ref().map(|found| found.measured(claim));
    let (mut verdict, mut why) = claim.judge(measured.as_ref());
    if let (ClaimForm::Trend, Some(finished), Verdict::Reproduced) = (claim.form, mine, verdict)
        && let Some(steps) = against(claim, finished, &metric)
    {
        verdict = Verdict::NotReproduced;
        why = format!("the ends are right, but {steps} of the steps between go the other way");
    }
    if measured.is_some()
        && let Some(finished) = mine
        && let Some(basis) = finished.energy_basis(&metric)
    {
        if finished.is_modelled(&metric) {
            verdict = Verdict::NotTested;
            "a model has it built in".clone_into(&mut why);
        }
        why.push_str(&format!("; ours is {basis}"));
    }
    let interval = measured.and_then(|measured| measured.interval);
    ClaimReport {
        claim: claim.clone(),
        verdict,
        why,
        measured: found.map(|found| interval.unwrap_or_else(|| found.point(claim))),
        test: None,
        of: match interval {
            Some(_) => Basis::Repetitions,
            None => Basis::None,
        },
        beside: Vec::new(),
    }
}

/// Value of a claim in the runs of its levels.
struct Found {
    /// The mean of `of`, or its quotient by the mean of `with`.
    value: f64,
    /// The value with its uncertainty; `None` with fewer than two runs a cell.
    estimate: Option<Estimate>,
    /// See [`Measured::effect`].
    effect: f64,
}

impl Found {
    fn of(claim: &Claim, finished: &FinishedRuns, metric: &Metric) -> Option<Self> {
        let (of, with) = sides(claim, finished);
        let mean = |levels| stats::mean(&finished.values(metric, levels));
        let estimate = |levels| finished.estimate(metric, levels);
        let above = |levels| finished.link_delay(metric, levels).unwrap_or_default();
        if claim.form == ClaimForm::Value {
            let estimate = estimate(&of);
            let value = estimate.map_or_else(|| mean(&of), |one| Some(one.value))?;
            let effect = above_delay(claim.figure?, above(&of));
            return Some(Self {
                value,
                estimate,
                effect,
            });
        }
        let with = with?;
        let delay = above(&with);
        let effect = |compared: f64| match metric.xi {
            Some(_) => (1.0 - compared).abs().max(LEAST_GAIN) / compared,
            None => above_delay(compared, delay),
        };
        if let (Some(of), Some(with)) = (estimate(&of), estimate(&with)) {
            return Some(Self::of_two(&of, &with, effect));
        }
        let (of, with) = (mean(&of)?, mean(&with)?);
        let value = of / with;
        value.is_finite().then(|| Self {
            value,
            estimate: None,
            effect: effect(with),
        })
    }

    /// Builds a quotient. Its effect is the smallest one within the interval of the divisor: the tolerance is a share
    /// of the effect, and may not be too large by chance.
    fn of_two(of: &Estimate, with: &Estimate, effect: impl Fn(f64) -> f64) -> Self {
        let Interval { low, high, .. } = with.interval(CONFIDENCE);
        Self {
            value: of.value / with.value,
            estimate: of.over(with),
            effect: effect(low).min(effect(high)),
        }
    }

    fn measured(&self, claim: &Claim) -> Measured {
        let interval = self.estimate;
        let interval = interval.and_then(|one| one.interval_of_positive(CONFIDENCE));
        Measured {
            interval: interval.map(|interval| in_form(claim, interval)),
            effect: self.effect,
        }
    }

    /// Returns the interval of the value alone, without width.
    fn point(&self, claim: &Claim) -> Interval {
        let point = Interval {
            estimate: self.value,
            low: self.value,
            high: self.value,
            confidence: CONFIDENCE,
        };
        in_form(claim, point)
    }
}

/// Returns the share of a time that lies above the link's own delay.
fn above_delay(time: f64, delay: f64) -> f64 {
    ((time - delay) / time).clamp(0.0, 1.0)
}

/// Converts a quotient, in the claim's form.
fn in_form(claim: &Claim, quotient: Interval) -> Interval {
    let less = f64::from(u8::from(claim.form == ClaimForm::Relative));
    Interval {
        estimate: quotient.estimate - less,
        low: quotient.low - less,
        high: quotient.high - less,
        ..quotient
    }
}

/// Returns the levels of `of` and `with`. For a trend these are the last and the first level of its factor.
fn sides(claim: &Claim, finished: &FinishedRuns) -> (Levels, Option<Levels>) {
    let at = |factor: &str, level: &str| {
        let mut levels = claim.at.clone();
        levels.insert(factor.to_owned(), level.to_owned());
        levels
    };
    if let Some(factor) = &claim.along {
        let levels = finished.levels(factor);
        let ends = levels.last().zip(levels.first());
        return ends.map_or((claim.at.clone(), None), |(last, first)| {
            (at(factor, last), Some(at(factor, first)))
        });
    }
    claim
        .compare
        .as_ref()
        .map_or((claim.at.clone(), None), |compare| {
            let of = at(&compare.factor, &compare.of);
            (of, Some(at(&compare.factor, &compare.with)))
        })
}

/// Returns the number of steps against a trend and the number of steps, as text; `None` if no more than half are
/// against it.
fn against(claim: &Claim, finished: &FinishedRuns, metric: &Metric) -> Option<String> {
    if claim.direction == Some(TrendDirection::Flat) {
        return None;
    }
    let factor = claim.along.as_ref()?;
    let means = finished.levels(factor).into_iter().filter_map(|level| {
        let mut levels = claim.at.clone();
        levels.insert(factor.clone(), level);
        stats::mean(&finished.values(metric, &levels))
    });
    let means: Vec<f64> = means.collect();
    let (first, last) = (means.first()?, means.last()?);
    let steps = means.windows(2);
    let wrong = steps
        .clone()
        .filter(|step| (step[1] > step[0]) != (last > first))
        .count();
    (wrong * 2 > steps.len()).then(|| format!("{wrong} of {}", steps.len()))
}

#[cfg(test)]
mod tests {
    use mq_measure::stats::SplitMix64;

    use super::*;
    use crate::campaign::claims;

    /// True mean and relative standard deviation of the runs of one side.
    type Truth = (f64, f64);

    /// Simulated means of runs: delays with losses are skewed to the right, others are not.
    struct Runs {
        random: SplitMix64,
        skewed: bool,
    }

    impl Runs {
        fn of(&mut self, (mean, spread): Truth, count: usize) -> Vec<f64> {
            (0..count).map(|_| mean * self.one(spread)).collect()
        }

        /// Draws a value of mean 1.
        fn one(&mut self, spread: f64) -> f64 {
            let [a, b] = [(); 2].map(|()| {
                let index = u32::try_from(self.random.index(1 << 30)).unwrap();
                (f64::from(index) + 0.5) / f64::from(1 << 30)
            });
            let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
            if self.skewed {
                let sigma = (1.0 + spread * spread).ln().sqrt();
                return (sigma * normal - sigma * sigma / 2.0).exp();
            }
            1.0 + spread * normal
        }
    }

    fn claim(form: &str, rest: &str) -> Claim {
        let text = format!(
            "[[claim]]\nid = 'a'\ncampaign = 'c'\nsource = 's'\nsays = ''\nmetric = 'latency_mean'\n\
             form = '{form}'\ncompare = {{ factor = 'transport', of = 'quic', with = 'tls' }}\n{rest}"
        );
        claims::parse("x.toml", &text).unwrap().remove(0)
    }

    fn verdict(claim: &Claim, of: &[f64], with: &[f64], delay: f64) -> Verdict {
        let [of, with] = [of, with].map(|values| Estimate::of_mean(values).unwrap());
        let found = match claim.form {
            ClaimForm::Value => Found {
                value: of.value,
                estimate: Some(of),
                effect: above_delay(claim.figure.unwrap(), delay),
            },
            _ => Found::of_two(&of, &with, |compared| above_delay(compared, delay)),
        };
        claim.judge(Some(&found.measured(claim))).0
    }

    /// Campaigns that are simulated in each case, and how many of them may reproduce it: four standard deviations above a
    /// share of 5 %, since there are a hundred cases.
    fn campaigns() -> (usize, usize) {
        mq_testkit::nightly((2_500, 168), (10_000, 587))
    }

    /// At the edge of what a claim allows, where it is just wrong, campaigns call it reproduced 5 % of the time at most,
    /// with few runs and many, little noise and much.
    #[test]
    fn a_claim_that_is_just_wrong_is_rarely_reproduced() {
        let (campaigns, most) = campaigns();
        let seed = 20;
        println!("seed {seed}");
        let cases: &[(&str, &str, f64, f64, f64)] = &[
            ("relative", "figure = -0.25", 0.8, 1.0, 0.0),
            ("relative", "figure = -0.25", 0.7, 1.0, 0.0),
            ("ratio", "figure = 1.0", 1.2, 1.0, 0.0),
            ("order", "expected = 'alike'", 0.8, 1.0, 0.0),
            // Half of the delay is the link's.
            ("order", "expected = 'alike'", 1.1, 1.0, 0.5),
            ("trend", "along = 'loss'\ndirection = 'flat'", 0.9, 1.0, 0.5),
            ("value", "figure = 2.0", 2.2, 1.0, 1.0),
            ("value", "figure = 2.0", 1.6, 1.0, 0.0),
            ("order", "expected = 'less'", 0.98, 1.0, 0.0),
            ("order", "expected = 'more'", 1.02, 1.0, 0.0),
            ("ratio", "figure = 2.0\nexpected = 'more'", 2.0, 1.0, 0.0),
            (
                "trend",
                "along = 'loss'\ndirection = 'grows'",
                1.2,
                1.0,
                0.0,
            ),
        ];
        for (form, rest, of, with, delay) in cases {
            let claim = claim(form, rest);
            for count in [3, 10] {
                for skewed in [false, true] {
                    for spread in [0.03, 0.3] {
                        let random = SplitMix64::new(seed);
                        let mut runs = Runs { random, skewed };
                        let reproduced = (0..campaigns)
                            .filter(|_| {
                                let of = runs.of((*of, spread), count);
                                let with = runs.of((*with, spread), count);
                                verdict(&claim, &of, &with, *delay) == Verdict::Reproduced
                            })
                            .count();
                        println!(
                            "{form} {rest:?} {of} {count} runs {spread} {skewed}: {reproduced}"
                        );
                        assert!(reproduced <= most, "{reproduced}");
                    }
                }
            }
        }
    }

    /// The test statistic here is a spread: the mean distance from the median. A bootstrap of standard deviations calls
    /// up to 9 % of such campaigns reproduced.
    #[test]
    fn a_spread_that_is_just_not_less_is_rarely_reproduced() {
        let (campaigns, most) = campaigns();
        let seed = 22;
        println!("seed {seed}");
        let claim = claim("order", "expected = 'less'");
        let distances = |values: Vec<f64>| -> Vec<f64> {
            let middle = stats::median(&values).unwrap();
            values.iter().map(|value| (value - middle).abs()).collect()
        };
        for count in [5, 20, 50] {
            for (skewed, spread) in [(false, 0.1), (true, 0.1), (true, 0.3)] {
                let random = SplitMix64::new(seed);
                let mut runs = Runs { random, skewed };
                let reproduced = (0..campaigns).filter(|_| {
                    let [of, with] =
                        [0.98, 1.0].map(|mean| distances(runs.of((mean, spread), count)));
                    verdict(&claim, &of, &with, 0.0) == Verdict::Reproduced
                });
                let reproduced = reproduced.count();
                println!("{count} runs {spread} {skewed}: {reproduced}");
                assert!(reproduced <= most, "{reproduced}");
            }
        }
    }

    #[test]
    fn more_noise_never_makes_a_wrong_claim_right() {
        let seed = 21;
        println!("seed {seed}");
        // QUIC is 10 % faster: not alike, and not 40 % faster.
        let wrong = [
            claim("relative", "figure = -0.4"),
            claim("order", "expected = 'more'"),
            claim("trend", "along = 'loss'\ndirection = 'shrinks'"),
        ];
        for claim in wrong {
            let random = SplitMix64::new(seed);
            let mut runs = Runs {
                random,
                skewed: false,
            };
            for spread in [0.001, 0.01, 0.03, 0.1, 0.3] {
                let reproduced = (0..2_000).filter(|_| {
                    let (of, with) = (runs.of((0.9, spread), 5), runs.of((1.0, spread), 5));
                    verdict(&claim, &of, &with, 0.0) == Verdict::Reproduced
                });
                let reproduced = reproduced.count();
                assert!(reproduced <= 100, "{claim:?} {spread}: {reproduced}");
            }
        }
    }
}
