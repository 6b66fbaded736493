//! Publishers and readers that go from node to node, and what they have to tell.

use std::{
    collections::{HashMap, HashSet},
    future::pending,
    sync::Arc,
    time::Duration,
};

use mq_client::{Client, ClientBuilder, Event, EventStream, Outgoing, QoS, Subscription};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::cluster::Place;

/// For so long an acknowledgement may be late once all is well.
const PATIENCE: Duration = Duration::from_mins(2);

/// Messages of a publisher that wait for their acknowledgement.
const OUTSTANDING: usize = 32;

/// A client, and how it comes to another node.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) id: String,
    /// In [`SCHEMES`](crate::cluster::SCHEMES).
    pub(crate) scheme: usize,
    /// The node that it comes to first.
    pub(crate) home: usize,
    /// Whether one client has a list of all nodes. If not, another client with the same identifier comes to the next.
    pub(crate) list: bool,
}

/// What the test says to a client.
pub(crate) struct Told {
    pub(crate) moves: mpsc::Receiver<()>,
    /// Whether the faults are over.
    pub(crate) over: watch::Receiver<bool>,
}

/// A client that is connected, or will be.
struct Connected<'a> {
    place: &'a Place,
    who: &'a Who,
    client: Client,
    events: EventStream,
    home: usize,
    /// Whether the next connection begins an empty session.
    begins: bool,
    sessions: Sessions,
}

/// What became of a client's session.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sessions {
    /// Connections, each to any node.
    pub(crate) connections: usize,
    pub(crate) lost: usize,
    /// Clients that do not connect again.
    pub(crate) gave_up: usize,
    pub(crate) moves: usize,
}

impl<'a> Connected<'a> {
    fn start(place: &'a Place, who: &'a Who) -> (Self, Subscription) {
        let (client, messages) = Self::open(place, who, who.home, false);
        let connected = Self {
            place,
            who,
            events: client.events(),
            client,
            home: who.home,
            begins: false,
            sessions: Sessions::default(),
        };
        (connected, messages)
    }

    fn open(place: &Place, who: &Who, home: usize, clean: bool) -> (Client, Subscription) {
        let builder = builder(place, who, home).clean_start(clean);
        let messages = builder.messages();
        (builder.start().unwrap(), messages)
    }

    async fn event(&mut self) {
        let Some(event) = self.events.recv().await else {
            // The one who uses it learns it.
            return pending().await;
        };
        let id = &self.who.id;
        match event {
            Event::Connected(connected) => {
                let address = connected.link.peer_address.unwrap();
                let node = self.place.node_at(address.port());
                let present = connected.session_present;
                self.sessions.connections += 1;
                if !present && !self.begins {
                    self.sessions.lost += 1;
                }
                self.begins = false;
                let place = self.place;
                place.note(&format!("{id} is at {node}, session {present}"));
            }
            Event::Disconnected { why } => self.place.note(&format!("{id} lost its link: {why}")),
            _ => {}
        }
    }

    /// Ends this client; another one follows it. Returns whether all that it had sent was acknowledged.
    async fn leave(&mut self) -> bool {
        self.sessions.moves += 1;
        let left = self.client.disconnect().await;
        self.place
            .note(&format!("{} leaves: {left:?}", self.who.id));
        left.is_ok()
    }

    /// Comes to the next node with another client; `clean` begins with an empty session, as a client has to that does
    /// not know any more what it has sent: the server would take its packet identifiers for the old messages.
    fn come(&mut self, clean: bool) -> Subscription {
        self.home = (self.home + 1) % 3;
        self.begins |= clean;
        let (client, messages) = Self::open(self.place, self.who, self.home, self.begins);
        self.events = client.events();
        self.client = client;
        messages
    }

    /// Tries the first of its list again.
    fn back(&mut self) {
        self.sessions.moves += 1;
        // A client that has ended says so elsewhere.
        let _ = self.client.reconnect();
    }

    async fn closed(&self) -> String {
        self.client.closed().await.to_string()
    }

    fn gave_up(&mut self, why: &str) {
        self.sessions.gave_up += 1;
        let note = format!("{} gave up: {why}", self.who.id);
        self.place.note(&note);
    }
}

fn builder(place: &Place, who: &Who, home: usize) -> ClientBuilder {
    let nodes = [home, (home + 1) % 3, (home + 2) % 3];
    place.client(&who.id, &nodes, who.scheme)
}

/// Makes a session, which has this subscription, if any, and leaves.
pub(crate) async fn make_session(place: &Place, who: &Who, subscription: Option<QoS>) {
    let made = async {
        let client = builder(place, who, who.home).build().await.unwrap();
        let subscribed = match subscription {
            Some(qos) => Some(client.subscribe("#", qos).await.unwrap()),
            None => None,
        };
        client.disconnect().await.unwrap();
        drop(subscribed);
    };
    timeout(PATIENCE, made).await.expect("a session is made");
}

/// A message that was published, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) qos: QoS,
    /// In milliseconds since the campaign began.
    pub(crate) at: u64,
    pub(crate) acknowledged: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Published {
    /// By topic; the first has the number 0.
    pub(crate) topics: HashMap<String, Vec<Sent>>,
    /// Messages whose client still had them, and got no acknowledgement.
    pub(crate) forgotten: usize,
    pub(crate) sessions: Sessions,
}

/// What a publisher publishes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) topics: usize,
    pub(crate) retain: bool,
}

/// Publishes numbers until the faults are over, and waits for the acknowledgements.
pub(crate) async fn publish(
    place: &Place,
    who: &Who,
    kind: Kind,
    mut told: Told,
    seed: u64,
) -> Published {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut own, _) = Connected::start(place, who);
    let mut topics: HashMap<String, Vec<Sent>> = HashMap::new();
    let mut waiting = JoinSet::new();
    let prefix = if kind.retain { "r" } else { "m" };
    while !*told.over.borrow() {
        // What leaves before CONNACK leaves again if there is none, and the next empty session knows nothing of it.
        let may_send = waiting.len() < OUTSTANDING && !own.begins;
        tokio::select! {
            () = own.event() => {}
            Some(()) = told.moves.recv() => if who.list {
                own.back();
            } else {
                let all = own.leave().await;
                note_all(&mut waiting, &mut topics, place).await;
                own.come(!all);
            },
            Some(one) = waiting.join_next() => note(one.unwrap(), &mut topics, place),
            () = sleep(Duration::from_millis(random.u64(20..100))), if may_send => {
                let topic_number = random.usize(..kind.topics);
                let topic = format!("{prefix}/{}/{topic_number}", who.id);
                let sent = topics.entry(topic.clone()).or_default();
                let number = sent.len();
                let qos = qos(number, topic_number, kind.retain);
                let message = Outgoing::to(topic.as_str(), number.to_string()).unwrap();
                match own.client.send(message.qos(qos).retain(kind.retain)).await {
                    Ok(mut receipt) => {
                        sent.push(Sent { qos, at: place.now(), acknowledged: None });
                        waiting.spawn(async move {
                            (topic, number, receipt.acknowledged().await)
                        });
                    }
                    Err(error) => {
                        own.gave_up(&error.to_string());
                        note_all(&mut waiting, &mut topics, place).await;
                        own.come(true);
                    }
                }
            }
            _ = told.over.changed() => {}
        }
    }
    let late = async {
        while !waiting.is_empty() {
            tokio::select! {
                () = own.event() => {}
                Some(one) = waiting.join_next() => note(one.unwrap(), &mut topics, place),
            }
        }
    };
    let _ = timeout(PATIENCE, late).await;
    let forgotten = waiting.len();
    waiting.shutdown().await;
    let _ = own.client.disconnect().await;
    Published {
        topics,
        forgotten,
        sessions: own.sessions,
    }
}

/// QoS 0, 1 and 2 in turn. A topic with a retained message has one QoS: a message of QoS 1 that comes again may come
/// behind a later one of QoS 2 (§4.6), and is the retained one then.
fn qos(number: usize, topic: usize, retain: bool) -> QoS {
    let level = if retain { 1 + topic } else { number } % 3;
    [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][level]
}

type Outcome = (
    String,
    usize,
    Result<mq_client::ReasonCode, mq_client::Error>,
);

fn note((topic, number, outcome): Outcome, topics: &mut HashMap<String, Vec<Sent>>, place: &Place) {
    let sent = &mut topics.get_mut(&topic).unwrap()[number];
    match outcome {
        Ok(_) => sent.acknowledged = Some(place.now()),
        Err(_) if sent.qos == QoS::AtMostOnce => {}
        Err(error) => place.note(&format!("{topic} {number} is in doubt: {error}")),
    }
}

async fn note_all(
    waiting: &mut JoinSet<Outcome>,
    topics: &mut HashMap<String, Vec<Sent>>,
    place: &Place,
) {
    while let Some(one) = waiting.join_next().await {
        note(one.unwrap(), topics, place);
    }
}

/// One message, as a reader got it.
#[derive(Clone, Debug)]
pub(crate) struct Came {
    pub(crate) topic: String,
    pub(crate) text: String,
    pub(crate) at: u64,
}

#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) who: Who,
    pub(crate) qos: QoS,
    pub(crate) came: Vec<Came>,
    pub(crate) sessions: Sessions,
}

/// What every reader has to get: topics and texts.
pub(crate) type All = HashSet<(String, String)>;

/// Nothing comes any more to a reader that has all, and to which nothing has come for so long.
const QUIET: Duration = Duration::from_secs(5);

/// What a reader has got, and what it lacks once that is known.
struct Reading<'a> {
    place: &'a Place,
    came: Vec<Came>,
    lacks: Option<All>,
    last: Instant,
}

impl Reading<'_> {
    fn note(&mut self, message: &mq_client::Incoming) {
        self.last = Instant::now();
        let one = (
            message.topic.to_string(),
            message.text().unwrap_or("?").to_owned(),
        );
        if let Some(lacks) = &mut self.lacks {
            lacks.remove(&one);
        }
        let (topic, text) = one;
        let at = self.place.now();
        self.came.push(Came { topic, text, at });
    }

    fn know(&mut self, all: &All) {
        let came = self.came.iter();
        let came: All = came
            .map(|one| (one.topic.clone(), one.text.clone()))
            .collect();
        self.lacks = Some(all.difference(&came).cloned().collect());
        self.last = Instant::now();
    }

    /// When it gives up, if nothing comes until then; `None` before all is known.
    fn end(&self) -> Option<Instant> {
        let has_all = self.lacks.as_ref()?.is_empty();
        Some(self.last + if has_all { QUIET } else { PATIENCE })
    }
}

/// Reads until all publishers have ended, and what they say was acknowledged has come.
pub(crate) async fn read(
    place: &Place,
    who: Who,
    qos: QoS,
    mut told: Told,
    mut all: watch::Receiver<Option<Arc<All>>>,
) -> Read {
    let (mut own, mut messages) = Connected::start(place, &who);
    let mut reading = Reading {
        place,
        came: Vec::new(),
        lacks: None,
        last: Instant::now(),
    };
    loop {
        let end = reading.end();
        tokio::select! {
            () = own.event() => {}
            Some(()) = told.moves.recv(), if !*told.over.borrow() => if who.list {
                own.back();
            } else {
                own.leave().await;
                while let Some(message) = messages.recv().await {
                    reading.note(&message);
                }
                messages = own.come(false);
            },
            message = messages.recv() => if let Some(message) = message {
                reading.note(&message);
            } else {
                let why = own.closed().await;
                own.gave_up(&why);
                messages = own.come(false);
            },
            Ok(()) = all.changed(), if end.is_none() => {
                if let Some(all) = &*all.borrow_and_update() {
                    reading.know(all);
                }
            }
            () = sleep_until(end.unwrap_or(reading.last)), if end.is_some() => break,
        }
    }
    let _ = own.client.disconnect().await;
    let sessions = own.sessions;
    Read {
        who,
        qos,
        came: reading.came,
        sessions,
    }
}
