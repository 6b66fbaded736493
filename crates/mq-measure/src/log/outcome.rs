//! The outcome of a joined run as JSON, so that runs can be compared.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Joined;
use crate::{Counts, Error, Summary, Validity, Warning, json, validity};

/// The `schema` of an [`Outcome`] that this version writes and reads.
pub const OUTCOME_SCHEMA: &str = "mq-join/1";

/// The one-way delays of a run, with their uncertainty: what `mqbench join` writes and reads back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// [`OUTCOME_SCHEMA`].
    pub schema: String,
    /// The run's name, from its logs.
    pub run: String,
    /// Latency from the intended send time; `None` if nothing arrived.
    pub latency: Option<Summary>,
    /// Latency from the actual send time: the one-way delay, S22 §5.1.
    pub latency_from_send: Option<Summary>,
    /// The most that any latency is wrong by because of the clocks; `None` if the clocks are not related, as
    /// where there is only one.
    pub uncertainty_ns: Option<u64>,
    /// Counts of the run's messages.
    pub counts: Counts,
    /// The warnings about the run.
    pub validity: Validity,
}

/// The difference of two runs' median one-way delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Median one-way delay of one run minus that of the other, from the actual send times, in nanoseconds.
    pub median_ns: i64,
    /// The most that the difference is wrong by because of the clocks.
    ///
    /// The sum of both runs' uncertainties. An error that both runs share would cancel out, but nothing
    /// shows how much of the error they share.
    pub uncertainty_ns: u64,
}

impl Difference {
    /// Warns if the difference is no larger than its uncertainty.
    #[must_use]
    pub fn warning(&self) -> Option<Warning> {
        // Within one machine nothing is uncertain, and equal medians are equal.
        (self.uncertainty_ns > 0)
            .then(|| validity::clock_uncertain(self.uncertainty_ns, self.median_ns.unsigned_abs()))
            .flatten()
    }
}

impl Outcome {
    /// Makes the outcome of the run called `run`.
    #[must_use]
    pub fn new(run: &str, joined: &Joined) -> Self {
        let mut validity = Validity::default();
        validity.extend(joined.warnings.iter().cloned());
        Self {
            schema: OUTCOME_SCHEMA.to_owned(),
            run: run.to_owned(),
            latency: Summary::from_samples(&joined.samples.latencies_intended_ns()),
            latency_from_send: Summary::from_samples(&joined.samples.latencies_sent_ns()),
            uncertainty_ns: joined.uncertainty_ns,
            counts: joined.counts,
            validity,
        }
    }

    /// Returns this run's median one-way delay minus that of `other`; `None` if nothing arrived in one.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Option<Difference> {
        let (own, others) = (
            self.latency_from_send?.p50_ns,
            other.latency_from_send?.p50_ns,
        );
        let difference = i128::from(own) - i128::from(others);
        let uncertainty = |outcome: &Self| outcome.uncertainty_ns.unwrap_or(0);
        Some(Difference {
            median_ns: i64::try_from(difference).unwrap_or(if difference < 0 {
                i64::MIN
            } else {
                i64::MAX
            }),
            uncertainty_ns: uncertainty(self).saturating_add(uncertainty(other)),
        })
    }

    /// Writes the outcome as JSON.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Json`].
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        json::save(self, path)
    }

    /// Reads what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Format`] if its schema is another; [`Error::Json`].
    pub fn load(path: &Path) -> Result<Self, Error> {
        json::load(path, OUTCOME_SCHEMA)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::super::{ReceiveRecord, SendRecord, join_topics};
    use super::*;

    fn outcome(delay_ns: u64, uncertainty_ns: Option<u64>) -> Outcome {
        let sends: Vec<_> = (0..9)
            .map(|seq| SendRecord {
                seq,
                intended_ns: seq * 1_000,
                sent_ns: seq * 1_000,
            })
            .collect();
        let receives: Vec<_> = sends
            .iter()
            .map(|send| ReceiveRecord {
                seq: send.seq,
                received_ns: send.sent_ns + delay_ns,
            })
            .collect();
        let mut joined = join_topics(&sends, &receives, None, NonZeroU32::MIN);
        joined.uncertainty_ns = uncertainty_ns;
        Outcome::new("run", &joined)
    }

    #[test]
    fn a_difference_within_the_uncertainty_is_warned_of() {
        let tcp = outcome(30_000_000, Some(600_000));
        let quic = outcome(29_000_000, Some(600_000));
        let difference = quic.minus(&tcp).unwrap();
        assert_eq!(difference.median_ns, -1_000_000);
        assert_eq!(
            difference.warning(),
            Some(Warning::ClockUncertain {
                uncertainty_ns: 1_200_000,
                effect_ns: 1_000_000
            })
        );
        let far = outcome(25_000_000, Some(600_000));
        assert_eq!(far.minus(&tcp).unwrap().warning(), None);
    }

    #[test]
    fn one_clock_has_no_uncertainty_to_warn_of() {
        let (a, b) = (outcome(5_000, None), outcome(5_000, None));
        assert_eq!(a.minus(&b).unwrap().warning(), None);
    }

    #[test]
    fn an_outcome_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("join.json");
        let written = outcome(5_000, Some(7));
        written.save(&path).unwrap();
        assert_eq!(Outcome::load(&path).unwrap(), written);
    }
}
