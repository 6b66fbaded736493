//! Limits of a plan, checked step by step.

use std::time::Duration;

use crate::plan::{CLOCK_OFF, Condition, LINKS, PAIRS, Part, Process, Step, end_with, plan};

/// State of a plan, as far as its limits concern it.
#[derive(Default)]
struct Done {
    harmed: Vec<Process>,
    cut: [bool; LINKS],
    /// All servers were killed, and one of them at least is down still.
    is_outage: bool,
    /// Nothing was done to a server since all of them stored the same.
    is_in_step: bool,
    killed_in_step: Option<Process>,
    /// The server that has damaged storage, and may lack entries.
    damaged: Option<usize>,
    /// The server that was replaced, and may lack entries.
    replaced: Option<usize>,
    is_full: bool,
    bad: [bool; LINKS],
    damages: usize,
    replacements: usize,
    outages: usize,
    outages_of_all: usize,
}

impl Done {
    fn note(&mut self, step: Step, part: Part) {
        let is_of_servers = match step {
            Step::Link(link, Condition::Cut { .. }) => link < PAIRS.len(),
            Step::Kill(Process::Nats(_))
            | Step::Stop(Process::Nats(_))
            | Step::Outage { .. }
            | Step::Slow(_)
            | Step::Full => true,
            _ => false,
        };
        assert!(!is_of_servers || self.damaged.is_none() && !self.is_full);
        let is_cut = matches!(step, Step::Link(..));
        assert!(!is_of_servers || self.replaced.is_none() || is_cut);
        let was_in_step = self.is_in_step;
        self.is_in_step &= !is_of_servers;
        match step {
            Step::Kill(process) | Step::Stop(process) => {
                self.harmed.push(process);
                self.killed_in_step = was_in_step.then_some(process);
            }
            Step::Slow(server) => self.harmed.push(Process::Nats(server)),
            Step::Start(process) | Step::Continue(process) => self.heal(process),
            Step::Steady(server) => self.heal(Process::Nats(server)),
            Step::Link(link, condition) => {
                assert_eq!(part, Part::Links);
                self.cut[link] = matches!(condition, Condition::Cut { .. });
                self.bad[link] = condition != Condition::Well;
            }
            Step::Clock(process, off) => {
                let is_nats = matches!(process, Process::Nats(_));
                assert_eq!(is_nats, part == Part::Clocks);
                assert!(off.abs() <= CLOCK_OFF);
            }
            Step::Outage { nodes } => {
                let all = |of: fn(usize) -> Process| (0..3).map(of);
                assert_eq!(self.servers(), 0);
                self.harmed.extend(all(Process::Nats));
                if nodes {
                    assert_eq!(self.harmed.len(), 3);
                    self.harmed.extend(all(Process::Node));
                }
                self.is_outage = true;
                self.outages += 1;
                self.outages_of_all += usize::from(nodes);
            }
            Step::Await => {
                assert!(self.servers() == 0 && !self.bad[..PAIRS.len()].contains(&true));
                (self.is_in_step, self.damaged, self.replaced) = (true, None, None);
            }
            Step::Damage(server, _) => {
                let process = Process::Nats(server);
                assert!(self.killed_in_step == Some(process) && self.harmed.contains(&process));
                self.damaged = Some(server);
                self.damages += 1;
            }
            Step::Replace(server) => {
                let process = Process::Nats(server);
                assert!(self.killed_in_step == Some(process) && self.harmed.contains(&process));
                self.replaced = Some(server);
                self.replacements += 1;
            }
            Step::TryRemove(server) | Step::Remove(server) => {
                assert_eq!((self.replaced, self.servers()), (Some(server), 0));
            }
            Step::Full => self.is_full = true,
            Step::Room => {
                let reached = self.cut[PAIRS.len()..].contains(&false);
                assert!(reached, "nobody could make room");
                self.is_full = false;
            }
            Step::Move(_) => {}
        }
    }

    fn heal(&mut self, process: Process) {
        let place = self.harmed.iter().position(|one| *one == process).unwrap();
        self.harmed.remove(place);
        self.is_outage &= self.harmed.len() > 1;
    }

    fn servers(&self) -> usize {
        let servers = self.harmed.iter();
        servers
            .filter(|one| matches!(one, Process::Nats(_)))
            .count()
    }

    fn is_within_limits(&self) -> bool {
        let nodes = self.harmed.len() - self.servers();
        // Two servers that reach each other are the majority.
        let mut together = (0..PAIRS.len()).filter(|link| {
            let (a, b) = PAIRS[*link];
            let runs = |server| !self.harmed.contains(&Process::Nats(server));
            !self.cut[*link] && runs(a) && runs(b)
        });
        // The new server has nothing yet, and the others may not reach each other: nothing is acknowledged.
        let is_majority = self.replaced.is_some() || together.next().is_some();
        self.is_outage || is_majority && nodes < 3
    }
}

pub(crate) fn a_plan_harms_one_nats_server_and_two_nodes_or_all_at_once_and_ends_with_all_well() {
    let (mut damages, mut replacements, mut outages, mut outages_of_all) = (0, 0, 0, 0);
    for seed in 0..100 {
        println!("seed {seed}");
        let part = match seed % 4 {
            0 | 1 => Part::Links,
            _ => Part::Clocks,
        };
        let harms_servers = seed % 2 == 0;
        let mut done = Done::default();
        for (at, step) in plan(seed, Duration::from_hours(2), 14, part, harms_servers) {
            done.note(step, part);
            let Done { harmed, cut, .. } = &done;
            assert!(harms_servers || done.servers() == 0);
            assert!(done.is_within_limits(), "at {at:?}: {harmed:?}, {cut:?}");
        }
        assert!(done.harmed.is_empty() && done.damaged.is_none() && !done.is_full);
        assert_eq!(done.cut, [false; LINKS]);
        damages += done.damages;
        replacements += done.replacements;
        outages += done.outages;
        outages_of_all += done.outages_of_all;
    }
    assert!(
        damages > 1_000 && replacements > 500 && outages > 500 && outages_of_all > outages / 5,
        "{damages}, {replacements}, {outages}, {outages_of_all}"
    );
}

pub(crate) fn a_plan_that_ends_early_heals_what_it_has_harmed_and_harms_nothing_more() {
    let mut harmed = 0;
    for seed in 0..100 {
        println!("seed {seed}");
        let whole = plan(seed, Duration::from_mins(2), 14, Part::Links, true);
        let end = fastrand::Rng::with_seed(seed).usize(..whole.len());
        let mut early = whole.clone();
        end_with(&mut early, end);
        assert_eq!(early[..end], whole[..end]);
        for done in end..early.len() {
            let mut again = early.clone();
            end_with(&mut again, done);
            assert_eq!(again, early, "it has ended already");
        }
        let mut done = Done::default();
        for (n, (_, step)) in early.into_iter().enumerate() {
            let before = done.harmed.len();
            done.note(step, Part::Links);
            assert!(n < end || done.harmed.len() <= before, "{step:?}");
            harmed += usize::from(n == end && before > 0);
        }
        assert!(done.harmed.is_empty() && !done.is_full && done.cut == [false; LINKS]);
        assert_eq!(done.bad, [false; LINKS]);
    }
    assert!(harmed > 20, "{harmed}");
}
