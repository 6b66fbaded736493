//! A publisher, and what it has to tell.

use std::{collections::HashMap, time::Duration};

use mq_client::{Error, Outgoing, QoS, ReasonCode};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    clients::{Connected, PATIENCE, Sessions, Told, Who},
    cluster::Place,
    history::Operation,
};

/// Messages of a publisher that wait for their acknowledgement.
const OUTSTANDING: usize = 32;

/// A message that was published, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) qos: QoS,
    /// In milliseconds since the campaign began.
    pub(crate) at: u64,
    pub(crate) acknowledged: Option<u64>,
    /// The server had no room for it.
    pub(crate) is_refused: bool,
    /// Time after which the message expires.
    pub(crate) expiry: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Published {
    /// Messages of each topic, the first of which has the number 0.
    pub(crate) topics: HashMap<String, Vec<Sent>>,
    /// Messages whose client still had them, and got no acknowledgement.
    pub(crate) forgotten: usize,
    pub(crate) sessions: Sessions,
}

/// Messages of a publisher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) topics: usize,
    pub(crate) retain: bool,
    /// `true` if its messages expire: soon in topics of even numbers, late in others.
    pub(crate) expires: bool,
}

/// Times after which messages expire that do so soon, and late.
pub(crate) const SOON: Duration = Duration::from_secs(4);
pub(crate) const LATE: Duration = Duration::from_mins(1);

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
    let prefix = match kind {
        Kind { retain: true, .. } => "r",
        Kind { expires: true, .. } => "e",
        _ => "m",
    };
    while !*told.over.borrow() {
        // What leaves before CONNACK leaves again if there is none.
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
                let expiry = kind.expires.then_some([SOON, LATE][topic_number % 2]);
                match own.client.send(message(&topic, number, qos, kind.retain, expiry)).await {
                    Ok(mut receipt) => {
                        let at = place.now();
                        sent.push(Sent { qos, at, acknowledged: None, is_refused: false, expiry });
                        place.record(&who.id, &Operation::Send {
                            topic: &topic,
                            number,
                            qos,
                            expiry_s: expiry.map(|expiry| expiry.as_secs()),
                            retain: kind.retain,
                        });
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

/// Returns QoS 0, 1 and 2 in turn. A topic with a retained message has one QoS: a message of QoS 1 that comes again may
/// come behind a later one of QoS 2 (§4.6), and is the retained one then.
fn qos(number: usize, topic: usize, retain: bool) -> QoS {
    let level = if retain { 1 + topic } else { number } % 3;
    [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][level]
}

fn message(
    topic: &str,
    number: usize,
    qos: QoS,
    retain: bool,
    expiry: Option<Duration>,
) -> Outgoing {
    let message = Outgoing::to(topic, number.to_string()).unwrap();
    let message = message.qos(qos).retain(retain);
    match expiry {
        Some(expiry) => message.message_expiry(expiry),
        None => message,
    }
}

type Outcome = (String, usize, Result<ReasonCode, Error>);

fn note((topic, number, outcome): Outcome, topics: &mut HashMap<String, Vec<Sent>>, place: &Place) {
    let sent = &mut topics.get_mut(&topic).unwrap()[number];
    let result = match outcome {
        Ok(_) => {
            sent.acknowledged = Some(place.now());
            "acknowledged".to_owned()
        }
        Err(Error::PublishRefused {
            reason: ReasonCode::QuotaExceeded,
        }) => {
            sent.is_refused = true;
            "refused".to_owned()
        }
        Err(error) => error.to_string(),
    };
    // Each topic has one publisher, whose name is in it.
    let client = topic.split('/').nth(1).unwrap();
    place.record(
        client,
        &Operation::Sent {
            topic: &topic,
            number,
            result: &result,
        },
    );
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
