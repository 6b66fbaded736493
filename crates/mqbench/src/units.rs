//! Numbers as people write and read them.

use std::time::Duration;

use mq_measure::convert::float;

/// Formats a time in nanoseconds with three or four digits and a unit.
pub(crate) fn format_time(ns: u64) -> String {
    format_time_f64(float(ns))
}

/// Formats a mean in nanoseconds, which may have a fraction, likewise.
pub(crate) fn format_time_f64(ns: f64) -> String {
    let (value, unit) = if ns < 1e3 {
        (ns, "ns")
    } else if ns < 1e6 {
        (ns / 1e3, "µs")
    } else if ns < 1e9 {
        (ns / 1e6, "ms")
    } else {
        (ns / 1e9, "s")
    };
    format!("{} {unit}", digits(value))
}

/// Formats an energy in microjoule with three or four digits and a unit.
pub(crate) fn format_energy(uj: f64) -> String {
    of_millionths(uj, 'J')
}

/// Formats a power in microwatt likewise.
pub(crate) fn format_power(uw: f64) -> String {
    of_millionths(uw, 'W')
}

fn of_millionths(millionths: f64, unit: char) -> String {
    let (value, size) = match millionths.abs() {
        size if size < 1e3 => (millionths, "µ"),
        size if size < 1e6 => (millionths / 1e3, "m"),
        size if size < 1e9 => (millionths / 1e6, ""),
        _ => (millionths / 1e9, "k"),
    };
    format!("{} {size}{unit}", digits(value))
}

/// Formats a number with three digits, four from a thousand on.
fn digits(value: f64) -> String {
    let after_point = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.after_point$}")
}

/// Formats a number of bytes in decimal units.
pub(crate) fn format_bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", float(count) / 1e3),
        _ => format!("{:.1} MB", float(count) / 1e6),
    }
}

/// Parses a time such as `250us`, `10ms`, `1.5s`; a bare number is milliseconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let scale = match unit {
        "us" | "µs" => 1e-6,
        "ms" | "" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        _ => return Err("a time is a number with us, ms, s or min, such as 10ms".to_owned()),
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * scale).ok())
        .ok_or_else(|| "a time is a number with us, ms, s or min, such as 10ms".to_owned())
}

/// Formats a JSON value as plain text: a string without its quotes.
pub(crate) fn json_text(value: &serde_json::Value) -> String {
    let text = value.as_str().map(str::to_owned);
    text.unwrap_or_else(|| value.to_string())
}

/// Returns the word that the command line and a campaign file have for a value.
pub(crate) fn serialized_name(value: impl serde::Serialize) -> String {
    let value = serde_json::json!(value);
    value.as_str().unwrap_or_default().to_owned()
}

/// Converts nanoseconds to milliseconds.
pub(crate) fn ns_to_ms(ns: u64) -> f64 {
    float(ns) / 1e6
}

/// Parses a factor of round trips after which a packet counts as lost (RFC 9002 §6.1.2), within 1 and 10.
pub(crate) fn parse_time_threshold(text: &str) -> Result<f32, String> {
    let factor: f32 = text
        .parse()
        .map_err(|_| format!("{text} is not a number"))?;
    let allowed = (1.0..=10.0).contains(&factor);
    allowed
        .then_some(factor)
        .ok_or_else(|| format!("{text} is not within 1 and 10"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_digits() {
        assert_eq!(format_time(999), "999 ns");
        assert_eq!(format_time(1_234), "1.23 µs");
        assert_eq!(format_time(123_456), "123 µs");
        assert_eq!(format_time(12_345_678), "12.3 ms");
        assert_eq!(format_time(2_000_000_000), "2.00 s");
        assert_eq!(format_bytes(123_456), "123.5 kB");
    }

    #[test]
    fn energies_keep_their_digits() {
        assert_eq!(format_energy(0.0), "0.00 µJ");
        assert_eq!(format_energy(1_234.5), "1.23 mJ");
        assert_eq!(format_energy(14_200_000.0), "14.2 J");
        assert_eq!(format_power(-575_000.0), "-575 mW");
        assert_eq!(format_power(1.9e9), "1.90 kW");
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("10"), Ok(Duration::from_millis(10)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert!(parse_duration("10 parsecs").is_err());
        assert!(parse_duration("").is_err());
        assert!(parse_duration("-1s").is_err());
    }
}
