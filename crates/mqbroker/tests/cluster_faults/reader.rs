//! A reader, and what it has to tell.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use mq_client::QoS;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    clients::{Connected, PATIENCE, Sessions, Spans, Told, Who},
    cluster::Place,
    history::Operation,
};

/// Message as a reader received it.
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
    pub(crate) spans: Spans,
}

/// Subscription of a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    All,
    /// Together with other members of a shared subscription: messages that are neither retained nor expire.
    Shared,
    /// Messages that expire, of which none has to come without conditions.
    Expiring {
        /// `true` if the reader is away for longer than some messages live, again and again.
        sleeps: bool,
    },
}

impl Interest {
    pub(crate) fn filter(self) -> &'static str {
        match self {
            Self::All => "#",
            Self::Shared => "$share/group/m/#",
            Self::Expiring { .. } => "e/#",
        }
    }

    fn owes(self, topic: &str) -> bool {
        match self {
            Self::All => true,
            Self::Shared => topic.starts_with("m/"),
            Self::Expiring { .. } => false,
        }
    }
}

/// Messages that every reader has to receive: topics and texts.
pub(crate) type All = HashSet<(String, String)>;

/// Nothing comes any more to a reader that has all, and to which nothing has come for so long.
const QUIET: Duration = Duration::from_secs(5);

/// Messages that a reader, or all members of a group, have received, and those that are missing once that is known.
pub(crate) struct Tally {
    came: All,
    lacks: Option<All>,
    last: Instant,
}

impl Tally {
    pub(crate) fn new() -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            came: All::new(),
            lacks: None,
            last: Instant::now(),
        }))
    }

    fn note(&mut self, one: (String, String)) {
        self.last = Instant::now();
        if let Some(lacks) = &mut self.lacks {
            lacks.remove(&one);
        }
        self.came.insert(one);
    }

    fn know(&mut self, all: &All, interest: Interest) {
        let owed = all.iter().filter(|(topic, _)| interest.owes(topic));
        let lacks = owed.filter(|one| !self.came.contains(*one));
        self.lacks = Some(lacks.cloned().collect());
        self.last = Instant::now();
    }

    /// Returns the time at which a reader gives up if nothing comes until then; `None` before all is known.
    fn end(&self) -> Option<Instant> {
        let has_all = self.lacks.as_ref()?.is_empty();
        Some(self.last + if has_all { QUIET } else { PATIENCE })
    }
}

/// A reader, and what it has got.
pub(crate) struct Reader {
    pub(crate) place: Arc<Place>,
    pub(crate) who: Who,
    pub(crate) qos: QoS,
    pub(crate) interest: Interest,
    pub(crate) tally: Arc<Mutex<Tally>>,
}

impl Reader {
    fn note(&self, came: &mut Vec<Came>, message: &mq_client::Incoming) {
        let topic = message.topic.to_string();
        let text = message.text().unwrap_or("?").to_owned();
        let operation = Operation::Receive {
            topic: &topic,
            text: &text,
        };
        self.place.record(&self.who.id, &operation);
        let one = (topic.clone(), text.clone());
        self.tally.lock().unwrap().note(one);
        let at = self.place.now();
        came.push(Came { topic, text, at });
    }

    /// Reads until all publishers have ended, and what they say was acknowledged has come.
    pub(crate) async fn read(
        self,
        mut told: Told,
        mut all: watch::Receiver<Option<Arc<All>>>,
        seed: u64,
    ) -> Read {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut own, mut messages) = Connected::start(&self.place, &self.who);
        let mut came = Vec::new();
        let sleeps = self.interest == Interest::Expiring { sleeps: true };
        let mut goes = Instant::now() + Duration::from_secs(4);
        loop {
            let end = self.tally.lock().unwrap().end();
            tokio::select! {
                () = own.event() => {}
                Some(()) = told.moves.recv(), if !*told.over.borrow() => if self.who.list {
                    own.back();
                } else {
                    own.leave().await;
                    while let Some(message) = messages.recv().await {
                        self.note(&mut came, &message);
                    }
                    messages = own.come(false);
                },
                () = sleep_until(goes), if sleeps && !*told.over.borrow() => {
                    own.leave().await;
                    while let Some(message) = messages.recv().await {
                        self.note(&mut came, &message);
                    }
                    let left = self.place.now();
                    tokio::select! {
                        () = sleep(Duration::from_secs(random.u64(20..40))) => {}
                        _ = told.over.changed() => {}
                    }
                    own.spans.absent.push((left, self.place.now()));
                    messages = own.come(false);
                    goes = Instant::now() + Duration::from_secs(random.u64(3..10));
                }
                message = messages.recv() => if let Some(message) = message {
                    self.note(&mut came, &message);
                } else {
                    let why = own.closed().await;
                    own.gave_up(&why);
                    messages = own.come(false);
                },
                Ok(()) = all.changed(), if end.is_none() => {
                    if let Some(all) = &*all.borrow_and_update() {
                        self.tally.lock().unwrap().know(all, self.interest);
                    }
                }
                () = sleep_until(end.unwrap_or(goes)), if end.is_some() => {
                    let end = self.tally.lock().unwrap().end();
                    if end.is_some_and(|end| end <= Instant::now()) {
                        break;
                    }
                }
            }
        }
        let _ = own.client.disconnect().await;
        let (sessions, spans) = (own.sessions, own.spans);
        Read {
            who: self.who,
            qos: self.qos,
            came,
            sessions,
            spans,
        }
    }
}
