//! `mqbench load`: throughput and CPU per message.

use std::{cell::RefCell, time::Duration};

use mq_measure::process::{ProcessMeter, Usage};
use mq_transport::Address;

use super::args::ClientArgs;
use crate::{
    mqtt::ClientIds,
    report,
    units::{duration, time},
    workload::load,
};

/// Options of `load`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The broker, such as quic://127.0.0.1:14567
    #[arg(value_name = "URL")]
    broker: Address,
    /// Publishers
    #[arg(long, default_value_t = 1)]
    publishers: usize,
    /// Subscribers, spread over the topics
    #[arg(long, default_value_t = 1)]
    subscribers: usize,
    /// Topics, spread over the publishers
    #[arg(long, default_value_t = 1)]
    topics: usize,
    /// Payload size in bytes, at least 8
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Messages a second of all publishers together; as many as they can without it
    #[arg(long)]
    rate: Option<f64>,
    /// How long to measure
    #[arg(long, default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Time over which the publishers begin
    #[arg(long, default_value = "0s", value_parser = duration)]
    ramp_up: Duration,
    /// Client identifiers: %r stands for the role, pub or sub, and %i for the number within it,
    /// from 0; %% is a percent sign
    #[arg(long, value_name = "PATTERN", default_value = "mqbench-%r-%i")]
    client_id: ClientIds,
    /// The broker's process identifier, to measure its CPU and memory
    #[arg(long, value_name = "PID")]
    broker_pid: Option<u32>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    if args
        .rate
        .is_some_and(|rate| !rate.is_finite() || rate <= 0.0)
    {
        anyhow::bail!("--rate must be above 0 messages a second");
    }
    if let Some(both) = args.client_id.clash(args.publishers, args.subscribers) {
        anyhow::bail!(
            "--client-id gives several clients the identifier `{both}`, and the broker would \
             disconnect all but one: put %r and %i into it"
        );
    }
    let (mqtt, route) = args.client.get(&args.broker)?;
    let plan = load::Plan {
        publishers: args.publishers,
        subscribers: args.subscribers,
        topics: args.topics,
        size: args.size,
        rate: args.rate,
        duration: args.duration,
        ramp_up: args.ramp_up,
        client_ids: args.client_id,
    };
    let meter = RefCell::new(None);
    let usage: RefCell<Option<Usage>> = RefCell::new(None);
    let outcome = load::run(&plan, &mqtt, &route, || {
        let Some(pid) = args.broker_pid else {
            return Ok(());
        };
        let mut meter = meter.borrow_mut();
        match &*meter {
            None => *meter = Some(ProcessMeter::start(pid)?),
            Some(meter) => {
                let meter: &ProcessMeter = meter;
                *usage.borrow_mut() = Some(meter.read()?);
            }
        }
        Ok(())
    })
    .await?;
    let seconds = outcome.elapsed.as_secs_f64();
    #[expect(
        clippy::cast_precision_loss,
        reason = "rates are shown with a few digits"
    )]
    let per_second = |count: u64| count as f64 / seconds;
    let usage = usage.into_inner();
    let per_message = usage
        .as_ref()
        .map(|usage| usage.cpu.total_ns / outcome.received.max(1));
    if args.json {
        let json = serde_json::json!({
            "schema": "mq-load/1",
            "broker": args.broker.to_string(),
            "qos": mqtt.qos as u8,
            "payload_bytes": args.size,
            "publishers": args.publishers,
            "subscribers": args.subscribers,
            "sent_per_second": per_second(outcome.sent),
            "received_per_second": per_second(outcome.received),
            "broker_cpu_ns_per_message": per_message,
            "broker_cores": usage.as_ref().map(Usage::cores),
            "broker_peak_rss_bytes": usage.as_ref().map(|usage| usage.memory.peak_rss_bytes),
        });
        return report::print(&report::json(&json)?);
    }
    let mut text = format!(
        "{}  sent {:.0}/s  received {:.0}/s",
        args.broker,
        per_second(outcome.sent),
        per_second(outcome.received)
    );
    if let (Some(usage), Some(per_message)) = (usage, per_message) {
        text.push_str(&format!(
            "  broker: {} CPU a message received, {:.2} cores, {} kB peak memory",
            time(per_message),
            usage.cores(),
            usage.memory.peak_rss_bytes / 1024
        ));
    }
    report::print(&(text + "\n"))
}
