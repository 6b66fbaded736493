//! Check of the promises against the messages that came.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use mq_client::QoS;

use crate::{
    clients::Sessions,
    expiry::{Verdict, verdict},
    harm::will_qos,
    publisher::{Published, Sent},
    reader::{Came, Interest, Read},
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

/// Findings of the check.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) sent: usize,
    pub(crate) acknowledged: usize,
    /// Messages of QoS 1 and 2 whose client ended, or whose server refused, before the acknowledgement.
    pub(crate) in_doubt: usize,
    /// The servers had no room.
    pub(crate) refused: usize,
    /// Deliveries of refused messages: one that was stored, and whose acknowledgement was lost, is sent again and refused then.
    pub(crate) refused_came: usize,
    pub(crate) came: usize,
    /// QoS 1, which may.
    pub(crate) again: usize,
    pub(crate) qos0_lost: usize,
    pub(crate) lost: usize,
    pub(crate) twice: usize,
    pub(crate) out_of_order: usize,
    /// Messages that came behind later ones, as full servers had refused them: the refusal was lost with its connection, the
    /// client sent them again, and there was room.
    pub(crate) behind_refusals: usize,
    /// Times, from and to, at which the servers were full: a refusal of that time may be lost with its connection.
    full: Vec<(u64, u64)>,
    pub(crate) unsent: usize,
    pub(crate) wills_lost: usize,
    /// Wills of QoS 1 that came again, which is allowed.
    pub(crate) wills_again: usize,
    pub(crate) wills_twice: usize,
    /// Messages that came to members of the shared subscription.
    pub(crate) shared: usize,
    /// Shared messages of QoS 1 that came again, which is allowed.
    pub(crate) shared_again: usize,
    pub(crate) shared_lost: usize,
    pub(crate) shared_twice: usize,
    /// Messages that expire, each for each reader: those that had to come and those that had not to.
    pub(crate) owed_in_time: usize,
    pub(crate) expired: usize,
    pub(crate) lost_in_time: usize,
    pub(crate) came_expired: usize,
    pub(crate) stale: usize,
    pub(crate) forgotten: usize,
    pub(crate) sessions_lost: usize,
    pub(crate) gave_up: usize,
    pub(crate) rivals: Rivals,
    /// Entries of the logs that the witness has read.
    pub(crate) entries: usize,
    /// Entries that NATS has lost or changed itself.
    pub(crate) jetstream: usize,
    /// Entries that NATS has stored although it had them; the brokers know them.
    pub(crate) stored_again: usize,
    /// Entries that a NATS server has stored by a clock that was minutes off.
    pub(crate) mistimed: usize,
    /// Between two acknowledgements of whichever publisher, in milliseconds, and when it began.
    pub(crate) longest_silence: (u64, u64),
    /// Longest wait of a message for its acknowledgement, in milliseconds.
    pub(crate) longest_wait: u64,
    /// Readers that did not receive a lost message, by its topic and number.
    missing: BTreeMap<(String, usize), Vec<String>>,
    /// Places of lost messages in the logs, a line each.
    whereabouts: Vec<String>,
    faults: Vec<String>,
    count: usize,
}

impl Found {
    /// Makes findings of a campaign in which the servers were full at these times.
    pub(crate) fn of_full_servers(full: Vec<(u64, u64)>) -> Self {
        Self {
            full,
            ..Self::default()
        }
    }

    pub(crate) fn fault(&mut self, what: String) {
        self.count += 1;
        if self.faults.len() < WRITTEN_OUT {
            self.faults.push(what);
        }
    }

    /// Returns the faults; `None` if there are none.
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
                    None if sent.is_refused => self.refused += 1,
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

    /// Checks the sessions of all clients: each found its own.
    pub(crate) fn sessions(&mut self, sessions: &[Sessions]) {
        self.sessions_lost = sessions.iter().map(|one| one.lost).sum();
        self.gave_up = sessions.iter().map(|one| one.gave_up).sum();
        if self.sessions_lost > 0 {
            let lost = self.sessions_lost;
            self.fault(format!("{lost} times a client found no session"));
        }
    }

    /// Checks the messages that a reader received, of those that it subscribes to.
    pub(crate) fn read(
        &mut self,
        read: &Read,
        interest: Interest,
        all: &[Published],
        wills: &[Willed],
    ) {
        let mut by_topic: HashMap<&str, Vec<&Came>> = HashMap::new();
        for came in &read.came {
            by_topic.entry(&came.topic).or_default().push(came);
        }
        self.came += read.came.len();
        for (topic, sent) in all.iter().flat_map(|published| &published.topics) {
            let came = by_topic.remove(topic.as_str()).unwrap_or_default();
            if interest == Interest::All || topic.starts_with("e/") {
                self.topic(read, topic, sent, &came);
            }
        }
        let wills = wills.iter().filter(|_| interest == Interest::All);
        for will in wills {
            let topic = format!("will/{}", will.number);
            let came = by_topic.remove(topic.as_str()).unwrap_or_default();
            let id = &read.who.id;
            if came.is_empty() {
                self.wills_lost += 1;
                self.fault(format!("{id}: {topic}, of {} ms, did not come", will.at));
            }
            let again = came.len().saturating_sub(1);
            if again > 0 && both_exactly_once(read, will_qos(will.number)) {
                self.wills_twice += again;
                self.fault(format!("{id}: {topic} came {again} times again"));
            } else {
                self.wills_again += again;
            }
        }
        by_topic.retain(|topic, _| !topic.starts_with("will/"));
        for (topic, came) in by_topic {
            self.unsent += came.len();
            self.fault(format!("{}: nobody published to {topic}", read.who.id));
        }
    }

    /// Checks the messages of one topic, which one publisher has published.
    fn topic(&mut self, read: &Read, topic: &str, sent: &[Sent], came: &[&Came]) {
        let id = &read.who.id;
        let mut first: Vec<Option<u64>> = vec![None; sent.len()];
        // Of QoS 1 and 2, acknowledged.
        let mut last = None;
        let mut was_refused: Vec<bool> = sent.iter().map(|one| one.is_refused).collect();
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
            // A message of QoS 1 that its publisher sends again may come behind later ones if the first of it has expired.
            let may_be_again = qos == QoS::AtLeastOnce && sent[number].expiry.is_some();
            let is_kept = qos != QoS::AtMostOnce && sent[number].acknowledged.is_some();
            if is_kept && !may_be_again {
                // A connection with a refusal that is known, and then with refusals that are lost. QoS 0 has neither.
                let mut before = (0..number).rev();
                let before = before.find(|before| sent[*before].qos != QoS::AtMostOnce);
                let is_behind_refused = before.is_some_and(|before| was_refused[before]);
                if last > Some(number) && (is_behind_refused || self.may_be_refused(sent[number])) {
                    self.behind_refusals += 1;
                    was_refused[number] = true;
                } else if last > Some(number) {
                    self.out_of_order += 1;
                    let what = format!("{id}: {topic} {number} came after {last:?}");
                    self.fault(format!("{what}, at {} ms", one.at));
                }
                last = last.max(Some(number));
            }
        }
        for (number, (sent, first)) in sent.iter().zip(first).enumerate() {
            self.refused_came += usize::from(sent.is_refused && first.is_some());
            if sent.expiry.is_some() {
                self.expiring(read, topic, number, sent, first);
                continue;
            }
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

    /// Returns `true` if the servers were full while the message waited for its acknowledgement.
    fn may_be_refused(&self, sent: Sent) -> bool {
        let until = sent.acknowledged.unwrap_or(u64::MAX);
        let mut full = self.full.iter();
        full.any(|&(from, to)| sent.at <= to && from <= until)
    }

    /// Checks a message that expires: it came in time if it had to, and not after its end.
    fn expiring(
        &mut self,
        read: &Read,
        topic: &str,
        number: usize,
        sent: &Sent,
        came: Option<u64>,
    ) {
        let id = &read.who.id;
        match (verdict(read, sent), came) {
            (Verdict::Owed, came) => {
                self.owed_in_time += 1;
                if came.is_none() {
                    self.lost_in_time += 1;
                    let at = sent.at;
                    self.fault(format!(
                        "{id}: {topic} {number} of {at} ms did not come in time"
                    ));
                }
            }
            (Verdict::Gone(end), came) => {
                self.expired += 1;
                if let Some(at) = came.filter(|at| *at > end) {
                    self.came_expired += 1;
                    let what = format!("{id}: {topic} {number} came at {at} ms");
                    self.fault(format!("{what}, and had expired at {end} ms"));
                }
            }
            (Verdict::Either, _) => {}
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
        for ((topic, number), readers) in self.missing.iter().take(WRITTEN_OUT) {
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

    /// Checks the retained messages that a new reader at this node received.
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

/// Returns `true` if a reader gets each message once: its subscription and the message are of QoS 2, and the client has
/// not given up. A client that gave up, since its own late connection had taken its session over, has forgotten what it
/// has received.
pub(crate) fn both_exactly_once(read: &Read, qos: QoS) -> bool {
    let remembers = read.sessions.gave_up == 0;
    remembers && read.qos == QoS::ExactlyOnce && qos == QoS::ExactlyOnce
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "published {}, acknowledged {} (QoS 1, 2), refused {} (came {}), in doubt {}, never acknowledged {}",
            self.sent,
            self.acknowledged,
            self.refused,
            self.refused_came,
            self.in_doubt,
            self.forgotten
        )?;
        writeln!(
            f,
            "came {}, again {} (QoS 1), QoS 0 lost {}",
            self.came, self.again, self.qos0_lost
        )?;
        writeln!(
            f,
            "lost {}, twice {}, out of order {}, never sent {}, stale retained {}, wills lost {}, twice {} (again {}), \
             sessions lost {}, clients that gave up {}, behind lost refusals {}",
            self.lost,
            self.twice,
            self.out_of_order,
            self.unsent,
            self.stale,
            self.wills_lost,
            self.wills_twice,
            self.wills_again,
            self.sessions_lost,
            self.gave_up,
            self.behind_refusals
        )?;
        writeln!(
            f,
            "shared subscription: {} came, again {} (QoS 1), lost {}, to two members or twice {}",
            self.shared, self.shared_again, self.shared_lost, self.shared_twice
        )?;
        writeln!(
            f,
            "expiring messages: {} had to come in time, lost {}; {} had expired, came {}",
            self.owed_in_time, self.lost_in_time, self.expired, self.came_expired
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
