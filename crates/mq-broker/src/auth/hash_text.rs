//! The parts of a hash in a password file: text between `$`, numbers, base64.

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Splits `a$b$c`.
pub(super) fn three(text: &str) -> Result<(&str, &str, &str), String> {
    let mut parts = text.split('$');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(one), Some(two), Some(three), None) => Ok((one, two, three)),
        _ => Err("the hash has not the parts that it should have".to_owned()),
    }
}

pub(super) fn number(text: &str, allowed: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| allowed.contains(number));
    number.ok_or_else(|| {
        let (low, high) = allowed.into_inner();
        format!("`{text}` is not a number from {low} to {high}")
    })
}

pub(super) fn decode(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|_| not_base64())
}

pub(super) fn not_base64() -> String {
    "a part of the hash is not base64".to_owned()
}
