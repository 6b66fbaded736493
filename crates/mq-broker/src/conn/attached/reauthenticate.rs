//! A client with a session authenticates anew (MQTT 5.0, §4.12.1).

use mq_codec::{Auth, ReasonCode};

use super::Attached;
use crate::auth::{Principal, Refusal, Step};

impl Attached<'_> {
    /// Goes on with an enhanced authentication, or begins another.
    pub(super) fn auth(&mut self, auth: Auth) {
        let within = self.wire.settings.protocol.connect_timeout;
        let data = auth.properties.authentication_data;
        let client = &mut self.client;
        if auth.reason != ReasonCode::ReAuthenticate {
            return client.authentication.step(data, within);
        }
        let authenticator = self.wire.hub.access_control.authenticator.as_ref();
        let method = auth.properties.authentication_method.as_deref();
        let exchange = match (authenticator, method, &client.log_in) {
            (Some(authenticator), Some(method), Some(log_in)) => {
                authenticator.exchange(method, log_in)
            }
            _ => None,
        };
        match exchange {
            Some(exchange) => client.authentication.exchange(exchange, data, within),
            // A reload has removed the method.
            None => self.refuse_again(ReasonCode::BadAuthenticationMethod.name()),
        }
    }

    /// Acts on the outcome of an authentication, or of a step.
    pub(super) fn authenticated(&mut self, outcome: Result<Step, Refusal>) {
        let (reason, data) = match outcome {
            Ok(Step::Continue(data)) => (ReasonCode::ContinueAuthentication, Some(data)),
            Ok(Step::Done { principal, data }) => {
                if !self.take_rights(principal) {
                    return self.refuse_again("another user than before");
                }
                (ReasonCode::Success, data)
            }
            Err(refusal) => {
                // The connection ends: there is nothing more to authenticate for.
                return match self.client.log_in.take() {
                    Some(log_in) => self.wire.refuse_log_in(refusal, &log_in),
                    None => self.wire.disconnect_for(ReasonCode::NotAuthorized),
                };
            }
        };
        self.wire.send_auth(reason, data);
    }

    /// Disconnects a client that could not authenticate anew.
    fn refuse_again(&mut self, why: &'static str) {
        if let Some(log_in) = self.client.log_in.take() {
            let user = log_in.user_name.as_deref();
            let reason = ReasonCode::NotAuthorized;
            self.wire.refuse(reason, why, &log_in.client_id, user);
        } else {
            self.wire.disconnect_for(ReasonCode::NotAuthorized);
        }
    }

    /// Takes the client's new rights. False if it is another user now.
    fn take_rights(&mut self, principal: Principal) -> bool {
        let before = self.client.principal.as_ref();
        if !before.is_some_and(|before| before.is_same_user(&principal)) {
            return false;
        }
        self.publisher.clear_permission_cache();
        self.wire.hub.change_rights(&self.hold, &principal);
        self.client.principal = Some(principal);
        // Has `fill` look at what waits.
        self.client.rules = !self.wire.hub.access_control.generation();
        true
    }
}
