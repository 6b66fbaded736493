//! `mqbench connect`: connection times by kind.

use mq_measure::result::ConnectKind;
use mq_transport::Address;

use crate::{
    args::{MqttArgs, TransportArgs},
    report::{self, compare::kind_name},
    units::time,
    workload::connect::{self, Dialler},
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
    #[command(flatten)]
    mqtt: MqttArgs,
    #[command(flatten)]
    transport: TransportArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let options = args.transport.options();
    for kind in connect::kinds(args.broker.scheme) {
        let mut dialler = Dialler::new(&args.broker, &options, *kind)?;
        let mut attempts = Vec::new();
        let mut last_error = None;
        for _ in 0..args.count {
            match dialler.dial(&args.mqtt).await {
                Ok(connected) => attempts.push(Some(connected)),
                Err(error) => {
                    attempts.push(None);
                    last_error = Some(error);
                }
            }
            tokio::time::sleep(connect::PAUSE).await;
        }
        let times = connect::summarise(*kind, &attempts);
        if let (0, Some(error)) = (times.count, last_error) {
            return Err(error);
        }
        report::print(&line(*kind, &times))?;
    }
    Ok(())
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
