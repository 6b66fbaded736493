//! SUBSCRIBE and UNSUBSCRIBE: sent, answered, and sent again after a reconnect.

use std::{collections::VecDeque, time::Instant};

use mq_codec::{
    PacketId, ReasonCode, SubAck, SubscribeProperties, SubscriptionId, UnsubAck,
    UnsubscribeProperties,
};
use mq_proto::{CommandError, Connection, LaneId};

use super::deliver::{Entry, Streams};
use crate::{
    Error,
    control::{Reply, Request, UnsubscribeRequest},
};

/// A request on its way; the subscription itself is in [`Streams`].
#[derive(Debug)]
enum Pending {
    Subscribe(SubscriptionId, Reply<Vec<ReasonCode>>),
    Unsubscribe {
        request: UnsubscribeRequest,
        /// Number of subscriptions that the application had made by then; later ones keep their filters.
        made: u64,
    },
}

impl Pending {
    fn may_be_early(&self, streams: &Streams) -> bool {
        match self {
            // A subscription that has ended is not sent.
            Self::Subscribe(id, _) => streams.get(*id).is_none_or(|entry| entry.early),
            Self::Unsubscribe { .. } => false,
        }
    }
}

/// All unanswered requests; the queue that they come from bounds them.
#[derive(Debug)]
pub(super) struct Requests {
    waiting: VecDeque<Pending>,
    /// Requests sent on this connection and not answered, in order.
    asked: VecDeque<(PacketId, Pending)>,
    use_ids: bool,
}

impl Requests {
    pub(super) fn new(use_ids: bool) -> Self {
        Self {
            waiting: VecDeque::new(),
            asked: VecDeque::new(),
            use_ids,
        }
    }

    /// Stops sending subscription identifiers, which the server does not support.
    pub(super) fn without_ids(&mut self) {
        self.use_ids = false;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.asked.is_empty()
    }

    pub(super) fn add(&mut self, requests: VecDeque<Request>, streams: &mut Streams) {
        for request in requests {
            self.waiting.push_back(match request {
                Request::Subscribe(request) => {
                    let request = *request;
                    streams.insert(Entry::new(request.id, request.options, request.outlet));
                    Pending::Subscribe(request.id, request.reply)
                }
                Request::Unsubscribe(request) => {
                    let made = streams.made();
                    Pending::Unsubscribe { request, made }
                }
            });
        }
    }

    /// Ends subscription `id`, whose stream was dropped.
    pub(super) fn stream_dropped(&mut self, id: SubscriptionId, streams: &mut Streams) {
        let Some(entry) = streams.remove(id) else {
            return;
        };
        self.waiting
            .retain(|pending| !matches!(pending, Pending::Subscribe(other, _) if *other == id));
        if !entry.sent {
            return;
        }
        let filters: Vec<_> = entry
            .filters
            .into_iter()
            .map(|subscription| subscription.filter)
            // Another subscription has the filter by now.
            .filter(|filter| !streams.want(filter))
            .collect();
        if !filters.is_empty() {
            let reply = None;
            let request = UnsubscribeRequest { filters, reply };
            let made = streams.made();
            self.waiting
                .push_back(Pending::Unsubscribe { request, made });
        }
    }

    /// Sends all granted subscriptions again, since the server has no session.
    pub(super) fn subscribe_again(&mut self, streams: &mut Streams) {
        for id in streams.deactivate_all() {
            self.waiting.push_back(Pending::Subscribe(id, None));
        }
    }

    /// Returns `true` if a request waits to be sent; requests go before all messages.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends the waiting requests. While the link's handshake is not complete (`early`), sends them only up
    /// to the first that may not be early data.
    pub(super) fn send(
        &mut self,
        connection: &mut Connection,
        now: Instant,
        streams: &mut Streams,
        early: bool,
        lane: &mut impl FnMut() -> LaneId,
    ) {
        while let Some(mut pending) = self.waiting.pop_front() {
            if early && !pending.may_be_early(streams) {
                self.waiting.push_front(pending);
                return;
            }
            let sent = match &mut pending {
                Pending::Subscribe(id, _) => {
                    let Some(entry) = streams.get(*id) else {
                        continue;
                    };
                    let properties = SubscribeProperties {
                        subscription_id: self.use_ids.then_some(*id),
                        user_properties: entry.user_properties.clone(),
                    };
                    connection.subscribe_on(now, lane(), entry.filters.clone(), properties)
                }
                Pending::Unsubscribe { request, made } => {
                    streams.forget_filters(&request.filters, *made);
                    let properties = UnsubscribeProperties::default();
                    connection.unsubscribe(now, request.filters.clone(), properties)
                }
            };
            match sent {
                Ok(id) => {
                    if let Pending::Subscribe(subscription, _) = &pending {
                        streams.sent(*subscription);
                    }
                    self.asked.push_back((id, pending));
                }
                Err(CommandError::NotConnected | CommandError::NoPacketId) => {
                    self.waiting.push_front(pending);
                    return;
                }
                Err(error) => fail(pending, &error.into(), streams),
            }
        }
    }

    pub(super) fn suback(&mut self, ack: SubAck, streams: &mut Streams) {
        let Some(Pending::Subscribe(id, reply)) = self.answered(ack.packet_id) else {
            return;
        };
        let refused = ack.reasons.iter().find(|reason| reason.is_error()).copied();
        if let Some(reason) = refused
            && ack.reasons.iter().all(|reason| reason.is_error())
        {
            let error = Error::SubscribeRefused { reason };
            fail(Pending::Subscribe(id, reply), &error, streams);
            return;
        }
        streams.granted(id, &ack.reasons);
        // A caller that has gone has dropped the stream as well.
        answer(reply, Ok(ack.reasons));
    }

    pub(super) fn unsuback(&mut self, ack: &UnsubAck, streams: &mut Streams) {
        let Some(Pending::Unsubscribe { request, made }) = self.answered(ack.packet_id) else {
            return;
        };
        streams.unsubscribed(&request.filters, made);
        let refused = ack.reasons.iter().find(|reason| reason.is_error());
        let outcome = match refused {
            Some(reason) => Err(Error::UnsubscribeRefused { reason: *reason }),
            None => Ok(()),
        };
        answer(request.reply, outcome);
    }

    /// Queues a request again that was lost with its lane.
    pub(super) fn lost(&mut self, id: PacketId) {
        if let Some(pending) = self.answered(id) {
            self.waiting.push_back(pending);
        }
    }

    fn answered(&mut self, id: PacketId) -> Option<Pending> {
        let index = self.asked.iter().position(|(other, _)| *other == id)?;
        self.asked.remove(index).map(|(_, pending)| pending)
    }

    /// Keeps unanswered requests, in order, for the next connection.
    ///
    /// The subscription to the response topic goes first. A message with a request may leave behind
    /// CONNECT, before CONNACK says whether the server has kept the session, and a message in flight is
    /// sent again right behind CONNACK. If the session is lost, a response would find no subscription.
    pub(super) fn link_lost(&mut self, streams: &mut Streams) {
        while let Some((_, pending)) = self.asked.pop_back() {
            self.waiting.push_front(pending);
        }
        if let Some(id) = streams.deactivate_responses() {
            self.waiting.push_front(Pending::Subscribe(id, None));
        }
    }

    pub(super) fn fail_all(&mut self, error: &Error) {
        let asked = self.asked.drain(..).map(|(_, pending)| pending);
        for pending in asked.chain(self.waiting.drain(..)) {
            match pending {
                Pending::Subscribe(_, reply) => answer(reply, Err(error.clone())),
                Pending::Unsubscribe { request, .. } => answer(request.reply, Err(error.clone())),
            };
        }
    }
}

/// Fails a request; ends its subscription if it has one.
fn fail(pending: Pending, error: &Error, streams: &mut Streams) {
    match pending {
        Pending::Subscribe(id, reply) => {
            if let Some(entry) = streams.remove(id) {
                entry.end(Some(error));
            }
            if !answer(reply, Err(error.clone())) {
                tracing::warn!(%error, "subscription refused and ended");
            }
        }
        Pending::Unsubscribe { request, .. } => {
            answer(request.reply, Err(error.clone()));
        }
    }
}

/// Completes the call of a request; returns false if no caller waits.
fn answer<T>(reply: Reply<T>, outcome: Result<T, Error>) -> bool {
    reply.is_some_and(|reply| reply.send(outcome).is_ok())
}
