//! Tables, histograms and reports for people. All results are printed here.

pub(crate) mod campaign;
pub(crate) mod compare;
pub(crate) mod energy;
pub(crate) mod histogram;

use std::{fmt::Display, io::Write};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use mq_measure::{Counts, LatencyRecorder, Samples, Summary};
use serde::Serialize;

use crate::units::{format_time, format_time_f64};

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
