//! A single connection, from CONNECT to its end.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use mq_codec::{Auth, AuthProperties, ByteStr, ConnAck, Disconnect, QoS, ReasonCode};
use mq_proto::{
    CloseReason, CommandError, Connection, DataLanes, Event as ProtoEvent, Probes, Way,
};
use mq_transport::{
    HandshakeKind, LaneClosed, Link, Progress, Scheme, SendProgress,
    race::{Race, Winner},
};

use super::{Driver, Outcome, Settings, lanes::Lanes, now};
use crate::{ConnectTimes, Connected, Error, Event, lock::lock, queue::Queued, shared::Status};

/// Bytes that are collected for one write.
const WRITE_BATCH_BYTES: usize = 64 * 1024;

/// Bytes of answers to the server's packets that wait to be written before the server is not read any more: it sends
/// faster than it reads. That is more than PUBCOMP for every packet identifier there is, so that a server that reads
/// the answers to its messages is always read.
const ANSWERS_LIMIT: usize = 512 * 1024;

/// Bytes on all streams that wait for CONNACK before the server is not read any more: several times QUIC's window for a
/// connection, so that a server may send messages on its streams while its CONNACK is lost and sent again.
const MAX_BEFORE_CONNACK: usize = 8 << 20;

/// Time that the last bytes of a connection have to be sent.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of one connection.
struct Current {
    connection: Connection,
    link: Link,
    /// The index of the link's address.
    index: usize,
    dialled_at: Instant,
    link_at: Instant,
    connected_at: Option<Instant>,
    /// Bytes that the link has taken.
    flushed: u64,
    /// Batches of messages that are not written yet, in order.
    marks: VecDeque<Mark>,
    /// Number of QoS 0 messages that were put into the outbox and are not written yet.
    unwritten: usize,
    lanes: Lanes,
    /// Bytes of answers to the server's packets that were put into the outbox since it was last empty.
    answers: usize,
    /// Progress of the link when the state machine's last deadline passed, such as that of a PINGREQ.
    progress: SendProgress,
    /// `true` if the link left bytes in the outbox at the last step: it is slower than the application.
    backlogged: bool,
    /// The error of the link.
    failure: Option<Error>,
}

/// Messages that were put into the outbox together.
struct Mark {
    /// Bytes that the link has taken once the messages are written.
    end: u64,
    /// Number of the last message.
    last: u64,
    /// Number of messages at QoS 0.
    at_qos_0: usize,
}

/// The outcome of one wait.
enum Step {
    Link(Result<Progress, mq_transport::Error>),
    /// The link has completed its handshake.
    Secured,
    Overtaken(Winner),
    Woken,
}

impl Driver {
    /// Drives a link to its end. With a `race` the link leads it; `race` is `None` once it is decided.
    pub(super) async fn drive(
        &mut self,
        winner: Winner,
        dialled_at: Instant,
        race: &mut Option<Race<Error>>,
    ) -> Outcome {
        let Winner { link, index } = winner;
        let link_at = now();
        let mut config = self.settings.config.clone();
        config.connect.clean_start = self.starts_clean();
        let is_quic = self.settings.addresses[index].scheme == Scheme::Quic;
        if !is_quic {
            config.lanes = DataLanes::None;
        }
        #[cfg(feature = "mqtt-next")]
        if is_quic
            && self
                .settings
                .connector
                .options()
                .alpn
                .iter()
                .any(|name| name == mq_transport::MQTT_NEXT)
        {
            config.lanes = DataLanes::Flows;
        }
        config.datagrams &= is_quic;
        config.deliveries = config.deliveries.filter(|_| is_quic);
        if let Some(method) = &mut self.settings.auth_method {
            let properties = &mut config.connect.properties;
            match ByteStr::new(method.name()) {
                Ok(name) => properties.authentication_method = Some(name),
                Err(error) => return Outcome::Lost(error.into(), None),
            }
            match method.start() {
                Ok(data) => properties.authentication_data = data,
                Err(error) => return Outcome::Lost(error.into(), None),
            }
        }
        let deliveries = config.deliveries.unwrap_or_default();
        let session = core::mem::take(&mut self.session);
        let connection = Connection::client(link_at, config, session);
        let resumed = connection.in_flight() > 0;
        let mut current = Current {
            connection,
            link,
            index,
            dialled_at,
            link_at,
            connected_at: None,
            flushed: 0,
            marks: VecDeque::new(),
            unwritten: 0,
            lanes: Lanes::new(self.settings.quic_streams.clone(), deliveries, resumed),
            answers: 0,
            progress: SendProgress::default(),
            backlogged: false,
            failure: None,
        };
        let outcome = match current.connection.connect(link_at) {
            Ok(()) => self.drive_to_end(&mut current, race).await,
            Err(error) => Outcome::Lost(Error::NotSent(error), None),
        };
        let unwritten = self.after(current).await;
        if self.end_at.is_some() {
            self.unwritten += unwritten;
        }
        outcome
    }

    async fn drive_to_end(
        &mut self,
        current: &mut Current,
        race: &mut Option<Race<Error>>,
    ) -> Outcome {
        let shared = self.shared.clone();
        let timer = tokio::time::sleep(self.settings.connect_timeout);
        tokio::pin!(timer);
        let mut timer_fired = false;
        loop {
            let now = now();
            let closed = self.handle_events(current, now);
            let has_room = self
                .streams
                .flush(&mut current.connection, self.connection, now);
            if let Some(reason) = closed {
                let lasted = current
                    .connected_at
                    .map(|at| now.saturating_duration_since(at));
                return Outcome::Lost(self.why(current, reason), lasted);
            }
            if current.connection.outbox().is_empty() {
                current.answers = 0;
            }
            self.take_requests(current, now);
            let takes_answers = current.answers < ANSWERS_LIMIT;
            if takes_answers {
                self.pump(current, now);
                // Also what has left no bytes, such as a datagram.
                self.note_written(current);
            }
            if self.may_finish(current, now) {
                return Outcome::Finished;
            }
            if self.reconnect_asked {
                current.failure = Some(Error::ReconnectAsked);
                current.connection.handle_link_lost();
                continue;
            }

            // The timer stays where it is while deadlines only move away from it.
            let wanted = [current.connection.poll_timeout(), self.end_at];
            if let Some(wanted) = wanted.into_iter().flatten().min() {
                let wanted = tokio::time::Instant::from_std(wanted);
                if timer_fired || wanted < timer.deadline() {
                    timer.as_mut().reset(wanted);
                    timer_fired = false;
                }
            }
            let Current {
                connection, link, ..
            } = current;
            let before = connection.outbox().len();
            // What waits for room is of an earlier connection before CONNACK, which does not wait for it.
            let may_read = takes_answers
                && if connection.is_open() {
                    has_room
                } else {
                    link.received_len() <= MAX_BEFORE_CONNACK
                };
            let step = poll_fn(|cx| {
                match link.poll_progress_or_handshake(cx, connection.outbox(), may_read) {
                    Poll::Ready(Some(progress)) => return Poll::Ready(Step::Link(progress)),
                    Poll::Ready(None) => return Poll::Ready(Step::Secured),
                    Poll::Pending => {}
                }
                let Some(rivals) = race else {
                    return Poll::Pending;
                };
                match rivals.poll_next(cx) {
                    Poll::Ready(Ok(winner)) => Poll::Ready(Step::Overtaken(winner)),
                    Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
                }
            });
            let step = tokio::select! {
                biased;
                step = step => step,
                () = shared.queue.woken() => Step::Woken,
                () = timer.as_mut(), if !timer_fired => {
                    timer_fired = true;
                    Step::Woken
                }
            };
            let taken = before - current.connection.outbox().len();
            current.flushed += taken as u64;
            self.note_written(current);
            let progress = match step {
                Step::Link(progress) => Some(progress),
                Step::Secured | Step::Woken => None,
                Step::Overtaken(winner) => return Outcome::Overtaken(winner),
            };
            // An answer can be read only after the server's part of the handshake.
            let answered = matches!(progress, Some(Ok(Progress::Received(_))));
            if race.is_some() && (answered || current.link.handshake() != HandshakeKind::Pending) {
                *race = None;
                self.won(current.index, &current.link.info());
            }
            Self::handle_progress(current, progress, has_room, taken);
        }
    }

    fn handle_progress(
        current: &mut Current,
        progress: Option<Result<Progress, mq_transport::Error>>,
        has_room: bool,
        taken: usize,
    ) {
        let Current {
            connection,
            link,
            answers,
            flushed,
            progress: last_progress,
            backlogged,
            ..
        } = current;
        let now = now();
        if *backlogged && taken > 0 {
            // A slow link is still taking earlier bytes. A PINGREQ stands behind them, so the peer cannot
            // have answered it. A dead link takes nothing more once its buffers are full.
            connection.excuse_silence(now);
        }
        *backlogged = !connection.outbox().is_empty();
        let waiting = connection.outbox().len();
        match progress {
            Some(Ok(Progress::Received(lane))) => {
                current.lanes.heard(lane);
                connection.handle_bytes(now, lane, link.received(lane));
            }
            Some(Ok(Progress::LaneClosed(lane, how))) => {
                tracing::debug!(stream = %lane, %how, "data stream ended by server");
                if how == LaneClosed::Finished {
                    current.lanes.closed(lane);
                } else {
                    current.lanes.broken_off(lane);
                }
                connection.handle_lane_closed(now, lane, how.into());
                connection.handle_bytes(now, lane, link.received(lane));
            }
            Some(Ok(Progress::Datagrams)) => take_datagrams(connection, link, now),
            Some(Ok(Progress::Flushed)) | None => {}
            Some(Ok(Progress::Closed)) => connection.handle_link_lost(),
            Some(Err(error)) => {
                current.failure = Some(error.into());
                connection.handle_link_lost();
            }
        }
        let now_waiting = connection.outbox().len();
        *answers += now_waiting.saturating_sub(waiting);
        // Bytes that were dropped with their stream are not waited for.
        *flushed += waiting.saturating_sub(now_waiting) as u64;
        if connection.poll_timeout().is_some_and(|at| at <= now) {
            let earlier = std::mem::replace(last_progress, link.send_progress());
            let is_slow = last_progress.advanced_since(&earlier);
            if !has_room || is_slow {
                // The server's sign of life may be among the bytes that are left unread on purpose. Or the kernel or
                // QUIC still gets earlier bytes through, behind which PINGREQ stands.
                connection.excuse_silence(now);
            }
            connection.handle_timeout(now);
        }
    }

    /// Acts on events. Returns the reason if the connection has ended.
    fn handle_events(&mut self, current: &mut Current, now: Instant) -> Option<CloseReason> {
        while let Some(event) = current.connection.poll_event() {
            match event {
                ProtoEvent::Connected(ack) => {
                    let data = ack.properties.authentication_data.as_deref();
                    match self.finish_auth(data) {
                        Ok(()) => self.connected(current, *ack, now),
                        Err(error) => give_up(current, error),
                    }
                }
                ProtoEvent::SessionLost { resent } => self.session_lost(resent),
                ProtoEvent::Publish(received) => self.streams.deliver(received, now),
                ProtoEvent::Acked {
                    packet_id, reason, ..
                } => self.acked(packet_id, reason),
                ProtoEvent::SubAck(ack) => self.requests.suback(ack, &mut self.streams),
                ProtoEvent::UnsubAck(ack) => self.requests.unsuback(&ack, &mut self.streams),
                ProtoEvent::RequestLost { packet_id } => self.requests.lost(packet_id),
                ProtoEvent::PingResp => current.lanes.ponged(),
                ProtoEvent::LaneFailed { lane, error } => {
                    tracing::warn!(stream = %lane, %error, "data stream ended");
                    current.lanes.broken(lane);
                }
                ProtoEvent::Auth(auth) => self.auth(current, &auth, now),
                ProtoEvent::Closed(reason) => return Some(reason),
                _ => tracing::debug!("event of a server ignored"),
            }
        }
        None
    }

    /// Takes a step of an enhanced authentication, as an AUTH packet asks.
    fn auth(&mut self, current: &mut Current, auth: &Auth, now: Instant) {
        let data = auth.properties.authentication_data.as_deref();
        if auth.reason == ReasonCode::Success {
            if let Err(error) = self.finish_auth(data) {
                give_up(current, error);
            }
            return;
        }
        let answer = match &mut self.settings.auth_method {
            Some(method) => method.step(data.unwrap_or_default()).map_err(Error::from),
            None => Err(Error::NotSent(CommandError::NotConnected)),
        };
        let sent = answer.and_then(|data| {
            let properties = AuthProperties {
                authentication_data: Some(data),
                ..AuthProperties::default()
            };
            let reason = ReasonCode::ContinueAuthentication;
            let sent = current.connection.auth(now, Auth { reason, properties });
            sent.map_err(Error::from)
        });
        if let Err(error) = sent {
            give_up(current, error);
        }
    }

    /// Has the method check the server's last data.
    fn finish_auth(&mut self, data: Option<&[u8]>) -> Result<(), Error> {
        match &mut self.settings.auth_method {
            Some(method) => Ok(method.finish(data)?),
            None => Ok(()),
        }
    }

    fn connected(&mut self, current: &mut Current, ack: ConnAck, now: Instant) {
        current.connected_at = Some(now);
        self.connected_before = true;
        if ack.properties.subscription_identifiers_available == Some(false) {
            self.requests.without_ids();
        }
        if !ack.session_present {
            self.requests.subscribe_again(&mut self.streams);
        }
        let stats = current.link.stats();
        let connected = Arc::new(Connected {
            session_present: ack.session_present,
            properties: ack.properties,
            link: current.link.info(),
            times: ConnectTimes {
                dialled_at: current.dialled_at,
                link_at: current.link_at,
                connack_at: now,
                handshake: stats.handshake,
                early_data: stats.early_data,
            },
        });
        // The server may have opened lanes before its CONNACK was read.
        for lane in current.link.unread_lanes() {
            let buffer = current.link.received(lane);
            current.connection.handle_bytes(now, lane, buffer);
        }
        take_datagrams(&mut current.connection, &mut current.link, now);
        *lock(&self.shared.last) = Some(connected.clone());
        let accepted = Status::Connected(connected.clone());
        let change = |status: &mut Status| {
            *status = accepted;
            true
        };
        self.shared.change(change, &Event::Connected(connected));
    }

    /// Takes the requests of handles, and answers those that need no packet of the server. An end that was asked for has
    /// its deadline from here on.
    fn take_requests(&mut self, current: &mut Current, now: Instant) {
        let (acks, stats) = self.take_control();
        for ack in acks {
            if ack.connection == self.connection {
                current.connection.ack(now, ack.ticket, ack.reason);
            }
        }
        for reply in stats {
            // The caller may have gone.
            let _ = reply.send(current.link.stats());
        }
    }

    /// Sends the waiting requests, and fills the outbox up to one batch.
    fn pump(&mut self, current: &mut Current, now: Instant) {
        let is_early = current.link.handshake() == HandshakeKind::Pending;
        let Current {
            connection,
            link,
            lanes,
            backlogged,
            ..
        } = current;
        lanes.look(now, link, connection, *backlogged);
        connection.probe(self.probes(current.index));
        let requests = &mut self.requests;
        let mut lane = || lanes.of_subscription(link, is_early);
        requests.send(connection, now, &mut self.streams, is_early, &mut lane);

        // SUBSCRIBE goes before messages, also while it waits for the end of the handshake.
        let held_up = is_early && self.requests.is_waiting();
        let (mut messages, mut bytes) = (0, 0);
        let before = current.unwritten;
        while !held_up && current.connection.outbox().len() < WRITE_BATCH_BYTES {
            let Some(next) = self.pending.pop_front() else {
                if self.shared.queue.take(&mut self.pending, WRITE_BATCH_BYTES) {
                    continue;
                }
                break;
            };
            let cost = next.cost;
            if let Err(blocked) = self.hand_over(current, next, now, is_early) {
                self.pending.push_front(blocked);
                break;
            }
            messages += 1;
            bytes += cost;
        }
        if messages > 0 {
            self.shared.queue.sent(messages, bytes);
            let end = current.flushed + current.connection.outbox().len() as u64;
            current.marks.push_back(Mark {
                end,
                last: self.last_handed,
                at_qos_0: current.unwritten - before,
            });
        }
    }

    /// Returns the intervals of path probes for the address at `index`: none unless the transport is QUIC and there
    /// is a stream of messages.
    fn probes(&self, index: usize) -> Probes {
        let Settings {
            connector, probes, ..
        } = &self.settings;
        let scheme = self.settings.addresses[index].scheme;
        if scheme != Scheme::Quic || !self.streams.are_wanted() {
            return Probes::default();
        }
        let has_own = connector.options().quic.keep_alive_interval.is_some();
        Probes {
            quiet: probes.quiet.filter(|_| !has_own),
            ..*probes
        }
    }

    /// Gives a message to the connection; returns the message if it has to wait.
    fn hand_over(
        &mut self,
        current: &mut Current,
        queued: Queued,
        now: Instant,
        is_early: bool,
    ) -> Result<(), Queued> {
        let Current {
            connection,
            link,
            lanes,
            unwritten,
            ..
        } = current;
        let as_datagram = queued.datagram || self.settings.config.datagrams;
        let has_window = queued.delivery.qos == QoS::AtMostOnce || connection.window() > 0;
        if !has_window || (is_early && !queued.early) {
            return Err(queued);
        }
        let expired = queued.delivery.expires_at.is_some_and(|at| at <= now);
        let mut alone = None;
        let sent = if expired {
            Err(Error::Expired)
        } else if as_datagram
            && let Some(datagram) =
                connection.datagram(now, &queued.delivery, |size| link.takes_datagram(size))
            && link.send_datagram(datagram)
        {
            Ok(None)
        } else {
            let topic = &queued.delivery.message.topic;
            let lane = match lanes.way(topic, link, is_early) {
                Way::On(lane) => lane,
                Way::Alone(lane) => *alone.insert(lane),
                Way::Wait => return Err(queued),
            };
            match connection.publish_on(now, lane, queued.delivery) {
                Ok(id) => {
                    *unwritten += usize::from(id.is_none());
                    Ok(id)
                }
                Err((
                    CommandError::WindowFull
                    | CommandError::NotConnected
                    | CommandError::NoPacketId,
                    delivery,
                )) => return Err(Queued { delivery, ..queued }),
                Err((error, _)) => Err(Error::NotSent(error)),
            }
        };
        if let Some(lane) = alone {
            connection.finish_lane(lane);
        }
        self.last_handed = queued.seq;
        match (sent, queued.cell) {
            (Ok(Some(id)), cell) => {
                // A dropped receipt needs no answer.
                let cell = cell.filter(|cell| Arc::strong_count(cell) > 1);
                if let Some(Some(earlier)) = self.in_flight.insert(id, cell) {
                    let _ = earlier.set(Ok(ReasonCode::Success));
                }
            }
            (Ok(None), _) => {}
            (Err(error), Some(cell)) => drop(cell.set(Err(error))),
            (Err(error), None) => self.shared.written.fail(queued.seq, queued.seq, error),
        }
        Ok(())
    }

    fn note_written(&self, current: &mut Current) {
        // Lanes overtake each other: only an empty outbox says which messages are written.
        if current.link.data_lanes() > 0 && !current.connection.outbox().is_empty() {
            return;
        }
        let flushed = current.flushed;
        let mut written = None;
        while let Some(mark) = current.marks.pop_front_if(|mark| mark.end <= flushed) {
            current.unwritten -= mark.at_qos_0;
            written = Some(mark.last);
        }
        if let Some(seq) = written {
            self.shared.written.advance(seq);
        }
    }

    /// Sends DISCONNECT and returns `true` if the client is to end and this connection has nothing left to send, or
    /// the deadline has passed.
    fn may_finish(&mut self, current: &mut Current, now: Instant) -> bool {
        let Some(end_at) = self.end_at else {
            return false;
        };
        let drained = self.is_drained()
            && self.requests.is_empty()
            && current.connection.is_open()
            && current.connection.outbox().is_empty();
        if !drained && now < end_at {
            return false;
        }
        let mut disconnect = Disconnect::new(ReasonCode::Success);
        if self.settings.expire_on_disconnect {
            disconnect.properties.session_expiry_interval = Some(0);
        }
        current.connection.disconnect(disconnect);
        true
    }

    /// Returns the error with which a connection ends.
    fn why(&self, current: &mut Current, reason: CloseReason) -> Error {
        match (current.failure.take(), reason) {
            (Some(failure), CloseReason::LinkLost | CloseReason::Local(_)) => failure,
            (_, CloseReason::ConnectTimeout) => Error::ConnectTimeout {
                after: self.settings.connect_timeout,
            },
            (_, reason) => reason.into(),
        }
    }

    /// Writes the last packets, and keeps the session for the next connection. Returns the number of QoS 0 messages that
    /// were not written.
    async fn after(&mut self, current: Current) -> usize {
        let Current {
            mut connection,
            mut link,
            unwritten,
            failure: _,
            ..
        } = current;
        let mut is_written = false;
        if !connection.outbox().is_empty() && connection.is_closed() {
            let goodbye = async {
                is_written = link.flush(connection.outbox()).await.is_ok();
                if is_written {
                    link.close(GOODBYE_TIMEOUT).await;
                }
            };
            // Packets that cannot be written in time are dropped.
            let _ = tokio::time::timeout(2 * GOODBYE_TIMEOUT, goodbye).await;
        }
        self.streams.link_lost(&mut connection, now());
        self.session = connection.into_session();
        let up_to = self.shared.written.up_to();
        if up_to < self.last_handed {
            if !is_written {
                self.shared
                    .written
                    .fail(up_to + 1, self.last_handed, Error::LostUnsent);
            }
            self.shared.written.advance(self.last_handed);
        }
        self.requests.link_lost(&mut self.streams);
        if is_written { 0 } else { unwritten }
    }
}

/// Takes the received datagrams.
fn take_datagrams(connection: &mut Connection, link: &mut Link, now: Instant) {
    while connection.is_open()
        && let Some(datagram) = link.next_datagram()
    {
        if let Err(error) = connection.handle_datagram(now, datagram) {
            tracing::debug!(%error, "datagram dropped");
        }
    }
}

/// Ends the connection, and with it the client, by an error of this side.
fn give_up(current: &mut Current, error: Error) {
    current.failure = Some(error);
    let reason = ReasonCode::UnspecifiedError;
    current.connection.disconnect(Disconnect::new(reason));
}
