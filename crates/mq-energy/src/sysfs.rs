//! Sensors that the kernel knows: INA219, INA226 and others, through hwmon or IIO.
//!
//! | | hwmon (driver `ina2xx`) | IIO (driver `ina2xx-adc`) |
//! |---|---|---|
//! | where | `/sys/class/hwmon/hwmon*` | `/sys/bus/iio/devices/iio:device*` |
//! | power | `power1_input`, µW | (`in_power2_raw` + offset) * scale, mW |
//! | else current | `curr1_input`, mA | `in_current3_raw`, the same way, mA |
//! | and voltage | `in1_input`, mV (the bus; `in0` is the shunt) | `in_voltage1_raw`, mV |
//!
//! The kernel's `Documentation/hwmon/sysfs-interface.rst` and
//! `Documentation/ABI/testing/sysfs-bus-iio` have the units. Debian's kernel for arm64 has the IIO
//! driver only. Raspberry Pi OS has both, and gives the chip to the driver that the overlay names.
//!
//! The chip averages by itself. A reading over I2C takes 0.3 to 1 ms; its time stamp is the middle of that.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::sampler::Sampler;
use super::trace::Trace;
use super::{Error, Meter, Recording, Series, not_started, since};

/// Mount point of sysfs, which lists the kernel's devices.
pub const ROOT: &str = "/sys";

/// The kernel's interface to a sensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// Hardware monitoring.
    Hwmon,
    /// Industrial I/O.
    Iio,
}

impl Class {
    fn folder(self, root: &Path) -> PathBuf {
        root.join(match self {
            Self::Hwmon => "class/hwmon",
            Self::Iio => "bus/iio/devices",
        })
    }

    /// Returns the command line's word for this kernel interface.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hwmon => "hwmon",
            Self::Iio => "iio",
        }
    }
}

/// A sensor that measures a power.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensor {
    /// The interface that the sensor has.
    pub class: Class,
    /// The device, such as `hwmon2` or `iio:device0`.
    pub device: String,
    /// The chip, such as `ina226`.
    pub chip: String,
    quantity: Quantity,
}

/// The quantities that a sensor's files hold.
#[derive(Clone, Debug, PartialEq)]
enum Quantity {
    /// A power, in microwatt.
    Power(Channel),
    /// A current and a voltage, in milliampere and millivolt.
    Product(Channel, Channel),
}

/// A file with a number: the value is (number + offset) * scale.
#[derive(Clone, Debug, PartialEq)]
struct Channel {
    file: PathBuf,
    offset: f64,
    scale: f64,
}

impl Sensor {
    /// Lists all sensors of a class that measure a power, in the order of their devices; `root` is [`ROOT`] except in
    /// tests.
    #[must_use]
    pub fn list(class: Class, root: &Path) -> Vec<Self> {
        let entries = fs::read_dir(class.folder(root)).into_iter().flatten();
        let mut folders: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        // hwmon10 comes after hwmon9.
        folders.sort_by_key(|folder| (folder.as_os_str().len(), folder.clone()));
        let sensors = folders.iter().filter_map(|folder| {
            let device = folder.file_name()?.to_str()?.to_owned();
            let quantity = match class {
                Class::Hwmon => hwmon(folder),
                Class::Iio => iio(folder),
            };
            Some(Self {
                class,
                device,
                chip: line(&folder.join("name")).unwrap_or_else(|| "unnamed".to_owned()),
                quantity: quantity?,
            })
        });
        sensors.collect()
    }

    /// Finds the sensor with the name of its device or chip; without a name the only sensor.
    ///
    /// # Errors
    /// [`Error::NoMeter`] if there is no such sensor, or more than one.
    pub fn find(class: Class, root: &Path, name: Option<&str>) -> Result<Self, Error> {
        let all = Self::list(class, root);
        let known: Vec<_> = all.iter().map(Self::to_string).collect();
        let fits =
            |sensor: &&Self| name.is_none_or(|name| sensor.device == name || sensor.chip == name);
        let mut fitting = all.iter().filter(fits);
        let found = fitting.next();
        let problem = match (found, fitting.next()) {
            (Some(sensor), None) => return Ok(sensor.clone()),
            (Some(_), Some(_)) => format!("there are several: choose from {}", known.join(", ")),
            (None, _) if known.is_empty() => {
                format!("no sensor of power in {}", class.folder(root).display())
            }
            (None, _) => format!("it is not there: there are {}", known.join(", ")),
        };
        Err(Error::NoMeter {
            meter: spec(class, name),
            problem,
        })
    }

    /// Reads the power now, in microwatt.
    ///
    /// # Errors
    /// [`Error::File`], for example if a file holds no number.
    pub fn power_uw(&self) -> Result<f64, Error> {
        match &self.quantity {
            Quantity::Power(power) => power.read(),
            Quantity::Product(current, voltage) => Ok(current.read()? * voltage.read()?),
        }
    }
}

impl std::fmt::Display for Sensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.device, self.chip)
    }
}

fn spec(class: Class, name: Option<&str>) -> String {
    name.map_or_else(
        || class.name().to_owned(),
        |name| format!("{}:{name}", class.name()),
    )
}

fn hwmon(folder: &Path) -> Option<Quantity> {
    let plain = |file: &str| Channel::new(folder.join(file), 0.0, 1.0);
    let power = plain("power1_input").or_else(|| plain("power1_average"));
    power.map(Quantity::Power).or_else(|| {
        Some(Quantity::Product(
            plain("curr1_input")?,
            plain("in1_input")?,
        ))
    })
}

fn iio(folder: &Path) -> Option<Quantity> {
    let power = iio_channel(folder, "in_power", None).map(|channel| Channel {
        // From milliwatt.
        scale: channel.scale * 1e3,
        ..channel
    });
    power.map(Quantity::Power).or_else(|| {
        let current = iio_channel(folder, "in_current", None)?;
        // The bus, not the shunt.
        let voltage = iio_channel(folder, "in_voltage", Some("in_voltage1"))?;
        Some(Quantity::Product(current, voltage))
    })
}

/// Finds the channel of a kind: the wanted one if the device has it, else the first.
fn iio_channel(folder: &Path, kind: &str, wanted: Option<&str>) -> Option<Channel> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let files = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = files
        .filter_map(|file| Some(file.strip_suffix("_raw")?.to_owned()))
        // `in_power2`, and not `in_power2_mean`.
        .filter(|name| {
            let number = name.strip_prefix(kind);
            number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .filter(|name| wanted.is_none_or(|wanted| wanted == name))
        .collect();
    names.sort();
    let name = names.first()?;
    // A channel without its own file uses the file that all channels of its kind share.
    let number = |what: &str| {
        let own = folder.join(format!("{name}_{what}"));
        let shared = folder.join(format!("{kind}_{what}"));
        line(&own).or_else(|| line(&shared))?.parse().ok()
    };
    let file = folder.join(format!("{name}_raw"));
    Channel::new(
        file,
        number("offset").unwrap_or(0.0),
        number("scale").unwrap_or(1.0),
    )
}

impl Channel {
    fn new(file: PathBuf, offset: f64, scale: f64) -> Option<Self> {
        file.exists().then_some(Self {
            file,
            offset,
            scale,
        })
    }

    fn read(&self) -> Result<f64, Error> {
        let text = fs::read_to_string(&self.file).map_err(Error::io(&self.file))?;
        let text = text.trim();
        let number: f64 = text
            .parse()
            .map_err(|_| Error::line(&self.file, 1, format!("`{text}` is no number")))?;
        Ok((number + self.offset) * self.scale)
    }
}

/// Reads a file's only line.
fn line(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

/// A sensor as a [`Meter`]: a thread reads it at an interval.
#[derive(Debug)]
pub struct SensorMeter {
    sensor: Sensor,
    name: String,
    interval: Duration,
    running: Option<Sampler<Readings>>,
}

/// The readings so far.
#[derive(Debug)]
struct Readings {
    sensor: Sensor,
    origin: Instant,
    trace: Trace,
    /// The longest time that a reading took.
    longest: Duration,
}

impl SensorMeter {
    /// The default interval between two readings. As the kernel sets the chips, an INA226 has a new value
    /// every 9 ms (IIO) or 35 ms (hwmon), an INA219 every 1 ms.
    pub const INTERVAL: Duration = Duration::from_millis(10);

    /// Makes a meter that reads `sensor` at `interval`.
    #[must_use]
    pub fn new(sensor: Sensor, interval: Duration) -> Self {
        Self {
            name: format!("{}:{}", sensor.class.name(), sensor.device),
            sensor,
            interval,
            running: None,
        }
    }
}

impl Meter for SensorMeter {
    fn name(&self) -> &str {
        &self.name
    }

    fn scope(&self) -> &'static str {
        "what flows through the sensor"
    }

    fn start(&mut self, origin: Instant) -> Result<(), Error> {
        self.running = None;
        let longest_step = u64::try_from((self.interval * 4).as_nanos()).unwrap_or(u64::MAX);
        let mut readings = Readings {
            sensor: self.sensor.clone(),
            origin,
            trace: Trace::new(longest_step),
            longest: Duration::ZERO,
        };
        // A sensor that cannot be read is reported now.
        readings.read()?;
        let running = Sampler::start(&self.name, readings, self.interval, Readings::read)?;
        self.running = Some(running);
        Ok(())
    }

    fn stop(&mut self) -> Result<Recording, Error> {
        let running = self.running.take().ok_or_else(|| not_started(&self.name))?;
        let (readings, failed) = running.stop(&self.name)?;
        Ok(Recording {
            series: Series::Power(readings.trace),
            uncertainty_ns: u64::try_from((readings.longest / 2).as_nanos()).unwrap_or(u64::MAX),
            notes: failed.into_iter().collect(),
        })
    }
}

impl Readings {
    fn read(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        let power_uw = self.sensor.power_uw()?;
        let took = began.elapsed();
        self.longest = self.longest.max(took);
        self.trace
            .push(since(self.origin, began + took / 2), power_uw);
        Ok(())
    }
}
