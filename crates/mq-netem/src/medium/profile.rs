//! A shared channel's properties, as a file describes them.

use std::{str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    Error, Probability, Rate, presets,
    profile::source::{Source, set, with_key},
    units::{Time, nanoseconds},
};

const MICROSECOND: Duration = Duration::from_micros(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// An 802.11 channel that several stations share: its times, and how it loses frames.
///
/// The default is 802.11g at its best: 54 Mbit/s, short slots, nothing lost but by collision.
///
/// ```
/// let medium: mq_netem::Medium = r#"
///     description = "a channel that damages one frame in ten and repeats it once at most"
///     [medium]
///     frame_error_rate = "10%"
///     retries = 1
/// "#
/// .parse()?;
/// assert_eq!(medium.retries, 1);
/// assert_eq!(medium.rate.bits_per_second(), 54_000_000);
/// # Ok::<(), mq_netem::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Medium {
    /// Network that the channel stands for, and the source of its figures.
    #[serde(skip)]
    pub description: String,
    /// Rate of data frames, without their preamble.
    pub rate: Rate,
    /// Rate of acknowledgements, without their preamble.
    pub basic_rate: Rate,
    /// Slot time: one step of a back-off counter.
    #[serde(deserialize_with = "time")]
    pub slot: Duration,
    /// Time from a data frame to its acknowledgement (SIFS).
    #[serde(deserialize_with = "time")]
    pub sifs: Duration,
    /// Idle time of the channel before back-off counters run (DIFS).
    #[serde(deserialize_with = "time")]
    pub difs: Duration,
    /// The time before a frame of either kind.
    #[serde(deserialize_with = "time")]
    pub preamble: Duration,
    /// Bytes by which a frame on the air is longer than the Ethernet frame that it carries.
    #[serde(deserialize_with = "number")]
    pub header: u64,
    /// Bytes of an acknowledgement.
    #[serde(deserialize_with = "number")]
    pub ack: u64,
    /// The contention window of a frame's first attempt: a back-off is 0 to this many slots.
    #[serde(deserialize_with = "number")]
    pub cw_min: u64,
    /// The largest contention window.
    #[serde(deserialize_with = "number")]
    pub cw_max: u64,
    /// The share of damaged frames among those that did not collide, whatever their size.
    pub frame_error_rate: Probability,
    /// Most retransmissions of a frame that failed; with 0 the frame is lost at once.
    #[serde(deserialize_with = "number")]
    pub retries: u8,
    /// Frames that a station holds, the one being sent among them; further frames are dropped
    /// (tail drop).
    #[serde(deserialize_with = "frames")]
    pub queue: u64,
}

impl Default for Medium {
    fn default() -> Self {
        Self {
            description: "802.11g at 54 Mbit/s".to_owned(),
            rate: megabits(54),
            // The highest mandatory rate that is no higher than the frame's.
            basic_rate: megabits(24),
            slot: Duration::from_micros(9),
            sifs: Duration::from_micros(10),
            // SIFS and two slots.
            difs: Duration::from_micros(28),
            preamble: Duration::from_micros(20),
            // MAC header 24, LLC and SNAP 8, frame check sequence 4, less Ethernet's header of 14.
            header: 22,
            ack: 14,
            cw_min: 15,
            cw_max: 1023,
            frame_error_rate: Probability::ZERO,
            // dot11ShortRetryLimit.
            retries: 7,
            // As a link's.
            queue: 1000,
        }
    }
}

fn megabits(rate: u64) -> Rate {
    Rate::from_bits_per_second(rate * 1_000_000).expect("it is more than 0")
}

impl Medium {
    /// Loads a shipped medium by its name, `s21/medium`, or a medium from a file whose name ends in `.toml`.
    /// Changes such as `frame_error_rate=5%,retries=0` may follow an `@`.
    ///
    /// # Errors
    /// If there is no such medium, or something in it is wrong.
    pub fn load(name: &str) -> Result<Self, Error> {
        Self::parse(&Source::find(name, presets::MEDIA)?)
    }

    fn parse(source: &Source<'_>) -> Result<Self, Error> {
        let table = source.table(|table, key, value| {
            set(table, "medium", key, value);
            Ok(())
        })?;
        Self::from_table(table).map_err(|problem| source.wrong(problem))
    }

    /// Reads a medium from a table, in which numbers may be strings, as in changes behind an `@`.
    fn from_table(table: toml::Table) -> Result<Self, String> {
        let raw: RawFile = table
            .try_into()
            .map_err(|error: toml::de::Error| with_key("", &error))?;
        raw.medium.check()?;
        Ok(Self {
            description: raw.description,
            ..raw.medium
        })
    }

    /// Returns the time on the air of a frame that carries an Ethernet frame of `bytes`, in nanoseconds.
    pub(super) fn sending(&self, bytes: u64) -> u64 {
        nanoseconds(self.preamble) + self.rate.nanoseconds_for(bytes + self.header)
    }

    /// Returns the time from the end of a data frame until counters run again, in nanoseconds.
    pub(super) fn settling(&self) -> u64 {
        nanoseconds(self.sifs)
            + nanoseconds(self.preamble)
            + self.basic_rate.nanoseconds_for(self.ack)
            + nanoseconds(self.difs)
    }
}

impl FromStr for Medium {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(&Source::text(text))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    description: String,
    medium: Medium,
}

impl Medium {
    fn check(&self) -> Result<(), String> {
        for (key, time, least) in [
            ("slot", self.slot, MICROSECOND),
            ("sifs", self.sifs, Duration::ZERO),
            // A shorter DIFS would let other stations send before the acknowledgement.
            ("difs", self.difs, self.sifs),
            ("preamble", self.preamble, Duration::ZERO),
        ] {
            if !(least..=MILLISECOND).contains(&time) {
                let [time, least, most] =
                    [time, least, MILLISECOND].map(|time| time.div_duration_f64(MICROSECOND));
                return Err(format!(
                    "medium.{key} is {time}us: write {least}us to {most}us"
                ));
            }
        }
        for (key, number, most) in [
            ("header", self.header, 256),
            ("ack", self.ack, 256),
            ("retries", self.retries.into(), 7),
        ] {
            if number > most {
                return Err(format!("medium.{key} is {number}: write 0 to {most}"));
            }
        }
        // 802.11 has windows up to 2^15 - 1.
        for (key, window, least) in [
            ("cw_min", self.cw_min, 1),
            ("cw_max", self.cw_max, self.cw_min),
        ] {
            if !(least..=32_767).contains(&window) || !(window + 1).is_power_of_two() {
                return Err(format!(
                    "medium.{key} is {window}: write 2^n - 1, such as 15, from {least} to 32767"
                ));
            }
        }
        Ok(())
    }
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Time::deserialize(from).map(|Time(time)| time)
}

/// Reads a whole number, or one in a string.
fn number<'de, T: TryFrom<u64>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let (number, text) = match toml::Value::deserialize(from)? {
        toml::Value::Integer(number) => (u64::try_from(number).ok(), number.to_string()),
        toml::Value::String(text) => (text.parse().ok(), text),
        other => (None, other.type_str().to_owned()),
    };
    let number =
        number.ok_or_else(|| D::Error::custom(format!("`{text}` is no whole number of 0 or more")));
    T::try_from(number?).map_err(|_| D::Error::custom(format!("`{text}` is too large")))
}

/// Reads the limit of a station's queue in frames, 1 or more, such as `100p`: the form of a link's queue.
fn frames<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    let frames = text
        .strip_suffix('p')
        .and_then(|frames| frames.parse().ok());
    frames.filter(|frames| *frames > 0).ok_or_else(|| {
        D::Error::custom(format!(
            "`{text}` is no queue of a station: write packets, 1p or more"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = include_str!("../../profiles/s21/medium.toml");

    /// Parses the shipped file with one key changed, as a change behind an `@` would.
    fn with(key: &str, value: &str) -> Result<Medium, String> {
        let mut table: toml::Table = toml::from_str(SHIPPED).unwrap();
        let medium = table["medium"].as_table_mut().unwrap();
        medium.insert(key.to_owned(), toml::Value::String(value.to_owned()));
        Medium::from_table(table)
    }

    #[test]
    fn the_shipped_profile_says_all_of_the_default() {
        let shipped: Medium = SHIPPED.parse().unwrap();
        let default = Medium {
            description: shipped.description.clone(),
            ..Medium::default()
        };
        assert_eq!(shipped, default);
        let table: toml::Table = toml::from_str(SHIPPED).unwrap();
        assert_eq!(table["medium"].as_table().unwrap().len(), 13);
    }

    #[test]
    fn changes_may_be_strings() {
        assert_eq!(with("retries", "3").unwrap().retries, 3);
        assert_eq!(with("cw_min", "31").unwrap().cw_min, 31);
        assert_eq!(with("queue", "50p").unwrap().queue, 50);
        let errors = with("frame_error_rate", "5%").unwrap().frame_error_rate;
        assert_eq!(Some(errors), Probability::new(0.05));
        let slot = with("slot", "20us").unwrap().slot;
        assert_eq!(slot, Duration::from_micros(20));
    }

    #[test]
    fn mistakes_name_the_key_the_value_and_what_is_allowed() {
        for (key, value, says) in [
            ("retries", "8", "8: write 0 to 7"),
            ("retries", "-1", "`-1` is no whole number of 0 or more"),
            ("retries", "many", "`many` is no whole number"),
            (
                "cw_min",
                "16",
                "16: write 2^n - 1, such as 15, from 1 to 32767",
            ),
            ("cw_min", "0", "from 1 to"),
            ("cw_min", "-1", "`-1` is no whole"),
            (
                "cw_max",
                "7",
                "7: write 2^n - 1, such as 15, from 15 to 32767",
            ),
            ("cw_max", "65535", "65535: write"),
            ("slot", "0us", "0us: write 1us to 1000us"),
            ("sifs", "2ms", "2000us: write 0us to 1000us"),
            ("difs", "9.5us", "9.5us: write 10us to 1000us"),
            ("preamble", "20", "`20` is no time"),
            ("rate", "54", "`54` is no rate"),
            ("header", "1500", "1500: write 0 to 256"),
            ("ack", "257", "257: write 0 to 256"),
            ("frame_error_rate", "5", "0% to 100%"),
            ("queue", "0p", "1p or more"),
            ("queue", "62500B", "`62500B` is no queue of a station"),
            ("losss", "5%", "unknown field `losss`"),
        ] {
            let error = with(key, value).unwrap_err();
            assert!(error.contains(says), "{key}={value}: {error}");
            assert!(error.contains(key), "{key}={value}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        for text in ["description = 'no table'", "[medium]", "[medium", "[up]"] {
            let error = text.parse::<Medium>().unwrap_err().to_string();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
