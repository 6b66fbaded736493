//! `mqbench net check`: compares an interface with a link.

use std::{path::Path, process::ExitCode, time::Duration};

use mq_netem::{Controller, Direction, Loss, Shape};

use super::CheckArgs;
use crate::{
    clock::nanoseconds,
    report,
    units::format_time,
    workload::ping::{self, Echoes},
};

/// Tolerance below the configured round-trip time, since timer ticks and clocks are inexact.
const SHORTER: Duration = Duration::from_millis(1);

pub(super) fn run(args: &CheckArgs, state: &Path) -> anyhow::Result<ExitCode> {
    let target = &args.target;
    let direction = target.load()?;
    let controller = Controller::open(state)?;
    let differences = controller.differences(&target.interface, &direction)?;
    let mut text = String::new();
    for difference in &differences {
        text.push_str(&format!("{}: {difference}\n", target.interface));
    }
    if differences.is_empty() {
        let (interface, name) = (&target.interface, target.name());
        text.push_str(&format!("{interface} is set as {name} says\n"));
    }
    report::print(&text)?;
    let mut agrees = differences.is_empty();
    if let Some(peer) = args.peer {
        let shape = target.shape(&direction)?;
        let expected = ExpectedLink::new(&direction, &shape);
        let linger = direction.delay * 2 + direction.jitter * 8 + Duration::from_millis(500);
        let echoes = ping::ping(peer, &target.interface, args.count, linger)?;
        let (table, as_configured) = compare(&expected, &echoes, args.tolerance);
        report::print(&format!(
            "{peer} through {}, if what it sends back is not shaped:\n{table}",
            target.interface
        ))?;
        agrees &= as_configured;
    }
    Ok(if agrees {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The expected result of pings.
struct ExpectedLink {
    round_trip: Duration,
    /// Share of pings without an answer.
    lost: f64,
    /// `true` if losses are independent of one another.
    single: bool,
}

impl ExpectedLink {
    fn new(direction: &Direction, shape: &Shape) -> Self {
        // The peer discards a corrupted ping.
        let arrives = (1.0 - direction.loss.mean()) * (1.0 - direction.corrupt.share());
        Self {
            round_trip: shape.median_delay(ping::FRAME),
            lost: 1.0 - arrives,
            single: matches!(direction.loss, Loss::Bernoulli(_)),
        }
    }
}

/// Compares configured and measured values; returns a line for each, and `true` if all agree.
fn compare(expected: &ExpectedLink, echoes: &Echoes, tolerance: Duration) -> (String, bool) {
    let mut agrees = true;
    let mut table = format!("{:24}{:>12}  {}\n", "", "configured", "measured");
    let mut line = |what: &str, configured: &str, measured: &str, good: bool| {
        agrees &= good;
        let remark = if good { "" } else { "  OFF" };
        table.push_str(&format!("{what:24}{configured:>12}  {measured}{remark}\n"));
    };
    let show = |duration| format_time(nanoseconds(duration));
    let wanted = expected.round_trip;
    match echoes.median() {
        None => line("round trip, median", &show(wanted), "no answer", false),
        Some(median) => line(
            "round trip, median",
            &show(wanted),
            &show(median),
            median + SHORTER >= wanted && median <= wanted + tolerance,
        ),
    }
    let (sent, lost) = (echoes.sent, echoes.lost());
    let configured = format!("{}%", (expected.lost * 1e4).round() / 1e2);
    if expected.single {
        let (least, most) = likely(sent, expected.lost);
        line(
            "lost",
            &configured,
            &format!("{lost} of {sent}; chance explains {least} to {most}"),
            (least..=most).contains(&lost),
        );
    } else {
        let measured = format!("{lost} of {sent}; in bursts, so not judged");
        line("lost", &configured, &measured, true);
    }
    (table, agrees)
}

/// Returns the range of losses in 99 of 100 cases: the binomial distribution without half a percent at each end.
fn likely(all: u32, share: f64) -> (u32, u32) {
    if share <= 0.0 {
        return (0, 0);
    }
    if share >= 1.0 {
        return (all, all);
    }
    let mut below = 0.0;
    let mut least = None;
    // In logarithms: the probability of the first term may be too small for a float.
    let mut chance = f64::from(all) * (1.0 - share).ln();
    for lost in 0..=all {
        below += chance.exp();
        if below >= 0.005 && least.is_none() {
            least = Some(lost);
        }
        if below >= 0.995 {
            return (least.unwrap_or(lost), lost);
        }
        chance += (f64::from(all - lost) / f64::from(lost + 1)).ln() + (share / (1.0 - share)).ln();
    }
    (least.unwrap_or_default(), all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_the_binomial_one() {
        // From tables of the distribution.
        assert_eq!(likely(100, 0.05), (0, 11));
        assert_eq!(likely(1000, 0.05), (33, 69));
        assert_eq!(likely(100_000, 0.5), (49_593, 50_407));
        assert_eq!(likely(10, 0.0), (0, 0));
        assert_eq!(likely(10, 1.0), (10, 10));
    }

    #[test]
    fn a_quantity_that_is_off_is_marked() {
        let ms = Duration::from_millis;
        let expected = ExpectedLink {
            round_trip: ms(25),
            lost: 0.05,
            single: true,
        };
        let echoes = |answered, round_trip| Echoes {
            sent: 1000,
            round_trips: vec![ms(round_trip); answered],
        };
        for (answered, round_trip, off) in [
            (950, 25, 0),
            (950, 29, 0),
            (950, 31, 1),
            (950, 23, 1),
            (1000, 25, 1),
            (900, 90, 2),
            (0, 0, 2),
        ] {
            let (table, agrees) = compare(&expected, &echoes(answered, round_trip), ms(5));
            assert_eq!(table.matches("OFF").count(), off, "{table}");
            assert_eq!(agrees, off == 0);
        }
    }
}
