//! Faults of a cluster, by a plan.

use std::time::Duration;

use mq_client::{Client, QoS, Reconnect, Will};
use nix::sys::signal::Signal;
use tokio::{
    sync::mpsc,
    task::block_in_place,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    campaign::{LOOK, Settings, look_after},
    check::Willed,
    cluster::{Place, Processes},
    history::Operation,
    in_step::{Expired, Looks},
    plan::{self, Condition, Part, Process, Step},
    servers::Servers,
    storage,
};

/// Number of faults of each kind.
#[derive(Default, Debug)]
pub(crate) struct Harm {
    killed_nodes: usize,
    killed_servers: usize,
    stopped_nodes: usize,
    stopped_servers: usize,
    slowed_servers: usize,
    /// All servers killed at once, and how often all nodes with them.
    outages: usize,
    outages_of_all: usize,
    /// Damages to a server's storage, by kind.
    set_back: usize,
    flipped: usize,
    cut_blocks: usize,
    overwritten: usize,
    /// Servers that were replaced by others.
    replaced: usize,
    /// Servers among them that did not start after a damage, or lacked messages, as NATS did not give them back.
    repaired: usize,
    /// The servers refused a message for want of room.
    full: usize,
    cut_links: usize,
    bad_links: usize,
    /// Jumps of clocks.
    pub(crate) jumps: usize,
    /// Number of times that a client was told to move.
    moves: usize,
}

/// Outcome of a plan.
pub(crate) struct Done {
    pub(crate) harm: Harm,
    /// Wills of clients whose node was killed.
    pub(crate) wills: Vec<Willed>,
    /// Damages that the servers have not repaired in time, a line each.
    pub(crate) faults: Vec<String>,
    /// See [`Servers::expired`].
    pub(crate) expired: Expired,
    /// Times, from and to, at which the servers were full, in milliseconds since the campaign began.
    pub(crate) full: Vec<(u64, u64)>,
}

/// Does what the seed says.
pub(crate) async fn do_harm(
    settings: Settings,
    place: &Place,
    processes: &mut Processes<'_>,
    moves: &[mpsc::Sender<()>],
) -> Done {
    let Settings {
        seed,
        length,
        part,
        harms_servers,
    } = settings;
    let mut harmer = Harmer {
        place,
        part,
        processes,
        servers: Servers::new(place),
        moves,
        random: fastrand::Rng::with_seed(!seed),
        is_damaged: false,
        removed: None,
        done: Done {
            harm: Harm::default(),
            wills: Vec::new(),
            faults: Vec::new(),
            expired: Expired::default(),
            full: Vec::new(),
        },
    };
    let mut plan = plan::plan(seed, length, moves.len(), part, harms_servers);
    let mut began = Instant::now();
    let last = began + length;
    let mut n = 0;
    loop {
        // Nothing is harmed behind the campaign's length, as steps that wait put the others off, nor once servers did not become
        // well in time: with another one harmed, the storage of a majority could be gone.
        if Instant::now() >= last || !harmer.done.faults.is_empty() {
            plan::end_with(&mut plan, n);
        }
        let Some(&(at, step)) = plan.get(n) else {
            break;
        };
        n += 1;
        tokio::select! {
            () = sleep_until(began + at) => {}
            () = look_after(harmer.processes) => {}
        }
        place.note(&format!("{step:?}"));
        if !matches!(step, Step::Move(_)) {
            let what = format!("{step:?}");
            place.record("nemesis", &Operation::Fault { what: &what });
        }
        let step_began = Instant::now();
        harmer.step(step).await;
        if matches!(
            step,
            Step::Await | Step::Full | Step::Room | Step::TryRemove(_) | Step::Remove(_)
        ) {
            // What follows is as far behind it as planned.
            began += step_began.elapsed();
        }
    }
    harmer.done.expired = harmer.servers.expired;
    harmer.done
}

struct Harmer<'a, 'b> {
    place: &'a Place,
    part: Part,
    processes: &'a mut Processes<'b>,
    servers: Servers<'a>,
    moves: &'a [mpsc::Sender<()>],
    random: fastrand::Rng,
    /// `true` while the server that is down has damaged storage, or none.
    is_damaged: bool,
    /// The name of the server that was replaced, until the others have forgotten it.
    removed: Option<String>,
    done: Done,
}

impl Harmer<'_, '_> {
    async fn step(&mut self, step: Step) {
        let harm = &mut self.done.harm;
        match step {
            Step::Kill(process) => self.kill(process).await,
            Step::Start(process) => {
                if let Process::Nats(server) = process
                    && !std::mem::take(&mut self.is_damaged)
                    && self.part == Part::Links
                {
                    block_in_place(|| storage::keep_copy(self.place, server));
                }
                self.processes.start_one(process);
            }
            Step::Stop(process) => {
                self.processes.signal(process, Signal::SIGSTOP);
                match process {
                    Process::Node(_) => harm.stopped_nodes += 1,
                    Process::Nats(_) => harm.stopped_servers += 1,
                }
            }
            Step::Continue(process) => self.processes.signal(process, Signal::SIGCONT),
            Step::Link(link, condition) => {
                self.place.net.set(link, condition);
                match condition {
                    Condition::Well => {}
                    Condition::Cut { .. } => harm.cut_links += 1,
                    Condition::Bad { .. } => harm.bad_links += 1,
                }
            }
            Step::Clock(process, seconds) => {
                if self.part == Part::Clocks || self.processes.faketime.is_some() {
                    self.place.set_clock(process, seconds);
                    harm.jumps += 1;
                }
            }
            Step::Move(client) => {
                // One that is still on its way has been told.
                let _ = self.moves[client].try_send(());
                harm.moves += 1;
            }
            Step::Outage { nodes } => {
                for n in 0..3 {
                    self.processes.kill(Process::Nats(n));
                    if nodes {
                        self.processes.kill(Process::Node(n));
                    }
                }
                harm.outages += 1;
                harm.outages_of_all += usize::from(nodes);
            }
            Step::Slow(server) => {
                self.processes.slow(server);
                harm.slowed_servers += 1;
            }
            Step::Steady(server) => self.processes.steady(server),
            Step::Damage(server, damage) => {
                let place = self.place;
                let random = &mut self.random;
                let done =
                    tokio::task::block_in_place(|| storage::damage(place, server, damage, random));
                place.note(&done);
                self.is_damaged = true;
                self.processes.damaged = Some((server, false));
                match damage {
                    // Without a copy there is nothing to go back to.
                    plan::Damage::SetBack => {
                        harm.set_back += usize::from(done.ends_with("set back"));
                    }
                    plan::Damage::Flipped => harm.flipped += 1,
                    plan::Damage::Cut => harm.cut_blocks += 1,
                    plan::Damage::Index => harm.overwritten += 1,
                }
            }
            Step::Replace(_)
            | Step::Await
            | Step::TryRemove(_)
            | Step::Remove(_)
            | Step::Full
            | Step::Room => self.operate(step).await,
        }
    }

    /// Does what an operator of the NATS servers does, and waits until they answer.
    async fn operate(&mut self, step: Step) {
        let harm = &mut self.done.harm;
        match step {
            Step::Await => {
                let equal = tokio::select! {
                    equal = self.servers.in_step() => equal,
                    () = end_of_damaged(self.processes) => Err(Looks::default()),
                };
                let damaged = self.processes.damaged.take();
                let Err(looks) = equal else {
                    return;
                };
                let ended = damaged.and_then(|(server, has_ended)| has_ended.then_some(server));
                match ended.or_else(|| looks.lacking(self.servers.expired)) {
                    Some(server) => Box::pin(self.repair(server, &looks)).await,
                    None => self.done.faults.push(looks.to_string()),
                }
            }
            Step::Replace(server) => {
                let name = self.processes.server_name(server);
                block_in_place(|| storage::remove(self.place, server));
                self.processes.rename_server(server);
                self.removed = Some(name);
                self.is_damaged = true;
                harm.replaced += 1;
            }
            Step::TryRemove(_) => {
                let name = self.removed.as_deref().expect("one was replaced");
                let done = self.servers.try_remove(name).await;
                self.place.note(&format!("{name} is removed: {done:?}"));
            }
            Step::Remove(_) => {
                let name = self.removed.take().expect("one was replaced");
                let removed = looked_after(self.processes, self.servers.remove(&name)).await;
                self.done.faults.extend(removed.err());
            }
            Step::Full => {
                self.done.full.push((self.place.now(), u64::MAX));
                let refused = looked_after(self.processes, self.servers.fill()).await;
                self.place.note(&format!("the servers are full: {refused}"));
                harm.full += usize::from(refused);
            }
            Step::Room => {
                let emptied = looked_after(self.processes, self.servers.empty()).await;
                if let Some((_, to)) = self.done.full.last_mut() {
                    *to = self.place.now();
                }
                self.done.faults.extend(emptied.err());
            }
            _ => unreachable!("no operator does {step:?}"),
        }
    }

    /// Replaces a server for good that does not start, or lacks messages which NATS does not give it again, as the guide tells
    /// operators.
    async fn repair(&mut self, server: usize, looks: &Looks) {
        self.place
            .note(&format!("server {server} is replaced: {looks}"));
        self.done.harm.repaired += 1;
        let process = Process::Nats(server);
        for step in [
            Step::Kill(process),
            Step::Replace(server),
            Step::Start(process),
            Step::Remove(server),
        ] {
            self.step(step).await;
        }
        let in_step = looked_after(self.processes, self.servers.in_step()).await;
        let Err(looks) = in_step else {
            return;
        };
        // It has all that the others have given it: they keep what has expired to themselves.
        let expired = &mut self.servers.expired;
        match looks.lacks_values_alone(*expired) {
            Some(lacks) => *expired = [0, 1, 2].map(|one| expired[one].max(lacks[one])),
            None => self.done.faults.push(looks.to_string()),
        }
    }

    /// Kills a process (SIGKILL). A node gets a client with a will before.
    async fn kill(&mut self, process: Process) {
        let harm = &mut self.done.harm;
        match process {
            Process::Node(node) => {
                harm.killed_nodes += 1;
                // A node may have taken a client that gave up waiting, and has its will then: each has a number of its own.
                let number = harm.killed_nodes;
                let wills = &mut self.done.wills;
                let client = willed(self.place, node, number).await;
                if client.is_some() {
                    let at = self.place.now();
                    wills.push(Willed { number, at });
                    sleep(Duration::from_millis(self.random.u64(..300))).await;
                }
                self.processes.kill(process);
            }
            Process::Nats(_) => {
                harm.killed_servers += 1;
                self.processes.kill(process);
            }
        }
    }
}

/// Starts what ends by itself, until the server with damaged storage has.
async fn end_of_damaged(processes: &mut Processes<'_>) {
    while !matches!(processes.damaged, Some((_, true))) {
        processes.look_after();
        sleep(LOOK).await;
    }
}

/// Waits for something, and starts processes that end meanwhile.
async fn looked_after<T>(processes: &mut Processes<'_>, done: impl Future<Output = T>) -> T {
    tokio::select! {
        done = done => done,
        () = look_after(processes) => unreachable!("it looks after them for ever"),
    }
}

pub(crate) fn will_qos(number: usize) -> QoS {
    [QoS::AtLeastOnce, QoS::ExactlyOnce][number % 2]
}

/// Connects a client of this node with a will, whose session ends with it or not; `None` if the node does not take it
/// in time.
async fn willed(place: &Place, node: usize, number: usize) -> Option<Client> {
    let will = Will::to(format!("will/{number}"), number.to_string()).unwrap();
    let id = format!("will-{number}");
    let mut builder = place.client(&id, &[node], number % 3);
    if number % 4 < 2 {
        builder = builder.clean_start(true).session_expiry(Duration::ZERO);
    }
    let builder = builder.reconnect(Reconnect::never());
    let built = builder.will(will.qos(will_qos(number))).build();
    let client = timeout(Duration::from_secs(1), built).await.ok()?.ok()?;
    place.record(&id, &Operation::Will { number });
    Some(client)
}
