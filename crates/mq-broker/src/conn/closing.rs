//! The last phase: the session goes back, and the last bytes to the client.

use std::{collections::VecDeque, time::Duration};

use bytes::BytesMut;
use mq_codec::{ConnAck, Disconnect, Packet, ReasonCode, Version};
use mq_proto::{CloseReason, Delivery, Event, LaneId, Outbox, Role};
use mq_transport::Link;
use tracing::{debug, info};

use super::{session_end::SessionEnd, wire::Wire};
#[cfg(feature = "mqtt-next")]
use crate::hub::end_flow;
use crate::{
    clock,
    escaped::Escaped,
    hooks::HookClient,
    hub::{HeldSession, Publisher, ReadAhead, RoutedMessage},
    journal::StoreFailed,
    refusal_log::{ClientLine, RefusalDetails},
    session::Session,
    store::SessionChange,
};

/// The reason code for a client whose message waits for a store that has failed: neither the client nor
/// a limit is the cause.
pub(super) const STORE_FAILED: ReasonCode = ReasonCode::ImplementationSpecificError;

/// Time that a closing link may take to deliver its last bytes.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// The state that an attached client leaves.
pub(super) struct LastState {
    pub(super) hold: HeldSession,
    pub(super) publisher: Publisher,
    /// The client's message that waits for room in somebody's mailbox.
    pub(super) blocked_publish: Option<RoutedMessage>,
    pub(super) session_end: SessionEnd,
    /// Taken from the mailbox, and not sent.
    pub(super) unsent: VecDeque<Delivery>,
    /// The position of CONNACK in the outbox.
    pub(super) connack_at: u64,
}

/// A connection that is over, but for its last bytes.
pub(super) struct Closing {
    wire: Box<Wire>,
    /// The last state of a client that had a session.
    last_state: Option<LastState>,
}

impl Closing {
    pub(super) fn new(wire: Box<Wire>, last_state: Option<LastState>) -> Self {
        Self { wire, last_state }
    }

    /// Gives the session back, then closes the link. Returns why the connection ended.
    pub(super) async fn run(self) -> CloseReason {
        let last = Box::pin(self.finish()).await;
        // In a box of its own: the allocator has small pages for blocks of up to 8 KiB only. Nothing
        // else of the connection is left while its peer takes its time to disconnect.
        Box::pin(close(last)).await
    }

    /// Gives the session back; returns the link, what is left to be written, and why it ends.
    async fn finish(self) -> Last {
        let Self {
            mut wire,
            last_state,
        } = self;
        wire.sample_last();
        wire.unsettled_acks
            .give_all_back(&mut wire.connection, clock::now());
        let mut last_state = last_state;
        wire.connection.leave_flows(clock::now());
        while let Some(event) = wire.connection.poll_event() {
            match (event, &mut last_state) {
                (Event::Closed(reason), _) => wire.closed = Some(reason),
                #[cfg(feature = "mqtt-next")]
                (Event::FlowEnded(end), Some(last_state)) => {
                    let journal = &mut last_state.publisher.journal;
                    let (hold, unsent) = (&mut last_state.hold, &mut last_state.unsent);
                    end_flow(&wire.hub, hold, end, unsent, journal);
                }
                // A message of a flow that has ended.
                (Event::Acked { packet_id, .. }, Some(last_state)) => {
                    let journal = &mut last_state.publisher.journal;
                    let change = SessionChange::Completed { packet_id };
                    journal.record_of(&last_state.hold.session, change);
                }
                _ => {}
            }
        }
        let reason = wire.closed.take().unwrap_or(CloseReason::LinkLost);
        let mut outbox = core::mem::take(wire.connection.outbox());
        let Some(last_state) = last_state else {
            log_early_end(&wire, &reason);
            let code = wire.connection.close_code();
            return Last {
                link: wire.link,
                outbox,
                reason,
                code,
            };
        };
        let code = wire.connection.close_code();
        let LastState {
            mut hold,
            mut publisher,
            blocked_publish,
            mut session_end,
            mut unsent,
            connack_at,
        } = last_state;
        publisher.wake_readers();
        if let Some(blocked) = blocked_publish {
            wire.hub.give_up(blocked, &mut publisher.journal);
        }
        if let CloseReason::ByPeer(disconnect) = &reason {
            let maximum = wire.settings.max_session_expiry;
            session_end.disconnected_by_client(disconnect, maximum);
        }
        if wire.is_unproved() {
            // The client has not proved that it is there, so its will is not published.
            session_end.will = None;
        }
        note_end(&wire, &hold.session, &reason);
        let version = wire.connection.version();
        let is_server = wire.connection.role() == Role::Server;
        // The session first: the client that takes it over need not wait for a slow link.
        hold.state.keep_protocol(wire.connection.into_session());
        hold.session.mailbox.disconnect(unsent.drain(..));
        let SessionEnd { will, expiry } = session_end;
        let read_ahead = if expiry == Some(Duration::ZERO) {
            wire.hub.prepare_end(&hold.session).await
        } else {
            ReadAhead::default()
        };
        let journal = &mut publisher.journal;
        wire.hub
            .detach(hold, clock::now(), will, expiry, read_ahead, journal);
        let stored = tokio::time::timeout(CLOSE_DEADLINE, journal.settled()).await;
        let answers = publisher.append_answers.as_ref();
        let is_early = answers.is_some_and(|answers| answers.are_written_too_early());
        if is_early || !matches!(stored, Ok(Ok(()))) {
            // Promises that are not stored are not sent.
            outbox.cut(wire.settling.settled_up_to);
            let last_reason = match &reason {
                // The shutdown for a failed store may have come before the failure itself.
                CloseReason::Local(_) if matches!(stored, Ok(Err(StoreFailed))) => {
                    Some(STORE_FAILED)
                }
                CloseReason::Local(reason) => Some(*reason),
                CloseReason::Protocol(error) => Some(error.reason_code()),
                CloseReason::KeepAliveTimeout => Some(ReasonCode::KeepAliveTimeout),
                _ => None,
            };
            if let Some(last_reason) = last_reason {
                let was_let_in = connack_at < wire.settling.settled_up_to || !is_server;
                put_last_packet(&mut outbox, version, was_let_in, last_reason);
            }
        }
        outbox.hold_behind(None);
        Last {
            link: wire.link,
            outbox,
            reason,
            code,
        }
    }
}

/// Logs the end of a client's connection, and tells the program's hooks. A protocol error has the next client from its
/// address wait.
fn note_end(wire: &Wire, session: &Session, reason: &CloseReason) {
    if let Some(hooks) = &wire.hub.hooks {
        let principal = session.principal();
        let client = HookClient::new(&session.client_id, principal.as_ref());
        hooks.on_disconnect(client, reason);
    }
    let (now, link) = (clock::now(), wire.link.info());
    if matches!(reason, CloseReason::Protocol(_)) && !wire.is_unproved() {
        wire.hub.violations.note(link.peer_address, now);
    }
    let refusal_log = &wire.hub.refusal_log;
    let Some(left_out) = refusal_log.admit(ClientLine::Disconnected, now) else {
        return;
    };
    info!(
        client = %Escaped(&session.client_id),
        peer = link.peer_address.map(display),
        transport = %link.scheme,
        dropped = session.mailbox.dropped(),
        %reason,
        left_out = (left_out > 0).then_some(left_out),
        "disconnected"
    );
}

/// Logs the end of a link without a session: a peer that broke the protocol or sent nothing counts as refused.
fn log_early_end(wire: &Wire, reason: &CloseReason) {
    let error;
    let (kind, error) = match reason {
        CloseReason::Protocol(problem) => {
            error = problem.to_string();
            let kind = wire.other_protocol.unwrap_or("no valid CONNECT");
            (kind, Some(&error[..]))
        }
        CloseReason::ConnectTimeout => ("no CONNECT in time", None),
        _ => {
            debug!(%reason, "connection ended without a session");
            return;
        }
    };
    let info = wire.link.info();
    let details = RefusalDetails {
        peer: info.peer_address,
        transport: Some(info.scheme),
        error,
        ..RefusalDetails::default()
    };
    wire.hub.refused_early(details, kind, clock::now());
}

/// The rest of a connection: its link and its last bytes.
struct Last {
    link: Link,
    outbox: Outbox,
    reason: CloseReason,
    /// The error code of the link's end.
    code: u32,
}

/// Appends the last packet: DISCONNECT with the reason, or for a client that has no CONNACK yet, CONNACK
/// with 0x88 (before 5.0 return code 3).
fn put_last_packet(outbox: &mut Outbox, version: Version, was_let_in: bool, reason: ReasonCode) {
    let packet = match was_let_in {
        false => Packet::from(ConnAck::new(ReasonCode::ServerUnavailable)),
        true if version >= Version::V5 => Packet::Disconnect(Box::new(Disconnect::new(reason))),
        true => return,
    };
    // Any client takes these few bytes; without them the link just ends.
    let _ = outbox.put(LaneId::CONTROL, |out| packet.encode(version, out));
}

/// Writes the last bytes and closes, within a deadline. A lost link has nobody to write to.
async fn close(last: Last) -> CloseReason {
    let Last {
        mut link,
        mut outbox,
        reason,
        code,
    } = last;
    // Nobody needs the rest of a packet any more, and a peer may take its time to disconnect.
    *link.received(LaneId::CONTROL) = BytesMut::new();
    if !matches!(reason, CloseReason::LinkLost) {
        // A peer too slow to take them counts as gone.
        let _ = tokio::time::timeout(CLOSE_DEADLINE, link.flush(&mut outbox)).await;
    }
    link.close_with(code, CLOSE_DEADLINE).await;
    reason
}
