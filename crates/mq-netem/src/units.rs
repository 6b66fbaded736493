//! Quantities as a profile writes them.

use std::{fmt, str::FromStr, time::Duration};

use serde::Deserialize;

/// A bit rate, at least 1 bit a second. As text it is a number with a unit of `tc`: `bit`, `kbit`, `mbit` or `gbit`,
/// such as `20mbit`, up to `1000gbit`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Rate(u64);

impl Rate {
    /// Makes a rate of `bits` a second; `None` for 0, which would never deliver anything.
    #[must_use]
    pub fn from_bits_per_second(bits: u64) -> Option<Self> {
        (bits > 0).then_some(Self(bits))
    }

    /// Returns the rate in bits a second.
    #[must_use]
    pub fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Returns the time that `bytes` take, in nanoseconds, rounded up.
    #[must_use]
    pub fn nanoseconds_for(self, bytes: u64) -> u64 {
        let bits = u128::from(bytes) * 8;
        let ns = (bits * 1_000_000_000).div_ceil(u128::from(self.0));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns the number of bytes that pass in a time, rounded down.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bits = time.as_nanos() * u128::from(self.0) / 1_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no rate: write bits a second such as 1.5mbit or 10gbit");
        let (number, unit) = split(text);
        let scale = match unit {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(wrong()),
        };
        let bits = number.parse::<f64>().map_err(|_| wrong())? * scale;
        if !(1.0..=1e12).contains(&bits) {
            return Err(format!(
                "`{text}` is out of range: a rate is 1bit to 1000gbit"
            ));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be within 1 and 10^12"
        )]
        Ok(Self(bits.round() as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bits if bits % 1_000_000_000 == 0 => write!(f, "{}gbit", bits / 1_000_000_000),
            bits if bits % 1_000_000 == 0 => write!(f, "{}mbit", bits / 1_000_000),
            bits if bits % 1_000 == 0 => write!(f, "{}kbit", bits / 1_000),
            bits => write!(f, "{bits}bit"),
        }
    }
}

/// A probability from 0 to 1, as text such as `5%` or `0.05`.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct Probability(f64);

impl Probability {
    /// The probability 0, of an event that never happens.
    pub const ZERO: Self = Self(0.0);

    /// Makes the probability `share`, from 0 to 1; `None` outside of that.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Self(share))
    }

    /// Returns the probability as a number from 0 to 1.
    #[must_use]
    pub fn share(self) -> f64 {
        self.0
    }

    /// Returns `true` if the event happens this time, as drawn from `random`.
    pub(crate) fn happens(self, random: &mut fastrand::Rng) -> bool {
        // An impossible event draws no number, so that switching off one kind of event leaves the rest of
        // a seeded run as it was.
        self.0 > 0.0 && random.f64() < self.0
    }
}

impl FromStr for Probability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse::<f64>(),
        };
        number
            .ok()
            .and_then(Self::new)
            .ok_or_else(|| format!("`{text}` is no probability: write 0% to 100%, or 0 to 1"))
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
}

/// A duration that parses from text such as `25ms`: a number with `us`, `ms` or `s`, from 0 s to 60 s.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = time(text)?;
        if time > Duration::from_mins(1) {
            return Err(format!(
                "`{text}` is out of range: a link's times are 0s to 60s"
            ));
        }
        Ok(Self(time))
    }
}

/// A time since a link's start that parses from text such as `90s`: a number with `us`, `ms` or `s`, up to a day.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Moment(pub(crate) Duration);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const DAY_S: u64 = 86_400;
        let since = time(text)?;
        if since > Duration::from_secs(DAY_S) {
            return Err(format!(
                "`{text}` is out of range: a link changes within {DAY_S}s, a day"
            ));
        }
        Ok(Self(since))
    }
}

/// Parses a number with `us`, `ms` or `s`; the error is one line.
fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => f64::NAN,
    };
    let number = number.parse::<f64>();
    let seconds = number.map_or(f64::NAN, |number| number * scale);
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| format!("`{text}` is no time: write a number with us, ms or s, such as 25ms"))
}

/// Converts a time to whole nanoseconds; `u64::MAX` stands for more than 584 years.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Splits a quantity into its number and its unit.
fn split(text: &str) -> (&str, &str) {
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    text.split_at(unit.unwrap_or(text.len()))
}

macro_rules! try_from_string {
    ($($type:ty)*) => {$(
        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    )*};
}
try_from_string!(Rate Probability Time Moment);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units_and_ranges() {
        assert_eq!("1.5mbit".parse(), Ok(Rate(1_500_000)));
        assert_eq!(Rate(1_500_000).to_string(), "1500kbit");
        assert_eq!("25ms".parse(), Ok(Time(Duration::from_millis(25))));
        assert_eq!("5%".parse(), Ok(Probability(0.05)));
        assert_eq!("0.05".parse(), Ok(Probability(0.05)));
        for wrong in ["20", "0mbit", "20Mbps", "mbit", "-1mbit", "2000gbit"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
        for wrong in ["25", "ms", "61s", "-1ms", "25 parsecs"] {
            assert!(wrong.parse::<Time>().is_err(), "{wrong}");
        }
        for wrong in ["101%", "-0.1", "", "%", "five"] {
            assert!(wrong.parse::<Probability>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_turn_bytes_into_time_and_back() {
        let rate = Rate(20_000_000);
        assert_eq!(rate.nanoseconds_for(1514), 605_600);
        assert_eq!(rate.bytes_in(Duration::from_millis(25)), 62_500);
        assert_eq!(Rate(3).nanoseconds_for(1), 2_666_666_667);
    }
}
