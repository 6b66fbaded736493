//! Faults that a seed causes in a cluster, and their times.

use std::time::Duration;

/// The machines at both ends of the first links. The near end is the first one.
pub(crate) const PAIRS: [(usize, usize); 3] = [(0, 1), (0, 2), (1, 2)];

/// Links between machines, as in [`PAIRS`], and then one from all clients to each machine.
pub(crate) const LINKS: usize = PAIRS.len() + 3;

/// Clocks are never further apart than twice this. It is below half the time for which sessions are kept.
pub(crate) const CLOCK_OFF: i32 = 8 * 3600;

/// The part of the campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Links and storage fail, and the clocks of nodes jump.
    Links,
    /// The clocks of NATS servers jump, each of which is in a guest.
    Clocks,
}

/// Damage to the storage of one NATS server, which is done while it is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    /// All of it becomes the copy that was taken when the server was down before.
    SetBack,
    /// A byte in the last tenth of a stream is another one.
    Flipped,
    /// The last block of a stream lacks its end.
    Cut,
    /// The index of a stream's blocks is overwritten.
    Index,
}

/// Process of a kind, of which there are three.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Process {
    Node(usize),
    Nats(usize),
}

/// Condition of a link.
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
    /// SIGKILL for all NATS servers at once, and for all nodes with them or not.
    Outage {
        nodes: bool,
    },
    /// The plan waits until all NATS servers store the same.
    Await,
    /// The storage of a NATS server that is down is damaged.
    Damage(usize, Damage),
    /// A NATS server that is down is replaced: the next one in its place has another name and no storage.
    Replace(usize),
    /// The servers are asked to forget the server that was replaced, whether they can or not.
    TryRemove(usize),
    /// The plan waits until the servers have forgotten it.
    Remove(usize),
    /// SIGSTOP and SIGCONT in turn, so that a NATS server runs for a part of the time.
    Slow(usize),
    Steady(usize),
    /// A stream of NATS takes the room of all servers.
    Full,
    /// The stream that took the room is deleted.
    Room,
}

/// Times at which each thing is well again.
#[derive(Default)]
struct Well {
    nodes: [Duration; 3],
    /// The NATS servers: of those that are killed, stopped or cut off there is one at a time.
    nats: Duration,
    links: [Duration; LINKS],
    /// Time that a NATS server takes to be as the others again.
    catches_up: Duration,
}

/// Plans the steps of a campaign of this length, by time. All processes run again at its end, and all links are well.
///
/// No more than one NATS server is harmed at a time, and no more than two nodes are, but for an outage, in which all
/// servers are killed at once, or all servers and nodes. A link that is bad harms neither. Storage is damaged only of a
/// server that is down, while the others store all that it did; before another server is harmed, it has been repaired. So it
/// is with a server that is replaced, but that a link between machines is cut meanwhile.
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
        let kind = random.u8(..20);
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
            (Part::Links, 10) => kill_all(&mut steps, &mut well, &mut random, at),
            (Part::Links, 11 | 14) => damage(&mut steps, &mut well, &mut random, at),
            (Part::Links, 15) => replace(&mut steps, &mut well, &mut random, at),
            (Part::Links, 12) => slow_down(&mut steps, &mut well, &mut random, at),
            (Part::Links, 13) => fill_up(&mut steps, &mut well, &mut random, at),
            _ => steps.push((at, Step::Move(random.usize(..clients)))),
        }
        at += Duration::from_millis(random.u64(50..900));
    }
    steps.sort_by_key(|(at, _)| *at);
    steps
}

/// Returns the seconds by which a NATS server's clock is off: seconds, about as many as it remembers an entry's identifier
/// for (2 minutes), as many as a value's end is kept for (an hour), or hours.
fn jump(random: &mut fastrand::Rng) -> i32 {
    let most = [10, 240, 2 * 3600, CLOCK_OFF][random.usize(..4)];
    random.i32(-most..=most)
}

type Steps = Vec<(Duration, Step)>;

/// Ends a plan with its first `done` steps: of the others only those remain that heal what these have harmed.
pub(crate) fn end_with(steps: &mut Steps, done: usize) {
    let left = steps.split_off(done);
    let mut harmed = Vec::new();
    for (_, step) in &*steps {
        if let Some(healed) = step.heals() {
            harmed.retain(|one| *one != healed);
        }
        harmed.extend(step.harms());
    }
    for (at, step) in left {
        if let Some(healed) = step.heals()
            && let Some(place) = harmed.iter().position(|one| *one == healed)
        {
            harmed.swap_remove(place);
            steps.push((at, step));
        }
    }
}

/// Part of a cluster that a step harms, and that a later one heals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Harmed {
    Process(Process),
    Link(usize),
    /// Time in which a NATS server runs.
    Pace(usize),
    /// The servers' list of each other.
    Members,
    Room,
}

impl Step {
    fn harms(self) -> Vec<Harmed> {
        match self {
            Self::Kill(process) | Self::Stop(process) => vec![Harmed::Process(process)],
            Self::Link(link, condition) if condition != Condition::Well => vec![Harmed::Link(link)],
            Self::Outage { nodes } => {
                let servers = (0..3).map(Process::Nats);
                let nodes = (0..3).filter(|_| nodes).map(Process::Node);
                servers.chain(nodes).map(Harmed::Process).collect()
            }
            Self::Replace(_) => vec![Harmed::Members],
            Self::Slow(server) => vec![Harmed::Pace(server)],
            Self::Full => vec![Harmed::Room],
            _ => Vec::new(),
        }
    }

    fn heals(self) -> Option<Harmed> {
        match self {
            Self::Start(process) | Self::Continue(process) => Some(Harmed::Process(process)),
            Self::Link(link, Condition::Well) => Some(Harmed::Link(link)),
            Self::Remove(_) => Some(Harmed::Members),
            Self::Steady(server) => Some(Harmed::Pace(server)),
            Self::Room => Some(Harmed::Room),
            _ => None,
        }
    }
}

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

/// Kills all servers at once, every third time all nodes as well, and starts them one after the other.
fn kill_all(steps: &mut Steps, well: &mut Well, random: &mut fastrand::Rng, at: Duration) {
    // That of all is put off, and comes about each time; the other mostly does not.
    let nodes = random.u8(..20) == 0;
    let mut at = at;
    if nodes && well.nats < Duration::MAX {
        // Some node is nearly always harmed: it waits until all are well, and nothing else is harmed before.
        at = well
            .nodes
            .into_iter()
            .fold(at.max(well.nats), Duration::max);
    }
    let until = [(); 6].map(|()| at + Duration::from_millis(random.u64(100..5_000)));
    if well.nats > at {
        return;
    }
    steps.push((at, Step::Outage { nodes }));
    for server in 0..3 {
        let (of_server, of_node) = (until[server], until[3 + server]);
        steps.push((of_server, Step::Start(Process::Nats(server))));
        well.harm_nats(well.nats.max(of_server));
        if nodes {
            steps.push((of_node, Step::Start(Process::Node(server))));
            well.harm_node(server, of_node);
        }
    }
}

/// Kills a server, and damages its storage before it starts again.
fn damage(steps: &mut Steps, well: &mut Well, random: &mut fastrand::Rng, at: Duration) {
    let server = random.usize(..3);
    let damage = [Damage::SetBack, Damage::Flipped, Damage::Cut, Damage::Index][random.usize(..4)];
    let until = at + Duration::from_millis(random.u64(200..6_000));
    if !well.harm_storage(at, until) {
        return;
    }
    let process = Process::Nats(server);
    steps.extend([
        (at, Step::Await),
        (at, Step::Kill(process)),
        (at, Step::Damage(server, damage)),
        (until, Step::Start(process)),
        (well.nats, Step::Await),
    ]);
}

/// Replaces a server by a new one, whose storage is empty, and has the others forget its name: a change of NATS's own members.
/// A link between two machines is cut meanwhile, which may be that between the two servers that are left.
fn replace(steps: &mut Steps, well: &mut Well, random: &mut fastrand::Rng, at: Duration) {
    let server = random.usize(..3);
    let link = random.usize(..PAIRS.len());
    let starts = at + Duration::from_millis(random.u64(200..3_000));
    let until = starts + Duration::from_millis(random.u64(500..8_000));
    let (up, down) = cut(random);
    if !well.harm_storage(at, until) {
        return;
    }
    let process = Process::Nats(server);
    steps.extend([
        (at, Step::Await),
        (at, Step::Kill(process)),
        (at, Step::Replace(server)),
        (at, Step::Link(link, Condition::Cut { up, down })),
        (starts, Step::Start(process)),
        (starts, Step::TryRemove(server)),
        (until, Step::Link(link, Condition::Well)),
        (until, Step::Remove(server)),
        (well.nats, Step::Await),
    ]);
}

fn slow_down(steps: &mut Steps, well: &mut Well, random: &mut fastrand::Rng, at: Duration) {
    let server = random.usize(..3);
    let until = at + Duration::from_millis(random.u64(2_000..12_000));
    if well.nats <= at {
        well.harm_nats(until);
        steps.extend([(at, Step::Slow(server)), (until, Step::Steady(server))]);
    }
}

/// Lets the servers run out of room: rarely, since nothing else happens to them meanwhile.
fn fill_up(steps: &mut Steps, well: &mut Well, random: &mut fastrand::Rng, at: Duration) {
    let until = at + Duration::from_millis(random.u64(3_000..10_000));
    if random.u8(..4) == 0 && well.nats <= at {
        well.harm_nats(until);
        steps.extend([(at, Step::Full), (until, Step::Room)]);
    }
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

/// Returns `true` if nothing leaves, and `true` if nothing arrives; at least one of them.
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

    /// Notes that a server lacks what it had stored, and nothing else happens to servers and the links between them meanwhile.
    /// Returns `false` if something does: over a bad link a server is always a little behind the others.
    fn harm_storage(&mut self, at: Duration, until: Duration) -> bool {
        let links = &self.links[..PAIRS.len()];
        if self.nats > at || links.iter().any(|link| *link > at) {
            return false;
        }
        self.harm_nats(until);
        self.links[..PAIRS.len()].fill(self.nats);
        true
    }
}
