//! The file that keeps each reading before it is used.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Settings;
use crate::Error;
use mq_measure::convert;

/// Writer of the file that keeps each reading before it is used: text with columns that [`csv`](crate::csv) reads.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    supply_v: f64,
    /// Time of the first reading, in nanoseconds since 1970.
    begins_ns: u64,
    spacing_ns: f64,
    /// Whole lines that are not yet written.
    lines: String,
}

impl Journal {
    /// Creates the file. A file of this name holds another run's readings: it stays, and that is an error.
    pub(super) fn create(
        settings: &Settings,
        identity: &str,
        spacing: Duration,
    ) -> Result<Self, Error> {
        let path = settings.journal.clone();
        let mut file = File::create_new(&path).map_err(Error::io(&path))?;
        let head = format!(
            "# readings of {}, {identity}, every {spacing:?}\nunix_ns,current_a,voltage_v\n",
            settings.address
        );
        file.write_all(head.as_bytes()).map_err(Error::io(&path))?;
        Ok(Self {
            file,
            path,
            supply_v: settings.supply_v,
            begins_ns: 0,
            spacing_ns: convert::float(u64::try_from(spacing.as_nanos()).unwrap_or(u64::MAX)),
            lines: String::new(),
        })
    }

    /// Sets the time of the first reading: `ago` before now, by the system's clock.
    pub(super) fn begins(&mut self, ago: Duration) {
        let now = SystemTime::now();
        let began = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let began = began.saturating_sub(ago);
        self.begins_ns = u64::try_from(began.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Adds a reading, in the instrument's own digits.
    pub(super) fn add(&mut self, number: u64, current_a: &str) {
        let unix_ns = self.begins_ns + convert::round(convert::float(number) * self.spacing_ns);
        let line = format!("{unix_ns},{current_a},{}\n", self.supply_v);
        self.lines.push_str(&line);
    }

    /// Hands the added lines to the operating system, so that an abort of this program loses none.
    pub(super) fn write(&mut self) -> Result<(), Error> {
        let written = self.file.write_all(self.lines.as_bytes());
        self.lines.clear();
        written.map_err(Error::io(&self.path))
    }

    /// Writes the file to the disk, so that a loss of power loses nothing.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        self.file.sync_data().map_err(Error::io(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv;

    #[test]
    fn a_journal_reads_as_any_instruments_file() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::new("dmm", folder.path().join("journal.csv"));
        let spacing = Duration::from_millis(1);
        let mut journal = Journal::create(&settings, "a,b,c,d", spacing).unwrap();
        journal.begins(Duration::ZERO);
        for number in 0..=1000 {
            journal.add(number, "+2.80000000E-01");
        }
        journal.write().unwrap();
        journal.sync().unwrap();
        let log = csv::read(&settings.journal, None).unwrap();
        let span = log.trace.span().unwrap();
        assert_eq!(span.duration_ns(), 1_000_000_000);
        // 0.28 A at 5 V for a second.
        let energy = log.trace.energy(span).energy_uj;
        assert!((energy - 1.4e6).abs() < 1e-3, "{energy}");
        assert!(span.from_ns > 1_700_000_000_000_000_000, "since 1970");
    }

    #[test]
    fn readings_of_another_run_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::new("dmm", folder.path().join("journal.csv"));
        std::fs::write(&settings.journal, "precious").unwrap();
        let error = Journal::create(&settings, "", Duration::from_millis(1)).unwrap_err();
        assert!(error.to_string().contains("journal.csv: "), "{error}");
        assert_eq!(
            std::fs::read_to_string(&settings.journal).unwrap(),
            "precious"
        );
    }
}
