//! What was promised, against what came.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use mq_client::QoS;

use crate::{
    publisher::{Published, Sent},
    reader::{Came, Read},
    rivals::Rivals,
    witness::Witness,
};

/// Faults that are written out; the others are counted.
const WRITTEN_OUT: usize = 30;

/// A will whose node was killed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Willed {
    pub(crate) number: usize,
    pub(crate) at: u64,
}

/// What the check has found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) sent: usize,
    pub(crate) acknowledged: usize,
    /// Of QoS 1 and 2: the client ended, or the server refused, before the acknowledgement.
    pub(crate) in_doubt: usize,
    pub(crate) came: usize,
    /// QoS 1, which may.
    pub(crate) again: usize,
    pub(crate) qos0_lost: usize,
    pub(crate) lost: usize,
    pub(crate) twice: usize,
    pub(crate) out_of_order: usize,
    pub(crate) unsent: usize,
    pub(crate) wills_lost: usize,
    pub(crate) wills_again: usize,
    pub(crate) stale: usize,
    pub(crate) forgotten: usize,
    pub(crate) sessions_lost: usize,
    pub(crate) gave_up: usize,
    pub(crate) rivals: Rivals,
    /// Of the logs, as the witness has seen them.
    pub(crate) entries: usize,
    /// What NATS has lost or changed itself.
    pub(crate) jetstream: usize,
    /// Entries that NATS has stored although it had them; the brokers know them.
    pub(crate) stored_again: usize,
    /// Entries that a NATS server has stored by a clock that was minutes off.
    pub(crate) mistimed: usize,
    /// Between two acknowledgements of whichever publisher, in milliseconds, and when it began.
    pub(crate) longest_silence: (u64, u64),
    /// Of one message for its acknowledgement, in milliseconds.
    pub(crate) longest_wait: u64,
    /// Of messages that are lost, by topic and number, the readers that did not get them.
    missing: BTreeMap<(String, usize), Vec<String>>,
    /// Where they are.
    whereabouts: Vec<String>,
    faults: Vec<String>,
    count: usize,
}

impl Found {
    pub(crate) fn fault(&mut self, what: String) {
        self.count += 1;
        if self.faults.len() < WRITTEN_OUT {
            self.faults.push(what);
        }
    }

    /// None, or the faults.
    pub(crate) fn faults(&self) -> Option<String> {
        let all = self.faults.iter().chain(&self.whereabouts);
        let all: Vec<_> = all.map(String::as_str).collect();
        (self.count > 0).then(|| format!("{} faults:\n{}", self.count, all.join("\n")))
    }

    pub(crate) fn published(&mut self, all: &[Published]) {
        let mut times = Vec::new();
        for published in all {
            self.forgotten += published.forgotten;
            self.sent += published.topics.values().map(Vec::len).sum::<usize>();
            let sent = published.topics.values().flatten();
            for sent in sent.filter(|sent| sent.qos != QoS::AtMostOnce) {
                match sent.acknowledged {
                    Some(at) => {
                        self.acknowledged += 1;
                        self.longest_wait = self.longest_wait.max(at - sent.at);
                        times.push(at);
                    }
                    None => self.in_doubt += 1,
                }
            }
        }
        times.sort_unstable();
        let silences = times.windows(2).map(|pair| (pair[1] - pair[0], pair[0]));
        self.longest_silence = silences.max().unwrap_or_default();
        if self.forgotten > 0 {
            let forgotten = self.forgotten;
            self.fault(format!("{forgotten} messages get no acknowledgement"));
        }
        if self.acknowledged == 0 {
            self.fault("nothing was acknowledged".to_owned());
        }
    }

    pub(crate) fn read(&mut self, read: &Read, all: &[Published], wills: &[Willed]) {
        let mut by_topic: HashMap<&str, Vec<&Came>> = HashMap::new();
        for came in &read.came {
            by_topic.entry(&came.topic).or_default().push(came);
        }
        self.came += read.came.len();
        for (topic, sent) in all.iter().flat_map(|published| &published.topics) {
            let came = by_topic.remove(topic.as_str()).unwrap_or_default();
            self.topic(read, topic, sent, &came);
        }
        for will in wills {
            let topic = format!("will/{}", will.number);
            let came = by_topic.remove(topic.as_str()).unwrap_or_default();
            let id = &read.who.id;
            if came.is_empty() {
                self.wills_lost += 1;
                self.fault(format!("{id}: {topic}, of {} ms, did not come", will.at));
            }
            // A node that dies right after it has published a will leaves it to the next one.
            self.wills_again += came.len().saturating_sub(1);
        }
        by_topic.retain(|topic, _| !topic.starts_with("will/"));
        for (topic, came) in by_topic {
            self.unsent += came.len();
            self.fault(format!("{}: nobody published to {topic}", read.who.id));
        }
    }

    /// The messages of one topic, which one publisher has published.
    fn topic(&mut self, read: &Read, topic: &str, sent: &[Sent], came: &[&Came]) {
        let id = &read.who.id;
        let mut first: Vec<Option<u64>> = vec![None; sent.len()];
        // Of QoS 1 and 2, acknowledged.
        let mut last = None;
        for one in came {
            let number = one.text.parse::<usize>().ok();
            let Some(number) = number.filter(|number| *number < sent.len()) else {
                self.unsent += 1;
                self.fault(format!("{id}: {topic} {:?} was never sent", one.text));
                continue;
            };
            let Sent { qos, .. } = sent[number];
            if let Some(before) = first[number] {
                if both_exactly_once(read, qos) || qos == QoS::AtMostOnce {
                    self.twice += 1;
                    let what = format!("{id}: {topic} {number} ({qos:?}) came twice");
                    self.fault(format!("{what}, at {before} and {} ms", one.at));
                } else {
                    self.again += 1;
                }
                continue;
            }
            first[number] = Some(one.at);
            if qos != QoS::AtMostOnce && sent[number].acknowledged.is_some() {
                if last.is_some_and(|last| last > number) {
                    self.out_of_order += 1;
                    let what = format!("{id}: {topic} {number} came after {last:?}");
                    self.fault(format!("{what}, at {} ms", one.at));
                }
                last = last.max(Some(number));
            }
        }
        for (number, (sent, first)) in sent.iter().zip(first).enumerate() {
            match (first, sent.acknowledged) {
                (None, Some(_)) if sent.qos == QoS::AtMostOnce => self.qos0_lost += 1,
                (None, Some(at)) => {
                    self.lost += 1;
                    let missing = self.missing.entry((topic.to_owned(), number));
                    missing.or_default().push(id.clone());
                    let what = format!("{id}: {topic} {number} ({:?}) is lost", sent.qos);
                    self.fault(format!(
                        "{what}, sent at {} and acknowledged at {at} ms",
                        sent.at
                    ));
                }
                _ => {}
            }
        }
    }

    /// Tells what NATS has lost from what the brokers have.
    pub(crate) async fn witness(&mut self, mut witness: Witness) {
        self.entries = witness.entries();
        self.stored_again = witness.stored_again;
        self.mistimed = witness.mistimed;
        let other = witness.replay().await;
        self.jetstream = other.len();
        for what in other {
            self.fault(format!("JetStream: {what}"));
        }
        for ((topic, number), readers) in &self.missing {
            let place = match witness.find(topic, *number) {
                Some(place) => format!("it is in {place}"),
                None => "it was in no log".to_owned(),
            };
            let readers = readers.join(", ");
            let what = format!("{topic} {number} is lost for {readers}; {place}");
            self.whereabouts.push(what);
        }
    }

    pub(crate) fn rivals(&mut self, rivals: Rivals) {
        for (connected, sent, known) in &rivals.acknowledged_late {
            let what = format!(
                "the session was another's from {connected} ms on, and what was sent at {sent} ms"
            );
            self.fault(format!("two owners: {what} was acknowledged at {known} ms"));
        }
        self.rivals = rivals;
    }

    /// What a fresh reader at this node got as retained.
    pub(crate) fn retained(
        &mut self,
        node: &str,
        came: &HashMap<String, usize>,
        all: &[Published],
    ) {
        let topics = all.iter().flat_map(|published| &published.topics);
        for (topic, sent) in topics.filter(|(topic, _)| topic.starts_with("r/")) {
            let Some(promised) = sent.iter().rposition(|one| one.acknowledged.is_some()) else {
                continue;
            };
            let got = came.get(topic);
            if got.is_none_or(|got| *got < promised) {
                self.stale += 1;
                let at = sent[promised].acknowledged;
                let what = format!("at {node} the retained message of {topic} is {got:?}");
                self.fault(format!("{what}, not {promised}, acknowledged at {at:?} ms"));
            }
        }
    }
}

/// A client that gave up, since its own late connection had taken its session over, has forgotten what it has got.
fn both_exactly_once(read: &Read, qos: QoS) -> bool {
    let remembers = read.sessions.gave_up == 0;
    remembers && read.qos == QoS::ExactlyOnce && qos == QoS::ExactlyOnce
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "published {}, acknowledged {} (QoS 1, 2), in doubt {}, never acknowledged {}",
            self.sent, self.acknowledged, self.in_doubt, self.forgotten
        )?;
        writeln!(
            f,
            "came {}, again {} (QoS 1), QoS 0 lost {}",
            self.came, self.again, self.qos0_lost
        )?;
        writeln!(
            f,
            "lost {}, twice {}, out of order {}, never sent {}, stale retained {}, wills lost {} (again {}), \
             sessions lost {}, clients that gave up {}",
            self.lost,
            self.twice,
            self.out_of_order,
            self.unsent,
            self.stale,
            self.wills_lost,
            self.wills_again,
            self.sessions_lost,
            self.gave_up
        )?;
        writeln!(
            f,
            "taken over by a rival {} times, sent late {}, acknowledged to two owners {}",
            self.rivals.took_over,
            self.rivals.sent_late,
            self.rivals.acknowledged_late.len()
        )?;
        writeln!(
            f,
            "{} entries of the logs seen, of which JetStream has lost or changed {}, stored again {}, and {} by a wrong clock",
            self.entries, self.jetstream, self.stored_again, self.mistimed
        )?;
        let (silence, from) = self.longest_silence;
        write!(
            f,
            "longest time without an acknowledgement {silence} ms, from {from} ms on, of one message {} ms",
            self.longest_wait
        )
    }
}

pub(crate) mod tests {
    use super::{Came, Found, HashMap, Published, QoS, Read, Rivals, Sent, Willed};
    use crate::clients::{Sessions, Who};

    fn published(qos: &[QoS]) -> Published {
        let acknowledged = Some(2);
        let sent = qos.iter().map(|&qos| Sent {
            qos,
            at: 1,
            acknowledged,
        });
        Published {
            topics: HashMap::from([("t".to_owned(), sent.collect())]),
            forgotten: 0,
            sessions: Sessions::default(),
        }
    }

    /// What is found if a reader at QoS 2 gets these numbers.
    fn found(qos: &[QoS], numbers: &[usize], wills: &[Willed]) -> Found {
        let came = numbers.iter().map(|number| Came {
            topic: "t".to_owned(),
            text: number.to_string(),
            at: 3,
        });
        let read = Read {
            who: Who {
                id: "reader".to_owned(),
                scheme: 0,
                home: 0,
                list: true,
            },
            qos: QoS::ExactlyOnce,
            came: came.collect(),
            sessions: Sessions::default(),
        };
        let mut found = Found::default();
        found.read(&read, &[published(qos)], wills);
        found
    }

    pub(crate) fn the_check_finds_what_is_lost_twice_out_of_order_or_made_up() {
        let [zero, one, two] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
        let qos = [zero, one, two];
        let all_came = found(&qos, &[0, 1, 1, 2], &[]);
        assert!(all_came.faults().is_none() && all_came.again == 1);
        let without_zero = found(&qos, &[1, 2], &[]);
        assert!(without_zero.faults().is_none() && without_zero.qos0_lost == 1);
        assert_eq!(found(&qos, &[0, 1], &[]).lost, 1);
        assert_eq!(found(&qos, &[0, 0, 1, 2, 2], &[]).twice, 2);
        assert_eq!(found(&qos, &[0, 2, 1], &[]).out_of_order, 1);
        assert_eq!(found(&qos, &[0, 1, 2, 3], &[]).unsent, 1);
        let will = Willed { number: 0, at: 1 };
        assert_eq!(found(&qos, &[1, 2], &[will]).wills_lost, 1);
        assert!(found(&qos, &[1, 2], &[will]).faults().is_some());
    }

    pub(crate) fn the_check_finds_a_retained_message_that_is_older_than_what_was_acknowledged() {
        let mut all = published(&[QoS::AtLeastOnce; 3]);
        let sent = all.topics.remove("t").unwrap();
        all.topics.insert("r/t".to_owned(), sent);
        let stale = |number: Option<usize>| {
            let came = number.map(|number| ("r/t".to_owned(), number));
            let mut found = Found::default();
            found.retained("a", &came.into_iter().collect(), std::slice::from_ref(&all));
            found.stale
        };
        assert_eq!([stale(Some(2)), stale(Some(1)), stale(None)], [0, 1, 1]);
    }

    pub(crate) fn the_check_finds_what_an_earlier_owner_acknowledges_late() {
        let found = |sent: &[(u64, Option<u64>)]| {
            let mut rivals = Rivals::default();
            rivals.note(100, sent.to_vec());
            let mut found = Found::default();
            found.rivals(rivals);
            (found.count, found.rivals.sent_late)
        };
        assert_eq!(found(&[(90, Some(120)), (110, None)]), (0, 1));
        assert_eq!(found(&[(90, Some(120)), (110, Some(130))]), (1, 1));
    }
}
