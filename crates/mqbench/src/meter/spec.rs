//! The names and settings of meters: what `--meter` takes.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use mq_energy::{
    Meter,
    csv::CsvMeter,
    dmm::{Dmm, Settings},
    model::{self, ModelMeter},
    profile::Profile,
    rapl::RaplMeter,
    sysfs::{self, Class, Sensor, SensorMeter},
};

use serde::{Deserialize, Serialize};

use crate::clock::system_ns;

/// The variable with a folder in place of /sys, for tests.
const SYS: &str = "MQBENCH_SYS";

/// A meter by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum MeterSpec {
    /// The model, with a profile.
    Model(String),
    Rapl,
    Sensor(Class, Option<String>),
    /// A multimeter at an address.
    Dmm(String),
    Csv(PathBuf),
}

impl FromStr for MeterSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) if !rest.is_empty() => (kind, Some(rest.to_owned())),
            Some(_) => return Err(format!("`{text}` has nothing behind its colon")),
            None => (text, None),
        };
        match (kind, rest) {
            ("model", profile) => Ok(Self::Model(
                profile.unwrap_or_else(|| Profile::DEFAULT.to_owned()),
            )),
            ("rapl", None) => Ok(Self::Rapl),
            ("hwmon", name) => Ok(Self::Sensor(Class::Hwmon, name)),
            ("iio", name) => Ok(Self::Sensor(Class::Iio, name)),
            ("dmm", Some(address)) => Ok(Self::Dmm(address)),
            ("csv", Some(file)) => Ok(Self::Csv(file.into())),
            _ => Err(format!(
                "`{text}` is no meter: there are model[:PROFILE], rapl, hwmon[:NAME], iio[:NAME], \
                 dmm:HOST[:PORT] and csv:FILE"
            )),
        }
    }
}

impl fmt::Display for MeterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(profile) => write!(f, "model:{profile}"),
            Self::Rapl => f.write_str("rapl"),
            Self::Sensor(class, None) => f.write_str(class.name()),
            Self::Sensor(class, Some(name)) => write!(f, "{}:{name}", class.name()),
            Self::Dmm(address) => write!(f, "dmm:{address}"),
            Self::Csv(file) => write!(f, "csv:{}", file.display()),
        }
    }
}

impl TryFrom<String> for MeterSpec {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<MeterSpec> for String {
    fn from(spec: MeterSpec) -> Self {
        spec.to_string()
    }
}

impl MeterSpec {
    /// All that `--meter` takes, for its help.
    pub(crate) const HELP: &str =
        "model[:PROFILE], rapl, hwmon[:NAME], iio[:NAME], dmm:HOST[:PORT]";

    /// Returns true if the controller reads the meter, and not the machine that it measures.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_apart(&self) -> bool {
        matches!(self, Self::Dmm(_) | Self::Csv(_))
    }
}

/// Returns `/sys`, or the folder in its place.
pub(crate) fn sys() -> PathBuf {
    std::env::var_os(SYS).map_or_else(|| sysfs::ROOT.into(), PathBuf::from)
}

/// Settings of instruments.
#[derive(Clone, Debug, Default)]
pub(crate) struct MeterSettings {
    /// The time between two readings; `None` for the default.
    pub(crate) interval: Option<Duration>,
    /// Time of each interval in which a multimeter measures; `None` for half of it.
    pub(crate) aperture: Option<Duration>,
    /// The current that has to fit into a multimeter's range; `None` for the largest.
    pub(crate) amps: Option<f64>,
    /// The supply's voltage, for a multimeter or a file that has the current alone.
    pub(crate) volts: Option<f64>,
    /// File of a multimeter's readings; `None` for a new one.
    pub(crate) journal: Option<PathBuf>,
}

impl MeterSettings {
    /// The default of the current that has to fit into a multimeter's range: the largest range.
    pub(crate) const AMPS: f64 = 3.0;

    /// The nominal supply of a Raspberry Pi; Raspberry Pi's own supply gives 5.1 V.
    const SUPPLY_V: f64 = 5.0;

    /// Greatest number of readings of a run: more add nothing to its energy, and fill the disk.
    const ENOUGH: u32 = 100_000;

    /// Returns the settings for a run that takes about `expected`, with a multimeter's readings kept in `journal`.
    pub(crate) fn for_run(&self, spec: &MeterSpec, expected: Duration, journal: PathBuf) -> Self {
        let interval = (expected / Self::ENOUGH).max(Duration::from_millis(1));
        Self {
            interval: matches!(spec, MeterSpec::Dmm(_)).then_some(interval),
            journal: Some(journal),
            ..self.clone()
        }
    }

    /// Prints what the user should know of a started meter's readings.
    pub(crate) fn print_advice(&self, spec: &MeterSpec, meter: &dyn Meter) {
        if let Some(journal) = meter.journal() {
            eprintln!("readings are kept in {}", journal.display());
        }
        if matches!(spec, MeterSpec::Dmm(_)) && self.volts.is_none() {
            eprintln!(
                "the voltage is taken as {} V: measure it, and say --volts",
                Self::SUPPLY_V
            );
        }
    }

    /// Makes the meter `spec` with these settings; it may run for `longest`.
    pub(crate) fn meter(
        &self,
        spec: &MeterSpec,
        longest: Duration,
    ) -> anyhow::Result<Box<dyn Meter>> {
        Ok(match spec {
            MeterSpec::Model(profile) => {
                let profile = Profile::load(profile)?;
                Box::new(ModelMeter::new(profile, model::ROOT.as_ref()))
            }
            MeterSpec::Rapl => Box::new(RaplMeter::new(&sys())?),
            MeterSpec::Sensor(class, name) => {
                let sensor = Sensor::find(*class, &sys(), name.as_deref())?;
                let interval = self.interval.unwrap_or(SensorMeter::INTERVAL);
                anyhow::ensure!(!interval.is_zero(), "--interval 0: readings need some time");
                Box::new(SensorMeter::new(sensor, interval))
            }
            MeterSpec::Dmm(address) => Box::new(Dmm::new(self.multimeter(address, longest)?)),
            MeterSpec::Csv(file) => Box::new(CsvMeter::new(file, self.volts)),
        })
    }

    fn multimeter(&self, address: &str, longest: Duration) -> anyhow::Result<Settings> {
        let amps = self.amps.unwrap_or(Self::AMPS);
        anyhow::ensure!(
            amps.is_finite() && amps > 0.0,
            "--amps {amps}: a current above 0"
        );
        let journal = self
            .journal
            .clone()
            .unwrap_or_else(|| format!("dmm-{}.csv", system_ns() / 1_000_000_000).into());
        let usual = Settings::new(address, journal);
        let interval = self.interval.unwrap_or(usual.interval);
        let settings = Settings {
            range_a: amps,
            supply_v: self.volts.unwrap_or(Self::SUPPLY_V),
            interval,
            aperture: self.aperture.unwrap_or(interval / 2),
            longest,
            ..usual
        };
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_is_a_kind_and_its_name() {
        let sensor = |class, name: &str| MeterSpec::Sensor(class, Some(name.to_owned()));
        for (text, right) in [
            ("model", MeterSpec::Model("pi-3b".to_owned())),
            ("model:mine.toml", MeterSpec::Model("mine.toml".to_owned())),
            ("rapl", MeterSpec::Rapl),
            ("hwmon", MeterSpec::Sensor(Class::Hwmon, None)),
            ("hwmon:ina219", sensor(Class::Hwmon, "ina219")),
            ("iio:iio:device1", sensor(Class::Iio, "iio:device1")),
            (
                "dmm:10.0.0.9:5025",
                MeterSpec::Dmm("10.0.0.9:5025".to_owned()),
            ),
            ("csv:a/b.csv", MeterSpec::Csv("a/b.csv".into())),
        ] {
            assert_eq!(text.parse::<MeterSpec>(), Ok(right.clone()), "{text}");
            assert_eq!(right.to_string().parse::<MeterSpec>(), Ok(right), "{text}");
        }
        for wrong in ["", "dmm", "csv", "rapl:0", "model:", "watt"] {
            let error = wrong.parse::<MeterSpec>().unwrap_err();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
