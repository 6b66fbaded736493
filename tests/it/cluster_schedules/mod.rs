//! Schedules of faults, drawn from seeds: the code of a cluster's nodes over an engine in memory, in virtual time.
//!
//! A schedule has two or three nodes, publishers, readers, members of a shared subscription, clients with wills, and some
//! dozens of steps, such as a client that goes to another node, a node that is killed, or the storage that is set back to
//! a copy. When all is well again, every rule of [`check`] has to hold. A schedule that breaks one is printed with its
//! seed, shortened to the steps that it takes.
//!
//! A build with `--cfg tokio_unstable` (`just cluster-schedules`) mostly repeats a schedule: tokio chooses at random which of
//! the tasks that wait for one thing runs first, and takes a seed for that only there. Work on other threads, such as a node's
//! new summary of its filters, still ends sooner or later than in another run.

mod check;
mod client;
mod history;
mod run;
mod schedule;

use std::{
    collections::BTreeMap,
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use mq_client::QoS;
use run::run;
use schedule::{FIRST_MEMBER, FIRST_MORTAL, FIRST_READER, Part, Schedule, Step, TOPICS};

/// Runs that shorten a schedule, at most.
const MAX_SHORTENING_RUNS: usize = 300;

/// Real time that a schedule may take, which usually takes some tens of milliseconds.
const MAX_RUN: Duration = Duration::from_mins(5);

/// Schedules that are shown of all that fail.
const MAX_SHOWN: usize = 3;

/// Returns the problems of a schedule's run.
fn problems(schedule: &Schedule) -> Vec<String> {
    run(schedule).problems
}

/// Leaves out steps, as long as the rest breaks a rule as well.
fn shortened(mut schedule: Schedule) -> Schedule {
    let mut left = MAX_SHORTENING_RUNS;
    let mut length = schedule.steps.len() / 2;
    while length > 0 {
        let mut first = 0;
        while first < schedule.steps.len() && left > 0 {
            let mut shorter = schedule.clone();
            let end = (first + length).min(shorter.steps.len());
            shorter.steps.drain(first..end);
            left -= 1;
            if problems(&shorter).is_empty() {
                first = end;
            } else {
                schedule = shorter;
            }
        }
        length /= 2;
    }
    schedule
}

/// Returns the number in an environment variable, if it is set.
fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap())
}

/// Watches the schedules under way, each with its seed, and ends the process if one does not end: its threads wait for each other,
/// so that virtual time stands still.
fn end_if_one_hangs(under_way: &Mutex<BTreeMap<u64, Instant>>, are_more: impl Fn() -> bool) {
    while are_more() || !under_way.lock().unwrap().is_empty() {
        let since = under_way.lock().unwrap().clone();
        for (seed, since) in since {
            if since.elapsed() > MAX_RUN {
                println!("MQ_SEED={seed}: has not ended after {MAX_RUN:?}");
                std::process::exit(1);
            }
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// `MQ_SEED=n` runs one seed and prints what happens, `MQ_SCHEDULES=n` so many, from `MQ_FIRST_SEED` on. With `MQ_SET_BACKS=1`
/// a quarter of them set the storage back, with `MQ_SET_BACKS=entries` a quarter lose entries.
#[test]
fn whatever_happens_to_nodes_and_clients_the_cluster_keeps_its_rules() {
    if let Some(seed) = number("MQ_SEED") {
        show(&Schedule::draw(seed));
        return;
    }
    let count = number("MQ_SCHEDULES").unwrap_or_else(|| mq_testkit::nightly(100, 1_000));
    let first = number("MQ_FIRST_SEED").unwrap_or(0);
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    let under_way = Mutex::new(BTreeMap::new());
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            end_if_one_hangs(&under_way, || next.load(Ordering::Relaxed) < first + count);
        });
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                loop {
                    let mut all_under_way = under_way.lock().unwrap();
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    all_under_way.insert(seed, Instant::now());
                    drop(all_under_way);
                    let schedule = Schedule::draw(seed);
                    let problems = problems(&schedule);
                    under_way.lock().unwrap().remove(&seed);
                    if !problems.is_empty() {
                        println!("MQ_SEED={seed}: {}", problems.join("; "));
                        failed.lock().unwrap().push(schedule);
                    }
                }
            });
        }
    });
    println!(
        "{count} schedules in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let mut failed = failed.into_inner().unwrap();
    failed.sort_by_key(|schedule| schedule.seed);
    let seeds: Vec<_> = failed.iter().map(|schedule| schedule.seed).collect();
    for schedule in failed.iter().take(MAX_SHOWN) {
        let schedule = shortened(schedule.clone());
        println!("{schedule}  {}", problems(&schedule).join("\n  "));
    }
    assert!(seeds.is_empty(), "of {count} schedules fail {seeds:?}");
}

/// Runs a shortened schedule of two nodes, whose steps have pauses in milliseconds before them.
fn check_schedule(seed: u64, logs: u16, steps: &[(u64, Step)]) {
    check_schedule_of(2, seed, logs, steps);
}

fn check_schedule_of(nodes: usize, seed: u64, logs: u16, steps: &[(u64, Step)]) {
    let steps = steps.iter().copied();
    let schedule = Schedule {
        seed,
        nodes,
        is_last_spared: false,
        logs,
        reads_logs_again: false,
        steps: steps
            .map(|(pause, step)| (Duration::from_millis(pause), step))
            .collect(),
    };
    let problems = problems(&schedule);
    assert!(problems.is_empty(), "{schedule}{}", problems.join("\n"));
}

fn publishes(publisher: usize, topic: usize, qos: QoS) -> Step {
    Step::Publish {
        publisher,
        topic,
        qos,
    }
}

/// Sets a log back, which has the first place of a batch again whose second place a record names.
#[test]
fn a_message_is_not_lost_whose_record_names_the_second_place_of_its_batch() {
    let steps = [
        (531, Step::Copy),
        (3, publishes(1, 0, QoS::ExactlyOnce)),
        (20, Step::SetBack(Part::All)),
        (33, publishes(0, 1, QoS::AtLeastOnce)),
        (2, Step::Kill { node: 0 }),
        (600, publishes(1, 1, QoS::AtLeastOnce)),
        (
            94,
            Step::Leave {
                client: FIRST_READER,
            },
        ),
    ];
    check_schedule(148, 1, &steps);
}

/// Moves a publisher to another node while its node keeps its message of QoS 2 until the storage has room.
#[test]
fn a_message_of_qos_2_that_waits_for_room_comes_once_though_its_publisher_moves() {
    let is_stalled = |is_stalled| Step::Stall { log: 0, is_stalled };
    let steps = [
        (102, is_stalled(true)),
        (85, publishes(0, 1, QoS::ExactlyOnce)),
        (1_058, Step::Go { client: 0, node: 1 }),
        (633, Step::Fill { percent: 100 }),
        (3, is_stalled(false)),
        (71, Step::Fill { percent: 100 }),
    ];
    check_schedule(1_523, 2, &steps);
}

/// Has a publisher send a message of QoS 2 again that its node keeps until the storage has room, and kills the node.
#[test]
fn a_message_of_qos_2_that_waits_for_room_is_not_acknowledged_when_it_is_sent_again() {
    let is_cut_off = |is_cut_off| Step::Partition {
        node: 0,
        is_cut_off,
    };
    let steps = [
        (21, Step::Fill { percent: 100 }),
        (8, is_cut_off(true)),
        (51, publishes(0, 0, QoS::ExactlyOnce)),
        (5, Step::Go { client: 0, node: 0 }),
        (742, publishes(0, 1, QoS::AtLeastOnce)),
        (4, Step::Kill { node: 1 }),
        (0, is_cut_off(false)),
        (384, Step::Kill { node: 0 }),
    ];
    check_schedule(16_338, 1, &steps);
}

/// Has a publisher come back to its node while its message of QoS 2 waits for a log that takes nothing, and has no room then; and kills
/// the node.
#[test]
fn a_message_of_qos_2_that_waits_for_a_log_is_not_acknowledged_when_it_is_sent_again() {
    let is_stalled = |is_stalled| Step::Stall { log: 0, is_stalled };
    let steps = [
        (0, is_stalled(true)),
        (3_422, Step::Kill { node: 1 }),
        (2, publishes(0, 0, QoS::ExactlyOnce)),
        (59, Step::Go { client: 0, node: 1 }),
        (
            79,
            Step::Go {
                client: FIRST_MORTAL + 1,
                node: 1,
            },
        ),
        (506, publishes(0, TOPICS - 1, QoS::AtLeastOnce)),
        (31, Step::Fill { percent: 100 }),
        (37, is_stalled(false)),
        (248, Step::Kill { node: 0 }),
    ];
    check_schedule(526_850, 1, &steps);
}

/// Ends a node in order while a message is on its way to a log that has no room any more.
#[test]
fn a_node_that_ends_acknowledges_no_message_that_the_storage_has_refused() {
    let steps = [
        (
            192,
            Step::Faults {
                max_delay_ms: 200,
                errors: 0,
            },
        ),
        (4, publishes(1, 2, QoS::AtLeastOnce)),
        (3, Step::Fill { percent: 100 }),
        (45, Step::End { node: 1 }),
    ];
    check_schedule(19_047, 2, &steps);
}

/// Kills a group member's node, and the other one after the minute in which a stalled log kept the first from being fenced.
/// All nodes begin anew at the last checkpoint then.
#[test]
fn a_group_loses_no_message_whose_member_was_at_a_node_that_ends_for_long() {
    let steps = [
        (
            103,
            Step::Go {
                client: FIRST_MEMBER,
                node: 1,
            },
        ),
        (13, Step::Kill { node: 1 }),
        (28, publishes(0, 0, QoS::ExactlyOnce)),
        (
            80,
            Step::Stall {
                log: 0,
                is_stalled: true,
            },
        ),
        (672, Step::Start { node: 1 }),
        (363, Step::Start { node: 1 }),
        (4, Step::Kill { node: 0 }),
    ];
    check_schedule(12_219, 2, &steps);
}

/// Sets the logs back while two nodes live and one begins, which does not know whose turn it is in the group.
#[test]
fn nodes_choose_the_same_member_after_a_set_back() {
    let steps = [
        (2_488, Step::Copy),
        (4, publishes(0, 0, QoS::ExactlyOnce)),
        (750, publishes(0, 2, QoS::ExactlyOnce)),
        (43, publishes(1, 0, QoS::AtLeastOnce)),
        (16, publishes(1, 0, QoS::AtLeastOnce)),
        (72, publishes(0, 2, QoS::ExactlyOnce)),
        (5_437, Step::Kill { node: 1 }),
        (0, Step::SetBack(Part::Logs)),
    ];
    check_schedule_of(3, 55, 2, &steps);
}

/// Sets the logs back by one entry, at whose place a node that begins appends another one: no number tells the others.
#[test]
fn nodes_that_have_read_other_entries_at_the_same_places_notice_it() {
    let go = |client, node| Step::Go { client, node };
    let steps = [
        (2, go(FIRST_MEMBER, 0)),
        (
            18,
            Step::Vanish {
                client: FIRST_MEMBER,
            },
        ),
        (79, Step::Copy),
        (8_628, Step::Kill { node: 0 }),
        (1, publishes(1, 1, QoS::AtLeastOnce)),
        (1, Step::SetBack(Part::Logs)),
    ];
    check_schedule_of(3, 2_793, 2, &steps);
}

/// Runs a schedule, and prints its history if it fails.
fn show(schedule: &Schedule) {
    println!("{schedule}");
    let mut schedule = schedule.clone();
    if !problems(&schedule).is_empty() && std::env::var_os("MQ_WHOLE").is_none() {
        schedule = shortened(schedule);
    }
    let outcome = run(&schedule);
    if outcome.problems.is_empty() {
        return;
    }
    for (at, event) in &outcome.events {
        println!("{:>8} ms  {event}", Duration::as_millis(at));
    }
    println!("{schedule}");
    panic!("{}", outcome.problems.join("\n"));
}
