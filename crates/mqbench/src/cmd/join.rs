//! `mqbench join`: puts a send log and a receive log together by sequence number.

use std::path::PathBuf;

use mq_measure::{
    LatencyRecorder, Summary,
    log::{join, read_receive_log, read_send_log},
};

use crate::report;

/// Options of `join`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The send log that `mqbench pub` wrote
    #[arg(value_name = "SEND_LOG")]
    send: PathBuf,
    /// The receive log that `mqbench sub` wrote
    #[arg(value_name = "RECEIVE_LOG")]
    receive: PathBuf,
    /// File for the joined samples (CSV)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let sent = read_send_log(&args.send)?;
    let received = read_receive_log(&args.receive)?;
    let joined = join(&sent.records, &received.records);
    if let Some(path) = &args.out {
        joined.samples.save(path)?;
    }
    let latencies = joined.samples.latencies_intended_ns();
    let mut recorder = LatencyRecorder::new();
    recorder.extend(latencies.iter().copied());
    let mut text = report::histogram::render("send to receive", &recorder);
    if let Some(summary) = Summary::from_samples(&latencies) {
        text.push_str(&super::e2e::line(&summary));
    }
    let counts = joined.counts;
    text.push_str(&report::counts_line(&counts));
    for warning in &joined.warnings {
        text.push_str(&format!("! {warning}\n"));
    }
    for (path, truncated) in [
        (&args.send, sent.truncated),
        (&args.receive, received.truncated),
    ] {
        if truncated {
            text.push_str(&format!(
                "! {} ends inside a line, which was left out\n",
                path.display()
            ));
        }
    }
    report::print(&text)
}
