//! The table of a comparison.

use comfy_table::{Cell, CellAlignment, LineStyle, Table, presets};
use mq_measure::{
    LatencyRecorder, Summary,
    convert::float,
    result::{Comparison, ConnectKind, ConnectTimes, RunResult, TransportResult},
    stats::Interval,
    topics::TopicFigures,
};
use mq_transport::Repeat;

use super::histogram::{self, WIDTH};
use crate::units::{format_bytes, format_time, format_time_f64};

/// Formats the tables, a picture of the delays (in the order of the transports), and what came out.
pub(crate) fn whole(result: &RunResult, delays: &[LatencyRecorder]) -> String {
    let names = result.transports.iter().map(|one| &one.transport[..]);
    let columns: Vec<_> = names.zip(delays).collect();
    let (tables, picture) = (tables(result), histogram::side_by_side(&columns));
    let head = initial_rtt(result).into_iter().chain(repeated(result));
    let head: String = head.map(|line| line + "\n").collect();
    let sentences = sentences(&result.comparisons);
    format!("{head}{tables}\n{picture}{sentences}{}", prices(result))
}

/// Formats what the transports assume of a link before they have measured it; `None` without QUIC.
fn initial_rtt(result: &RunResult) -> Option<String> {
    let stack = &result.parameters["stack"];
    let mut transports = result.transports.iter();
    let has_quic = transports.any(|one| one.url.starts_with("quic://"));
    let rtt = stack["quic"]["initial_rtt_ns"].as_u64();
    super::initial_rtts(
        rtt.filter(|_| has_quic),
        stack["tcp"]["initial_rto_ns"].as_u64(),
    )
}

/// Name of QUIC with small datagrams repeated, as a compared transport.
pub(crate) const REPEATED: &str = "quic-repeat";

/// Explains QUIC with repeated datagrams; `None` where it is not compared.
fn repeated(result: &RunResult) -> Option<String> {
    let mut transports = result.transports.iter();
    let policy = transports.find_map(|one| one.repeat.as_deref())?;
    let times = match policy.parse() {
        Ok(Repeat::After { copies, .. }) if copies.get() > 1 => {
            format!("{} times", copies.get() + 1)
        }
        _ => "twice".to_owned(),
    };
    let from = match &result.manifest.broker.name[..] {
        "external" => "from clients alone",
        _ => "from either side",
    };
    Some(format!(
        "{REPEATED}: QUIC, small datagrams go {times}, {from} (--repeat {policy})"
    ))
}

/// Formats the datagrams and bytes of QUIC with repeated datagrams beside those of QUIC without.
fn prices(result: &RunResult) -> String {
    let each = |t: &TransportResult| {
        let (packets, bytes) = (packets(t)?, bytes(t)?);
        let sent = t.counts.sent.max(1);
        let (packets, bytes) = (ratio(packets, sent), format_bytes(bytes / sent));
        Some(format!("{packets} datagrams and {bytes} a message"))
    };
    let all = &result.transports;
    let repeated = all.iter().enumerate().filter(|(_, t)| t.repeat.is_some());
    let lines = repeated.filter_map(|(at, transport)| {
        let price = each(transport)?;
        let mut before = all[..at].iter().rev();
        let alone = before.find(|t| t.transport == "quic").and_then(each);
        let alone = alone.map(|alone| format!(";\n  without it {alone}"));
        let alone = alone.unwrap_or_default();
        Some(format!("QUIC with repeat takes {price}{alone}\n"))
    });
    lines.collect()
}

/// Returns the packets that the clients sent and received.
fn packets(transport: &TransportResult) -> Option<u64> {
    let wire = transport.wire?;
    Some(wire.packets_sent? + wire.packets_received?)
}

/// Returns the bytes that the clients sent and received.
fn bytes(transport: &TransportResult) -> Option<u64> {
    let wire = transport.wire?;
    Some(wire.bytes_sent + wire.bytes_received)
}

/// Formats the table, the connection times under it, and every warning.
fn tables(result: &RunResult) -> String {
    let mut text = format!("{}\n\n{}\n", latency(result), connections(result));
    for transport in &result.transports {
        for warning in &transport.warnings {
            text.push_str(&format!("! {}: {warning}\n", transport.transport));
        }
    }
    text + &super::warnings(&result.validity.warnings)
}

fn table(heading: &str, columns: impl Iterator<Item = String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()));
    let cells = std::iter::once(heading.to_owned()).chain(columns);
    table.set_header(cells.map(Cell::new));
    table
}

fn row(table: &mut Table, name: &str, values: impl Iterator<Item = String>) {
    let right = |text| Cell::new(text).set_alignment(CellAlignment::Right);
    table.add_row(std::iter::once(Cell::new(name)).chain(values.map(right)));
}

type SummaryRow = (&'static str, fn(&Summary) -> String);
type CountRow = (&'static str, fn(&TransportResult) -> String);

const LATENCY_ROWS: [SummaryRow; 8] = [
    ("mean", |s| format_time_f64(s.mean_ns)),
    ("RSD", |s| format!("{:.2}", s.rsd)),
    ("min", |s| format_time(s.min_ns)),
    ("p50", |s| format_time(s.p50_ns)),
    ("p95", |s| format_time(s.p95_ns)),
    ("p99", |s| format_time(s.p99_ns)),
    ("p99.9", |s| format_time(s.p999_ns)),
    ("max", |s| format_time(s.max_ns)),
];

type TopicRow = (&'static str, fn(&TopicFigures) -> Option<String>);

/// Rows of a comparison over several topics.
const TOPIC_ROWS: [TopicRow; 6] = [
    ("spread between topics", |f| {
        f.inter_topic_spread_ns.map(format_time_f64)
    }),
    ("spikes that hit all topics", |f| {
        f.spike_isolation_ratio.map(share)
    }),
    ("above the link, mean topic", |f| {
        f.above_link_mean_ns.map(format_time_f64)
    }),
    ("above the link, worst topic", |f| {
        f.above_link_worst_ns.map(format_time_f64)
    }),
    ("over 5 ms late", |f| f.late_share.map(share)),
    ("late behind another topic", |f| {
        f.late_through_others.map(share)
    }),
];

fn share(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn latency(result: &RunResult) -> Table {
    let transports = &result.transports;
    let names = transports.iter().map(|t| t.transport.clone());
    let mut table = table("publisher to subscriber", names);
    for (name, value) in LATENCY_ROWS {
        row(
            &mut table,
            name,
            transports
                .iter()
                .map(|t| t.latency.as_ref().map_or_else(dash, value)),
        );
    }
    let rows: [CountRow; 9] = [
        ("sent", |t| t.counts.sent.to_string()),
        ("lost", |t| t.counts.lost.to_string()),
        ("duplicates", |t| t.counts.duplicates.to_string()),
        ("reordered", |t| t.counts.reordered.to_string()),
        ("bytes on the wire / message", |t| {
            let each = |all| format_bytes(all / t.counts.sent.max(1));
            bytes(t).map_or_else(dash, each)
        }),
        ("packets / message", |t| {
            packets(t).map_or_else(dash, |packets| ratio(packets, t.counts.sent))
        }),
        ("publisher's packets / s", |t| {
            t.publisher_host.map_or_else(dash, |host| {
                ratio(host.sent.saturating_mul(1_000_000_000), host.elapsed_ns)
            })
        }),
        ("broker CPU / message", |t| cpu(t, "broker")),
        ("clients' CPU / message", |t| cpu(t, "clients")),
    ];
    for (name, value) in rows {
        row(&mut table, name, transports.iter().map(value));
    }
    if transports.iter().any(|t| t.neighbours_sent.is_some()) {
        let sent = |t: &TransportResult| t.neighbours_sent.map_or_else(dash, |n| n.to_string());
        let name = "sent by the other stations";
        row(&mut table, name, transports.iter().map(sent));
    }
    for (name, value) in TOPIC_ROWS {
        let value = |t: &TransportResult| t.topics.as_ref().and_then(value);
        if transports.iter().any(|t| value(t).is_some()) {
            let values = transports.iter().map(|t| value(t).unwrap_or_else(dash));
            row(&mut table, name, values);
        }
    }
    table
}

/// Formats the CPU time of a process for each message. A message of another station counts as one, since it costs about
/// as much.
fn cpu(transport: &TransportResult, role: &str) -> String {
    transport
        .processes
        .iter()
        .find(|process| process.role == role)
        .map_or_else(dash, |process| {
            let sent = transport.counts.sent + transport.neighbours_sent.unwrap_or(0);
            format_time(process.cpu_ns / sent.max(1))
        })
}

fn ratio(count: u64, of: u64) -> String {
    format!("{:.2}", float(count) / float(of.max(1)))
}

fn connections(result: &RunResult) -> Table {
    let mut table = table(
        "connection",
        ["count", "failed", "usable p50", "CONNACK p50", "p95", "max"]
            .map(String::from)
            .into_iter(),
    );
    for transport in &result.transports {
        for times in &transport.connect {
            let name = match &transport.transport[..] {
                // The whole name would make the table wider than a terminal.
                REPEATED => "repeat",
                name => name,
            };
            let name = match times.kind {
                ConnectKind::Tcp => name.to_owned(),
                kind => format!("{name} {}", kind_name(kind)),
            };
            row(&mut table, &name, connection_cells(times));
        }
    }
    table
}

fn connection_cells(times: &ConnectTimes) -> impl Iterator<Item = String> {
    let of = |summary: &Option<Summary>, value: fn(&Summary) -> u64| {
        summary
            .as_ref()
            .map_or_else(dash, |s| format_time(value(s)))
    };
    [
        times.count.to_string(),
        times.failed.to_string(),
        of(&times.usable, |s| s.p50_ns),
        of(&times.connack, |s| s.p50_ns),
        of(&times.connack, |s| s.p95_ns),
        of(&times.connack, |s| s.max_ns),
    ]
    .into_iter()
}

/// Returns the name of a kind of connection.
pub(crate) fn kind_name(kind: ConnectKind) -> &'static str {
    match kind {
        ConnectKind::Tcp => "plain",
        ConnectKind::Full => "full",
        ConnectKind::Resumed => "resumed",
        ConnectKind::ZeroRtt => "0-RTT",
    }
}

/// The compared delay, as sentences name it.
pub(crate) const DELAY: &str = "mean delay";
/// The compared connection time, from the dial to CONNACK, without tickets.
pub(crate) const CONNECTION: &str = "median connection time";

/// Formats the differences between transports, one sentence a comparison; empty with one transport.
fn sentences(comparisons: &[Comparison]) -> String {
    let each = comparisons.iter().filter_map(|comparison| {
        let found = sentence(comparison, comparison.ratio?);
        Some(format!("{found}\n"))
    });
    let text: String = each.collect();
    if text.is_empty() {
        return text;
    }
    format!("\nwith 95 % intervals, over rounds:\n{text}")
}

fn sentence(comparison: &Comparison, ratio: Interval) -> String {
    let of = subject(&comparison.transport, &comparison.quantity);
    let with = possessive(&comparison.baseline);
    let [estimate, low, high] =
        [ratio.estimate, ratio.low, ratio.high].map(|ratio| (ratio - 1.0) * 100.0);
    if ratio.contains(1.0) {
        let [low, high] = [low, high].map(|end| percent(end, true));
        let found = format!("{of} is not shown to differ from {with}");
        return with_interval(&found, &format!("({low} to {high} %)"));
    }
    let way = if estimate < 0.0 { "lower" } else { "higher" };
    let [estimate, low, high] = [estimate, low, high].map(f64::abs);
    let (least, most) = (low.min(high), low.max(high));
    let [estimate, least, most] = [estimate, least, most].map(|value| percent(value, false));
    let found = format!("{of} is {estimate} % {way} than {with}");
    with_interval(&found, &format!("({least} to {most} %)"))
}

/// Names a quantity of a transport: `QUIC's mean delay`, or `QUIC's mean delay with repeat`.
fn subject(transport: &str, quantity: &str) -> String {
    match transport {
        REPEATED => format!("QUIC's {quantity} with repeat"),
        other => format!("{}'s {quantity}", other.to_uppercase()),
    }
}

fn possessive(transport: &str) -> String {
    match transport {
        REPEATED => "QUIC's with repeat".to_owned(),
        other => format!("{}'s", other.to_uppercase()),
    }
}

/// Puts an interval behind a sentence, or on a line of its own where the sentence fills a terminal.
fn with_interval(sentence: &str, interval: &str) -> String {
    let width = sentence.chars().count() + 1 + interval.chars().count();
    let between = if width > WIDTH { "\n  " } else { " " };
    format!("{sentence}{between}{interval}")
}

/// Formats a percentage: 49.7 as 50, 0.31 as 0.3; beyond a thousand no digit means anything, and the line would be too
/// long.
fn percent(value: f64, signed: bool) -> String {
    let digits = usize::from(value.abs() < 9.5);
    if value > 999.0 {
        ">999".to_owned()
    } else if signed {
        format!("{value:+.digits$}")
    } else {
        format!("{value:.digits$}")
    }
}

fn dash() -> String {
    "–".to_owned()
}

#[cfg(test)]
mod tests {
    use mq_measure::{
        Counts, Validity,
        manifest::{Manifest, Software},
        result::WireUse,
    };
    use serde_json::Value;

    use super::*;

    fn said(estimate: f64, low: f64, high: f64) -> String {
        let comparison = Comparison {
            quantity: DELAY.to_owned(),
            transport: "quic".to_owned(),
            baseline: "tls".to_owned(),
            ratio: Some(Interval {
                estimate,
                low,
                high,
                confidence: 0.95,
            }),
        };
        let text = sentences(&[comparison]);
        text.lines().next_back().unwrap().to_owned()
    }

    #[test]
    fn a_comparison_is_a_sentence() {
        assert_eq!(
            said(0.92, 0.87, 0.97),
            "QUIC's mean delay is 8.0 % lower than TLS's (3.0 to 13 %)"
        );
        assert_eq!(
            said(2.0, 1.5, 2.7),
            "QUIC's mean delay is 100 % higher than TLS's (50 to 170 %)"
        );
        assert_eq!(
            said(1.01, 0.97, 1.1),
            "QUIC's mean delay is not shown to differ from TLS's (-3.0 to +10 %)"
        );
        assert_eq!(sentences(&[]), "");
    }

    #[test]
    fn the_widest_sentence_fits_a_terminal() {
        let comparison = Comparison {
            quantity: CONNECTION.to_owned(),
            transport: "quic".to_owned(),
            baseline: "tls".to_owned(),
            ratio: Some(Interval {
                estimate: 1.2,
                low: 1e-9,
                high: 1e9,
                confidence: 0.95,
            }),
        };
        let text = sentences(&[comparison]);
        let last = text.lines().next_back().unwrap();
        assert!(last.ends_with("(-100 to >999 %)"), "{last}");
        assert!(last.chars().count() <= 80, "{last}");
    }

    #[test]
    fn a_sentence_names_repeat_and_a_terminal_holds_it() {
        let ratio = Interval {
            estimate: 0.75,
            low: 0.7,
            high: 0.8,
            confidence: 0.95,
        };
        let comparison = |quantity: &str, baseline: &str, ratio| Comparison {
            quantity: quantity.to_owned(),
            transport: REPEATED.to_owned(),
            baseline: baseline.to_owned(),
            ratio: Some(ratio),
        };
        let unsure = Interval { high: 1.1, ..ratio };
        let text = sentences(&[
            comparison(DELAY, "quic", ratio),
            comparison(CONNECTION, "quic", unsure),
            comparison(DELAY, REPEATED, ratio),
        ]);
        let (_, found) = text.split_once(":\n").unwrap();
        assert_eq!(
            found,
            "QUIC's mean delay with repeat is 25 % lower than QUIC's (20 to 30 %)\n\
             QUIC's median connection time with repeat is not shown to differ from QUIC's\n  \
             (-30 to +10 %)\n\
             QUIC's mean delay with repeat is 25 % lower than QUIC's with repeat (20 to 30 %)\n"
        );
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
    }

    fn transport(name: &str, repeat: Option<&str>, each: u64) -> TransportResult {
        TransportResult {
            transport: name.to_owned(),
            repeat: repeat.map(str::to_owned),
            url: "quic://127.0.0.1:14567".to_owned(),
            latency: None,
            latency_from_send: None,
            rtt_last: None,
            counts: Counts {
                sent: 100,
                ..Counts::default()
            },
            wire: Some(WireUse {
                bytes_sent: 100 * each * 100,
                bytes_received: 0,
                packets_sent: Some(each * 100),
                packets_received: Some(50),
            }),
            publisher_host: None,
            neighbours_sent: None,
            topics: None,
            processes: Vec::new(),
            connect: Vec::new(),
            rounds: Vec::new(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn repeat_is_explained_and_has_its_price_beside_quics() {
        let [own, external] = ["mqbroker", "external"].map(|broker| {
            let software = |name: &str| Software {
                name: name.to_owned(),
                version: None,
                revision: None,
            };
            let manifest = Manifest::now(software("mqbench"), software(broker), Value::Null);
            RunResult {
                schema: String::new(),
                manifest,
                parameters: Value::Null,
                transports: vec![
                    transport("quic", None, 2),
                    transport(REPEATED, Some("3ms"), 3),
                ],
                comparisons: Vec::new(),
                validity: Validity::default(),
            }
        });
        let explained = |result: &RunResult| repeated(result).unwrap();
        assert_eq!(
            explained(&own),
            "quic-repeat: QUIC, small datagrams go twice, from either side (--repeat 3ms)"
        );
        assert!(explained(&external).contains("twice, from clients alone"));
        let mut thrice = own.clone();
        thrice.transports[1].repeat = Some("3ms,2".to_owned());
        assert!(explained(&thrice).contains("go 3 times, "));
        assert_eq!(
            prices(&own),
            "QUIC with repeat takes 3.50 datagrams and 300 B a message;\n  \
             without it 2.50 datagrams and 200 B a message\n"
        );
        let mut without = own;
        without.transports.pop();
        assert_eq!((repeated(&without), prices(&without).as_str()), (None, ""));
    }
}
