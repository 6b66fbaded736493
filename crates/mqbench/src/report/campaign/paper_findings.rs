//! Findings on each paper: counts of its claims, and sentences made from the verdicts.

use std::collections::BTreeMap;

use super::{
    formatting,
    model::{ClaimReport, PaperReport},
};
use crate::campaign::claims::{ExpectedOrder, LEAST, TrendDirection, Verdict};

/// Name, title, authors, and DOI if there is one.
const PAPERS: &[(&str, &str, &str, Option<&str>)] = &[
    (
        "W20",
        "And QUIC meets IoT: performance assessment of MQTT over QUIC",
        "F. Fernández, M. Zverev, P. Garrido, J. R. Juárez, J. Bilbao, R. Agüero. 16th WiMob, 2020",
        None,
    ),
    (
        "S21",
        "Even Lower Latency in IIoT: Evaluation of QUIC in Industrial IoT Scenarios",
        "Fernández et al. Sensors 21(17), 5737, 2021",
        Some("10.3390/s21175737"),
    ),
    (
        "S22",
        "Delay and Energy Consumption of MQTT over QUIC: An Empirical Characterization Using \
         Commercial-Off-The-Shelf Devices",
        "Jeddou et al. Sensors 22(10), 3694, 2022",
        Some("10.3390/s22103694"),
    ),
    (
        "DL",
        "MQTT over QUIC: Comparison with TCP and TCP+TLS in a Virtualized IoT Environment",
        "de Luna et al",
        None,
    ),
    (
        "LW26",
        "Evaluating Stream Mapping Strategies for MQTT over QUIC",
        "Submitted to Computer Networks, 2026",
        None,
    ),
];

/// Greatest number of claims that a sentence names; of more claims, it counts the others.
const NAMED: usize = 2;
/// Greatest number of cases of a claim that a sentence names; more cases are counted.
const CASES: usize = 3;
/// Greatest number of sentences on a paper.
const SENTENCES: usize = 3;

/// Lists the papers with a measured claim; those with more verdicts come first.
pub(super) fn papers(claims: &[&ClaimReport]) -> Vec<PaperReport> {
    let mut all: Vec<PaperReport> = Vec::new();
    for (name, title, authors, doi) in PAPERS {
        let mine = claims.iter().filter(|claim| name_of(claim) == *name);
        let mine: Vec<&ClaimReport> = mine.copied().collect();
        if mine
            .iter()
            .all(|claim| claim.verdict == Verdict::NotMeasured)
        {
            continue;
        }
        let count = |of: &[Verdict]| {
            mine.iter()
                .filter(|claim| of.contains(&claim.verdict))
                .count()
        };
        all.push(PaperReport {
            name: (*name).to_owned(),
            title: (*title).to_owned(),
            authors: (*authors).to_owned(),
            doi: doi.map(str::to_owned),
            held: count(&[Verdict::Reproduced]),
            failed: count(&[Verdict::NotReproduced, Verdict::Opposite]),
            no_difference: mine.iter().filter(|claim| no_difference(claim)).count(),
            open: count(&[Verdict::Undecided, Verdict::NotTested, Verdict::NotMeasured]),
            says: sentences(&mine),
        });
    }
    all.sort_by_key(|paper| std::cmp::Reverse(paper.held + paper.failed));
    all
}

/// Returns the paper's name of a claim's source: `S22` of `S22 §5.1`.
pub(super) fn name_of(claim: &ClaimReport) -> &str {
    let source = &claim.claim.source;
    source.split([' ', ',']).next().unwrap_or(source)
}

/// Returns true if a claim of a difference found none that counts: the whole interval is within 2 % of no difference.
pub(super) fn no_difference(report: &ClaimReport) -> bool {
    let claim = &report.claim;
    if report.verdict != Verdict::NotReproduced
        || claim.expected == Some(ExpectedOrder::Alike)
        || claim.direction == Some(TrendDirection::Flat)
    {
        return false;
    }
    let Some(found) = report.measured else {
        return false;
    };
    // An end is beyond 2 % if it is still beyond no difference after it is moved by so much.
    let side = |value: f64| {
        let moved = mq_measure::stats::Interval {
            low: value,
            high: value,
            ..found
        };
        claim.side_of(&moved)
    };
    matches!(
        (side(found.low + LEAST), side(found.high - LEAST)),
        (Some(0 | 1), Some(-1 | 0))
    )
}

/// A claim whose sentences differ in their cases alone: `QUIC's gain grows with loss: WiFi`, and `: cellular`.
struct ClaimGroup<'a> {
    says: &'a str,
    cases: Vec<&'a str>,
    /// Number of claims of the group, with any verdict.
    all: usize,
    why: String,
    /// The remark on the first claim of the group that has one.
    note: Option<&'a str>,
}

/// Splits a claim's sentence from its case.
fn sentence_and_case(report: &ClaimReport) -> (&str, &str) {
    let says = &report.claim.says[..];
    says.rsplit_once(": ").unwrap_or((says, ""))
}

/// Groups the claims with one of these verdicts, each with its cases; those with more cases first.
fn groups<'a>(claims: &[&'a ClaimReport], verdicts: &[Verdict]) -> Vec<ClaimGroup<'a>> {
    let mut all: Vec<ClaimGroup> = Vec::new();
    let with = claims
        .iter()
        .filter(|claim| verdicts.contains(&claim.verdict));
    for report in with {
        let (says, case) = sentence_and_case(report);
        let why = reason(report);
        let note = report.claim.note.as_deref();
        if let Some(group) = all
            .iter_mut()
            .find(|one| one.says == says && one.why == why)
        {
            group.cases.push(case);
            group.note = group.note.or(note);
            continue;
        }
        all.push(ClaimGroup {
            says,
            cases: vec![case],
            all: claims
                .iter()
                .filter(|one| sentence_and_case(one).0 == says)
                .count(),
            why,
            note,
        });
    }
    all.sort_by_key(|group| std::cmp::Reverse(group.cases.len()));
    all
}

/// Returns the reason of a verdict.
fn reason(report: &ClaimReport) -> String {
    if no_difference(report) {
        return "no difference: within 2 %".to_owned();
    }
    report.why.clone()
}

fn sentences(claims: &[&ClaimReport]) -> Vec<String> {
    use Verdict::{NotReproduced, NotTested, Opposite, Reproduced, Undecided};
    let mut all = Vec::new();
    for (head, verdicts) in [
        ("Held", &[Reproduced][..]),
        ("Opposite", &[Opposite]),
        ("Not reproduced", &[NotReproduced]),
    ] {
        let groups = groups(claims, verdicts);
        let with_reason = verdicts == [NotReproduced];
        let named = groups
            .iter()
            .take(NAMED)
            .map(|group| group.sentence(with_reason));
        let named: Vec<_> = named.collect();
        let others = groups.iter().skip(NAMED).map(|group| group.cases.len());
        let more = match others.sum::<usize>() {
            0 => String::new(),
            others => format!("; and {others} more"),
        };
        if !named.is_empty() {
            all.push(format!("{head}: {}{more}.", named.join("; ")));
        }
    }
    if all.len() < SENTENCES {
        all.extend(open_claims(claims, &[Undecided, NotTested]));
    }
    all
}

/// Returns the reasons for which claims are open, with the number of each.
fn open_claims(claims: &[&ClaimReport], verdicts: &[Verdict]) -> Option<String> {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for report in claims
        .iter()
        .filter(|claim| verdicts.contains(&claim.verdict))
    {
        match reasons.iter_mut().find(|(why, _)| *why == report.why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((&report.why, 1)),
        }
    }
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let each = reasons.iter().map(|(why, count)| {
        let claims = if *count == 1 { "claim" } else { "claims" };
        format!("{count} {claims} {}", formatting::parenthesis(why))
    });
    let each: Vec<_> = each.collect();
    (!each.is_empty()).then(|| format!("Open: {}.", each.join("; ")))
}

impl ClaimGroup<'_> {
    fn sentence(&self, with_reason: bool) -> String {
        // Two estimators of one quantity have claims with the same case.
        let mut named = self.cases.clone();
        named.dedup();
        let (counted, named) = match (self.cases.len(), self.all) {
            (1, 1) => (String::new(), None),
            (2, 2) => (" in both cases".to_owned(), None),
            (some, all) if some == all => (format!(" in all {all} cases"), None),
            (some, _) if some <= CASES && !named.contains(&"") => {
                (String::new(), Some(named.join("; ")))
            }
            (some, all) => (format!(" in {some} of {all} cases"), None),
        };
        let note = self
            .note
            .map_or_else(String::new, |note| format!("; {note}"));
        let why = with_reason.then(|| format!("{}{note}", self.why));
        let details: Vec<_> = named.into_iter().chain(why).collect();
        let details = if details.is_empty() {
            String::new()
        } else {
            format!(" {}", formatting::parenthesis(&details.join(" – ")))
        };
        format!("“{}”{counted}{details}", self.says)
    }
}

/// Returns a sentence for each of the changes: the number of verdicts that it turns, from one to another.
pub(super) fn changed_verdicts(claims: &[&ClaimReport], changes: &[&str]) -> Vec<String> {
    let each = changes.iter().map(|changes| {
        let pairs = claims.iter().filter_map(|claim| {
            let beside = claim.beside.iter().find(|one| one.changes == *changes)?;
            Some((claim.verdict, beside.verdict))
        });
        let pairs: Vec<_> = pairs.collect();
        let mut turns: BTreeMap<_, usize> = BTreeMap::new();
        for pair in pairs.iter().filter(|(own, other)| own != other) {
            *turns.entry(pair).or_default() += 1;
        }
        let (turned, all) = (turns.values().sum::<usize>(), pairs.len());
        let turns = turns.iter().map(|((own, other), count)| {
            format!("{count} from {} to {}", own.label(), other.label())
        });
        let turns: Vec<_> = turns.collect();
        match turned {
            0 => format!("With {changes} none of {all} verdicts turns."),
            _ => format!(
                "With {changes} {turned} of {all} verdicts turn: {}.",
                turns.join(", ")
            ),
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use mq_measure::stats::Interval;

    use super::*;
    use crate::{
        campaign::claims,
        report::campaign::model::{Basis, ClaimBeside},
    };

    fn report(id: &str, low: f64, high: f64) -> ClaimReport {
        let all = claims::shipped().unwrap();
        let claim = all.into_iter().find(|claim| claim.id == id).unwrap();
        let measured = Interval {
            estimate: f64::midpoint(low, high),
            low,
            high,
            confidence: claims::CONFIDENCE,
        };
        let (verdict, why) = claim.judge(Some(&claims::Measured {
            interval: Some(measured),
            effect: 1.0,
        }));
        ClaimReport {
            claim,
            verdict,
            why,
            measured: Some(measured),
            test: None,
            of: Basis::Repetitions,
            beside: Vec::new(),
        }
    }

    #[test]
    fn verdicts_that_changes_turn_are_counted() {
        use Verdict::{Opposite, Reproduced};
        let with = |own, other: Option<Verdict>| {
            let beside = other.map(|verdict| ClaimBeside {
                changes: "repeat=probe".to_owned(),
                verdict,
                measured: None,
                test: None,
                of: Basis::None,
            });
            ClaimReport {
                verdict: own,
                beside: beside.into_iter().collect(),
                ..report("w20-wifi-0-order", 0.5, 0.6)
            }
        };
        let claims = [
            with(Opposite, Some(Reproduced)),
            with(Opposite, Some(Reproduced)),
            with(Reproduced, Some(Reproduced)),
            with(Reproduced, None),
        ];
        let claims: Vec<_> = claims.iter().collect();
        assert_eq!(
            changed_verdicts(&claims, &["repeat=probe"]),
            ["With repeat=probe 2 of 3 verdicts turn: 2 from opposite to reproduced."]
        );
        assert_eq!(
            changed_verdicts(&claims[2..], &["repeat=probe"]),
            ["With repeat=probe none of 1 verdicts turns."]
        );
    }

    #[test]
    fn no_difference_is_told_from_a_contradiction() {
        for (id, low, high, expected) in [
            ("w20-wifi-0-order", 0.985, 1.009, true),
            // All of it counts as "not less", and some of it is more.
            ("w20-wifi-0-order", 1.005, 1.034, false),
            ("w20-wifi-0-order", 1.03, 1.1, false),
            ("w20-wifi-0-order", 0.8, 0.9, false),
            ("w20-wifi-5-gain", -0.01, 0.01, true),
            ("w20-wifi-5-gain", -0.2, -0.1, false),
            // This claim is of no difference.
            ("w20-wifi-dial-to-sent", 0.99, 1.01, false),
            ("w20-wifi-dial-to-sent", 1.3, 1.4, false),
        ] {
            let report = report(id, low, high);
            assert_eq!(no_difference(&report), expected, "{report:?}");
        }
    }

    #[test]
    fn sentences_follow_from_the_verdicts() {
        let reports = [
            report("w20-wifi-0-order", 0.99, 1.01),
            report("w20-wifi-5-order", 0.6, 0.7),
            report("w20-satellite-5-order", 1.04, 1.07),
            report("w20-cellular-1-order", 0.97, 0.99),
        ];
        let refs: Vec<&ClaimReport> = reports.iter().collect();
        let papers = papers(&refs);
        let [paper] = &papers[..] else {
            panic!("{papers:?}");
        };
        assert_eq!((paper.held, paper.failed, paper.open), (1, 2, 1));
        assert_eq!(paper.no_difference, 1);
        let says = "“QUIC outperforms TCP in all cases, and is never worse”";
        assert_eq!(
            paper.says,
            [
                format!("Held: {says} (WiFi, 5 % loss)."),
                format!("Opposite: {says} (satellite, 5 % loss)."),
                format!(
                    "Not reproduced: {says} (WiFi, 0 % loss – no difference: within 2 %; S21 \
                     found QUIC slightly worse without loss)."
                ),
            ]
        );
        let open = sentences(&refs[3..]);
        assert_eq!(
            open,
            ["Open: 1 claim (the interval has room for more than one verdict)."]
        );
    }
}
