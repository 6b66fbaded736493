//! The way of incoming messages to their streams.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use mq_codec::{ByteStr, QoS, ReasonCode, Subscription, SubscriptionId, TopicFilter, TopicName};
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
    /// Place in the order in which the application has made its subscriptions, from 1.
    place: u64,
    pub(super) filters: Vec<Subscription>,
    /// Filters whose UNSUBSCRIBE is on its way: until UNSUBACK their messages are still for this stream.
    ending: Vec<TopicFilter>,
    pub(super) user_properties: Vec<(ByteStr, ByteStr)>,
    /// `true` if SUBSCRIBE may leave before the link's handshake is complete.
    pub(super) early: bool,
    /// `true` if SUBSCRIBE was sent, on this connection or an earlier one: the server may have the subscription.
    pub(super) sent: bool,
    /// `true` if the server has granted the subscription in the current session.
    active: bool,
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
    /// Number of subscriptions that the application has made, those that have ended included.
    made: u64,
    /// Subscriptions that have ended in order and whose streams have no room yet for all that was received before.
    leaving: Vec<Entry>,
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
            place: 0,
            filters: options.filters,
            ending: Vec::new(),
            user_properties: options.user_properties,
            early: options.early,
            sent: false,
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
        let filters = self.filters.iter().map(|subscription| &subscription.filter);
        let mut filters = filters.chain(&self.ending);
        filters.any(|filter| filter.matches(topic))
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
            made: 0,
            leaving: Vec::new(),
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

    pub(super) fn insert(&mut self, mut entry: Entry) {
        if let Err(index) = self.find(entry.id) {
            self.made += 1;
            entry.place = self.made;
            self.entries.insert(index, entry);
        }
    }

    /// Returns the number of subscriptions that the application has made so far.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    pub(super) fn get(&self, id: SubscriptionId) -> Option<&Entry> {
        self.find(id).ok().map(|index| &self.entries[index])
    }

    /// Records that SUBSCRIBE was sent.
    pub(super) fn sent(&mut self, id: SubscriptionId) {
        if let Ok(index) = self.find(id) {
            self.entries[index].sent = true;
        }
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

    /// Takes filters whose UNSUBSCRIBE leaves from the first `made` subscriptions. Messages match them until UNSUBACK.
    /// A later subscription has its SUBSCRIBE behind the UNSUBSCRIBE, and keeps them.
    pub(super) fn forget_filters(&mut self, filters: &[TopicFilter], made: u64) {
        for entry in self.up_to(made) {
            let gone = entry
                .filters
                .extract_if(.., |subscription| filters.contains(&subscription.filter));
            entry
                .ending
                .extend(gone.map(|subscription| subscription.filter));
        }
    }

    /// Records an UNSUBACK for filters of the first `made` subscriptions, and ends the subscriptions that have no filter
    /// any more.
    pub(super) fn unsubscribed(&mut self, filters: &[TopicFilter], made: u64) {
        for entry in self.up_to(made) {
            entry.ending.retain(|filter| !filters.contains(filter));
        }
        self.remove_without_filters();
    }

    /// Returns those of the first `made` subscriptions that have not ended.
    fn up_to(&mut self, made: u64) -> impl Iterator<Item = &mut Entry> {
        let entries = self.entries.iter_mut();
        entries.filter(move |entry| entry.place <= made)
    }

    /// Ends the subscriptions that have no filter any more, each once its stream has the messages that were received
    /// before.
    fn remove_without_filters(&mut self) {
        let gone = self.entries.extract_if(.., |entry| {
            entry.filters.is_empty() && entry.ending.is_empty()
        });
        self.leaving.extend(gone);
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
            self.drop_unmatched(staged);
            return;
        };
        let way = self
            .catch_all
            .get_or_insert_with(|| Way::new(Outlet::Stream(inbox)));
        way.staged.push_back(staged);
        self.catch_all_dirty = true;
    }

    /// Counts and acknowledges a message that no stream wants.
    fn drop_unmatched(&mut self, staged: Staged) {
        tracing::debug!(topic = %staged.message.topic, "message matches no subscription");
        self.shared.unmatched.fetch_add(1, Ordering::Relaxed);
        self.acks.extend(staged.ticket);
    }

    /// Gives unmatched messages that wait for an earlier stream to the current one. If that was dropped, and there is no
    /// other, they are dropped as well.
    fn redirect_unmatched(&mut self) {
        let Some(way) = &mut self.catch_all else {
            return;
        };
        if !self.catch_all_dirty {
            return;
        }
        if let Some(inbox) = lock(&self.shared.catch_all).clone() {
            way.to = Outlet::Stream(inbox);
            return;
        }
        for staged in core::mem::take(&mut way.staged) {
            self.drop_unmatched(staged);
        }
    }

    /// Puts staged messages into their streams and acknowledges them. Returns whether there was room
    /// for all; if not, the link must not be read.
    pub(super) fn flush(&mut self, connection: &mut Connection, number: u64, now: Instant) -> bool {
        self.redirect_unmatched();
        let Self {
            shared,
            manual_ack,
            entries,
            leaving,
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
        leaving.retain_mut(|entry| {
            let is_done = flush(&mut entry.way);
            if is_done {
                entry.end(None);
            }
            !is_done
        });
        if *catch_all_dirty {
            *catch_all_dirty = catch_all.as_mut().is_some_and(|way| !flush(way));
        }
        for ticket in acks.drain(..) {
            connection.ack(now, ticket, ReasonCode::Success);
        }
        dirty.is_empty() && leaving.is_empty() && !*catch_all_dirty
    }

    /// Drops unacknowledged messages, since the link is lost: the server sends them again. Messages at QoS 2 stay and
    /// count as taken, unless the application acknowledges them: another stream may have its copy already, and their
    /// repetition must not be delivered.
    pub(super) fn link_lost(&mut self, connection: &mut Connection, now: Instant) {
        let (acks, manual_ack) = (&mut self.acks, self.manual_ack);
        let entries = self.entries.iter_mut().chain(&mut self.leaving);
        let ways = entries.map(|entry| &mut entry.way);
        for way in ways.chain(self.catch_all.as_mut()) {
            way.staged.retain_mut(|staged| {
                let may_stay = !manual_ack && staged.message.qos == QoS::ExactlyOnce;
                let ticket = staged.ticket.as_ref();
                if may_stay && ticket.is_some_and(AckTicket::is_of_session) {
                    acks.extend(staged.ticket.take());
                }
                staged.ticket.is_none()
            });
        }
        for ticket in acks.drain(..) {
            connection.ack(now, ticket, ReasonCode::Success);
        }
        // Without a connection a stream would wait for its end.
        self.leaving.retain(|entry| {
            let is_done = entry.way.staged.is_empty();
            if is_done {
                entry.end(None);
            }
            !is_done
        });
    }

    pub(super) fn end_all(&mut self, why: &Error) {
        for entry in self.entries.drain(..).chain(self.leaving.drain(..)) {
            entry.end(Some(why));
        }
    }
}
