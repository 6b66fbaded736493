//! Course of a campaign: start, faults, and check.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use mq_client::QoS;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::{
    check::{Found, Willed},
    clients::{self, Sessions, Told, Who},
    cluster::{NODES, Place, Processes},
    harm,
    history::Operation,
    net::Net,
    plan::Part,
    publisher::{self, Kind, Published, Sent},
    reader::{All, Interest, Read, Reader, Tally},
    rivals::{self, Rivals},
    servers::Servers,
    witness::Witness,
};

/// Time that the cluster may take until all nodes serve.
const PATIENCE: Duration = Duration::from_mins(2);

/// Between two looks at the processes.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// If clocks have jumped so often, the logs show it.
const FELT: usize = 30;

/// Settings of a campaign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) length: Duration,
    pub(crate) part: Part,
    /// `true` if NATS servers are harmed as well.
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
    readers: JoinSet<(Interest, Read)>,
    rivals: JoinHandle<Rivals>,
    witness: JoinHandle<Witness>,
    moves: Vec<mpsc::Sender<()>>,
    over: watch::Sender<bool>,
    /// Sender of the acknowledged messages, once all publishers have ended.
    all: watch::Sender<Option<Arc<All>>>,
}

async fn campaign(settings: Settings, place: &Arc<Place>, mut processes: Processes<'_>) -> Found {
    serving(place, &mut processes).await;
    let mut clients = start_clients(settings, place).await;
    let done = harm::do_harm(settings, place, &mut processes, &clients.moves).await;
    let (harm, wills, expired, full) = (done.harm, done.wills, done.expired, done.full);
    for fault in &done.faults {
        println!("{fault}");
    }
    serving(place, &mut processes).await;
    place.note("all is well again");
    clients.over.send(true).unwrap();

    let checked = async {
        let mut found = Found::of_full_servers(full);
        // Before what may follow from them.
        for fault in done.faults {
            found.fault(fault);
        }
        let mut sessions = Vec::new();
        let mut published = Vec::new();
        while let Some(one) = clients.publishers.join_next().await {
            published.push(one.unwrap());
        }
        let all = acknowledged(&published, &wills);
        clients.all.send(Some(Arc::new(all))).unwrap();
        found.published(&published);
        sessions.extend(published.iter().map(|one| one.sessions));
        let mut members = Vec::new();
        while let Some(one) = clients.readers.join_next().await {
            let (interest, read) = one.unwrap();
            sessions.push(read.sessions);
            if interest == Interest::Shared {
                members.push(read);
            } else {
                found.read(&read, interest, &published, &wills);
            }
        }
        found.group(&members, &published);
        for (node, name) in NODES.iter().enumerate() {
            let came = retained(place, node).await;
            found.retained(name, &came, &published);
        }
        let count = |of: fn(&Sessions) -> usize| sessions.iter().map(of).sum::<usize>();
        let (connections, moves) = (count(|one| one.connections), count(|one| one.moves));
        println!("{connections} connections, of which clients asked for {moves}");
        found.sessions(&sessions);
        found.rivals(clients.rivals.await.unwrap());
        found.witness(clients.witness.await.unwrap()).await;
        found
    };
    let mut found = tokio::select! {
        found = checked => found,
        () = look_after(&mut processes) => unreachable!("it looks after them for ever"),
    };
    let mut servers = Servers::new(place);
    servers.expired = expired;
    if settings.part == Part::Links
        && let Err(looks) = servers.in_step().await
        // Nobody replaces a server any more for values that have expired.
        && looks.lacks_values_alone(expired).is_none()
    {
        found.fault(looks.to_string());
    }
    place.end_history();
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

/// Returns the messages that every reader has to receive.
fn acknowledged(published: &[Published], wills: &[Willed]) -> All {
    let topics = published.iter().flat_map(|one| &one.topics);
    let messages = topics.flat_map(|(topic, sent)| {
        let owed = |sent: &Sent| {
            sent.qos != QoS::AtMostOnce && sent.acknowledged.is_some() && sent.expiry.is_none()
        };
        let numbers = sent.iter().enumerate().filter(move |(_, sent)| owed(sent));
        numbers.map(|(number, _)| (topic.clone(), number.to_string()))
    });
    let wills = wills.iter().map(|will| will.number.to_string());
    let wills = wills.map(|number| (format!("will/{number}"), number));
    messages.chain(wills).collect()
}

/// Clients that are about to start, each with what it is told by.
struct Starting {
    place: Arc<Place>,
    seed: u64,
    moves: Vec<mpsc::Sender<()>>,
    over: watch::Sender<bool>,
    all: watch::Sender<Option<Arc<All>>>,
    publishers: JoinSet<Published>,
    readers: JoinSet<(Interest, Read)>,
}

impl Starting {
    fn told(&mut self, moves: bool) -> Told {
        let (tell, own) = mpsc::channel(1);
        if moves {
            self.moves.push(tell);
        }
        Told {
            moves: own,
            over: self.over.subscribe(),
        }
    }

    async fn reader(&mut self, who: Who, qos: QoS, interest: Interest, tally: Arc<Mutex<Tally>>) {
        clients::make_session(&self.place, &who, Some((interest.filter(), qos))).await;
        let told = self.told(!matches!(interest, Interest::Expiring { .. }));
        let all = self.all.subscribe();
        let reader = Reader {
            place: Arc::clone(&self.place),
            who,
            qos,
            interest,
            tally,
        };
        let seed = self.seed;
        let read = async move { (interest, reader.read(told, all, seed).await) };
        self.readers.spawn(read);
    }

    async fn publisher(&mut self, who: Who, kind: Kind) {
        clients::make_session(&self.place, &who, None).await;
        let n = self.publishers.len() as u64;
        let seed = self.seed.wrapping_mul(1_000).wrapping_add(n);
        let (place, told) = (Arc::clone(&self.place), self.told(true));
        self.publishers
            .spawn(async move { publisher::publish(&place, &who, kind, told, seed).await });
    }
}

/// Publishers and readers over each transport, with both ways to go to another node.
async fn start_clients(settings: Settings, place: &Arc<Place>) -> Clients {
    let mut starting = Starting {
        place: Arc::clone(place),
        seed: settings.seed,
        moves: Vec::new(),
        over: watch::Sender::new(false),
        all: watch::Sender::new(None),
        publishers: JoinSet::new(),
        readers: JoinSet::new(),
    };
    let who = |kind: &str, n: usize, scheme, list| Who {
        id: format!("{kind}-{n}"),
        scheme,
        home: n % 3,
        list,
    };
    // A reader at QoS 2 stays the same client when it moves: another one would not know what this one has got.
    for (n, (scheme, qos, list)) in [
        (0, QoS::ExactlyOnce, true),
        (1, QoS::ExactlyOnce, true),
        (2, QoS::ExactlyOnce, true),
        (0, QoS::AtLeastOnce, false),
        (1, QoS::AtLeastOnce, true),
        (2, QoS::AtLeastOnce, false),
    ]
    .into_iter()
    .enumerate()
    {
        let reader = who("reader", n, scheme, list);
        starting
            .reader(reader, qos, Interest::All, Tally::new())
            .await;
    }
    let tally = Tally::new();
    for n in 0..3 {
        let member = who("member", n, n, true);
        starting
            .reader(
                member,
                QoS::ExactlyOnce,
                Interest::Shared,
                Arc::clone(&tally),
            )
            .await;
    }
    // Where the servers' clocks jump, nobody knows when a message expires.
    let expires = settings.part == Part::Links;
    for (n, sleeps) in [false, true].into_iter().enumerate().filter(|_| expires) {
        let (reader, interest) = (
            who("expiry-reader", n, n, !sleeps),
            Interest::Expiring { sleeps },
        );
        starting
            .reader(reader, QoS::AtLeastOnce, interest, Tally::new())
            .await;
    }
    let kind = |topics, retain, expires| Kind {
        topics,
        retain,
        expires,
    };
    let kinds = [
        (0, true, kind(3, false, false)),
        (1, true, kind(3, false, false)),
        (2, true, kind(3, false, false)),
        (0, false, kind(3, false, false)),
        (1, false, kind(3, false, false)),
        (2, false, kind(3, false, false)),
        (2, true, kind(2, true, false)),
        (0, false, kind(2, true, false)),
        (1, true, kind(2, false, true)),
    ];
    for (n, (scheme, list, kind)) in kinds.into_iter().enumerate() {
        if expires || !kind.expires {
            let publisher = who("publisher", n, scheme, list);
            starting.publisher(publisher, kind).await;
        }
    }
    let over = &starting.over;
    let witness = Witness::new(place).await.watch(over.subscribe());
    let rivals = rivals::contend(Arc::clone(place), over.subscribe(), settings.seed);
    Clients {
        rivals: tokio::spawn(rivals),
        witness: tokio::spawn(witness),
        publishers: starting.publishers,
        readers: starting.readers,
        moves: starting.moves,
        over: starting.over,
        all: starting.all,
    }
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
pub(crate) async fn look_after(processes: &mut Processes<'_>) {
    loop {
        processes.look_after();
        sleep(LOOK).await;
    }
}

/// Subscribes a new reader at this node, and returns the first number that it receives of each topic.
async fn retained(place: &Place, node: usize) -> HashMap<String, usize> {
    let builder = place.client(&format!("fresh-{node}"), &[node], node);
    let built = timeout(PATIENCE, builder.clean_start(true).build()).await;
    let client = built.unwrap().unwrap();
    let mut messages = client.subscribe("r/#", QoS::AtLeastOnce).await.unwrap();
    let mut came = HashMap::new();
    while let Ok(Some(message)) = timeout(Duration::from_secs(3), messages.recv()).await {
        let number = message.text().unwrap().parse().unwrap();
        let topic = &message.topic.to_string();
        place.record(
            &format!("fresh-{node}"),
            &Operation::Retained { topic, number },
        );
        came.entry(message.topic.to_string()).or_insert(number);
    }
    let _ = client.disconnect().await;
    came
}
