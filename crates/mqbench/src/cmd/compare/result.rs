//! The measurements as a result, which is printed and written.

use std::collections::BTreeMap;

use mq_measure::{
    Counts, Summary, Validity,
    manifest::{LinkContext, Manifest, Software},
    result::{
        Comparison, ConnectTimes, HostPackets, ProcessUse, Round, RunResult, SCHEMA,
        TransportResult,
    },
    schedule::Lateness,
    stats::Bootstrap,
    validity,
};

use super::{Args, lane::Lane};
use crate::{
    clock::nanoseconds,
    mqtt::probe_parameters,
    testbed::Testbed,
    this_program::this_software,
    workload::{add_wire, connect},
};

pub(super) fn result(
    args: &Args,
    lanes: &[Lane],
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
    let recovery = args.client.transport.recovery();
    let tuning = args.links.tcp_tuning();
    let parameters = serde_json::json!({
        "messages_per_transport": args.messages_per_round() * u64::from(args.rounds),
        "rounds": args.rounds,
        "payload_bytes": args.size,
        "interval_ns": nanoseconds(args.interval),
        "qos": mqtt.qos as u8,
        "mqtt": mqtt.version.to_string(),
        "keep_alive_s": mqtt.keep_alive.as_secs(),
        "probes": probe_parameters(mqtt.probes),
        "quic_keep_alive_ns": args.client.transport.quic_keep_alive.map(nanoseconds),
        "connections_per_kind": args.connections_per_round() * args.rounds,
        "congestion": args.client.transport.congestion.map(|name| name.to_string()),
        "initial_rtt_ns": nanoseconds(recovery.initial_rtt),
        "repeat": recovery.repeat.to_string(),
        "max_ack_delay_ns": args.client.transport.max_ack_delay.map(nanoseconds),
        "packet_threshold": recovery.packet_threshold,
        "time_threshold": recovery.time_threshold,
        "segmentation_offload": !args.client.transport.no_gso,
        "tcp_nodelay": true,
        "tcp_rto_min_ns": tuning.rto_min.map(nanoseconds),
        "tcp_thin_linear_timeouts": tuning.thin,
        "stations": testbed.and_then(Testbed::stations_on_channel),
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
    // The lateness of all messages of all rounds, as the figures are over all rounds.
    let mut lateness = Lateness::new();
    for round in &lane.rounds {
        lateness.merge(&round.outcome.lateness);
    }
    validity.note(lateness.warning(nanoseconds(args.interval)));
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
        url: lane.publisher.address.to_string(),
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
                received: a.received.zip(b.received).map(|(a, b)| a + b),
                elapsed_ns: a.elapsed_ns + b.elapsed_ns,
            }),
        neighbours_sent: lane
            .rounds
            .iter()
            .filter_map(|round| round.neighbours_sent)
            .reduce(|a, b| a + b),
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

/// The use of one process in all rounds together.
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
