//! Sessions that this node has claimed, while it reads from the logs the messages that they still have to get.

use std::collections::{BTreeMap, HashMap, HashSet};

use mq_codec::{ByteStr, PacketId, QoS};

use super::{
    record::Record,
    recorded_session::{DeliveryForm, OwedMessage, RecordedSession},
};
use crate::{
    cluster::log::LogMessage,
    hub::ArrivingSession,
    store::{At, LogPosition, StoredMessage},
};

/// Reason for which a node cannot claim a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClaimRefused {
    /// The session is another user's.
    OtherUser,
    /// The engine or the owner did not answer, or not in time.
    Busy,
}

/// Entries of the logs that a node reads again for sessions that it takes over: by log, the first place and the last.
pub(super) type EntryRanges = BTreeMap<u16, (At, At)>;

/// A session that this node has just claimed: its record names this node as the owner.
#[derive(Debug)]
pub(super) struct ClaimedSession {
    pub(in crate::cluster) id: ByteStr,
    pub(in crate::cluster) record: Record,
    pub(in crate::cluster) version: u64,
}

/// A session that this node has claimed and whose earlier messages are being read. New ones are queued already.
pub(super) struct PendingSession {
    pub(in crate::cluster) id: ByteStr,
    pub(in crate::cluster) version: u64,
    pub(super) arriving: ArrivingSession,
    pub(super) wanted: MessageSearch,
}

impl PendingSession {
    /// Widens `ranges`, the entries that are read again from each log, so that they have all messages that the session
    /// may still have to get.
    pub(super) fn widen(&self, ranges: &mut EntryRanges) {
        let wanted = &self.wanted;
        for (shard, begun) in (0..).zip(&wanted.begun) {
            let from = wanted.next(shard);
            let range = ranges.entry(shard).or_insert((from, *begun));
            *range = (range.0.min(from), range.1.max(*begun));
        }
        for position in wanted.recorded.positions() {
            let range = ranges.entry(position.shard).or_default();
            range.0 = range.0.min(position.at);
        }
    }
}

/// Result of a [`MessageSearch`]: the messages that a session still has to get.
pub(super) struct FoundMessages {
    /// Messages that wait to be sent: those of the record in the order of its queue, then new ones from the logs.
    pub(in crate::cluster) waiting: Vec<(OwedMessage, StoredMessage)>,
    /// Messages that were sent and not completed; `None` in place of one whose PUBREC was received.
    pub(super) in_flight: Vec<(PacketId, Option<StoredMessage>)>,
    /// Packet identifiers of QoS 2 messages that the client has published and that the record may not have yet.
    pub(super) received: HashSet<PacketId>,
    /// Number of messages that the record names and that were not found in the logs.
    pub(in crate::cluster) lost: usize,
}

/// Search of the logs for the messages that a session still has to get, beginning from its record.
pub(super) struct MessageSearch {
    pub(in crate::cluster) recorded: RecordedSession,
    id: ByteStr,
    /// Places, by log, from which on the session's last owner has not looked for messages for the session.
    pub(in crate::cluster) next: Vec<At>,
    /// Places, by log, up to which this node had read when it began to queue messages for the session.
    begun: Vec<At>,
    /// Places of messages for which a shared subscription chose this session among its members.
    pub(in crate::cluster) chosen: HashSet<LogPosition>,
    /// Messages that the record names by their places, as far as they were found.
    found_by_position: HashMap<LogPosition, StoredMessage>,
    /// Places by which the record names messages.
    wanted_positions: HashSet<LogPosition>,
    /// Messages for the session from `next` up to `begun`, which the record does not name.
    new_messages: Vec<(OwedMessage, StoredMessage)>,
    received: HashSet<PacketId>,
    /// `true` if the session's last owner has published the will that the record still has.
    pub(super) is_will_published: bool,
}

impl MessageSearch {
    pub(in crate::cluster) fn new(
        recorded: RecordedSession,
        id: ByteStr,
        next: Vec<At>,
        begun: Vec<At>,
    ) -> Self {
        Self {
            wanted_positions: recorded.positions().collect(),
            recorded,
            id,
            next,
            begun,
            chosen: HashSet::new(),
            found_by_position: HashMap::new(),
            new_messages: Vec::new(),
            received: HashSet::new(),
            is_will_published: false,
        }
    }

    /// Returns the places by which the record names messages.
    pub(super) fn wanted_positions(&self) -> &HashSet<LogPosition> {
        &self.wanted_positions
    }

    fn next(&self, shard: u16) -> At {
        let next = self.next.get(usize::from(shard));
        next.copied().unwrap_or_default()
    }

    /// Examines a message of a log: keeps it if the session has to get it, and notes it if it is a QoS 2 message or the
    /// will of the session's own client.
    pub(super) fn examine(&mut self, position: LogPosition, item: &LogMessage) {
        let begun = self.begun.get(usize::from(position.shard));
        let is_ahead = begun.is_none_or(|begun| position.at > *begun);
        let is_behind = !is_ahead && position.at >= self.next(position.shard);
        if is_behind && item.from == self.id && item.session == self.recorded.number {
            match item.packet_id {
                Some(packet_id) => {
                    self.received.insert(packet_id);
                }
                None => self.is_will_published = true,
            }
        }
        if self.wanted_positions.contains(&position) {
            self.found_by_position
                .insert(position, item.message.clone());
            return;
        }
        if !is_behind {
            return;
        }
        let Some(form) = self.delivery_form(position, item) else {
            return;
        };
        let message = form.apply_to(&item.message);
        self.new_messages
            .push((OwedMessage::Logged(position, form), message));
    }

    /// Returns the form in which the session gets a message by its subscriptions; `None` if none matches, or if the
    /// session gets it at QoS 0, which is not kept.
    fn delivery_form(&self, position: LogPosition, item: &LogMessage) -> Option<DeliveryForm> {
        let topic = &item.message.message.topic;
        let mut form: Option<DeliveryForm> = None;
        for (filter, (options, id)) in &self.recorded.subscriptions {
            let is_own = options.no_local && item.from == self.id;
            let is_others = filter.shared().is_some() && !self.chosen.contains(&position);
            if is_own || is_others || !filter.matches(topic) {
                continue;
            }
            let form = form.get_or_insert_with(|| DeliveryForm {
                qos: QoS::AtMostOnce,
                retain: false,
                subscription_ids: Vec::new(),
            });
            form.qos = form.qos.max(options.qos.min(item.message.qos));
            form.retain |= options.retain_as_published && item.message.retain;
            form.subscription_ids.extend(*id);
        }
        form.filter(|form| form.qos > QoS::AtMostOnce)
    }

    /// Ends the search; returns the messages that were found.
    pub(in crate::cluster) fn finish(self) -> FoundMessages {
        let Self {
            recorded,
            wanted_positions,
            found_by_position,
            new_messages,
            received,
            ..
        } = self;
        let lost = wanted_positions.len() - found_by_position.len();
        let message = |owed: &OwedMessage| match owed {
            OwedMessage::Embedded(message) => Some((**message).clone()),
            OwedMessage::Logged(position, form) => found_by_position
                .get(position)
                .map(|logged| form.apply_to(logged)),
        };
        let waiting = recorded.waiting.values();
        let waiting = waiting.filter_map(|owed| Some((owed.clone(), message(owed)?)));
        let in_flight = recorded
            .in_flight
            .iter()
            .filter_map(|(id, owed)| match owed {
                None => Some((*id, None)),
                Some(owed) => Some((*id, Some(message(owed)?))),
            });
        FoundMessages {
            waiting: waiting.chain(new_messages).collect(),
            in_flight: in_flight.collect(),
            received,
            lost,
        }
    }
}
