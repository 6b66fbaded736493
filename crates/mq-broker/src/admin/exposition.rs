//! The metrics as text: `OpenMetrics`, which Prometheus asks for, or Prometheus' own text format.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use hyper::header::{ACCEPT, HeaderMap};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use super::Admin;
use crate::{
    hub::BridgeStatus,
    metrics::{ByReason, Counter, DurationHistogram, Gauge, ListenerMetrics, Metrics},
};

const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the metrics, in `OpenMetrics` if the request accepts that, and their media type.
pub(super) fn write(admin: &Admin, request: &HeaderMap) -> (&'static str, String) {
    let mut registry = Registry::with_prefix("mqbroker");
    registry.register_collector(Box::new(All(admin.clone())));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    let accepted = request.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|types| types.to_str().ok());
    if accepted.any(|types| types.contains(OPEN_METRICS)) {
        (OPEN_METRICS_TYPE, text)
    } else {
        (TEXT_TYPE, to_text_format(&text))
    }
}

/// Returns an exposition of `OpenMetrics` in Prometheus' text format 0.0.4: a counter's family has the name of its samples,
/// and units and the end have no line.
fn to_text_format(exposition: &str) -> String {
    let counters = exposition.lines();
    let counters =
        counters.filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"));
    let counters: HashSet<&str> = counters.collect();
    let mut text = String::with_capacity(exposition.len());
    for line in exposition.lines() {
        let mut words = line.splitn(4, ' ');
        match [(); 4].map(|()| words.next().unwrap_or_default()) {
            ["#", "UNIT" | "EOF", ..] => continue,
            ["#", what, name, rest] if counters.contains(name) => {
                text.extend(["# ", what, " ", name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[derive(Debug)]
struct All(Admin);

type Field = fn(&Metrics) -> &Gauge;
type FieldByReason = fn(&Metrics) -> &ByReason;
type OfListener = fn(&ListenerMetrics) -> &Counter;

/// Makes a table of metrics with one line for each: name, field and help.
macro_rules! table {
    ($($name:literal: $field:ident, $help:literal;)*) => { &[$(($name, $help, |of| &of.$field)),*] };
}

/// Gauges: the present state.
const GAUGES: &[(&str, &str, Field)] = table! {
    "handshakes": handshakes, "Connections in their handshake";
    "sessions": sessions, "Sessions, connected or not";
    "subscriptions": subscriptions, "Subscriptions";
    "retained_messages": retained, "Topics with a retained message";
};

/// Counters: events since the start.
const COUNTERS: &[(&str, &str, Field)] = table! {
    "messages_received": messages_in, "Messages received from clients";
    "messages_sent": messages_out, "Messages sent to clients";
    "messages_dropped": dropped, "Messages that did not reach a receiver";
    "messages_spilled": spilled, "Messages that went to the store because there was no room for them in memory";
    "quic_retries": retried, "QUIC clients that had to prove their address first";
    "not_authorized": not_authorized, "Messages, wills and subscriptions that their client may not have";
    "sessions_refused": sessions_refused, "Clients refused because there were too many sessions";
    "retained_refused": retained_refused, "Messages that could not be retained";
    "clients_throttled": throttled, "Times that a client was read more slowly than it published";
};

/// Counters of events since the start, with the reason as label.
const BY_REASON: &[(&str, &str, FieldByReason)] = table! {
    "connections_refused": refused, "Connections beyond what may be open, under way, or come from one address";
    "log_ins_refused": log_ins_refused, "CONNECTs refused";
    "publishes_refused": publishes_refused, "Messages and wills refused";
    "subscriptions_refused": subscriptions_refused, "Subscriptions refused";
    "readers_evicted": evicted, "Clients disconnected by the broker, such as readers that were too slow";
};

const OF_LISTENERS: &[(&str, &str, OfListener)] = table! {
    "accepted": accepted, "Connections whose handshake was good";
    "handshakes_failed": handshakes_failed, "Handshakes that failed or took too long";
    "resumed": resumed, "Connections that resumed a TLS session";
    "early_data_accepted": early_data_accepted, "Connections whose early data (0-RTT) was accepted";
    "received_bytes": bytes_received, "Application bytes received";
    "sent_bytes": bytes_sent, "Application bytes sent";
    "packets_lost": packets_lost, "QUIC packets declared lost";
    "streams_blocked": streams_blocked, "times that a QUIC client said that it waits for more streams than it was granted";
    "streams_closed_idle": streams_closed_idle, "QUIC data streams closed because nothing came on them";
    "messages_as_datagrams": messages_as_datagrams, "messages sent as QUIC datagrams";
    "packets_repeated": packets_repeated, "QUIC datagrams sent a second time before anything showed that they were lost";
    "packets_retransmitted": packets_retransmitted, "TCP segments sent again";
    "migrations": migrations, "QUIC connections whose client came from another address";
};

const OF_BRIDGES: &[(&str, &str, OfListener)] = table! {
    "links": accepted, "Links to the other broker that were made";
    "links_failed": handshakes_failed, "Times that no address answered";
    "resumed": resumed, "Links that resumed a TLS session";
    "early_data_accepted": early_data_accepted, "Links whose early data (0-RTT) was accepted";
    "received_bytes": bytes_received, "Application bytes received";
    "sent_bytes": bytes_sent, "Application bytes sent";
    "packets_lost": packets_lost, "QUIC packets declared lost";
    "packets_retransmitted": packets_retransmitted, "TCP segments sent again";
};

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(admin) = self;
        let metrics = &admin.hub.metrics;
        for (name, help, field) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            metric.encode_gauge(&number(field(metrics).get()))?;
        }
        let help = "What waits for sessions or is retained, as the memory limit counts it";
        let mut metric = encoder.encode_descriptor(
            "memory_used",
            help,
            Some(&Unit::Bytes),
            MetricType::Gauge,
        )?;
        metric.encode_gauge(&number(admin.hub.memory_used()))?;
        of_store(&mut encoder, admin)?;
        for (name, help, field) in COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            let count = field(metrics).get() as u64;
            metric.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let help = "Lines of the log that were lost, as nobody read them";
        let mut metric =
            encoder.encode_descriptor("log_lines_lost", help, None, MetricType::Counter)?;
        let lost = admin.log.as_ref().map_or(0, |log| log.lost_lines());
        metric.encode_counter::<NoLabelSet, _, u64>(&lost, None)?;
        for (name, help, field) in BY_REASON {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (reason, count) in field(metrics).by_reason() {
                let labels = [("reason", reason)];
                let mut metric = family.encode_family(&labels)?;
                metric.encode_counter::<NoLabelSet, _, u64>(&(count as u64), None)?;
            }
        }
        of_listeners(&mut encoder, &admin.listeners)?;
        of_bridges(&mut encoder, admin)?;
        of_cluster(&mut encoder, admin)
    }
}

fn of_store(encoder: &mut DescriptorEncoder<'_>, admin: &Admin) -> fmt::Result {
    let Some(writer) = admin.hub.store_writer() else {
        return Ok(());
    };
    let seconds = Some(&Unit::Seconds);
    let help = "Age of the oldest change that the store has not settled";
    let name = "store_oldest_unsettled";
    let mut metric = encoder.encode_descriptor(name, help, seconds, MetricType::Gauge)?;
    metric.encode_gauge(&writer.oldest().unwrap_or_default().as_secs_f64())?;
    let help = "Messages that the store has not settled";
    let name = "store_unsettled_messages";
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    metric.encode_gauge(&number(writer.unsettled_messages()))?;
    let help = "Time until changes were settled, of the oldest one of each commit";
    let name = "store_settling";
    let mut metric = encoder.encode_descriptor(name, help, seconds, MetricType::Histogram)?;
    histogram(&mut metric, &writer.settling_times)
}

fn of_listeners(
    encoder: &mut DescriptorEncoder<'_>,
    listeners: &[Arc<ListenerMetrics>],
) -> fmt::Result {
    let labelled: Vec<_> = listeners.iter().map(|one| (labels(one), &**one)).collect();
    let open = labelled
        .iter()
        .map(|(labels, one)| (labels, one.connections.get()));
    gauges(encoder, "connections", "Connections that are open", open)?;
    of_links(encoder, "listener_", OF_LISTENERS, &labelled)?;
    let help = "Round-trip times of connections, sampled every 30 s and at their end";
    round_trips(encoder, "rtt", help, &labelled)
}

/// A gauge of a bridge's session: name, help and value.
type OfState = (&'static str, &'static str, fn(&BridgeStatus) -> usize);

const STATES_OF_BRIDGES: [OfState; 8] = [
    (
        "bridge_connected",
        "Whether the bridge is connected",
        |state| state.is_connected.into(),
    ),
    (
        "bridge_queued",
        "Messages in memory that wait for the other broker",
        |state| state.load.messages,
    ),
    (
        "bridge_queued_limit",
        "Messages that may wait in memory",
        |state| state.rules.limits.messages,
    ),
    (
        "bridge_queued_bytes",
        "Payload bytes in memory that wait for the other broker",
        |state| state.load.bytes,
    ),
    (
        "bridge_queued_limit_bytes",
        "Payload bytes that may wait in memory",
        |state| state.rules.limits.bytes,
    ),
    (
        "bridge_spilled",
        "Messages behind those in memory that wait in the store alone",
        |state| state.load.spilled,
    ),
    (
        "bridge_spilled_bytes",
        "Bytes that wait in the store alone, as spill_bytes counts them",
        |state| state.load.spilled_bytes,
    ),
    (
        "bridge_spilled_limit_bytes",
        "Bytes that may wait in the store alone; 0 where the queue does not go on there",
        |state| state.rules.spill_limit(),
    ),
];

fn of_bridges(encoder: &mut DescriptorEncoder<'_>, admin: &Admin) -> fmt::Result {
    let bridges = admin.bridges.iter();
    let labelled: Vec<_> = bridges
        .map(|one| ([("bridge", one.name.as_str())], &*one.links))
        .collect();
    let states = admin.bridges.iter();
    let states: Vec<_> = states
        .map(|one| admin.hub.operators().bridge_status(&one.session))
        .collect();
    let with_labels = || labelled.iter().map(|(labels, _)| labels).zip(&states);
    for (name, help, field) in STATES_OF_BRIDGES {
        let values = with_labels().map(|(labels, state)| (labels, field(state)));
        gauges(encoder, name, help, values)?;
    }
    let help = "Messages for the other broker that were dropped";
    let mut family =
        encoder.encode_descriptor("bridge_dropped", help, None, MetricType::Counter)?;
    for (labels, state) in with_labels() {
        let mut metric = family.encode_family(labels)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&state.dropped, None)?;
    }
    of_links(encoder, "bridge_", OF_BRIDGES, &labelled)?;
    let help = "Round-trip times of a bridge's connections, sampled every 30 s and at their end";
    round_trips(encoder, "bridge_rtt", help, &labelled)
}

fn of_cluster(encoder: &mut DescriptorEncoder<'_>, admin: &Admin) -> fmt::Result {
    let shown = admin.cluster.as_ref().map(|cluster| cluster.own_status());
    let shown = shown.unwrap_or_default();
    let own = shown.node.as_deref().map(|name| [("node", name)]);
    let mut of_node = |name: &str, help: &str, value: usize| {
        gauges(encoder, name, help, own.iter().map(|own| (own, value)))
    };
    let help = "Whether the servers have confirmed nothing for a lease";
    of_node("cluster_majority_lost", help, shown.majority_lost.into())?;
    let help = "Whether the servers' storage is full, so that messages of QoS 1 and 2 are refused";
    of_node("cluster_storage_full", help, shown.storage_full.into())?;
    let help = "Sessions that are this node's";
    of_node("cluster_sessions", help, shown.sessions)?;
    let help = "Messages of this node's clients that are not in their log yet";
    of_node("cluster_messages_waiting", help, shown.messages_waiting)?;
    let seconds = |milliseconds: u64| usize::try_from(milliseconds / 1_000).unwrap_or(usize::MAX);
    let help = "Whole seconds for which the first of these messages has been on its way";
    of_node("cluster_waiting_seconds", help, seconds(shown.waiting_ms))?;
    let known = own.iter().zip(shown.storage_percent.map(usize::from));
    let help = "The part of the servers' storage that is in use, in percent, if that is known";
    gauges(encoder, "cluster_storage_percent", help, known)?;
    let help = "Seconds by which the wall clock of this machine is ahead of the servers' time";
    let name = "cluster_clock_offset_seconds";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    if let Some(own) = &own {
        let offset = Duration::from_millis(shown.clock_offset_ms.unsigned_abs()).as_secs_f64();
        let sign = if shown.clock_offset_ms < 0 { -1.0 } else { 1.0 };
        family.encode_family(own)?.encode_gauge(&(sign * offset))?;
    }
    let nodes = shown.nodes.iter();
    let nodes: Vec<_> = nodes
        .map(|node| ([("node", node.name.as_str())], seconds(node.heard_ms)))
        .collect();
    let help = "Whole seconds since the last sign of life of a node";
    let heard = nodes.iter().map(|(labels, heard)| (labels, *heard));
    gauges(encoder, "cluster_node_silent_seconds", help, heard)?;
    let logs = shown.logs.iter().map(|log| {
        let read = usize::try_from(log.read).unwrap_or(usize::MAX);
        ([("log", log.shard.to_string())], read)
    });
    let logs: Vec<_> = logs.collect();
    let help = "The last entry of a log that this node has read";
    let read = logs.iter().map(|(labels, read)| (labels, *read));
    gauges(encoder, "cluster_log_read", help, read)?;
    let lost = shown.logs.iter().map(|log| log.lost_entries);
    let lost = logs.iter().zip(lost);
    let lost =
        lost.map(|((labels, _), lost)| (labels, usize::try_from(lost).unwrap_or(usize::MAX)));
    let help = "Entries of a log that are lost, as the servers' storage was set back or damaged, as this node has seen it";
    gauges(encoder, "cluster_log_lost_entries", help, lost)
}

/// Encodes a gauge with a value for each set of labels.
fn gauges<'a, L: EncodeLabelSet + 'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (&'a L, usize)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        let mut metric = family.encode_family(labels)?;
        metric.encode_gauge(&number(value))?;
    }
    Ok(())
}

/// Encodes counters of links, by their labels; the names begin with `prefix`.
fn of_links<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    prefix: &str,
    counters: &[(&str, &str, OfListener)],
    labelled: &[(L, &ListenerMetrics)],
) -> fmt::Result {
    for (name, help, field) in counters {
        let name = format!("{prefix}{name}");
        let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
        for (labels, links) in labelled {
            let mut metric = family.encode_family(labels)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&field(links).get(), None)?;
        }
    }
    Ok(())
}

fn round_trips<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    labelled: &[(L, &ListenerMetrics)],
) -> fmt::Result {
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
    for (labels, ListenerMetrics { rtt, .. }) in labelled {
        histogram(&mut family.encode_family(labels)?, rtt)?;
    }
    Ok(())
}

fn histogram(metric: &mut MetricEncoder<'_>, of: &DurationHistogram) -> fmt::Result {
    let counts: Vec<u64> = of.counts().collect();
    let bounds = DurationHistogram::BOUNDS_MS.iter();
    let bounds = bounds.map(|ms| f64::from(*ms) / 1e3).chain([f64::INFINITY]);
    let buckets: Vec<_> = bounds.zip(counts.iter().copied()).collect();
    let sum = of.sum().as_secs_f64();
    metric.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
}

fn labels(listener: &ListenerMetrics) -> [(&'static str, String); 2] {
    [
        ("transport", listener.address.scheme.to_string()),
        ("listener", listener.address.to_string()),
    ]
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
