//! The protocol's part of a session between two connections.

use mq_proto::{Message, Session};

use crate::{mailbox::UNCOUNTED_UNACKNOWLEDGED_BYTES, memory_limit::MemoryShare};

/// Bytes of a message without payload, and of its reference count.
const MESSAGE_BYTES: usize = size_of::<Message>() + 2 * size_of::<usize>();

/// Messages in flight, identifiers and flows of a session that no connection has. Their memory counts until a connection
/// takes them, which counts by itself.
#[derive(Debug)]
pub(crate) struct KeptProtocol {
    session: Box<Session>,
    _share: MemoryShare,
}

impl KeptProtocol {
    pub(super) fn new(session: Session, mut share: MemoryShare) -> Self {
        // No message in flight counts by itself but for those that were sent while the reader lagged, which count twice.
        let uncounted = session.in_flight() * MESSAGE_BYTES
            + session
                .in_flight_bytes()
                .min(UNCOUNTED_UNACKNOWLEDGED_BYTES);
        share.set_anyway(session.held_bytes() + uncounted);
        Self {
            session: Box::new(session),
            _share: share,
        }
    }

    /// Returns the session for a connection.
    pub(super) fn into_session(self) -> Session {
        *self.session
    }

    /// Returns `true` if nothing is in flight in either direction, and nothing is kept of any flow.
    pub(crate) fn is_empty(&self) -> bool {
        self.session.is_empty()
    }

    /// Returns the session, to take messages from it or to change them.
    pub(crate) fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}
