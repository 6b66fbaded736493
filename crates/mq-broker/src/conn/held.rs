//! What a client makes its connection hold, and what becomes of it at the limit.

use mq_codec::ReasonCode;
use mq_proto::LaneId;

use super::Conn;
use crate::{clock, hub::Wanted};

/// Bytes that a connection holds without being counted: hardly any client needs more, and the counts
/// are shared by all.
const FREE: usize = 16 * 1024;
/// The same of a client that was not let in yet.
const FREE_OF_STRANGER: usize = 2 * 1024;

/// What a message in flight takes besides itself: its place in a table that is half full.
const IN_FLIGHT: usize = 192;

/// Counted in steps of so many bytes.
const STEP: usize = 4 * 1024;

impl Conn {
    /// Counts what the client makes this connection hold: packets that are not whole, what waits behind
    /// a message, topics of aliases, the topic that a search for retained messages stands at. A client for
    /// which there is no room is disconnected: with 0x97 if it was let in.
    ///
    /// What waits to be written or acknowledged counts as well. At the limit the client gets no more of
    /// it: see [`may_carry_more`](Self::may_carry_more).
    pub(super) fn count_memory(&mut self) {
        let let_in = self.attached.is_some();
        let received = self.link.received_len(LaneId::CONTROL);
        // A buffer grows by doubling, and the allocator has places of certain sizes.
        let received = received + received / 2;
        let cursor = self
            .attached
            .as_ref()
            .and_then(|it| it.state.wanted.front());
        let held = self.connection.held_bytes() + cursor.map_or(0, Wanted::bytes);
        let holds = received + held + held / 4 + self.backlog.bytes();
        let free = if let_in { FREE } else { FREE_OF_STRANGER };
        let counted = |bytes: usize| bytes.saturating_sub(free).next_multiple_of(STEP);
        let counts = counted(holds);
        let carries = self.connection.outbox().len() + self.connection.in_flight() * IN_FLIGHT;
        let carries = counted(carries);
        if carries != self.carried.bytes() {
            self.carried.set_anyway(carries);
        }
        if counts == self.share.bytes() || self.share.set(counts) || self.connection.is_closed() {
            return;
        }
        let now = clock::now();
        if let Some(attached) = &self.attached {
            let reason = "no memory for what it sends";
            self.hub.evicted(&attached.session, reason, now);
            self.leave(ReasonCode::QuotaExceeded);
        } else {
            let peer = self.link.info().peer_address;
            let reason = "no memory for its CONNECT";
            self.hub.refused_connection(peer, reason, now);
            self.connection.handle_link_lost();
        }
    }

    /// Whether there is memory for more messages that wait to be written or acknowledged.
    pub(super) fn may_carry_more(&self) -> bool {
        self.carried.bytes() == 0 || !self.hub.is_full()
    }
}
