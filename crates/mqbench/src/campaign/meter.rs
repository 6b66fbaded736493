//! Meters that are read while runs last: by whoever runs the campaign, or by the agent of the host that
//! they hang on.
//!
//! A multimeter has one probe, so that runs with a meter go one at a time. Its readings leave its memory
//! as they are read, and are kept in a file of their own for each run, the journal, from the moment they
//! come; docs/energy.md says how that is read.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mq_measure::{
    Samples, Warning,
    energy::{Basis, Meter, Note, Recording, Window, average_power_uw},
};
use serde::{Deserialize, Serialize};

use super::record::{Outcome, Reading};
use crate::{
    cmd::energy::{Instrument, Spec},
    wall::WallClock,
};

/// Metrics that energy gives; none is left where it is not known.
pub(crate) const METRICS: [&str; 3] = ["energy_j", "power_w", "energy_per_message_uj"];

/// How long a multimeter may take to say who it is.
#[cfg(target_os = "linux")]
const ANSWER: Duration = Duration::from_secs(5);

/// How long a multimeter goes on by itself after the time that a run is expected to take.
const SPARE: Duration = Duration::from_mins(10);

/// A meter, and how it is set.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) spec: Spec,
    pub(crate) instrument: Instrument,
}

/// Where journals are, in the directory of the results.
#[derive(Clone, Debug)]
pub(crate) struct Journals(PathBuf);

/// A meter that runs.
pub(crate) struct Running {
    meter: Box<dyn Meter>,
    /// What its times count from, since 1970.
    origin_ns: u64,
}

/// What a meter found while a run lasted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Taken {
    /// As the command line names it.
    pub(crate) meter: String,
    scope: String,
    journal: Option<String>,
    /// What the recording's times count from, since 1970.
    origin_ns: u64,
    recording: Recording,
}

/// When messages were sent, by the clock of whoever read the meter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sending {
    /// Since 1970.
    pub(crate) window: Window,
    /// How far both ends may be off.
    pub(crate) uncertainty_ns: u64,
}

/// From the first message's turn to the last that arrived, or was sent: S22's time to send all packets
/// (§5.2), with what was sent again. `None` if nothing was sent.
pub(crate) fn sending(samples: &Samples) -> Option<Window> {
    let first = samples.0.iter().map(|sample| sample.intended_ns).min()?;
    let last = samples.0.iter();
    let last = last.map(|sample| sample.received_ns.unwrap_or(0).max(sample.sent_ns));
    Some(Window::new(first, last.max()?))
}

impl Journals {
    /// Of a result set.
    pub(crate) fn of(directory: &Path) -> Self {
        Self(directory.join("meters"))
    }

    /// A new one for this run: what an attempt has read that was cut off stays.
    fn next(&self, run: &str) -> anyhow::Result<PathBuf> {
        let cannot = || format!("cannot make {}", self.0.display());
        std::fs::create_dir_all(&self.0).with_context(cannot)?;
        let mut names = (1_u64..).map(|number| self.0.join(format!("{run}-{number}.csv")));
        names.find(|file| !file.exists()).with_context(cannot)
    }
}

impl Probe {
    /// Whether a multimeter is there and says who it is; of others it is not known.
    #[cfg(target_os = "linux")]
    pub(crate) async fn answers(&self) -> anyhow::Result<()> {
        if let Spec::Dmm(address) = self.spec.clone() {
            let identify = move || mq_measure::energy::dmm::Dmm::identify(&address, ANSWER);
            let found = tokio::task::spawn_blocking(identify).await;
            found.context("the meter's thread failed")??;
        }
        Ok(())
    }

    /// Starts it for a run that takes about so long.
    pub(crate) async fn start(
        &self,
        expected: Duration,
        journals: &Journals,
        run: &str,
    ) -> anyhow::Result<Running> {
        let journal = journals.next(run)?;
        let longest = expected + SPARE;
        let instrument = self.instrument.of_run(&self.spec, expected, journal);
        let spec = self.spec.clone();
        let start = move || Running::start(instrument.meter(&spec, longest)?);
        let started = tokio::task::spawn_blocking(start).await;
        let started = started.context("the meter's thread failed")?;
        started.with_context(|| format!("the meter {}", self.spec))
    }
}

impl Running {
    /// Starts it.
    pub(crate) fn start(mut meter: Box<dyn Meter>) -> anyhow::Result<Self> {
        let clock = WallClock::from_env()?;
        let (origin, origin_ns) = (Instant::now(), clock.now_ns());
        meter.start(origin)?;
        Ok(Self { meter, origin_ns })
    }

    /// Stops it.
    ///
    /// # Errors
    /// If it was not there until now.
    pub(crate) fn stop(mut self) -> anyhow::Result<Taken> {
        let recording = self.meter.stop()?;
        for note in &recording.notes {
            if let Note::EndedEarly { reason } = note {
                bail!("{reason}");
            }
        }
        let journal = self.meter.journal().and_then(Path::file_name);
        Ok(Taken {
            meter: self.meter.name().to_owned(),
            scope: self.meter.scope().to_owned(),
            journal: journal.map(|name| name.to_string_lossy().into_owned()),
            origin_ns: self.origin_ns,
            recording,
        })
    }

    /// As [`stop`](Self::stop), without holding up anything else.
    pub(crate) async fn stopped(self) -> anyhow::Result<Taken> {
        let name = self.meter.name().to_owned();
        let stopped = tokio::task::spawn_blocking(move || self.stop()).await;
        let stopped = stopped.context("the meter's thread failed")?;
        stopped.with_context(|| format!("the meter {name}"))
    }
}

impl Taken {
    /// Gives a run the energy of the time in which it sent, instead of any other.
    pub(crate) fn give(&self, outcome: &mut Outcome, sending: Sending) {
        for metric in METRICS {
            outcome.metrics.remove(metric);
        }
        let since = |ns: u64| ns.saturating_sub(self.origin_ns);
        let window = sending.window;
        let window = Window::new(since(window.from_ns), since(window.to_ns));
        let energy = self.recording.energy(window);
        if energy.gaps.is_empty() {
            let power_uw = average_power_uw(energy.energy_uj, window.duration_ns());
            let each_uj = energy.per_message_uj(outcome.counts.received);
            let found = [
                Some(energy.energy_uj / 1e6),
                power_uw.map(|uw| uw / 1e6),
                each_uj,
            ];
            for (metric, value) in METRICS.into_iter().zip(found) {
                outcome
                    .metrics
                    .extend(value.map(|value| (metric.to_owned(), value)));
            }
        } else {
            outcome.warnings.push(Warning::EnergyGaps {
                missing_ns: energy.window_ns - energy.covered_ns,
                window_ns: energy.window_ns,
            });
        }
        outcome.energy_meter = Some(self.meter.clone());
        outcome.energy_reading = Some(Reading {
            scope: self.scope.clone(),
            window: sending.window,
            uncertainty_ns: self.recording.uncertainty_ns + sending.uncertainty_ns,
            journal: self.journal.clone(),
            notes: self.recording.notes.clone(),
        });
    }
}

/// Whether a meter of this name measures or computes.
pub(crate) fn basis(meter: &str) -> Basis {
    if meter == "model" || meter.starts_with("model:") {
        Basis::Modelled
    } else {
        Basis::Measured
    }
}

#[cfg(test)]
mod tests {
    use mq_measure::energy::{Series, trace::Trace};

    use super::*;

    /// 2 W from the origin on, for a second, with a hole in it or not.
    fn taken(has_hole: bool) -> Taken {
        let mut trace = Trace::new(20_000_000);
        for at in (0..=100).filter(|at| !has_hole || !(40..60).contains(at)) {
            trace.push(at * 10_000_000, 2e6);
        }
        Taken {
            meter: "dmm:10.0.0.9".to_owned(),
            scope: "the current".to_owned(),
            journal: Some("some-1.csv".to_owned()),
            origin_ns: 1_000_000_000_000,
            recording: Recording {
                series: Series::Power(trace),
                uncertainty_ns: 5,
                notes: Vec::new(),
            },
        }
    }

    fn modelled() -> Outcome {
        let mut outcome = Outcome {
            energy_meter: Some("model:pi-3b".to_owned()),
            ..Outcome::default()
        };
        outcome.counts.received = 10;
        for metric in METRICS {
            outcome.metrics.insert(metric.to_owned(), 99.0);
        }
        outcome
    }

    fn sending() -> Sending {
        Sending {
            window: Window::new(1_000_250_000_000, 1_000_750_000_000),
            uncertainty_ns: 7,
        }
    }

    #[test]
    fn a_run_has_the_energy_of_the_time_in_which_it_sent() {
        let mut outcome = modelled();
        // Through the form in which an agent hands it over.
        let text = serde_json::to_string(&taken(false)).unwrap();
        let taken: Taken = serde_json::from_str(&text).unwrap();
        taken.give(&mut outcome, sending());
        for (metric, right) in METRICS.into_iter().zip([1.0, 2.0, 100_000.0]) {
            let found = outcome.metrics[metric];
            assert!((found - right).abs() < 1e-9 * right, "{metric}: {found}");
        }
        assert_eq!(outcome.energy_meter.as_deref(), Some("dmm:10.0.0.9"));
        let reading = outcome.energy_reading.unwrap();
        assert_eq!(reading.uncertainty_ns, 12);
        assert_eq!(reading.journal.as_deref(), Some("some-1.csv"));
        assert_eq!(outcome.warnings, []);
    }

    #[test]
    fn a_run_with_gaps_has_no_energy_and_not_the_models_either() {
        let mut outcome = modelled();
        taken(true).give(&mut outcome, sending());
        assert!(outcome.metrics.is_empty(), "{outcome:?}");
        assert!(matches!(
            outcome.warnings[..],
            [Warning::EnergyGaps {
                missing_ns: 210_000_000,
                window_ns: 500_000_000
            }]
        ));
        assert_eq!(outcome.energy_meter.as_deref(), Some("dmm:10.0.0.9"));
    }

    #[test]
    fn a_journal_is_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals::of(folder.path());
        let first = journals.next("some").unwrap();
        assert_eq!(first, folder.path().join("meters/some-1.csv"));
        std::fs::write(&first, "precious").unwrap();
        assert_ne!(journals.next("some").unwrap(), first);
    }
}
