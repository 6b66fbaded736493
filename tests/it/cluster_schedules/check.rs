//! The rules that every run keeps, whatever has happened.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use mq_client::QoS;

use super::{
    history::{ALL_IS_WELL, Event},
    schedule::{
        FIRST_MEMBER, FIRST_MORTAL, FIRST_READER, PUBLISHERS, Part, Schedule, Step, TOPICS,
        WITNESS, client_name, topic,
    },
};

type Events = [(Duration, Event)];

/// Time after a client's death within which its session may have come back before its will was due.
const WILL_MARGIN: Duration = Duration::from_secs(30);

/// Part of the storage, in percent, from which on nodes refuse messages.
const FULL_PERCENT: u8 = 95;

/// Time after the storage has room again in which each node learns of it.
const ROOM_KNOWN: Duration = Duration::from_secs(11);

/// Time after the storage was set back in which the records of sessions may still be those of the copy.
const RECORDS_WRITTEN: Duration = Duration::from_secs(10);

/// Returns the QoS of a connection's will.
pub(super) fn will_qos(connection: usize) -> QoS {
    [QoS::ExactlyOnce, QoS::AtLeastOnce][connection % 2]
}

/// Returns the delay of a connection's will.
pub(super) fn will_delay(client: usize, connection: usize) -> Duration {
    let ends_with_connection = client == FIRST_MORTAL;
    Duration::from_secs(if !ends_with_connection && connection % 3 == 2 {
        3
    } else {
        0
    })
}

/// Returns `true` once all these clients are subscribed, and all others of the schedule are connected.
pub(super) fn all_subscribed(events: &Events, clients: Range<usize>) -> bool {
    let subscribed: BTreeSet<_> = events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Subscribed { client } => Some(*client),
            _ => None,
        })
        .collect();
    let connected: BTreeSet<_> = events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Connected { client, .. } => Some(*client),
            _ => None,
        })
        .collect();
    clients.clone().all(|client| subscribed.contains(&client))
        && (0..WITNESS).all(|client| connected.contains(&client))
}

/// A message of a publisher.
struct Published {
    publisher: usize,
    topic: String,
    qos: QoS,
    at: Duration,
    acknowledged_at: Option<Duration>,
    is_refused: bool,
    /// `true` if it was in flight when the cluster had lost its publisher's session.
    is_unsure: bool,
}

/// A connection of a client with a will.
struct Mortal {
    began_at: Duration,
    connected_at: Option<Duration>,
    /// The time of its end, and `true` if DISCONNECT was sent.
    ended: Option<(Duration, bool)>,
}

/// The storage was set back.
struct SetBack {
    copied_at: Duration,
    at: Duration,
    part: Part,
}

/// Returns what was so at a time, by the times in order from which on it was so or not; `false` before the first.
fn was(changes: &[(Duration, bool)], time: Duration) -> bool {
    let before = changes.iter().rfind(|(at, _)| *at <= time);
    before.is_some_and(|(_, is_so)| *is_so)
}

/// The contents of the events of a run.
struct Seen<'a> {
    schedule: &'a Schedule,
    published: Vec<Published>,
    /// Topics and payloads that each client has received, in order.
    received: BTreeMap<usize, Vec<(&'a str, &'a str)>>,
    mortals: BTreeMap<usize, Vec<Mortal>>,
    set_back: Option<SetBack>,
    /// Times at which something was done to nodes or to what they share.
    harmed_at: Vec<Duration>,
    /// Times from which on the storage was full, or was not.
    filled_at: Vec<(Duration, bool)>,
    /// Times from which on a log took nothing, or all of them took entries.
    stalled_at: Vec<(Duration, bool)>,
    /// Times at which a node has begun, or something that disturbed the cluster has ended.
    mended_at: Vec<Duration>,
    problems: Vec<String>,
}

impl<'a> Seen<'a> {
    fn new(schedule: &'a Schedule, events: &'a Events) -> Self {
        let mut seen = Self {
            schedule,
            published: Vec::new(),
            received: BTreeMap::new(),
            mortals: BTreeMap::new(),
            set_back: None,
            harmed_at: Vec::new(),
            filled_at: Vec::new(),
            stalled_at: Vec::new(),
            mended_at: Vec::new(),
            problems: Vec::new(),
        };
        seen.note_steps(events);
        let mut has_session = BTreeSet::new();
        for (at, event) in events {
            match event {
                Event::Published {
                    publisher,
                    topic: number,
                    qos,
                    ..
                } => seen.published.push(Published {
                    publisher: *publisher,
                    topic: topic(*publisher, *number),
                    qos: *qos,
                    at: *at,
                    acknowledged_at: None,
                    is_refused: false,
                    is_unsure: false,
                }),
                Event::NodeBegan {
                    has_begun: true, ..
                } => seen.mended_at.push(*at),
                Event::Step(step) if step == ALL_IS_WELL => {
                    seen.mended_at.push(*at);
                    seen.stalled_at.push((*at, false));
                }
                Event::Acknowledged { number } => {
                    seen.published[*number].acknowledged_at.get_or_insert(*at);
                }
                Event::Refused { number } => seen.published[*number].is_refused = true,
                Event::SessionLost { client } => {
                    let own = seen.published.iter_mut();
                    let own = own.filter(|one| one.publisher == *client);
                    for one in own.filter(|one| one.acknowledged_at.is_none()) {
                        one.is_unsure = true;
                    }
                }
                Event::Received {
                    client,
                    topic,
                    payload,
                    is_retained: false,
                    ..
                } => {
                    let received = seen.received.entry(*client).or_default();
                    received.push((topic, payload));
                }
                Event::Connecting { client, .. } => {
                    seen.mortals.entry(*client).or_default().push(Mortal {
                        began_at: *at,
                        connected_at: None,
                        ended: None,
                    });
                }
                Event::Connected {
                    client,
                    session_present,
                    ..
                } => {
                    if let Some(last) = seen.mortals.get_mut(client).and_then(|all| all.last_mut())
                    {
                        last.connected_at = Some(*at);
                    }
                    let is_first = has_session.insert(*client);
                    let is_kept = *client != FIRST_MORTAL && *client <= WITNESS;
                    if is_kept && !is_first && !session_present {
                        seen.problem(format!("the session of {} is lost", client_name(*client)));
                    }
                }
                Event::Disconnected {
                    client, in_order, ..
                } => {
                    if let Some(last) = seen.mortals.get_mut(client).and_then(|all| all.last_mut())
                    {
                        last.ended = Some((*at, *in_order));
                    }
                }
                _ => {}
            }
        }
        seen
    }

    fn note_steps(&mut self, events: &Events) {
        let steps = events
            .iter()
            .filter_map(|(at, event)| match event {
                Event::Step(_) => Some(*at),
                _ => None,
            })
            .zip(&self.schedule.steps);
        let mut copied_at = None;
        let mut stalled = BTreeSet::new();
        for (at, (_, step)) in steps {
            if let Step::Stall { log, is_stalled } = step {
                if *is_stalled {
                    stalled.insert(*log);
                } else {
                    stalled.remove(log);
                }
                self.stalled_at.push((at, !stalled.is_empty()));
            }
            match step {
                Step::Copy => copied_at = Some(at),
                Step::SetBack(part) => {
                    self.set_back = copied_at.map(|copied_at| SetBack {
                        copied_at,
                        at,
                        part: *part,
                    });
                }
                Step::Publish { .. }
                | Step::Go { .. }
                | Step::Leave { .. }
                | Step::Vanish { .. } => {}
                Step::Stall {
                    is_stalled: false, ..
                }
                | Step::Partition {
                    is_cut_off: false, ..
                }
                | Step::Lag { lags: false, .. } => {
                    self.mended_at.push(at);
                    self.harmed_at.push(at);
                }
                Step::Fill { percent } => {
                    self.filled_at.push((at, *percent >= FULL_PERCENT));
                    self.harmed_at.push(at);
                }
                _ => self.harmed_at.push(at),
            }
        }
    }

    /// Returns `true` if a message may have been refused: it waited for its acknowledgement while the storage was full, or
    /// while a node did not know yet that there is room. A publisher that does not learn of the refusal, since its node
    /// dies or its connection ends, sends the message again behind later ones.
    fn may_be_refused(&self, message: &Published) -> bool {
        let from = message.at.saturating_sub(ROOM_KNOWN);
        let until = message.acknowledged_at.unwrap_or(Duration::MAX);
        let mut changes = self.filled_at.iter();
        was(&self.filled_at, from)
            || changes.any(|(at, is_full)| *is_full && (from..=until).contains(at))
    }

    fn problem(&mut self, problem: String) {
        self.problems.push(problem);
    }

    /// Returns `true` if the message may be lost with the storage that was set back: it was acknowledged since the copy, or
    /// was published before all nodes knew and one of them did not live to write its records again (see the guide's
    /// "What is not there yet").
    fn may_be_lost(&self, message: &Published) -> bool {
        let Some(at) = message.acknowledged_at else {
            return true;
        };
        let Some(set_back) = &self.set_back else {
            return false;
        };
        let unknown = set_back.at..set_back.at + RECORDS_WRITTEN;
        let is_harmed = self.harmed_at.iter().any(|at| unknown.contains(at));
        let is_of_lost_part =
            set_back.part != Part::Values && set_back.copied_at < at && at <= set_back.at;
        is_of_lost_part || is_harmed && message.at < unknown.end && at > set_back.copied_at
    }

    /// Returns `true` if the message may come again, or out of order, at QoS 2 as well.
    fn may_come_again(&self, message: &Published) -> bool {
        let is_of_before = |set_back: &SetBack| message.at <= set_back.at + RECORDS_WRITTEN;
        message.is_unsure || self.set_back.as_ref().is_some_and(is_of_before)
    }

    /// Returns `true` if nodes may choose different members for the message, since the storage was set back just before.
    fn is_unsettled(&self, message: &Published) -> bool {
        let until = self
            .set_back
            .as_ref()
            .map(|set_back| set_back.at + RECORDS_WRITTEN);
        until.is_some_and(|until| message.at <= until)
    }

    fn times(&self, client: usize, topic: &str, payload: &str) -> usize {
        let received = self.received.get(&client).into_iter().flatten();
        received.filter(|one| **one == (topic, payload)).count()
    }

    fn readers(&self) -> impl Iterator<Item = usize> + use<> {
        let witness = self.schedule.is_last_spared.then_some(WITNESS);
        (FIRST_READER..FIRST_MEMBER).chain(witness)
    }

    fn check_missing(&mut self) {
        let mut problems = Vec::new();
        for (number, message) in self.published.iter().enumerate() {
            let (topic, qos) = (&message.topic, message.qos);
            if message.acknowledged_at.is_none() && !message.is_refused && !message.is_unsure {
                problems.push(format!("{number} of {topic} ({qos:?}) is not acknowledged"));
            }
            if self.may_be_lost(message) {
                continue;
            }
            for reader in self.readers() {
                if self.times(reader, topic, &number.to_string()) == 0 {
                    let reader = client_name(reader);
                    problems.push(format!(
                        "{number} of {topic} ({qos:?}) is lost for {reader}"
                    ));
                }
            }
            if self.is_unsettled(message) {
                continue;
            }
            let of_group = (FIRST_MEMBER..FIRST_MORTAL)
                .map(|member| self.times(member, topic, &number.to_string()));
            if of_group.sum::<usize>() == 0 {
                problems.push(format!(
                    "{number} of {topic} ({qos:?}) is lost for the group"
                ));
            }
        }
        self.problems.extend(problems);
    }

    fn check_repeated(&mut self) {
        let mut problems = Vec::new();
        let at_qos2 = self.published.iter().enumerate();
        let at_qos2 = at_qos2.filter(|(_, message)| message.qos == QoS::ExactlyOnce);
        for (number, message) in at_qos2.filter(|(_, message)| !self.may_come_again(message)) {
            let topic = &message.topic;
            let payload = number.to_string();
            let readers = self.readers().filter(|reader| *reader != FIRST_READER + 1);
            for reader in readers {
                let times = self.times(reader, topic, &payload);
                if times > 1 {
                    let reader = client_name(reader);
                    problems.push(format!(
                        "{number} of {topic} came {times} times to {reader}"
                    ));
                }
            }
            if self.is_unsettled(message) {
                continue;
            }
            let members = FIRST_MEMBER..FIRST_MORTAL;
            let times = members.map(|member| self.times(member, topic, &payload));
            let times: usize = times.sum();
            if times > 1 {
                problems.push(format!(
                    "{number} of {topic} came {times} times to the group"
                ));
            }
        }
        self.problems.extend(problems);
    }

    fn check_order(&mut self) {
        let mut problems = Vec::new();
        for reader in self.readers() {
            let mut last: BTreeMap<&str, usize> = BTreeMap::new();
            let mut known = BTreeSet::new();
            for (topic, payload) in self.received.get(&reader).into_iter().flatten() {
                let Some(number) = topic
                    .starts_with("t/")
                    .then(|| payload.parse::<usize>().unwrap())
                else {
                    continue;
                };
                let message = &self.published[number];
                let may_be_late = self.may_come_again(message) || self.may_be_refused(message);
                if may_be_late || !known.insert(number) {
                    continue;
                }
                let before = last.insert(topic, number);
                if let Some(before) = before.filter(|before| *before > number) {
                    let reader = client_name(reader);
                    problems.push(format!(
                        "{number} of {topic} came behind {before} to {reader}"
                    ));
                }
            }
        }
        self.problems.extend(problems);
    }

    /// Returns how often the will of each connection has to come, at least and at most.
    fn expected_wills(&self, client: usize) -> Vec<(usize, usize)> {
        let all = self.mortals.get(&client).into_iter().flatten();
        let all: Vec<_> = all.collect();
        let expected = all.iter().enumerate().map(|(n, one)| {
            let is_of_before = |set_back: &SetBack| one.began_at <= set_back.at + RECORDS_WRITTEN;
            if self.set_back.as_ref().is_some_and(is_of_before) {
                return (0, usize::MAX);
            }
            match one.ended {
                None => (0, 0),
                Some(_) if one.connected_at.is_none() => (0, 1),
                Some((at, true)) => {
                    let near = one.began_at.saturating_sub(WILL_MARGIN)..at + WILL_MARGIN;
                    let is_harmed = self.harmed_at.iter().any(|at| near.contains(at));
                    (0, usize::from(is_harmed))
                }
                Some((at, false)) => {
                    let delay = will_delay(client, n);
                    // While no node lives, or a log takes nothing, nobody publishes the will. A client that has waited for that
                    // is served at once then.
                    let is_back = |next: &&Mortal| {
                        let served_at = next.connected_at.unwrap_or(next.began_at);
                        let mended = self.mended_at.iter().filter(|at| **at <= served_at);
                        let due_from = mended.max().copied().unwrap_or_default().max(at);
                        next.began_at < due_from + delay + WILL_MARGIN
                            || was(&self.stalled_at, served_at)
                    };
                    // A connection whose client does not wait for CONNACK may have resumed the session as well.
                    let later = &all[n + 1..];
                    let connected = later.iter().position(|next| next.connected_at.is_some());
                    let until = connected.map_or(later.len(), |connected| connected + 1);
                    let is_back = later[..until].iter().any(is_back);
                    (usize::from(!is_back), 1)
                }
            }
        });
        expected.collect()
    }

    /// Checks the wills at the witness, if nothing has happened to it, and else at a reader.
    fn check_wills(&mut self, only_missing: bool) {
        let is_at_rest = self.mortals.get(&WITNESS).is_some_and(|all| all.len() == 1);
        let observer = if self.schedule.is_last_spared && is_at_rest {
            WITNESS
        } else {
            FIRST_READER
        };
        let mut problems = Vec::new();
        for client in FIRST_MORTAL..WITNESS {
            let name = client_name(client);
            let expected = self.expected_wills(client);
            for (connection, (least, most)) in expected.into_iter().enumerate() {
                let topic = format!("will/{name}");
                let times = self.times(observer, &topic, &connection.to_string());
                let counts = observer == WITNESS || will_qos(connection) == QoS::ExactlyOnce;
                if times < least || counts && times > most && !only_missing {
                    problems.push(format!(
                        "will {connection} of {name} came {times} times, not {least} to {most}"
                    ));
                }
            }
        }
        self.problems.extend(problems);
    }
}

/// Returns what is still to come.
pub(super) fn missing(schedule: &Schedule, events: &Events) -> Vec<String> {
    let mut seen = Seen::new(schedule, events);
    seen.problems.clear();
    seen.check_missing();
    seen.check_wills(true);
    seen.problems
}

/// Returns everything that is wrong at the end.
pub(super) fn problems(schedule: &Schedule, events: &Events) -> Vec<String> {
    let mut seen = Seen::new(schedule, events);
    seen.check_missing();
    seen.check_repeated();
    seen.check_order();
    seen.check_wills(false);
    seen.problems
}

/// Returns what is wrong with the retained messages that new clients have received.
pub(super) fn retained(schedule: &Schedule, events: &Events, clients: Range<usize>) -> Vec<String> {
    let seen = Seen::new(schedule, events);
    let mut problems = Vec::new();
    for publisher in 0..PUBLISHERS {
        let wanted = topic(publisher, TOPICS - 1);
        let last = seen.published.iter().rposition(|one| one.topic == wanted);
        let last = last.map(|number| number.to_string());
        for probe in clients.clone() {
            let received = events.iter().filter_map(|(_, event)| match event {
                Event::Received {
                    client,
                    topic,
                    payload,
                    is_retained: true,
                    ..
                } if *client == probe && *topic == wanted => Some(payload.clone()),
                _ => None,
            });
            let received: Vec<_> = received.collect();
            if received.len() != 1 || received.last() != last.as_ref() {
                let node = probe - clients.start;
                problems.push(format!(
                    "{wanted} has {received:?} at node {node}, not {last:?}"
                ));
            }
        }
    }
    problems
}
