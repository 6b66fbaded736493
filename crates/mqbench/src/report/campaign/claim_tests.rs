//! Claims that levels differ, judged by the Kruskal–Wallis test over runs.
//!
//! A run is one sample. Messages of one run wait behind the same losses, so that they are not independent, and a test
//! over them finds differences where there are none.

use std::collections::BTreeMap;

use mq_measure::stats;

use super::{
    group::ENOUGH,
    metric_values::{FinishedRuns, Metric},
    model::{Basis, ClaimReport, ClaimTest},
    paper_findings::name_of,
};
use crate::campaign::claims::{Claim, Verdict};

/// Tests a claim that the levels of its factor differ. The verdict on a test is open until [`adjust`].
pub(super) fn report(claim: &Claim, mine: Option<&FinishedRuns>, metric: &Metric) -> ClaimReport {
    let groups = mine.map_or_else(Vec::new, |finished| groups(claim, finished, metric));
    let is_measured = groups.len() > 1 && groups.iter().all(|values| !values.is_empty());
    let has_enough = groups.iter().all(|values| values.len() >= ENOUGH);
    let (verdict, why) = if !is_measured {
        (Verdict::NotMeasured, "no run measured it".to_owned())
    } else if !has_enough {
        let why = format!("fewer than {ENOUGH} runs a level, too few for the test");
        (Verdict::Undecided, why)
    } else {
        (Verdict::Undecided, "all runs have one value".to_owned())
    };
    let groups: Vec<&[f64]> = groups.iter().map(|values| &values[..]).collect();
    let test = stats::kruskal_wallis(&groups).filter(|_| is_measured && has_enough);
    ClaimReport {
        claim: claim.clone(),
        verdict,
        why,
        measured: None,
        test: test.map(|kruskal_wallis| ClaimTest {
            kruskal_wallis,
            holm_p: kruskal_wallis.p,
        }),
        of: test.map_or(Basis::None, |_| Basis::Repetitions),
        beside: Vec::new(),
    }
}

/// Returns the values of the runs of each level of the claim's factor.
fn groups(claim: &Claim, finished: &FinishedRuns, metric: &Metric) -> Vec<Vec<f64>> {
    let Some(factor) = &claim.along else {
        return Vec::new();
    };
    let levels = finished.levels(factor).into_iter();
    let each = levels.map(|level| {
        let mut levels = claim.at.clone();
        levels.insert(factor.clone(), level);
        finished.values(metric, &levels)
    });
    each.collect()
}

/// A test with the places that its verdict and reason go to.
type Open<'a> = (&'a mut ClaimTest, &'a mut Verdict, Option<&'a mut String>);

/// Adjusts the tests of each paper by Holm, and sets their verdicts. Tests by campaigns with changes are adjusted apart,
/// for each of the changes.
pub(super) fn adjust(reports: &mut [ClaimReport]) {
    let mut families: BTreeMap<(String, String), Vec<Open>> = BTreeMap::new();
    for report in reports {
        let paper = name_of(report).to_owned();
        if let Some(test) = &mut report.test {
            let own = (paper.clone(), String::new());
            let open = (test, &mut report.verdict, Some(&mut report.why));
            families.entry(own).or_default().push(open);
        }
        for beside in &mut report.beside {
            if let Some(test) = &mut beside.test {
                let changed = (paper.clone(), beside.changes.clone());
                let open = (test, &mut beside.verdict, None);
                families.entry(changed).or_default().push(open);
            }
        }
    }
    for tests in families.into_values() {
        let p: Vec<f64> = tests
            .iter()
            .map(|(test, ..)| test.kruskal_wallis.p)
            .collect();
        for ((test, verdict, why), holm_p) in tests.into_iter().zip(stats::holm(&p)) {
            test.holm_p = holm_p;
            let (judged, reason) = Claim::judge_test(holm_p);
            *verdict = judged;
            if let Some(why) = why {
                *why = reason;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        campaign::{
            claims,
            file::{Campaign, Extent},
            record::{Outcome, Record},
        },
        report::campaign::{formatting, verdict},
    };

    const CAMPAIGN: &str = r#"
title = "Round trips"
source = "DL §V"
claims = ["dl"]
repetitions = 5
work.pattern = "job-result"
work.link = "dl"
[factors]
loss = ["0%", "5%", "20%"]
transport = ["tcp", "tls", "quic"]
[plot]
kind = "bars"
metric = "rtt_mean"
x = "loss"
series = "transport"
"#;

    fn campaign(folder: &std::path::Path) -> Campaign {
        let file: PathBuf = folder.join("dl-made-up.toml");
        std::fs::write(&file, CAMPAIGN).unwrap();
        Campaign::load(&file, Extent::Full).unwrap()
    }

    fn claim(loss: &str) -> Claim {
        let text = format!(
            "[[claim]]\nid = 'dl-{loss}'\ncampaign = 'dl-made-up'\nsource = 'DL §V'\nsays = ''\n\
             metric = 'rtt_mean'\nat = {{ loss = '{loss}' }}\nform = 'differs'\nalong = 'transport'\n"
        );
        claims::parse("x.toml", &text).unwrap().remove(0)
    }

    /// Makes the runs of one loss, a value each for TCP, TLS and QUIC.
    fn runs(campaign: &Campaign, loss: &str, values: [&[f64]; 3]) -> Vec<Record> {
        let mut all = Vec::new();
        for (transport, values) in ["tcp", "tls", "quic"].iter().zip(values) {
            let mut cells = campaign.cells.iter();
            let cell = cells
                .find(|one| one.levels["loss"] == loss && one.levels["transport"] == *transport);
            let cell = cell.unwrap();
            for (repetition, value) in (0..).zip(values) {
                let metrics = [("rtt_mean".to_owned(), *value)].into();
                all.push(Record {
                    campaign: campaign.name.clone(),
                    levels: cell.levels.clone(),
                    repetition,
                    attempt: 1,
                    seed: 1,
                    cell: cell.cell.clone(),
                    outcome: Outcome {
                        metrics,
                        ..Outcome::default()
                    },
                });
            }
        }
        all
    }

    /// Three groups that do not overlap: scipy.stats.kruskal gives H = 12.5 and p = 0.0019304541362277093. Three that do:
    /// H = 3.38 and p = 0.18451952399298968.
    #[test]
    fn runs_that_differ_reproduce_the_claim_by_the_adjusted_p() {
        let folder = tempfile::tempdir().unwrap();
        let campaign = campaign(folder.path());
        let apart: [&[f64]; 3] = [
            &[1.0, 2.0, 3.0, 4.0, 5.0],
            &[6.0, 7.0, 8.0, 9.0, 10.0],
            &[11.0, 12.0, 13.0, 14.0, 15.0],
        ];
        let mixed: [&[f64]; 3] = [
            &[1.0, 2.0, 3.0, 10.0, 11.0],
            &[4.0, 5.0, 6.0, 12.0, 13.0],
            &[7.0, 8.0, 9.0, 14.0, 15.0],
        ];
        let mut records = runs(&campaign, "0%", apart);
        records.extend(runs(&campaign, "5%", mixed));
        let few = apart.map(|values| &values[..4]);
        records.extend(runs(&campaign, "20%", few));
        let finished = [FinishedRuns::of(&campaign, &records)];
        let claims = ["0%", "5%", "20%"].map(claim);
        let reports = verdict::judge_all(&claims, &finished);
        let test = |at: usize| reports[at].test.unwrap();
        let [a, b] = [test(0), test(1)];
        assert!((a.kruskal_wallis.h - 12.5).abs() < 1e-9, "{a:?}");
        assert!(
            (a.kruskal_wallis.p - 0.001_930_454_136_227_709_3).abs() < 1e-12,
            "{a:?}"
        );
        assert_eq!(a.kruskal_wallis.degrees, 2);
        assert!((b.kruskal_wallis.h - 3.38).abs() < 1e-9, "{b:?}");
        assert!(
            (b.kruskal_wallis.p - 0.184_519_523_992_989_68).abs() < 1e-12,
            "{b:?}"
        );
        // Two tests: the smaller p counts twice.
        assert!((a.holm_p - 2.0 * a.kruskal_wallis.p).abs() < 1e-12, "{a:?}");
        assert!((b.holm_p - b.kruskal_wallis.p).abs() < 1e-12, "{b:?}");
        let verdicts: Vec<_> = reports.iter().map(|report| report.verdict).collect();
        assert_eq!(
            verdicts,
            [
                Verdict::Reproduced,
                Verdict::NotReproduced,
                Verdict::Undecided
            ]
        );
        assert_eq!(reports[2].test, None);
        assert_eq!(
            formatting::measured_value(&reports[0]),
            "H = 12.5, 2 degrees of freedom, p = 0.004 after Holm"
        );
    }

    /// A p of 0.026 alone is significant; among three such tests it is not.
    #[test]
    fn a_test_that_is_significant_alone_may_not_be_among_several() {
        let folder = tempfile::tempdir().unwrap();
        let campaign = campaign(folder.path());
        // H = 7.28, so that p = exp(-3.64) = 0.0263.
        let values: [&[f64]; 3] = [
            &[1.0, 2.0, 3.0, 5.0, 9.0],
            &[4.0, 7.0, 8.0, 11.0, 12.0],
            &[6.0, 10.0, 13.0, 14.0, 15.0],
        ];
        let losses = ["0%", "5%", "20%"];
        let all: Vec<Record> = losses
            .iter()
            .flat_map(|loss| runs(&campaign, loss, values))
            .collect();
        let finished = [FinishedRuns::of(&campaign, &all)];
        let alone = verdict::judge_all(&[claim("0%")], &finished);
        assert_eq!(alone[0].verdict, Verdict::Reproduced, "{alone:?}");
        let several = verdict::judge_all(&losses.map(claim), &finished);
        for report in &several {
            assert_eq!(report.verdict, Verdict::NotReproduced, "{report:?}");
        }
    }

    #[test]
    fn a_level_without_runs_leaves_the_claim_not_measured() {
        let folder = tempfile::tempdir().unwrap();
        let campaign = campaign(folder.path());
        let values = [1.0, 2.0, 3.0, 4.0, 5.0];
        let records = runs(&campaign, "0%", [&values, &values, &[]]);
        let finished = [FinishedRuns::of(&campaign, &records)];
        let report = &verdict::judge_all(&[claim("0%")], &finished)[0];
        assert_eq!((report.verdict, report.test), (Verdict::NotMeasured, None));
    }
}
