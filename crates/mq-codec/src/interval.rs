//! Durations as MQTT writes them.

use std::time::Duration;

/// Rounds a duration up to an interval of MQTT 5.0, in whole seconds, and at most `u32::MAX` (136 years), which is what
/// four bytes hold.
#[must_use]
pub fn whole_seconds(duration: Duration) -> u32 {
    let seconds = duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0));
    u32::try_from(seconds).unwrap_or(u32::MAX)
}
