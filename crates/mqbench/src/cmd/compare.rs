//! `mqbench compare`: the same work over each transport, interleaved, in one table.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use mq_measure::{
    Counts, LatencyRecorder, Samples, Summary, Validity,
    manifest::{LinkContext, Manifest, Software},
    process::ProcessMeter,
    result::{
        Comparison, ConnectTimes, HostPackets, ProcessUse, Round, RunResult, SCHEMA,
        TransportResult,
    },
    stats::Bootstrap,
    validity,
};
use mq_transport::{Address, CongestionControl, ConnectOptions, Connector, Scheme, Trust};

use crate::{
    args::{MqttArgs, TransportArgs, duration},
    report,
    sut::{BrokerProcess, TestCertificate, output_directory},
    testbed::{Access, LinkArgs, Testbed},
    workload::{
        add_wire,
        connect::{self, Connected, Dialler},
        e2e, nanoseconds,
    },
};

/// Options of `compare`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// A broker to measure instead of our own, repeated: one URL a transport
    #[arg(long, value_name = "URL", conflicts_with_all = ["link", "pub_link", "sub_link"])]
    broker: Vec<Address>,
    /// What our own broker is measured over, in this order; the first is what others are compared
    /// with
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "tcp,tls,quic",
        value_parser = transport,
        conflicts_with = "broker"
    )]
    transports: Vec<Scheme>,
    /// Messages over each transport
    #[arg(long, default_value_t = 2000)]
    count: u64,
    /// Payload size in bytes, at least 8
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Time between messages
    #[arg(long, default_value = "4ms", value_parser = duration)]
    interval: Duration,
    /// How often the transports take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Connections of each kind in each round
    #[arg(long, default_value_t = 10)]
    connections: u32,
    /// A tenth of the messages: a look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Print the result as JSON on standard output instead of the table
    #[arg(long)]
    json: bool,
    /// Directory for raw samples (CSV), histograms (HdrHistogram log) and the result (JSON)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of the payloads and of the order of the transports
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    mqtt: MqttArgs,
    #[command(flatten)]
    transport: TransportArgs,
    #[command(flatten)]
    links: LinkArgs,
}

/// A transport that our own broker has, by its name.
fn transport(name: &str) -> Result<Scheme, String> {
    let known = [Scheme::Tcp, Scheme::Tls, Scheme::Quic];
    let found = known.into_iter().find(|scheme| scheme.to_string() == name);
    found.ok_or_else(|| "there are tcp, tls and quic".to_owned())
}

impl Args {
    /// The network that the options ask for; `None` for this machine's own.
    pub(crate) fn testbed(&self) -> anyhow::Result<Option<Testbed>> {
        if self.links.any() {
            return Testbed::build(&self.links, self.seed).map(Some);
        }
        if self.links.pcap.is_some() {
            bail!("--pcap needs a --link: hosts of its own");
        }
        Ok(None)
    }

    fn messages_per_round(&self) -> u64 {
        let all = if self.quick {
            self.count / 10
        } else {
            self.count
        };
        (all / u64::from(self.rounds)).max(1)
    }

    fn connections_per_round(&self) -> u32 {
        if self.quick {
            self.connections.div_ceil(3)
        } else {
            self.connections
        }
    }
}

pub(crate) async fn run(mut args: Args, mut testbed: Option<Testbed>) -> anyhow::Result<()> {
    if args.broker.is_empty() {
        // Our own broker takes part in being fair: the same on both ends of each transport.
        args.transport
            .congestion
            .get_or_insert(CongestionControl::Cubic);
    }
    if args.size < crate::payload::MIN_SIZE {
        bail!(
            "--size {} is too small: a measured message has at least 8 bytes",
            args.size
        );
    }
    if let Some(out) = &args.out {
        // Before the work, so that a directory that cannot be made costs nothing.
        output_directory(out)?;
    }
    let mut options = args.transport.options();
    let (own, certificate) = if args.broker.is_empty() {
        let addresses = testbed.iter().flat_map(Testbed::broker_addresses);
        let certificate = TestCertificate::make(addresses)?;
        if !args.transport.insecure && args.transport.ca.is_none() {
            options.trust = Trust::CaFile(certificate.certificate());
        }
        let host = testbed.as_ref().map(Testbed::broker);
        let congestion = args.transport.congestion;
        let broker = BrokerProcess::start(&args.transports, &certificate, congestion, host).await?;
        (Some(broker), Some(certificate))
    } else {
        (None, None)
    };
    let addresses = own
        .as_ref()
        .map_or(&args.broker, |broker| &broker.addresses)
        .clone();
    let mut lanes = addresses
        .iter()
        .map(|address| Lane::new(address, &options, testbed.as_ref()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let pid = own.as_ref().and_then(BrokerProcess::pid);
    let progress = progress_bar(&args, lanes.len());
    let measured = measure(&args, &mut lanes, pid, testbed.as_ref(), &progress).await;
    progress.finish_and_clear();
    if let Some(testbed) = &mut testbed {
        testbed.finish_captures()?;
    }
    // What was measured before an error is still a result.
    if lanes.iter().any(|lane| !lane.rounds.is_empty()) {
        let result = result(&args, &lanes, own.is_some(), testbed.as_ref());
        if let Some(out) = &args.out {
            write_files(out, &lanes, &result)?;
        }
        if args.json {
            let json = serde_json::to_string_pretty(&result).context("cannot write JSON")?;
            report::print(&(json + "\n"))?;
        } else {
            report::print(&text(&args, &lanes, &result, testbed.as_ref()))?;
        }
    }
    measured?;
    if let Some(broker) = own {
        broker.stop().await?;
    }
    drop(certificate);
    Ok(())
}

/// One transport: what connects over it, and what was measured so far.
struct Lane {
    name: String,
    publisher: (Address, Connector),
    subscriber: (Address, Connector),
    diallers: Vec<(Dialler, Vec<Option<Connected>>)>,
    rounds: Vec<RoundOutcome>,
}

struct RoundOutcome {
    turn: u32,
    outcome: e2e::Outcome,
    broker: Option<ProcessUse>,
    clients: Option<ProcessUse>,
    publisher_host: Option<HostPackets>,
}

impl Lane {
    fn new(
        address: &Address,
        options: &ConnectOptions,
        testbed: Option<&Testbed>,
    ) -> anyhow::Result<Self> {
        let end = |access: Option<Access>| {
            let (mut address, mut options) = (address.clone(), options.clone());
            if let Some(access) = access {
                address.host = access.broker.to_string();
                options.socket.network_namespace = Some(access.namespace);
            }
            (address, options)
        };
        let connector = |(address, options): (Address, ConnectOptions)| -> anyhow::Result<_> {
            Ok((address, Connector::new(options)?))
        };
        let publisher = end(testbed.map(Testbed::publisher));
        let subscriber = end(testbed.map(Testbed::subscriber));
        let diallers = connect::kinds(address.scheme)
            .iter()
            .map(|kind| {
                let dialler = Dialler::new(&publisher.0, &publisher.1, *kind)?;
                Ok((dialler, Vec::new()))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            name: address.scheme.to_string(),
            publisher: connector(publisher)?,
            subscriber: connector(subscriber)?,
            diallers,
            rounds: Vec::new(),
        })
    }

    fn samples(&self) -> Samples {
        let rounds: Vec<_> = self
            .rounds
            .iter()
            .map(|round| round.outcome.samples.clone())
            .collect();
        e2e::concatenate(&rounds)
    }

    fn recorder(&self) -> LatencyRecorder {
        let mut recorder = LatencyRecorder::new();
        recorder.extend(self.samples().latencies_intended_ns());
        recorder
    }
}

fn progress_bar(args: &Args, lanes: usize) -> ProgressBar {
    let all = args.messages_per_round() * u64::from(args.rounds) * lanes as u64;
    let style = ProgressStyle::with_template("{prefix:>6} {wide_bar} {pos}/{len} {eta} left");
    let bar = ProgressBar::new(all);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Takes turns: in each round every transport sends its share, in an order that moves on by one
/// each round, so that drift of the machine hits all alike.
async fn measure(
    args: &Args,
    lanes: &mut [Lane],
    broker: Option<u32>,
    testbed: Option<&Testbed>,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    let count = lanes.len();
    for round in 0..args.rounds {
        for turn in 0..count {
            let offset = usize::try_from(round).unwrap_or(0);
            let lane = &mut lanes[(turn + offset) % count];
            progress.set_prefix(lane.name.clone());
            let turn = u32::try_from(turn).unwrap_or(u32::MAX);
            lane.send(args, round, turn, broker, testbed, progress)
                .await
                .with_context(|| format!("over {}", lane.publisher.0))?;
        }
        for lane in lanes.iter_mut() {
            lane.dial(args)
                .await
                .with_context(|| format!("over {}", lane.publisher.0))?;
        }
    }
    Ok(())
}

impl Lane {
    async fn send(
        &mut self,
        args: &Args,
        round: u32,
        turn: u32,
        broker: Option<u32>,
        testbed: Option<&Testbed>,
        progress: &ProgressBar,
    ) -> anyhow::Result<()> {
        let plan = e2e::Plan::new(
            "mqbench/compare",
            args.messages_per_round(),
            args.interval,
            args.size,
            args.seed.wrapping_add(round.into()),
        );
        let broker = broker.map(ProcessMeter::start).transpose()?;
        let clients = ProcessMeter::start_own()?;
        let emulator = testbed.map(Testbed::cpu_time);
        let packets = testbed.map(Testbed::publisher_packets);
        let bar = progress.clone();
        let publisher = (&self.publisher.0, &self.publisher.1);
        let subscriber = (&self.subscriber.0, &self.subscriber.1);
        let progress = move |_| bar.inc(1);
        let outcome = e2e::run(&plan, &args.mqtt, publisher, subscriber, progress).await?;
        let used =
            |role, meter: &ProcessMeter| meter.read().map(|usage| ProcessUse::new(role, &usage));
        let mut clients = used("clients", &clients)?;
        if let (Some(testbed), Some(before)) = (testbed, emulator) {
            // Its threads are in this process, and spin: user time.
            let emulator = nanoseconds(testbed.cpu_time().saturating_sub(before));
            clients.cpu_ns = clients.cpu_ns.saturating_sub(emulator);
            clients.user_ns = clients.user_ns.saturating_sub(emulator);
        }
        let publisher_host = testbed.zip(packets).map(|(testbed, before)| {
            let after = testbed.publisher_packets();
            HostPackets {
                sent: after.0 - before.0,
                received: after.1 - before.1,
                elapsed_ns: nanoseconds(outcome.elapsed),
            }
        });
        self.rounds.push(RoundOutcome {
            turn,
            outcome,
            publisher_host,
            broker: broker
                .as_ref()
                .map(|meter| used("broker", meter))
                .transpose()?,
            clients: Some(clients),
        });
        Ok(())
    }

    async fn dial(&mut self, args: &Args) -> anyhow::Result<()> {
        for (dialler, dialled) in &mut self.diallers {
            for _ in 0..args.connections_per_round() {
                // A connection that fails is a result; the run goes on.
                dialled.push(dialler.dial(&args.mqtt).await.ok());
                tokio::time::sleep(connect::PAUSE).await;
            }
            if dialled.iter().all(Option::is_none) && !dialled.is_empty() {
                dialler
                    .dial(&args.mqtt)
                    .await
                    .with_context(|| format!("no {:?} connection worked", dialler.kind()))?;
            }
        }
        Ok(())
    }
}

fn result(args: &Args, lanes: &[Lane], own: bool, testbed: Option<&Testbed>) -> RunResult {
    let program = Software {
        name: "mqbench".to_owned(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        revision: option_env!("MQ_GIT_REVISION").map(str::to_owned),
    };
    let broker = if own {
        Software {
            name: "mqbroker".to_owned(),
            ..program.clone()
        }
    } else {
        Software {
            name: "external".to_owned(),
            version: None,
            revision: None,
        }
    };
    let parameters = serde_json::json!({
        "messages_per_transport": args.messages_per_round() * u64::from(args.rounds),
        "rounds": args.rounds,
        "payload_bytes": args.size,
        "interval_ns": nanoseconds(args.interval),
        "qos": args.mqtt.qos as u8,
        "mqtt": mq_codec::Version::from(args.mqtt.mqtt).to_string(),
        "keep_alive_s": args.mqtt.keep_alive,
        "connections_per_kind": args.connections_per_round() * args.rounds,
        "congestion": args.transport.congestion.map(|name| name.to_string()),
        "segmentation_offload": !args.transport.no_gso,
        "tcp_nodelay": true,
    });
    let mut manifest = Manifest::now(program, broker, parameters.clone());
    manifest.seeds = BTreeMap::from([("payload".to_owned(), args.seed)]);
    manifest.link = LinkContext {
        configured: testbed.map(Testbed::configured),
        measured: testbed.map(Testbed::measured),
    };
    let transports: Vec<_> = lanes
        .iter()
        .map(|lane| transport_result(args, lane))
        .collect();
    let mut validity = Validity::default();
    if cfg!(debug_assertions) {
        validity.note(mq_measure::Warning::DebugBuild);
    }
    if args.transport.congestion.is_none() {
        let kernel = manifest.host.tcp_congestion_control.as_deref();
        validity.note(kernel.and_then(|tcp| validity::congestion_control(tcp, "cubic")));
    }
    validity.note(validity::cpu_governor(manifest.host.governor.as_deref()));
    if let Some(testbed) = testbed {
        testbed.check(&mut validity);
    }
    RunResult {
        schema: SCHEMA.to_owned(),
        manifest,
        parameters,
        comparisons: comparisons(args, lanes),
        transports,
        validity,
    }
}

fn transport_result(args: &Args, lane: &Lane) -> TransportResult {
    let samples = lane.samples();
    let counts = lane.rounds.iter().fold(Counts::default(), |sum, round| {
        sum.plus(round.outcome.counts)
    });
    let latency = Summary::from_samples(&samples.latencies_intended_ns());
    let mut validity = Validity::default();
    validity.extend(validity::counts(&counts));
    // One warning of the worst round, rather than one of each.
    let worst = lane
        .rounds
        .iter()
        .map(|round| &round.outcome.lateness)
        .max_by_key(|lateness| lateness.summary().map_or(0, |summary| summary.p99_ns));
    validity.note(worst.and_then(|lateness| lateness.warning(nanoseconds(args.interval))));
    for round in &lane.rounds {
        if round.outcome.timed_out {
            validity.note(mq_measure::Warning::TimedOut {
                phase: "waiting for the last messages".to_owned(),
                after_ns: 5_000_000_000,
            });
        }
    }
    validity.note(validity::too_few_samples(99.9, counts.received));
    let wire = lane
        .rounds
        .iter()
        .map(|round| round.outcome.wire)
        .reduce(|a, b| Some(add_wire(&a?, &b?)))
        .flatten();
    TransportResult {
        transport: lane.name.clone(),
        url: lane.publisher.0.to_string(),
        latency,
        latency_from_send: Summary::from_samples(&samples.latencies_sent_ns()),
        rtt_last: None,
        counts,
        wire,
        publisher_host: lane
            .rounds
            .iter()
            .filter_map(|round| round.publisher_host)
            .reduce(|a, b| HostPackets {
                sent: a.sent + b.sent,
                received: a.received + b.received,
                elapsed_ns: a.elapsed_ns + b.elapsed_ns,
            }),
        processes: [
            total(lane.rounds.iter().filter_map(|round| round.broker.as_ref())),
            total(
                lane.rounds
                    .iter()
                    .filter_map(|round| round.clients.as_ref()),
            ),
        ]
        .into_iter()
        .flatten()
        .collect(),
        connect: connect_times(lane),
        rounds: lane
            .rounds
            .iter()
            .zip(0..)
            .map(|(round, number)| Round {
                round: number,
                turn: round.turn,
                latency: Summary::from_samples(&round.outcome.samples.latencies_intended_ns()),
                duration_ns: nanoseconds(round.outcome.elapsed),
                counts: round.outcome.counts,
            })
            .collect(),
        warnings: validity.warnings,
    }
}

fn connect_times(lane: &Lane) -> Vec<ConnectTimes> {
    lane.diallers
        .iter()
        .map(|(dialler, dialled)| connect::summarise(dialler.kind(), dialled))
        .collect()
}

/// What one process used in all rounds together.
fn total<'a>(uses: impl Iterator<Item = &'a ProcessUse>) -> Option<ProcessUse> {
    uses.cloned().reduce(|mut sum, next| {
        sum.cpu_ns += next.cpu_ns;
        sum.user_ns += next.user_ns;
        sum.system_ns += next.system_ns;
        sum.elapsed_ns += next.elapsed_ns;
        sum.peak_rss_bytes = sum.peak_rss_bytes.max(next.peak_rss_bytes);
        sum
    })
}

/// Ratios of the rounds' mean latencies to the first transport's, with a bootstrap interval: one
/// value a round, since messages of a round are not independent.
fn comparisons(args: &Args, lanes: &[Lane]) -> Vec<Comparison> {
    let means = |lane: &Lane| -> Vec<f64> {
        lane.rounds
            .iter()
            .filter_map(|round| {
                Summary::from_samples(&round.outcome.samples.latencies_intended_ns())
            })
            .map(|summary| summary.mean_ns)
            .collect()
    };
    let Some((baseline, others)) = lanes.split_first() else {
        return Vec::new();
    };
    others
        .iter()
        .map(|lane| Comparison {
            quantity: "mean latency".to_owned(),
            transport: lane.name.clone(),
            baseline: baseline.name.clone(),
            ratio: Bootstrap::new(args.seed).mean_ratio(&means(lane), &means(baseline)),
        })
        .collect()
}

fn text(args: &Args, lanes: &[Lane], result: &RunResult, testbed: Option<&Testbed>) -> String {
    let mut text = format!(
        "MQTT {} · QoS {} · {} B every {:?} · {} messages over each transport in {} rounds · \
         congestion control {}\n",
        mq_codec::Version::from(args.mqtt.mqtt),
        args.mqtt.qos,
        args.size,
        args.interval,
        args.messages_per_round() * u64::from(args.rounds),
        args.rounds,
        args.transport
            .congestion
            .map_or("as each has it".to_owned(), |name| name.to_string()),
    );
    if let Some(testbed) = testbed {
        text.push_str(&testbed.describe());
    }
    text.push_str(&report::compare::render(result));
    for lane in lanes {
        text.push('\n');
        text.push_str(&report::histogram::render(&lane.name, &lane.recorder()));
    }
    text
}

fn write_files(out: &std::path::Path, lanes: &[Lane], result: &RunResult) -> anyhow::Result<()> {
    let recorders: Vec<_> = lanes.iter().map(Lane::recorder).collect();
    for lane in lanes {
        lane.samples()
            .save(&out.join(format!("samples-{}.csv", lane.name)))?;
    }
    let start = std::time::SystemTime::now();
    let tagged: Vec<_> = lanes
        .iter()
        .zip(&recorders)
        .map(|(lane, recorder)| mq_measure::recorder::TaggedHistogram {
            tag: &lane.name,
            start,
            duration: lane.rounds.iter().map(|round| round.outcome.elapsed).sum(),
            recorder,
        })
        .collect();
    let path = out.join("latency.hlog");
    let file =
        std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    mq_measure::recorder::write_log(std::io::BufWriter::new(file), &path, &tagged)?;
    result.save(&out.join("result.json"))?;
    Ok(())
}
