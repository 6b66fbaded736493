//! Tables, histograms and reports for people. All results are printed here.

pub(crate) mod campaign;
pub(crate) mod compare;
pub(crate) mod energy;
pub(crate) mod explain;
pub(crate) mod histogram;

use std::{cmp::Ordering, fmt::Display, io::Write};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use mq_measure::{Counts, LatencyRecorder, Samples, Summary};
use mq_transport::QuicOptions;
use serde::Serialize;

use crate::{
    clock::nanoseconds,
    units::{format_time, format_time_f64},
};

/// Formats the histogram of a run's latencies, and their usual figures.
pub(crate) fn latencies(title: &str, samples: &Samples) -> String {
    let latencies = samples.latencies_intended_ns();
    let mut recorder = LatencyRecorder::new();
    recorder.extend(latencies.iter().copied());
    histogram::render(title, &recorder) + &figures(&latencies).unwrap_or_default()
}

/// Formats the usual figures of some times on one line; `None` without any.
pub(crate) fn figures(values_ns: &[u64]) -> Option<String> {
    let summary = Summary::from_samples(values_ns)?;
    Some(format!(
        "mean {}  RSD {:.2}  p50 {}  p95 {}  p99 {}  max {}\n",
        format_time_f64(summary.mean_ns),
        summary.rsd,
        format_time(summary.p50_ns),
        format_time(summary.p95_ns),
        format_time(summary.p99_ns),
        format_time(summary.max_ns)
    ))
}

/// Formats warnings or notes, each on one line.
pub(crate) fn warnings<W: Display>(warnings: impl IntoIterator<Item = W>) -> String {
    let lines = warnings.into_iter().map(|warning| format!("! {warning}\n"));
    lines.collect()
}

/// Formats a value as JSON on one line.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string(value).context("cannot write JSON")?;
    Ok(text + "\n")
}

/// Formats a value as JSON with a field on each line.
pub(crate) fn pretty_json(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    Ok(text + "\n")
}

/// Formats the round trips that QUIC assumes before it has measured one, and beside them TCP's first timeout; `None`
/// without QUIC.
pub(crate) fn initial_rtts(
    quic_ns: impl IntoIterator<Item = u64>,
    tcp_rto_ns: Option<u64>,
) -> Option<String> {
    let default = nanoseconds(QuicOptions::default().initial_rtt);
    let each = quic_ns.into_iter().map(|ns| {
        let time = format_time(ns);
        match ns.cmp(&default) {
            Ordering::Less => format!("{time} (tuned)"),
            Ordering::Equal => format!("{time} (RFC 9002)"),
            Ordering::Greater => time,
        }
    });
    let each = each.collect::<Vec<_>>().join(", ");
    if each.is_empty() {
        return None;
    }
    let tcp = tcp_rto_ns.map(|ns| format!("; TCP's initial RTO: {}", format_time(ns)));
    Some(format!(
        "QUIC's initial RTT: {each}{}",
        tcp.unwrap_or_default()
    ))
}

/// Formats the counts of messages on one line.
pub(crate) fn counts_line(counts: &Counts) -> String {
    format!(
        "sent {}  received {}  lost {}  duplicates {}  reordered {}\n",
        counts.sent, counts.received, counts.lost, counts.duplicates, counts.reordered
    )
}

/// Returns a progress bar of `length` steps; one of the usual form if the template is wrong.
pub(crate) fn progress_bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Tells the program that started this one that it is ready: a line on standard output, after the lines of its
/// addresses. Messages to people are on standard error.
pub(crate) fn announce() -> anyhow::Result<()> {
    print("ready\n")
}

/// Writes results to standard output. A reader that has gone (`| head`) is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_initial_rtt_below_the_default_is_called_tuned() {
        const MS: u64 = 1_000_000;
        let default = initial_rtts([333 * MS], Some(1_000 * MS)).unwrap();
        assert_eq!(
            default,
            "QUIC's initial RTT: 333 ms (RFC 9002); TCP's initial RTO: 1.00 s"
        );
        let several = initial_rtts([100 * MS, 1_000 * MS], None).unwrap();
        assert_eq!(several, "QUIC's initial RTT: 100 ms (tuned), 1.00 s");
        assert_eq!(initial_rtts([], Some(1_000 * MS)), None);
    }
}
