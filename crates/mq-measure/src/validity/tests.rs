use super::*;
use crate::LatencyRecorder;

/// Makes a recorder of the lateness of 1000 messages, of which `late` are late by `by_ns`.
fn lateness(late: usize, by_ns: u64) -> LatencyRecorder {
    let mut recorder = LatencyRecorder::new();
    recorder.extend((0..1000).map(|number| if number < late { by_ns } else { 0 }));
    recorder
}

#[test]
fn generator_is_late_above_a_tenth_of_the_interval_or_a_millisecond() {
    for (interval, limit) in [
        (100_000, 10_000),
        (1_000_000_000, 1_000_000),
        (0, 1_000_000),
    ] {
        // To the resolution of the histogram.
        assert_eq!(generator_late(&lateness(100, limit), interval), None);
        assert!(generator_late(&lateness(100, limit * 101 / 100), interval).is_some());
    }
}

#[test]
fn generator_may_be_late_with_one_message_in_a_hundred_as_chance_has_it() {
    assert_eq!(generator_late(&lateness(18, 1_500_000), 0), None);
    let warning = generator_late(&lateness(19, 1_500_000), 0).unwrap();
    assert!(
        matches!(warning, Warning::GeneratorLate { p99_late_ns, .. } if p99_late_ns > 1_400_000)
    );
    assert_eq!(generator_late(&LatencyRecorder::new(), 0), None);
}

#[test]
fn chance_explains_what_a_binomial_distribution_does() {
    // scipy.stats.binom.ppf(0.99, all, share)
    for (share, all, most) in [
        (0.01, 0, 0),
        (0.01, 1, 0),
        (0.01, 10, 1),
        (0.01, 50, 3),
        (0.01, 1000, 18),
        (0.5, 100, 62),
        (0.0, 100, 0),
        (1.0, 100, 100),
    ] {
        assert_eq!(most_by_chance(share, all), most, "{share} of {all}");
    }
}

#[test]
fn percentile_needs_a_sample_beyond_it() {
    assert_eq!(too_few_samples(99.9, 1000), None);
    assert!(matches!(
        too_few_samples(99.9, 999),
        Some(Warning::TooFewSamples {
            needed: 1000,
            count: 999,
            ..
        })
    ));
    assert_eq!(too_few_samples(99.0, 100), None);
    assert!(too_few_samples(99.0, 99).is_some());
    assert_eq!(too_few_samples(50.0, 2), None);
    assert!(too_few_samples(50.0, 1).is_some());
}

#[test]
fn reno_has_two_names() {
    assert_eq!(congestion_control("reno", "NewReno"), None);
    assert_eq!(congestion_control("cubic", "cubic"), None);
    assert!(congestion_control("bbr", "cubic").is_some());
}

#[test]
fn other_rules_have_their_limits() {
    assert!(clock_uncertain(10, 10).is_some());
    assert_eq!(clock_uncertain(9, 10), None);
    assert_eq!(clock_extrapolated(0), None);
    assert!(clock_extrapolated(1).is_some());
    assert_eq!(clocks_not_compared("pi-1", "pi-1"), None);
    assert!(clocks_not_compared("pi-1", "pi-2").is_some());
    assert_eq!(link_off_profile("delay_ns", 100.0, 104.0, 0.05), None);
    assert!(link_off_profile("delay_ns", 100.0, 106.0, 0.05).is_some());
    assert_eq!(cpu_governor(None), None);
    assert_eq!(cpu_governor(Some("performance")), None);
    assert!(cpu_governor(Some("ondemand")).is_some());
}

/// Makes a warning of each kind.
fn one_of_each() -> Vec<Warning> {
    vec![
        Warning::GeneratorLate {
            p99_late_ns: 2_500_000,
            interval_ns: 10_000_000,
        },
        Warning::TooFewSamples {
            percentile: 99.9,
            count: 10,
            needed: 1000,
        },
        Warning::ClockUncertain {
            uncertainty_ns: 1,
            effect_ns: 2,
        },
        Warning::ClockExtrapolated { messages: 1 },
        Warning::ClockStepped {
            at_ns: 1_800_000_000_123_000_000,
            by_ns: -2_500_000,
        },
        Warning::ClocksDisagree {
            offset_ns: 9_000_000,
            uncertainty_ns: 100_000,
            bound_ns: 2_000_000,
        },
        Warning::ClocksNotCompared,
        Warning::NegativeLatencies { count: 1 },
        Warning::LostMessages { lost: 1, sent: 2 },
        Warning::DuplicateMessages {
            duplicates: 1,
            received: 2,
        },
        Warning::ReorderedMessages {
            reordered: 1,
            received: 2,
        },
        Warning::UnknownMessages { count: 1 },
        Warning::ConnectionsFailed {
            failed: 1,
            tried: 2,
            last_error: "timed out".into(),
        },
        Warning::TimedOut {
            phase: "connect".into(),
            after_ns: 5_000_000_000,
        },
        Warning::KernelCongestionControl {
            tcp: "bbr".into(),
            quic: "cubic".into(),
        },
        Warning::LinkOffProfile {
            quantity: "delay_ns".into(),
            configured: 1.0,
            measured: 2.0,
        },
        Warning::EnergyGaps {
            missing_ns: 2,
            window_ns: 9,
        },
        Warning::DebugBuild,
        Warning::Emulated {
            host: Some("pi-2".to_owned()),
            found: "its USB devices are QEMU's".to_owned(),
        },
        Warning::CpuGovernor {
            governor: "powersave".into(),
        },
    ]
}

fn kind(warning: &Warning) -> String {
    let json = serde_json::to_value(warning).unwrap();
    json["kind"].as_str().unwrap().to_owned()
}

/// Lists every kind of warning, as the error for an unknown one lists them.
fn kinds() -> Vec<String> {
    let unknown = serde_json::json!({ "kind": "no-such-kind" });
    let error = serde_json::from_value::<Warning>(unknown).unwrap_err();
    let error = error.to_string();
    let (_, expected) = error.split_once("expected one of ").unwrap();
    let expected = expected.split('`').skip(1).step_by(2);
    expected.map(str::to_owned).collect()
}

/// Returns `true` if `line` has the words of `pattern`, with a value in the place of each A, B and C.
fn fits(pattern: &str, line: &str) -> bool {
    let mut rest = Some(line);
    for words in pattern.split(['A', 'B', 'C']) {
        rest = rest.and_then(|rest| Some(rest.split_once(words)?.1));
    }
    rest.is_some()
}

#[test]
fn the_reference_has_every_warning_as_it_is_shown() {
    let page = include_str!("../../../../docs/reference/measurement.md");
    let (_, section) = page.split_once("\n## Warnings\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: Vec<Vec<_>> = rows
        .map(|row| row.trim_end_matches(" |").split(" | ").collect())
        .collect();
    let documented: Vec<_> = rows
        .iter()
        .map(|row| row[0].trim_end_matches('`'))
        .collect();
    assert_eq!(documented, kinds());
    for warning in one_of_each() {
        let row = documented.iter().position(|name| *name == kind(&warning));
        let [_, shown, _, remedy] = rows[row.unwrap()][..] else {
            panic!("{warning}: its row has four columns");
        };
        let line = warning.to_string();
        let (what, to_do) = line.split_once("; ").unwrap();
        assert!(fits(shown, what), "{shown}: {what}");
        assert!(fits(remedy, to_do), "{remedy}: {to_do}");
    }
}

#[test]
fn each_warning_is_one_line_with_a_remedy_and_round_trips() {
    let all = one_of_each();
    let covered: std::collections::BTreeSet<_> = all.iter().map(kind).collect();
    assert_eq!(covered, kinds().into_iter().collect());
    for warning in all {
        let line = warning.to_string();
        assert!(!line.contains('\n') && line.contains("; "), "{line}");
        assert!(!line.contains("  "), "{line}");
        let json = serde_json::to_string(&warning).unwrap();
        assert_eq!(
            serde_json::from_str::<Warning>(&json).unwrap(),
            warning,
            "{json}"
        );
    }
}

#[test]
fn warning_reads_well() {
    let warning = Warning::GeneratorLate {
        p99_late_ns: 2_500_000,
        interval_ns: 10_000_000,
    };
    assert_eq!(
        warning.to_string(),
        "the generator was late: 1 % of the messages by 2.5 ms or more, at an interval of 10.0 \
         ms; lower the rate, or give the generator a core of its own"
    );
    let json = serde_json::to_value(&warning).unwrap();
    assert_eq!(json["kind"], "generator-late");
}

#[test]
fn a_step_says_which_way_and_when() {
    let warning = Warning::ClockStepped {
        at_ns: 1_800_000_000_123_000_000,
        by_ns: -2_500_000,
    };
    assert!(
        warning
            .to_string()
            .starts_with("a clock was set by -2.5 ms at 1800000000.123 s since 1970"),
        "{warning}"
    );
}

#[test]
fn equal_warnings_are_noted_once() {
    let mut validity = Validity::default();
    validity.note(None);
    validity.note(Warning::DebugBuild);
    validity.extend([Warning::DebugBuild, Warning::ClocksNotCompared]);
    assert_eq!(validity.warnings.len(), 2);
    assert_eq!(validity.to_string().lines().count(), 2);
}
