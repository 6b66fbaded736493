//! The processor's own counters of energy: Intel's and AMD's RAPL, through powercap.
//!
//! `/sys/class/powercap/intel-rapl:0` is a package with `energy_uj`, which wraps to 0 at
//! `max_energy_range_uj`; AMD's zones have the same names. A package contains its cores; the memory
//! (`dram`) is a zone of its own. So packages and memories are added up. Parts of a package (`core`, `uncore`)
//! and the sum of all (`psys`) are not.
//!
//! The result is the energy of processor and memory, not of the machine. A Raspberry Pi has no such counters.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::counter::{Counted, Unwrap};
use super::sampler::Sampler;
use super::{Error, Meter, Recording, Series, not_started, since};
use mq_measure::{Error as FileError, convert};

/// The interval between two readings: short enough for any range, and long enough to cost nothing.
const INTERVAL: Duration = Duration::from_millis(100);

/// A part of the machine with a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// The zone's name: `package-0`, `dram`.
    pub name: String,
    folder: PathBuf,
    range_uj: u64,
}

impl Zone {
    /// Lists the zones that are added up, in the order of their names; none without RAPL.
    ///
    /// `root` is [`ROOT`](super::sysfs::ROOT) except in tests.
    #[must_use]
    pub fn list(root: &Path) -> Vec<Self> {
        let entries = fs::read_dir(root.join("class/powercap"))
            .into_iter()
            .flatten();
        let mut folders: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        let zones = folders.iter().filter_map(|folder| {
            // `intel-rapl-mmio` shows the same packages a second time.
            folder
                .file_name()?
                .to_str()?
                .strip_prefix("intel-rapl:")
                .filter(|_| folder.join("energy_uj").exists())?;
            let name = text(&folder.join("name")).ok()?;
            let counts = name.starts_with("package") || name == "dram";
            let range_uj = number(&folder.join("max_energy_range_uj")).ok()?;
            counts.then(|| Self {
                name,
                folder: folder.clone(),
                range_uj,
            })
        });
        zones.collect()
    }

    /// Reads the counter, in microjoule.
    ///
    /// # Errors
    /// [`Error::File`]: only root may read the counter unless others were given the right.
    pub fn energy_uj(&self) -> Result<u64, Error> {
        number(&self.folder.join("energy_uj"))
    }
}

fn text(file: &Path) -> Result<String, Error> {
    let text = fs::read_to_string(file).map_err(Error::io(file))?;
    Ok(text.trim().to_owned())
}

fn number(file: &Path) -> Result<u64, Error> {
    let text = text(file)?;
    text.parse()
        .map_err(|_| Error::line(file, 1, format!("`{text}` is no whole number")))
}

/// All zones as one [`Meter`].
#[derive(Debug)]
pub struct RaplMeter {
    zones: Vec<Zone>,
    scope: String,
    running: Option<Sampler<Looks>>,
}

/// Zones with their counters, and the energy that was read from them so far.
#[derive(Debug)]
struct Looks {
    zones: Vec<(Zone, Unwrap)>,
    origin: Instant,
    counted: Counted,
}

impl RaplMeter {
    /// Makes a meter of this machine; `root` as for [`Zone::list`].
    ///
    /// # Errors
    /// [`Error::NoMeter`] if the machine has no such counter, or this user may not read it.
    pub fn new(root: &Path) -> Result<Self, Error> {
        let none = |problem: String| Error::NoMeter {
            meter: "rapl".to_owned(),
            problem,
        };
        let zones = Zone::list(root);
        if zones.is_empty() {
            let folder = root.join("class/powercap");
            return Err(none(format!("no intel-rapl zone in {}", folder.display())));
        }
        for zone in &zones {
            match zone.energy_uj() {
                Err(Error::File(FileError::Io { path, source }))
                    if source.kind() == ErrorKind::PermissionDenied =>
                {
                    return Err(none(format!(
                        "only root may read {} (chmod a+r lets all)",
                        path.display()
                    )));
                }
                other => other?,
            };
        }
        let names: Vec<_> = zones.iter().map(|zone| zone.name.as_str()).collect();
        Ok(Self {
            scope: format!("processor and memory alone: {}", names.join(", ")),
            zones,
            running: None,
        })
    }
}

impl Meter for RaplMeter {
    fn name(&self) -> &'static str {
        "rapl"
    }

    fn scope(&self) -> &str {
        &self.scope
    }

    fn start(&mut self, origin: Instant) -> Result<(), Error> {
        self.running = None;
        let zones = self.zones.iter().cloned();
        let zones: Vec<_> = zones
            .map(|zone| {
                let unwrap = Unwrap::new(zone.range_uj);
                (zone, unwrap)
            })
            .collect();
        let steps = zones.iter().map(|(_, unwrap)| unwrap.longest_step_ns());
        let mut looks = Looks {
            origin,
            counted: Counted::new(steps.min().unwrap_or(u64::MAX)),
            zones,
        };
        looks.look()?;
        self.running = Some(Sampler::start("rapl", looks, INTERVAL, Looks::look)?);
        Ok(())
    }

    fn stop(&mut self) -> Result<Recording, Error> {
        let running = self.running.take().ok_or_else(|| not_started("rapl"))?;
        let (looks, failed) = running.stop("rapl")?;
        Ok(Recording {
            series: Series::Energy(looks.counted),
            // The counters move on about every millisecond.
            uncertainty_ns: 1_000_000,
            notes: failed.into_iter().collect(),
        })
    }
}

impl Looks {
    /// Reads the counters of all zones, or of none, and adds a point to the series.
    fn look(&mut self) -> Result<(), Error> {
        let shown = self.zones.iter().map(|(zone, _)| zone.energy_uj());
        let shown: Vec<_> = shown.collect::<Result<_, _>>()?;
        let at_ns = since(self.origin, Instant::now());
        let totals = self.zones.iter_mut().zip(shown);
        let total: u64 = totals.map(|((_, unwrap), shown)| unwrap.push(shown)).sum();
        self.counted.push(at_ns, convert::float(total));
        Ok(())
    }
}
