//! What a seed does to a cluster, and when.

use std::time::Duration;

/// One process of three.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Process {
    Node(usize),
    Nats(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// SIGKILL.
    Kill(Process),
    Start(Process),
    /// SIGSTOP.
    Stop(Process),
    /// SIGCONT.
    Continue(Process),
    /// A client goes to another node, or tries the first of its list again.
    Move(usize),
}

/// The steps of a campaign of this length, by time. All processes run again at its end.
///
/// No more than one NATS server is harmed at a time, and no more than two nodes are.
pub(crate) fn plan(seed: u64, length: Duration, clients: usize) -> Vec<(Duration, Step)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut steps = Vec::new();
    // When each process is well again.
    let mut nodes = [Duration::ZERO; 3];
    let mut nats = Duration::ZERO;
    let mut at = Duration::from_secs(2);
    while at < length {
        let which = random.usize(..3);
        let kill = random.bool();
        let harm = Duration::from_millis(random.u64(if kill { 200..6_000 } else { 1_000..8_000 }));
        let harmed = nodes.iter().filter(|well| **well > at).count();
        let (process, may) = match random.u8(..10) {
            0..=2 => (Process::Node(which), nodes[which] <= at && harmed < 2),
            3 => (Process::Nats(which), nats <= at),
            _ => {
                steps.push((at, Step::Move(random.usize(..clients))));
                (Process::Node(which), false)
            }
        };
        if may {
            let well = at + harm;
            let (begin, end) = if kill {
                (Step::Kill(process), Step::Start(process))
            } else {
                (Step::Stop(process), Step::Continue(process))
            };
            steps.extend([(at, begin), (well, end)]);
            match process {
                // It has to be heard of again.
                Process::Node(_) => nodes[which] = well + Duration::from_secs(1),
                // It has to catch up.
                Process::Nats(_) => nats = well + Duration::from_secs(3),
            }
        }
        at += Duration::from_millis(random.u64(50..900));
    }
    steps.sort_by_key(|(at, _)| *at);
    steps
}

#[test]
fn a_plan_harms_one_nats_server_and_two_nodes_at_most_and_ends_with_all_well() {
    for seed in 0..100 {
        let mut harmed = Vec::new();
        for (at, step) in plan(seed, Duration::from_mins(2), 14) {
            match step {
                Step::Kill(process) | Step::Stop(process) => harmed.push(process),
                Step::Start(process) | Step::Continue(process) => {
                    let place = harmed.iter().position(|one| *one == process).unwrap();
                    harmed.remove(place);
                }
                Step::Move(_) => {}
            }
            let nodes = harmed.iter().filter(|one| matches!(one, Process::Node(_)));
            let nodes = nodes.count();
            let servers = harmed.len() - nodes;
            assert!(
                servers < 2 && nodes < 3,
                "seed {seed} at {at:?}: {harmed:?}"
            );
        }
        assert!(harmed.is_empty(), "seed {seed}: {harmed:?}");
    }
}
