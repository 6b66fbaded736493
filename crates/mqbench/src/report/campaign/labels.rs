//! Factors, levels and metrics in words, for axes, legends and sentences. Tables and files to read by a program
//! keep the identifiers of campaign files.

use super::metric_values::{Levels, Metric, TRANSPORT, Xi};

/// The factors with a name of their own; others are called as campaign files call them.
const FACTORS: &[(&str, &str)] = &[
    ("congestion", "congestion control"),
    (
        "initial_rtt",
        "QUIC's first assumption of the round-trip time",
    ),
    ("interval", "time between messages"),
    ("link", "network"),
    ("loss", "packet loss"),
    ("qos", "QoS"),
    ("resumption", "handshake"),
    ("retries", "retries of a frame"),
    ("size", "size of a message [bytes]"),
    ("stations", "number of publishers"),
    ("topics", "number of topics"),
];

/// Levels with a name of their own. A transport's name is that of a series of ξ, too.
const LEVELS: &[(&str, &str, &str)] = &[
    (TRANSPORT, "tcp", "TCP"),
    (TRANSPORT, "tls", "TLS"),
    (TRANSPORT, "quic", "QUIC"),
    (TRANSPORT, "ws", "WebSocket"),
    (TRANSPORT, "wss", "WebSocket over TLS"),
    ("initial_rtt", "100ms", "100 ms assumed (tuned)"),
    ("initial_rtt", "333ms", "333 ms assumed (RFC 9002)"),
    ("congestion", "reno", "NewReno"),
    ("congestion", "cubic", "CUBIC"),
    ("congestion", "bbr", "BBR"),
    ("resumption", "full", "full handshake"),
    ("resumption", "resumed", "resumed session"),
    ("resumption", "0-rtt", "0-RTT"),
    ("pattern", "storm", "restarted broker"),
];

/// Metrics as an axis names them.
const METRICS: &[(&str, &str)] = &[
    ("latency_mean", "mean delay from publisher to subscriber"),
    ("latency_p50", "median delay from publisher to subscriber"),
    (
        "latency_p95",
        "95th percentile of the delay from publisher to subscriber",
    ),
    (
        "latency_p99",
        "99th percentile of the delay from publisher to subscriber",
    ),
    ("latency_max", "longest delay from publisher to subscriber"),
    (
        "latency_rsd",
        "jitter: standard deviation of the delay over its mean",
    ),
    ("delta", "time for all messages, one after the other"),
    (
        "delta_dagger",
        "mean time from dial to the message's arrival",
    ),
    (
        "dial_to_sent",
        "mean time from dial until the message is sent",
    ),
    (
        "dial_to_sent_first",
        "time from the first dial until the message is sent",
    ),
    (
        "dial_to_sent_later",
        "mean time from a later dial until the message is sent",
    ),
    ("connack_mean", "mean time from dial to CONNACK"),
    ("dial_to_connect_p50", "median time from dial to CONNECT"),
    (
        "dial_to_connect_p95",
        "95th percentile of the time from dial to CONNECT",
    ),
    ("rtt_mean", "mean time from job to its own result"),
    (
        "rtt_last_mean",
        "mean time from the last job to a result, as DL timed it",
    ),
    ("packets_per_second", "packets that the publisher sends"),
    ("arrived_per_second", "messages that arrive"),
    (
        "inter_topic_spread",
        "largest difference between topics' mean delays in 100 ms",
    ),
    (
        "spike_isolation_ratio",
        "share of the spikes that hit all topics at once",
    ),
    (
        "topic_above_link_mean",
        "mean delay of a topic above the link's own",
    ),
    (
        "topic_above_link_worst",
        "mean delay of the worst topic above the link's own",
    ),
    ("late_share", "share of messages over 5 ms late"),
    (
        "late_through_others",
        "share of messages that were late behind another topic",
    ),
    ("clock_uncertainty", "the most that a delay is wrong by"),
    ("energy_j", "energy while messages are sent"),
    ("power_w", "average power"),
    (
        "energy_per_message_uj",
        "energy for each message that arrives",
    ),
    ("gap", "longest time without an arrival"),
    ("late", "messages over 500 ms late"),
    ("lost", "messages that did not arrive"),
    ("failed", "connections that failed"),
    ("back_50", "time until half of the devices are back"),
    ("back_99", "time until 99 % of the devices are back"),
    ("back_all", "time until all devices are back"),
    ("broker_down", "time without a broker"),
    ("broker_cpu_s", "CPU time of the broker"),
    ("client_cpu_s", "CPU time of all devices"),
    ("back_full", "devices back by a full handshake"),
    ("back_resumed", "devices back by a ticket"),
    ("back_early", "devices back by early data"),
];

/// The values within runs, by their histograms.
const HISTOGRAMS: &[(&str, &str)] = &[
    ("latency", "delay from publisher to subscriber"),
    ("delta_dagger", "time from dial to the message's arrival"),
    ("dial_to_sent", "time from dial until the message is sent"),
    (
        "dial_to_sent_first",
        "time from the first dial until the message is sent",
    ),
    (
        "dial_to_sent_later",
        "time from a later dial until the message is sent",
    ),
    ("connack", "time from dial to CONNACK"),
    ("dial_to_connect", "time from dial to CONNECT"),
    ("rtt", "time from job to its own result"),
    ("rtt_last", "time from the last job to a result"),
];

/// Names a metric in a sentence: `QUIC's mean delay`.
pub(super) fn short(metric: &str) -> &'static str {
    match metric {
        "latency_mean" => "mean delay",
        "latency_p50" => "median delay",
        "latency_p95" | "dial_to_connect_p95" => "95th percentile",
        "latency_p99" => "99th percentile",
        "latency_max" => "longest delay",
        "latency_rsd" => "jitter",
        "delta_dagger" | "dial_to_sent" | "dial_to_sent_later" | "connack_mean" | "rtt_mean"
        | "rtt_last_mean" => "mean time",
        "dial_to_connect_p50" => "median time",
        "packets_per_second" | "arrived_per_second" => "rate",
        "inter_topic_spread" => "spread between topics",
        "spike_isolation_ratio" | "late_share" | "late_through_others" => "share",
        "topic_above_link_mean" | "topic_above_link_worst" => "delay above the link's",
        "power_w" => "average power",
        "energy_j" | "energy_per_message_uj" => "energy",
        "gap" => "gap",
        "delta" | "dial_to_sent_first" | "back_50" | "back_99" | "back_all" | "broker_down" => {
            "time"
        }
        "broker_cpu_s" | "client_cpu_s" => "CPU time",
        _ => "count",
    }
}

fn listed(list: &[(&str, &str)], name: &str) -> String {
    let known = list.iter().find(|(known, _)| *known == name);
    known.map_or_else(|| name.replace('_', " "), |(_, words)| (*words).to_owned())
}

/// The loss of a shared channel, as an axis names it: the channel sends a damaged frame again.
pub(super) const FRAMES: &str = "frames damaged";

/// Names a factor, as an axis names it.
pub(super) fn factor(name: &str) -> String {
    listed(FACTORS, name)
}

/// Names the values of a histogram.
pub(super) fn recorded(histogram: &str) -> String {
    listed(HISTOGRAMS, histogram)
}

/// Names a metric; for ξ what is divided by what. `baseline` is the transport that ξ divides by.
pub(super) fn quantity(metric: &Metric, baseline: &str) -> String {
    let plain = listed(METRICS, &metric.name);
    let beside = level(TRANSPORT, baseline);
    match metric.xi {
        None => plain,
        Some(Xi::W20) => format!("ξ, QUIC over {beside}: {plain}"),
        Some(Xi::S21) => format!("ξ, QUIC over {beside}'s mean: {plain}"),
    }
}

/// Names a level, as an axis or a legend names it.
pub(super) fn level(factor: &str, level: &str) -> String {
    let known = LEVELS
        .iter()
        .find(|(of, id, _)| *of == factor && *id == level);
    if let Some((.., words)) = known {
        return (*words).to_owned();
    }
    match factor {
        "link" => link(level),
        "qos" => format!("QoS {level}"),
        "initial_rtt" => format!("{} assumed", spaced(level)),
        "retries" if level == "1" => "1 retry".to_owned(),
        "retries" => format!("{level} retries"),
        "variant" => level.to_owned(),
        _ => spaced(level),
    }
}

/// Names a series. The name of a distribution beside ξ has a transport after its level.
pub(super) fn series(factor: &str, name: &str) -> String {
    if let Some((own, transport)) = name.rsplit_once(' ')
        && LEVELS
            .iter()
            .any(|(of, id, _)| *of == TRANSPORT && *id == transport)
    {
        return format!("{}, {}", level(factor, own), level(TRANSPORT, transport));
    }
    // Single connections are drawn by their handshakes.
    if let Some((own, handshake)) = name.rsplit_once(' ')
        && factor == TRANSPORT
    {
        return format!("{}, {}", level(factor, own), level("resumption", handshake));
    }
    level(factor, name)
}

/// Returns the place of a level in a sentence: `at 5 % packet loss`.
pub(super) fn place(factor: &str, name: &str) -> String {
    let words = level(factor, name);
    match factor {
        "loss" if name.trim_end_matches('%') == "0" => "without loss".to_owned(),
        "loss" => format!("at {words} packet loss"),
        "link" => format!("over {words}"),
        "qos" => format!("at {words}"),
        "interval" => format!("with {words} between messages"),
        "size" => format!("at {words} bytes"),
        "stations" if name == "1" => "with 1 publisher".to_owned(),
        "stations" => format!("with {words} publishers"),
        "topics" if name == "1" => "with 1 topic".to_owned(),
        "topics" => format!("with {words} topics"),
        "resumption" if name == "0-rtt" => "with 0-RTT".to_owned(),
        "pattern" | "resumption" => format!("with a {words}"),
        _ => format!("with {words}"),
    }
}

/// Formats the levels of a figure, as its title: `WiFi, 5 % packet loss`.
pub(crate) fn title(levels: &Levels) -> String {
    let each = levels.iter().map(|(factor, name)| {
        let words = level(factor, name);
        match &factor[..] {
            "loss" => format!("{words} packet loss"),
            "interval" => format!("{words} between messages"),
            "size" => format!("{words} bytes a message"),
            "stations" => format!("{words} publishers"),
            "topics" => format!("{words} topics"),
            _ => words,
        }
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Names a link, such as `WiFi` for `s22/wifi`; changes of a link follow: `WiFi (5 % loss, bursts of 4)`.
fn link(name: &str) -> String {
    let (base, changes) = name.split_once('@').unwrap_or((name, ""));
    let base = base.rsplit('/').next().unwrap_or(base);
    let words = match base {
        "wifi" => "WiFi".to_owned(),
        "leo" => "low orbit".to_owned(),
        "leo26" => "low orbit, 15 s".to_owned(),
        "nb-iot" => "NB-IoT".to_owned(),
        "umts" => "UMTS".to_owned(),
        "dl" => "DL's network".to_owned(),
        "lw26" => "LW26's network".to_owned(),
        "sm22" => "SM22's network".to_owned(),
        other => other.replace('_', " "),
    };
    let changes = changes.split(',').filter(|change| !change.is_empty());
    let changes = changes.map(|change| {
        let (key, value) = change.split_once('=').unwrap_or((change, ""));
        let value = spaced(value);
        let value = value.replace("mbit", "Mbit/s").replace("kbit", "kbit/s");
        match key {
            "loss" => format!("{value} loss"),
            "up.loss" => format!("{value} loss to the broker"),
            "down.loss" => format!("{value} loss from the broker"),
            "burst" => format!("bursts of {value}"),
            "rate" => value,
            _ => format!("{key} {value}"),
        }
    });
    let changes: Vec<_> = changes.collect();
    if changes.is_empty() {
        return words;
    }
    format!("{words} ({})", changes.join(", "))
}

/// Puts a space before a unit: `5 %` for `5%`, `10 ms` for `10ms`.
fn spaced(text: &str) -> String {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    match digits.map(|at| text.split_at(at)) {
        Some((number, unit))
            if !number.is_empty() && unit.chars().all(|c| c.is_alphabetic() || c == '%') =>
        {
            format!("{number} {unit}")
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::record;

    #[test]
    fn levels_are_called_as_people_call_them() {
        for (factor, name, words) in [
            ("transport", "quic", "QUIC"),
            ("link", "s22/wifi", "WiFi"),
            (
                "link",
                "w20/wifi@loss=5%,burst=2",
                "WiFi (5 % loss, bursts of 2)",
            ),
            ("link", "w20/cellular@rate=1.5mbit", "cellular (1.5 Mbit/s)"),
            ("loss", "5%", "5 %"),
            ("interval", "3.5ms", "3.5 ms"),
            ("qos", "1", "QoS 1"),
            ("initial_rtt", "10ms", "10 ms assumed"),
            ("initial_rtt", "100ms", "100 ms assumed (tuned)"),
            ("variant", "QUIC, repeat 3 ms", "QUIC, repeat 3 ms"),
            ("size", "100", "100"),
        ] {
            assert_eq!(level(factor, name), words);
        }
        assert_eq!(series("link", "w20/wifi tls"), "WiFi, TLS");
        assert_eq!(series("transport", "quic 0-rtt"), "QUIC, 0-RTT");
        assert_eq!(series("variant", "QUIC full"), "QUIC full");
        assert_eq!(place("loss", "0%"), "without loss");
    }

    #[test]
    fn every_metric_has_a_name_in_words() {
        for (name, ..) in record::METRICS {
            let words = quantity(&Metric::parse(name), "tls");
            assert!(
                words.contains(' ') && !words.contains('_'),
                "{name}: {words}"
            );
        }
        let xi = quantity(&Metric::parse("xi_w20:delta"), "tcp");
        assert!(xi.starts_with("ξ, QUIC over TCP: time for"), "{xi}");
    }
}
