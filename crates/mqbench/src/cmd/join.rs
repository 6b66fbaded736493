//! `mqbench join`: matches a send log with a receive log by sequence number.

use std::{num::NonZeroU32, path::PathBuf};

use mq_measure::{
    clock::{ClockFile, Relation},
    log::{Joined, Outcome, join_topics, read_receive_log, read_send_log},
    validity,
};

use super::args::topics;
use crate::{report, units::format_time};

/// Options of `join`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The send log that `mqbench pub` wrote
    #[arg(value_name = "SEND_LOG")]
    send: PathBuf,
    /// The receive log that `mqbench sub` wrote
    #[arg(value_name = "RECEIVE_LOG")]
    receive: PathBuf,
    /// Topics to which the messages were published in turn, as `pub --topics`: the order counts within each
    #[arg(long, default_value = "1", value_parser = topics)]
    topics: NonZeroU32,
    /// Difference between the hosts' clocks, as `mqbench clock measure` wrote it; twice if both were compared with a
    /// third
    #[arg(long, value_name = "FILE")]
    clock: Vec<PathBuf>,
    /// File for the joined samples (CSV)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// File for the figures and their uncertainty (JSON)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// File from `--json` of another run, with whose median one-way delay this run's is compared
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let sent = read_send_log(&args.send)?;
    let received = read_receive_log(&args.receive)?;
    let other = args.against.as_deref().map(Outcome::load).transpose()?;
    let files = args.clock.iter().map(|path| ClockFile::load(path));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let hosts = (&sent.meta.host[..], &received.meta.host[..]);
    let mut joined = if files.is_empty() {
        let mut joined = join_topics(&sent.records, &received.records, None, args.topics);
        let warning = validity::clocks_not_compared(hosts.0, hosts.1);
        joined.warnings.extend(warning);
        joined
    } else {
        let clocks = Relation::between(&files, hosts.0, hosts.1)?;
        join_topics(&sent.records, &received.records, Some(&clocks), args.topics)
    };
    let of_clocks = files.into_iter().flat_map(|file| file.validity.warnings);
    joined.warnings.extend(of_clocks);
    if let Some(path) = &args.out {
        joined.samples.save(path)?;
    }
    let outcome = Outcome::new(&sent.meta.run, &joined);
    if let Some(path) = &args.json {
        outcome.save(path)?;
    }
    let mut text = describe(&joined);
    if let Some(other) = &other {
        text.push_str(&compare(&outcome, other));
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

fn describe(joined: &Joined) -> String {
    let mut text = report::latencies("send to receive", &joined.samples);
    if let Some(uncertainty_ns) = joined.uncertainty_ns {
        text.push_str(&format!(
            "each of these is uncertain by {} at most, for the clocks\n",
            format_time(uncertainty_ns)
        ));
    }
    text + &report::counts_line(&joined.counts) + &report::warnings(&joined.warnings)
}

/// Compares this run's median with another's.
fn compare(outcome: &Outcome, other: &Outcome) -> String {
    let Some(difference) = outcome.minus(other) else {
        return format!(
            "! nothing to compare with {}: no message arrived\n",
            other.run
        );
    };
    let than = if difference.median_ns < 0 {
        "shorter"
    } else {
        "longer"
    };
    let text = format!(
        "median one-way delay {} {than} than that of {}, uncertain by {}\n",
        format_time(difference.median_ns.unsigned_abs()),
        other.run,
        format_time(difference.uncertainty_ns)
    );
    text + &report::warnings(difference.warning())
}
