//! Runs the cells that a result set lacks, as many side by side as their backend bears.
//!
//! ```text
//!   queue --(room in the budget)--> Backend::run --> record on the disk
//!     ^                                                |
//!     +---- disturbed, and tried less than three times-+
//! ```
//!
//! On this machine each cell has a process and a network of its own. The papers' traffic is light, so dozens run
//! at once. The runner learns how much of the processors they may use together, the budget. It lowers the budget
//! when the machine has disturbed more than a few of the last runs (packets or messages sent late), else it
//! raises it. The budget stays as it is if the host of a virtual machine withheld processors meanwhile: fewer
//! runs at once would be disturbed just as often. A disturbed run is repeated. No run is started while the
//! processors are nearly all in use.
//!
//! With a meter, and on real machines, runs go one at a time.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::task::JoinSet;

use mq_measure::convert::float_len;

use super::{
    backend::Backend,
    cpu_monitor::{self, CpuMonitor},
    queue::{MissingRuns, QueuedRun},
    run_request::RunRequest,
};
use crate::{
    campaign::{record::Outcome, store::ResultSet},
    meter::JournalFolder,
};

/// The pause between the starts of two processes: the start is most of a light cell's work.
const STAGGER: Duration = Duration::from_millis(80);

/// The progress of a campaign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CampaignProgress {
    pub(crate) done: usize,
    pub(crate) all: usize,
    pub(crate) running: usize,
    /// Number of runs that were disturbed, and repeated.
    pub(crate) disturbed: usize,
    pub(crate) left: Duration,
}

/// The processors that all cells may use together.
///
/// The budget changes by windows of as many runs as there are at once. One moment of trouble disturbs many runs,
/// and chance disturbs some however few there are.
#[derive(Debug)]
struct Budget {
    most: f64,
    range: (f64, f64),
    used: f64,
    /// Number of runs that ended since the budget was changed; `disturbed` is the number of disturbed ones among them.
    ended: usize,
    disturbed: usize,
}

impl Budget {
    /// The first budget for each processor.
    const FIRST: f64 = 0.6;
    /// The least and the greatest budget for each processor. Beyond the greatest, messages wait for one another,
    /// whatever they cost.
    const RANGE: (f64, f64) = (0.01, 0.8);
    /// Least number of runs that have to end before the budget changes.
    const WINDOW: usize = 8;
    /// Number of runs of which less than one, on average, may be disturbed if the budget is to grow.
    const WELL: usize = 20;

    fn new(processors: usize) -> Self {
        let processors = float_len(processors);
        let (least, most) = Self::RANGE;
        Self {
            most: processors * Self::FIRST,
            range: (processors * least, processors * most),
            used: 0.0,
            ended: 0,
            disturbed: 0,
        }
    }

    fn has_room(&self, load: f64) -> bool {
        // One run is always allowed.
        self.used == 0.0 || self.used + load <= self.most
    }

    fn reserve(&mut self, load: f64) {
        self.used += load;
    }

    /// Notes the end of a run with this load, of `running` runs. `had_time_stolen` says whether the host of a virtual
    /// machine caused the trouble of a window.
    fn release(
        &mut self,
        load: f64,
        disturbed: bool,
        running: usize,
        had_time_stolen: impl FnOnce() -> bool,
    ) {
        // Sums of fractions leave rounding errors.
        self.used = if (self.used - load).abs() < 1e-6 {
            0.0
        } else {
            self.used - load
        };
        self.ended += 1;
        self.disturbed += usize::from(disturbed);
        if self.ended < running.max(Self::WINDOW) {
            return;
        }
        let well = self.disturbed * Self::WELL < self.ended;
        let factor = match (had_time_stolen(), well) {
            (_, true) => 1.1,
            (true, false) => 1.0,
            (false, false) => 0.8,
        };
        self.most = (self.most * factor).clamp(self.range.0, self.range.1);
        (self.ended, self.disturbed) = (0, 0);
    }
}

/// Returns the time that these runs take side by side if the machine disturbs none of them.
pub(crate) fn best_case(runs: &VecDeque<QueuedRun>) -> Duration {
    let (_, most) = Budget::new(cpu_monitor::processors()).range;
    // A run with more load than the whole budget runs alone, and takes no longer for it.
    let request: f64 = runs
        .iter()
        .map(|run| run.load().min(most) * run.expected().as_secs_f64())
        .sum();
    let longest = runs
        .iter()
        .map(QueuedRun::expected)
        .max()
        .unwrap_or_default();
    longest.max(Duration::from_secs_f64(request / most))
}

/// Runs the cells that the set lacks, and reports progress to `on_progress`.
///
/// # Errors
/// If the backend cannot run them, or a result cannot be written. A failure within a run is part of its outcome.
pub(crate) async fn run(
    set: &mut ResultSet,
    backend: Backend,
    mut on_progress: impl FnMut(CampaignProgress),
) -> anyhow::Result<()> {
    let missing = MissingRuns::of(&set.campaigns, &set.records);
    for record in missing.copied_records {
        set.add(record)?;
    }
    let cells = missing.runs.iter().map(|run| run.cell(&set.campaigns));
    backend.prepare(cells).await?;
    let mut runner = Runner {
        total: missing.total,
        queue: missing.runs,
        budget: Budget::new(cpu_monitor::processors()),
        max_parallel: backend.max_parallel(),
        backend: Arc::new(backend),
        journals: JournalFolder::of(set.directory()),
        cpu_monitor: CpuMonitor::new(),
        running: JoinSet::new(),
        disturbed: 0,
        estimate: TimeEstimate::new(),
    };
    while !runner.queue.is_empty() || !runner.running.is_empty() {
        on_progress(runner.progress());
        tokio::select! {
            Some(ended) = runner.running.join_next() => {
                let ended = ended.context("a task of the runner failed")?;
                runner.finish(set, ended)?;
            }
            () = tokio::time::sleep(STAGGER), if !runner.queue.is_empty() => runner.begin(set),
        }
    }
    Ok(())
}

/// A run that has ended: the run, its share of the budget, and its outcome.
type EndedRun = (QueuedRun, f64, anyhow::Result<Outcome>);

struct Runner {
    total: usize,
    queue: VecDeque<QueuedRun>,
    budget: Budget,
    /// Greatest number of runs at once, whatever their load.
    max_parallel: usize,
    backend: Arc<Backend>,
    journals: JournalFolder,
    cpu_monitor: CpuMonitor,
    running: JoinSet<EndedRun>,
    disturbed: usize,
    estimate: TimeEstimate,
}

impl Runner {
    fn progress(&self) -> CampaignProgress {
        let waiting: Duration = self.queue.iter().map(QueuedRun::expected).sum();
        let rest = waiting + self.estimate.under_way();
        CampaignProgress {
            done: self.total - self.queue.len() - self.running.len(),
            all: self.total,
            running: self.running.len(),
            disturbed: self.disturbed,
            left: self.estimate.left(rest, self.running.len()),
        }
    }

    /// Starts the first run for which there is room.
    fn begin(&mut self, set: &ResultSet) {
        let idle = self.running.is_empty();
        if !idle && (self.running.len() >= self.max_parallel || self.cpu_monitor.is_busy()) {
            return;
        }
        let has_room = |run: &QueuedRun| self.budget.has_room(run.load());
        let index = self.queue.iter().position(has_room);
        let Some(run) = index.and_then(|index| self.queue.remove(index)) else {
            return;
        };
        let request = RunRequest {
            cell: run.cell(&set.campaigns).clone(),
            seed: run.seed(),
            folder: set.directory().to_owned(),
            name: run.name(&set.campaigns),
            expected: run.expected(),
            journals: self.journals.clone(),
        };
        let (load, backend) = (run.load(), Arc::clone(&self.backend));
        self.budget.reserve(load);
        self.estimate.begin(request.expected);
        self.running.spawn(async move {
            let outcome = backend.run(&request).await;
            (run, load, outcome)
        });
    }

    fn finish(&mut self, set: &mut ResultSet, ended: EndedRun) -> anyhow::Result<()> {
        let (run, load, outcome) = ended;
        let outcome = outcome?;
        let disturbed = outcome.is_disturbed();
        let running = self.running.len() + 1;
        let cpu_monitor = &mut self.cpu_monitor;
        self.budget
            .release(load, disturbed, running, || cpu_monitor.had_time_stolen());
        self.estimate.done(run.expected());
        for record in run.records(&set.campaigns, &outcome) {
            set.add(record)?;
        }
        if disturbed && let Some(again) = run.again(&outcome) {
            self.disturbed += 1;
            self.queue.push_back(again);
        }
        Ok(())
    }
}

/// The speed at which expected time passes: the sum over cells that run side by side.
struct TimeEstimate {
    began: Instant,
    /// Expected time of the runs that have ended.
    expected: Duration,
    /// The start of each run under way, and how long it is expected to take.
    under_way: Vec<(Instant, Duration)>,
}

impl TimeEstimate {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            expected: Duration::ZERO,
            under_way: Vec::new(),
        }
    }

    fn begin(&mut self, expected: Duration) {
        self.under_way.push((Instant::now(), expected));
    }

    fn done(&mut self, expected: Duration) {
        self.expected += expected;
        // The oldest of those that are alike: nothing tells them apart.
        let ended = self.under_way.iter().position(|(_, one)| *one == expected);
        ended.map(|at| self.under_way.remove(at));
    }

    /// Returns the rest of the runs under way, so that the time left counts down while long ones go on.
    fn under_way(&self) -> Duration {
        let left =
            |(began, expected): &(Instant, Duration)| expected.saturating_sub(began.elapsed());
        self.under_way.iter().map(left).sum()
    }

    /// Returns the time that the rest takes at the speed so far; at first, at the speed of the present runs.
    fn left(&self, rest: Duration, running: usize) -> Duration {
        let begun: Duration = self.under_way.iter().map(|(_, expected)| *expected).sum();
        let passed = self.expected + begun.saturating_sub(self.under_way());
        let speed = passed.as_secs_f64() / self.began.elapsed().as_secs_f64().max(0.001);
        let running = u32::try_from(running.max(1)).unwrap_or(1);
        if speed > 0.0 {
            rest.div_f64(speed)
        } else {
            rest / running
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        campaign::{cell::Cell, file::Extent, pattern::Pattern, tests::campaigns},
        lab::plan,
    };

    /// Ends so many runs of a window, of which some are disturbed.
    fn window(budget: &mut Budget, runs: usize, disturbed: usize) {
        for number in 0..runs {
            budget.reserve(0.01);
            budget.release(0.01, number < disturbed, runs, || false);
        }
    }

    #[test]
    fn the_time_left_counts_down_while_long_runs_go_on() {
        let second = Duration::from_secs(1);
        let began = Instant::now().checked_sub(40 * second).unwrap();
        let mut estimate = TimeEstimate {
            began,
            expected: Duration::ZERO,
            under_way: vec![(began, 100 * second); 2],
        };
        // Two at a time: 60 s of both, and half of a minute that waits.
        let near = |left: Duration, wanted: u32| left.abs_diff(wanted * second) < 5 * second;
        let rest = 60 * second + estimate.under_way();
        assert!(
            near(estimate.left(rest, 2), 90),
            "{:?}",
            estimate.left(rest, 2)
        );
        estimate.done(100 * second);
        assert_eq!(estimate.under_way.len(), 1);
    }

    #[test]
    fn the_budget_shrinks_when_runs_are_disturbed_and_grows_when_not() {
        let mut budget = Budget::new(2);
        assert!(budget.has_room(1e9), "one may always run");
        budget.reserve(budget.most - 0.1);
        assert!(budget.has_room(0.1) && !budget.has_room(0.11));
        budget.release(budget.used, true, 1, || false);
        for (disturbed, end) in [(8, 0.02), (0, 1.6)] {
            for _ in 0..100 {
                window(&mut budget, 8, disturbed);
            }
            assert!((budget.most - end).abs() < 1e-9 && budget.has_room(1e9));
        }
    }

    #[test]
    fn a_storm_runs_alone() {
        let storm = Cell {
            pattern: Pattern::Storm,
            ..Cell::default()
        };
        let load = plan::load(&storm, plan::expected(&storm));
        let mut budget = Budget::new(cpu_monitor::processors());
        assert!(budget.has_room(load));
        budget.reserve(load);
        assert!(!budget.has_room(load) && !budget.has_room(1e-3));
        budget.release(load, false, 1, || false);
        budget.reserve(1e-3);
        assert!(!budget.has_room(load));
    }

    #[test]
    fn runs_that_take_all_processors_last_as_long_as_one_after_the_other() {
        let storm = campaigns(Extent::Full).remove("storm").unwrap();
        let runs = MissingRuns::of(&[storm], &[]).runs;
        let together: Duration = runs.iter().map(QueuedRun::expected).sum();
        let second = Duration::from_secs(1);
        assert!(together > 60 * second && best_case(&runs).abs_diff(together) < second);
    }

    #[test]
    fn one_moment_of_trouble_lowers_the_budget_once_and_a_chance_not_at_all() {
        let mut budget = Budget::new(2);
        for (disturbed, most) in [(40, 0.96), (1, 1.056), (2, 0.8448)] {
            window(&mut budget, 40, disturbed);
            assert!((budget.most - most).abs() < 1e-9, "{}", budget.most);
        }
    }

    #[test]
    fn trouble_from_outside_does_not_lower_the_budget() {
        let mut budget = Budget::new(2);
        for _ in 0..Budget::WINDOW {
            budget.reserve(0.01);
            budget.release(0.01, true, 1, || true);
        }
        assert!((budget.most - 1.2).abs() < 1e-9, "{}", budget.most);
    }
}
