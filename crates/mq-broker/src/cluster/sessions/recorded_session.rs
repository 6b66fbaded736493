//! The recorded state of a session, change by change.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use mq_codec::{PacketId, QoS, SubscriptionId, SubscriptionOptions, TopicFilter};

use crate::store::{
    At, Life, LogPosition, SessionChange, StoredMessage, StoredWill, User, encode_message,
};

/// State of a session that its owner keeps in the session's record, so that another node can take the session over.
#[derive(Clone, PartialEq, Debug, Default)]
pub(in crate::cluster) struct RecordedSession {
    /// The number of the session among those of its client: the version of its first record.
    pub(in crate::cluster) number: u64,
    pub(in crate::cluster) life: Life,
    pub(in crate::cluster) user: Option<User>,
    pub(in crate::cluster) subscriptions:
        BTreeMap<TopicFilter, (SubscriptionOptions, Option<SubscriptionId>)>,
    /// Messages that wait to be sent, by their number in the queue.
    pub(super) waiting: BTreeMap<u64, OwedMessage>,
    /// Messages that were sent and not completed, in the order of sending; `None` in place of one whose PUBREC was
    /// received.
    pub(super) in_flight: Vec<(PacketId, Option<OwedMessage>)>,
    /// Packet identifiers of QoS 2 messages that the client has published and not released yet.
    pub(super) received: BTreeSet<PacketId>,
    /// The will, which is published if the client's node dies.
    pub(super) will: Option<Box<StoredWill>>,
    /// The cluster's time at which its client has last connected; `None` if it was not known.
    pub(super) connected_at: Option<SystemTime>,
    /// The place, by log, of the last message that was queued for the session.
    pub(in crate::cluster) seen: BTreeMap<u16, At>,
}

/// A message that a session still has to get.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum OwedMessage {
    /// A message in a log: its place, and the form in which the session gets it.
    Logged(LogPosition, DeliveryForm),
    /// A message that is in the record itself: a retained message, or a copy of one in a log.
    Embedded(Box<StoredMessage>),
}

/// Place of a message in a session: in its queue or in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessagePlace {
    /// A place in the queue, by the message's number.
    Waiting(u64),
    /// The message was sent with this packet identifier.
    InFlight(PacketId),
}

/// The form in which a message of a log is sent to one session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DeliveryForm {
    pub(super) qos: QoS,
    pub(in crate::cluster) retain: bool,
    pub(super) subscription_ids: Vec<SubscriptionId>,
}

impl OwedMessage {
    /// Makes an owed message: by its place if it came from the log at `origin`, else with its content.
    fn new(message: StoredMessage, origin: Option<LogPosition>) -> Self {
        let Some(position) = origin else {
            return Self::Embedded(Box::new(message));
        };
        let StoredMessage {
            qos,
            retain,
            subscription_ids,
            ..
        } = message;
        let form = DeliveryForm {
            qos,
            retain,
            subscription_ids,
        };
        Self::Logged(position, form)
    }

    pub(super) fn qos(&self) -> QoS {
        match self {
            Self::Logged(_, form) => form.qos,
            Self::Embedded(message) => message.qos,
        }
    }

    /// Replaces the place of this message by a copy of `logged`, the message that its log has there, so that the log
    /// may lose it. Does nothing and returns `false` if this message is not the one at `there`.
    pub(in crate::cluster) fn copy(&mut self, there: LogPosition, logged: &StoredMessage) -> bool {
        match self {
            Self::Logged(position, form) if *position == there => {
                *self = Self::Embedded(Box::new(form.apply_to(logged)));
                true
            }
            _ => false,
        }
    }

    /// Returns the encoded size, in bytes, of a message that is in the record itself; 0 for a message that a log has.
    pub(super) fn embedded_bytes(&self) -> usize {
        match self {
            Self::Logged(..) => 0,
            Self::Embedded(message) => encoded_size(message),
        }
    }

    /// Returns the place of the message in the logs; `None` if the record has the message itself.
    pub(in crate::cluster) fn position(&self) -> Option<LogPosition> {
        match self {
            Self::Logged(position, _) => Some(*position),
            Self::Embedded(_) => None,
        }
    }
}

/// Returns the encoded size of a message, in bytes; `usize::MAX` if it cannot be encoded.
pub(in crate::cluster) fn encoded_size(message: &StoredMessage) -> usize {
    encode_message(message).map_or(usize::MAX, |bytes| bytes.len())
}

impl DeliveryForm {
    /// Makes the message that the session gets from the message `logged` of a log.
    pub(in crate::cluster) fn apply_to(&self, logged: &StoredMessage) -> StoredMessage {
        StoredMessage {
            qos: self.qos,
            retain: self.retain,
            subscription_ids: self.subscription_ids.clone(),
            ..logged.clone()
        }
    }
}

impl RecordedSession {
    /// Applies a change to the state. Returns `true` if it is urgent: if it has to be in the record before anybody learns of
    /// it, such as the client by an acknowledgement. If one that is not is lost, a message of QoS 1 may be delivered again.
    /// `origin` is the place in the logs of a message that the change queues; `None` if the message is in no log.
    pub(super) fn apply(&mut self, change: SessionChange, origin: Option<LogPosition>) -> bool {
        match change {
            SessionChange::Attached { expiry, user } => {
                let life = Life::Connected(expiry);
                if self.life == life && self.user.as_ref() == Some(&user) {
                    return false;
                }
                self.life = life;
                self.user = Some(user);
                true
            }
            SessionChange::Detached { expires_at } => {
                self.life = Life::Away(expires_at);
                false
            }
            SessionChange::Subscribed {
                filter,
                options,
                subscription_id,
                ..
            } => {
                let new = (options, subscription_id);
                self.subscriptions.insert(filter, new) != Some(new)
            }
            SessionChange::Unsubscribed { filter } => {
                self.subscriptions.remove(&filter);
                true
            }
            SessionChange::Queued { number, message } => {
                if let Some(position) = origin {
                    let seen = self.seen.entry(position.shard).or_default();
                    *seen = position.at.max(*seen);
                }
                self.waiting
                    .insert(number, OwedMessage::new(message, origin));
                false
            }
            SessionChange::Unqueued { number } => {
                self.waiting.remove(&number);
                false
            }
            SessionChange::Sent { number, packet_id } => {
                let Some(owed) = self.waiting.remove(&number) else {
                    return false;
                };
                let is_once = owed.qos() == QoS::ExactlyOnce;
                // An identifier stands for one message at a time.
                self.in_flight.retain(|(id, _)| *id != packet_id);
                self.in_flight.push((packet_id, Some(owed)));
                is_once
            }
            SessionChange::Released { packet_id } => {
                for (_, owed) in self.in_flight.iter_mut().filter(|(id, _)| *id == packet_id) {
                    *owed = None;
                }
                true
            }
            SessionChange::Completed { packet_id } => {
                self.in_flight.retain(|(id, _)| *id != packet_id);
                false
            }
            // In the log, with the message.
            SessionChange::Received {
                packet_id,
                flow: None,
            } => {
                self.received.insert(packet_id);
                false
            }
            SessionChange::ReceivedReleased {
                packet_id,
                flow: None,
            } => {
                self.received.remove(&packet_id);
                true
            }
            // Flows (MQTT-next) end with their owner. The end of a session is not a change of what is kept.
            SessionChange::Received { .. }
            | SessionChange::ReceivedReleased { .. }
            | SessionChange::FlowKept { .. }
            | SessionChange::FlowEnded { .. }
            | SessionChange::Ended => false,
        }
    }

    /// Makes the state of a new session, which ends with its connection until a change says otherwise.
    pub(super) fn transient(number: u64) -> Self {
        Self {
            number,
            life: Life::Connected(Some(Duration::ZERO)),
            ..Self::default()
        }
    }

    /// Returns `true` if the session ends with its connection.
    pub(super) fn ends_with_connection(&self) -> bool {
        self.life == Life::Connected(Some(Duration::ZERO))
    }

    /// Replaces the will. Returns `true` if the change is urgent, as [`apply`](Self::apply) does.
    pub(super) fn set_will(&mut self, will: Option<Box<StoredWill>>) -> bool {
        core::mem::replace(&mut self.will, will) != self.will
    }

    /// Returns the messages that the session still has to get, those that wait before those in flight.
    pub(super) fn owed(&self) -> impl Iterator<Item = (MessagePlace, &OwedMessage)> {
        let waiting = self.waiting.iter();
        let waiting = waiting.map(|(number, owed)| (MessagePlace::Waiting(*number), owed));
        let in_flight = self.in_flight.iter();
        let in_flight =
            in_flight.filter_map(|(id, owed)| Some((MessagePlace::InFlight(*id), owed.as_ref()?)));
        waiting.chain(in_flight)
    }

    /// Returns the places in the logs of the messages that the session still has to get.
    pub(in crate::cluster) fn positions(&self) -> impl Iterator<Item = LogPosition> {
        self.owed().filter_map(|(_, owed)| owed.position())
    }
}
