//! A connection's log-in: from CONNECT, and AUTH, to who the client is.

use std::time::Instant;

use mq_codec::{Auth, AuthProperties, ByteStr, ConnAck, Connect, ReasonCode};
use mq_proto::LaneId;

use super::{Conn, enter::refusal};
use crate::{
    auth::{LogIn, Principal, Refusal, Step, Tried},
    clock,
    notice::About,
};

impl Conn {
    /// Finds out who wants in, and lets it in if that needs no waiting.
    pub(super) async fn connect(&mut self, now: Instant, mut connect: Connect) {
        if let Some(reason) = refusal(&self.settings, &connect) {
            let (client_id, user) = (&connect.client_id, connect.user_name.as_deref());
            return self.refuse(reason, reason.name(), client_id, user);
        }
        let brought_none = connect.client_id.is_empty();
        if brought_none {
            connect.client_id = self.hub.assign_client_id();
        }
        let method = connect.properties.authentication_method.clone();
        let Some(authenticator) = self.hub.guard.authenticator.clone() else {
            if method.is_some() {
                let (client_id, user) = (&connect.client_id, connect.user_name.as_deref());
                let reason = ReasonCode::BadAuthenticationMethod;
                return self.refuse(reason, reason.name(), client_id, user);
            }
            let principal = Principal::new(None, &connect.client_id);
            self.principal = self.hub.guard.is_set().then_some(principal);
            return self.enter(now, connect, brought_none, None).await;
        };
        let mut log_in = self.log_in_of(&mut connect);
        let unproven = Some(Tried::Unproven) == tried(&log_in);
        let wait = authenticator.waits_for_handshake(&log_in)
            // Too many that nobody can be held to account for: the others have to be somebody.
            || unproven && !self.hub.guard.may_try(Some(Tried::Unproven), now);
        if log_in.early && wait {
            connect.user_name = log_in.user_name.take();
            connect.password = log_in.password.take();
            if brought_none {
                connect.client_id = ByteStr::empty();
            }
            return self.connect_after_handshake(connect);
        }
        let tried = tried(&log_in);
        if !self.hub.guard.may_try(tried, now) {
            return self.refuse_log_in(Refusal::TooManyFailures, &log_in);
        }
        if let (Some(throttle), Some(tried)) = (self.hub.guard.throttle(), tried) {
            log_in.set_gate(throttle, tried);
        }
        let within = self.settings.protocol.connect_timeout;
        match method {
            None => {
                self.log_in = Some(Box::new(log_in.without_secrets()));
                self.authentication.log_in(authenticator, log_in, within);
            }
            Some(method) => match authenticator.exchange(&method, &log_in) {
                None => {
                    let (client_id, user) = (&log_in.client_id, log_in.user_name.as_deref());
                    let reason = ReasonCode::BadAuthenticationMethod;
                    return self.refuse(reason, reason.name(), client_id, user);
                }
                Some(exchange) => {
                    self.log_in = Some(Box::new(log_in.without_secrets()));
                    let data = connect.properties.authentication_data.take();
                    self.authentication.exchange(exchange, data, within);
                }
            },
        }
        self.entering = Some((Box::new(connect), brought_none));
    }

    fn log_in_of(&self, connect: &mut Connect) -> LogIn {
        LogIn::of(
            &self.link,
            connect.client_id.clone(),
            connect.version,
            connect.user_name.take(),
            connect.password.take(),
        )
    }

    /// A step of an enhanced authentication came, or the first of another.
    pub(super) fn auth(&mut self, auth: Auth) {
        let within = self.settings.protocol.connect_timeout;
        let data = auth.properties.authentication_data;
        if auth.reason != ReasonCode::ReAuthenticate {
            return self.authentication.step(data, within);
        }
        let authenticator = self.hub.guard.authenticator.as_ref();
        let method = auth.properties.authentication_method.as_deref();
        let exchange = match (authenticator, method, &self.log_in) {
            (Some(authenticator), Some(method), Some(log_in)) => {
                authenticator.exchange(method, log_in)
            }
            _ => None,
        };
        match exchange {
            Some(exchange) => self.authentication.exchange(exchange, data, within),
            // The rules of now do not have it any more.
            None => self.refuse_again(ReasonCode::BadAuthenticationMethod.name()),
        }
    }

    /// An authentication, or a step of one, has an outcome.
    pub(super) async fn authenticated(&mut self, outcome: Result<Step, Refusal>) {
        let now = clock::now();
        let (reason, data) = match outcome {
            Ok(Step::Continue(data)) => (ReasonCode::ContinueAuthentication, Some(data)),
            Ok(Step::Done { principal, data }) => {
                if let Some((connect, brought_none)) = self.entering.take() {
                    if connect.properties.authentication_method.is_none() {
                        self.log_in = None;
                    }
                    self.principal = Some(principal);
                    return self.enter(now, *connect, brought_none, data).await;
                }
                if !self.take_rights(principal) {
                    return self.refuse_again("another user than before");
                }
                (ReasonCode::Success, data)
            }
            Err(refusal) => {
                // It has nothing more to authenticate for.
                return match self.log_in.take() {
                    Some(log_in) => self.refuse_log_in(refusal, &log_in),
                    None => self.leave(ReasonCode::NotAuthorized),
                };
            }
        };
        let auth = Auth {
            reason,
            properties: AuthProperties {
                authentication_data: data,
                ..AuthProperties::default()
            },
        };
        self.answered(|connection| connection.auth(now, auth));
        if self.entering.is_some() {
            // Nothing may have come behind CONNECT.
            self.handle_received(LaneId::CONTROL);
        }
    }

    /// Answers CONNECT with a refusal, and tells the operator of it.
    pub(super) fn refuse(
        &mut self,
        reason: ReasonCode,
        why: &'static str,
        client_id: &str,
        user: Option<&str>,
    ) {
        let about = About {
            client: Some(client_id),
            user,
            topic: None,
            peer: self.link.info().peer_address,
        };
        self.hub.refused_log_in(about, why, clock::now());
        if self.connection.is_open() {
            // `[MQTT-4.12.1-2]`
            self.leave(ReasonCode::NotAuthorized);
        } else {
            self.connection.refuse(ConnAck::new(reason));
        }
    }

    fn refuse_log_in(&mut self, refusal: Refusal, log_in: &LogIn) {
        if refusal.is_failure() {
            self.hub.guard.failed(tried(log_in), clock::now());
        }
        let reason = refusal.reason_code();
        let user = log_in.user_name.as_deref();
        self.refuse(reason, reason.name(), &log_in.client_id, user);
    }

    /// The client of an open connection could not authenticate anew.
    fn refuse_again(&mut self, why: &'static str) {
        if let Some(log_in) = self.log_in.take() {
            let user = log_in.user_name.as_deref();
            self.refuse(ReasonCode::NotAuthorized, why, &log_in.client_id, user);
        } else {
            self.leave(ReasonCode::NotAuthorized);
        }
    }

    /// The client has authenticated anew; whether it is still the same user.
    fn take_rights(&mut self, principal: Principal) -> bool {
        let Some(attached) = &self.attached else {
            return false;
        };
        let before = self.principal.as_ref();
        if !before.is_some_and(|before| before.is_same_user(&principal)) {
            return false;
        }
        self.publisher.forget_permission();
        self.hub.rights_changed(attached, &principal);
        self.principal = Some(principal);
        // Has `fill` look at what waits.
        self.rules = !self.hub.guard.generation();
        true
    }
}

/// Where failures of a log-in count.
fn tried(log_in: &LogIn) -> Option<Tried> {
    Tried::new(log_in.peer_address, log_in.scheme, log_in.early)
}
