//! Clients that go from node to node.

use std::{future::pending, time::Duration};

use mq_client::{Client, ClientBuilder, Event, EventStream, QoS, Subscription};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use crate::{cluster::Place, history::Operation};

/// Time that something may be late once all is well.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// Between two tries to make a session.
const AGAIN: Duration = Duration::from_millis(200);

/// A client, and how it comes to another node.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) id: String,
    /// In [`SCHEMES`](crate::cluster::SCHEMES).
    pub(crate) scheme: usize,
    /// The node that it comes to first.
    pub(crate) home: usize,
    /// `true` if the client has a list of all nodes. If not, another client with the same identifier comes to the next.
    pub(crate) list: bool,
}

/// Orders of the test to a client.
pub(crate) struct Told {
    pub(crate) moves: mpsc::Receiver<()>,
    /// `true` once the faults are over.
    pub(crate) over: watch::Receiver<bool>,
}

/// A client that is connected, or will be.
pub(crate) struct Connected<'a> {
    place: &'a Place,
    who: &'a Who,
    /// Client identifier: that of `who`, or one of its own.
    id: String,
    pub(crate) client: Client,
    events: EventStream,
    home: usize,
    /// Number of empty sessions that were begun, each under another identifier.
    generation: usize,
    /// `true` if the next connection begins an empty session.
    pub(crate) begins: bool,
    pub(crate) sessions: Sessions,
    pub(crate) spans: Spans,
}

/// Times at which a client was connected, as it knows, and at which it did not even try to be: from and to, in milliseconds
/// since the campaign began. Between the two a node may have taken it for connected.
#[derive(Clone, Default, Debug)]
pub(crate) struct Spans {
    pub(crate) connected: Vec<(u64, Option<u64>)>,
    pub(crate) absent: Vec<(u64, u64)>,
}

impl Spans {
    fn begin(&mut self, at: u64) {
        self.end(at);
        self.connected.push((at, None));
    }

    fn end(&mut self, at: u64) {
        if let Some((_, end @ None)) = self.connected.last_mut() {
            *end = Some(at);
        }
    }

    /// Returns `true` if the client was connected from `from` to `to`, in milliseconds since the campaign began.
    pub(crate) fn cover(&self, from: u64, to: u64) -> bool {
        let mut spans = self.connected.iter();
        spans.any(|(began, ended)| *began <= from && ended.is_none_or(|ended| ended >= to))
    }

    /// Returns `true` if the client was absent from `from` to `to`, and for `noticed` before, so that all nodes had noticed
    /// it; in milliseconds.
    pub(crate) fn lack(&self, from: u64, to: u64, noticed: u64) -> bool {
        let mut absent = self.absent.iter();
        absent.any(|(began, ended)| began + noticed <= from && *ended >= to)
    }
}

/// Losses of a client's session, and its connections.
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
    pub(crate) fn start(place: &'a Place, who: &'a Who) -> (Self, Subscription) {
        let (client, messages) = Self::open(place, who, &who.id, who.home);
        let connected = Self {
            place,
            who,
            id: who.id.clone(),
            events: client.events(),
            client,
            home: who.home,
            generation: 0,
            begins: false,
            sessions: Sessions::default(),
            spans: Spans::default(),
        };
        (connected, messages)
    }

    fn open(place: &Place, who: &Who, id: &str, home: usize) -> (Client, Subscription) {
        let builder = builder(place, who, id, home);
        let messages = builder.messages();
        (builder.start().unwrap(), messages)
    }

    pub(crate) async fn event(&mut self) {
        let Some(event) = self.events.recv().await else {
            // The one who uses it learns it.
            return pending().await;
        };
        let id = &self.id;
        match event {
            Event::Connected(connected) => {
                let address = connected.link.peer_address.unwrap();
                let node = self.place.node_at(address.ip());
                let present = connected.session_present;
                self.sessions.connections += 1;
                if !present && !self.begins {
                    self.sessions.lost += 1;
                }
                self.begins = false;
                let place = self.place;
                self.spans.begin(place.now());
                let session_present = present;
                place.record(
                    id,
                    &Operation::Connect {
                        node,
                        session_present,
                    },
                );
                place.note(&format!("{id} is at {node}, session {present}"));
            }
            Event::Disconnected { why } => {
                let why = why.to_string();
                self.spans.end(self.place.now());
                self.place.record(id, &Operation::Disconnect { why: &why });
                self.place.note(&format!("{id} lost its link: {why}"));
            }
            _ => {}
        }
    }

    /// Ends this client; another one follows it. Returns whether all that it had sent was acknowledged.
    pub(crate) async fn leave(&mut self) -> bool {
        self.sessions.moves += 1;
        let left = self.client.disconnect().await;
        self.spans.end(self.place.now());
        let why = "it leaves";
        self.place.record(&self.id, &Operation::Disconnect { why });
        self.place.note(&format!("{} leaves: {left:?}", self.id));
        left.is_ok()
    }

    /// Comes to the next node with another client; `anew` begins an empty session, as a client has to that does not know
    /// any more what it has sent: the server would take its packet identifiers for the old messages. It has an identifier
    /// of its own: a CONNECT with Clean Start that was given up may be served late, and would empty the session again.
    pub(crate) fn come(&mut self, anew: bool) -> Subscription {
        self.home = (self.home + 1) % 3;
        if anew {
            self.generation += 1;
            self.id = format!("{}.{}", self.who.id, self.generation);
            self.begins = true;
        }
        let (client, messages) = Self::open(self.place, self.who, &self.id, self.home);
        self.events = client.events();
        self.client = client;
        messages
    }

    /// Tries the first of its list again.
    pub(crate) fn back(&mut self) {
        self.sessions.moves += 1;
        // A client that has ended says so elsewhere.
        let _ = self.client.reconnect();
    }

    pub(crate) async fn closed(&self) -> String {
        self.client.closed().await.to_string()
    }

    pub(crate) fn gave_up(&mut self, why: &str) {
        self.sessions.gave_up += 1;
        let note = format!("{} gave up: {why}", self.id);
        self.place.note(&note);
    }
}

fn builder(place: &Place, who: &Who, id: &str, home: usize) -> ClientBuilder {
    let nodes = [home, (home + 1) % 3, (home + 2) % 3];
    place.client(id, &nodes, who.scheme)
}

/// Makes a session, which has this subscription, if any, and leaves. A busy machine may take more than one try.
pub(crate) async fn make_session(place: &Place, who: &Who, subscription: Option<(&str, QoS)>) {
    let made = async {
        while let Err(error) = try_to_make(place, who, subscription).await {
            place.note(&format!("{} has no session yet: {error}", who.id));
            sleep(AGAIN).await;
        }
    };
    timeout(PATIENCE, made).await.expect("a session is made");
}

async fn try_to_make(
    place: &Place,
    who: &Who,
    subscription: Option<(&str, QoS)>,
) -> Result<(), mq_client::Error> {
    let client = builder(place, who, &who.id, who.home).build().await?;
    let subscribed = match subscription {
        Some((filter, qos)) => Some(client.subscribe(filter, qos).await?),
        None => None,
    };
    client.disconnect().await?;
    drop(subscribed);
    Ok(())
}
