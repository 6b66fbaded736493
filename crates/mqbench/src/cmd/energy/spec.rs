//! Which meter: what `--meter` takes.

use std::{path::PathBuf, str::FromStr, time::Duration};

use mq_measure::energy::{
    Meter,
    csv::CsvMeter,
    dmm::{Dmm, Settings},
    model::{self, ModelMeter},
    profile::Profile,
    rapl::RaplMeter,
    sysfs::{self, Class, Sensor, SensorMeter},
};

use crate::{args::duration, wall::system_ns};

/// A meter by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spec {
    /// With a profile.
    Model(String),
    Rapl,
    Sensor(Class, Option<String>),
    /// At an address.
    Dmm(String),
    Csv(PathBuf),
}

impl FromStr for Spec {
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

/// How instruments are set.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Instrument")]
pub(super) struct Instrument {
    /// Between two readings: of a sensor 10ms, of a multimeter 1ms
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// For how long of each interval a multimeter looks; half of it
    #[arg(long, value_name = "TIME", value_parser = duration)]
    aperture: Option<Duration>,
    /// The current that has to fit into a multimeter's range
    #[arg(long, value_name = "AMPERE", default_value_t = 3.0)]
    amps: f64,
    /// The supply's voltage, for a multimeter or a file that has the current alone
    #[arg(long, value_name = "VOLT")]
    pub(super) volts: Option<f64>,
    /// Where a multimeter's readings are kept; a new file by default
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

impl Instrument {
    /// The supply of a Raspberry Pi by its name; 5.1 V is what Raspberry Pi's own gives.
    const SUPPLY_V: f64 = 5.0;

    /// The meter of that name, set so; it may run for `longest`.
    pub(super) fn meter(&self, spec: &Spec, longest: Duration) -> anyhow::Result<Box<dyn Meter>> {
        Ok(match spec {
            Spec::Model(profile) => {
                let profile = Profile::load(profile)?;
                Box::new(ModelMeter::new(profile, model::ROOT.as_ref()))
            }
            Spec::Rapl => Box::new(RaplMeter::new(sysfs::ROOT.as_ref())?),
            Spec::Sensor(class, name) => {
                let sensor = Sensor::find(*class, sysfs::ROOT.as_ref(), name.as_deref())?;
                let interval = self.interval.unwrap_or(SensorMeter::INTERVAL);
                anyhow::ensure!(!interval.is_zero(), "--interval 0: readings need some time");
                Box::new(SensorMeter::new(sensor, interval))
            }
            Spec::Dmm(address) => Box::new(Dmm::new(self.multimeter(address, longest)?)),
            Spec::Csv(file) => Box::new(CsvMeter::new(file, self.volts)),
        })
    }

    fn multimeter(&self, address: &str, longest: Duration) -> anyhow::Result<Settings> {
        anyhow::ensure!(
            self.amps.is_finite() && self.amps > 0.0,
            "--amps {}: a current above 0",
            self.amps
        );
        let journal = self
            .journal
            .clone()
            .unwrap_or_else(|| format!("dmm-{}.csv", system_ns() / 1_000_000_000).into());
        let usual = Settings::new(address, journal);
        let interval = self.interval.unwrap_or(usual.interval);
        let settings = Settings {
            range_a: self.amps,
            supply_v: self.volts.unwrap_or(Self::SUPPLY_V),
            interval,
            aperture: self.aperture.unwrap_or(interval / 2),
            longest,
            ..usual
        };
        eprintln!("readings are kept in {}", settings.journal.display());
        if self.volts.is_none() {
            eprintln!(
                "the voltage is taken as {} V: measure it, and say --volts",
                Self::SUPPLY_V
            );
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_is_a_kind_and_what_tells_it_from_others() {
        let sensor = |class, name: &str| Spec::Sensor(class, Some(name.to_owned()));
        for (text, right) in [
            ("model", Spec::Model("pi-3b".to_owned())),
            ("model:mine.toml", Spec::Model("mine.toml".to_owned())),
            ("rapl", Spec::Rapl),
            ("hwmon", Spec::Sensor(Class::Hwmon, None)),
            ("hwmon:ina219", sensor(Class::Hwmon, "ina219")),
            ("iio:iio:device1", sensor(Class::Iio, "iio:device1")),
            ("dmm:10.0.0.9:5025", Spec::Dmm("10.0.0.9:5025".to_owned())),
            ("csv:a/b.csv", Spec::Csv("a/b.csv".into())),
        ] {
            assert_eq!(text.parse::<Spec>(), Ok(right), "{text}");
        }
        for wrong in ["", "dmm", "csv", "rapl:0", "model:", "watt"] {
            let error = wrong.parse::<Spec>().unwrap_err();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
