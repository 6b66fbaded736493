//! The words of a warning that are computed.

use crate::convert;

/// Nanoseconds in the unit that reads best.
pub(super) fn time(ns: u64) -> String {
    let float = convert::float(ns);
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", float / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", float / 1e6),
        _ => format!("{:.1} s", float / 1e9),
    }
}

/// The machine of a run: a host of a campaign, or the one that measured.
pub(super) fn machine(host: Option<&str>) -> String {
    host.map_or_else(|| "this machine".to_owned(), |host| format!("host {host}"))
}
