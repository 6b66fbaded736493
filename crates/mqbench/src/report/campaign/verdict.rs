//! The verdict on a claim, from the runs of its campaign.

use mq_measure::stats::{self, Interval};

use super::{
    model::{Basis, ClaimReport},
    resample::Resample,
    values::{Finished, Levels, Metric, Statistic, milliseconds},
};
use crate::campaign::claims::{Claim, Direction, Form, Verdict};

pub(crate) fn of(claim: &Claim, all: &[Finished]) -> ClaimReport {
    let mine = all.iter().find(|one| one.is_held_against(claim));
    let metric = Metric::parse(&claim.metric);
    let evidence = mine.and_then(|finished| evidence(claim, finished, &metric));
    let (measured, of) = evidence.unzip();
    let (mut verdict, mut why) = claim.judge(measured.as_ref());
    if let (Form::Trend, Some(finished), Verdict::Reproduced) = (claim.form, mine, verdict)
        && let Some(steps) = against(claim, finished, &metric)
    {
        verdict = Verdict::NotReproduced;
        why = format!("the ends are right, but {steps} of the steps between go the other way");
    }
    if measured.is_some()
        && let Some(basis) = mine.and_then(|finished| finished.energy_basis(&metric))
    {
        why.push_str(&format!("; ours is {basis}"));
    }
    if of == Some(Basis::None) {
        why.push_str("; one run each, so without an interval");
    }
    ClaimReport {
        claim: claim.clone(),
        verdict,
        why,
        measured,
        of: of.unwrap_or(Basis::None),
    }
}

/// The measured value in the claim's form, and what its interval is over.
fn evidence(claim: &Claim, finished: &Finished, metric: &Metric) -> Option<(Interval, Basis)> {
    let (of, with) = sides(claim, finished);
    let of = Side::of(finished, metric, &of);
    let resample = Resample::new(finished.campaign.seed);
    if claim.form == Form::Value {
        let estimate = stats::mean(&of.values)?;
        let (ends, basis) = of.interval(&resample);
        let (low, high) = ends.unwrap_or((estimate, estimate));
        return Some((interval(estimate, low, high), basis));
    }
    let with = Side::of(finished, metric, &with?);
    let estimate = stats::mean(&of.values)? / stats::mean(&with.values)?;
    let by_repetition = resample.ratio(&of.values, &with.values);
    let by_message = || {
        let statistic = of.statistic.filter(|_| of.statistic == with.statistic)?;
        resample.ratio_of(&of.messages, &with.messages, statistic)
    };
    let (ratio, basis) = match by_repetition {
        Some(ratio) => (ratio, Basis::Repetitions),
        None => by_message().map_or_else(
            || (interval(estimate, estimate, estimate), Basis::None),
            |ratio| (ratio, Basis::Messages),
        ),
    };
    let less = if claim.form == Form::Relative {
        1.0
    } else {
        0.0
    };
    let shifted = interval(ratio.estimate - less, ratio.low - less, ratio.high - less);
    shifted.estimate.is_finite().then_some((shifted, basis))
}

fn interval(estimate: f64, low: f64, high: f64) -> Interval {
    Interval {
        estimate,
        low,
        high,
        confidence: 0.95,
    }
}

/// The levels of both sides. For a trend these are the last level of its factor and the first.
fn sides(claim: &Claim, finished: &Finished) -> (Levels, Option<Levels>) {
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

/// How many steps go against a trend, if more than half of them do.
fn against(claim: &Claim, finished: &Finished, metric: &Metric) -> Option<String> {
    if claim.direction == Some(Direction::Flat) {
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

struct Side {
    values: Vec<f64>,
    messages: Vec<f64>,
    statistic: Option<Statistic>,
}

impl Side {
    fn of(finished: &Finished, metric: &Metric, levels: &Levels) -> Self {
        let values = finished.values(metric, levels);
        let of_messages = metric.of_messages().filter(|_| values.len() < 2);
        let pooled = of_messages
            .as_ref()
            .and_then(|(of, _)| finished.pooled(of, levels));
        Self {
            values,
            messages: pooled.map_or_else(Vec::new, |recorder| milliseconds(&recorder)),
            statistic: of_messages.map(|(_, statistic)| statistic),
        }
    }

    fn interval(&self, resample: &Resample) -> (Option<(f64, f64)>, Basis) {
        if let Some(ends) = resample.interval(&self.values, Statistic::Mean) {
            return (Some(ends), Basis::Repetitions);
        }
        let by_message = self
            .statistic
            .and_then(|of| resample.interval(&self.messages, of));
        let basis = if by_message.is_some() {
            Basis::Messages
        } else {
            Basis::None
        };
        (by_message, basis)
    }
}
