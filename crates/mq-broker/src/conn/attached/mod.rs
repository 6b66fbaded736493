//! The third phase: the client has its session, until either of them leaves.

mod blocked_publish;
mod bridge;
mod deliver;
#[cfg(feature = "mqtt-next")]
mod flows;
mod hooked;
mod idle;
mod lanes;
#[cfg(not(feature = "mqtt-next"))]
mod no_flows;
mod reauthenticate;
mod requests;
mod wait;
mod wake_sources;

use std::{
    collections::VecDeque,
    pin::{Pin, pin},
    sync::Arc,
    time::Instant,
};

use mq_codec::{QoS, ReasonCode};
use mq_proto::{CloseReason, Delivery, Event, LaneId, ProtocolError};
use tokio::time::sleep_until;
use tracing::{debug, info};

use super::{
    backlog::{Backlog, is_acknowledgement},
    bridge_hooks::BridgeHooks,
    closing::{LastState, STORE_FAILED},
    memory::UNCOUNTED_BYTES,
    queue_read::QueueRead,
    session_end::SessionEnd,
    wire::{Wire, earlier},
};
use crate::{
    auth::{Authentication, LogIn, Principal},
    clock,
    escaped::Escaped,
    hub::{HeldSession, Publisher, RoutedMessage},
    journal::StoreFailed,
    quota::PublishRateLimiter,
    refusal_log::ClientLine,
    session::{ConnectionFigures, RetainedSearch, Session},
    store::SessionChange,
    workers::{Rebalancing, SeenRound, move_to_worker},
};
#[cfg(feature = "mqtt-next")]
use flows::Parked;
use idle::IdleLanes;
use lanes::DeliveryLanes;
#[cfg(not(feature = "mqtt-next"))]
use no_flows::Parked;
use wait::{StoreWait, WaitFor, WaitResult};
use wake_sources::WakeSources;

/// A client with its session.
pub(super) struct Attached<'a> {
    pub(super) wire: &'a mut Wire,
    pub(super) hold: HeldSession,
    pub(super) publisher: Publisher,
    client: Client,
    session_end: SessionEnd,
    /// The rate at which the client may publish.
    publish_rate_limiter: PublishRateLimiter,
    pub(super) messages_received: u64,
    pub(super) messages_sent: u64,
    /// Deliveries taken from the mailbox and not given to the state machine yet.
    outgoing: VecDeque<Delivery>,
    /// Messages of the session that are being read from the store.
    queue_read: Option<QueueRead>,
    lanes: DeliveryLanes,
    /// Deliveries for flows that have no lane now.
    parked: Parked,
    /// The silence of data lanes, if idle ones are closed.
    idle: Option<Box<IdleLanes>>,
    /// The client's message that waits for room in somebody's mailbox.
    blocked_publish: Option<RoutedMessage>,
    /// Time at which it is tried again, room or not.
    retry_at: Option<Instant>,
    /// The events behind that message.
    backlog: Backlog,
    /// The position of CONNACK in the outbox.
    connack_at: u64,
    seen_round: SeenRound,
    wake_sources: WakeSources,
    /// The bridge whose session this is.
    pub(super) bridge: Option<Box<dyn BridgeHooks>>,
}

/// The client's identity and rights.
pub(super) struct Client {
    /// The user and rights, where there are rules.
    principal: Option<Principal>,
    /// The generation of the rules that let the messages in the mailbox through.
    rules: u64,
    /// The log-in of a client that may authenticate anew.
    log_in: Option<Box<LogIn>>,
    authentication: Authentication,
}

impl Client {
    pub(super) fn new(
        principal: Option<Principal>,
        rules: u64,
        log_in: Option<Box<LogIn>>,
    ) -> Self {
        Self {
            principal,
            rules,
            log_in,
            authentication: Authentication::default(),
        }
    }
}

impl<'a> Attached<'a> {
    /// Makes the phase of a client that has its CONNACK in the outbox, at `connack_at`.
    pub(super) fn new(
        wire: &'a mut Wire,
        hold: HeldSession,
        publisher: Publisher,
        client: Client,
        session_end: SessionEnd,
        connack_at: u64,
    ) -> Self {
        wire.settling.settled_up_to = connack_at;
        Self {
            publish_rate_limiter: PublishRateLimiter::new(wire.settings.publish_rate, clock::now()),
            messages_received: 0,
            messages_sent: 0,
            lanes: DeliveryLanes::new(wire),
            idle: wire
                .settings
                .stream_idle_timeout
                .map(|timeout| Box::new(IdleLanes::new(timeout))),
            wire,
            hold,
            publisher,
            client,
            session_end,
            outgoing: VecDeque::new(),
            queue_read: None,
            parked: Parked::default(),
            blocked_publish: None,
            retry_at: None,
            backlog: Backlog::default(),
            connack_at,
            seen_round: SeenRound::default(),
            wake_sources: WakeSources::default(),
            bridge: None,
        }
    }

    /// Serves the client until the connection is over.
    pub(super) async fn run(&mut self) {
        let mut now = clock::now();
        // Kept from turn to turn: a new timer would register anew each time.
        let mut timer = pin!(sleep_until(now.into()));
        while !self.wire.connection.is_closed() || self.has_events() {
            if self.may_move()
                && let Some(worker) = Rebalancing::next_move(&mut self.seen_round)
            {
                self.move_to(worker).await;
                timer.set(sleep_until(now.into()));
                self.wake_sources.has_new_timer();
            }
            let blocked_by = self.blocked_by().map(Arc::clone);
            // In a box, as all that is seldom: the task of an idle client needs no room for it.
            let mut room = blocked_by.as_ref().map(|session| {
                let mut room = Box::pin(session.mailbox.room());
                room.as_mut().enable();
                room
            });
            if self.hold.session.take_reminder() && !self.wire.connection.is_closed() {
                Box::pin(self.handle_reminder()).await;
            }
            self.turn(now).await;
            self.wire.check_shutdown();
            let closed = self.wire.connection.is_closed();
            if closed && self.blocked_publish.is_none() {
                continue;
            }
            // Nothing leaves before the changes behind it are in the store.
            let store = if closed {
                StoreWait::None
            } else {
                self.store_wait(now)
            };
            if !closed && self.wire.connection.is_closed() {
                // The cluster has refused a message of a client that cannot be told so.
                continue;
            }
            let resumes_at = self.publish_rate_limiter.resumes_at(now);
            let want_read = resumes_at.is_none()
                && !self.backlog.is_full()
                && !self.must_not_read(store)
                && self.wire.may_read();
            if !want_read {
                self.wire.connection.excuse_silence(now);
                if let Some(idle) = &mut self.idle {
                    idle.excuse(now);
                }
            }
            let deadline = self.deadline(resumes_at, now);
            if let Some(at) = deadline
                && (timer.is_elapsed() || timer.deadline() > at.into())
            {
                timer.as_mut().reset(at.into());
                self.wake_sources.has_new_timer();
            }
            if self.blocked_by().map(Arc::as_ptr) != blocked_by.as_ref().map(Arc::as_ptr) {
                // The delivery has begun to wait for another reader: it is tried once more, with a
                // place in that reader's queue.
                now = clock::now();
                continue;
            }
            let session = blocked_by.as_deref();
            // What wakes the task meanwhile does not put it off.
            self.retry_at = earlier(
                session.map(|session| self.retry_at(session, now)),
                self.retry_at.filter(|_| session.is_some()),
            );
            let waits = WaitFor {
                closed,
                store,
                want_read,
                now,
                deadline,
            };
            let room = room.as_mut().map(Pin::as_mut);
            let result = self.wait(&waits, room, timer.as_mut()).await;
            now = clock::now();
            self.handle_wait_result(result, now);
        }
    }

    /// Returns the next deadline: of the connection, the log-in, the publish rate, or an idle lane.
    fn deadline(&mut self, resumes_at: Option<Instant>, now: Instant) -> Option<Instant> {
        let idle_at = earlier(self.close_idle(now), self.bridge_idle(now));
        let deadline = earlier(self.wire.deadline(), earlier(self.expires_at(), resumes_at));
        earlier(deadline, idle_at)
    }

    /// Returns the time at which the log-in ends.
    fn expires_at(&self) -> Option<Instant> {
        let principal = self.client.principal.as_ref();
        principal.and_then(Principal::expires_at)
    }

    fn handle_wait_result(&mut self, result: WaitResult, now: Instant) {
        match result {
            WaitResult::Progress(progress) => self.wire.progressed(progress, now),
            WaitResult::Due => self.handle_deadline(now),
            WaitResult::Stored(Ok(())) | WaitResult::Woken => {}
            WaitResult::RetryPublish => {
                self.retry_at = None;
                if let Some(reader) = self.blocked_by() {
                    reader.remind();
                }
            }
            WaitResult::Stored(Err(StoreFailed)) => self.wire.disconnect_for(STORE_FAILED),
            WaitResult::ReadMessages(messages) => self.queue_was_read(messages),
            WaitResult::Authenticated(outcome) => self.authenticated(outcome),
        }
    }

    /// Returns `true` if the connection may move to another worker now: it waits for nothing that belongs to this one.
    fn may_move(&self) -> bool {
        self.wire.link.can_move()
            && self.bridge.is_none()
            && self.queue_read.is_none()
            && !self.client.authentication.is_working()
            && !self.wire.connection.is_closed()
    }

    /// Moves to another worker. A socket that cannot be moved, for want of a descriptor, is served from there all the
    /// same.
    async fn move_to(&mut self, worker: usize) {
        move_to_worker(worker).await;
        self.hold.session.serve_on_this_worker();
        if let Err(error) = self.wire.link.move_here() {
            debug!(%error, "cannot move socket to another worker");
        }
    }

    /// Handles the deadline that has passed: that of the log-in, or the state machine's.
    fn handle_deadline(&mut self, now: Instant) {
        if self.expires_at().is_some_and(|at| at <= now) {
            self.wire.disconnect_for(ReasonCode::MaximumConnectTime);
        } else {
            // Where the link is not read, silence is excused.
            self.wire.connection.handle_timeout(now);
        }
    }

    /// Acknowledges messages that are settled, and returns the reason for which the client waits for the store.
    fn store_wait(&mut self, now: Instant) -> StoreWait {
        let journal = &self.publisher.journal;
        if let Some(awaited) = self.wire.release_settled(journal, now) {
            StoreWait::Outbox(awaited)
        } else if self.wire.unsettled_acks.len() > 0
            || !self.backlog.is_empty() && self.blocked_publish.is_none()
        {
            StoreWait::Request
        } else {
            StoreWait::None
        }
    }

    /// Returns `true` if the client is not to be read before the store has settled more.
    fn must_not_read(&self, store: StoreWait) -> bool {
        self.wire.has_all_at_store()
            || matches!(store, StoreWait::Outbox(_)) && self.publisher.journal.is_full()
    }

    /// Does everything that can be done without waiting.
    async fn turn(&mut self, now: Instant) {
        self.wire.sample(now);
        self.publisher.resume_backpressure(now);
        self.retry_waiting(now);
        self.wire.check_handshake(now);
        self.handle_events(now);
        if self.backlog.is_full()
            && (self.is_backpressure_over(now) || self.publisher.journal.is_full())
        {
            let dropped = self.backlog.drop_qos0();
            self.wire.hub.metrics.dropped.add(dropped);
        }
        self.publisher.wake_readers();
        self.count_memory();
        if self.fill(now) {
            // Retained messages may be many: others have their turn in between.
            tokio::task::yield_now().await;
        }
    }

    /// Returns the session for whose room the client's message waits.
    fn blocked_by(&self) -> Option<&Arc<Session>> {
        self.blocked_publish.as_ref()?.blocked_by()
    }

    fn has_events(&self) -> bool {
        !self.backlog.is_empty() || self.wire.connection.has_events()
    }

    /// Acts on a reminder: leaves if another connection wants the session, or a publisher has waited for this reader
    /// for too long.
    async fn handle_reminder(&mut self) {
        let session = &self.hold.session;
        self.answer_operators();
        let reader_timeout = self.wire.settings.reader_timeout;
        let view = self.hold.operator_view.as_ref();
        if self.hold.is_claimed() {
            // What the client sent before it connected anew may have come at the same time as the claim,
            // and would be lost.
            self.wake_sources.forget_link();
            self.wire.read_once().await;
            self.wire.disconnect_for(ReasonCode::SessionTakenOver);
        } else if let Some(reason) = view.and_then(|view| view.presence.kick_reason()) {
            self.wire.disconnect_for(reason);
        } else if session
            .mailbox
            .is_to_be_evicted(clock::now().into(), reader_timeout)
        {
            let reason = "too slow for what comes for it";
            self.wire.hub.evicted(session, reason, clock::now());
            self.wire.disconnect_for(ReasonCode::QuotaExceeded);
        }
    }

    /// Tells operators what this task knows alone, if one has asked.
    fn answer_operators(&self) {
        if let Some(view) = &self.hold.operator_view {
            view.presence.answer(|| ConnectionFigures {
                in_flight: self.wire.connection.in_flight(),
                peer: self.wire.link.info().peer_address,
                stats: self.wire.link.stats(),
                messages_received: self.messages_received,
                messages_sent: self.messages_sent,
            });
        }
    }

    /// Acts on the state machine's events, until there are no more. While a message of the client's
    /// waits for room its later requests wait as well; its acknowledgements do not.
    ///
    /// Requests wait as well while the store is full, but for messages of QoS 0 that are not behind others.
    fn handle_events(&mut self, now: Instant) {
        let is_store_full = self.publisher.journal.is_full();
        if is_store_full && self.wire.connection.is_closed() && self.blocked_publish.is_none() {
            return self.drop_requests(now);
        }
        loop {
            let waits = self.blocked_publish.is_some() || is_store_full || !self.backlog.is_empty();
            let event = if waits {
                self.next_beside_backlog(is_store_full)
            } else {
                self.wire.connection.poll_event()
            };
            let Some(event) = event else { return };
            self.handle_event(now, event);
        }
    }

    /// Returns the next event where there is a backlog, or requests have to wait: these go into the backlog.
    #[cold]
    fn next_beside_backlog(&mut self, is_store_full: bool) -> Option<Event> {
        let is_blocked = self.blocked_publish.is_some();
        if !is_blocked && !is_store_full {
            return self.backlog.pop();
        }
        // The broker names the client's mistake after it has answered what came before it.
        while !self.wire.connection.is_failing() {
            let event = self.wire.connection.poll_event()?;
            let must_wait = is_blocked && !is_acknowledgement(&event)
                || is_store_full && self.must_be_stored(&event);
            if !must_wait {
                return Some(event);
            }
            self.backlog.push(event);
        }
        if is_blocked || !self.backlog.is_empty() || self.wire.unsettled_acks.len() > 0 {
            return None;
        }
        self.wire.connection.poll_event()
    }

    /// Returns `true` for a request that may need the store, or stands behind one that does.
    fn must_be_stored(&self, event: &Event) -> bool {
        match event {
            Event::Publish(received) if self.backlog.is_empty() => {
                received.qos > QoS::AtMostOnce || received.retain
            }
            event => !is_acknowledgement(event),
        }
    }

    #[inline]
    pub(super) fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Publish(received) => self.publish(now, received),
            Event::Discarded(received) => self.refuse_discarded(now, received),
            Event::Subscribe { lane, subscribe } => self.subscribe(now, lane, &subscribe),
            Event::Unsubscribe { lane, unsubscribe } => self.unsubscribe(now, lane, &unsubscribe),
            Event::Auth(auth) => self.auth(auth),
            Event::Closed(reason) => self.wire.closed = Some(reason),
            Event::Released {
                packet_id,
                delivery,
            } => {
                self.note_delivered(&delivery);
                self.record(SessionChange::Released { packet_id });
            }
            // The window has opened as well; `fill` uses it.
            Event::Acked {
                packet_id,
                reason,
                delivery,
            } => {
                if let Some(delivery) = delivery.filter(|_| !reason.is_error()) {
                    self.note_delivered(&delivery);
                }
                self.record(SessionChange::Completed { packet_id });
            }
            Event::IncomingReleased { packet_id, flow } => {
                self.record(SessionChange::ReceivedReleased { packet_id, flow });
            }
            Event::FlowBegan { flow, expiry, .. } => self.flow_began(flow, expiry),
            Event::FlowEnded(end) => self.flow_ended(end),
            Event::PingResp => self.lanes.ponged(),
            Event::Connected(ack) => self.bridge_connected(now, &ack),
            Event::SubAck(ack) => {
                if let Some(bridge) = &self.bridge {
                    bridge.subscribed(&ack);
                }
            }
            Event::LaneFailed { lane, error } => self.log_failed_lane(now, lane, error),
            // A second CONNECT is the state machine's to refuse, and the rest is for clients.
            _ => {}
        }
    }

    /// Writes the line of a client that broke the protocol on a data stream, like that of the connection's end.
    fn log_failed_lane(&self, now: Instant, lane: LaneId, error: ProtocolError) {
        let refusal_log = &self.wire.hub.refusal_log;
        let Some(left_out) = refusal_log.admit(ClientLine::StreamEnded, now) else {
            return;
        };
        let link = self.wire.link.info();
        info!(
            client = %Escaped(&self.hold.session.client_id),
            peer = link.peer_address.map(display),
            transport = %link.scheme,
            stream = lane.0,
            reason = %CloseReason::Protocol(error),
            left_out = (left_out > 0).then_some(left_out),
            "data stream ended"
        );
    }

    /// Records what became of a message in flight.
    fn record(&mut self, change: SessionChange) {
        let journal = &mut self.publisher.journal;
        journal.record_of(&self.hold.session, change);
    }

    /// Counts what the client makes this connection hold. Where there is no room for it, the payloads of messages that
    /// are not whole, or wait behind another, are dropped: each is refused with 0x97. A client for which there is still
    /// no room, or which cannot be told of one message alone (before 5.0), is disconnected with 0x97.
    fn count_memory(&mut self) {
        if self.has_counted_memory() {
            return;
        }
        // Another broker sends its message again once it has connected again.
        if self.wire.connection.has_reason_codes() && self.bridge.is_none() {
            self.wire.discard_payloads();
            self.backlog.discard_payloads();
            if self.has_counted_memory() {
                return;
            }
        }
        let reason = "no memory for what it sends";
        let session = &self.hold.session;
        self.wire.hub.evicted(session, reason, clock::now());
        self.wire.disconnect_for(ReasonCode::QuotaExceeded);
    }

    /// Counts what the client makes this connection hold: besides what counts before it is let in, what
    /// waits behind a message, and the topic that a search for retained messages stands at. Returns `false` if there is
    /// no room for it.
    fn has_counted_memory(&mut self) -> bool {
        let cursor = self
            .hold
            .state
            .retained_searches
            .front()
            .map_or(0, RetainedSearch::bytes);
        let besides = cursor + cursor / 4 + self.backlog.bytes() + self.parked.bytes();
        self.wire.count_memory(UNCOUNTED_BYTES, besides)
    }

    /// Returns the state that the last phase needs.
    pub(super) fn into_last_state(mut self) -> LastState {
        self.parked.give_back(&mut self.outgoing);
        LastState {
            hold: self.hold,
            publisher: self.publisher,
            blocked_publish: self.blocked_publish,
            session_end: self.session_end,
            unsent: self.outgoing,
            connack_at: self.connack_at,
        }
    }
}
