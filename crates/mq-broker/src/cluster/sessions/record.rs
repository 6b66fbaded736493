//! A session as the cluster keeps it.
//!
//! Messages stay in the logs: the record names their places. What is behind the record's places in the logs has not
//! been looked at for the session, so that its next owner reads on from there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use bytes::Bytes;
use mq_codec::{PacketId, QoS, SubscriptionId, SubscriptionOptions, TopicFilter, Version};

use crate::{
    cluster::{
        engine::{Malformed, Reader, Writer},
        log::Author,
    },
    store::{
        At, Life, LogPosition, SessionChange, StoredMessage, StoredWill, User, encode_message,
        read_life, read_user, write_life, write_user,
    },
};

const VERSION: u8 = 1;

/// The value of a session's key.
#[derive(Clone, PartialEq, Debug, Default)]
pub(in crate::cluster) struct Record {
    /// The node that has it. Without one any node may take it.
    pub(in crate::cluster) owner: Option<Author>,
    /// `None` if it has ended.
    pub(in crate::cluster) session: Option<Kept>,
    /// By log: what is here or behind was not looked at for the session.
    pub(in crate::cluster) next: Vec<At>,
    /// What the owner says of all its sessions does not hold for this one: it has not been read since it was claimed.
    pub(in crate::cluster) is_behind: bool,
}

/// What a session's owner keeps of it.
#[derive(Clone, PartialEq, Debug, Default)]
pub(in crate::cluster) struct Kept {
    /// Which of the client's sessions it is: the version that its first record has got.
    pub(in crate::cluster) number: u64,
    pub(in crate::cluster) life: Life,
    pub(in crate::cluster) user: Option<User>,
    pub(in crate::cluster) subscriptions:
        HashMap<TopicFilter, (SubscriptionOptions, Option<SubscriptionId>)>,
    /// Messages that wait, by their number in the queue.
    pub(super) waiting: BTreeMap<u64, Owed>,
    /// Messages that were sent, in that order; `None` once PUBREC has come.
    pub(super) in_flight: Vec<(PacketId, Option<Owed>)>,
    /// QoS 2 messages of its client that were not released yet.
    pub(super) received: BTreeSet<PacketId>,
    /// What is published if its client's node dies.
    pub(super) will: Option<Box<StoredWill>>,
    /// By log: up to where messages were queued.
    pub(in crate::cluster) seen: BTreeMap<u16, At>,
}

/// A message for a session.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Owed {
    /// In a log.
    Logged(LogPosition, Form),
    /// Of this session alone: a retained message, or a copy of one in a log.
    Own(Box<StoredMessage>),
}

/// Where a session has a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// By its number in the queue.
    Waiting(u64),
    InFlight(PacketId),
}

/// How a message from a log is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Form {
    pub(super) qos: QoS,
    pub(in crate::cluster) retain: bool,
    pub(super) subscription_ids: Vec<SubscriptionId>,
}

/// Whether, and when, a change has to be in the record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Urgency {
    /// It follows from the logs.
    Never,
    /// Without it a message of QoS 1 may come again.
    Later,
    /// Before anybody learns of it.
    Now,
}

impl Owed {
    fn new(message: StoredMessage, origin: Option<LogPosition>) -> Self {
        let Some(position) = origin else {
            return Self::Own(Box::new(message));
        };
        let StoredMessage {
            qos,
            retain,
            subscription_ids,
            ..
        } = message;
        let form = Form {
            qos,
            retain,
            subscription_ids,
        };
        Self::Logged(position, form)
    }

    pub(super) fn qos(&self) -> QoS {
        match self {
            Self::Logged(_, form) => form.qos,
            Self::Own(message) => message.qos,
        }
    }

    /// Becomes a copy of what the log has there, if it is that. Returns whether it was.
    pub(in crate::cluster) fn copy(&mut self, there: LogPosition, logged: &StoredMessage) -> bool {
        match self {
            Self::Logged(position, form) if *position == there => {
                *self = Self::Own(Box::new(form.of(logged)));
                true
            }
            _ => false,
        }
    }

    /// Bytes of a message that is in the record itself.
    pub(super) fn own_bytes(&self) -> usize {
        match self {
            Self::Logged(..) => 0,
            Self::Own(message) => size(message),
        }
    }

    pub(in crate::cluster) fn position(&self) -> Option<LogPosition> {
        match self {
            Self::Logged(position, _) => Some(*position),
            Self::Own(_) => None,
        }
    }
}

/// Of its form.
pub(in crate::cluster) fn size(message: &StoredMessage) -> usize {
    encode_message(message).map_or(usize::MAX, |bytes| bytes.len())
}

impl Form {
    /// The message that is sent, of one in a log.
    pub(in crate::cluster) fn of(&self, logged: &StoredMessage) -> StoredMessage {
        StoredMessage {
            qos: self.qos,
            retain: self.retain,
            subscription_ids: self.subscription_ids.clone(),
            ..logged.clone()
        }
    }
}

impl Kept {
    /// Makes a change. `origin`: where messages that are queued by it are in the logs.
    pub(super) fn apply(&mut self, change: SessionChange, origin: Option<LogPosition>) -> Urgency {
        match change {
            SessionChange::Attached { expiry, user } => {
                let life = Life::Connected(expiry);
                if self.life == life && self.user.as_ref() == Some(&user) {
                    return Urgency::Never;
                }
                self.life = life;
                self.user = Some(user);
                Urgency::Now
            }
            SessionChange::Detached { expires_at } => {
                self.life = Life::Away(expires_at);
                Urgency::Later
            }
            SessionChange::Subscribed {
                filter,
                options,
                subscription_id,
                ..
            } => {
                let new = (options, subscription_id);
                let old = self.subscriptions.insert(filter, new);
                if old == Some(new) {
                    Urgency::Never
                } else {
                    Urgency::Now
                }
            }
            SessionChange::Unsubscribed { filter } => {
                self.subscriptions.remove(&filter);
                Urgency::Now
            }
            SessionChange::Queued { number, message } => {
                if let Some(position) = origin {
                    let seen = self.seen.entry(position.shard).or_default();
                    *seen = position.at.max(*seen);
                }
                self.waiting.insert(number, Owed::new(message, origin));
                if origin.is_some() {
                    Urgency::Never
                } else {
                    Urgency::Later
                }
            }
            SessionChange::Unqueued { number } => {
                self.waiting.remove(&number);
                Urgency::Later
            }
            SessionChange::Sent { number, packet_id } => {
                let Some(owed) = self.waiting.remove(&number) else {
                    return Urgency::Never;
                };
                let is_once = owed.qos() == QoS::ExactlyOnce;
                // An identifier stands for one message at a time.
                self.in_flight.retain(|(id, _)| *id != packet_id);
                self.in_flight.push((packet_id, Some(owed)));
                if is_once {
                    Urgency::Now
                } else {
                    Urgency::Later
                }
            }
            SessionChange::Released { packet_id } => {
                for (_, owed) in self.in_flight.iter_mut().filter(|(id, _)| *id == packet_id) {
                    *owed = None;
                }
                Urgency::Now
            }
            SessionChange::Completed { packet_id } => {
                self.in_flight.retain(|(id, _)| *id != packet_id);
                Urgency::Later
            }
            // In the log, with the message.
            SessionChange::Received {
                packet_id,
                flow: None,
            } => {
                self.received.insert(packet_id);
                Urgency::Never
            }
            SessionChange::ReceivedReleased {
                packet_id,
                flow: None,
            } => {
                self.received.remove(&packet_id);
                Urgency::Now
            }
            SessionChange::Will(will) => self.set_will(will),
            // It is not in a record before the log has the will: rather twice than not at all.
            SessionChange::WillPublished => {
                self.will = None;
                Urgency::Later
            }
            // Flows (MQTT-next) end with their owner. The end of a session is not a change of what is kept.
            SessionChange::Received { .. }
            | SessionChange::ReceivedReleased { .. }
            | SessionChange::FlowKept { .. }
            | SessionChange::FlowEnded { .. }
            | SessionChange::Ended => Urgency::Never,
        }
    }

    fn set_will(&mut self, will: Option<Box<StoredWill>>) -> Urgency {
        if core::mem::replace(&mut self.will, will) == self.will {
            Urgency::Never
        } else {
            Urgency::Now
        }
    }

    /// Messages that it is to get still.
    pub(super) fn owed(&self) -> impl Iterator<Item = (Place, &Owed)> {
        let waiting = self.waiting.iter();
        let waiting = waiting.map(|(number, owed)| (Place::Waiting(*number), owed));
        let in_flight = self.in_flight.iter();
        let in_flight =
            in_flight.filter_map(|(id, owed)| Some((Place::InFlight(*id), owed.as_ref()?)));
        waiting.chain(in_flight)
    }

    /// Places in the logs that are still needed.
    pub(in crate::cluster) fn positions(&self) -> impl Iterator<Item = LogPosition> {
        self.owed().filter_map(|(_, owed)| owed.position())
    }
}

impl Record {
    /// # Errors
    /// If MQTT has no form for a message.
    pub(in crate::cluster) fn encode(&self) -> Result<Bytes, Malformed> {
        let Self {
            owner,
            session,
            next,
            is_behind,
        } = self;
        Self::encode_parts(owner.as_ref(), session.as_ref(), next, *is_behind)
    }

    /// The same of parts that belong to others.
    pub(super) fn encode_parts(
        owner: Option<&Author>,
        session: Option<&Kept>,
        next: &[At],
        is_behind: bool,
    ) -> Result<Bytes, Malformed> {
        let mut to = Writer::new(VERSION);
        to.byte(owner.is_some().into());
        if let Some(owner) = owner {
            owner.write(&mut to);
        }
        to.all(next.iter(), |to, at| to.number(at.0));
        to.byte(is_behind.into());
        to.byte(session.is_some().into());
        if let Some(kept) = session {
            kept.write(&mut to)?;
        }
        Ok(to.finish())
    }

    pub(in crate::cluster) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let has_owner = from.byte()? != 0;
        let owner = has_owner.then(|| Author::read(&mut from)).transpose()?;
        let next = from.all(|from| Ok(At(from.number()?)))?;
        let is_behind = from.byte()? != 0;
        let has_session = from.byte()? != 0;
        let session = has_session.then(|| Kept::read(&mut from)).transpose()?;
        from.end()?;
        Ok(Self {
            owner,
            session,
            next,
            is_behind,
        })
    }
}

impl Kept {
    fn write(&self, to: &mut Writer) -> Result<(), Malformed> {
        to.number(self.number);
        let (kind, time) = write_life(self.life);
        to.byte(kind);
        to.number(time);
        to.byte(self.user.is_some().into());
        if let Some(user) = &self.user {
            let (kind, name) = write_user(user);
            to.byte(kind);
            to.bytes(name.as_bytes());
        }
        to.all(self.subscriptions.iter(), |to, (filter, (options, id))| {
            to.bytes(filter.as_bytes());
            to.byte(options.bits(Version::V5));
            to.subscription_id(*id);
        });
        let mut result = Ok(());
        to.all(self.waiting.values(), |to, owed| {
            result = result.and(owed.write(to));
        });
        to.all(self.in_flight.iter(), |to, (id, owed)| {
            to.packet_id(Some(*id));
            to.byte(owed.is_some().into());
            if let Some(owed) = owed {
                result = result.and(owed.write(to));
            }
        });
        to.all(self.received.iter(), |to, id| to.packet_id(Some(*id)));
        to.byte(self.will.is_some().into());
        if let Some(will) = &self.will {
            to.number(will.delay.as_secs());
            result = result.and(to.message(&will.message));
        }
        result
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let number = from.number()?;
        let life = read_life((from.byte()?, from.number()?)).ok_or(Malformed)?;
        let user = if from.byte()? == 0 {
            None
        } else {
            let (kind, name) = (from.byte()?, from.text()?);
            Some(read_user((kind, &name)).ok_or(Malformed)?)
        };
        let subscriptions = from.all(|from| {
            let filter = from.filter()?;
            let options = SubscriptionOptions::from_bits(from.byte()?, Version::V5);
            let options = options.map_err(|_| Malformed)?;
            Ok((filter, (options, from.subscription_id()?)))
        })?;
        let waiting = from.all(Owed::read)?;
        let in_flight = from.all(|from| {
            let id = from.packet_id()?.ok_or(Malformed)?;
            let is_owed = from.byte()? != 0;
            Ok((id, is_owed.then(|| Owed::read(from)).transpose()?))
        })?;
        let received = from.all(|from| from.packet_id()?.ok_or(Malformed))?;
        let has_will = from.byte()? != 0;
        let will = has_will.then(|| {
            let delay = Duration::from_secs(from.number()?);
            let message = from.message()?;
            Ok(Box::new(StoredWill { message, delay }))
        });
        Ok(Self {
            number,
            life,
            user,
            subscriptions: subscriptions.into_iter().collect(),
            waiting: (1..).zip(waiting).collect(),
            in_flight,
            received: received.into_iter().collect(),
            will: will.transpose()?,
            seen: BTreeMap::new(),
        })
    }

    /// A new session, which ends with its connection as long as nothing else is known of it.
    pub(super) fn passing(number: u64) -> Self {
        Self {
            number,
            life: Life::Connected(Some(Duration::ZERO)),
            ..Self::default()
        }
    }

    /// Whether it ends with its connection.
    pub(super) fn ends_with_connection(&self) -> bool {
        self.life == Life::Connected(Some(Duration::ZERO))
    }
}

impl Owed {
    fn write(&self, to: &mut Writer) -> Result<(), Malformed> {
        match self {
            Self::Own(message) => {
                to.byte(0);
                to.message(message)
            }
            Self::Logged(position, form) => {
                to.byte(1 + form.qos as u8 + if form.retain { 4 } else { 0 });
                to.number(position.shard.into());
                to.number(position.at.0);
                to.all(form.subscription_ids.iter(), |to, id| {
                    to.subscription_id(Some(*id));
                });
                Ok(())
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let Some(form) = from.byte()?.checked_sub(1) else {
            return Ok(Self::Own(Box::new(from.message()?)));
        };
        let (shard, at) = (from.small()?, At(from.number()?));
        Ok(Self::Logged(
            LogPosition { shard, at },
            Form {
                qos: QoS::from_bits(form & 3).ok_or(Malformed)?,
                retain: form & 4 != 0,
                subscription_ids: from.all(|from| from.subscription_id()?.ok_or(Malformed))?,
            },
        ))
    }
}
