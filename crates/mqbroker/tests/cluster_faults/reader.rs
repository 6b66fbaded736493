//! A reader, and what it has to tell.

use std::{collections::HashSet, sync::Arc, time::Duration};

use mq_client::QoS;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    clients::{Connected, PATIENCE, Sessions, Told, Who},
    cluster::Place,
};

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
