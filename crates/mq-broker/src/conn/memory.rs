//! Counts the memory that a client makes its connection hold, and acts at the limit.

use mq_proto::LaneId;

use super::wire::Wire;
use crate::clock;

/// Bytes that a connection holds without being counted: hardly any client needs more, and the
/// counts are shared by all.
pub(super) const UNCOUNTED_BYTES: usize = 16 * 1024;
/// Bytes that a client which is not accepted yet holds without being counted.
const UNCOUNTED_BYTES_BEFORE_LOG_IN: usize = 2 * 1024;

/// Bytes that a client may send before it is accepted: more than CONNECT and the early data of a
/// client that resumes.
const MAX_RECEIVED_BEFORE_LOG_IN: usize = 256 * 1024;

/// The memory of a message in flight besides itself: its place in a table that is half full.
const IN_FLIGHT_OVERHEAD: usize = 192;

/// Bytes of a step in which memory is counted.
const COUNTING_STEP: usize = 4 * 1024;

impl Wire {
    /// Counts the memory that a client makes its connection hold before it is accepted. The link is
    /// closed if there is no room for it.
    pub(super) fn count_unauthenticated(&mut self) {
        let reason = if self.link.received_len() > MAX_RECEIVED_BEFORE_LOG_IN {
            "too much on its data streams before it was let in"
        } else if !self.count_memory(UNCOUNTED_BYTES_BEFORE_LOG_IN, 0) {
            "no memory for its CONNECT"
        } else {
            return;
        };
        let peer = self.link.info().peer_address;
        self.hub.refused_connection(peer, reason, clock::now());
        self.connection.handle_link_lost();
    }

    /// Counts the memory that the client makes this connection hold: incomplete packets, topics of
    /// aliases, and the bytes `besides` these. `free` bytes are not counted. Returns `false` for a
    /// client for which there is no room.
    ///
    /// Messages that wait to be written or acknowledged count as well. At the limit the client
    /// receives no more of them: see [`may_carry_more`](Self::may_carry_more).
    #[must_use]
    pub(super) fn count_memory(&mut self, free: usize, besides: usize) -> bool {
        let received = self.link.received_len();
        // A buffer grows by doubling, and the allocator has blocks of certain sizes.
        let received = received + received / 2;
        let held = self.connection.held_bytes();
        let counted = |bytes: usize| bytes.saturating_sub(free).next_multiple_of(COUNTING_STEP);
        let holds = counted(received + held + held / 4 + besides);
        let carries =
            self.connection.outbox().len() + self.connection.in_flight() * IN_FLIGHT_OVERHEAD;
        let carries = counted(carries);
        if carries != self.outgoing_memory.bytes() {
            self.outgoing_memory.set_anyway(carries);
        }
        holds == self.incoming_memory.bytes()
            || self.incoming_memory.set(holds)
            || self.connection.is_closed()
    }

    /// Drops the payloads of incomplete messages, now and as they arrive. The client receives the
    /// refusal once each message is complete.
    pub(super) fn discard_payloads(&mut self) {
        let lanes = self.link.unread_lanes();
        for lane in lanes.into_iter().chain([LaneId::CONTROL]) {
            let buffer = self.link.received(lane);
            self.connection.discard_payload(lane, buffer);
        }
    }

    /// Returns `true` if there is memory for more messages that wait to be written or acknowledged.
    pub(super) fn may_carry_more(&self) -> bool {
        self.outgoing_memory.bytes() == 0 || !self.hub.is_full()
    }
}
