//! What a seed does to a cluster, and when.

use std::time::Duration;

/// The machines at both ends of the first links. The near end is the first one.
pub(crate) const PAIRS: [(usize, usize); 3] = [(0, 1), (0, 2), (1, 2)];

/// Links between machines, as in [`PAIRS`], and then one from all clients to each machine.
pub(crate) const LINKS: usize = PAIRS.len() + 3;

/// Clocks are never further apart than twice this. It is below half the time for which sessions are kept.
const CLOCK_OFF: i32 = 8 * 3600;

/// The part of the campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Links fail, and the clocks of nodes jump.
    Links,
    /// The clocks of NATS servers jump, each of which is in a guest.
    Clocks,
}

/// One process of three.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Process {
    Node(usize),
    Nats(usize),
}

/// What a link is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    Well,
    /// Nothing passes in one direction or in both.
    Cut {
        up: bool,
        down: bool,
    },
    Bad {
        /// In percent, each way.
        loss: u8,
        delay: Duration,
    },
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
    Link(usize, Condition),
    /// The clock of a node, or of a NATS server's guest, is off by so many seconds.
    Clock(Process, i32),
    /// A client goes to another node, or tries the first of its list again.
    Move(usize),
}

/// When each thing is well again.
#[derive(Default)]
struct Well {
    nodes: [Duration; 3],
    /// The NATS servers: of those that are killed, stopped or cut off there is one at a time.
    nats: Duration,
    links: [Duration; LINKS],
    /// How long a NATS server takes to be as the others again.
    catches_up: Duration,
}

/// The steps of a campaign of this length, by time. All processes run again at its end, and all links are well.
///
/// No more than one NATS server is harmed at a time, and no more than two nodes are. A link that is bad harms neither.
/// `harms_servers`: whether NATS servers are harmed at all.
pub(crate) fn plan(
    seed: u64,
    length: Duration,
    clients: usize,
    part: Part,
    harms_servers: bool,
) -> Vec<(Duration, Step)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut steps = Vec::new();
    let mut well = Well {
        catches_up: match part {
            Part::Links => Duration::from_secs(3),
            // Its kernel begins before it does.
            Part::Clocks => Duration::from_secs(12),
        },
        ..Well::default()
    };
    if !harms_servers {
        well.nats = Duration::MAX;
    }
    let mut at = Duration::from_secs(2);
    while at < length {
        let kind = random.u8(..16);
        match (part, kind) {
            (_, 0..=2) => harm_process(&mut steps, &mut well, &mut random, at, Process::Node),
            (_, 3..=4) => harm_process(&mut steps, &mut well, &mut random, at, Process::Nats),
            (Part::Clocks, 5..=8) => {
                let clock = Step::Clock(Process::Nats(random.usize(..3)), jump(&mut random));
                steps.push((at, clock));
            }
            (Part::Links, 5) => cut_machine(&mut steps, &mut well, &mut random, at),
            (Part::Links, 6) => cut_pair(&mut steps, &mut well, &mut random, at),
            (Part::Links, 7) => harm_clients(&mut steps, &mut well, &mut random, at),
            (Part::Links, 8) => {
                let link = random.usize(..LINKS);
                let until = at + Duration::from_millis(random.u64(2_000..12_000));
                let bad = bad(&mut random);
                set(&mut steps, &mut well, &[(link, bad)], at, until);
            }
            (Part::Links, 9) => {
                let off = random.i32(-CLOCK_OFF..=CLOCK_OFF);
                let node = Process::Node(random.usize(..3));
                steps.push((at, Step::Clock(node, off)));
            }
            _ => steps.push((at, Step::Move(random.usize(..clients)))),
        }
        at += Duration::from_millis(random.u64(50..900));
    }
    steps.sort_by_key(|(at, _)| *at);
    steps
}

/// How far a NATS server's clock is off: by seconds, by about as long as it remembers an entry's identifier (2 minutes),
/// as long as a value's end is kept (an hour), or by hours.
fn jump(random: &mut fastrand::Rng) -> i32 {
    let most = [10, 240, 2 * 3600, CLOCK_OFF][random.usize(..4)];
    random.i32(-most..=most)
}

type Steps = Vec<(Duration, Step)>;

fn harm_process(
    steps: &mut Steps,
    well: &mut Well,
    random: &mut fastrand::Rng,
    at: Duration,
    of: fn(usize) -> Process,
) {
    let process = of(random.usize(..3));
    let kill = random.bool();
    let harm = Duration::from_millis(random.u64(if kill { 200..6_000 } else { 1_000..8_000 }));
    let until = at + harm;
    let may = match process {
        Process::Node(node) => well.may_harm(node, at),
        Process::Nats(_) => well.nats <= at,
    };
    if !may {
        return;
    }
    match process {
        Process::Node(node) => well.harm_node(node, until),
        Process::Nats(_) => well.harm_nats(until),
    }
    let (begin, end) = if kill {
        (Step::Kill(process), Step::Start(process))
    } else {
        (Step::Stop(process), Step::Continue(process))
    };
    steps.extend([(at, begin), (until, end)]);
}

/// Cuts a machine, node and NATS server, off from both others, in one direction or in both.
fn cut_machine(steps: &mut Steps, well: &mut Well, random: &mut fastrand::Rng, at: Duration) {
    let machine = random.usize(..3);
    let until = at + Duration::from_millis(random.u64(1_000..15_000));
    let (leaves, comes) = cut(random);
    let links = (0..PAIRS.len()).filter_map(|link| {
        let (near, far) = PAIRS[link];
        let condition = if near == machine {
            Condition::Cut {
                up: leaves,
                down: comes,
            }
        } else if far == machine {
            Condition::Cut {
                up: comes,
                down: leaves,
            }
        } else {
            return None;
        };
        Some((link, condition))
    });
    let links: Vec<_> = links.collect();
    if well.nats <= at && well.may_harm(machine, at) && set(steps, well, &links, at, until) {
        well.harm_nats(until);
        well.harm_node(machine, until);
    }
}

/// Cuts the link between two machines, which both reach the third one.
fn cut_pair(steps: &mut Steps, well: &mut Well, random: &mut fastrand::Rng, at: Duration) {
    let link = random.usize(..PAIRS.len());
    let until = at + Duration::from_millis(random.u64(1_000..15_000));
    let (up, down) = cut(random);
    if well.nats <= at
        && set(
            steps,
            well,
            &[(link, Condition::Cut { up, down })],
            at,
            until,
        )
    {
        well.harm_nats(until);
    }
}

/// Cuts clients off from a machine.
fn harm_clients(steps: &mut Steps, well: &mut Well, random: &mut fastrand::Rng, at: Duration) {
    let link = PAIRS.len() + random.usize(..3);
    let until = at + Duration::from_millis(random.u64(500..8_000));
    let (up, down) = cut(random);
    set(
        steps,
        well,
        &[(link, Condition::Cut { up, down })],
        at,
        until,
    );
}

/// Whether nothing leaves, and whether nothing comes.
fn cut(random: &mut fastrand::Rng) -> (bool, bool) {
    match random.u8(..4) {
        0 => (true, false),
        1 => (false, true),
        _ => (true, true),
    }
}

fn bad(random: &mut fastrand::Rng) -> Condition {
    Condition::Bad {
        loss: random.u8(0..=20),
        delay: Duration::from_millis(random.u64(1..60)),
    }
}

/// Lets links be like this until then, if all of them are well.
fn set(
    steps: &mut Steps,
    well: &mut Well,
    links: &[(usize, Condition)],
    at: Duration,
    until: Duration,
) -> bool {
    if links.iter().any(|(link, _)| well.links[*link] > at) {
        return false;
    }
    for &(link, condition) in links {
        well.links[link] = until;
        steps.push((at, Step::Link(link, condition)));
        steps.push((until, Step::Link(link, Condition::Well)));
    }
    true
}

impl Well {
    fn may_harm(&self, node: usize, at: Duration) -> bool {
        let harmed = self.nodes.iter().filter(|well| **well > at);
        self.nodes[node] <= at && harmed.count() < 2
    }

    fn harm_node(&mut self, node: usize, until: Duration) {
        // It has to be heard of again.
        self.nodes[node] = until + Duration::from_secs(1);
    }

    fn harm_nats(&mut self, until: Duration) {
        self.nats = until + self.catches_up;
    }
}

pub(crate) fn a_plan_harms_one_nats_server_and_two_nodes_at_most_and_ends_with_all_well() {
    for seed in 0..100 {
        let mut harmed = Vec::new();
        let mut cut = [false; LINKS];
        let part = match seed % 4 {
            0 | 1 => Part::Links,
            _ => Part::Clocks,
        };
        for (at, step) in plan(seed, Duration::from_mins(2), 14, part, seed % 2 == 0) {
            match step {
                Step::Kill(process) | Step::Stop(process) => harmed.push(process),
                Step::Start(process) | Step::Continue(process) => {
                    let place = harmed.iter().position(|one| *one == process).unwrap();
                    harmed.remove(place);
                }
                Step::Link(link, condition) => {
                    assert_eq!(part, Part::Links, "seed {seed}");
                    cut[link] = matches!(condition, Condition::Cut { .. });
                }
                Step::Clock(process, off) => {
                    let is_nats = matches!(process, Process::Nats(_));
                    assert_eq!(is_nats, part == Part::Clocks, "seed {seed}");
                    assert!(off.abs() <= CLOCK_OFF, "seed {seed}");
                }
                Step::Move(_) => {}
            }
            let nodes = harmed.iter().filter(|one| matches!(one, Process::Node(_)));
            let nodes = nodes.count();
            assert!(seed % 2 == 0 || nodes == harmed.len(), "seed {seed}");
            // Two servers that reach each other are the majority.
            let together = (0..PAIRS.len()).filter(|link| {
                let (a, b) = PAIRS[*link];
                let runs = |server| !harmed.contains(&Process::Nats(server));
                !cut[*link] && runs(a) && runs(b)
            });
            assert!(
                together.count() > 0 && nodes < 3,
                "seed {seed} at {at:?}: {harmed:?}, {cut:?}"
            );
        }
        assert!(harmed.is_empty(), "seed {seed}: {harmed:?}");
        assert_eq!(cut, [false; LINKS], "seed {seed}");
    }
}
