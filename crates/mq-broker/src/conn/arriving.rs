//! The first phase: a link that has sent no CONNECT yet.

use std::{sync::Arc, time::Instant};

use mq_codec::{ByteStr, Connect, QoS, ReasonCode, Version};
use mq_proto::Event;

use super::{authenticating::Authenticating, entry::Entry, wire::Wire};
use crate::{
    Settings,
    auth::{Authentication, Authenticator, LogIn, Principal, Refusal, Tried},
    clock, router,
};

/// A link without a CONNECT, or with one that has to wait.
#[derive(Default)]
pub(super) struct Arriving {
    /// The CONNECT that an authenticator wants to see once the link's handshake is complete.
    connect: Option<Box<Connect>>,
}

/// Where a CONNECT leads.
pub(super) enum Arrived {
    /// There is nothing to prove here.
    Known(Entry),
    /// An authenticator has to say who the client is.
    Unknown(Authenticating),
}

impl Arriving {
    /// Waits for CONNECT; `None` if the connection is over before a client may go on.
    pub(super) async fn run(mut self, wire: &mut Wire) -> Option<Arrived> {
        while !wire.is_over() {
            let now = clock::now();
            wire.sample(now);
            if wire.look_at_handshake(now)
                && let Some(connect) = self.connect.take()
                && let Some(arrived) = self.arrived(wire, now, *connect)
            {
                return Some(arrived);
            }
            while let Some(event) = wire.connection.poll_event() {
                match event {
                    Event::Connect(connect) => {
                        if let Some(arrived) = self.arrived(wire, now, *connect) {
                            return Some(arrived);
                        }
                    }
                    Event::Closed(reason) => wire.closed = Some(reason),
                    // The state machine lets nothing else through before CONNECT.
                    _ => {}
                }
            }
            wire.count_stranger();
            wire.look_at_shutdown();
            if !wire.connection.is_closed() {
                let want_read = self.connect.is_none() && wire.may_read();
                let nothing = std::future::pending::<()>();
                wire.wait_for(now, want_read, nothing).await;
            }
        }
        None
    }

    /// Looks at a CONNECT: where it leads, or `None` if it is refused, or waits for the handshake.
    fn arrived(&mut self, wire: &mut Wire, now: Instant, mut connect: Connect) -> Option<Arrived> {
        if let Some(reason) = refusal(&wire.settings, &connect) {
            return refuse(wire, reason, &connect);
        }
        let is_assigned = connect.client_id.is_empty();
        if is_assigned {
            connect.client_id = wire.hub.assign_client_id();
        }
        let Some(authenticator) = wire.hub.guard.authenticator.clone() else {
            if connect.properties.authentication_method.is_some() {
                return refuse(wire, ReasonCode::BadAuthenticationMethod, &connect);
            }
            let principal = Principal::new(None, &connect.client_id);
            let principal = wire.hub.guard.is_set().then_some(principal);
            let entry = Entry::new(Box::new(connect), is_assigned, principal);
            return Some(Arrived::Known(entry));
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
            // Too many that nobody can be held to account for: the others have to be somebody.
            || unproven && !wire.hub.guard.may_try(Some(Tried::Unproven), now);
        if log_in.early && wait {
            connect.user_name = log_in.user_name.take();
            connect.password = log_in.password.take();
            if is_assigned {
                connect.client_id = ByteStr::empty();
            }
            self.connect = Some(Box::new(connect));
            return None;
        }
        begin(wire, now, &authenticator, connect, is_assigned, log_in)
    }
}

/// Has the authenticator begin, if the client may try; `None` if it is refused.
fn begin(
    wire: &mut Wire,
    now: Instant,
    authenticator: &Arc<dyn Authenticator>,
    mut connect: Connect,
    is_assigned: bool,
    mut log_in: LogIn,
) -> Option<Arrived> {
    let tried = log_in.tried();
    if !wire.hub.guard.may_try(tried, now) {
        wire.refuse_log_in(Refusal::TooManyFailures, &log_in);
        return None;
    }
    if let (Some(throttle), Some(tried)) = (wire.hub.guard.throttle(), tried) {
        log_in.set_gate(throttle, tried);
    }
    let within = wire.settings.protocol.connect_timeout;
    let shown = Box::new(log_in.without_secrets());
    let mut authentication = Authentication::default();
    match &connect.properties.authentication_method {
        None => authentication.log_in(Arc::clone(authenticator), log_in, within),
        Some(method) => {
            let Some(exchange) = authenticator.exchange(method, &log_in) else {
                let (client_id, user) = (&log_in.client_id, log_in.user_name.as_deref());
                let reason = ReasonCode::BadAuthenticationMethod;
                wire.refuse(reason, reason.name(), client_id, user);
                return None;
            };
            let data = connect.properties.authentication_data.take();
            authentication.exchange(exchange, data, within);
        }
    }
    let entry = Entry::new(Box::new(connect), is_assigned, None);
    Some(Arrived::Unknown(Authenticating::new(
        entry,
        shown,
        authentication,
    )))
}

/// Refuses a CONNECT that no authenticator has to look at.
fn refuse(wire: &mut Wire, reason: ReasonCode, connect: &Connect) -> Option<Arrived> {
    let user = connect.user_name.as_deref();
    wire.refuse(reason, reason.name(), &connect.client_id, user);
    None
}

/// Why a CONNECT is refused, whoever sent it, if it is.
fn refusal(settings: &Settings, connect: &Connect) -> Option<ReasonCode> {
    let Connect {
        version,
        client_id,
        clean_start,
        will,
        ..
    } = connect;
    let protocol = &settings.protocol;
    let maximum_qos: QoS = protocol.maximum_qos;
    let not_valid = match version {
        // No more than 23 characters, says MQTT 3.1; mosquitto does not hold clients to that.
        Version::V3_1 => client_id.is_empty(),
        // `[MQTT-3.1.3-8]`: who brings no identifier cannot ask for a kept session.
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
