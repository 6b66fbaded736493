//! The first phase: a link that has sent no CONNECT yet.

use std::time::Instant;

use mq_codec::{ByteStr, Connect, QoS, ReasonCode, Version};
use mq_proto::Event;

use super::{admission::Admission, authenticating::Authenticating, wire::Wire};
use crate::{
    Settings,
    auth::{LogIn, Principal, Tried},
    clock, router,
    store::BRIDGE_PREFIX,
};

/// A link without a CONNECT, or with one that waits until the link's handshake is complete.
#[derive(Default)]
pub(super) struct AwaitingConnect {
    connect: Option<Box<Connect>>,
}

impl AwaitingConnect {
    /// Waits for CONNECT; `None` if it is refused, or does not come.
    pub(super) async fn run(mut self, wire: &mut Wire) -> Option<Authenticating> {
        while !wire.is_over() {
            let now = clock::now();
            wire.sample(now);
            wire.check_handshake(now);
            // A CONNECT is looked at when it comes, and one that waits once the handshake is complete.
            let mut is_due = wire.early.is_none();
            while let Some(event) = wire.connection.poll_event() {
                match event {
                    Event::Connect(connect) => {
                        self.connect = Some(connect);
                        is_due = true;
                    }
                    Event::Closed(reason) => wire.closed = Some(reason),
                    // The state machine lets nothing else through before CONNECT.
                    _ => {}
                }
            }
            if is_due
                && !wire.connection.is_closed()
                && let Some(connect) = self.connect.take()
                && let Some(authenticating) = self.handle_connect(wire, now, connect)
            {
                return Some(authenticating);
            }
            let want_read = self.connect.is_none() && wire.may_read();
            let nothing = std::future::pending::<()>();
            wire.wait_for(now, want_read, nothing).await;
        }
        None
    }

    /// Looks at a CONNECT; `None` if it is refused, or has to wait for the handshake.
    fn handle_connect(
        &mut self,
        wire: &mut Wire,
        now: Instant,
        mut connect: Box<Connect>,
    ) -> Option<Authenticating> {
        let authenticator = wire.hub.access_control.authenticator.clone();
        let has_method = connect.properties.authentication_method.is_some();
        let reason = refusal(&wire.settings, &connect).or_else(|| {
            let is_unknown = authenticator.is_none() && has_method;
            is_unknown.then_some(ReasonCode::BadAuthenticationMethod)
        });
        if let Some(reason) = reason {
            let user = connect.user_name.as_deref();
            wire.refuse(reason, reason.name(), &connect.client_id, user);
            return None;
        }
        if wire.hub.bans.has_client(&connect.client_id, now) {
            let user = connect.user_name.as_deref();
            wire.refuse(ReasonCode::Banned, "banned", &connect.client_id, user);
            return None;
        }
        if wire.hub.is_store_full() {
            let user = connect.user_name.as_deref();
            let reason = ReasonCode::ServerUnavailable;
            wire.refuse(reason, "store full", &connect.client_id, user);
            return None;
        }
        let is_assigned = connect.client_id.is_empty();
        if is_assigned {
            connect.client_id = wire.hub.assign_client_id();
        }
        let Some(authenticator) = authenticator else {
            let principal = Principal::new(None, &connect.client_id);
            let principal = wire.hub.access_control.is_set().then_some(principal);
            let admission = Admission::new(connect, is_assigned, principal);
            return Some(Authenticating::nothing_to_prove(admission));
        };
        let mut log_in = LogIn::of(
            &wire.link,
            connect.client_id.clone(),
            connect.version,
            connect.user_name.take(),
            connect.password.take(),
        );
        let unproven = Some(Tried::Unproven) == log_in.tried();
        let wait = authenticator.waits_for_handshake(&log_in)
            // Too many log-ins from unproven addresses have failed: further ones have to prove
            // theirs.
            || unproven && !wire.hub.access_control.may_try(Some(Tried::Unproven), now);
        if log_in.early && wait {
            connect.user_name = log_in.user_name.take();
            connect.password = log_in.password.take();
            if is_assigned {
                connect.client_id = ByteStr::empty();
            }
            self.connect = Some(connect);
            return None;
        }
        let admission = Admission::new(connect, is_assigned, None);
        Authenticating::begin(wire, now, admission, &authenticator, log_in)
    }
}

/// Returns the reason for which a CONNECT is refused from any client, if it is.
fn refusal(settings: &Settings, connect: &Connect) -> Option<ReasonCode> {
    let Connect {
        version,
        client_id,
        clean_start,
        will,
        ..
    } = connect;
    if client_id.starts_with(BRIDGE_PREFIX) {
        return Some(ReasonCode::ClientIdentifierNotValid);
    }
    let protocol = &settings.protocol;
    let maximum_qos: QoS = protocol.maximum_qos;
    let not_valid = match version {
        // MQTT 3.1 allows 23 characters; like mosquitto, the broker takes more.
        Version::V3_1 => client_id.is_empty(),
        // `[MQTT-3.1.3-8]`: a client without an identifier cannot ask for a kept session.
        Version::V3_1_1 => client_id.is_empty() && !*clean_start,
        Version::V5 => false,
    };
    if not_valid {
        return Some(ReasonCode::ClientIdentifierNotValid);
    }
    let will = will.as_ref()?;
    if router::is_too_deep(will.topic.as_bytes()) {
        return Some(ReasonCode::TopicNameInvalid);
    }
    if will.qos > maximum_qos {
        return Some(ReasonCode::QosNotSupported);
    }
    (will.retain && !protocol.retain_available).then_some(ReasonCode::RetainNotSupported)
}
