//! The rules that decide on warnings, each a pure function.

use statrs::distribution::{Binomial, DiscreteCDF as _};

use super::Warning;
use crate::LatencyRecorder;
use crate::clock::{CrossCheck, FitSummary, Step};
use crate::convert;
use crate::tracker::Counts;

/// Returns the most of `all` cases that chance explains in 99 of 100 runs, if each case occurs with probability `share`
/// (the quantile of the binomial distribution).
///
/// # Panics
/// If `share` is not within 0 and 1.
#[must_use]
pub fn most_by_chance(share: f64, all: u64) -> u64 {
    let binomial = Binomial::new(share, all).expect("a share within 0 and 1");
    match all {
        0 => 0,
        _ => binomial.inverse_cdf(0.99),
    }
}

/// Warns if more than 1 % of the messages were later than 10 % of the interval or than 1 ms, by more
/// than chance explains.
///
/// With an interval of 0 there is no schedule, and only the millisecond counts.
#[must_use]
pub fn generator_late(lateness: &LatencyRecorder, interval_ns: u64) -> Option<Warning> {
    let limit = if interval_ns == 0 {
        1_000_000
    } else {
        (interval_ns / 10).min(1_000_000)
    };
    let histogram = lateness.histogram();
    let late = histogram.count_between(histogram.next_non_equivalent(limit), u64::MAX);
    (late > most_by_chance(0.01, lateness.count())).then_some(Warning::GeneratorLate {
        p99_late_ns: lateness.percentile_ns(99.0)?,
        interval_ns,
    })
}

/// Warns if less than one sample is expected beyond `percentile`: p99.9 needs 1000, p99 100.
#[must_use]
pub fn too_few_samples(percentile: f64, count: u64) -> Option<Warning> {
    let beyond = 100.0 - percentile;
    // Rounded to a ten-thousandth, because 100 - 99.9 is not 0.1 in binary.
    let needed = if beyond > 0.0 {
        convert::round((100.0 / beyond * 1e4).round() / 1e4)
    } else {
        u64::MAX
    };
    (count < needed).then_some(Warning::TooFewSamples {
        percentile,
        count,
        needed,
    })
}

/// Warns if the clocks' offset is less certain than the effect is large.
///
/// The effect is a latency from one machine to another, or the difference of two latencies. The uncertainty
/// of a difference is the sum of both, see [`log::Difference`](crate::log::Difference).
#[must_use]
pub fn clock_uncertain(uncertainty_ns: u64, effect_ns: u64) -> Option<Warning> {
    (uncertainty_ns >= effect_ns).then_some(Warning::ClockUncertain {
        uncertainty_ns,
        effect_ns,
    })
}

/// Warns of messages that were under way while the clocks were not compared.
#[must_use]
pub fn clock_extrapolated(messages: u64) -> Option<Warning> {
    (messages > 0).then_some(Warning::ClockExtrapolated { messages })
}

/// Warns of a clock that was set.
#[must_use]
pub fn clock_stepped(step: &Step) -> Warning {
    let Step { at_ns, by_ns } = *step;
    Warning::ClockStepped { at_ns, by_ns }
}

/// Warns if chrony does not agree with the offset that was measured.
#[must_use]
pub fn clocks_disagree(measured: &FitSummary, check: CrossCheck) -> Option<Warning> {
    match check {
        CrossCheck::Disagrees { bound_ns } => Some(Warning::ClocksDisagree {
            offset_ns: measured.offset_ns,
            uncertainty_ns: measured.uncertainty_ns,
            bound_ns,
        }),
        CrossCheck::Agrees { .. } | CrossCheck::NotPossible => None,
    }
}

/// Warns if sender and receiver are two machines. For logs whose clocks were not compared.
#[must_use]
pub fn clocks_not_compared(sender: &str, receiver: &str) -> Option<Warning> {
    (sender != receiver).then_some(Warning::ClocksNotCompared)
}

/// Warns of lost, duplicate, reordered and unknown messages.
#[must_use]
pub fn counts(counts: &Counts) -> Vec<Warning> {
    let Counts {
        sent,
        received,
        lost,
        duplicates,
        reordered,
        unknown,
    } = *counts;
    [
        (lost > 0).then_some(Warning::LostMessages { lost, sent }),
        (duplicates > 0).then_some(Warning::DuplicateMessages {
            duplicates,
            received,
        }),
        (reordered > 0).then_some(Warning::ReorderedMessages {
            reordered,
            received,
        }),
        (unknown > 0).then_some(Warning::UnknownMessages { count: unknown }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Warns if TCP and QUIC use different congestion controls; `reno` and `newreno` are one.
#[must_use]
pub fn congestion_control(tcp: &str, quic: &str) -> Option<Warning> {
    let plain = |name: &str| match name.to_ascii_lowercase().as_str() {
        "newreno" | "new-reno" | "new_reno" => "reno".to_owned(),
        other => other.to_owned(),
    };
    (plain(tcp) != plain(quic)).then(|| Warning::KernelCongestionControl {
        tcp: tcp.to_owned(),
        quic: quic.to_owned(),
    })
}

/// Warns if `measured` is further than `tolerance` (a share, such as 0.05) from `configured`.
#[must_use]
pub fn link_off_profile(
    quantity: &str,
    configured: f64,
    measured: f64,
    tolerance: f64,
) -> Option<Warning> {
    ((measured - configured).abs() > tolerance * configured.abs()).then(|| {
        Warning::LinkOffProfile {
            quantity: quantity.to_owned(),
            configured,
            measured,
        }
    })
}

/// Warns if the governor, where there is one, is not `performance`.
#[must_use]
pub fn cpu_governor(governor: Option<&str>) -> Option<Warning> {
    governor
        .filter(|governor| *governor != "performance")
        .map(|governor| Warning::CpuGovernor {
            governor: governor.to_owned(),
        })
}

/// Warns if `found` shows that a machine is emulated.
#[must_use]
pub fn emulated(host: Option<&str>, found: Option<&str>) -> Option<Warning> {
    found.map(|found| Warning::Emulated {
        host: host.map(str::to_owned),
        found: found.to_owned(),
    })
}
