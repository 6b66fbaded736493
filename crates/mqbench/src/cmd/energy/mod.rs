//! `mqbench energy`: joules, measured or modelled.

mod calibrate;
mod measure;
#[cfg(target_os = "linux")]
mod record;

use std::{path::Path, process::ExitCode};

use mq_energy::{
    profile::Profile,
    rapl::RaplMeter,
    sysfs::{Class, Sensor},
};

use crate::{meter::sys, report};

/// Commands of `energy`.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum Action {
    /// Say which meters this machine has
    List,
    /// Measure the energy of some time, or of a command
    Measure(measure::Args),
    /// Fit the coefficients of a profile to measured runs, and print it
    Calibrate(calibrate::Args),
    /// Read a meter until SIGTERM, for the controller of a campaign
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Record(record::Args),
}

pub(crate) fn run(action: &Action) -> anyhow::Result<ExitCode> {
    match action {
        Action::List => report::print(&list(&sys())).map(|()| ExitCode::SUCCESS),
        Action::Measure(args) => measure::run(args),
        Action::Calibrate(args) => calibrate::run(args).map(|()| ExitCode::SUCCESS),
        #[cfg(target_os = "linux")]
        Action::Record(args) => record::run(args).map(|()| ExitCode::SUCCESS),
    }
}

/// Formats a line for each meter: its name for `--meter`, and a description.
fn list(root: &Path) -> String {
    let mut text = String::new();
    let mut line = |spec: &str, what: &str| text.push_str(&format!("{spec:<24} {what}\n"));
    for class in [Class::Hwmon, Class::Iio] {
        for sensor in Sensor::list(class, root) {
            let spec = format!("{}:{}", class.name(), sensor.device);
            line(&spec, &format!("{}: what flows through it", sensor.chip));
        }
    }
    match RaplMeter::new(root) {
        Ok(meter) => line("rapl", mq_energy::Meter::scope(&meter)),
        Err(error) => line("rapl", &format!("not here: {error}")),
    }
    for name in Profile::shipped() {
        let what = Profile::load(name).map_or_else(|e| e.to_string(), |p| p.description);
        line(&format!("model:{name}"), &format!("modelled: {what}"));
    }
    line(
        "dmm:HOST[:PORT]",
        "Keysight 34460A, 34461A, 34465A or 34470A: is not looked for",
    );
    line("csv:FILE", "a file that another instrument wrote");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_sensors_has_the_model_and_names_missing_meters() {
        let folder = tempfile::tempdir().unwrap();
        let text = list(folder.path());
        assert!(text.contains("model:pi-3b "), "{text}");
        assert!(
            text.contains("not here: meter rapl: no intel-rapl zone in"),
            "{text}"
        );
        assert!(!text.contains("iio:"), "{text}");
    }

    #[test]
    fn each_sensor_is_listed_by_the_name_that_meter_takes() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("bus/iio/devices/iio:device0");
        std::fs::create_dir_all(&device).unwrap();
        for (file, value) in [
            ("name", "ina226"),
            ("in_power2_raw", "56"),
            ("in_power2_scale", "25"),
        ] {
            std::fs::write(device.join(file), value).unwrap();
        }
        let text = list(folder.path());
        assert!(text.starts_with("iio:iio:device0 "), "{text}");
        let spec: crate::meter::MeterSpec = "iio:iio:device0".parse().unwrap();
        assert_eq!(
            spec,
            crate::meter::MeterSpec::Sensor(Class::Iio, Some("iio:device0".to_owned()))
        );
    }
}
