//! The second phase: a CONNECT was received, and an authenticator identifies its sender.

use std::{sync::Arc, time::Instant};

use mq_codec::ReasonCode;
use mq_proto::{Event, LaneId};

use super::{admission::Admission, wire::Wire};
use crate::{
    auth::{Authentication, Authenticator, LogIn, Refusal, Step},
    clock,
};

/// A client that is being authenticated.
pub(super) struct Authenticating {
    admission: Admission,
    /// The log-in of the client, without its secrets; `None` if there is no authenticator.
    log_in: Option<Box<LogIn>>,
    authentication: Authentication,
}

impl Authenticating {
    /// Makes the phase of a client of a broker without an authenticator.
    pub(super) fn nothing_to_prove(admission: Admission) -> Self {
        Self {
            admission,
            log_in: None,
            authentication: Authentication::default(),
        }
    }

    /// Starts the authentication; `None` if the client is refused before.
    pub(super) fn begin(
        wire: &mut Wire,
        now: Instant,
        mut admission: Admission,
        authenticator: &Arc<dyn Authenticator>,
        mut log_in: LogIn,
    ) -> Option<Self> {
        let tried = log_in.tried();
        if !wire.hub.access_control.may_try(tried, now) {
            wire.refuse_log_in(Refusal::TooManyFailures, &log_in);
            return None;
        }
        if let (Some(throttle), Some(tried)) = (wire.hub.access_control.throttle(), tried) {
            log_in.set_gate(throttle, tried);
        }
        let within = wire.settings.protocol.connect_timeout;
        let shown = Some(Box::new(log_in.without_secrets()));
        let mut authentication = Authentication::default();
        let properties = &mut admission.connect.properties;
        if let Some(method) = &properties.authentication_method {
            let Some(exchange) = authenticator.exchange(method, &log_in) else {
                let (client_id, user) = (&log_in.client_id, log_in.user_name.as_deref());
                let reason = ReasonCode::BadAuthenticationMethod;
                wire.refuse(reason, reason.name(), client_id, user);
                return None;
            };
            let data = properties.authentication_data.take();
            authentication.exchange(exchange, data, within);
        } else {
            authentication.log_in(Arc::clone(authenticator), log_in, within);
        }
        Some(Self {
            admission,
            log_in: shown,
            authentication,
        })
    }

    /// Continues until the client is authenticated; `None` if it is refused, or disconnects before.
    pub(super) async fn run(mut self, wire: &mut Wire) -> Option<Admission> {
        let Some(log_in) = self.log_in else {
            return Some(self.admission);
        };
        while !wire.is_over() {
            let now = clock::now();
            wire.sample(now);
            wire.check_handshake(now);
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
            // While the authenticator works nothing is read: it is not known yet whether the client
            // may send more.
            let want_read = !self.authentication.is_working() && wire.may_read();
            let outcome = wire.wait_for(now, want_read, self.authentication.outcome());
            match outcome.await {
                None => {}
                Some(Ok(Step::Done { principal, data })) => {
                    return Some(self.admission.proved(principal, data, log_in));
                }
                Some(Ok(Step::Continue(data))) => {
                    let reason = ReasonCode::ContinueAuthentication;
                    wire.send_auth(reason, Some(data));
                    // No packet after CONNECT is allowed before this AUTH; one that was received is
                    // handled now.
                    wire.handle_received(LaneId::CONTROL, clock::now());
                }
                Some(Err(refusal)) => wire.refuse_log_in(refusal, &log_in),
            }
        }
        None
    }
}
