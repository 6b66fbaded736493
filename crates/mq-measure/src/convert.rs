//! Conversions between integers and floating point, each with the reason why it is safe here.

/// `n` as a float.
#[expect(
    clippy::cast_precision_loss,
    reason = "exact up to 2^53 ns = 104 days; beyond, the error is below one part in 10^15"
)]
#[must_use]
pub fn float(n: u64) -> f64 {
    n as f64
}

/// Converts the number of elements of a slice as a float.
#[must_use]
pub fn float_len(n: usize) -> f64 {
    float(n as u64)
}

/// `x` rounded to the nearest integer; negative values and NaN become 0, large ones `u64::MAX`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates from float to integer, which is what the name promises"
)]
#[must_use]
pub fn round(x: f64) -> u64 {
    x.round() as u64
}

/// A difference of two times as a float.
#[expect(
    clippy::cast_precision_loss,
    reason = "exact up to 2^53 ns = 104 days; beyond, the error is below one part in 10^15"
)]
#[must_use]
pub fn signed(n: i128) -> f64 {
    n as f64
}

/// `x` rounded to the nearest integer; NaN becomes 0, what is too large the largest there is.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`as` saturates from float to integer, which is what the name promises"
)]
#[must_use]
pub fn round_signed(x: f64) -> i64 {
    x.round() as i64
}
