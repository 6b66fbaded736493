//! The runs that a result set still lacks, in their order.
//!
//! Figures of a paper are often views of the same runs, as S22's mean delay, jitter and packets a second. A run
//! that several campaigns want (the same cell, repetition and campaign seed) is done once, and each of these campaigns
//! gets its record.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::plan::{self, PlannedRun};
use crate::campaign::{
    cell::Cell,
    file::{Campaign, Combination},
    record::{Outcome, Record},
};

/// Greatest number of attempts of a run that is disturbed each time; the last attempt is kept as it is.
const ATTEMPTS: u32 = 3;

/// A run that is to be done.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct QueuedRun {
    /// The campaigns that want the run; at least one campaign.
    wanted_by: Vec<RunOfCampaign>,
    /// Number of the attempt, from 1.
    attempt: u32,
    /// Number of earlier attempts that failed.
    failed: u32,
    /// See [`plan::identity`].
    identity: u64,
    /// The seed of the first attempt.
    seed: u64,
    expected: Duration,
    load: f64,
}

/// A run of one campaign of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RunOfCampaign {
    /// The index of the set's campaign.
    campaign: usize,
    planned: PlannedRun,
}

impl QueuedRun {
    pub(crate) fn cell<'a>(&self, campaigns: &'a [Campaign]) -> &'a Cell {
        let RunOfCampaign { campaign, planned } = self.wanted_by[0];
        &campaigns[campaign].cells[planned.cell].cell
    }

    /// Returns the estimate of how long the run takes.
    pub(crate) fn expected(&self) -> Duration {
        self.expected
    }

    /// Returns the run's load, see [`plan::load`]. A disturbed run gets more room the next time: some runs are more
    /// sensitive than others.
    pub(super) fn load(&self) -> f64 {
        const MORE: i32 = 2;
        self.load * f64::from(MORE.pow(self.attempt - 1))
    }

    /// Returns the name of this run's files.
    pub(super) fn name(&self, campaigns: &[Campaign]) -> String {
        let campaign = &campaigns[self.wanted_by[0].campaign].name;
        let attempt = u64::from(self.attempt - 1);
        format!("{campaign}-{:016x}", self.identity.wrapping_add(attempt))
    }

    /// Returns true if several campaigns want the run.
    pub(crate) fn is_shared(&self) -> bool {
        self.wanted_by.len() > 1
    }

    /// Returns the seed of this attempt. After a failure it is another one, or the run would fail as before.
    pub(super) fn seed(&self) -> u64 {
        self.seed.wrapping_add(self.failed.into())
    }

    /// Makes the next attempt of the same run after this outcome, unless it was tried often enough.
    pub(super) fn again(mut self, outcome: &Outcome) -> Option<Self> {
        self.attempt += 1;
        self.failed += u32::from(outcome.error.is_some());
        (self.attempt <= ATTEMPTS).then_some(self)
    }

    /// Makes the records of an outcome, one for each campaign that wants the run.
    pub(super) fn records(&self, campaigns: &[Campaign], outcome: &Outcome) -> Vec<Record> {
        let record =
            |run: &RunOfCampaign| run.record(campaigns, self.attempt, self.seed(), outcome);
        self.wanted_by.iter().map(record).collect()
    }
}

impl RunOfCampaign {
    fn record(&self, campaigns: &[Campaign], attempt: u32, seed: u64, outcome: &Outcome) -> Record {
        let campaign = &campaigns[self.campaign];
        let combination = &campaign.cells[self.planned.cell];
        Record {
            campaign: campaign.name.clone(),
            levels: combination.levels.clone(),
            repetition: self.planned.repetition,
            attempt,
            seed,
            cell: combination.cell.clone(),
            outcome: outcome.clone(),
        }
    }
}

/// The runs and records that a set lacks.
#[derive(Debug)]
pub(crate) struct MissingRuns {
    /// Runs to be done. Campaigns with the longest cells come first, so that short cells fill the gaps at the
    /// end.
    pub(crate) runs: VecDeque<QueuedRun>,
    /// Records that one campaign has, and another lacks.
    pub(crate) copied_records: Vec<Record>,
    /// The number of runs of these campaigns.
    pub(crate) total: usize,
}

impl MissingRuns {
    /// Returns the runs and records that these campaigns lack, given these records.
    pub(crate) fn of(campaigns: &[Campaign], records: &[Record]) -> Self {
        let mut finished = HashMap::new();
        let mut attempts: HashMap<_, (u32, u32)> = HashMap::new();
        for record in records {
            let key = (&record.campaign, &record.levels, record.repetition);
            let (tried, failed) = attempts.entry(key).or_default();
            *tried = record.attempt.max(*tried);
            *failed += u32::from(record.outcome.error.is_some());
            if !record.outcome.is_disturbed() || record.attempt >= ATTEMPTS {
                finished.insert(key, record);
            }
        }
        let mut runs: Vec<(QueuedRun, Option<&Record>)> = Vec::new();
        // Records that other campaigns lack.
        let mut without = Vec::new();
        let mut known = HashMap::new();
        let expected: Vec<Vec<_>> = campaigns.iter().map(plan::durations).collect();
        for wanted in all_runs(campaigns, &expected) {
            let RunOfCampaign { campaign, planned } = wanted;
            let expected = expected[campaign][planned.cell];
            let campaign = &campaigns[campaign];
            let identity = plan::identity(campaign, planned);
            let Combination { levels, cell } = &campaign.cells[planned.cell];
            let key = (&campaign.name, levels, planned.repetition);
            let number = *known.entry(identity).or_insert_with(|| {
                let run = QueuedRun {
                    wanted_by: Vec::new(),
                    attempt: 1,
                    failed: 0,
                    identity,
                    seed: plan::seed(campaign, planned),
                    expected,
                    load: plan::load(cell, expected),
                };
                runs.push((run, None));
                runs.len() - 1
            });
            let (run, found) = &mut runs[number];
            if let Some(record) = finished.get(&key) {
                *found = Some(record);
                continue;
            }
            without.push((number, wanted));
            run.wanted_by.push(wanted);
            let (tried, failed) = attempts.get(&key).copied().unwrap_or_default();
            run.attempt = run.attempt.max(tried + 1);
            run.failed = run.failed.max(failed);
        }
        let copy = |(number, wanted): (usize, RunOfCampaign)| {
            let found: &Record = runs[number].1?;
            Some(wanted.record(campaigns, found.attempt, found.seed, &found.outcome))
        };
        let copied_records = without.into_iter().filter_map(copy).collect();
        let total = runs.len();
        let runs = runs.into_iter().filter(|(_, found)| found.is_none());
        Self {
            runs: runs.map(|(run, _)| run).collect(),
            copied_records,
            total,
        }
    }
}

/// Plans all runs of all campaigns, in the order in which they are begun.
fn all_runs(campaigns: &[Campaign], expected: &[Vec<Duration>]) -> Vec<RunOfCampaign> {
    let mut order: Vec<_> = (0..campaigns.len()).collect();
    order.sort_by_key(|number| Reverse(expected[*number].iter().max()));
    let runs = order.into_iter().flat_map(|campaign| {
        let planned_runs = plan::planned_runs(&campaigns[campaign]).into_iter();
        planned_runs.map(move |planned| RunOfCampaign { campaign, planned })
    });
    runs.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use mq_measure::Warning;

    use super::*;
    use crate::campaign::file::Extent;

    /// Makes two campaigns: `mean` and `jitter` have two cells in common; `mean` has two more.
    fn campaigns() -> Vec<Campaign> {
        let campaign = |name: &str, metric: &str, loss: &str| {
            let text = format!(
                r#"
                title = ""
                source = ""
                repetitions = 3
                work.link = "s22/wifi"
                factors.loss = {loss}
                factors.transport = ["tls", "quic"]
                plot = {{ kind = "lines", metric = "{metric}", x = "loss", series = "transport" }}
                "#
            );
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(format!("{name}.toml"));
            std::fs::write(&file, text).unwrap();
            Campaign::load(&file, Extent::Full).unwrap()
        };
        vec![
            campaign("mean", "latency_mean", r#"["0%", "1%"]"#),
            campaign("jitter", "latency_rsd", r#"["1%"]"#),
        ]
    }

    #[test]
    fn a_run_that_two_campaigns_want_is_done_once_and_recorded_for_both() {
        let campaigns = campaigns();
        let missing = MissingRuns::of(&campaigns, &[]);
        assert_eq!((missing.total, missing.runs.len()), (12, 12));
        assert_eq!(missing.runs.iter().filter(|run| run.is_shared()).count(), 6);
        let records: Vec<_> = missing
            .runs
            .iter()
            .flat_map(|run| run.records(&campaigns, &Outcome::default()))
            .collect();
        assert_eq!(records.len(), 12 + 6);
        for record in records.iter().filter(|record| record.campaign == "jitter") {
            assert_eq!(record.levels["loss"], "1%");
            let twin = |other: &&Record| {
                other.campaign == "mean"
                    && (other.seed, &other.cell, &other.levels)
                        == (record.seed, &record.cell, &record.levels)
            };
            assert_eq!(records.iter().filter(twin).count(), 1);
        }
        let done = MissingRuns::of(&campaigns, &records);
        assert!(done.runs.is_empty() && done.copied_records.is_empty());
        assert_eq!(done.total, 12);
    }

    #[test]
    fn a_record_that_one_of_two_campaigns_has_is_handed_on() {
        let campaigns = campaigns();
        let missing = MissingRuns::of(&campaigns, &[]);
        let shared = missing.runs.iter().find(|run| run.is_shared()).unwrap();
        let both = shared.records(&campaigns, &Outcome::default());
        for one in 0..2 {
            let rest = MissingRuns::of(&campaigns, &both[one..=one]);
            assert_eq!(rest.copied_records, both[1 - one..2 - one]);
            assert_eq!(rest.runs.len(), 11);
        }
    }

    /// Tries a run that has this outcome each time, and returns the seeds of its attempts.
    fn seeds_of_attempts(outcome: &Outcome) -> Vec<u64> {
        let campaigns = campaigns();
        let missing = MissingRuns::of(&campaigns, &[]);
        let mut run = missing.runs[0].clone();
        let (mut seeds, mut names) = (vec![run.seed()], HashSet::new());
        let mut records = Vec::new();
        loop {
            assert!(names.insert(run.name(&campaigns)));
            records.extend(run.records(&campaigns, outcome));
            let next = MissingRuns::of(&campaigns, &records).runs;
            let Some(again) = run.clone().again(outcome) else {
                assert_eq!(next.len(), missing.runs.len() - 1);
                return seeds;
            };
            assert!(next.contains(&again), "{again:?}");
            seeds.push(again.seed());
            run = again;
        }
    }

    #[test]
    fn a_run_that_failed_is_tried_again_with_another_seed_and_not_without_end() {
        let failed = Outcome {
            error: Some("failed".to_owned()),
            ..Outcome::default()
        };
        let seeds = seeds_of_attempts(&failed);
        assert_eq!(seeds.len(), 3);
        assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2] && seeds[2] != seeds[0]);
    }

    #[test]
    fn a_run_that_was_disturbed_is_tried_again_with_its_seed() {
        let disturbed = Outcome {
            warnings: vec![Warning::EnergyGaps {
                missing_ns: 1,
                window_ns: 2,
            }],
            ..Outcome::default()
        };
        let seeds = seeds_of_attempts(&disturbed);
        assert_eq!(seeds.len(), 3);
        assert!(seeds[0] == seeds[1] && seeds[1] == seeds[2]);
    }
}
