//! The measurements as a result, which is printed and written.

use std::{collections::BTreeMap, num::NonZeroU32};

use mq_measure::{
    Counts, Summary, Validity,
    manifest::{LinkContext, Manifest, Software},
    result::{
        Comparison, ConnectKind, ConnectTimes, HostPackets, ProcessUse, Round, RunResult, SCHEMA,
        TransportResult,
    },
    schedule::Lateness,
    stats::{self, Estimate},
    topics::{TopicFigures, Topics},
    validity,
};
use mq_transport::Repeat;

use super::{compared_transport::ComparedTransport, options::Args};
use crate::{
    campaign::transport_parameters::TransportParameters,
    clock::nanoseconds,
    mqtt::probe_parameters,
    report,
    testbed::{TcpSettings, Testbed},
    this_program::this_software,
    units::ns_to_ms,
    workload::{add_wire, connect},
};

pub(super) fn result(
    args: &Args,
    compared: &[ComparedTransport],
    own: bool,
    testbed: Option<&Testbed>,
) -> RunResult {
    let program = this_software("mqbench");
    let broker = if own {
        this_software("mqbroker")
    } else {
        Software {
            name: "external".to_owned(),
            version: None,
            revision: None,
        }
    };
    let mqtt = args.client.mqtt.get();
    let parameters = serde_json::json!({
        "messages_per_transport": args.messages_per_round() * u64::from(args.rounds),
        "rounds": args.rounds,
        "payload_bytes": args.size,
        "topics": args.topics,
        "interval_ns": nanoseconds(args.interval),
        "qos": mqtt.qos as u8,
        "mqtt": mqtt.version.to_string(),
        "keep_alive_s": mqtt.keep_alive.as_secs(),
        "probes": probe_parameters(mqtt.probes),
        "quic_keep_alive_ns": args.client.transport.quic_keep_alive.map(nanoseconds),
        "connections_per_kind": args.connections_per_round() * args.rounds,
        "congestion": args.client.transport.congestion.map(|name| name.to_string()),
        "stack": stack(args, testbed),
        "stations": testbed.and_then(Testbed::stations_on_channel),
    });
    let mut manifest = Manifest::now(program, broker, parameters.clone());
    manifest.seeds = BTreeMap::from([("payload".to_owned(), args.seed)]);
    manifest.link = LinkContext {
        configured: testbed.map(Testbed::configured),
        measured: testbed.map(Testbed::measured),
    };
    let transports: Vec<_> = compared
        .iter()
        .map(|transport| transport_result(args, transport, testbed))
        .collect();
    let mut validity = Validity::default();
    if cfg!(debug_assertions) {
        validity.note(mq_measure::Warning::DebugBuild);
    }
    if args.client.transport.congestion.is_none() {
        let kernel = manifest.host.tcp_congestion_control.as_deref();
        validity.note(kernel.and_then(|tcp| validity::congestion_control(tcp, "cubic")));
    }
    validity.note(validity::cpu_governor(manifest.host.governor.as_deref()));
    validity.note(validity::emulated(None, manifest.host.emulated.as_deref()));
    if let Some(testbed) = testbed {
        testbed.check(&mut validity);
    }
    RunResult {
        schema: SCHEMA.to_owned(),
        manifest,
        parameters,
        comparisons: comparisons(compared),
        transports,
        validity,
    }
}

fn stack(args: &Args, testbed: Option<&Testbed>) -> TransportParameters {
    let options = args.options(false);
    let tcp = match testbed {
        // A kernel that hides its settings leaves them unknown.
        Some(testbed) => testbed.tcp_settings().ok().flatten(),
        None => TcpSettings::of_this_network(),
    };
    TransportParameters::of(&options.crypto, &options.quic, options.congestion, tcp)
}

fn transport_result(
    args: &Args,
    transport: &ComparedTransport,
    testbed: Option<&Testbed>,
) -> TransportResult {
    let samples = transport.samples();
    let rounds = || transport.rounds.iter();
    let counts = rounds().map(|round| round.outcome.counts);
    let counts = counts.fold(Counts::default(), Counts::plus);
    let latency = Summary::from_samples(&samples.latencies_intended_ns());
    let mut validity = Validity::default();
    validity.extend(validity::counts(&counts));
    // The lateness of all messages of all rounds, as the figures are over all rounds.
    let mut lateness = Lateness::new();
    for round in rounds() {
        lateness.merge(&round.outcome.lateness);
    }
    validity.note(lateness.warning(nanoseconds(args.interval)));
    if rounds().any(|round| round.outcome.timed_out) {
        validity.note(mq_measure::Warning::TimedOut {
            phase: "waiting for the last messages".to_owned(),
            after_ns: 5_000_000_000,
        });
    }
    validity.note(validity::too_few_samples(99.9, counts.received));
    let diallers = transport.diallers.iter();
    validity.extend(diallers.filter_map(|(dialler, dialled)| dialler.failures(dialled)));
    let wire = rounds().map(|round| round.outcome.wire);
    let wire = wire.reduce(|a, b| Some(add_wire(&a?, &b?)));
    let packets = rounds().filter_map(|round| round.publisher_host);
    let packets = packets.reduce(|a, b| HostPackets {
        sent: a.sent + b.sent,
        received: a.received.zip(b.received).map(|(a, b)| a + b),
        elapsed_ns: a.elapsed_ns + b.elapsed_ns,
    });
    let neighbours_sent = rounds().filter_map(|round| round.neighbours_sent);
    let broker = total(rounds().filter_map(|round| round.broker.as_ref()));
    let clients = total(rounds().filter_map(|round| round.clients.as_ref()));
    let each_round = rounds().zip(0..).map(|(round, number)| Round {
        round: number,
        turn: round.turn,
        latency: Summary::from_samples(&round.outcome.samples.latencies_intended_ns()),
        duration_ns: nanoseconds(round.outcome.elapsed),
        counts: round.outcome.counts,
    });
    TransportResult {
        transport: transport.name.clone(),
        repeat: (transport.repeat != Repeat::Off).then(|| transport.repeat.to_string()),
        url: transport.publisher.address.to_string(),
        latency,
        latency_from_send: Summary::from_samples(&samples.latencies_sent_ns()),
        rtt_last: None,
        counts,
        wire: wire.flatten(),
        publisher_host: packets,
        neighbours_sent: neighbours_sent.reduce(|a, b| a + b),
        topics: topics(args, transport, testbed),
        processes: broker.into_iter().chain(clients).collect(),
        connect: connect_times(transport),
        rounds: each_round.collect(),
        warnings: validity.warnings,
    }
}

/// Computes the figures of several topics over all rounds; `None` with one topic.
fn topics(
    args: &Args,
    transport: &ComparedTransport,
    testbed: Option<&Testbed>,
) -> Option<TopicFigures> {
    if args.topics == NonZeroU32::MIN {
        return None;
    }
    let mut topics = Topics::new(args.topics);
    for round in &transport.rounds {
        topics.add(&round.outcome.samples);
    }
    let link = testbed.and_then(Testbed::one_way);
    Some(topics.figures(link.map(nanoseconds)))
}

fn connect_times(transport: &ComparedTransport) -> Vec<ConnectTimes> {
    transport
        .diallers
        .iter()
        .map(|(dialler, dialled)| connect::summarise(dialler.kind(), dialled))
        .collect()
}

/// Sums the use of one process over all rounds.
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

/// A compared quantity: its name, and a function that returns its value in each round.
type Quantity = (&'static str, fn(&ComparedTransport) -> Vec<f64>);

/// Quantities with one value a round, since messages of a round are not independent. For connections it is the median:
/// a lost SYN delays one by a second, so a mean would show the number of lost SYNs.
const QUANTITIES: [Quantity; 2] = [
    (report::compare::DELAY, |transport| {
        let rounds = transport.rounds.iter();
        let rounds = rounds.map(|round| round.outcome.samples.latencies_intended_ns());
        let summaries = rounds.filter_map(|latencies| Summary::from_samples(&latencies));
        summaries.map(|summary| summary.mean_ns).collect()
    }),
    (report::compare::CONNECTION, |transport| {
        let from_nothing = [ConnectKind::Tcp, ConnectKind::Full];
        let mut diallers = transport.diallers.iter();
        let found = diallers.find(|(dialler, _)| from_nothing.contains(&dialler.kind()));
        let dialled = found.map_or(&[][..], |(_, dialled)| dialled);
        let each = (dialled.len() / transport.rounds.len().max(1)).max(1);
        let rounds = dialled.chunks(each).filter_map(|round| {
            let times = round.iter().flatten().map(|one| ns_to_ms(one.connack_ns));
            stats::median(&times.collect::<Vec<_>>())
        });
        rounds.collect()
    }),
];

/// Compares each transport with those before it, by Student's t.
fn comparisons(compared: &[ComparedTransport]) -> Vec<Comparison> {
    let mut all = Vec::new();
    for (quantity, values) in QUANTITIES {
        for (number, transport) in compared.iter().enumerate().rev() {
            for baseline in compared[..number].iter().rev() {
                let [of, with] =
                    [transport, baseline].map(|transport| Estimate::of_mean(&values(transport)));
                let ratio = of.zip(with).and_then(|(of, with)| of.over(&with));
                all.push(Comparison {
                    quantity: quantity.to_owned(),
                    transport: transport.name.clone(),
                    baseline: baseline.name.clone(),
                    ratio: ratio.and_then(|ratio| ratio.interval_of_positive(0.95)),
                });
            }
        }
    }
    all
}
