//! The progress of a campaign, in runs. The terminal and the report count by this, so that both say the same.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use super::{file::Campaign, record::Record};

/// The runs of a campaign, each counted by its last attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RunCounts {
    /// Number of runs in the campaign's file.
    pub(crate) planned: usize,
    /// Number of runs that have an attempt.
    pub(crate) finished: usize,
    /// Number of finished runs whose last attempt nothing disturbed.
    pub(crate) good: usize,
    /// Number of finished runs whose last attempt was disturbed too. These runs count, since they have no better
    /// attempt.
    pub(crate) disturbed: usize,
    /// Number of earlier attempts, which do not count.
    pub(crate) repeated: usize,
}

impl RunCounts {
    pub(crate) fn of(campaign: &Campaign, records: &[Record]) -> Self {
        let mut last = BTreeMap::new();
        let mut attempts = 0;
        for record in records.iter().filter(|r| r.campaign == campaign.name) {
            attempts += 1;
            last.insert((&record.levels, record.repetition), record);
        }
        let runs = last.values();
        let disturbed = runs.filter(|run| run.outcome.is_disturbed()).count();
        let repetitions = usize::try_from(campaign.repetitions).unwrap_or(usize::MAX);
        Self {
            planned: campaign.cells.len().saturating_mul(repetitions),
            finished: last.len(),
            good: last.len() - disturbed,
            disturbed,
            repeated: attempts - last.len(),
        }
    }

    /// Returns the number of runs without an attempt.
    pub(crate) fn missing(&self) -> usize {
        self.planned.saturating_sub(self.finished)
    }
}

/// `70 of 72 runs good, 1 disturbed, 1 missing; 3 attempts repeated`.
impl fmt::Display for RunCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            planned,
            good,
            disturbed,
            repeated,
            ..
        } = self;
        write!(f, "{good} of {planned} runs good, {disturbed} disturbed")?;
        match self.missing() {
            0 => {}
            missing => write!(f, ", {missing} missing")?,
        }
        match repeated {
            0 => Ok(()),
            1 => write!(f, "; 1 attempt repeated"),
            _ => write!(f, "; {repeated} attempts repeated"),
        }
    }
}
