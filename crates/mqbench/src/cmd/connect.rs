//! `mqbench connect`: connection times by kind.

use std::path::PathBuf;

use mq_measure::{Sample, Samples, result::ConnectKind};
use mq_transport::Address;

use super::args::{ClientArgs, resumption};
use crate::{
    report::{self, compare::kind_name},
    units::time,
    workload::{
        connect::{self, Connected, Dialler},
        reconnect::Resumption,
    },
};

/// Options of `connect`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// Connections of each kind
    #[arg(long, default_value_t = 100)]
    count: u32,
    /// Of this kind alone
    #[arg(long, value_parser = resumption())]
    resumption: Option<Resumption>,
    /// File for the raw times (CSV), of the last kind: sent is when bytes could be written, received is
    /// CONNACK, both since the dial; nothing was received where it is another kind
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mqtt = args.client.mqtt.get();
    let options = args.client.transport.options();
    let scheme = args.broker.scheme;
    let kinds = match args.resumption {
        Some(resumption) => vec![connect::kind(scheme, resumption)],
        None => connect::kinds(scheme).to_vec(),
    };
    for kind in kinds {
        let mut dialler = Dialler::new(&args.broker, &options, kind)?;
        let mut attempts = Vec::new();
        let mut last_error = None;
        for _ in 0..args.count {
            match dialler.dial(&mqtt).await {
                Ok(connected) => attempts.push(Some(connected)),
                Err(error) => {
                    attempts.push(None);
                    last_error = Some(error);
                }
            }
            tokio::time::sleep(connect::PAUSE).await;
        }
        if let Some(file) = &args.out {
            samples(kind, &attempts).save(file)?;
        }
        let times = connect::summarise(kind, &attempts);
        if let (0, Some(error)) = (times.count, last_error) {
            return Err(error);
        }
        report::print(&line(kind, &times))?;
    }
    Ok(())
}

/// The attempts as samples; times count from each dial.
fn samples(kind: ConnectKind, attempts: &[Option<Connected>]) -> Samples {
    let sample = |(seq, attempt): (u64, &Option<Connected>)| {
        let found = attempt.filter(|connected| connected.kind == kind);
        Sample {
            seq,
            intended_ns: 0,
            sent_ns: found.map_or(0, |connected| connected.usable_ns),
            received_ns: found.map(|connected| connected.connack_ns),
        }
    };
    (0..).zip(attempts).map(sample).collect()
}

fn line(kind: ConnectKind, times: &mq_measure::result::ConnectTimes) -> String {
    let part = |name, summary: &Option<mq_measure::Summary>| {
        summary.as_ref().map_or_else(String::new, |s| {
            format!(
                "  {name} p50 {} p95 {} max {}",
                time(s.p50_ns),
                time(s.p95_ns),
                time(s.max_ns)
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
