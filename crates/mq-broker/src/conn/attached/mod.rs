//! The third phase: the client has its session, until either of them leaves.

mod bridged;
mod deliver;
#[cfg(feature = "mqtt-next")]
mod flows;
mod happened;
mod idle;
mod lanes;
#[cfg(not(feature = "mqtt-next"))]
mod no_flows;
mod reauthenticate;
mod requests;
mod waiting;
mod wakes;

use std::{
    collections::VecDeque,
    pin::{Pin, pin},
    sync::Arc,
    time::Instant,
};

use mq_codec::ReasonCode;
use mq_proto::{AckTicket, Delivery, Event};
use tokio::time::sleep_until;
use tracing::debug;

use super::{
    afterwards::Afterwards,
    backlog::{Backlog, is_about_sent},
    held::FREE,
    leaving::{Parting, STORE_FAILED},
    load::Loading,
    wire::{Wire, earlier},
};
use crate::{
    auth::{Authentication, LogIn, Principal},
    clock,
    hub::{Hold, Publisher},
    journal::StoreFailed,
    quota::Pace,
    session::{Figures, RetainedSearch},
    shown::Shown,
    store::SessionChange,
    workers::{Desk, Look, go_to},
};
pub(super) use bridged::Bridged;
#[cfg(feature = "mqtt-next")]
use flows::Parked;
use happened::{Happened, Waits};
use idle::IdleLanes;
use lanes::DeliveryLanes;
#[cfg(not(feature = "mqtt-next"))]
use no_flows::Parked;
use wakes::Wakes;

/// A client with its session.
pub(super) struct Attached<'a> {
    wire: &'a mut Wire,
    hold: Hold,
    publisher: Publisher,
    client: Client,
    afterwards: Afterwards,
    /// How fast the client may publish.
    pace: Pace,
    messages_received: u64,
    messages_sent: u64,
    /// Deliveries taken from the mailbox and not given to the state machine yet.
    outgoing: VecDeque<Delivery>,
    /// Messages of the session that are being read from the store.
    loading: Option<Loading>,
    lanes: DeliveryLanes,
    /// Deliveries for flows that have no lane now.
    parked: Parked,
    /// Where idle data lanes are closed.
    idle: Option<Box<IdleLanes>>,
    /// The ticket of a message that waits for room in somebody's mailbox.
    held: Option<AckTicket>,
    /// When it is looked at again, room or not.
    patience_ends: Option<Instant>,
    /// The events behind that message.
    backlog: Backlog,
    /// Up to here nothing in the outbox has to wait for the store.
    sayable: u64,
    /// Where CONNACK is in the outbox.
    let_in_at: u64,
    look: Look,
    wakes: Wakes,
    /// The bridge whose session this is.
    bridged: Option<Box<Bridged>>,
}

/// Who the client is, and what it may do.
pub(super) struct Client {
    /// Its user and rights, where there are rules.
    principal: Option<Principal>,
    /// The generation of the rules that let the messages in the mailbox through.
    rules: u64,
    /// What a client that may authenticate anew has said of itself.
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
    /// A client that has its CONNACK in the outbox, at `let_in_at`.
    pub(super) fn new(
        wire: &'a mut Wire,
        hold: Hold,
        publisher: Publisher,
        client: Client,
        afterwards: Afterwards,
        let_in_at: u64,
    ) -> Self {
        Self {
            pace: Pace::new(wire.settings.publish_rate, clock::now()),
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
            afterwards,
            outgoing: VecDeque::new(),
            loading: None,
            parked: Parked::default(),
            held: None,
            patience_ends: None,
            backlog: Backlog::default(),
            sayable: let_in_at,
            let_in_at,
            look: Look::default(),
            wakes: Wakes::default(),
            bridged: None,
        }
    }

    /// Serves the client until the connection is over.
    pub(super) async fn run(&mut self) {
        let mut now = clock::now();
        // Kept from turn to turn: a new timer would register anew each time.
        let mut timer = pin!(sleep_until(now.into()));
        while !self.wire.connection.is_closed() || self.has_events() {
            if self.may_go()
                && let Some(worker) = Desk::ask(&mut self.look)
            {
                self.go(worker).await;
                timer.set(sleep_until(now.into()));
            }
            let blocked = self.publisher.waiting.first();
            let blocked = blocked.map(|(session, _)| Arc::clone(session));
            // In a box, as all that is seldom: the task of an idle client needs no room for it.
            let mut room = blocked.as_ref().map(|session| {
                let mut room = Box::pin(session.mailbox.room());
                room.as_mut().enable();
                room
            });
            if self.hold.session.take_reminder() && !self.wire.connection.is_closed() {
                Box::pin(self.look_at_session()).await;
            }
            self.turn(now).await;
            self.wire.look_at_shutdown();
            let closed = self.wire.connection.is_closed();
            if closed && self.publisher.waiting.is_empty() {
                continue;
            }
            // Nothing leaves before the changes behind it are in the store.
            let settled = self.is_settled();
            let resumes_at = self.pace.resumes_at(now);
            let want_read = resumes_at.is_none() && !self.backlog.is_full() && self.wire.may_read();
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
                self.wakes.has_new_timer();
            }
            if !self.publisher.waits_for(blocked.as_ref()) {
                // The delivery has begun to wait for another reader: it is tried once more, with a
                // place in that reader's queue.
                now = clock::now();
                continue;
            }
            let session = blocked.as_deref();
            // What wakes the task meanwhile does not put it off.
            self.patience_ends = earlier(
                session.map(|session| self.patience_ends(session, now)),
                self.patience_ends.filter(|_| session.is_some()),
            );
            let waits = Waits {
                closed,
                settled,
                want_read,
                now,
                deadline,
            };
            let room = room.as_mut().map(Pin::as_mut);
            let happened = self.wait(&waits, room, timer.as_mut()).await;
            now = clock::now();
            self.happened(happened, now);
        }
    }

    /// The next deadline: of the connection, the log-in, the client's pace, or an idle lane.
    fn deadline(&mut self, resumes_at: Option<Instant>, now: Instant) -> Option<Instant> {
        let idle_at = earlier(self.close_idle(now), self.bridge_idle(now));
        let deadline = earlier(self.wire.deadline(), earlier(self.expires_at(), resumes_at));
        earlier(deadline, idle_at)
    }

    /// When the log-in ends.
    fn expires_at(&self) -> Option<Instant> {
        let principal = self.client.principal.as_ref();
        principal.and_then(Principal::expires_at)
    }

    fn happened(&mut self, happened: Happened, now: Instant) {
        match happened {
            Happened::Progress(progress) => self.wire.progressed(progress, now),
            Happened::Due => self.became_due(now),
            Happened::Stored(Ok(())) | Happened::Woken => {}
            Happened::PatienceOver => {
                self.patience_ends = None;
                if let Some((reader, _)) = self.publisher.waiting.first() {
                    reader.remind();
                }
            }
            Happened::Stored(Err(StoreFailed)) => self.wire.leave(STORE_FAILED),
            Happened::Loaded(loaded) => self.loaded(loaded),
            Happened::Authenticated(outcome) => self.authenticated(outcome),
        }
    }

    /// Whether the connection may go to another worker now: it waits for nothing that belongs to this one.
    fn may_go(&self) -> bool {
        self.wire.link.can_move()
            && self.bridged.is_none()
            && self.loading.is_none()
            && !self.client.authentication.is_working()
            && !self.wire.connection.is_closed()
    }

    /// Goes to another worker. A socket that cannot be moved, for want of a descriptor, is served from there all the
    /// same.
    async fn go(&mut self, worker: usize) {
        go_to(worker).await;
        self.hold.session.served_here();
        if let Err(error) = self.wire.link.move_here() {
            debug!(%error, "a socket could not be moved");
        }
    }

    /// The next deadline has passed: that of the log-in, or the state machine's.
    fn became_due(&mut self, now: Instant) {
        if self.expires_at().is_some_and(|at| at <= now) {
            self.wire.leave(ReasonCode::MaximumConnectTime);
        } else {
            // Where the link is not read, silence is excused.
            self.wire.connection.handle_timeout(now);
        }
    }

    /// Whether everything in the outbox may be sent.
    fn is_settled(&mut self) -> bool {
        let settled = self.publisher.journal.is_settled();
        if settled {
            self.sayable = self.wire.connection.outbox().position();
        }
        settled
    }

    /// Does everything that can be done without waiting.
    async fn turn(&mut self, now: Instant) {
        self.wire.sample(now);
        self.publisher.recover(now);
        self.retry_waiting(now);
        self.wire.look_at_handshake(now);
        self.handle_events(now);
        if self.backlog.is_full() && self.is_out_of_patience(now) {
            let dropped = self.backlog.drop_qos0();
            self.wire.hub.metrics.dropped.add(dropped);
        }
        self.publisher.tell_readers();
        self.count_memory();
        if self.fill(now) {
            // Retained messages may be many: others have their turn in between.
            tokio::task::yield_now().await;
        }
    }

    fn has_events(&self) -> bool {
        !self.backlog.is_empty() || self.wire.connection.has_events()
    }

    /// Acts on a reminder: leaves if another connection wants the session, or a publisher has lost its patience
    /// with this reader.
    async fn look_at_session(&mut self) {
        let session = &self.hold.session;
        self.answer_operators();
        let reader_timeout = self.wire.settings.reader_timeout;
        let shown = self.hold.shown.as_ref();
        if self.hold.is_claimed() {
            // What the client sent before it connected anew may have come at the same time as the claim,
            // and would be lost.
            self.wakes.forget_link();
            self.wire.read_once().await;
            self.wire.leave(ReasonCode::SessionTakenOver);
        } else if let Some(reason) = shown.and_then(|shown| shown.presence.leaves()) {
            self.wire.leave(reason);
        } else if session
            .mailbox
            .is_condemned(clock::now().into(), reader_timeout)
        {
            let reason = "too slow for what comes for it";
            self.wire.hub.evicted(session, reason, clock::now());
            self.wire.leave(ReasonCode::QuotaExceeded);
        }
    }

    /// Tells operators what this task knows alone, if one has asked.
    fn answer_operators(&self) {
        if let Some(shown) = &self.hold.shown {
            shown.presence.answer(|| Figures {
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
    fn handle_events(&mut self, now: Instant) {
        loop {
            let waits = !self.publisher.waiting.is_empty();
            // The broker names the client's mistake after it has answered what came before it.
            if waits && self.wire.connection.is_failing() {
                return;
            }
            let event = if waits || self.backlog.is_empty() {
                self.wire.connection.poll_event()
            } else {
                self.backlog.pop()
            };
            match event {
                None => return,
                Some(event) if waits && !is_about_sent(&event) => self.backlog.push(event),
                Some(event) => self.handle_event(now, event),
            }
        }
    }

    #[inline]
    fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Publish(received) => self.publish(now, received),
            Event::Subscribe { lane, subscribe } => self.subscribe(now, lane, &subscribe),
            Event::Unsubscribe { lane, unsubscribe } => self.unsubscribe(now, lane, &unsubscribe),
            Event::Auth(auth) => self.auth(auth),
            Event::Closed(reason) => self.wire.closed = Some(reason),
            Event::Released { packet_id } => self.record(SessionChange::Released { packet_id }),
            // The window has opened as well; `fill` uses it.
            Event::Acked { packet_id, .. } => {
                self.record(SessionChange::Completed { packet_id });
            }
            Event::IncomingReleased { packet_id, flow } => {
                self.record(SessionChange::ReceivedReleased { packet_id, flow });
            }
            Event::FlowBegan { flow, expiry, .. } => self.flow_began(flow, expiry),
            Event::FlowEnded(end) => self.flow_ended(end),
            Event::PingResp => self.lanes.ponged(),
            Event::Connected(ack) => self.bridge_connected(now, &ack),
            Event::SubAck(ack) => self.bridge_subscribed(&ack),
            Event::LaneFailed { lane, error } => {
                let client = &self.hold.session.client_id;
                debug!(client = %Shown(client), %lane, %error, "ended a data lane");
            }
            // A second CONNECT is the state machine's to refuse, and the rest is for clients.
            _ => {}
        }
    }

    /// Records what became of a message in flight.
    fn record(&mut self, change: SessionChange) {
        let journal = &mut self.publisher.journal;
        journal.record_of(&self.hold.session, change);
    }

    /// Counts what the client makes this connection hold: besides what counts before it is let in, what
    /// waits behind a message, and the topic that a search for retained messages stands at. A client for
    /// which there is no room is disconnected with 0x97.
    fn count_memory(&mut self) {
        let cursor = self
            .hold
            .state
            .wanted
            .front()
            .map_or(0, RetainedSearch::bytes);
        let besides = cursor + cursor / 4 + self.backlog.bytes() + self.parked.bytes();
        if !self.wire.count_memory(FREE, besides) {
            let reason = "no memory for what it sends";
            let session = &self.hold.session;
            self.wire.hub.evicted(session, reason, clock::now());
            self.wire.leave(ReasonCode::QuotaExceeded);
        }
    }

    /// What the last phase needs of this one.
    pub(super) fn into_parting(mut self) -> Parting {
        self.parked.give_back(&mut self.outgoing);
        Parting {
            hold: self.hold,
            publisher: self.publisher,
            afterwards: self.afterwards,
            unsent: self.outgoing,
            sayable: self.sayable,
            let_in_at: self.let_in_at,
        }
    }
}
