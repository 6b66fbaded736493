//! One campaign: starting, harming, and checking.

use std::{collections::HashMap, sync::Arc, time::Duration};

use mq_client::{Client, QoS, Reconnect, Will};
use nix::sys::signal::Signal;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    check::{Found, Willed},
    clients::{self, Sessions, Told, Who},
    cluster::{NODES, Place, Processes},
    net::Net,
    plan::{self, Condition, Part, Process, Step},
    publisher::{self, Kind, Published, Sent},
    reader::{self, All, Read},
    rivals::{self, Rivals},
    witness::Witness,
};

/// How long the cluster may take until it serves at all nodes.
const PATIENCE: Duration = Duration::from_mins(2);

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(100);

/// If clocks have jumped so often, the logs show it.
const FELT: usize = 30;

/// What a campaign is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) length: Duration,
    pub(crate) part: Part,
    /// Whether NATS servers are killed, stopped and cut off as well.
    pub(crate) harms_servers: bool,
}

/// Runs one campaign over this network.
pub(crate) async fn what_is_acknowledged_outlives_faults_of_processes_and_links(
    settings: Settings,
    net: Net,
) {
    let seed = settings.seed;
    let place = Arc::new(Place::new(net));
    let Some(processes) = Processes::start(&place) else {
        place.remove();
        return;
    };
    println!("logs and trace: {}", place.file("").display());
    let found = campaign(settings, &place, processes).await;
    println!("{found}");
    if let Some(faults) = found.faults() {
        panic!("MQ_SEED={seed}: {faults}");
    }
    if std::env::var_os("MQ_FAULTS_KEEP").is_none() {
        place.remove();
    }
}

/// The clients of a campaign.
struct Clients {
    publishers: JoinSet<Published>,
    readers: JoinSet<Read>,
    rivals: JoinHandle<Rivals>,
    witness: JoinHandle<Witness>,
    moves: Vec<mpsc::Sender<()>>,
    over: watch::Sender<bool>,
    /// What was acknowledged, once all publishers have ended.
    all: watch::Sender<Option<Arc<All>>>,
}

async fn campaign(settings: Settings, place: &Arc<Place>, mut processes: Processes<'_>) -> Found {
    serving(place, &mut processes).await;
    let mut clients = start_clients(settings.seed, place).await;
    let (harm, wills) = do_harm(settings, place, &mut processes, &clients.moves).await;
    serving(place, &mut processes).await;
    place.note("all is well again");
    clients.over.send(true).unwrap();

    let checked = async {
        let mut found = Found::default();
        let mut sessions = Vec::new();
        let mut published = Vec::new();
        while let Some(one) = clients.publishers.join_next().await {
            published.push(one.unwrap());
        }
        let all = acknowledged(&published, &wills);
        clients.all.send(Some(Arc::new(all))).unwrap();
        found.published(&published);
        sessions.extend(published.iter().map(|one| one.sessions));
        while let Some(one) = clients.readers.join_next().await {
            let read = one.unwrap();
            found.read(&read, &published, &wills);
            sessions.push(read.sessions);
        }
        for (node, name) in NODES.iter().enumerate() {
            let came = retained(place, node).await;
            found.retained(name, &came, &published);
        }
        sum(&mut found, &sessions);
        found.rivals(clients.rivals.await.unwrap());
        found.witness(clients.witness.await.unwrap()).await;
        found
    };
    let mut found = tokio::select! {
        found = checked => found,
        () = look_after(&mut processes) => unreachable!("it looks after them for ever"),
    };
    if settings.part == Part::Clocks && harm.jumps >= FELT && found.mistimed == 0 {
        found.fault(format!(
            "NATS servers have felt none of {} jumps",
            harm.jumps
        ));
    }
    println!(
        "{harm:?}, {} nodes left by themselves, {} wills",
        processes.ended,
        wills.len()
    );
    found
}

/// What every reader has to get.
fn acknowledged(published: &[Published], wills: &[Willed]) -> All {
    let topics = published.iter().flat_map(|one| &one.topics);
    let messages = topics.flat_map(|(topic, sent)| {
        let owed = |sent: &Sent| sent.qos != QoS::AtMostOnce && sent.acknowledged.is_some();
        let numbers = sent.iter().enumerate().filter(move |(_, sent)| owed(sent));
        numbers.map(|(number, _)| (topic.clone(), number.to_string()))
    });
    let wills = wills.iter().map(|will| will.number.to_string());
    let wills = wills.map(|number| (format!("will/{number}"), number));
    messages.chain(wills).collect()
}

fn sum(found: &mut Found, sessions: &[Sessions]) {
    let connections: usize = sessions.iter().map(|one| one.connections).sum();
    let moves: usize = sessions.iter().map(|one| one.moves).sum();
    println!("{connections} connections, of which clients asked for {moves}");
    found.sessions_lost = sessions.iter().map(|one| one.lost).sum();
    found.gave_up = sessions.iter().map(|one| one.gave_up).sum();
    let lost = found.sessions_lost;
    if lost > 0 {
        found.fault(format!("{lost} times a client found no session"));
    }
}

/// Publishers and readers over each transport, with both ways to go to another node.
async fn start_clients(seed: u64, place: &Arc<Place>) -> Clients {
    let (over, all) = (watch::Sender::new(false), watch::Sender::new(None));
    let (mut publishers, mut readers) = (JoinSet::new(), JoinSet::new());
    let mut moves = Vec::new();
    let mut told = || {
        let (tell, own) = mpsc::channel(1);
        moves.push(tell);
        Told {
            moves: own,
            over: over.subscribe(),
        }
    };
    // A reader at QoS 2 stays the same client when it moves: another one would not know what this one has got.
    for (scheme, qos, list) in [
        (0, QoS::ExactlyOnce, true),
        (1, QoS::ExactlyOnce, true),
        (2, QoS::ExactlyOnce, true),
        (0, QoS::AtLeastOnce, false),
        (1, QoS::AtLeastOnce, true),
        (2, QoS::AtLeastOnce, false),
    ] {
        let n = readers.len();
        let who = Who {
            id: format!("reader-{n}"),
            scheme,
            home: n % 3,
            list,
        };
        clients::make_session(place, &who, Some(qos)).await;
        let (place, told, all) = (Arc::clone(place), told(), all.subscribe());
        readers.spawn(async move { reader::read(&place, who, qos, told, all).await });
    }
    for (scheme, list, retain) in [
        (0, true, false),
        (1, true, false),
        (2, true, false),
        (0, false, false),
        (1, false, false),
        (2, false, false),
        (2, true, true),
        (0, false, true),
    ] {
        let n = publishers.len();
        let who = Who {
            id: format!("publisher-{n}"),
            scheme,
            home: n % 3,
            list,
        };
        clients::make_session(place, &who, None).await;
        let topics = if retain { 2 } else { 3 };
        let kind = Kind { topics, retain };
        let seed = seed.wrapping_mul(1_000).wrapping_add(n as u64);
        let (place, told) = (Arc::clone(place), told());
        publishers.spawn(async move { publisher::publish(&place, &who, kind, told, seed).await });
    }
    let witness = Witness::new(place).await.watch(over.subscribe());
    let rivals = rivals::contend(Arc::clone(place), over.subscribe(), seed);
    Clients {
        publishers,
        readers,
        rivals: tokio::spawn(rivals),
        witness: tokio::spawn(witness),
        moves,
        over,
        all,
    }
}

#[derive(Default, Debug)]
struct Harm {
    killed_nodes: usize,
    killed_servers: usize,
    stopped_nodes: usize,
    stopped_servers: usize,
    cut_links: usize,
    bad_links: usize,
    /// Of clocks.
    jumps: usize,
    /// How often a client was told to move.
    moves: usize,
}

/// Does what the seed says, and returns how often, with the wills of nodes that were killed.
async fn do_harm(
    settings: Settings,
    place: &Place,
    processes: &mut Processes<'_>,
    moves: &[mpsc::Sender<()>],
) -> (Harm, Vec<Willed>) {
    let began = Instant::now();
    let Settings {
        seed,
        length,
        part,
        harms_servers,
    } = settings;
    let mut random = fastrand::Rng::with_seed(!seed);
    let mut wills = Vec::new();
    let mut harm = Harm::default();
    for (at, step) in plan::plan(seed, length, moves.len(), part, harms_servers) {
        tokio::select! {
            () = sleep_until(began + at) => {}
            () = look_after(processes) => {}
        }
        place.note(&format!("{step:?}"));
        match step {
            Step::Kill(process) => {
                let number = wills.len();
                let client = match process {
                    Process::Node(node) => willed(place, node, number).await,
                    Process::Nats(_) => None,
                };
                if client.is_some() {
                    wills.push(Willed {
                        number,
                        at: place.now(),
                    });
                    sleep(Duration::from_millis(random.u64(..300))).await;
                }
                processes.kill(process);
                match process {
                    Process::Node(_) => harm.killed_nodes += 1,
                    Process::Nats(_) => harm.killed_servers += 1,
                }
            }
            Step::Start(process) => processes.start_one(process),
            Step::Stop(process) => {
                processes.signal(process, Signal::SIGSTOP);
                match process {
                    Process::Node(_) => harm.stopped_nodes += 1,
                    Process::Nats(_) => harm.stopped_servers += 1,
                }
            }
            Step::Continue(process) => processes.signal(process, Signal::SIGCONT),
            Step::Link(link, condition) => {
                place.net.set(link, condition);
                match condition {
                    Condition::Well => {}
                    Condition::Cut { .. } => harm.cut_links += 1,
                    Condition::Bad { .. } => harm.bad_links += 1,
                }
            }
            Step::Clock(process, seconds) => {
                if part == Part::Clocks || processes.faketime.is_some() {
                    place.set_clock(process, seconds);
                    harm.jumps += 1;
                }
            }
            Step::Move(client) => {
                // One that is still on its way has been told.
                let _ = moves[client].try_send(());
                harm.moves += 1;
            }
        }
    }
    (harm, wills)
}

fn will_qos(number: usize) -> QoS {
    [QoS::AtLeastOnce, QoS::ExactlyOnce][number % 2]
}

/// A client of this node with a will, whose session ends with it or not; `None` if the node does not take it in time.
async fn willed(place: &Place, node: usize, number: usize) -> Option<Client> {
    let will = Will::to(format!("will/{number}"), number.to_string()).unwrap();
    let mut builder = place.client(&format!("will-{number}"), &[node], number % 3);
    if number % 4 < 2 {
        builder = builder.clean_start(true).session_expiry(Duration::ZERO);
    }
    let builder = builder.reconnect(Reconnect::never());
    let built = builder.will(will.qos(will_qos(number))).build();
    timeout(Duration::from_secs(1), built).await.ok()?.ok()
}

/// Waits until each node takes a client in.
async fn serving(place: &Place, processes: &mut Processes<'_>) {
    let each = async {
        for (node, name) in NODES.iter().enumerate() {
            let here = || place.client(&format!("asks-{name}"), &[node], 0);
            loop {
                if let Ok(client) = here().build().await {
                    let _ = client.disconnect().await;
                    break;
                }
                sleep(LOOK).await;
            }
        }
    };
    tokio::select! {
        served = timeout(PATIENCE, each) => served.expect("all nodes serve"),
        () = look_after(processes) => unreachable!("it looks after them for ever"),
    }
}

/// Starts what ends by itself, for ever.
async fn look_after(processes: &mut Processes<'_>) {
    loop {
        processes.look_after();
        sleep(LOOK).await;
    }
}

/// What a fresh reader finds at this node: the first number of each topic.
async fn retained(place: &Place, node: usize) -> HashMap<String, usize> {
    let builder = place.client(&format!("fresh-{node}"), &[node], node);
    let built = timeout(PATIENCE, builder.clean_start(true).build()).await;
    let client = built.unwrap().unwrap();
    let mut messages = client.subscribe("r/#", QoS::AtLeastOnce).await.unwrap();
    let mut came = HashMap::new();
    while let Ok(Some(message)) = timeout(Duration::from_secs(3), messages.recv()).await {
        let number = message.text().unwrap().parse().unwrap();
        came.entry(message.topic.to_string()).or_insert(number);
    }
    let _ = client.disconnect().await;
    came
}
