//! Tables, histograms and reports for people. All results are printed here.

pub(crate) mod campaign;
pub(crate) mod compare;
pub(crate) mod energy;
pub(crate) mod histogram;

use std::io::Write;

/// The counts of messages on one line.
pub(crate) fn counts_line(counts: &mq_measure::Counts) -> String {
    format!(
        "sent {}  received {}  lost {}  duplicates {}  reordered {}\n",
        counts.sent, counts.received, counts.lost, counts.duplicates, counts.reordered
    )
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
