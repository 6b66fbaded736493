//! The last phase: the session goes back, and the last bytes to the client.

use std::{collections::VecDeque, time::Duration};

use bytes::BytesMut;
use mq_codec::{ConnAck, Disconnect, Packet, ReasonCode, Version};
use mq_proto::{CloseReason, Delivery, Event, LaneId, Outbox, Role};
use mq_transport::{Link, Progress};
use tracing::{debug, info};

use super::{afterwards::Afterwards, wire::Wire};
use crate::{
    clock,
    hub::{Hold, Publisher},
    journal::StoreFailed,
    shown::Shown,
    store::SessionChange,
};

/// The reason code for a client whose message waits for a store that has failed: neither the client nor
/// a limit is the cause.
pub(super) const STORE_FAILED: ReasonCode = ReasonCode::ImplementationSpecificError;

/// How long a closing link may take to deliver its last bytes.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// What an attached client leaves behind.
pub(super) struct Parting {
    pub(super) hold: Hold,
    pub(super) publisher: Publisher,
    pub(super) afterwards: Afterwards,
    /// Taken from the mailbox, and not sent.
    pub(super) unsent: VecDeque<Delivery>,
    /// How far the outbox holds nothing that has to wait for the store.
    pub(super) sayable: u64,
    /// Where CONNACK is in the outbox.
    pub(super) let_in_at: u64,
}

/// A connection that is over, but for its last bytes.
pub(super) struct Leaving {
    wire: Box<Wire>,
    /// Of a client that had a session.
    parting: Option<Parting>,
}

impl Leaving {
    pub(super) fn new(wire: Box<Wire>, parting: Option<Parting>) -> Self {
        Self { wire, parting }
    }

    /// Gives the session back, then closes the link. Returns why the connection ended.
    pub(super) async fn run(self) -> CloseReason {
        let last = Box::pin(self.finish()).await;
        // In a box of its own: the allocator has small pages for blocks of up to 8 KiB only. Nothing
        // else of the connection is left while its peer takes its time to leave.
        Box::pin(close(last)).await
    }

    /// Gives the session back; returns the link, what is left to be written, and why it ends.
    async fn finish(self) -> Last {
        let Self { mut wire, parting } = self;
        wire.sample_last();
        let mut parting = parting;
        wire.connection.leave_flows(clock::now());
        while let Some(event) = wire.connection.poll_event() {
            match (event, &mut parting) {
                (Event::Closed(reason), _) => wire.closed = Some(reason),
                #[cfg(feature = "mqtt-next")]
                (Event::FlowEnded(end), Some(parting)) => {
                    let journal = &mut parting.publisher.journal;
                    let (hold, unsent) = (&mut parting.hold, &mut parting.unsent);
                    wire.hub.flow_ended(hold, end, unsent, journal);
                }
                // A message of a flow that has ended.
                (Event::Acked { packet_id, .. }, Some(parting)) => {
                    let journal = &mut parting.publisher.journal;
                    let change = SessionChange::Completed { packet_id };
                    journal.record_of(&parting.hold.session, change);
                }
                _ => {}
            }
        }
        let reason = wire.closed.take().unwrap_or(CloseReason::LinkLost);
        let mut outbox = core::mem::take(wire.connection.outbox());
        let Some(parting) = parting else {
            debug!(%reason, "a link without a session ended");
            let code = wire.connection.close_code();
            return Last {
                link: wire.link,
                outbox,
                reason,
                code,
            };
        };
        let code = wire.connection.close_code();
        let Parting {
            mut hold,
            mut publisher,
            mut afterwards,
            mut unsent,
            sayable,
            let_in_at,
        } = parting;
        publisher.tell_readers();
        publisher.give_up(&wire.hub.metrics);
        if let CloseReason::ByPeer(disconnect) = &reason {
            let maximum = wire.settings.max_session_expiry;
            afterwards.disconnected_by_client(disconnect, maximum);
        }
        if wire.is_unproved() {
            // The client has not proved that it is there, so its will is not published.
            afterwards.will = None;
        }
        info!(
            client = %Shown(&hold.session.client_id),
            dropped = hold.session.mailbox.dropped(),
            %reason,
            "disconnected"
        );
        let version = wire.connection.version();
        let is_server = wire.connection.role() == Role::Server;
        // The session first: the client that takes it over need not wait for a slow link.
        hold.state.protocol = Some(Box::new(wire.connection.into_session()));
        hold.session.mailbox.disconnect(unsent.drain(..));
        let Afterwards { will, expiry } = afterwards;
        if expiry == Some(Duration::ZERO) {
            wire.hub.end_subscriptions(&hold.session).await;
        }
        let journal = &mut publisher.journal;
        wire.hub.detach(hold, clock::now(), will, expiry, journal);
        let stored = tokio::time::timeout(CLOSE_DEADLINE, journal.settled()).await;
        if !matches!(stored, Ok(Ok(()))) {
            // Promises that are not stored are not sent.
            outbox.cut(sayable);
            if let CloseReason::Local(reason) = reason {
                // The shutdown for a failed store may have come before the failure itself.
                let has_failed = matches!(stored, Ok(Err(StoreFailed)));
                let reason = if has_failed { STORE_FAILED } else { reason };
                let was_let_in = let_in_at < sayable || !is_server;
                say_farewell(&mut outbox, version, was_let_in, reason);
            }
        }
        Last {
            link: wire.link,
            outbox,
            reason,
            code,
        }
    }
}

/// What is left of a connection.
struct Last {
    link: Link,
    outbox: Outbox,
    reason: CloseReason,
    /// The error code of the link's end.
    code: u32,
}

/// Appends the last packet: DISCONNECT with the reason, or for a client that has no CONNACK yet, CONNACK
/// with 0x88 (before 5.0 return code 3).
fn say_farewell(outbox: &mut Outbox, version: Version, was_let_in: bool, reason: ReasonCode) {
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
    // Nobody needs the rest of a packet any more, and a peer may take its time to leave.
    *link.received(LaneId::CONTROL) = BytesMut::new();
    if !matches!(reason, CloseReason::LinkLost) {
        let last = async {
            while !outbox.is_empty() {
                // A link whose peer has gone reports that at once, each time.
                if let Ok(Progress::Closed) | Err(_) = link.progress(&mut outbox, false).await {
                    break;
                }
            }
        };
        // A peer too slow to take them counts as gone.
        let _ = tokio::time::timeout(CLOSE_DEADLINE, last).await;
    }
    link.close_with(code, CLOSE_DEADLINE).await;
    reason
}
