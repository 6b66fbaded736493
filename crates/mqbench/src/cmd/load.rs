//! `mqbench load`: throughput, latency and CPU per message.

use std::{
    io::{IsTerminal as _, Write as _},
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use anyhow::bail;
use mq_codec::QoS;
use mq_measure::{
    Summary,
    process::{ProcessMeter, Usage},
};
use mq_transport::Address;
use serde::Serialize;

use super::args::ClientArgs;
use crate::{
    clock::nanoseconds,
    mqtt::ClientIds,
    report,
    units::{format_time, parse_duration},
    workload::load::{self, LoadProgress, LoadResult, Pace},
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
    /// Messages a second of all publishers together; without it, as many as possible
    ///
    /// The latency of a message counts from the time at which it was due, also if it was sent later: a broker that
    /// stalls delays every message that was due meanwhile, and a latency from the sending would leave them out
    /// (coordinated omission). Without a rate no message is due, and the latency of every 64th counts from the moment
    /// at which its publisher had it to send.
    #[arg(long)]
    rate: Option<f64>,
    /// Condition for a publisher's next message: none (open), or an acknowledgement (closed)
    ///
    /// A closed loop slows down with the broker. Its latency, from the sending, is that of its own load, and says
    /// nothing of messages that are due at times of their own.
    #[arg(long = "loop", value_name = "KIND", value_parser = ["open", "closed"], default_value = "open")]
    kind: String,
    /// With --loop closed: the most messages of a publisher without an acknowledgement; default: 1
    #[arg(long, value_name = "COUNT")]
    in_flight: Option<NonZeroUsize>,
    /// Duration of the measurement
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Time between the start of the last publisher and the measurement
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    warm_up: Duration,
    /// Time over which the publishers start
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    ramp_up: Duration,
    /// Client identifiers: %r stands for the role, pub or sub, and %i for the number within it,
    /// from 0; %% is a percent sign
    #[arg(long, value_name = "PATTERN", default_value = ClientIds::USUAL)]
    client_id: ClientIds,
    /// The broker's process identifier, to measure its CPU and memory
    #[arg(long, value_name = "PID")]
    broker_pid: Option<u32>,
    /// Print each second's rates and latencies to standard error, as on a terminal
    #[arg(long)]
    progress: bool,
    /// Print the result as JSON, mq-load/1 (docs/reference/json.md)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

impl Args {
    fn pace(&self, qos: QoS) -> anyhow::Result<Pace> {
        let is_open = self.kind == "open";
        match self.rate {
            Some(rate) if !rate.is_finite() || rate <= 0.0 => {
                bail!("--rate must be above 0 messages a second")
            }
            _ if is_open && self.in_flight.is_some() => {
                bail!("--in-flight is for --loop closed: an open loop waits for no acknowledgement")
            }
            Some(rate) if is_open => Ok(Pace::Rate(rate)),
            None if is_open => Ok(Pace::Saturate),
            Some(_) => {
                bail!("--rate is for --loop open: in a closed loop acknowledgements set the rate")
            }
            None if qos == QoS::AtMostOnce => bail!(
                "--loop closed waits for acknowledgements, which QoS 0 has not: give --qos 1 or 2"
            ),
            None => Ok(Pace::InFlight(self.in_flight.unwrap_or(NonZeroUsize::MIN))),
        }
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let (mqtt, route) = args.client.get(&args.broker)?;
    let pace = args.pace(mqtt.qos)?;
    if args.duration.is_zero() {
        bail!("--duration must be above 0");
    }
    if let Some(both) = args.client_id.clash(args.publishers, args.subscribers) {
        bail!(
            "--client-id gives several clients the identifier `{both}`, and the broker would \
             disconnect all but one: put %r and %i into it"
        );
    }
    let plan = load::Plan {
        publishers: args.publishers,
        subscribers: args.subscribers,
        topics: args.topics,
        topics_of_each: NonZeroU32::MIN,
        size: args.size,
        pace,
        warm_up: args.warm_up,
        duration: args.duration,
        ramp_up: args.ramp_up,
        client_ids: args.client_id.clone(),
    };
    let shows = args.progress || std::io::stderr().is_terminal();
    let (mut meter, mut usage) = (None, None);
    let outcome = load::run(&plan, &mqtt, &route, |progress| {
        match (progress, args.broker_pid) {
            (LoadProgress::WarmingUp(second), _) if shows => show("warm-up", &second),
            (LoadProgress::Measured(second, passed), _) if shows => {
                show(&format!("{:.0} s", passed.as_secs_f64()), &second);
            }
            (LoadProgress::Steady, Some(pid)) => match &meter {
                None => meter = Some(ProcessMeter::start(pid)?),
                Some(meter) => usage = Some(meter.read()?),
            },
            _ => {}
        }
        Ok(())
    })
    .await?;
    if args.json {
        let load = Load::new(&args, &plan, mqtt.qos, &outcome, usage.as_ref());
        return report::print(&report::json(&load)?);
    }
    report::print(&text(&args.broker, &outcome, usage.as_ref()))
}

/// Prints a second's figures. A write error is ignored: the measurement does not depend on the terminal.
fn show(when: &str, second: &LoadResult) {
    let _ = writeln!(std::io::stderr(), "{when:>8}  {}", figures(second));
}

fn figures(outcome: &LoadResult) -> String {
    let mut text = format!(
        "sent {:.0}/s  received {:.0}/s",
        outcome.per_second(outcome.sent),
        outcome.per_second(outcome.received)
    );
    if let Some(latency) = &outcome.latency {
        let [p50, p99, p999, max] = [
            latency.p50_ns,
            latency.p99_ns,
            latency.p999_ns,
            latency.max_ns,
        ]
        .map(format_time);
        text.push_str(&format!(
            "  latency p50 {p50} p99 {p99} p99.9 {p999} max {max}"
        ));
    }
    text
}

fn per_message(outcome: &LoadResult, usage: &Usage) -> u64 {
    usage.cpu.total_ns / outcome.received.max(1)
}

fn text(broker: &Address, outcome: &LoadResult, usage: Option<&Usage>) -> String {
    let mut text = format!("{broker}  {}", figures(outcome));
    if let Some(usage) = usage {
        text.push_str(&format!(
            "  broker: {} CPU a message received, {:.2} cores, {} kB peak memory",
            format_time(per_message(outcome, usage)),
            usage.cores(),
            usage.memory.peak_rss_bytes / 1024
        ));
    }
    text + "\n"
}

/// Result of the schema `mq-load/1`, described in `docs/reference/json.md`.
#[derive(Serialize)]
struct Load<'a> {
    schema: &'static str,
    broker: String,
    qos: u8,
    payload_bytes: usize,
    publishers: usize,
    subscribers: usize,
    r#loop: &'a str,
    asked_per_second: Option<f64>,
    in_flight: Option<usize>,
    elapsed_ns: u64,
    sent_per_second: f64,
    received_per_second: f64,
    latency_from: &'static str,
    latency: Option<Summary>,
    broker_cpu_ns_per_message: Option<u64>,
    broker_cores: Option<f64>,
    broker_peak_rss_bytes: Option<u64>,
}

impl<'a> Load<'a> {
    fn new(
        args: &'a Args,
        plan: &load::Plan,
        qos: QoS,
        outcome: &LoadResult,
        usage: Option<&Usage>,
    ) -> Self {
        Self {
            schema: "mq-load/1",
            broker: args.broker.to_string(),
            qos: qos as u8,
            payload_bytes: args.size,
            publishers: args.publishers,
            subscribers: args.subscribers,
            r#loop: &args.kind,
            asked_per_second: args.rate,
            in_flight: match plan.pace {
                Pace::InFlight(most) => Some(most.get()),
                Pace::Rate(_) | Pace::Saturate => None,
            },
            elapsed_ns: nanoseconds(outcome.elapsed),
            sent_per_second: outcome.per_second(outcome.sent),
            received_per_second: outcome.per_second(outcome.received),
            latency_from: if args.rate.is_some() { "due" } else { "sent" },
            latency: outcome.latency,
            broker_cpu_ns_per_message: usage.map(|usage| per_message(outcome, usage)),
            broker_cores: usage.map(Usage::cores),
            broker_peak_rss_bytes: usage.map(|usage| usage.memory.peak_rss_bytes),
        }
    }
}
