//! The energy of a machine's work: coefficients, and where each is from.
//!
//! ```text
//! energy = idle power * time
//!        + CPU power * CPU time
//!        + packets sent, received * energy of each
//!        + bytes sent, received * energy of each
//! ```
//!
//! CPU time is that of processes, in user mode and in the kernel, summed over the cores. The cost of
//! interrupts is part of the packets' coefficients.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Error;
use mq_measure::convert;

/// Activity of a machine in a stretch of time: the quantities that a [`Profile`] turns into energy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activity {
    /// Length of the stretch of time.
    pub elapsed_ns: u64,
    /// CPU time of processes, summed over the cores.
    pub cpu_ns: u64,
    /// Number of packets that the machine's network interfaces sent.
    pub packets_sent: u64,
    /// Number of packets that the network interfaces received.
    pub packets_received: u64,
    /// Number of bytes that the network interfaces sent.
    pub bytes_sent: u64,
    /// Number of bytes that the network interfaces received.
    pub bytes_received: u64,
}

/// A term of the sum by which a [`Profile`] computes an energy; each term has a coefficient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Term {
    /// Term of the elapsed time; its coefficient is the power of a machine that does nothing, in microwatt.
    IdlePowerUw,
    /// Term of the CPU time; its coefficient is the power of a busy core on top of the idle power, in microwatt.
    CpuPowerUw,
    /// Term of the packets sent; its coefficient is the energy of a packet, in nanojoule.
    SentPacketNj,
    /// Term of the packets received; its coefficient is the energy of a packet, in nanojoule.
    ReceivedPacketNj,
    /// Term of the bytes sent; its coefficient is the energy of a byte, in nanojoule.
    SentByteNj,
    /// Term of the bytes received; its coefficient is the energy of a byte, in nanojoule.
    ReceivedByteNj,
}

impl Term {
    /// All terms, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::IdlePowerUw,
        Self::CpuPowerUw,
        Self::SentPacketNj,
        Self::ReceivedPacketNj,
        Self::SentByteNj,
        Self::ReceivedByteNj,
    ];

    /// Returns the coefficient's name in a profile, with its unit.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IdlePowerUw => "idle_power_uw",
            Self::CpuPowerUw => "cpu_power_uw",
            Self::SentPacketNj => "sent_packet_nj",
            Self::ReceivedPacketNj => "received_packet_nj",
            Self::SentByteNj => "sent_byte_nj",
            Self::ReceivedByteNj => "received_byte_nj",
        }
    }

    /// Returns the quantity in `activity`, in seconds or in thousands, so that it times the coefficient is in
    /// microjoule.
    #[must_use]
    pub fn amount(self, activity: &Activity) -> f64 {
        match self {
            Self::IdlePowerUw => convert::float(activity.elapsed_ns) / 1e9,
            Self::CpuPowerUw => convert::float(activity.cpu_ns) / 1e9,
            Self::SentPacketNj => convert::float(activity.packets_sent) / 1e3,
            Self::ReceivedPacketNj => convert::float(activity.packets_received) / 1e3,
            Self::SentByteNj => convert::float(activity.bytes_sent) / 1e3,
            Self::ReceivedByteNj => convert::float(activity.bytes_received) / 1e3,
        }
    }
}

/// Origin of a coefficient, from the most to the least trustworthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Origin {
    /// Fitted from runs with a meter.
    Measured,
    /// Computed from published figures.
    Published,
    /// An assumption that nobody has measured.
    Assumed,
}

impl Origin {
    /// Returns the word that a profile has for this origin.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Published => "published",
            Self::Assumed => "assumed",
        }
    }
}

/// A value of an energy profile, with its origin, source and standard error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coefficient {
    /// The coefficient's value, in the unit that its name in a profile ends with, such as `_uw`; a factor has no unit.
    pub value: f64,
    /// Origin of the value.
    pub origin: Origin,
    /// The publication or measurement, or the assumption.
    pub source: String,
    /// Standard error of a fitted value, in the value's unit; `None` if it was not fitted or the fit gives none.
    #[serde(default)]
    pub standard_error: Option<f64>,
}

/// The coefficients of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name of a shipped profile such as `pi-3b`, path of a file, or name given to a new profile.
    pub name: String,
    /// Machine that the coefficients describe, as text for the user.
    pub description: String,
    /// CPU time of this machine, in seconds, for the work that takes one second of CPU time on the machine that ran the
    /// work in its place; `None` if the profile does not give the factor.
    pub elsewhere_cpu_factor: Option<Coefficient>,
    coefficients: [Coefficient; 6],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    description: String,
    elsewhere_cpu_factor: Option<Coefficient>,
    idle_power_uw: Coefficient,
    cpu_power_uw: Coefficient,
    sent_packet_nj: Coefficient,
    received_packet_nj: Coefficient,
    sent_byte_nj: Coefficient,
    received_byte_nj: Coefficient,
}

macro_rules! shipped {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../profiles/", $name, ".toml"))),)*]
    };
}

/// The profiles that ship with the program: names and texts.
const SHIPPED: &[(&str, &str)] = shipped! { "pi-3b" "pi-3b-plus" };

impl Profile {
    /// The profile of the board that S22 names (section 4): Raspberry Pi 3 Model B.
    pub const DEFAULT: &str = "pi-3b";

    /// Reads a shipped profile by its name, or a file that ends in `.toml`.
    ///
    /// # Errors
    /// [`Error::Profile`] if there is no such profile, or something in it is wrong; [`Error::File`].
    pub fn load(name: &str) -> Result<Self, Error> {
        let file = Path::new(name);
        if file.extension().is_some_and(|ending| ending == "toml") {
            let text = fs::read_to_string(file).map_err(Error::io(file))?;
            return Self::parse(name, &text);
        }
        let shipped = SHIPPED.iter().find(|(known, _)| *known == name);
        let Some((_, text)) = shipped else {
            let known: Vec<_> = Self::shipped().collect();
            let known = known.join(", ");
            return Err(Error::Profile {
                name: name.to_owned(),
                problem: format!(
                    "it is not there: there are {known}, and files whose name ends in .toml"
                ),
            });
        };
        Self::parse(name, text)
    }

    /// Returns the name of every shipped profile.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Profile {
            name: name.to_owned(),
            problem,
        };
        let raw: Raw = toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error
                .span()
                .map_or(0, |span| text[..span.start].matches('\n').count());
            let problem = error.message().replace('\n', " ");
            wrong(format!("line {}: {problem}", line + 1))
        })?;
        let profile = Self {
            name: name.to_owned(),
            description: raw.description,
            elsewhere_cpu_factor: raw.elsewhere_cpu_factor,
            coefficients: [
                raw.idle_power_uw,
                raw.cpu_power_uw,
                raw.sent_packet_nj,
                raw.received_packet_nj,
                raw.sent_byte_nj,
                raw.received_byte_nj,
            ],
        };
        let terms = Term::ALL.iter().map(|term| term.name());
        let named = terms.zip(&profile.coefficients);
        let factor = profile.elsewhere_cpu_factor.iter();
        for (key, one) in named.chain(factor.map(|one| ("elsewhere_cpu_factor", one))) {
            if !(one.value.is_finite() && one.value >= 0.0) {
                return Err(wrong(format!(
                    "{key} is {}: energy is not gained by work; give 0 or more",
                    one.value
                )));
            }
            if one.source.trim().is_empty() {
                return Err(wrong(format!(
                    "{key} has no source: say who measured it, or what is assumed"
                )));
            }
        }
        Ok(profile)
    }

    /// Makes a profile of these coefficients, in the order of [`Term::ALL`].
    #[must_use]
    pub fn new(name: &str, description: &str, coefficients: [Coefficient; 6]) -> Self {
        Self {
            name: name.to_owned(),
            description: description.to_owned(),
            elsewhere_cpu_factor: None,
            coefficients,
        }
    }

    /// Returns the coefficient of a term.
    #[must_use]
    pub fn coefficient(&self, term: Term) -> &Coefficient {
        &self.coefficients[term as usize]
    }

    /// Returns the energy of some work by this profile, in microjoule.
    #[must_use]
    pub fn energy_uj(&self, activity: &Activity) -> f64 {
        let parts = Term::ALL
            .iter()
            .map(|term| self.coefficient(*term).value * term.amount(activity));
        parts.sum()
    }

    /// Returns the part of [`energy_uj`](Self::energy_uj) that the work adds to an idle machine's.
    #[must_use]
    pub fn energy_above_idle_uj(&self, activity: &Activity) -> f64 {
        let terms = Term::ALL.iter().filter(|term| **term != Term::IdlePowerUw);
        let parts = terms.map(|term| self.coefficient(*term).value * term.amount(activity));
        parts.sum()
    }

    /// Formats the profile as a file that [`load`](Self::load) reads.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = format!("description = {}\n", quoted(&self.description));
        let terms = Term::ALL.iter().map(|term| term.name());
        let named = terms.zip(&self.coefficients);
        let factor = self.elsewhere_cpu_factor.iter();
        for (key, one) in named.chain(factor.map(|one| ("elsewhere_cpu_factor", one))) {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n[{key}]\nvalue = {:?}\norigin = \"{}\"\nsource = {}\n",
                one.value,
                one.origin.name(),
                quoted(&one.source)
            );
            if let Some(error) = one.standard_error {
                let _ = writeln!(text, "standard_error = {error:?}");
            }
        }
        text
    }
}

/// Returns `text` as a basic string of TOML, in quotes and with escapes.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn coefficient(value: f64) -> Coefficient {
        Coefficient {
            value,
            origin: Origin::Assumed,
            source: "a test".to_owned(),
            standard_error: None,
        }
    }

    #[test]
    fn energy_is_the_sum_of_its_terms() {
        let values = [1.4e6, 0.5e6, 2_000.0, 1_000.0, 5.0, 3.0];
        let profile = Profile::new("p", "a test", values.map(coefficient));
        let activity = Activity {
            elapsed_ns: 10_000_000_000,
            cpu_ns: 2_000_000_000,
            packets_sent: 1_000,
            packets_received: 500,
            bytes_sent: 100_000,
            bytes_received: 50_000,
        };
        // 14 J + 1 J + 2 mJ + 0.5 mJ + 0.5 mJ + 0.15 mJ.
        let right = 14e6 + 1e6 + 2e3 + 500.0 + 500.0 + 150.0;
        let energy = profile.energy_uj(&activity);
        assert!((energy - right).abs() < 1e-6, "{energy}");
    }

    #[test]
    fn each_shipped_profile_says_where_each_number_is_from() {
        for name in Profile::shipped() {
            let profile = Profile::load(name).unwrap();
            assert!(!profile.description.is_empty(), "{name}");
            for term in Term::ALL {
                let one = profile.coefficient(term);
                assert!(one.source.len() > 20, "{name}: {term:?}");
                // Nobody has run this program on such a board with a meter.
                assert_ne!(one.origin, Origin::Measured, "{name}: {term:?}");
            }
            let idle = profile.coefficient(Term::IdlePowerUw).value;
            assert!((5e5..1e7).contains(&idle), "{name}: {idle} µW");
        }
        assert!(Profile::shipped().any(|name| name == Profile::DEFAULT));
    }

    #[test]
    fn mistakes_are_one_line() {
        let good = SHIPPED[0].1;
        for (from, to, says) in [
            (
                "value = 1_400_000",
                "value = -1",
                "idle_power_uw is -1: energy",
            ),
            ("[sent_byte_nj]", "[sent_bit_nj]", "sent_bit_nj"),
            ("origin = \"assumed\"", "origin = \"guessed\"", "guessed"),
            ("description =", "descripton =", "line 1: "),
        ] {
            assert!(good.contains(from), "{from}");
            // Comments come before.
            let text: String = good
                .lines()
                .filter(|line| !line.starts_with('#') && !line.is_empty())
                .fold(String::new(), |text, line| text + line + "\n");
            let text = text.replacen(from, to, 1);
            let error = Profile::parse("p.toml", &text).unwrap_err().to_string();
            assert!(error.starts_with("energy profile p.toml: "), "{error}");
            assert!(error.contains(says), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let error = Profile::load("pi-9").unwrap_err().to_string();
        assert!(
            error.contains("there are pi-3b, pi-3b-plus, and files"),
            "{error}"
        );
        assert!(matches!(Profile::load("no.toml"), Err(Error::File(_))));
    }

    proptest! {
        #[test]
        fn a_written_profile_reads_back(
            values in prop::array::uniform6(0.0..1e9_f64),
            source in "[ -~]{0,30}x",
            error in prop::option::of(0.0..1e3_f64),
        ) {
            let mut profile = Profile::new("p", "a \"quoted\" \\ name", values.map(coefficient));
            profile.coefficients[2].source = source;
            profile.coefficients[3].standard_error = error;
            profile.elsewhere_cpu_factor = Some(coefficient(6.0));
            let text = profile.to_toml();
            prop_assert_eq!(Profile::parse("p", &text).unwrap(), profile);
        }
    }
}
