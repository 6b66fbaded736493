//! The entries of the logs.

use bytes::Bytes;
use mq_codec::{ByteStr, PacketId};

use super::{arrival_marks::ArrivalMark, author::Author, groups::Membership, milestone::Milestone};
use crate::{
    cluster::engine::{Malformed, Reader, Writer},
    store::StoredMessage,
};

const VERSION: u8 = 2;

/// An entry of a log.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::cluster) enum LogEntry {
    /// Messages of the clients of one node.
    Batch {
        author: Author,
        /// Counts the author's batches in this log, from 1; 0 with no items says nothing.
        count: u64,
        /// The place up to which the author had read this log.
        read: Milestone,
        items: Vec<BatchItem>,
    },
    /// The end of a life: entries of that author, or of an earlier life of its node, count for nothing from here on.
    Fence(Author),
}

/// A part of a batch.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::cluster) enum BatchItem {
    Message(LogMessage),
    /// A session of the author is a member of a shared subscription, or is not any more.
    Member(Membership),
    /// The [groups](super::groups::SharedGroups) of the log as its author knows them after a set-back, encoded: they replace
    /// those of each reader.
    Groups(Bytes),
}

/// A message.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::cluster) struct LogMessage {
    /// The client that published it.
    pub(in crate::cluster) from: ByteStr,
    /// The identifier that a message of a kept session came under at QoS 2, so that a repetition is known.
    pub(in crate::cluster) packet_id: Option<PacketId>,
    /// The number of the client's session, as in the session's record, of a message with a packet identifier and of the
    /// session's will; 0 of others. A later session knows nothing of the message.
    pub(in crate::cluster) session: u64,
    /// The message as it was published.
    pub(in crate::cluster) message: StoredMessage,
}

impl LogMessage {
    /// Encodes the message.
    ///
    /// # Errors
    /// If MQTT has no form for it.
    pub(in crate::cluster) fn encode(&self) -> Result<Bytes, Malformed> {
        let mut to = Writer::default();
        to.bytes(self.from.as_bytes());
        to.packet_id(self.packet_id);
        to.number(self.session);
        to.message(&self.message)?;
        Ok(to.finish())
    }

    pub(in crate::cluster) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::without_version(bytes);
        let item = Self {
            from: from.text()?,
            packet_id: from.packet_id()?,
            session: from.number()?,
            message: from.message()?,
        };
        from.expect_end()?;
        Ok(item)
    }
}

/// A message from node to node, which may be lost.
#[derive(Debug)]
pub(in crate::cluster) enum NodeMessage<'a> {
    /// A published message of QoS 0.
    Message {
        /// See [`ArrivalMarks::header`](super::arrival_marks::ArrivalMarks::header).
        header: &'a [u8],
        /// The members of shared subscriptions that it is for.
        chosen: Vec<ByteStr>,
        /// The form of a [`LogMessage`].
        item: &'a [u8],
    },
    Mark(ArrivalMark),
}

impl<'a> NodeMessage<'a> {
    pub(in crate::cluster) fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        match self {
            Self::Message {
                header,
                chosen,
                item,
            } => {
                to.byte(0);
                to.bytes(header);
                to.list(chosen.iter(), |to, client| to.bytes(client.as_bytes()));
                to.bytes(item);
            }
            Self::Mark(mark) => {
                to.byte(1);
                mark.write(&mut to);
            }
        }
        to.finish()
    }

    pub(in crate::cluster) fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let told = match from.byte()? {
            0 => Self::Message {
                header: from.bytes()?,
                chosen: from.list(Reader::text)?,
                item: from.bytes()?,
            },
            1 => Self::Mark(ArrivalMark::read(&mut from)?),
            _ => return Err(Malformed),
        };
        from.expect_end()?;
        Ok(told)
    }
}

impl BatchItem {
    /// # Errors
    /// If MQTT has no form for a message.
    pub(in crate::cluster) fn encode(&self) -> Result<Bytes, Malformed> {
        let mut to = Writer::default();
        match self {
            Self::Message(item) => {
                to.byte(0);
                to.bytes(&item.encode()?);
            }
            Self::Member(membership) => {
                to.byte(1);
                membership.write(&mut to);
            }
            Self::Groups(groups) => {
                to.byte(2);
                to.bytes(groups);
            }
        }
        Ok(to.finish())
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::without_version(bytes);
        let item = match from.byte()? {
            0 => Self::Message(LogMessage::decode(from.bytes()?)?),
            1 => Self::Member(Membership::read(&mut from)?),
            2 => Self::Groups(Bytes::copy_from_slice(from.bytes()?)),
            _ => return Err(Malformed),
        };
        from.expect_end()?;
        Ok(item)
    }
}

impl LogEntry {
    /// Encodes a batch of items that were encoded.
    pub(in crate::cluster) fn batch(
        author: &Author,
        count: u64,
        read: Milestone,
        items: &[Bytes],
    ) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.byte(0);
        author.write(&mut to);
        to.number(count);
        read.write(&mut to);
        to.list(items.iter(), |to, item| to.bytes(item));
        to.finish()
    }

    /// Encodes a batch of nothing, which is no author's first one.
    pub(in crate::cluster) fn empty(author: &Author, read: Milestone) -> Bytes {
        Self::batch(author, 0, read, &[])
    }

    /// Returns `true` for the bytes of a batch of nothing, and of an entry that is lost.
    pub(super) fn is_empty(bytes: &[u8]) -> bool {
        let count = || {
            let mut from = Reader::new(bytes, VERSION)?;
            let kind = from.byte()?;
            Author::read(&mut from)?;
            Ok((kind, from.number()?))
        };
        bytes.is_empty() || matches!(count(), Ok::<_, Malformed>((0, 0)))
    }

    pub(in crate::cluster) fn fence(author: &Author) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.byte(1);
        author.write(&mut to);
        to.finish()
    }

    pub(in crate::cluster) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let entry = match from.byte()? {
            0 => Self::Batch {
                author: Author::read(&mut from)?,
                count: from.number()?,
                read: Milestone::read(&mut from)?,
                items: from.list(|from| BatchItem::decode(from.bytes()?))?,
            },
            1 => Self::Fence(Author::read(&mut from)?),
            _ => return Err(Malformed),
        };
        from.expect_end()?;
        Ok(entry)
    }
}
