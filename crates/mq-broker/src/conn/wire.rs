//! The parts that a connection has in every phase: its link, the state machine on it, and their
//! metrics.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use mq_codec::{Auth, AuthProperties, ConnAck, Disconnect, ReasonCode};
use mq_proto::{CloseReason, CommandError, Connection, Delivery, LaneId, Outbox, Role};
use mq_transport::{Error, LaneClosed, Link, Progress};
use tokio::{sync::watch, time::sleep_until};
use tracing::{debug, info};

use super::{
    early::{self, Early},
    first_bytes::other_protocol,
    settling::Settling,
    unsettled_acks::UnsettledAcks,
};
use crate::{
    Settings,
    auth::{LogIn, Refusal},
    clock,
    escaped::Escaped,
    hub::Hub,
    journal::Journal,
    memory_limit::MemoryShare,
    metrics::{ListenerMetrics, Sampler},
    refusal_log::{ClientLine, RefusalDetails},
    store::Position,
};

/// Bytes that wait to be written from which on no more messages are taken from the mailbox.
pub(super) const OUTBOX_LIMIT: usize = 64 * 1024;

/// Bytes that wait to be written from which on the peer is not read any more: it sends faster than it reads.
const READ_LIMIT: usize = 4 * OUTBOX_LIMIT;

/// A link and the state machine on it.
pub(crate) struct Wire {
    pub(super) link: Link,
    pub(super) connection: Connection,
    /// The state of a link whose handshake is not complete.
    pub(super) early: Option<Box<Early>>,
    pub(super) hub: Arc<Hub>,
    pub(super) settings: Arc<Settings>,
    pub(super) shutdown: watch::Receiver<bool>,
    /// Bytes that the client makes this connection hold; before it is accepted, within the limit for all such clients.
    pub(super) incoming_memory: MemoryShare,
    /// Bytes that wait to be written to the client, or for its acknowledgement.
    pub(super) outgoing_memory: MemoryShare,
    pub(super) unsettled_acks: UnsettledAcks,
    pub(super) settling: Settling,
    /// A message that a bridge sends to the remote broker before it disconnects.
    pub(super) last_word: Option<Box<Delivery>>,
    /// The reason for which the connection ends, once the state machine has reported it.
    pub(super) closed: Option<CloseReason>,
    /// The protocol that the client speaks, if its first bytes are known to be another than MQTT.
    pub(super) other_protocol: Option<&'static str>,
    sampler: Sampler,
}

impl Wire {
    pub(crate) fn new(
        link: Link,
        hub: Arc<Hub>,
        metrics: Arc<ListenerMetrics>,
        settings: Arc<Settings>,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let now = clock::now();
        let mut connection = Connection::server(now, settings.protocol.clone());
        #[cfg(feature = "mqtt-next")]
        if is_mqtt_next(&link) {
            connection.allow_flows();
        }
        let policy = settings.listen.early_data;
        let within = settings.handshake_timeout;
        let early = Early::of(&link, &mut connection, policy, now, within).map(Box::new);
        Self {
            early,
            ..Self::with(link, connection, hub, metrics, settings, shutdown)
        }
    }

    /// Makes the parts of a link and a state machine of either role.
    pub(super) fn with(
        link: Link,
        connection: Connection,
        hub: Arc<Hub>,
        metrics: Arc<ListenerMetrics>,
        settings: Arc<Settings>,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        Self {
            early: None,
            sampler: Sampler::new(metrics, &link, clock::now()),
            incoming_memory: hub.unauthenticated_share(),
            outgoing_memory: hub.memory_share(),
            unsettled_acks: UnsettledAcks::default(),
            settling: Settling::default(),
            last_word: None,
            closed: None,
            other_protocol: None,
            link,
            connection,
            hub,
            settings,
            shutdown,
        }
    }

    /// Lets the link have what waits for settled changes alone. Returns the position of the changes that the rest waits
    /// for; `None` if nothing is held back.
    pub(super) fn release_settled(&mut self, journal: &Journal, now: Instant) -> Option<Position> {
        let (acks, connection) = (&mut self.unsettled_acks, &mut self.connection);
        self.settling.release(acks, connection, journal, now)
    }

    /// Acknowledges the messages that waited for the store. What the outbox holds must not be sent before the store has
    /// settled.
    pub(super) fn give_tickets_back(&mut self, now: Instant) {
        let all = self.unsettled_acks.len();
        self.unsettled_acks
            .give_back(all, &mut self.connection, now);
    }

    /// Returns `true` if a client has as many messages at the store as it may: a client before MQTT 5.0, which receives
    /// no Receive Maximum, is not read any further.
    pub(super) fn has_all_at_store(&self) -> bool {
        let maximum = self.settings.protocol.receive_maximum.get();
        !self.connection.has_reason_codes() && self.unsettled_acks.len() >= usize::from(maximum)
    }

    /// Returns `true` if the connection has ended, and no event before its end is left to act on.
    pub(super) fn is_over(&self) -> bool {
        self.connection.is_closed() && !self.connection.has_events()
    }

    /// Records the round trips that the transport has measured, when that is due.
    pub(super) fn sample(&mut self, now: Instant) {
        if self.sampler.is_due(now) {
            self.sample_now(now);
        }
    }

    fn sample_now(&mut self, now: Instant) {
        let is_blocked = self.sampler.sample(&self.link, now);
        if !is_blocked {
            return;
        }
        if let Some(left_out) = self.hub.refusal_log.admit(ClientLine::StreamsBlocked, now) {
            info!(
                peer = self.link.info().peer_address.map(tracing::field::display),
                open = self.link.data_lanes() + 1,
                left_out = (left_out > 0).then_some(left_out),
                "client waits for more QUIC streams than max_streams of [quic] allows"
            );
        }
    }

    /// Counts a data stream that was closed because no data arrived on it.
    pub(super) fn closed_idle(&self) {
        self.sampler.metrics().streams_closed_idle.add(1);
    }

    /// Records the link's statistics a last time.
    pub(super) fn sample_last(&mut self) {
        self.sample_now(clock::now());
    }

    /// Disconnects if the broker is shutting down.
    pub(super) fn check_shutdown(&mut self) {
        if self.shutdown.has_changed().unwrap_or(true) {
            self.disconnect_for(ReasonCode::ServerShuttingDown);
        }
    }

    /// Delays the read of CONNECT if clients of the same address have broken the protocol repeatedly: by half of the
    /// timeout of CONNECT at most. A shutdown of the broker ends the delay.
    pub(super) async fn slow_down(&mut self) {
        let peer = self.link.info().peer_address;
        let most = self.settings.protocol.connect_timeout / 2;
        let delay = self.hub.violations.delay(peer, most, clock::now());
        if delay.is_zero() {
            return;
        }
        debug!(
            peer = peer.map(tracing::field::display),
            seconds = delay.as_secs_f64(),
            "connection delayed after protocol errors"
        );
        let mut shutdown = self.shutdown.clone();
        // Both outcomes end the wait.
        let _ = tokio::time::timeout(delay, shutdown.changed()).await;
    }

    /// Returns `true` if the link may be read: the client reads the answers to its packets, and no packet waits for the
    /// end of the handshake.
    pub(super) fn may_read(&mut self) -> bool {
        !self.early.as_ref().is_some_and(|early| early.holds)
            && !self.connection.is_failing()
            && self.connection.outbox().len() < READ_LIMIT
    }

    /// Returns the next deadline: the state machine's, or that of the link's handshake.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let handshake = self.early.as_ref().map(|early| early.deadline);
        earlier(self.connection.poll_timeout(), handshake)
    }

    /// Ends a turn of a client that is not accepted yet: counts its memory, and waits until its phase has an event to
    /// handle: of the link, a deadline, the shutdown, or `other`, whose outcome it returns. Does not wait once the
    /// connection is closed. Cancel-safe if `other` is.
    pub(super) async fn wait_for<T>(
        &mut self,
        now: Instant,
        want_read: bool,
        other: impl Future<Output = T>,
    ) -> Option<T> {
        self.count_unauthenticated();
        self.check_shutdown();
        if self.connection.is_closed() {
            return None;
        }
        if !want_read {
            self.connection.excuse_silence(now);
        }
        let deadline = self.deadline();
        let due = async {
            match deadline {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let mut shutdown = self.shutdown.clone();
        let is_early = self.early.is_some();
        let progress = early::progress(
            &mut self.link,
            self.connection.outbox(),
            want_read,
            is_early,
        );
        let mut is_due = false;
        let mut progressed = None;
        let outcome = tokio::select! {
            biased;
            () = due => {
                is_due = true;
                None
            }
            outcome = other => Some(outcome),
            progress = progress => {
                progressed = Some(progress);
                None
            }
            _ = shutdown.changed() => None,
        };
        if let Some(progress) = progressed {
            self.progressed(progress, clock::now());
        }
        if is_due && want_read {
            self.connection.handle_timeout(clock::now());
        }
        outcome
    }

    /// Records whether data that the state machine has left unread must wait for the handshake.
    fn note_early(&mut self) {
        let Some(early) = &mut self.early else {
            return;
        };
        let lanes = self.link.unread_lanes();
        early.holds = lanes
            .into_iter()
            .chain([LaneId::CONTROL])
            .any(|lane| self.connection.is_too_early(self.link.received(lane)));
    }

    /// Handles the packets that have waited, once the handshake is complete, or gives up the link if that takes too
    /// long.
    pub(super) fn check_handshake(&mut self, now: Instant) {
        let Some(early) = &self.early else {
            return;
        };
        if self.connection.is_closed() {
            return;
        }
        if !self.link.is_early() {
            self.take_early();
            self.early = None;
        } else if early.deadline <= now {
            let peer = self.link.info().peer_address.map(tracing::field::display);
            debug!(peer, "handshake timed out after early data");
            self.connection.handle_link_lost();
        }
    }

    /// Handles the packets that have waited, if the handshake is complete: also before the end of a link that ends at
    /// the same time.
    pub(super) fn take_early(&mut self) {
        if self.early.is_some() && !self.link.is_early() {
            self.connection.handshake_complete();
            self.handle_all_received();
        }
    }

    /// Returns `true` if the peer may be a replay of early data: the link's handshake is still not complete.
    pub(super) fn is_unproved(&self) -> bool {
        self.early.is_some() && self.link.is_early()
    }

    /// Handles the link's progress; `None` is the end of its handshake.
    pub(super) fn progressed(&mut self, progress: Option<Result<Progress, Error>>, now: Instant) {
        self.take_early();
        match progress {
            Some(Ok(Progress::Received(lane))) => self.handle_received(lane, now),
            Some(Ok(Progress::Datagrams)) => self.take_datagrams(),
            Some(Ok(Progress::Flushed)) | None => {}
            Some(Ok(Progress::LaneClosed(lane, how))) => self.lane_closed(lane, how, now),
            // The control lane's end is the connection's.
            Some(Ok(Progress::Closed)) => self.connection.handle_link_lost(),
            Some(Err(error)) => {
                // Escaped, as it may quote the peer.
                debug!(error = %Escaped(&error.to_string()), "connection failed");
                self.connection.handle_link_lost();
            }
        }
    }

    /// Passes data that the link has received to the state machine.
    pub(super) fn handle_received(&mut self, lane: LaneId, now: Instant) {
        let buffer = self.link.received(lane);
        if lane == LaneId::CONTROL && !self.connection.is_open() {
            self.other_protocol = self.other_protocol.or(other_protocol(buffer));
        }
        self.connection.handle_bytes(now, lane, buffer);
        self.note_early();
    }

    pub(super) fn has_unread(&mut self) -> bool {
        !self.link.received(LaneId::CONTROL).is_empty() || !self.link.unread_lanes().is_empty()
    }

    /// Passes data that has waited on all lanes to the state machine: the control lane first, then the others as they
    /// were opened.
    pub(super) fn handle_all_received(&mut self) {
        let now = clock::now();
        self.handle_received(LaneId::CONTROL, now);
        for lane in self.link.unread_lanes() {
            self.handle_received(lane, now);
        }
        self.take_datagrams();
    }

    /// Handles received datagrams, once the client is accepted; until then they wait in the QUIC stack.
    pub(super) fn take_datagrams(&mut self) {
        while self.connection.is_open()
            && self.early.is_none()
            && let Some(datagram) = self.link.next_datagram()
        {
            if let Err(error) = self.connection.handle_datagram(clock::now(), datagram) {
                debug!(%error, "datagram dropped");
            }
        }
    }

    /// Handles the end of a data lane by the client; the connection continues.
    fn lane_closed(&mut self, lane: LaneId, how: LaneClosed, now: Instant) {
        if how != LaneClosed::Finished {
            debug!(stream = %lane, %how, "data stream aborted by client");
        }
        self.connection.handle_lane_closed(now, lane, how.into());
        self.handle_received(lane, now);
    }

    /// Reads bytes that have arrived already, without waiting for more.
    pub(super) async fn read_once(&mut self) {
        let mut nothing = Outbox::new();
        let progress = self.link.progress(&mut nothing, true);
        if let Ok(progress) = tokio::time::timeout(Duration::ZERO, progress).await {
            self.progressed(Some(progress), clock::now());
        }
    }

    /// Ends the connection with that reason. A client may send a server few reasons (Table 3-10).
    pub(super) fn disconnect_for(&mut self, reason: ReasonCode) {
        // Acknowledgements that are settled by the time at which the link ends are sent before
        // DISCONNECT.
        self.give_tickets_back(clock::now());
        let reason = match reason {
            ReasonCode::ServerShuttingDown
            | ReasonCode::SessionTakenOver
            | ReasonCode::NotAuthorized
            | ReasonCode::MaximumConnectTime
                if self.connection.role() == Role::Client =>
            {
                ReasonCode::Success
            }
            reason => reason,
        };
        let reason = match self.last_word.take() {
            // The last message is the will as well, which the remote broker publishes for any
            // reason but success.
            Some(_) if self.connection.has_reason_codes() => match reason {
                ReasonCode::Success => ReasonCode::DisconnectWithWill,
                reason => reason,
            },
            Some(word) => {
                // A failure has no receiver: the connection ends.
                let _ = self.connection.publish(clock::now(), *word);
                reason
            }
            None => reason,
        };
        self.connection.disconnect(Disconnect::new(reason));
    }

    /// Sends an answer; the connection ends if it cannot be sent.
    pub(super) fn answer(
        &mut self,
        answer: impl FnOnce(&mut Connection) -> Result<(), CommandError>,
    ) {
        if let Err(error) = answer(&mut self.connection) {
            // The answer is larger than the client accepts, or the connection is over anyway.
            debug!(%error, "cannot send packet");
            self.disconnect_for(ReasonCode::ImplementationSpecificError);
        }
    }

    /// Sends AUTH with the data of an enhanced authentication.
    pub(super) fn send_auth(&mut self, reason: ReasonCode, data: Option<Bytes>) {
        let auth = Auth {
            reason,
            properties: AuthProperties {
                authentication_data: data,
                ..AuthProperties::default()
            },
        };
        self.answer(|connection| connection.auth(clock::now(), auth));
    }

    /// Refuses a log-in, and logs the refusal. The answer is a CONNACK, or on an open connection a DISCONNECT.
    pub(super) fn refuse(
        &mut self,
        reason: ReasonCode,
        why: &'static str,
        client_id: &str,
        user: Option<&str>,
    ) {
        let info = self.link.info();
        let about = RefusalDetails {
            client: Some(client_id),
            user,
            peer: info.peer_address,
            transport: Some(info.scheme),
            ..RefusalDetails::default()
        };
        self.hub.refused_log_in(about, why, clock::now());
        if self.connection.is_open() {
            // `[MQTT-4.12.1-2]`
            self.disconnect_for(ReasonCode::NotAuthorized);
        } else {
            self.connection.refuse(ConnAck::new(reason));
        }
    }

    /// Refuses a log-in that an authenticator did not accept.
    pub(super) fn refuse_log_in(&mut self, refusal: Refusal, log_in: &LogIn) {
        if refusal.is_failure() {
            self.hub.access_control.failed(log_in.tried(), clock::now());
        }
        let reason = refusal.reason_code();
        let user = log_in.user_name.as_deref();
        self.refuse(reason, reason.name(), &log_in.client_id, user);
    }
}

/// Returns `true` if the link has agreed on the application protocol `MQTT-next`.
#[cfg(feature = "mqtt-next")]
fn is_mqtt_next(link: &Link) -> bool {
    let alpn = link.info().tls.and_then(|tls| tls.alpn);
    alpn.is_some_and(|alpn| alpn.as_bytes() == mq_transport::MQTT_NEXT)
}

/// Returns the earlier of two times, either of which may be absent.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
