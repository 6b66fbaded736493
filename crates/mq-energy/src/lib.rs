//! The energy of a run in joules: by meters, or by a model where there is no meter.
//!
//! Every meter is a [`Meter`]: start it, do the work, stop it, and it returns a [`Recording`]. Any
//! part of the recording, a [`Window`], has an [`Energy`]. Results say by [`Basis`] whether they are
//! measured or modelled.
//!
//! | source of the energy | module |
//! |---|---|
//! | a multimeter that measures a current | [`dmm`], over [`scpi`] |
//! | a sensor that the Linux kernel knows (hwmon, IIO) | [`sysfs`] |
//! | the processor's own counters | [`rapl`] |
//! | a file that any other instrument wrote | [`csv`] |
//! | no instrument: packets, bytes and CPU time, each times a coefficient | [`model`] |
//!
//! | result | module |
//! |---|---|
//! | power over time becomes energy; gaps are reported and not filled | [`trace`] |
//! | a counter of energy that wraps becomes energy | [`counter`] |
//! | a board's coefficients, from a file | [`profile`] |
//! | coefficients computed from measured runs | [`fit`] |
//!
//! The crate has no cargo features. It prints nothing and knows nothing of MQTT.
//!
//! ```
//! use mq_energy::{Window, trace::Trace};
//!
//! let mut trace = Trace::new(20_000_000); // what is further apart than 20 ms is a gap
//! for i in 0..=100 {
//!     trace.push(i * 10_000_000, 2_000_000.0); // 2 W, each 10 ms
//! }
//! let energy = trace.energy(Window::new(250_000_000, 750_000_000));
//! assert_eq!(energy.energy_uj, 1_000_000.0); // for half a second: 1 J
//! assert!(energy.gaps.is_empty());
//! ```

pub mod counter;
pub mod csv;
pub mod dmm;
mod error;
pub mod fit;
pub mod model;
pub mod profile;
pub mod rapl;
mod sampler;
pub mod scpi;
pub mod sysfs;
pub mod trace;

use std::fmt;
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use counter::Counted;
pub use error::Error;
use mq_measure::convert;
use trace::Trace;

/// Measures or computes the energy of a machine, or of a part of it.
///
/// Call [`start`](Self::start), do the work, call [`stop`](Self::stop). The recording's times count from
/// `origin`, that of the run, so that any part of the run can be cut out. A stopped meter can be started
/// again.
pub trait Meter: Send {
    /// Returns the meter's name, in the form that the command line takes, such as `iio:ina226`.
    fn name(&self) -> &str;

    /// Returns the part of the machine whose energy is covered, such as `what flows through the sensor`.
    fn scope(&self) -> &str;

    /// Returns the basis of the meter's energy: an instrument's measurement (the default) or a model.
    fn basis(&self) -> Basis {
        Basis::Measured
    }

    /// Returns the file that keeps the readings as they come, after the start; `None` if the readings can be read
    /// again.
    fn journal(&self) -> Option<&Path> {
        None
    }

    /// Starts.
    ///
    /// # Errors
    /// If nothing can be read from the meter. On success all settings have been made and checked.
    fn start(&mut self, origin: Instant) -> Result<(), Error>;

    /// Stops, and returns the recording since the start.
    ///
    /// # Errors
    /// If the meter was not started, or has no reading that can be used. Failures in between are among the
    /// [notes](Recording::notes).
    fn stop(&mut self) -> Result<Recording, Error>;
}

/// Basis of an energy: measurement or model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Measured by an instrument.
    Measured,
    /// Computed by a model with coefficients.
    Modelled,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured => "measured",
            Self::Modelled => "modelled, not measured",
        })
    }
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The beginning, in nanoseconds.
    pub from_ns: u64,
    /// The end, in nanoseconds, not before the beginning.
    pub to_ns: u64,
}

impl Window {
    /// Makes the window from one time to another; empty if the times are in the wrong order.
    #[must_use]
    pub fn new(from_ns: u64, to_ns: u64) -> Self {
        Self {
            from_ns,
            to_ns: to_ns.max(from_ns),
        }
    }

    /// Returns the length of the window in nanoseconds; 0 if its end is before its beginning.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }

    /// Returns the overlap with another window, if it is more than a point.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> Option<Self> {
        let (from_ns, to_ns) = (self.from_ns.max(other.from_ns), self.to_ns.min(other.to_ns));
        (from_ns < to_ns).then_some(Self { from_ns, to_ns })
    }
}

/// The energy of a part of a run, as far as the meter knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Energy {
    /// Energy of the window without its gaps, in microjoule.
    pub energy_uj: f64,
    /// Length of the window, the part of the run that was asked for.
    pub window_ns: u64,
    /// Time within the window for which the energy is known: the window less its gaps.
    pub covered_ns: u64,
    /// Parts of the window without a measurement, in order; neighbouring gaps are merged. Their energy is unknown and
    /// not part of `energy_uj`.
    pub gaps: Vec<Window>,
}

impl Energy {
    /// Returns the mean power outside gaps; `None` if all is a gap.
    #[must_use]
    pub fn mean_power_uw(&self) -> Option<f64> {
        average_power_uw(self.energy_uj, self.covered_ns)
    }

    /// Returns the energy for each message that arrived; `None` if none did, or if there are gaps.
    #[must_use]
    pub fn per_message_uj(&self, delivered: u64) -> Option<f64> {
        (delivered > 0 && self.gaps.is_empty()).then(|| self.energy_uj / convert::float(delivered))
    }
}

/// Computes S22's average power: the total energy over the time to send all packets, S22 §5.2; `None` if that time is
/// 0.
#[must_use]
pub fn average_power_uw(energy_uj: f64, sending_ns: u64) -> Option<f64> {
    (sending_ns > 0).then(|| energy_uj / (convert::float(sending_ns) / 1e9))
}

/// Recording of a meter from its start to its stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Power or energy over time.
    pub series: Series,
    /// Largest error of the recording's times against the run's clock, in either direction.
    pub uncertainty_ns: u64,
    /// Remarks on the recording.
    pub notes: Vec<Note>,
}

impl Recording {
    /// Returns the window from the first value to the last; `None` with fewer than two.
    #[must_use]
    pub fn span(&self) -> Option<Window> {
        match &self.series {
            Series::Power(trace) => trace.span(),
            Series::Energy(counted) => counted.span(),
        }
    }

    /// Returns the energy of a part of the run.
    #[must_use]
    pub fn energy(&self, window: Window) -> Energy {
        match &self.series {
            Series::Power(trace) => trace.energy(window),
            Series::Energy(counted) => counted.energy(window),
        }
    }
}

/// Values of a recording over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Series {
    /// Power, which has to be integrated.
    Power(Trace),
    /// Energy since the start, which is a sum already.
    Energy(Counted),
}

/// A remark on a recording. Its `Display` is one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Note {
    /// Readings could not be taken.
    #[error("{count} readings failed, the last one so: {last}")]
    FailedReadings {
        /// Number of failed readings.
        count: u64,
        /// Error of the last failed reading.
        last: String,
    },
    /// Readings were beyond the instrument's range, and were left out.
    #[error("{count} readings were beyond the range and are left out; choose a larger range")]
    Overload {
        /// Number of readings beyond the range.
        count: u64,
    },
    /// The instrument took readings that did not arrive.
    #[error("{count} readings were taken and lost on the way; they are gaps")]
    LostReadings {
        /// Number of lost readings, by the readings' numbers and the instrument's timer.
        count: u64,
    },
    /// The instrument's memory was full, and the oldest readings in it were overwritten.
    #[error(
        "the instrument's memory was full and its oldest readings are gone; measure at a longer \
         interval"
    )]
    MemoryOverflow,
    /// The connection to the instrument was lost and made again.
    #[error("the connection was lost and made again, {times} times")]
    Reconnected {
        /// Number of reconnections.
        times: u32,
    },
    /// The instrument reported an error.
    #[error("the instrument says {message}")]
    InstrumentError {
        /// Error message of the instrument.
        message: String,
    },
    /// The instrument has no timer: the times of readings are computed from their number.
    #[error(
        "the instrument has no timer: its readings count as evenly spaced, {interval_ns} ns apart"
    )]
    NoTimer {
        /// The mean interval of the readings.
        interval_ns: u64,
    },
    /// Reading from the instrument had to end early.
    #[error("reading ended early: {reason}")]
    EndedEarly {
        /// Error that ended the reading.
        reason: String,
    },
    /// The file's last line was cut off, and left out.
    #[error("the last line is cut off, and was left out")]
    Truncated,
    /// No instrument measured: the energy is computed with a profile's coefficients.
    #[error(
        "computed from packets, bytes and CPU time by profile {profile}: nothing measured this"
    )]
    Modelled {
        /// The name of the profile.
        profile: String,
    },
}

/// Converts a time to nanoseconds of a run that began at `origin`; 0 for a time before the run.
fn since(origin: Instant, at: Instant) -> u64 {
    let since = at.saturating_duration_since(origin);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Makes the error of a meter that is stopped before it was started.
fn not_started(meter: &str) -> Error {
    Error::NoMeter {
        meter: meter.to_owned(),
        problem: "it was not started".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_power_is_energy_over_the_time_to_send() {
        // 1000 messages in 10 s, 14 J: 1.4 J/s.
        assert_eq!(average_power_uw(14e6, 10_000_000_000), Some(1.4e6));
        assert_eq!(average_power_uw(14e6, 0), None);
    }

    #[test]
    fn energy_of_a_message_is_not_known_where_there_are_gaps() {
        let whole = Energy {
            energy_uj: 500.0,
            window_ns: 10,
            covered_ns: 10,
            gaps: Vec::new(),
        };
        assert_eq!(whole.per_message_uj(5), Some(100.0));
        assert_eq!(whole.per_message_uj(0), None);
        let broken = Energy {
            gaps: vec![Window::new(2, 4)],
            ..whole
        };
        assert_eq!(broken.per_message_uj(5), None);
    }

    #[test]
    fn windows_overlap_in_more_than_a_point() {
        let window = Window::new(10, 20);
        assert_eq!(
            window.overlap(&Window::new(15, 30)),
            Some(Window::new(15, 20))
        );
        assert_eq!(window.overlap(&Window::new(20, 30)), None);
        assert_eq!(Window::new(20, 10).duration_ns(), 0);
        let reversed = Window {
            from_ns: 20,
            to_ns: 10,
        };
        assert_eq!(reversed.duration_ns(), 0);
    }

    #[test]
    fn a_note_is_one_line() {
        let notes = [
            Note::FailedReadings {
                count: 2,
                last: "no such device".to_owned(),
            },
            Note::Overload { count: 1 },
            Note::LostReadings { count: 3 },
            Note::MemoryOverflow,
            Note::Reconnected { times: 1 },
            Note::InstrumentError {
                message: "-222,\"Data out of range\"".to_owned(),
            },
            Note::NoTimer { interval_ns: 1 },
            Note::EndedEarly {
                reason: "no answer".to_owned(),
            },
            Note::Truncated,
            Note::Modelled {
                profile: "pi-3b".to_owned(),
            },
        ];
        for note in notes {
            let text = note.to_string();
            assert!(!text.is_empty() && text.lines().count() == 1, "{text}");
            let json = serde_json::to_string(&note).unwrap();
            assert_eq!(serde_json::from_str::<Note>(&json).unwrap(), note);
        }
    }
}
