//! Trees of files like the kernel's sensors and energy counters in `/sys`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

/// A folder that looks like `/sys`, with the sensors of a test.
#[derive(Debug)]
pub struct FakeSys {
    root: TempDir,
}

impl FakeSys {
    /// Makes a folder without any sensor.
    ///
    /// # Errors
    /// If no folder can be made.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            root: TempDir::new()?,
        })
    }

    /// Returns the folder that stands in for `/sys`.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Adds `class/hwmon/DEVICE` with a name and files, as the driver `ina2xx` makes them.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn hwmon(&self, device: &str, chip: &str, files: &[(&str, &str)]) -> io::Result<PathBuf> {
        self.device(&format!("class/hwmon/{device}"), chip, files)
    }

    /// Adds `bus/iio/devices/DEVICE`, as the driver `ina2xx-adc` makes it.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn iio(&self, device: &str, chip: &str, files: &[(&str, &str)]) -> io::Result<PathBuf> {
        self.device(&format!("bus/iio/devices/{device}"), chip, files)
    }

    /// Adds `class/powercap/ZONE` with a counter of that range.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn zone(
        &self,
        zone: &str,
        name: &str,
        energy_uj: u64,
        range_uj: u64,
    ) -> io::Result<PathBuf> {
        let (energy, range) = (energy_uj.to_string(), range_uj.to_string());
        let files = [
            ("energy_uj", energy.as_str()),
            ("max_energy_range_uj", range.as_str()),
        ];
        self.device(&format!("class/powercap/{zone}"), name, &files)
    }

    fn device(&self, path: &str, name: &str, files: &[(&str, &str)]) -> io::Result<PathBuf> {
        let folder = self.root().join(path);
        fs::create_dir_all(&folder)?;
        for (file, value) in files.iter().chain([&("name", name)]) {
            Self::set(&folder.join(file), value)?;
        }
        Ok(folder)
    }

    /// Replaces the content of a file at once: a reader sees the old or the new content.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn set(file: &Path, value: &str) -> io::Result<()> {
        let new = file.with_extension("new");
        fs::write(&new, format!("{value}\n"))?;
        fs::rename(new, file)
    }
}
