//! Numbers for people.

/// A time in nanoseconds with three or four digits and a unit.
#[expect(clippy::cast_precision_loss, reason = "four digits are shown")]
pub(crate) fn time(ns: u64) -> String {
    time_f64(ns as f64)
}

/// The same for a mean.
pub(crate) fn time_f64(ns: f64) -> String {
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

/// An energy in microjoule with three or four digits and a unit.
pub(crate) fn energy(uj: f64) -> String {
    of_millionths(uj, 'J')
}

/// A power in microwatt, likewise.
pub(crate) fn power(uw: f64) -> String {
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

/// With three digits, four from a thousand on.
fn digits(value: f64) -> String {
    let after_point = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.after_point$}")
}

/// A number of bytes in decimal units.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_digits() {
        assert_eq!(time(999), "999 ns");
        assert_eq!(time(1_234), "1.23 µs");
        assert_eq!(time(123_456), "123 µs");
        assert_eq!(time(12_345_678), "12.3 ms");
        assert_eq!(time(2_000_000_000), "2.00 s");
        assert_eq!(bytes(123_456), "123.5 kB");
    }

    #[test]
    fn energies_keep_their_digits() {
        assert_eq!(energy(0.0), "0.00 µJ");
        assert_eq!(energy(1_234.5), "1.23 mJ");
        assert_eq!(energy(14_200_000.0), "14.2 J");
        assert_eq!(power(-575_000.0), "-575 mW");
        assert_eq!(power(1.9e9), "1.90 kW");
    }
}
