//! The state of a broker that a store keeps: the result of all changes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant, SystemTime},
};

use mq_codec::{ByteStr, PacketId, SubscriptionId, SubscriptionOptions, TopicFilter, TopicName};
use mq_proto::FlowId;

use super::{
    BrokerId, Change, SessionChange, Spilled, StoreClock, StoredFlow, StoredMessage, User,
};

/// Prefix of the client identifiers of bridges' sessions.
pub(crate) const BRIDGE_PREFIX: &str = "$bridge/";

/// The state that a store keeps, after some number of changes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Snapshot {
    /// Sessions by client identifier.
    pub sessions: HashMap<ByteStr, SessionRecord>,
    /// Retained messages by topic.
    pub retained: HashMap<TopicName, StoredMessage>,
    /// The broker's identifier; `None` as long as no bridge has needed one.
    pub broker_id: Option<BrokerId>,
}

/// The record of a session.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SessionRecord {
    /// The life of the session: connected or not, and its expiry.
    pub life: Life,
    /// The session's user. `None` in a store of an earlier version: the first user that takes up
    /// such a session owns it from then on.
    pub user: Option<User>,
    /// Options and identifier of each subscription, by filter.
    pub subscriptions: HashMap<TopicFilter, (SubscriptionOptions, Option<SubscriptionId>)>,
    /// Messages that wait to be sent, by number and so in order.
    pub queued: BTreeMap<u64, StoredMessage>,
    /// Messages that wait after those of `queued` and are left in the store. `None` if there are
    /// none, or if [`Store::can_spill`](super::Store::can_spill) is `false`.
    pub spilled: Option<Spilled>,
    /// Messages that were sent and are not complete, in the order in which they were first sent;
    /// `None` for those whose PUBREC was received.
    pub in_flight: Vec<(PacketId, Option<StoredMessage>)>,
    /// Identifiers of QoS 2 messages that were received and not released.
    pub received: HashSet<PacketId>,
    /// Records of the flows (MQTT-next) whose state the session keeps, by flow identifier.
    pub flows: HashMap<FlowId, FlowRecord>,
    /// Slots of the flows on which subscriptions were made, by filter. A subscription that was made on no flow is
    /// absent.
    pub slots: HashMap<TopicFilter, u16>,
    /// Slots of messages in flight whose PUBREC was received, by packet identifier. A message of slot 0, the control
    /// lane, is absent.
    pub released_slots: HashMap<PacketId, u16>,
}

/// The record of a flow (MQTT-next).
#[derive(Clone, PartialEq, Debug)]
pub struct FlowRecord {
    /// Slot and expiry of the flow.
    pub kept: StoredFlow,
    /// Identifiers of QoS 2 messages that were received on the flow and not released.
    pub received: HashSet<PacketId>,
}

impl FlowRecord {
    pub(super) fn new(kept: StoredFlow) -> Self {
        Self {
            kept,
            received: HashSet::new(),
        }
    }
}

/// The life of a session: connected or not, and its expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// A connection had the session. The session lives for that long after the end of the
    /// connection, `None` for ever.
    Connected(Option<Duration>),
    /// No connection had the session. The session lives until that time, `None` for ever.
    Away(Option<SystemTime>),
}

impl Life {
    /// Returns the time that a session without a connection has left at `now`, or `None` if it does not end; its recorded
    /// end is a time of `clock`.
    pub(crate) fn left(self, now: Instant, clock: StoreClock<'_>) -> Option<Duration> {
        match self {
            // The end of the earlier owner was the end of its connections.
            Self::Connected(expiry) => expiry,
            Self::Away(at) => at.map(|at| clock.instant_of(at).saturating_duration_since(now)),
        }
    }
}

impl Default for Life {
    fn default() -> Self {
        Self::Connected(None)
    }
}

impl Snapshot {
    /// Applies one change. A change of an unknown session is ignored: the session has ended
    /// meanwhile.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Session(client_id, SessionChange::Ended) => {
                self.sessions.remove(&client_id);
            }
            Change::Session(client_id, change @ SessionChange::Attached { .. }) => {
                self.sessions.entry(client_id).or_default().apply(change);
            }
            Change::Session(client_id, change) => {
                if let Some(session) = self.sessions.get_mut(&client_id) {
                    session.apply(change);
                }
            }
            Change::Retained(message) => {
                let topic = message.message.topic.clone();
                self.retained.insert(topic, message);
            }
            Change::Unretained(topic) => {
                self.retained.remove(&topic);
            }
            Change::BrokerId(id) => self.broker_id = Some(id),
        }
    }

    /// Returns the changes that remove everything that has expired at `now`, except messages that
    /// wait for bridges: a bridge counts an expired message when it is its turn.
    #[must_use]
    pub fn expired(&self, now: SystemTime) -> Vec<Change> {
        let is_over = |message: &StoredMessage| message.expires_at.is_some_and(|at| at <= now);
        let retained = self.retained.iter();
        let mut changes: Vec<_> = retained
            .filter(|(_, message)| is_over(message))
            .map(|(topic, _)| Change::Unretained(topic.clone()))
            .collect();
        for (client_id, session) in &self.sessions {
            let of = |change| Change::Session(client_id.clone(), change);
            let is_over_itself = match session.life {
                Life::Connected(expiry) => expiry == Some(Duration::ZERO),
                Life::Away(expires_at) => expires_at.is_some_and(|at| at <= now),
            };
            if is_over_itself {
                changes.push(of(SessionChange::Ended));
                continue;
            }
            if client_id.starts_with(BRIDGE_PREFIX) {
                continue;
            }
            let queued = session
                .queued
                .iter()
                .filter(|(_, message)| is_over(message));
            changes
                .extend(queued.map(|(number, _)| of(SessionChange::Unqueued { number: *number })));
        }
        changes
    }

    /// Removes everything that has expired at `now`.
    pub fn expire(&mut self, now: SystemTime) {
        for change in self.expired(now) {
            self.apply(change);
        }
    }
}

impl SessionRecord {
    fn apply(&mut self, change: SessionChange) {
        match change {
            SessionChange::Attached { expiry, user } => {
                self.life = Life::Connected(expiry);
                self.user = Some(user);
            }
            SessionChange::Detached { expires_at } => self.life = Life::Away(expires_at),
            // The session's record was removed before.
            SessionChange::Ended => {}
            SessionChange::Subscribed {
                filter,
                options,
                subscription_id,
                slot,
            } => {
                match slot {
                    0 => self.slots.remove(&filter),
                    slot => self.slots.insert(filter.clone(), slot),
                };
                self.subscriptions
                    .insert(filter, (options, subscription_id));
            }
            SessionChange::Unsubscribed { filter } => {
                self.subscriptions.remove(&filter);
                self.slots.remove(&filter);
            }
            SessionChange::Queued { number, message } => {
                self.queued.insert(number, message);
            }
            SessionChange::Unqueued { number } => {
                self.queued.remove(&number);
            }
            SessionChange::Sent { number, packet_id } => {
                if let Some(message) = self.queued.remove(&number) {
                    // An identifier belongs to one message at a time.
                    self.in_flight.retain(|(id, _)| *id != packet_id);
                    self.released_slots.remove(&packet_id);
                    self.in_flight.push((packet_id, Some(message)));
                }
            }
            SessionChange::Released { packet_id } => {
                let sent = self.in_flight.iter_mut();
                let slots = sent
                    .filter(|(id, _)| *id == packet_id)
                    .filter_map(|(_, message)| message.take())
                    .map(|message| message.slot);
                if let Some(slot) = slots.last() {
                    self.note_slot(packet_id, slot);
                }
            }
            SessionChange::Completed { packet_id } => {
                self.in_flight.retain(|(id, _)| *id != packet_id);
                self.released_slots.remove(&packet_id);
            }
            SessionChange::Received { packet_id, flow } => {
                if let Some(received) = self.received_on(flow) {
                    received.insert(packet_id);
                }
            }
            SessionChange::ReceivedReleased { packet_id, flow } => {
                if let Some(received) = self.received_on(flow) {
                    received.remove(&packet_id);
                }
            }
            SessionChange::FlowKept { flow, kept } => {
                let flow = self.flows.entry(flow);
                flow.or_insert_with(|| FlowRecord::new(kept)).kept = kept;
            }
            SessionChange::FlowEnded { flow } => {
                self.flows.remove(&flow);
            }
        }
    }

    /// Returns the identifiers of QoS 2 messages received on a flow or, without one, in the
    /// session; `None` if the flow has ended meanwhile.
    fn received_on(&mut self, flow: Option<FlowId>) -> Option<&mut HashSet<PacketId>> {
        match flow {
            None => Some(&mut self.received),
            Some(flow) => Some(&mut self.flows.get_mut(&flow)?.received),
        }
    }

    /// Notes the slot of a message whose PUBREC was received.
    pub(super) fn note_slot(&mut self, packet_id: PacketId, slot: u16) {
        if slot > 0 {
            self.released_slots.insert(packet_id, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mq_codec::QoS;
    use mq_proto::Message;

    use super::*;

    fn message(payload: &str) -> StoredMessage {
        StoredMessage {
            message: Arc::new(Message::new(
                TopicName::new("t").unwrap(),
                payload.to_owned(),
            )),
            qos: QoS::ExactlyOnce,
            retain: false,
            subscription_ids: Vec::new(),
            expires_at: None,
            shared: false,
            slot: 0,
        }
    }

    fn after(changes: impl IntoIterator<Item = SessionChange>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let client = ByteStr::new("c").unwrap();
        for change in changes {
            snapshot.apply(Change::Session(client.clone(), change));
        }
        snapshot
    }

    #[test]
    fn a_message_is_queued_then_in_flight_then_gone() {
        let packet_id = PacketId::FIRST;
        let mut changes = vec![
            attached(),
            SessionChange::Queued {
                number: 1,
                message: message("x"),
            },
            SessionChange::Sent {
                number: 1,
                packet_id,
            },
            SessionChange::Released { packet_id },
            SessionChange::Completed { packet_id },
        ];
        let mut seen = Vec::new();
        while changes.len() > 1 {
            let session = after(changes.clone())
                .sessions
                .into_values()
                .next()
                .unwrap();
            let sent = session
                .in_flight
                .first()
                .map(|(_, message)| message.is_some());
            seen.push((session.queued.len(), sent));
            changes.pop();
        }
        let expected = [(0, None), (0, Some(false)), (0, Some(true)), (1, None)];
        assert_eq!(seen, expected);
    }

    fn attached() -> SessionChange {
        SessionChange::Attached {
            expiry: None,
            user: User::Anonymous,
        }
    }

    #[test]
    fn an_identifier_stands_for_one_message() {
        let packet_id = PacketId::FIRST;
        let mut changes = vec![attached()];
        for number in [1, 2] {
            let message = message(&number.to_string());
            changes.push(SessionChange::Queued { number, message });
            changes.push(SessionChange::Sent { number, packet_id });
        }
        let session = after(changes).sessions.into_values().next().unwrap();
        assert_eq!(session.in_flight, [(packet_id, Some(message("2")))]);
    }

    #[test]
    fn changes_to_a_session_that_has_ended_do_nothing() {
        let late = SessionChange::Queued {
            number: 1,
            message: message("x"),
        };
        let attached = attached();
        let snapshot = after([attached, SessionChange::Ended, late]);
        assert_eq!(snapshot, Snapshot::default());
    }

    #[test]
    fn what_has_expired_is_left_out() {
        let now = SystemTime::now();
        let past = Some(now);
        let future = Some(now + Duration::from_secs(1));
        let mut snapshot = Snapshot::default();
        for (name, expires_at) in [("old", past), ("new", future), ("ever", None)] {
            let client = ByteStr::new(name).unwrap();
            let attached = attached();
            snapshot.apply(Change::Session(client.clone(), attached));
            let queued = SessionChange::Queued {
                number: 1,
                message: StoredMessage {
                    expires_at: past,
                    ..message("x")
                },
            };
            snapshot.apply(Change::Session(client.clone(), queued));
            let detached = SessionChange::Detached { expires_at };
            snapshot.apply(Change::Session(client, detached));
        }
        snapshot.apply(Change::Retained(StoredMessage {
            expires_at: past,
            ..message("x")
        }));
        snapshot.expire(now);
        assert!(snapshot.retained.is_empty());
        let mut left: Vec<_> = snapshot.sessions.keys().map(ToString::to_string).collect();
        left.sort();
        assert_eq!(left, ["ever", "new"]);
        assert!(
            snapshot
                .sessions
                .values()
                .all(|session| session.queued.is_empty())
        );
    }
}
