//! The table of a comparison.

use comfy_table::{Cell, CellAlignment, LineStyle, Table, presets};
use mq_measure::{
    Summary,
    result::{ConnectKind, ConnectTimes, RunResult, TransportResult},
};

use crate::units::{bytes, time, time_f64};

/// The table, the connection times under it, and every warning.
pub(crate) fn render(result: &RunResult) -> String {
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
    ("mean", |s| time_f64(s.mean_ns)),
    ("RSD", |s| format!("{:.2}", s.rsd)),
    ("min", |s| time(s.min_ns)),
    ("p50", |s| time(s.p50_ns)),
    ("p95", |s| time(s.p95_ns)),
    ("p99", |s| time(s.p99_ns)),
    ("p99.9", |s| time(s.p999_ns)),
    ("max", |s| time(s.max_ns)),
];

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
            t.wire.map_or_else(dash, |wire| {
                let all = wire.bytes_sent + wire.bytes_received;
                bytes(all / t.counts.sent.max(1))
            })
        }),
        ("packets / message", |t| {
            let packets = t
                .wire
                .and_then(|wire| Some(wire.packets_sent? + wire.packets_received?));
            packets.map_or_else(dash, |packets| ratio(packets, t.counts.sent))
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
    table
}

/// A message of another station costs about as much as a measured one.
fn cpu(transport: &TransportResult, role: &str) -> String {
    transport
        .processes
        .iter()
        .find(|process| process.role == role)
        .map_or_else(dash, |process| {
            let sent = transport.counts.sent + transport.neighbours_sent.unwrap_or(0);
            time(process.cpu_ns / sent.max(1))
        })
}

#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
fn ratio(count: u64, of: u64) -> String {
    format!("{:.2}", count as f64 / of.max(1) as f64)
}

fn connections(result: &RunResult) -> Table {
    let mut table = table(
        "connection",
        [
            "count",
            "failed",
            "usable p50",
            "CONNACK p50",
            "CONNACK p95",
            "CONNACK max",
        ]
        .map(String::from)
        .into_iter(),
    );
    for transport in &result.transports {
        for times in &transport.connect {
            let name = match times.kind {
                ConnectKind::Tcp => transport.transport.clone(),
                _ => format!("{} {}", transport.transport, kind_name(times.kind)),
            };
            row(&mut table, &name, connection_cells(times));
        }
    }
    table
}

fn connection_cells(times: &ConnectTimes) -> impl Iterator<Item = String> {
    let of = |summary: &Option<Summary>, value: fn(&Summary) -> u64| {
        summary.as_ref().map_or_else(dash, |s| time(value(s)))
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

/// The name of a kind of connection.
pub(crate) fn kind_name(kind: ConnectKind) -> &'static str {
    match kind {
        ConnectKind::Tcp => "plain",
        ConnectKind::Full => "full",
        ConnectKind::Resumed => "resumed",
        ConnectKind::ZeroRtt => "0-RTT",
    }
}

fn dash() -> String {
    "–".to_owned()
}
