//! `mqbench connect`: connection times by kind.

use std::{path::PathBuf, time::Duration};

use mq_measure::result::ConnectKind;
use mq_transport::Address;

use super::args::{ClientArgs, resumption};
use crate::{
    report::{self, compare::kind_name},
    units::format_time,
    workload::{
        connect::{self, Dialler},
        resumption::Resumption,
    },
};

/// Options of `connect`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// Connections of each kind
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Make connections of this kind only
    #[arg(long, value_parser = resumption())]
    resumption: Option<Resumption>,
    /// File for the raw times (CSV) of the last kind: sent is the time at which bytes can be written, received that of
    /// CONNACK, both since the dial; an attempt that turns out to be of another kind has no received time
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Timeout of a connection without `--connect-timeout`, since a user waits for it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Number of first attempts after which the command gives up if all of them failed.
const HOPELESS: usize = 3;

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mqtt = args.client.mqtt.get_impatient(PATIENCE);
    let options = args.client.transport.options();
    let scheme = args.broker.scheme;
    let mut assumed = args.client.transport.initial_rtt_line(scheme);
    let kinds = match args.resumption {
        Some(resumption) => vec![connect::kind(scheme, resumption)],
        None => connect::kinds(scheme).to_vec(),
    };
    for kind in kinds {
        let progress =
            report::progress_bar(args.count.into(), "{prefix:>8} {wide_bar} {pos}/{len}");
        progress.set_prefix(kind_name(kind));
        let mut dialler = Dialler::new(&args.broker, &options, kind)?;
        let mut attempts = Vec::new();
        let mut last_error = None;
        for _ in 0..args.count {
            match dialler.dial(&mqtt).await {
                Ok(connected) => attempts.push(Some(connected)),
                Err(error) => {
                    attempts.push(None);
                    // On a lossy link one attempt may fail and the next succeed.
                    if attempts.len() >= HOPELESS && attempts.iter().all(Option::is_none) {
                        let tries = format!("{HOPELESS} tries of {HOPELESS} failed");
                        return Err(error.context(tries));
                    }
                    last_error = Some(error);
                }
            }
            progress.inc(1);
            tokio::time::sleep(connect::PAUSE).await;
        }
        progress.finish_and_clear();
        if let Some(file) = &args.out {
            connect::samples(kind, &attempts).save(file)?;
        }
        let times = connect::summarise(kind, &attempts);
        if let (0, Some(error)) = (times.count, last_error) {
            return Err(error);
        }
        // Above the first kind alone.
        report::print(&(core::mem::take(&mut assumed) + &line(kind, &times)))?;
    }
    Ok(())
}

fn line(kind: ConnectKind, times: &mq_measure::result::ConnectTimes) -> String {
    let part = |name, summary: &Option<mq_measure::Summary>| {
        summary.as_ref().map_or_else(String::new, |s| {
            format!(
                "  {name} p50 {} p95 {} max {}",
                format_time(s.p50_ns),
                format_time(s.p95_ns),
                format_time(s.max_ns)
            )
        })
    };
    format!(
        "{:<8} {} connections, {} failed{}{}\n",
        kind_name(kind),
        times.count,
        times.failed,
        part("usable", &times.usable),
        part("CONNACK", &times.connack),
    )
}
