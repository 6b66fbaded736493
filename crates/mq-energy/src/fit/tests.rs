use proptest::prelude::*;

use super::*;
use mq_measure::stats::SplitMix64;

const TRUE: [f64; 6] = [1.4e6, 0.575e6, 12_000.0, 9_000.0, 4.0, 2.0];

/// Draws a number between 0 and 1.
fn uniform(random: &mut SplitMix64) -> f64 {
    convert::float(random.next_u64() >> 11) / convert::float(1 << 53)
}

/// Runs of all kinds on a machine with these coefficients; `noise_uw` on each mean power.
fn runs(count: usize, values: &[f64; 6], noise_uw: f64, random: &mut SplitMix64) -> Vec<Run> {
    let mut upto = |most: f64| convert::round(uniform(random) * most);
    let mut all = Vec::new();
    for _ in 0..count {
        let elapsed_ns = 1_000_000_000 + upto(60e9);
        let seconds = convert::float(elapsed_ns) / 1e9;
        let activity = Activity {
            elapsed_ns,
            cpu_ns: upto(2e9 * seconds),
            packets_sent: upto(2_000.0 * seconds),
            packets_received: upto(2_000.0 * seconds),
            bytes_sent: upto(1e6 * seconds),
            bytes_received: upto(1e6 * seconds),
        };
        let terms = Term::ALL.iter().zip(values);
        let energy_uj: f64 = terms
            .map(|(term, value)| value * term.amount(&activity))
            .sum();
        // Twelve uniform numbers are nearly a normal one.
        let normal = (0..12)
            .map(|_| convert::float(upto(1e6)) / 1e6)
            .sum::<f64>()
            - 6.0;
        all.push(Run {
            energy_uj: energy_uj + noise_uw * normal * seconds,
            activity,
        });
    }
    all
}

fn near(found: f64, right: f64, tolerance: f64) {
    assert!(
        (found - right).abs() <= tolerance * right.abs().max(1e-6),
        "{found} is not {right}"
    );
}

#[test]
fn exact_runs_give_the_coefficients_back() {
    let runs = runs(30, &TRUE, 0.0, &mut SplitMix64::new(1));
    for sign in [Sign::NonNegative, Sign::Any] {
        let fit = Fit::of(&runs, &Term::ALL, sign).unwrap();
        for (fitted, right) in fit.terms.iter().zip(TRUE) {
            near(fitted.value, right, 1e-4);
        }
        near(fit.r_squared.unwrap(), 1.0, 1e-9);
        assert!(fit.residual_uw.unwrap() < 1.0, "{fit:?}");
    }
}

#[test]
fn a_worked_example_has_the_errors_of_the_textbook() {
    // Idle and CPU alone: a straight line. CPU share 0, 0.5, 1, 1.5; power 1.0, 1.3, 1.5, 1.8 W.
    // Slope 0.52, intercept 1.01; residuals -0.01, 0.03, -0.03, 0.01; s² = 0.002 / 2 = 0.001;
    // the slope's error is s / sqrt(Sxx) = sqrt(0.001 / 1.25), the intercept's
    // s * sqrt(1/4 + 0.75² / 1.25).
    let points = [(0, 1.0), (500, 1.3), (1000, 1.5), (1500, 1.8)];
    let runs = points.map(|(cpu_ms, watts)| Run {
        energy_uj: watts * 1e6 * 10.0,
        activity: Activity {
            elapsed_ns: 10_000_000_000,
            cpu_ns: cpu_ms * 10_000_000,
            ..Activity::default()
        },
    });
    let fit = Fit::of(&runs, &Fit::terms_in(&runs), Sign::NonNegative).unwrap();
    let [idle, cpu] = fit.terms[..] else {
        panic!("{fit:?}");
    };
    assert_eq!([idle.term, cpu.term], [Term::IdlePowerUw, Term::CpuPowerUw]);
    near(idle.value, 1.01e6, 1e-9);
    near(cpu.value, 0.52e6, 1e-9);
    near(fit.residual_uw.unwrap(), 0.001_f64.sqrt() * 1e6, 1e-6);
    near(
        cpu.standard_error.unwrap(),
        (0.001_f64 / 1.25).sqrt() * 1e6,
        1e-6,
    );
    let factor = (0.25_f64 + 0.5625 / 1.25).sqrt();
    near(
        idle.standard_error.unwrap(),
        0.001_f64.sqrt() * factor * 1e6,
        1e-6,
    );
    // 1 - 0.002 / sum of (P - 1.4)² = 1 - 0.002 / 0.34.
    near(fit.r_squared.unwrap(), 1.0 - 0.002 / 0.34, 1e-9);
    near(fit.worst_uw, 0.03e6, 1e-6);
}

#[test]
fn noise_is_seen_in_the_errors() {
    let seed = 7;
    println!("seed {seed}");
    let runs = runs(200, &TRUE, 20_000.0, &mut SplitMix64::new(seed));
    let fit = Fit::of(&runs, &Term::ALL, Sign::Any).unwrap();
    near(fit.residual_uw.unwrap(), 20_000.0, 0.2);
    for (fitted, right) in fit.terms.iter().zip(TRUE) {
        let error = fitted.standard_error.unwrap();
        assert!(error > 0.0, "{fitted:?}");
        assert!((fitted.value - right).abs() < 5.0 * error, "{fitted:?}");
    }
}

#[test]
fn a_coefficient_that_would_be_negative_is_held_at_zero() {
    // A machine that gains by what it receives: no model of ours.
    let mut values = TRUE;
    values[3] = -9_000.0;
    let runs = runs(60, &values, 1_000.0, &mut SplitMix64::new(3));
    let plain = Fit::of(&runs, &Term::ALL, Sign::Any).unwrap();
    assert!(plain.terms[3].value < 0.0, "{plain:?}");
    let fit = Fit::of(&runs, &Term::ALL, Sign::NonNegative).unwrap();
    assert!(
        fit.terms.iter().all(|fitted| fitted.value >= 0.0),
        "{fit:?}"
    );
    let held = fit.terms[3];
    assert!(
        held.value == 0.0 && held.standard_error.is_none(),
        "{held:?}"
    );
    assert!(fit.r_squared < plain.r_squared);
    let text = fit.profile("mine", "a test", "60 made-up runs").to_toml();
    assert!(
        text.contains("[received_packet_nj]\nvalue = 0.0\n"),
        "{text}"
    );
}

#[test]
fn what_the_runs_cannot_tell_apart_is_named() {
    let mut runs = runs(20, &TRUE, 0.0, &mut SplitMix64::new(5));
    for run in &mut runs {
        run.activity.bytes_sent = run.activity.packets_sent * 100;
    }
    let error = Fit::of(&runs, &Term::ALL, Sign::NonNegative).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("cannot tell sent_byte_nj from idle_power_uw"),
        "{text}"
    );
    for run in &mut runs {
        run.activity.bytes_sent = 0;
    }
    let text = Fit::of(&runs, &Term::ALL, Sign::Any)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("no run has anything of sent_byte_nj"),
        "{text}"
    );
    assert!(!Fit::terms_in(&runs).contains(&Term::SentByteNj));
    let text = Fit::of(&runs[..3], &Term::ALL, Sign::Any)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("3 runs cannot tell 6 coefficients apart"),
        "{text}"
    );
}

#[test]
fn with_as_many_terms_as_runs_nothing_is_left_for_an_error() {
    let runs = runs(2, &TRUE, 0.0, &mut SplitMix64::new(11));
    let terms = [Term::IdlePowerUw, Term::CpuPowerUw];
    let fit = Fit::of(&runs, &terms, Sign::Any).unwrap();
    assert_eq!(fit.residual_uw, None);
    assert!(
        fit.terms
            .iter()
            .all(|fitted| fitted.standard_error.is_none())
    );
}

#[test]
fn runs_of_a_file_are_those_that_were_added() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.csv");
    let mut runs = runs(3, &TRUE, 0.0, &mut SplitMix64::new(13));
    for run in &mut runs {
        run.energy_uj = run.energy_uj.round();
        run.append(&path).unwrap();
    }
    assert_eq!(Run::read_all(&path).unwrap(), runs);
    std::fs::write(&path, format!("{COLUMNS}\n1,0,1,1,1,1,1\n")).unwrap();
    let text = Run::read_all(&path).unwrap_err().to_string();
    assert!(
        text.ends_with("runs.csv:2: elapsed_ns is 0: such a run has no power"),
        "{text}"
    );
    std::fs::write(&path, format!("{COLUMNS}\n1,,1,1,1,1,1\n")).unwrap();
    let text = Run::read_all(&path).unwrap_err().to_string();
    assert!(text.contains("runs.csv:2: elapsed_ns is empty"), "{text}");
}

proptest! {
    #[test]
    fn non_negative_is_never_negative_and_never_worse_than_leaving_terms_out(seed: u64) {
        let mut random = SplitMix64::new(seed);
        let mut values = TRUE;
        for value in &mut values {
            *value *= uniform(&mut random) * 2.0 - 0.7;
        }
        let runs = runs(25, &values, 5_000.0, &mut random);
        let fit = Fit::of(&runs, &Term::ALL, Sign::NonNegative).unwrap();
        for fitted in &fit.terms {
            prop_assert!(fitted.value >= 0.0, "{:?}", fitted);
        }
        let plain = Fit::of(&runs, &Term::ALL, Sign::Any).unwrap();
        if plain.terms.iter().all(|fitted| fitted.value > 0.0) {
            for (a, b) in fit.terms.iter().zip(&plain.terms) {
                prop_assert!((a.value - b.value).abs() <= 1e-6 * b.value.abs(), "{:?} {:?}", a, b);
            }
        }
        // Karush, Kuhn and Tucker: no held term would fall if it were let go.
        let squares = |fit: &Fit| fit.r_squared.map(|r| 1.0 - r).unwrap_or_default();
        for without in 0..6 {
            let terms: Vec<_> = Term::ALL.into_iter().enumerate()
                .filter(|(i, _)| *i != without).map(|(_, term)| term).collect();
            let fewer = Fit::of(&runs, &terms, Sign::NonNegative).unwrap();
            prop_assert!(squares(&fit) <= squares(&fewer) + 1e-9, "{}", without);
        }
    }
}
