//! The way of incoming messages to their streams.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use mq_codec::{ByteStr, ReasonCode, Subscription, SubscriptionId, TopicFilter, TopicName};
use mq_proto::{AckTicket, Connection, Message, Received};

use crate::{
    Error, Incoming, SubscribeOptions,
    control::{ManualAck, Outlet},
    lock::lock,
    shared::Shared,
};

/// A subscription and its stream.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: SubscriptionId,
    pub(super) filters: Vec<Subscription>,
    pub(super) user_properties: Vec<(ByteStr, ByteStr)>,
    /// `true` if SUBSCRIBE may leave before the link's handshake is complete.
    pub(super) early: bool,
    /// `true` if the server has granted the subscription in the current session.
    pub(super) active: bool,
    way: Way,
}

/// The way to an outlet.
#[derive(Debug)]
struct Way {
    to: Outlet,
    /// Unacknowledged messages that are not in the stream yet: first those of one read of the link, then those for
    /// which there was no room.
    staged: VecDeque<Staged>,
}

#[derive(Debug)]
struct Staged {
    message: Incoming,
    ticket: Option<AckTicket>,
}

/// All streams, and the messages that wait for room in them.
#[derive(Debug)]
pub(super) struct Streams {
    shared: Arc<Shared>,
    manual_ack: bool,
    /// Subscriptions, sorted by their identifiers.
    entries: Vec<Entry>,
    catch_all: Option<Way>,
    /// Subscriptions with staged messages.
    dirty: Vec<SubscriptionId>,
    catch_all_dirty: bool,
    /// Indices of the entries that a message goes to; reused.
    targets: Vec<usize>,
    acks: Vec<AckTicket>,
}

impl Entry {
    pub(super) fn new(id: SubscriptionId, options: SubscribeOptions, outlet: Outlet) -> Self {
        Self {
            id,
            filters: options.filters,
            user_properties: options.user_properties,
            early: options.early,
            active: false,
            way: Way::new(outlet),
        }
    }

    /// Ends the stream, with an error unless another subscription has taken over all of its filters.
    pub(super) fn end(&self, why: Option<&Error>) {
        match &self.way.to {
            Outlet::Stream(inbox) => inbox.end(),
            Outlet::Requests(responses) => responses.ended(why),
        }
    }

    fn matches(&self, topic: &TopicName) -> bool {
        self.filters
            .iter()
            .any(|subscription| subscription.filter.matches(topic))
    }
}

impl Way {
    fn new(to: Outlet) -> Self {
        Self {
            to,
            staged: VecDeque::new(),
        }
    }
}

impl Streams {
    pub(super) fn new(shared: Arc<Shared>, manual_ack: bool) -> Self {
        Self {
            shared,
            manual_ack,
            entries: Vec::new(),
            catch_all: None,
            dirty: Vec::new(),
            catch_all_dirty: false,
            targets: Vec::new(),
            acks: Vec::new(),
        }
    }

    fn find(&self, id: SubscriptionId) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&id, |entry| entry.id)
    }

    /// Returns `true` if there is a subscription, or a stream of unmatched messages.
    pub(super) fn are_wanted(&self) -> bool {
        !self.entries.is_empty() || lock(&self.shared.catch_all).is_some()
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        if let Err(index) = self.find(entry.id) {
            self.entries.insert(index, entry);
        }
    }

    pub(super) fn get(&self, id: SubscriptionId) -> Option<&Entry> {
        self.find(id).ok().map(|index| &self.entries[index])
    }

    /// Returns `true` if a subscription has this filter.
    pub(super) fn want(&self, filter: &TopicFilter) -> bool {
        let mut filters = self.entries.iter().flat_map(|entry| &entry.filters);
        filters.any(|subscription| subscription.filter == *filter)
    }

    /// Takes a subscription out and acknowledges its staged messages.
    pub(super) fn remove(&mut self, id: SubscriptionId) -> Option<Entry> {
        let mut entry = self.entries.remove(self.find(id).ok()?);
        self.dirty.retain(|other| *other != id);
        let staged = entry.way.staged.drain(..);
        self.acks.extend(staged.filter_map(|staged| staged.ticket));
        Some(entry)
    }

    /// Records a SUBACK. The subscription takes its filters over from older subscriptions, and forgets refused
    /// filters.
    pub(super) fn granted(&mut self, id: SubscriptionId, reasons: &[ReasonCode]) {
        let Ok(index) = self.find(id) else {
            return;
        };
        let (older, [entry, ..]) = self.entries.split_at_mut(index) else {
            return;
        };
        entry.active = true;
        if let Outlet::Requests(responses) = &entry.way.to {
            responses.granted();
        }
        let mut reasons = reasons.iter();
        entry
            .filters
            .retain(|_| reasons.next().is_none_or(|reason| !reason.is_error()));
        let mut took_over = false;
        for older in older {
            older.filters.retain(|subscription| {
                let mut ours = entry.filters.iter();
                let taken = ours.any(|ours| ours.filter == subscription.filter);
                took_over |= taken;
                !taken
            });
        }
        if took_over {
            self.remove_without_filters();
        }
    }

    pub(super) fn forget_filters(&mut self, filters: &[TopicFilter]) {
        for entry in &mut self.entries {
            entry
                .filters
                .retain(|subscription| !filters.contains(&subscription.filter));
        }
    }

    /// Ends the subscriptions that have no filter any more.
    pub(super) fn remove_without_filters(&mut self) {
        let gone: Vec<_> = self
            .entries
            .iter()
            .filter(|entry| entry.filters.is_empty())
            .map(|entry| entry.id)
            .collect();
        for id in gone {
            if let Some(entry) = self.remove(id) {
                entry.end(None);
            }
        }
    }

    /// Marks the subscription to the response topic as inactive, and returns its identifier if it was active.
    pub(super) fn deactivate_responses(&mut self) -> Option<SubscriptionId> {
        let mut entries = self.entries.iter_mut();
        let entry =
            entries.find(|entry| entry.active && matches!(entry.way.to, Outlet::Requests(_)))?;
        entry.active = false;
        Some(entry.id)
    }

    /// Deactivates all subscriptions; returns those that were active.
    pub(super) fn deactivate_all(&mut self) -> Vec<SubscriptionId> {
        let active = self.entries.iter_mut().filter(|entry| entry.active);
        active
            .map(|entry| {
                entry.active = false;
                entry.id
            })
            .collect()
    }

    /// Stages a message for the streams that want it.
    pub(super) fn deliver(&mut self, received: Received, received_at: Instant) {
        let Message {
            topic,
            payload,
            properties,
        } = received.message;
        self.find_targets(&topic, &received.subscription_ids);
        let ticket = received.ticket;
        let message = Incoming {
            topic,
            payload,
            qos: received.qos,
            retain: received.retain,
            dup: received.dup,
            properties,
            subscription_ids: received.subscription_ids,
            received_at,
            duty: None,
        };
        // The ticket goes to the stream with the longest wait.
        let entries = &self.entries;
        let last = self
            .targets
            .iter()
            .copied()
            .max_by_key(|index| entries[*index].way.staged.len());
        let Some(last) = last else {
            self.unmatched(Staged { message, ticket });
            return;
        };
        let mut targets = core::mem::take(&mut self.targets);
        for index in targets.drain(..).filter(|index| *index != last) {
            let (message, ticket) = (message.copy(), None);
            self.stage(index, Staged { message, ticket });
        }
        self.targets = targets;
        self.stage(last, Staged { message, ticket });
    }

    fn stage(&mut self, index: usize, staged: Staged) {
        let entry = &mut self.entries[index];
        if entry.way.staged.is_empty() {
            self.dirty.push(entry.id);
        }
        entry.way.staged.push_back(staged);
    }

    /// Finds the streams by the server's identifiers (5.0), else by their filters.
    fn find_targets(&mut self, topic: &TopicName, ids: &[SubscriptionId]) {
        self.targets.clear();
        for id in ids {
            if let Ok(index) = self.find(*id) {
                self.targets.push(index);
            }
        }
        // Subscriptions may have the same identifier, which comes once for each (§3.3.4).
        self.targets.sort_unstable();
        self.targets.dedup();
        if self.targets.is_empty() {
            let entries = self.entries.iter().enumerate();
            let matching = entries.filter(|(_, entry)| entry.matches(topic));
            self.targets.extend(matching.map(|(index, _)| index));
        }
    }

    fn unmatched(&mut self, staged: Staged) {
        let wanted = lock(&self.shared.catch_all).clone();
        let Some(inbox) = wanted else {
            tracing::debug!(topic = %staged.message.topic, "message matches no subscription");
            self.shared.unmatched.fetch_add(1, Ordering::Relaxed);
            self.acks.extend(staged.ticket);
            return;
        };
        let outlet = Outlet::Stream(inbox);
        let way = self
            .catch_all
            .get_or_insert_with(|| Way::new(outlet.clone()));
        // The current stream also gets what waits for an earlier one.
        way.to = outlet;
        way.staged.push_back(staged);
        self.catch_all_dirty = true;
    }

    /// Puts staged messages into their streams and acknowledges them. Returns whether there was room
    /// for all; if not, the link must not be read.
    pub(super) fn flush(&mut self, connection: &mut Connection, number: u64, now: Instant) -> bool {
        let Self {
            shared,
            manual_ack,
            entries,
            catch_all,
            dirty,
            catch_all_dirty,
            acks,
            ..
        } = self;
        let mut flush = |way: &mut Way| {
            let Way { to, staged } = way;
            let inbox = match to {
                Outlet::Stream(inbox) => inbox,
                Outlet::Requests(responses) => {
                    for Staged { message, ticket } in staged.drain(..) {
                        acks.extend(ticket);
                        responses.arrived(message);
                    }
                    return true;
                }
            };
            let room = inbox.fill(staged, |mut next| {
                match next.ticket {
                    Some(ticket) if *manual_ack => {
                        let shared = shared.clone();
                        next.message.duty = Some(Box::new(move |reason| {
                            let ack = ManualAck {
                                ticket,
                                connection: number,
                                reason,
                            };
                            shared.queue.control(|control| control.acks.push(ack))
                        }));
                    }
                    ticket => acks.extend(ticket),
                }
                next.message
            });
            room.unwrap_or_else(|crate::inbox::Abandoned| {
                // The stream was dropped; its subscription is about to end.
                acks.extend(staged.drain(..).filter_map(|staged| staged.ticket));
                true
            })
        };
        dirty.retain(|id| {
            let index = entries.binary_search_by_key(id, |entry| entry.id);
            index.is_ok_and(|index| !flush(&mut entries[index].way))
        });
        if *catch_all_dirty {
            *catch_all_dirty = catch_all.as_mut().is_some_and(|way| !flush(way));
        }
        for ticket in acks.drain(..) {
            connection.ack(now, ticket, ReasonCode::Success);
        }
        dirty.is_empty() && !*catch_all_dirty
    }

    /// Drops unacknowledged messages, since the link is lost: the server sends them again.
    pub(super) fn link_lost(&mut self) {
        self.acks.clear();
        let ways = self.entries.iter_mut().map(|entry| &mut entry.way);
        for way in ways.chain(self.catch_all.as_mut()) {
            way.staged.retain(|staged| staged.ticket.is_none());
        }
    }

    pub(super) fn end_all(&mut self, why: &Error) {
        for entry in self.entries.drain(..) {
            entry.end(Some(why));
        }
    }
}
