//! Two estimators of a job's round-trip time, and the effect of their difference on DL's conclusions.
//!
//! DL starts its clock at the last job that was sent. A result that takes longer than the interval between jobs
//! is timed from a later job, so no time can be much longer than the interval. Each of DL's claims is judged
//! twice: by that estimator, and with each result matched with its own job.

use super::{
    formatting,
    model::{ClaimReport, EstimatorPair, Estimators},
};
use crate::campaign::claims::{ClaimForm, Verdict};

/// The metrics of DL's own estimator and of the one by sequence number.
const METRICS: [&str; 2] = ["rtt_last_mean", "rtt_mean"];

/// Compares the estimators by these claims of one campaign; `None` if no claim was measured by both estimators.
pub(super) fn compare(claims: &[&ClaimReport]) -> Option<Estimators> {
    let by = |metric: &'static str| {
        let measured = |report: &&&ClaimReport| report.verdict != Verdict::NotMeasured;
        let of = move |report: &&&ClaimReport| report.claim.metric == metric;
        claims.iter().filter(of).filter(measured)
    };
    let [last, matched] = METRICS;
    let pairs: Vec<_> = by(last)
        .filter_map(|one| {
            let other = by(matched).find(|other| other.claim.says == one.claim.says)?;
            Some((*one, *other))
        })
        .collect();
    if pairs.is_empty() {
        return None;
    }
    Some(Estimators {
        conclusion: conclusion(&pairs),
        pairs: pairs
            .iter()
            .map(|(one, other)| EstimatorPair {
                says: one.claim.says.clone(),
                last: one.claim.id.clone(),
                matched: other.claim.id.clone(),
                turned: is_turned(one, other),
            })
            .collect(),
    })
}

fn conclusion(pairs: &[(&ClaimReport, &ClaimReport)]) -> String {
    let changed: Vec<_> = pairs
        .iter()
        .filter(|(one, other)| one.verdict != other.verdict)
        .collect();
    let mut text = format!(
        "DL times a result from the last job sent, so that one which takes longer than the interval \
         is put down to a later job. With each result matched with its own job, {} of {} verdicts \
         change.",
        match changed.len() {
            0 => "none".to_owned(),
            count => count.to_string(),
        },
        pairs.len()
    );
    let factors = pairs.iter().filter_map(|(one, other)| {
        let times = one.claim.form == ClaimForm::Value;
        let factor = other.measured.as_ref()?.estimate / one.measured.as_ref()?.estimate;
        times.then_some(factor)
    });
    let (least, most) = factors.fold((f64::INFINITY, 0.0_f64), |(least, most), factor| {
        (least.min(factor), most.max(factor))
    });
    if least <= most {
        text.push_str(&format!(
            " Times are {} times as long by number.",
            formatting::range(least, most)
        ));
    }
    for (one, other) in changed {
        text.push_str(&format!(
            " \"{}\": {}, {}, by DL's estimator; {}, {}, by number.",
            one.claim.says,
            one.verdict.label(),
            formatting::measured_value(one),
            other.verdict.label(),
            formatting::measured_value(other)
        ));
    }
    text
}

/// Returns `true` if both estimators show a difference, in opposite directions.
fn is_turned(one: &ClaimReport, other: &ClaimReport) -> bool {
    let side = |report: &ClaimReport| {
        let measured = report.measured.as_ref()?;
        Some(report.claim.side_of(measured)?).filter(|side| *side != 0)
    };
    matches!((side(one), side(other)), (Some(a), Some(b)) if a != b)
}

#[cfg(test)]
mod tests {
    use mq_measure::stats::Interval;

    use super::*;
    use crate::campaign::claims;

    fn report(id: &str, verdict: Verdict, low: f64, high: f64) -> ClaimReport {
        let all = claims::shipped().unwrap();
        ClaimReport {
            claim: all.into_iter().find(|claim| claim.id == id).unwrap(),
            verdict,
            why: String::new(),
            measured: Some(Interval {
                estimate: f64::midpoint(low, high),
                low,
                high,
                confidence: 0.95,
            }),
            test: None,
            of: super::super::model::Basis::Repetitions,
            beside: Vec::new(),
        }
    }

    #[test]
    fn each_verdict_that_changes_is_shown_with_both_figures() {
        use Verdict::{NotReproduced, Opposite, Reproduced};
        let reports = [
            report("dl-50ms-tcp-0-last", Reproduced, 3.9, 4.1),
            report("dl-50ms-tcp-0-seq", NotReproduced, 39.0, 41.0),
            report("dl-50ms-tcp-first-0-last", Reproduced, 0.7, 0.9),
            report("dl-50ms-tcp-first-0-seq", Opposite, 7.0, 9.0),
        ];
        let found = compare(&reports.each_ref()).unwrap();
        assert!(found.conclusion.contains("2 of 2 verdicts change"));
        assert!(found.conclusion.contains("10.00 to 10.00 times as long"));
        let turned = "\"TCP is ahead of QUIC at 0 % loss, a job every 50 ms\": \
                      reproduced, × 0.8000 (× 0.7000 to × 0.9000), by DL's estimator; \
                      opposite, × 8.000 (× 7.000 to × 9.000), by number.";
        assert!(found.conclusion.ends_with(turned), "{}", found.conclusion);
        let which: Vec<_> = found.pairs.iter().map(|pair| pair.turned).collect();
        assert_eq!(which, [false, true]);
    }

    #[test]
    fn no_difference_in_one_turns_nothing_round() {
        use Verdict::{NotReproduced, Reproduced};
        let reports = [
            report("dl-50ms-tcp-first-0-last", NotReproduced, 0.9, 1.1),
            report("dl-50ms-tcp-first-0-seq", Reproduced, 0.7, 0.9),
        ];
        let found = compare(&reports.each_ref()).unwrap();
        assert!(found.conclusion.contains("1 of 1 verdicts change"));
        assert!(!found.pairs[0].turned);
    }

    #[test]
    fn one_estimator_alone_makes_no_comparison() {
        let alone = report("dl-50ms-tcp-0-last", Verdict::Reproduced, 3.9, 4.1);
        assert_eq!(compare(&[&alone]), None);
        let unmeasured = report("dl-50ms-tcp-0-seq", Verdict::NotMeasured, 0.0, 0.0);
        assert_eq!(compare(&[&alone, &unmeasured]), None);
    }
}
