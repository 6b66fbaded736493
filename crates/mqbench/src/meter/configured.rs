//! Meters that are read while runs last, by the controller of the campaign or by the host that has the meter.
//!
//! A multimeter has one probe, so runs with a meter go one at a time. Reading removes readings from the
//! instrument's memory, so each is written to a file of the run, the journal, as soon as it comes.
//! docs/reference/energy.md says how to read a journal.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mq_energy::{Basis, Meter, Note, Recording};
use serde::{Deserialize, Serialize};

use super::spec::{MeterSettings, MeterSpec};
use crate::clock::WallClock;

/// Time within which a multimeter has to identify itself.
#[cfg(target_os = "linux")]
const ANSWER: Duration = Duration::from_secs(5);

/// Time that a multimeter measures beyond the expected time of a run before it stops by itself.
const SPARE: Duration = Duration::from_mins(10);

/// A meter with its settings.
#[derive(Clone, Debug)]
pub(crate) struct ConfiguredMeter {
    pub(crate) spec: MeterSpec,
    pub(crate) settings: MeterSettings,
}

/// The folder of journals, in the directory of the results.
#[derive(Clone, Debug)]
pub(crate) struct JournalFolder(PathBuf);

/// A running meter.
pub(crate) struct RunningMeter {
    meter: Box<dyn Meter>,
    /// The zero of the recording's times, since 1970.
    origin_ns: u64,
}

/// The recording of a meter while a run lasted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeterRecording {
    /// The meter's name, as the command line takes it.
    pub(crate) meter: String,
    pub(crate) scope: String,
    pub(crate) journal: Option<String>,
    /// The zero of the recording's times, since 1970.
    pub(crate) origin_ns: u64,
    pub(crate) recording: Recording,
}

impl JournalFolder {
    /// Returns the folder of the journals of a result set.
    pub(crate) fn of(directory: &Path) -> Self {
        Self(directory.join("meters"))
    }

    /// Returns a new journal for this run; journals of attempts that were cut off stay.
    fn new_journal(&self, run: &str) -> anyhow::Result<PathBuf> {
        let cannot = || format!("cannot make {}", self.0.display());
        std::fs::create_dir_all(&self.0).with_context(cannot)?;
        let mut names = (1_u64..).map(|number| self.0.join(format!("{run}-{number}.csv")));
        names.find(|file| !file.exists()).with_context(cannot)
    }
}

impl ConfiguredMeter {
    /// Makes sure that a multimeter answers; other meters are not asked.
    #[cfg(target_os = "linux")]
    pub(crate) async fn answers(&self) -> anyhow::Result<()> {
        if let MeterSpec::Dmm(address) = self.spec.clone() {
            let identify = move || mq_energy::dmm::Dmm::identify(&address, ANSWER);
            let found = tokio::task::spawn_blocking(identify).await;
            found.context("the meter's thread failed")??;
        }
        Ok(())
    }

    /// Starts the meter for a run that takes about `expected`.
    pub(crate) async fn start(
        &self,
        expected: Duration,
        journals: &JournalFolder,
        run: &str,
    ) -> anyhow::Result<RunningMeter> {
        let journal = journals.new_journal(run)?;
        let longest = expected + SPARE;
        let settings = self.settings.for_run(&self.spec, expected, journal);
        let spec = self.spec.clone();
        let start = move || RunningMeter::start(settings.meter(&spec, longest)?);
        let started = tokio::task::spawn_blocking(start).await;
        let started = started.context("the meter's thread failed")?;
        started.with_context(|| format!("the meter {}", self.spec))
    }
}

impl RunningMeter {
    /// Starts a meter.
    pub(crate) fn start(mut meter: Box<dyn Meter>) -> anyhow::Result<Self> {
        let clock = WallClock::from_env()?;
        let (origin, origin_ns) = (Instant::now(), clock.now_ns());
        meter.start(origin)?;
        Ok(Self { meter, origin_ns })
    }

    /// Stops the meter.
    ///
    /// # Errors
    /// If the meter was lost before.
    pub(crate) fn stop(mut self) -> anyhow::Result<MeterRecording> {
        let recording = self.meter.stop()?;
        for note in &recording.notes {
            if let Note::EndedEarly { reason } = note {
                bail!("{reason}");
            }
        }
        let journal = self.meter.journal().and_then(Path::file_name);
        Ok(MeterRecording {
            meter: self.meter.name().to_owned(),
            scope: self.meter.scope().to_owned(),
            journal: journal.map(|name| name.to_string_lossy().into_owned()),
            origin_ns: self.origin_ns,
            recording,
        })
    }

    /// Stops the meter as [`stop`](Self::stop) does, without blocking other tasks.
    pub(crate) async fn stopped(self) -> anyhow::Result<MeterRecording> {
        let name = self.meter.name().to_owned();
        let stopped = tokio::task::spawn_blocking(move || self.stop()).await;
        let stopped = stopped.context("the meter's thread failed")?;
        stopped.with_context(|| format!("the meter {name}"))
    }
}

/// Returns the basis of a meter of this name: measured or modelled.
pub(crate) fn basis(meter: &str) -> Basis {
    if meter == "model" || meter.starts_with("model:") {
        Basis::Modelled
    } else {
        Basis::Measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let journals = JournalFolder::of(folder.path());
        let first = journals.new_journal("some").unwrap();
        assert_eq!(first, folder.path().join("meters/some-1.csv"));
        std::fs::write(&first, "precious").unwrap();
        assert_ne!(journals.new_journal("some").unwrap(), first);
    }
}
