//! A comparison of two clocks as JSON: what `mqbench clock measure` writes and `mqbench join` reads.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Assumptions, ClockFit, CrossCheck, Exchange, FitSummary, cross_check};
use crate::{Error, Validity, json, validity};

/// The `schema` of a [`ClockFile`] that this version writes and reads.
pub const SCHEMA: &str = "mq-clock/1";

/// A machine of the comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// The machine's name, as in the first line of its logs.
    pub host: String,
    /// The greatest error of the machine's clock against UTC, by chrony; `None` if chrony does not say.
    pub error_bound_ns: Option<u64>,
}

/// A comparison of two machines' clocks.
///
/// A reader of the file relates the clocks anew, by the exchanges. The summary is for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ClockFile {
    /// [`SCHEMA`].
    pub schema: String,
    /// The machine that asked.
    pub local: Side,
    /// The machine that answered.
    pub remote: Side,
    /// The assumptions about clocks and path.
    pub assumptions: Assumptions,
    /// Offset, skew and their uncertainty, for people.
    pub summary: FitSummary,
    /// Check of the measured offset against chrony's error bounds.
    pub cross_check: CrossCheck,
    /// The warnings about the comparison of the two machines' clocks.
    pub validity: Validity,
    /// Questions asked; those without an answer were lost on the way there or back.
    pub asked: u64,
    /// Question and answer, in the order in which they were asked.
    pub exchanges: Vec<Exchange>,
}

impl ClockFile {
    /// Makes the file of a comparison of two clocks, with summary, cross-check and warnings, from `exchanges`: the
    /// answered ones of `asked` questions.
    ///
    /// # Errors
    /// Those of [`ClockFit::new`].
    pub fn new(
        local: Side,
        remote: Side,
        assumptions: Assumptions,
        asked: u64,
        exchanges: Vec<Exchange>,
    ) -> Result<Self, Error> {
        let summary = ClockFit::new(&exchanges, &assumptions)?.summary();
        let cross_check = cross_check(
            summary.offset_ns,
            summary.uncertainty_ns,
            local.error_bound_ns,
            remote.error_bound_ns,
        );
        let mut validity = Validity::default();
        validity.extend(summary.steps.iter().map(validity::clock_stepped));
        validity.note(validity::clocks_disagree(&summary, cross_check));
        Ok(Self {
            schema: SCHEMA.to_owned(),
            local,
            remote,
            assumptions,
            summary,
            cross_check,
            validity,
            asked,
            exchanges,
        })
    }

    /// Returns the relation of the two clocks that fits the file's exchanges.
    ///
    /// # Errors
    /// Those of [`ClockFit::new`].
    pub fn fit(&self) -> Result<ClockFit, Error> {
        ClockFit::new(&self.exchanges, &self.assumptions)
    }

    /// Returns the host that `host` was compared with; `None` if `host` is neither of the two.
    #[must_use]
    pub fn other(&self, host: &str) -> Option<&str> {
        if self.local.host == host {
            Some(&self.remote.host)
        } else if self.remote.host == host {
            Some(&self.local.host)
        } else {
            None
        }
    }

    /// Writes the file as JSON.
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
        json::load(path, SCHEMA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Warning;

    fn exchanges(step: u64) -> Vec<Exchange> {
        (0..100_u64)
            .map(|i| (i, 1_800_000_000_000_000_000 + i * 100_000_000))
            .map(|(i, t)| {
                let ahead = 500 + if i < 50 { 0 } else { step };
                [t, t + ahead + 50_000, t + ahead + 60_000, t + 110_000].into()
            })
            .collect()
    }

    fn file(step: u64, bound: Option<u64>) -> ClockFile {
        let side = |host: &str| Side {
            host: host.to_owned(),
            error_bound_ns: bound,
        };
        let assumptions = Assumptions::default();
        ClockFile::new(side("a"), side("b"), assumptions, 103, exchanges(step)).unwrap()
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clock.json");
        let written = file(0, Some(1_000_000));
        written.save(&path).unwrap();
        let read = ClockFile::load(&path).unwrap();
        assert_eq!(read.fit().unwrap().summary(), written.summary);
        // A float's last digit may be read otherwise.
        let skews = (read.summary.skew_ppb, written.summary.skew_ppb);
        assert!((skews.0 - skews.1).abs() < 1e-9, "{skews:?}");
        let summary = written.summary.clone();
        assert_eq!(
            ClockFile {
                summary,
                ..read.clone()
            },
            written
        );
        assert_eq!((read.other("a"), read.other("c")), (Some("b"), None));
        assert!(read.validity.warnings.is_empty());
        assert_eq!(
            read.cross_check,
            CrossCheck::Agrees {
                bound_ns: 2_000_000
            }
        );
    }

    #[test]
    fn a_step_and_a_chrony_that_disagrees_are_warned_of() {
        let stepped = file(3_000_000, None);
        assert!(
            matches!(stepped.validity.warnings[..], [Warning::ClockStepped { by_ns, .. }]
                if by_ns.abs_diff(3_000_000) < 1_000),
            "{:?}",
            stepped.validity
        );
        let mut exchanges = exchanges(0);
        for exchange in &mut exchanges {
            exchange.t2_ns += 9_000_000;
            exchange.t3_ns += 9_000_000;
        }
        let side = |host: &str| Side {
            host: host.to_owned(),
            error_bound_ns: Some(1_000_000),
        };
        let file =
            ClockFile::new(side("a"), side("b"), Assumptions::default(), 100, exchanges).unwrap();
        assert!(
            matches!(file.validity.warnings[..], [Warning::ClocksDisagree { .. }]),
            "{:?}",
            file.validity
        );
    }

    #[test]
    fn another_file_is_refused_by_its_schema() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clock.json");
        std::fs::write(&path, "{\"schema\": \"mq-compare/1\"}").unwrap();
        let error = ClockFile::load(&path).unwrap_err().to_string();
        assert!(error.contains("expected schema mq-clock/1"), "{error}");
        assert!(error.contains("mq-compare/1"), "{error}");
    }
}
