//! The record of a session: its state as the cluster keeps it.
//!
//! Messages stay in the logs: the record names their places. For each log the record also has the place from which on
//! no node has looked for messages for the session: its next owner reads on from there.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use mq_codec::{QoS, SubscriptionOptions, Version};

use super::recorded_session::{DeliveryForm, OwedMessage, RecordedSession};
use crate::{
    cluster::{
        engine::{Malformed, Reader, Writer},
        life::NodeStatus,
        log::Author,
    },
    store::{At, LogPosition, StoredWill, read_life, read_user, write_life, write_user},
};

const VERSION: u8 = 1;

/// Record of a session, which is the value of its key in the engine.
#[derive(Clone, PartialEq, Debug, Default)]
pub(in crate::cluster) struct Record {
    /// The life of the node that owns the session; `None` if any node may claim it.
    pub(in crate::cluster) owner: Option<Author>,
    /// State of the session; `None` if it has ended.
    pub(in crate::cluster) session: Option<RecordedSession>,
    /// Places, by log, from which on no node has looked for messages for the session.
    pub(in crate::cluster) next: Vec<At>,
    /// `true` if the floor of the owner does not hold for this session: its messages have not been read since it was
    /// claimed.
    pub(in crate::cluster) is_behind: bool,
}

impl Record {
    /// Encodes the record.
    ///
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

    /// Encodes a record from its parts, without copies of them.
    ///
    /// # Errors
    /// If MQTT has no form for a message.
    pub(super) fn encode_parts(
        owner: Option<&Author>,
        session: Option<&RecordedSession>,
        next: &[At],
        is_behind: bool,
    ) -> Result<Bytes, Malformed> {
        let mut to = Writer::new(VERSION);
        to.byte(owner.is_some().into());
        if let Some(owner) = owner {
            owner.write(&mut to);
        }
        to.list(next.iter(), |to, at| to.number(at.0));
        to.byte(is_behind.into());
        to.byte(session.is_some().into());
        if let Some(kept) = session {
            kept.write(&mut to)?;
        }
        Ok(to.finish())
    }

    /// Raises the record's places to the floor in the owner's `status`, up to which records of its life are complete.
    /// Does nothing if the record has no owner or is behind, or if the floor is not known.
    pub(in crate::cluster) fn raise_to_floor(&mut self, status: &NodeStatus) {
        let Some(owner) = self.owner.as_ref().filter(|_| !self.is_behind) else {
            return;
        };
        let Some(floor) = status.floor_of(owner.life) else {
            return;
        };
        let most = floor.len().max(self.next.len());
        self.next.resize(most, At::default());
        for (next, floor) in self.next.iter_mut().zip(floor) {
            *next = (*floor).max(*next);
        }
    }

    pub(in crate::cluster) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let has_owner = from.byte()? != 0;
        let owner = has_owner.then(|| Author::read(&mut from)).transpose()?;
        let next = from.list(|from| Ok(At(from.number()?)))?;
        let is_behind = from.byte()? != 0;
        let has_session = from.byte()? != 0;
        let session = has_session
            .then(|| RecordedSession::read(&mut from))
            .transpose()?;
        from.expect_end()?;
        Ok(Self {
            owner,
            session,
            next,
            is_behind,
        })
    }
}

impl RecordedSession {
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
        to.list(self.subscriptions.iter(), |to, (filter, (options, id))| {
            to.bytes(filter.as_bytes());
            to.byte(options.bits(Version::V5));
            to.subscription_id(*id);
        });
        let mut result = Ok(());
        to.list(self.waiting.values(), |to, owed| {
            result = result.and(owed.write(to));
        });
        to.list(self.in_flight.iter(), |to, (id, owed)| {
            to.packet_id(Some(*id));
            to.byte(owed.is_some().into());
            if let Some(owed) = owed {
                result = result.and(owed.write(to));
            }
        });
        to.list(self.received.iter(), |to, id| to.packet_id(Some(*id)));
        to.byte(self.will.is_some().into());
        if let Some(will) = &self.will {
            to.number(will.delay.as_secs());
            result = result.and(to.message(&will.message));
        }
        let since_epoch = self
            .connected_at
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let ms = since_epoch.and_then(|time| u64::try_from(time.as_millis()).ok());
        to.number(ms.unwrap_or_default());
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
        let subscriptions = from.list(|from| {
            let filter = from.filter()?;
            let options = SubscriptionOptions::from_bits(from.byte()?, Version::V5);
            let options = options.map_err(|_| Malformed)?;
            Ok((filter, (options, from.subscription_id()?)))
        })?;
        let waiting = from.list(OwedMessage::read)?;
        let in_flight = from.list(|from| {
            let id = from.packet_id()?.ok_or(Malformed)?;
            let is_owed = from.byte()? != 0;
            Ok((id, is_owed.then(|| OwedMessage::read(from)).transpose()?))
        })?;
        let received = from.list(|from| from.packet_id()?.ok_or(Malformed))?;
        let has_will = from.byte()? != 0;
        let will = has_will.then(|| {
            let delay = Duration::from_secs(from.number()?);
            let message = from.message()?;
            Ok(Box::new(StoredWill { message, delay }))
        });
        // Records of earlier builds end here.
        let connected_ms = if from.is_at_end() { 0 } else { from.number()? };
        Ok(Self {
            number,
            life,
            user,
            subscriptions: subscriptions.into_iter().collect(),
            waiting: (1..).zip(waiting).collect(),
            in_flight,
            received: received.into_iter().collect(),
            will: will.transpose()?,
            connected_at: (connected_ms > 0)
                .then(|| UNIX_EPOCH + Duration::from_millis(connected_ms)),
            seen: BTreeMap::new(),
        })
    }
}

impl OwedMessage {
    fn write(&self, to: &mut Writer) -> Result<(), Malformed> {
        match self {
            Self::Embedded(message) => {
                to.byte(0);
                to.message(message)
            }
            Self::Logged(position, form) => {
                to.byte(1 + form.qos as u8 + if form.retain { 4 } else { 0 });
                to.number(position.shard.into());
                to.number(position.at.0);
                to.list(form.subscription_ids.iter(), |to, id| {
                    to.subscription_id(Some(*id));
                });
                Ok(())
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let Some(form) = from.byte()?.checked_sub(1) else {
            return Ok(Self::Embedded(Box::new(from.message()?)));
        };
        let (shard, at) = (from.u16()?, At(from.number()?));
        Ok(Self::Logged(
            LogPosition { shard, at },
            DeliveryForm {
                qos: QoS::from_bits(form & 3).ok_or(Malformed)?,
                retain: form & 4 != 0,
                subscription_ids: from.list(|from| from.subscription_id()?.ok_or(Malformed))?,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_an_earlier_build_has_no_time_of_the_last_connection() {
        let record = |connected_at| Record {
            session: Some(RecordedSession {
                connected_at,
                ..RecordedSession::default()
            }),
            ..Record::default()
        };
        let known = record(Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)));
        assert_eq!(Record::decode(&known.encode().unwrap()).unwrap(), known);
        let bytes = record(None).encode().unwrap();
        let (last, earlier) = bytes.split_last().unwrap();
        assert_eq!(*last, 0);
        assert_eq!(Record::decode(earlier).unwrap(), record(None));
    }
}
