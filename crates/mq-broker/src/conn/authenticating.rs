//! The second phase: a CONNECT has come, and an authenticator finds out who sent it.

use mq_codec::{Auth, AuthProperties, ReasonCode};
use mq_proto::{Event, LaneId};

use super::{entry::Entry, wire::Wire};
use crate::{
    auth::{Authentication, LogIn, Step},
    clock,
};

/// A client that is being asked who it is.
pub(super) struct Authenticating {
    entry: Entry,
    /// What the client has said of itself, without its secrets.
    log_in: Box<LogIn>,
    authentication: Authentication,
}

impl Authenticating {
    pub(super) fn new(entry: Entry, log_in: Box<LogIn>, authentication: Authentication) -> Self {
        Self {
            entry,
            log_in,
            authentication,
        }
    }

    /// Goes on until the client is known; `None` if it is refused, or gone before.
    pub(super) async fn run(mut self, wire: &mut Wire) -> Option<Entry> {
        while !wire.is_over() {
            let now = clock::now();
            wire.sample(now);
            wire.look_at_handshake(now);
            while let Some(event) = wire.connection.poll_event() {
                match event {
                    Event::Auth(auth) => {
                        let within = wire.settings.protocol.connect_timeout;
                        let data = auth.properties.authentication_data;
                        self.authentication.step(data, within);
                    }
                    Event::Closed(reason) => wire.closed = Some(reason),
                    // The state machine lets nothing else through before CONNACK.
                    _ => {}
                }
            }
            wire.count_stranger();
            wire.look_at_shutdown();
            if wire.connection.is_closed() {
                continue;
            }
            // Until the authenticator has said something, nobody knows what a packet is good for.
            let want_read = !self.authentication.is_working() && wire.may_read();
            let outcome = wire.wait_for(now, want_read, self.authentication.outcome());
            match outcome.await {
                None => {}
                Some(Ok(Step::Done { principal, data })) => {
                    self.entry.proved(principal, data);
                    if self.entry.has_method() {
                        // It may authenticate anew.
                        self.entry.log_in = Some(self.log_in);
                    }
                    return Some(self.entry);
                }
                Some(Ok(Step::Continue(data))) => {
                    let reason = ReasonCode::ContinueAuthentication;
                    wire.answer(|connection| {
                        connection.auth(clock::now(), auth(reason, Some(data)))
                    });
                    // Nothing may have come behind CONNECT.
                    wire.handle_received(LaneId::CONTROL);
                }
                Some(Err(refusal)) => wire.refuse_log_in(refusal, &self.log_in),
            }
        }
        None
    }
}

/// The broker's side of a step.
pub(super) fn auth(reason: ReasonCode, data: Option<bytes::Bytes>) -> Auth {
    Auth {
        reason,
        properties: AuthProperties {
            authentication_data: data,
            ..AuthProperties::default()
        },
    }
}
