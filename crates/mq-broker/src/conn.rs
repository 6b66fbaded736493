//! One connection: a link, the state machine on it, and the session that it holds meanwhile.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use mq_codec::{
    Connect, Disconnect, QoS, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe, Will,
};
use mq_proto::{
    AckTicket, CloseReason, CommandError, Connection, Delivery, Event, LaneId, Outbox, Received,
};
use mq_transport::{Link, Progress};
use tokio::{
    sync::watch,
    time::{sleep, sleep_until},
};
use tracing::{debug, info};

use crate::{
    auth::{Authentication, LogIn, Principal},
    broker::Settings,
    clock,
    hub::{self, Attached, Hub, Publisher},
    mailbox::QOS0_PATIENCE,
    metrics::{ListenerMetrics, Sampler},
    quota::Pace,
    router,
    session::Session,
    store::{SessionChange, StoreFailed},
};

mod enter;
mod log_in;

/// Bytes that wait to be written before no more messages are taken from the mailbox.
const OUTBOX_LIMIT: usize = 64 * 1024;

/// Bytes that wait to be written before the peer is not read any more: it asks (or publishes)
/// faster than it listens.
const READ_LIMIT: usize = 4 * OUTBOX_LIMIT;

/// Messages taken from the mailbox at a time.
const TAKE: usize = 256;

/// How long a closing link may take to deliver its last bytes.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// Serves one link until it ends, then puts its session in order.
pub(crate) async fn serve(
    link: Link,
    hub: Arc<Hub>,
    metrics: Arc<ListenerMetrics>,
    settings: Arc<Settings>,
    shutdown: watch::Receiver<bool>,
) {
    let now = clock::now();
    let mut conn = Conn {
        sampler: Sampler::new(metrics, &link, now),
        connection: Connection::server(now, settings.protocol.clone()),
        pace: Pace::new(settings.publish_rate, now),
        moved_at: now,
        link,
        publisher: hub.publisher(),
        hub,
        settings,
        shutdown,
        attached: None,
        held_back: Outbox::new(),
        outgoing: VecDeque::new(),
        held: None,
        will: None,
        expiry: Some(Duration::ZERO),
        closed: None,
        authentication: Authentication::default(),
        entering: None,
        log_in: None,
        principal: None,
        rules: 0,
    };
    conn.run().await;
    // Boxed, as `connect` is, so that the tasks of all who are connected need no room for it.
    Box::pin(conn.finish()).await;
}

struct Conn {
    link: Link,
    sampler: Sampler,
    connection: Connection,
    hub: Arc<Hub>,
    settings: Arc<Settings>,
    shutdown: watch::Receiver<bool>,
    /// The session, from CONNECT on.
    attached: Option<Attached>,
    publisher: Publisher,
    /// How fast the client may publish.
    pace: Pace,
    /// When the client last had room for a message.
    moved_at: Instant,
    /// Taken from the mailbox, not given to the state machine yet.
    outgoing: VecDeque<Delivery>,
    /// The ticket of a message that waits for room in somebody's mailbox; nothing more is handled
    /// until it has found it.
    held: Option<(AckTicket, ReasonCode)>,
    will: Option<Will>,
    /// How long the session lives on: zero ends it with the connection, `None` never.
    expiry: Option<Duration>,
    closed: Option<CloseReason>,
    authentication: Authentication,
    /// The CONNECT that waits for it, and whether the broker has chosen its client identifier.
    entering: Option<(Box<Connect>, bool)>,
    /// What the client that authenticates, or may again by an enhanced method, has said of itself.
    log_in: Option<Box<LogIn>>,
    /// Who it is, where that matters.
    principal: Option<Principal>,
    /// The generation of the rules that what is in the mailbox was let through by.
    rules: u64,
    /// Stands in for the outbox while that must wait for the store; always empty.
    held_back: Outbox,
}

impl Conn {
    async fn run(&mut self) {
        let mut timer = pin!(sleep_until(clock::now().into()));
        while !self.connection.is_closed() || self.connection.has_events() {
            let now = clock::now();
            let blocked = self.publisher.waiting.first();
            let impatient = blocked.is_some_and(|(_, delivery)| delivery.qos == QoS::AtMostOnce);
            let blocked = blocked.map(|(session, _)| Arc::clone(session));
            let mut room = pin!(blocked.as_ref().map(|session| session.mailbox.room()));
            if let Some(room) = room.as_mut().as_pin_mut() {
                room.enable();
            }
            if self.sampler.is_due(now) {
                self.sampler.sample(&self.link, now);
            }
            self.retry_waiting(now);
            self.handle_events(now).await;
            self.publisher.tell_readers();
            self.fill(now);
            let closed = self.connection.is_closed();
            let is_blocked = !self.publisher.waiting.is_empty();
            if closed && !is_blocked {
                continue;
            }
            // Nothing leaves before what it follows from is in the store.
            let settled = self.publisher.journal.is_settled();
            let resumes_at = self.pace.resumes_at(now);
            let want_read = !is_blocked && resumes_at.is_none() && self.wants_more();
            if !want_read {
                self.connection.excuse_silence(now);
            }
            let expires_at = self.principal.as_ref().and_then(Principal::expires_at);
            let deadline = earlier(self.connection.poll_timeout(), expires_at);
            let deadline = earlier(deadline, resumes_at);
            if let Some(at) = deadline
                && (timer.is_elapsed() || timer.deadline() > at.into())
            {
                timer.as_mut().reset(at.into());
            }
            if is_blocked != blocked.is_some() {
                // Who waits since just now asks once more, with a place in the queue.
                continue;
            }
            let patience = blocked
                .as_ref()
                .filter(|_| !impatient && !closed)
                .and_then(|session| self.patience_with(session, now));
            let (mailbox, claims) = match &mut self.attached {
                Some(Attached {
                    session, claims, ..
                }) => (Some(&session.mailbox), Some(claims)),
                None => (None, None),
            };
            let outbox = if settled {
                self.connection.outbox()
            } else {
                &mut self.held_back
            };
            tokio::select! {
                progress = self.link.progress(outbox, want_read), if !closed => {
                    self.progressed(progress);
                }
                stored = self.publisher.journal.settled(), if !settled => {
                    if let Err(StoreFailed) = stored {
                        self.leave(ReasonCode::UnspecifiedError);
                    }
                }
                () = optional(mailbox.map(crate::mailbox::Mailbox::filled)),
                    if !closed && self.outgoing.is_empty() => {}
                () = optional(room.as_mut().as_pin_mut()), if is_blocked => {}
                () = sleep(QOS0_PATIENCE), if is_blocked && (impatient || closed) => {
                    if closed {
                        self.give_up();
                    } else if let Some(session) = &blocked {
                        session.mailbox.stalled();
                    }
                }
                () = optional(patience.map(sleep)), if is_blocked => {
                    if let Some(session) = &blocked {
                        session.remind();
                    }
                }
                () = timer.as_mut(), if !closed && deadline.is_some() => {
                    let now = clock::now();
                    if expires_at.is_some_and(|at| at <= now) {
                        self.leave(ReasonCode::MaximumConnectTime);
                    } else if want_read {
                        self.connection.handle_timeout(now);
                    }
                }
                outcome = self.authentication.outcome(), if !closed => {
                    self.authenticated(outcome).await;
                }
                _ = optional(claims.map(watch::Receiver::changed)), if !closed => {
                    self.claimed().await;
                }
                _ = self.shutdown.changed(), if !closed => {
                    self.leave(ReasonCode::ServerShuttingDown);
                }
            }
        }
    }

    /// Whether what the client sends can be handled now: it has been let in or not, and it takes what
    /// answers it.
    fn wants_more(&mut self) -> bool {
        let is_undecided = self.entering.is_some() && self.authentication.is_working();
        !is_undecided && self.connection.outbox().len() < READ_LIMIT
    }

    fn progressed(&mut self, progress: Result<Progress, mq_transport::Error>) {
        match progress {
            Ok(Progress::Received(lane)) => self.handle_received(lane),
            Ok(Progress::Flushed) => {}
            // The control lane's end is the connection's; there are no others yet.
            Ok(Progress::LaneClosed(_) | Progress::Closed) => self.connection.handle_link_lost(),
            Err(error) => {
                debug!(%error, "the link failed");
                self.connection.handle_link_lost();
            }
        }
    }

    /// How long the readers of a full mailbox may go on taking nothing; `None` for as long as they
    /// like.
    fn patience_with(&self, session: &Session, now: Instant) -> Option<Duration> {
        let timeout = self.settings.reader_timeout?;
        let full_for = session.mailbox.full_for(now.into()).unwrap_or_default();
        // What is left of nothing is looked at again soon, not at once.
        Some(timeout.saturating_sub(full_for).max(QOS0_PATIENCE))
    }

    /// Somebody wants the session, or a publisher has lost its patience with its reader.
    async fn claimed(&mut self) {
        let Some(attached) = &self.attached else {
            return;
        };
        if attached.is_claimed() {
            self.read_once_more().await;
            self.leave(ReasonCode::SessionTakenOver);
        } else if let Some(timeout) = self.settings.reader_timeout {
            let now = clock::now();
            let full_for = attached.session.mailbox.full_for(now.into());
            // A slow reader works off for long what it has taken at once.
            let idle_for = now.saturating_duration_since(self.moved_at);
            if full_for.is_some_and(|full_for| full_for.min(idle_for) >= timeout) {
                self.hub.metrics.evicted.add(1);
                self.leave(ReasonCode::QuotaExceeded);
            }
        }
    }

    /// What the client sent before it connected anew may have come at the same time as the claim,
    /// and would be lost.
    async fn read_once_more(&mut self) {
        let progress = self.link.progress(&mut self.held_back, true);
        // No time at all: what is there, and nothing that comes later.
        if let Ok(progress) = tokio::time::timeout(Duration::ZERO, progress).await {
            self.progressed(progress);
        }
    }

    fn handle_received(&mut self, lane: LaneId) {
        let buffer = self.link.received(lane);
        self.connection.handle_bytes(clock::now(), lane, buffer);
    }

    /// The peer has gone, and a message of its still finds no room: it was not acknowledged, and
    /// neither was what came after it.
    fn give_up(&mut self) {
        self.publisher.give_up(&self.hub.metrics);
        self.held = None;
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Publish(_) => self.hub.metrics.dropped.add(1),
                Event::Closed(reason) => self.closed = Some(reason),
                _ => {}
            }
        }
    }

    fn leave(&mut self, reason: ReasonCode) {
        self.connection.disconnect(Disconnect::new(reason));
    }

    /// Acts on what the state machine says, until it has nothing more or a message has to wait.
    async fn handle_events(&mut self, now: Instant) {
        while self.publisher.waiting.is_empty() {
            let Some(event) = self.connection.poll_event() else {
                return;
            };
            match event {
                Event::Connect(connect) => Box::pin(self.connect(now, *connect)).await,
                Event::Publish(received) => self.publish(now, received),
                Event::Subscribe(subscribe) => self.subscribe(now, &subscribe),
                Event::Unsubscribe(unsubscribe) => self.unsubscribe(now, &unsubscribe),
                Event::Auth(auth) => self.auth(auth),
                Event::Closed(reason) => self.closed = Some(reason),
                Event::Released { packet_id } => self.record(SessionChange::Released { packet_id }),
                // The window has opened as well; `fill` uses it.
                Event::Acked { packet_id, .. } => {
                    self.record(SessionChange::Completed { packet_id });
                }
                Event::IncomingReleased { packet_id } => {
                    self.record(SessionChange::ReceivedReleased { packet_id });
                }
                // The rest is for clients.
                _ => {}
            }
        }
    }

    fn publish(&mut self, now: Instant, mut received: Received) {
        let Some(attached) = &self.attached else {
            return;
        };
        if self.pace.spend(received.message.payload.len(), now) {
            self.hub.metrics.throttled.add(1);
        }
        if router::is_too_deep(received.message.topic.as_bytes()) {
            match received.ticket.take() {
                Some(ticket) if self.connection.has_reason_codes() => {
                    self.connection
                        .ack(now, ticket, ReasonCode::TopicNameInvalid);
                }
                // It cannot be refused alone.
                _ => self.leave(ReasonCode::TopicNameInvalid),
            }
            return;
        }
        let publisher = &mut self.publisher;
        let is_own = self.settings.sys_interval.is_some()
            && received.message.topic.starts_with(hub::OWN_TOPICS);
        if is_own {
            self.hub.metrics.not_authorized.add(1);
        }
        let who = self.principal.as_ref();
        if is_own || who.is_some_and(|who| !self.hub.may_publish(who, &received, publisher)) {
            // Before 5.0 it is acknowledged like any other.
            if let Some(ticket) = received.ticket.take() {
                self.connection.ack(now, ticket, ReasonCode::NotAuthorized);
            }
            return;
        }
        let answer = self
            .hub
            .publish(Some(&attached.session), received, now, publisher);
        if !publisher.waiting.is_empty() {
            self.held = answer;
        } else if let Some((ticket, reason)) = answer {
            self.connection.ack(now, ticket, reason);
        }
    }

    /// Records what became of a message in flight.
    fn record(&mut self, change: SessionChange) {
        if let Some(attached) = &self.attached {
            let journal = &mut self.publisher.journal;
            journal.record_of(&attached.session, change);
        }
    }

    /// Tries again what found no room, in order; when all of it has, its acknowledgement leaves.
    fn retry_waiting(&mut self, now: Instant) {
        if self.publisher.waiting.is_empty() {
            return;
        }
        self.publisher.retry(&self.hub.metrics);
        if self.publisher.waiting.is_empty()
            && let Some((ticket, reason)) = self.held.take()
        {
            self.connection.ack(now, ticket, reason);
        }
    }

    fn subscribe(&mut self, now: Instant, subscribe: &Subscribe) {
        let Some(attached) = &mut self.attached else {
            return;
        };
        let id = subscribe.properties.subscription_id;
        let reasons = subscribe
            .subscriptions
            .iter()
            .map(|subscription| {
                if router::is_too_deep(subscription.filter.as_bytes()) {
                    return ReasonCode::TopicFilterInvalid;
                }
                self.hub
                    .subscribe(attached, subscription, id, &mut self.publisher, now)
            })
            .collect();
        let ack = SubAck {
            packet_id: subscribe.packet_id,
            reasons,
            properties: mq_codec::SubAckProperties::default(),
        };
        self.answered(|connection| connection.suback(now, ack));
    }

    fn unsubscribe(&mut self, now: Instant, unsubscribe: &Unsubscribe) {
        let Some(attached) = &mut self.attached else {
            return;
        };
        let reasons = unsubscribe
            .filters
            .iter()
            .map(|filter| {
                let journal = &mut self.publisher.journal;
                self.hub.unsubscribe(attached, filter, journal)
            })
            .collect();
        let ack = UnsubAck {
            packet_id: unsubscribe.packet_id,
            reasons,
            properties: mq_codec::UnsubAckProperties::default(),
        };
        self.answered(|connection| connection.unsuback(now, ack));
    }

    fn answered(&mut self, answer: impl FnOnce(&mut Connection) -> Result<(), CommandError>) {
        if let Err(error) = answer(&mut self.connection) {
            // Larger than the client takes, or the connection is over anyway.
            debug!(%error, "an answer could not be sent");
            self.leave(ReasonCode::ImplementationSpecificError);
        }
    }

    /// Moves messages from the mailbox into the outbox, as many as the window and the link take.
    fn fill(&mut self, now: Instant) {
        let Some(Attached { session, .. }) = &self.attached else {
            return;
        };
        let rules = self.hub.guard.generation();
        if rules != self.rules {
            // What waits was let through by others.
            self.rules = rules;
            session.mailbox.put_back(self.outgoing.drain(..));
            let journal = &mut self.publisher.journal;
            self.hub.remove_forbidden(session, journal);
        }
        let metrics = &self.hub.metrics;
        let journal = &mut self.publisher.journal;
        while self.connection.is_open() && self.connection.outbox().len() < OUTBOX_LIMIT {
            if self.outgoing.is_empty() {
                session.mailbox.take(TAKE, &mut self.outgoing);
            }
            let Some(delivery) = self.outgoing.pop_front() else {
                return;
            };
            if delivery.expires_at.is_some_and(|at| at <= now) {
                // `[MQTT-3.3.2-5]`
                hub::unqueued(session, &delivery, journal);
                continue;
            }
            let number = delivery.tag;
            match self.connection.publish(now, delivery) {
                Ok(packet_id) => {
                    self.moved_at = now;
                    metrics.messages_out.add(1);
                    if let Some(packet_id) = packet_id {
                        journal.record_of(session, SessionChange::Sent { number, packet_id });
                    }
                }
                Err((CommandError::WindowFull, delivery)) => {
                    self.outgoing.push_front(delivery);
                    return;
                }
                // Larger than the client takes: as if it had been sent `[MQTT-3.1.2-25]`.
                Err((_, delivery)) => hub::dropped(metrics, session, &delivery, journal),
            }
        }
    }

    /// Writes what is left, closes the link, and gives the session back.
    async fn finish(mut self) {
        self.sampler.sample(&self.link, clock::now());
        self.publisher.tell_readers();
        self.publisher.give_up(&self.hub.metrics);
        let reason = self.closed.take().unwrap_or(CloseReason::LinkLost);
        if let CloseReason::ByPeer(disconnect) = &reason {
            self.disconnected_by_client(disconnect);
        }
        let mut outbox = core::mem::take(self.connection.outbox());
        // The session first: who takes it over need not wait for a slow link.
        if let Some(mut attached) = self.attached.take() {
            info!(
                client = %attached.session.client_id,
                dropped = attached.session.mailbox.dropped(),
                %reason,
                "disconnected"
            );
            attached.state.protocol = self.connection.into_session();
            let unsent = self.outgoing.drain(..);
            attached.session.mailbox.disconnect(unsent);
            let will = self.will.take();
            let journal = &mut self.publisher.journal;
            self.hub
                .detach(attached, clock::now(), will, self.expiry, journal);
        } else {
            debug!(%reason, "a link without a session ended");
        }
        let stored = self.publisher.journal.settled();
        if !matches!(
            tokio::time::timeout(CLOSE_DEADLINE, stored).await,
            Ok(Ok(()))
        ) {
            // What cannot be promised is not said.
            outbox = Outbox::new();
        }
        // In a box of its own: the allocator has small pages for blocks of up to 8 KiB only.
        Box::pin(close(self.link, &mut outbox, &reason)).await;
    }

    /// DISCONNECT has the last word about the will and the session's life.
    fn disconnected_by_client(&mut self, disconnect: &Disconnect) {
        // Only a normal disconnection takes it back `[MQTT-3.14.4-3]`; before 5.0 there is no other.
        if disconnect.reason == ReasonCode::Success {
            self.will = None;
        }
        // That one which was to end with the connection cannot be kept after all is the state
        // machine's to refuse.
        if let Some(seconds) = disconnect.properties.session_expiry_interval {
            self.expiry = enter::bounded_expiry(seconds, self.settings.max_session_expiry);
        }
    }
}

/// The earlier of two times that may not be there.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Writes the last bytes and closes, within a deadline. A link that was lost has nobody to write
/// to.
async fn close(mut link: Link, outbox: &mut mq_proto::Outbox, reason: &CloseReason) {
    if !matches!(reason, CloseReason::LinkLost) {
        let last = async {
            while !outbox.is_empty() {
                // A link whose peer has gone says so at once, each time it is asked.
                if let Ok(Progress::Closed) | Err(_) = link.progress(outbox, false).await {
                    break;
                }
            }
        };
        // Too slow is as good as gone.
        let _ = tokio::time::timeout(CLOSE_DEADLINE, last).await;
    }
    link.close(CLOSE_DEADLINE).await;
}

/// Waits for a future that may not be there: then for ever.
async fn optional<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
