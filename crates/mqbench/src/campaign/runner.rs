//! Runs what a result set still lacks, many cells side by side.
//!
//! ```text
//!   queue --(room in the budget)--> process `mqbench cell` --> record on the disk
//!     ^                                                            |
//!     +------------ disturbed, and tried less than three times ----+
//! ```
//!
//! Each cell has a process and a network of its own. The papers' traffic is light, so that dozens run
//! at once; how many messages a second they may have together is learned: a run that the machine
//! disturbed (packets or messages sent late) lowers the budget and is repeated, a good one raises it.
//! None is started while the processors are nearly used up.

use std::{
    collections::{HashSet, VecDeque},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tokio::{io::AsyncWriteExt as _, process::Command, task::JoinSet};

use super::{
    cell::Cell,
    machine::Machine,
    plan::{self, Turn},
    record::{Outcome, Record},
    store::ResultSet,
};
use crate::cmd::cell::Order;

/// How often a run is tried until it is kept, disturbed or not.
const ATTEMPTS: u32 = 3;

/// Processes at once, whatever they do: each has a broker and some fifty threads.
const PROCESSES: usize = 48;

/// Between the starts of two processes: a beginning is the most that a light cell costs.
const STAGGER: Duration = Duration::from_millis(80);

/// A run that is to be done.
#[derive(Clone, Copy, Debug)]
struct Job {
    /// Which of the set's campaigns.
    campaign: usize,
    turn: Turn,
    attempt: u32,
}

/// What is told of a campaign that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) done: usize,
    pub(crate) all: usize,
    pub(crate) running: usize,
    /// Runs that were disturbed, and repeated.
    pub(crate) disturbed: usize,
    pub(crate) left: Duration,
}

/// Messages a second that all cells have together.
#[derive(Debug)]
struct Budget {
    most: f64,
    used: f64,
}

impl Budget {
    /// About what keeps two cores half busy; halved or raised from there.
    const FIRST: f64 = 120.0;
    const RANGE: (f64, f64) = (5.0, 600.0);

    fn new() -> Self {
        Self {
            most: Self::FIRST,
            used: 0.0,
        }
    }

    fn has_room(&self, load: f64) -> bool {
        // One may always run.
        self.used == 0.0 || self.used + load <= self.most
    }

    fn take(&mut self, load: f64) {
        self.used += load;
    }

    fn give_back(&mut self, load: f64, disturbed: bool) {
        // Sums of fractions leave crumbs.
        self.used = if (self.used - load).abs() < 1e-6 {
            0.0
        } else {
            self.used - load
        };
        let factor = if disturbed { 0.8 } else { 1.02 };
        self.most = (self.most * factor).clamp(Self::RANGE.0, Self::RANGE.1);
    }
}

/// Messages a second of a cell, counting what it costs to begin.
fn load(cell: &Cell) -> f64 {
    const BEGINNING: f64 = 10.0;
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let messages = cell.messages as f64 * f64::from(cell.stations);
    (messages + BEGINNING) / plan::expected(cell).as_secs_f64()
}

/// Runs what is missing in the set, and tells how far it is.
///
/// # Errors
/// If a result cannot be written, or a cell's process cannot be started.
pub(crate) async fn run(set: &mut ResultSet, mut tell: impl FnMut(Progress)) -> anyhow::Result<()> {
    let turns = set
        .campaigns
        .iter()
        .map(|campaign| plan::turns(campaign).len());
    let mut runner = Runner {
        all: turns.sum(),
        queue: missing(set),
        budget: Budget::new(),
        machine: Machine::new(),
        running: JoinSet::new(),
        disturbed: 0,
        pace: Pace::new(),
    };
    while !runner.queue.is_empty() || !runner.running.is_empty() {
        tell(runner.progress(set));
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

/// A process that has ended: its job, load and seed, and what it found.
type Ended = (Job, f64, u64, anyhow::Result<Outcome>);

struct Runner {
    all: usize,
    queue: VecDeque<Job>,
    budget: Budget,
    machine: Machine,
    running: JoinSet<Ended>,
    disturbed: usize,
    pace: Pace,
}

impl Runner {
    fn progress(&self, set: &ResultSet) -> Progress {
        let waiting = self
            .queue
            .iter()
            .map(|job| plan::expected(cell_of(set, *job)));
        Progress {
            done: self.all - self.queue.len() - self.running.len(),
            all: self.all,
            running: self.running.len(),
            disturbed: self.disturbed,
            left: self.pace.left(waiting.sum(), self.running.len()),
        }
    }

    /// Starts the first job for which there is room.
    fn begin(&mut self, set: &ResultSet) {
        let idle = self.running.is_empty();
        if !idle && (self.running.len() >= PROCESSES || self.machine.is_busy()) {
            return;
        }
        let has_room = |job: &Job| self.budget.has_room(load(cell_of(set, *job)));
        let place = self.queue.iter().position(has_room);
        let Some(job) = place.and_then(|place| self.queue.remove(place)) else {
            return;
        };
        let cell = cell_of(set, job).clone();
        let load = load(&cell);
        let seed = plan::seed(&set.campaigns[job.campaign], job.turn);
        // A repetition has other chances, else it would fail as before.
        let seed = seed.wrapping_add(u64::from(job.attempt - 1));
        self.budget.take(load);
        self.running.spawn(async move {
            let outcome = run_process(&Order { cell, seed }).await;
            (job, load, seed, outcome)
        });
    }

    fn finish(&mut self, set: &mut ResultSet, ended: Ended) -> anyhow::Result<()> {
        let (job, load, seed, outcome) = ended;
        let outcome = outcome?;
        let again = outcome.is_disturbed();
        self.budget.give_back(load, again);
        self.pace.done(plan::expected(cell_of(set, job)));
        let campaign = &set.campaigns[job.campaign];
        let combination = &campaign.cells[job.turn.cell];
        let record = Record {
            campaign: campaign.name.clone(),
            levels: combination.levels.clone(),
            repetition: job.turn.repetition,
            attempt: job.attempt,
            seed,
            cell: combination.cell.clone(),
            outcome,
        };
        set.add(record)?;
        if again && job.attempt < ATTEMPTS {
            self.disturbed += 1;
            self.queue.push_back(Job {
                attempt: job.attempt + 1,
                ..job
            });
        }
        Ok(())
    }
}

fn cell_of(set: &ResultSet, job: Job) -> &Cell {
    &set.campaigns[job.campaign].cells[job.turn.cell].cell
}

/// What the set has no final record of.
fn missing(set: &ResultSet) -> VecDeque<Job> {
    let mut finished = HashSet::new();
    let mut attempts = std::collections::HashMap::new();
    for record in &set.records {
        let key = (&record.campaign, &record.levels, record.repetition);
        let tried: &mut u32 = attempts.entry(key).or_default();
        *tried = record.attempt.max(*tried);
        if !record.outcome.is_disturbed() || record.attempt >= ATTEMPTS {
            finished.insert(key);
        }
    }
    let mut queue = VecDeque::new();
    for (number, campaign) in set.campaigns.iter().enumerate() {
        for turn in plan::turns(campaign) {
            let key = (
                &campaign.name,
                &campaign.cells[turn.cell].levels,
                turn.repetition,
            );
            if !finished.contains(&key) {
                queue.push_back(Job {
                    campaign: number,
                    turn,
                    attempt: attempts.get(&key).map_or(1, |tried| tried + 1),
                });
            }
        }
    }
    queue
}

/// Runs one cell in a process of its own, which ends with this future.
async fn run_process(order: &Order) -> anyhow::Result<Outcome> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(&program)
        .arg("cell")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let mut order = serde_json::to_vec(order).context("cannot write JSON")?;
    order.push(b'\n');
    // Open until the answer is here: when this program is gone, the cell ends too.
    let mut input = child.stdin.take().context("the cell has no input")?;
    let told = input.write_all(&order).await;
    let output = child
        .wait_with_output()
        .await
        .context("cannot wait for a cell")?;
    drop(input);
    told.context("the cell takes no order")?;
    if output.status.success() {
        return serde_json::from_slice(&output.stdout).context("a cell's answer is no outcome");
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches("mqbench: ");
    if said.contains("namespaces") {
        // It would be the same for all others.
        bail!("{said}");
    }
    Ok(Outcome {
        error: Some(said.to_owned()),
        ..Outcome::default()
    })
}

/// How fast expected time goes by: that of cells that run side by side.
struct Pace {
    began: Instant,
    expected: Duration,
}

impl Pace {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            expected: Duration::ZERO,
        }
    }

    fn done(&mut self, expected: Duration) {
        self.expected += expected;
    }

    /// How long the rest takes, at the speed so far; at that of what runs now before there is any.
    fn left(&self, rest: Duration, running: usize) -> Duration {
        let speed = self.expected.as_secs_f64() / self.began.elapsed().as_secs_f64().max(0.001);
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

    #[test]
    fn the_budget_shrinks_when_runs_are_disturbed_and_grows_when_not() {
        let mut budget = Budget::new();
        assert!(budget.has_room(1e9), "one may always run");
        budget.take(100.0);
        assert!(budget.has_room(20.0) && !budget.has_room(21.0));
        budget.give_back(100.0, true);
        assert!((budget.most - 96.0).abs() < 1e-9);
        for _ in 0..1000 {
            budget.take(0.1);
            budget.give_back(0.1, true);
        }
        assert!((budget.most - 5.0).abs() < 1e-9 && budget.has_room(1e9));
        for _ in 0..1000 {
            budget.take(0.1);
            budget.give_back(0.1, false);
        }
        assert!((budget.most - 600.0).abs() < 1e-9);
    }
}
