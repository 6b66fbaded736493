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

/// Names the machine of a run: a host of a campaign, or the one that measured.
pub(super) fn machine(host: Option<&str>) -> String {
    host.map_or_else(|| "this machine".to_owned(), |host| format!("host {host}"))
}

/// Formats a number with three digits, without zeros at the end: `0.132`, `25.3`, `12300`.
pub(super) fn three_digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    // `{:e}` rounds to the digit; the number is then written without an exponent.
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    rounded.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let values = [
            0.132_235_294_117_647_06,
            0.01,
            0.0,
            25.34,
            12_345.0,
            -0.000_012_34,
        ];
        assert_eq!(
            values.map(three_digits),
            ["0.132", "0.01", "0", "25.3", "12300", "-0.0000123"]
        );
    }
}
