//! One connection: a link, the state machine on it, and the session that it holds meanwhile.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use mq_codec::{
    ConnAck, Connect, Disconnect, Packet, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe,
    Version,
};
use mq_proto::{
    AckTicket, CloseReason, CommandError, Connection, Delivery, Event, LaneId, Outbox, Received,
};
use mq_transport::{Link, Progress};
use tokio::{sync::watch, time::sleep_until};
use tracing::{debug, error, info};

use crate::{
    Settings,
    auth::{Authentication, LogIn, Principal},
    ceiling::Share,
    clock,
    delivery::Marks as _,
    hub::{self, Attached, Hub, KeptWill, Publisher},
    mailbox::{Mailbox, PATIENCE},
    metrics::{ListenerMetrics, Sampler},
    quota::Pace,
    router,
    session::Session,
    shown::Shown,
    store::{SessionChange, StoreError, StoreFailed},
};

mod backlog;
mod early;
mod enter;
mod held;
mod load;
mod log_in;

use backlog::{Backlog, is_about_sent};
use load::{Loading, load};

use early::Early;

/// Bytes that wait to be written before no more messages are taken from the mailbox.
const OUTBOX_LIMIT: usize = 64 * 1024;

/// Bytes that wait to be written before the peer is not read any more: it asks (or publishes)
/// faster than it listens.
const READ_LIMIT: usize = 4 * OUTBOX_LIMIT;

/// Messages taken from the mailbox at a time.
const TAKE: usize = 256;

/// The reason code for a client whose message waits for a store that has failed: neither the client nor
/// a limit is the cause.
const STORE_FAILED: ReasonCode = ReasonCode::ImplementationSpecificError;

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
    let mut connection = Connection::server(now, settings.protocol.clone());
    let within = settings.handshake_timeout;
    let early = Early::of(
        &link,
        &mut connection,
        settings.listen.early_data,
        now,
        within,
    );
    let mut conn = Conn {
        sampler: Sampler::new(metrics, &link, now),
        connection,
        early,
        pace: Pace::new(settings.publish_rate, now),
        link,
        publisher: hub.publisher(),
        share: hub.share(false),
        carried: hub.share(true),
        hub,
        settings,
        shutdown,
        attached: None,
        held_back: Outbox::new(),
        sayable: 0,
        let_in_at: None,
        outgoing: VecDeque::new(),
        loading: None,
        held: None,
        backlog: Backlog::default(),
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
    let (link, outbox, reason) = Box::pin(conn.finish()).await;
    // In a box of its own: the allocator has small pages for blocks of up to 8 KiB only. Nothing else
    // of the connection is left while its peer takes its time to leave.
    Box::pin(close(link, outbox, reason)).await;
}

struct Conn {
    link: Link,
    sampler: Sampler,
    connection: Connection,
    /// While the link's handshake is not complete.
    early: Option<Early>,
    hub: Arc<Hub>,
    settings: Arc<Settings>,
    shutdown: watch::Receiver<bool>,
    /// The session, from CONNECT on.
    attached: Option<Attached>,
    publisher: Publisher,
    /// How fast the client may publish.
    pace: Pace,
    /// Taken from the mailbox, not given to the state machine yet.
    outgoing: VecDeque<Delivery>,
    /// Messages of the session that are being read from the store.
    loading: Option<Loading>,
    /// The ticket of a message that waits for room in somebody's mailbox.
    held: Option<AckTicket>,
    /// What came behind that message.
    backlog: Backlog,
    /// What the client makes this connection hold; until it is let in, below the strangers' ceiling.
    share: Share,
    /// What waits to be written to it, or for its acknowledgement.
    carried: Share,
    will: Option<KeptWill>,
    /// How long the session lives on: zero ends it with the connection, `None` never.
    expiry: Option<Duration>,
    closed: Option<CloseReason>,
    authentication: Authentication,
    /// The CONNECT that waits for it, and whether the broker has chosen its client identifier.
    entering: Option<(Box<Connect>, bool)>,
    /// What the client that authenticates, or may again by an enhanced method, has said of itself.
    log_in: Option<Box<LogIn>>,
    /// The client's user and rights, where there are rules.
    principal: Option<Principal>,
    /// The generation of the rules that what is in the mailbox was let through by.
    rules: u64,
    /// Stands in for the outbox while that must wait for the store; always empty.
    held_back: Outbox,
    /// How far the outbox holds nothing that has to wait for the store.
    sayable: u64,
    /// Where CONNACK is in the outbox.
    let_in_at: Option<u64>,
}

impl Conn {
    async fn run(&mut self) {
        let mut timer = pin!(sleep_until(clock::now().into()));
        // Kept from turn to turn: a new one registers with all others each time.
        let mut shutdown = self.shutdown.clone();
        let mut shutdown = pin!(shutdown.changed());
        while !self.connection.is_closed() || self.has_events() {
            let now = clock::now();
            let blocked = self.publisher.waiting.first();
            let blocked = blocked.map(|(session, _)| Arc::clone(session));
            let mut room = pin!(blocked.as_ref().map(|session| session.mailbox.room()));
            if let Some(room) = room.as_mut().as_pin_mut() {
                room.enable();
            }
            self.look_at_session().await;
            self.turn(now).await;
            if self.shutdown.has_changed().unwrap_or(true) {
                self.leave(ReasonCode::ServerShuttingDown);
            }
            let closed = self.connection.is_closed();
            let is_blocked = !self.publisher.waiting.is_empty();
            if closed && !is_blocked {
                continue;
            }
            // Nothing leaves before what it follows from is in the store.
            let settled = self.is_settled();
            let resumes_at = self.pace.resumes_at(now);
            let want_read = resumes_at.is_none() && self.wants_more();
            if !want_read {
                self.connection.excuse_silence(now);
            }
            let expires_at = self.principal.as_ref().and_then(Principal::expires_at);
            let deadline = earlier(self.connection.poll_timeout(), expires_at);
            let deadline = earlier(earlier(deadline, resumes_at), self.handshake_due());
            if let Some(at) = deadline
                && (timer.is_elapsed() || timer.deadline() > at.into())
            {
                timer.as_mut().reset(at.into());
            }
            if !self.publisher.waits_for(blocked.as_ref()) {
                // What waits for another reader since just now is tried once more, with a place in the
                // queue there.
                continue;
            }
            let patience_ends = blocked
                .as_ref()
                .map(|session| self.patience_ends(session, now));
            let takes_more = self.takes_more_retained();
            let (is_early, is_loading) = (self.early.is_some(), self.loading.is_some());
            let is_authenticating = self.authentication.is_working();
            let is_due = deadline.is_some_and(|at| at <= now);
            let mailbox = self.attached.as_ref().map(|it| &it.session.mailbox);
            let outbox = if settled {
                self.connection.outbox()
            } else {
                &mut self.held_back
            };
            // In this order: what comes seldom and must not wait behind a link that always has more, the
            // link, and what is only to wake the task, as each turn looks at it anyway.
            tokio::select! {
                biased;
                () = tokio::task::consume_budget(), if is_due && !closed => {
                    self.became_due(expires_at, want_read);
                }
                stored = self.publisher.journal.settled(), if !settled => {
                    if let Err(StoreFailed) = stored {
                        self.leave(STORE_FAILED);
                    }
                }
                loaded = optional(self.loading.as_mut()), if is_loading && !closed => {
                    self.loaded(loaded);
                }
                outcome = self.authentication.outcome(), if is_authenticating && !closed => {
                    self.authenticated(outcome).await;
                }
                () = optional(room.as_mut().as_pin_mut()), if is_blocked => {}
                () = optional(patience_ends.map(|at| sleep_until(at.into()))), if is_blocked => {
                    if let Some(session) = &blocked {
                        session.remind();
                    }
                }
                progress = early::progress(&mut self.link, outbox, want_read, is_early),
                    if !closed =>
                {
                    self.progressed(progress);
                }
                () = optional(mailbox.map(Mailbox::told)), if !closed => {}
                () = std::future::ready(()), if takes_more && !closed => {}
                () = timer.as_mut(), if deadline.is_some() && !closed => {}
                _ = shutdown.as_mut(), if !closed => {}
            }
        }
    }

    /// The next deadline has passed: that of the log-in, or the state machine's.
    fn became_due(&mut self, expires_at: Option<Instant>, want_read: bool) {
        let now = clock::now();
        if expires_at.is_some_and(|at| at <= now) {
            self.leave(ReasonCode::MaximumConnectTime);
        } else if want_read {
            self.connection.handle_timeout(now);
        }
    }

    /// Whether all that the outbox has may be said.
    fn is_settled(&mut self) -> bool {
        let settled = self.publisher.journal.is_settled();
        if settled {
            self.sayable = self.connection.outbox().position();
        }
        settled
    }

    /// Does all that there is to do without waiting for anybody.
    async fn turn(&mut self, now: Instant) {
        if self.sampler.is_due(now) {
            self.sampler.sample(&self.link, now);
        }
        self.publisher.recover(now);
        self.retry_waiting(now);
        if self.early.is_some() {
            self.look_at_handshake(now).await;
        }
        self.handle_events(now).await;
        if self.backlog.is_full() && self.is_out_of_patience(now) {
            let dropped = self.backlog.drop_qos0();
            self.hub.metrics.dropped.add(dropped);
        }
        self.publisher.tell_readers();
        self.count_memory();
        if self.fill(now) {
            // Retained messages may be many: others have their turn in between.
            tokio::task::yield_now().await;
        }
    }

    fn has_events(&self) -> bool {
        !self.backlog.is_empty() || self.connection.has_events()
    }

    /// Whether what the client sends can be handled or held now: it has been let in or not, and it
    /// takes what answers it.
    fn wants_more(&mut self) -> bool {
        let is_undecided = self.entering.is_some() && self.authentication.is_working();
        !is_undecided
            && !self.waits_for_handshake()
            && !self.backlog.is_full()
            && !self.connection.is_failing()
            && self.connection.outbox().len() < READ_LIMIT
    }

    /// Acts on what the link has done; `None` is the end of its handshake.
    fn progressed(&mut self, progress: Option<Result<Progress, mq_transport::Error>>) {
        self.take_what_waited();
        match progress {
            Some(Ok(Progress::Received(lane))) => self.handle_received(lane),
            Some(Ok(Progress::Flushed)) | None => {}
            // The control lane's end is the connection's; there are no others yet.
            Some(Ok(Progress::LaneClosed(_) | Progress::Closed)) => {
                self.connection.handle_link_lost();
            }
            Some(Err(error)) => {
                // It may have words of the peer's.
                debug!(error = %Shown(&error.to_string()), "the link failed");
                self.connection.handle_link_lost();
            }
        }
    }

    /// Whether the message that waits for room has waited for long enough: what its readers' mailboxes
    /// do with it decides now.
    fn is_out_of_patience(&self, now: Instant) -> bool {
        let since = self.publisher.waiting_since;
        since.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE)
    }

    /// When a message that waits for room in that session's mailbox is looked at again, room or not.
    fn patience_ends(&self, session: &Session, now: Instant) -> Instant {
        let since = self.publisher.waiting_since.unwrap_or(now);
        if !self.is_out_of_patience(now) {
            return since + PATIENCE;
        }
        // Where publishers wait for as long as it takes, the reader's time may run out.
        let stopped_for = session.mailbox.no_progress_for(now.into());
        let left = self
            .settings
            .reader_timeout
            .map_or(Duration::MAX, |timeout| {
                timeout.saturating_sub(stopped_for.unwrap_or_default())
            });
        // What is left of nothing is looked at again soon, not at once.
        now + left.clamp(PATIENCE, Duration::from_hours(1))
    }

    /// Leaves if another connection wants the session, or a publisher has lost its patience with this
    /// reader.
    async fn look_at_session(&mut self) {
        let Some(attached) = &self.attached else {
            return;
        };
        if !attached.session.take_reminder() || self.connection.is_closed() {
            return;
        }
        let mailbox = &attached.session.mailbox;
        if attached.is_claimed() {
            self.read_once_more().await;
            self.leave(ReasonCode::SessionTakenOver);
        } else if mailbox.is_condemned(clock::now().into(), self.settings.reader_timeout) {
            let reason = "too slow for what comes for it";
            self.hub.evicted(&attached.session, reason, clock::now());
            self.leave(ReasonCode::QuotaExceeded);
        }
    }

    /// What the client sent before it connected anew may have come at the same time as the claim,
    /// and would be lost.
    async fn read_once_more(&mut self) {
        let progress = self.link.progress(&mut self.held_back, true);
        // Bytes that are there already are read; bytes that come later are not waited for.
        if let Ok(progress) = tokio::time::timeout(Duration::ZERO, progress).await {
            self.progressed(Some(progress));
        }
    }

    fn handle_received(&mut self, lane: LaneId) {
        let buffer = self.link.received(lane);
        self.connection.handle_bytes(clock::now(), lane, buffer);
        self.note_early(lane);
    }

    /// The peer has gone, and a message of its still finds no room: it was not acknowledged, and
    /// neither was what came after it.
    fn give_up(&mut self) {
        self.publisher.give_up(&self.hub.metrics);
        self.held = None;
        let backlog = core::iter::from_fn(|| self.backlog.pop());
        for event in backlog.chain(core::iter::from_fn(|| self.connection.poll_event())) {
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

    /// Acts on what the state machine says, until it has nothing more. Behind a message that waits for
    /// room what the client wants waits as well; what it acknowledges does not.
    async fn handle_events(&mut self, now: Instant) {
        loop {
            let waits = !self.publisher.waiting.is_empty();
            // The broker names the client's mistake after it has answered what came before it.
            if waits && self.connection.is_failing() {
                return;
            }
            let event = if waits || self.backlog.is_empty() {
                self.connection.poll_event()
            } else {
                self.backlog.pop()
            };
            match event {
                None => return,
                Some(event) if waits && !is_about_sent(&event) => self.backlog.push(event),
                Some(event) => {
                    if let Some(connect) = self.handle_event(now, event) {
                        Box::pin(self.connect(now, *connect)).await;
                    }
                }
            }
        }
    }

    /// Acts on one event; a CONNECT takes its time, and comes back.
    #[inline]
    fn handle_event(&mut self, now: Instant, event: Event) -> Option<Box<Connect>> {
        match event {
            Event::Connect(connect) => return Some(connect),
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
        None
    }

    fn publish(&mut self, now: Instant, mut received: Received) {
        let Some(attached) = &self.attached else {
            return;
        };
        if self.pace.spend(received.message.payload.len(), now) {
            self.hub.metrics.throttled.add(1);
        }
        let session = &attached.session;
        let topic = &received.message.topic;
        if router::is_too_deep(topic.as_bytes()) {
            let reason = "topic of too many levels";
            self.hub.refused_publish(session, topic, reason, now);
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
            && topic.as_bytes().starts_with(hub::OWN_TOPICS.as_bytes());
        if is_own {
            self.hub.metrics.not_authorized.add(1);
        }
        let who = self.principal.as_ref();
        if is_own || who.is_some_and(|who| !self.hub.may_publish(who, &received, publisher)) {
            let topic = &received.message.topic;
            let reason = if is_own {
                "topic of the broker's own"
            } else {
                ReasonCode::NotAuthorized.name()
            };
            self.hub.refused_publish(session, topic, reason, now);
            // Before 5.0 it is acknowledged like any other.
            if let Some(ticket) = received.ticket.take() {
                self.connection.ack(now, ticket, ReasonCode::NotAuthorized);
            }
            return;
        }
        let session = &attached.session;
        self.held = self.hub.publish(Some(session), received, now, publisher);
        if publisher.waiting.is_empty() {
            self.answer_publish(now);
        }
    }

    /// Acknowledges, or refuses, the message that has found room or will find none.
    fn answer_publish(&mut self, now: Instant) {
        let (Some(ticket), Some(attached)) = (self.held.take(), &self.attached) else {
            return self.publisher.done();
        };
        let (reason, refused) = self.publisher.outcome(&attached.session);
        if let Some(topic) = refused {
            let why = "no room for it";
            self.hub
                .refused_publish(&attached.session, &topic, why, now);
        }
        self.connection.ack(now, ticket, reason);
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
        let is_over = self.is_out_of_patience(now);
        self.hub.retry(&mut self.publisher, is_over);
        if self.publisher.waiting.is_empty() {
            self.answer_publish(now);
        } else if is_over && self.connection.is_closed() {
            self.give_up();
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
                let reason = if router::is_too_deep(subscription.filter.as_bytes()) {
                    ReasonCode::TopicFilterInvalid
                } else {
                    let journal = &mut self.publisher.journal;
                    self.hub.subscribe(attached, subscription, id, journal)
                };
                if reason.is_error() {
                    let (session, filter) = (&attached.session, &subscription.filter);
                    self.hub
                        .refused_subscription(session, filter, reason.name(), now);
                }
                reason
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

    /// Moves messages from the mailbox, and retained ones that a subscription asked for, into the
    /// outbox: as many as the window and the link take. Whether it has looked for retained ones.
    fn fill(&mut self, now: Instant) -> bool {
        let may_carry_more = self.may_carry_more();
        let Some(attached) = &mut self.attached else {
            return false;
        };
        let rules = self.hub.guard.generation();
        if rules != self.rules {
            // What waits was let through by others.
            self.rules = rules;
            attached.session.mailbox.put_back(self.outgoing.drain(..));
            let journal = &mut self.publisher.journal;
            self.hub.remove_forbidden(&attached.session, journal);
        }
        let metrics = &self.hub.metrics;
        let journal = &mut self.publisher.journal;
        let mut had_turn = false;
        while self.connection.is_open() && self.connection.outbox().len() < OUTBOX_LIMIT {
            if self.outgoing.is_empty() && may_carry_more {
                if !attached.state.wanted.is_empty() && !had_turn {
                    had_turn = true;
                    let to = &mut self.outgoing;
                    self.hub.next_retained(attached, journal, now, to);
                }
                let mailbox = &attached.session.mailbox;
                let in_flight = self.connection.in_flight_bytes();
                let wanted = mailbox.take(TAKE, &mut self.outgoing, in_flight);
                if self.loading.is_none()
                    && let (Some(wanted), Some(store)) = (wanted, self.hub.store())
                {
                    let client_id = attached.session.client_id.clone();
                    self.loading = Some(load(Arc::clone(store), client_id, wanted));
                }
            }
            let Some(delivery) = self.outgoing.pop_front() else {
                break;
            };
            let session = &attached.session;
            if delivery.expires_at.is_some_and(|at| at <= now) {
                // `[MQTT-3.3.2-5]`
                hub::unqueued(session, &delivery, journal);
                continue;
            }
            let number = delivery.number();
            match self.connection.publish(now, delivery) {
                Ok(packet_id) => {
                    metrics.messages_out.add(1);
                    if let (Some(number), Some(packet_id)) = (number, packet_id) {
                        journal.record_of(session, SessionChange::Sent { number, packet_id });
                    }
                }
                Err((CommandError::WindowFull, delivery)) => {
                    self.outgoing.push_front(delivery);
                    break;
                }
                // Larger than the client takes: as if it had been sent `[MQTT-3.1.2-25]`.
                Err((_, delivery)) => hub::dropped(metrics, session, &delivery, journal),
            }
        }
        had_turn
    }

    /// Whether there are retained messages to be taken, and nothing else to wait for before.
    fn takes_more_retained(&mut self) -> bool {
        let is_wanted = |attached: &Attached| !attached.state.wanted.is_empty();
        self.attached.as_ref().is_some_and(is_wanted)
            && self.may_carry_more()
            && self.outgoing.is_empty()
            && self.connection.is_open()
            && self.connection.outbox().len() < OUTBOX_LIMIT
    }

    /// Messages of the session have come from the store.
    fn loaded(&mut self, loaded: Result<load::Loaded, StoreError>) {
        self.loading = None;
        let Some(attached) = &self.attached else {
            return;
        };
        let session = &attached.session;
        match loaded {
            Ok(load::Loaded { numbers, messages }) => {
                let messages = messages.into_iter();
                let deliveries = messages.map(|(number, message)| message.into_delivery(number));
                session.mailbox.loaded(numbers, deliveries);
                // They were let through by the rules of then.
                let journal = &mut self.publisher.journal;
                self.hub.remove_forbidden(session, journal);
            }
            Err(error) => {
                error!(client = %session.client_id, %error, "messages cannot be read");
                self.leave(ReasonCode::UnspecifiedError);
            }
        }
    }

    /// Gives the session back; returns the link, what is left to be written, and why it ends.
    async fn finish(mut self) -> (Link, Outbox, CloseReason) {
        self.sampler.sample(&self.link, clock::now());
        self.publisher.tell_readers();
        self.publisher.give_up(&self.hub.metrics);
        let reason = self.closed.take().unwrap_or(CloseReason::LinkLost);
        if let CloseReason::ByPeer(disconnect) = &reason {
            self.disconnected_by_client(disconnect);
        }
        let version = self.connection.version();
        if self.was_never_proved() {
            // Nobody has gone who was certainly there.
            self.will = None;
        }
        let mut outbox = core::mem::take(self.connection.outbox());
        // The session first: who takes it over need not wait for a slow link.
        if let Some(mut attached) = self.attached.take() {
            info!(
                client = %Shown(&attached.session.client_id),
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
        let stored = tokio::time::timeout(CLOSE_DEADLINE, stored).await;
        if !matches!(stored, Ok(Ok(()))) {
            // What cannot be promised is not said.
            outbox.cut(self.sayable);
            if let CloseReason::Local(reason) = reason {
                let was_let_in = self.let_in_at.is_some_and(|at| at < self.sayable);
                // That the broker ends because of it may have come first.
                let has_failed = matches!(stored, Ok(Err(StoreFailed)));
                let reason = if has_failed { STORE_FAILED } else { reason };
                say_farewell(&mut outbox, version, was_let_in, reason);
            }
        }
        (self.link, outbox, reason)
    }

    /// DISCONNECT has the last word about the will and the session's life.
    fn disconnected_by_client(&mut self, disconnect: &Disconnect) {
        // Only a normal disconnection takes it back `[MQTT-3.14.4-3]`; before 5.0 there is no other.
        if disconnect.reason == ReasonCode::Success {
            self.will = None;
        }
        // A session that was to end with the connection cannot be kept after all: the state machine has
        // refused that before.
        if let Some(seconds) = disconnect.properties.session_expiry_interval {
            self.expiry = enter::bounded_expiry(seconds, self.settings.max_session_expiry);
        }
    }
}

/// Appends the last packet: DISCONNECT with the reason, or for a client that has no CONNACK yet, CONNACK
/// with 0x88 (before 5.0 return code 3).
fn say_farewell(outbox: &mut Outbox, version: Version, was_let_in: bool, reason: ReasonCode) {
    let packet = match was_let_in {
        false => Packet::from(ConnAck::new(ReasonCode::ServerUnavailable)),
        true if version >= Version::V5 => Packet::Disconnect(Box::new(Disconnect::new(reason))),
        true => return,
    };
    // Of a few bytes, which any client takes; without it the link just ends.
    let _ = outbox.put(LaneId::CONTROL, |out| packet.encode(version, out));
}

/// The earlier of two times that may not be there.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Writes the last bytes and closes, within a deadline. A link that was lost has nobody to write
/// to.
async fn close(mut link: Link, mut outbox: Outbox, reason: CloseReason) {
    // Nobody looks at what it has of a packet any more, and a peer may take its time to leave.
    *link.received(LaneId::CONTROL) = BytesMut::new();
    if !matches!(reason, CloseReason::LinkLost) {
        let last = async {
            while !outbox.is_empty() {
                // A link whose peer has gone says so at once, each time it is asked.
                if let Ok(Progress::Closed) | Err(_) = link.progress(&mut outbox, false).await {
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
