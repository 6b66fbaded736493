//! The manifest of a result: the program, its configuration, the machine, the broker, the link and the start time.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::HostContext;

/// A program and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// The program's name, such as `mqbench` or `mosquitto`.
    pub name: String,
    /// The program's version, as it says itself; `None` if it does not.
    pub version: Option<String>,
    /// The revision of its source, if known.
    pub revision: Option<String>,
}

/// The network link of a run, in the words of the program that set it up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkContext {
    /// The link as configured; `None` if nothing was configured.
    pub configured: Option<Value>,
    /// The link as measured after it was set up.
    pub measured: Option<Value>,
}

/// The conditions of a run, kept with every result so that the run can be repeated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The measuring program.
    pub program: Software,
    /// `release` or `debug`.
    pub profile: String,
    /// The target of the build: architecture, system and C library.
    pub target: String,
    /// Start time of the run, RFC 3339 in UTC.
    pub started_at: String,
    /// The machine that measured.
    pub host: HostContext,
    /// All seeds of the run, by what they are for.
    pub seeds: BTreeMap<String, u64>,
    /// The broker under test.
    pub broker: Software,
    /// The configuration with every default filled in.
    pub configuration: Value,
    /// The link, as configured and as measured.
    pub link: LinkContext,
}

impl Manifest {
    /// Makes the manifest of a run that begins now on this machine, without seeds and link.
    #[must_use]
    pub fn now(program: Software, broker: Software, configuration: Value) -> Self {
        Self {
            program,
            profile: build_profile().to_owned(),
            target: build_target(),
            started_at: rfc3339(SystemTime::now()),
            host: HostContext::read(),
            seeds: BTreeMap::new(),
            broker,
            configuration,
            link: LinkContext::default(),
        }
    }
}

/// Returns `debug` if this was built with debug assertions, otherwise `release`.
#[must_use]
pub fn build_profile() -> &'static str {
    if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    }
}

/// Returns the target of this build: architecture, system and C library, such as `aarch64-linux-musl`.
#[must_use]
pub fn build_target() -> String {
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    let library = if cfg!(target_env = "musl") {
        "-musl"
    } else if cfg!(target_env = "gnu") {
        "-gnu"
    } else {
        ""
    };
    format!("{arch}-{os}{library}")
}

/// Formats `time` as RFC 3339 in UTC with milliseconds: `2024-05-01T10:40:00.123Z`.
///
/// A time before 1970 becomes the beginning of 1970. These few lines stand in for a crate of dates, which every program
/// that measures would compile for this one form in UTC.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// Returns year, month and day of the Gregorian calendar, `days` after 1970-01-01.
///
/// Howard Hinnant, *chrono-Compatible Low-Level Date Algorithms*, `civil_from_days`: years begin
/// in March there, so that the leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        // Each checked with `date -u -d @SECONDS`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_714_560_000, "2024-05-01T10:40:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        let late = UNIX_EPOCH + Duration::from_millis(1_714_560_000_123);
        assert_eq!(rfc3339(late), "2024-05-01T10:40:00.123Z");
    }

    #[test]
    fn civil_days_follow_each_other() {
        // `date` prints the last one, too.
        let mut last = civil(0);
        for day in 1..200_000 {
            let now = civil(day);
            assert!(
                now > last && (1..=12).contains(&now.1) && (1..=31).contains(&now.2),
                "{now:?}"
            );
            last = now;
        }
        assert_eq!(last, (2517, 7, 31));
    }

    #[test]
    fn manifest_round_trips() {
        let software = |name: &str| Software {
            name: name.to_owned(),
            version: Some("1.0".to_owned()),
            revision: None,
        };
        let configuration = serde_json::json!({"qos": 1});
        let manifest = Manifest::now(software("mqbench"), software("mqbroker"), configuration);
        let json = serde_json::to_string(&manifest).unwrap();
        assert_eq!(serde_json::from_str::<Manifest>(&json).unwrap(), manifest);
    }
}
