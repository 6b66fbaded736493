//! `mqbench worker`: answers the jobs of `rtt` until it is interrupted.

use std::time::Duration;

use mq_transport::Address;

use super::args::ClientArgs;
use crate::{report, units::parse_duration, workload::rtt};

/// Options of `worker`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// Time between a job and its result, as if it were computed
    #[arg(long, default_value = "0ms", value_parser = parse_duration)]
    compute: Duration,
    /// Print `ready` as a line of its own once jobs are answered
    #[arg(long)]
    announce: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let (mqtt, route) = args.client.get(&args.broker)?;
    let client = mqtt.connect(&route, "mqbench-worker").await?;
    let ready = || {
        if args.announce {
            report::announce()
        } else {
            Ok(())
        }
    };
    rtt::worker(&client, mqtt.qos, args.compute, ready).await
}
