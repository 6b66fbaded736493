//! Meters: their names and settings (`spec`), and a meter that is read while a run lasts (`configured`).

mod configured;
mod spec;

pub(crate) use configured::{ConfiguredMeter, JournalFolder, MeterRecording, RunningMeter, basis};
pub(crate) use spec::{MeterSettings, MeterSpec, sys};

#[cfg(target_os = "linux")]
use mq_energy::{
    rapl::RaplMeter,
    sysfs::{Class, Sensor},
};

/// Lists the meters that this machine reads of itself, by all names that `--meter` takes.
#[cfg(target_os = "linux")]
pub(crate) fn on_this_host() -> Vec<String> {
    let root = sys();
    let mut names = Vec::new();
    for class in [Class::Hwmon, Class::Iio] {
        let kind = class.name();
        for sensor in Sensor::list(class, &root) {
            names.push(kind.to_owned());
            names.extend([sensor.chip, sensor.device].map(|name| format!("{kind}:{name}")));
        }
    }
    names.extend(RaplMeter::new(&root).is_ok().then(|| "rapl".to_owned()));
    names
}
