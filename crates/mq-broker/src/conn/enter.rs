//! A client is let in: what its CONNECT asks for and what it gets.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mq_codec::{ConnAck, Connect, QoS, ReasonCode, Version};
use mq_proto::LaneId;
use tracing::{debug, info};

use super::Conn;
use crate::{
    Settings,
    auth::Principal,
    router,
    shown::Shown,
    store::{SessionChange, User},
};

/// Why a CONNECT is refused, whoever sent it, if it is.
pub(super) fn refusal(settings: &Settings, connect: &Connect) -> Option<ReasonCode> {
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

impl Conn {
    /// Lets the client in, `brought_none` being whether the broker has chosen its identifier.
    pub(super) async fn enter(
        &mut self,
        now: Instant,
        connect: Connect,
        brought_none: bool,
        data: Option<Bytes>,
    ) {
        let Connect {
            version,
            client_id,
            clean_start,
            will,
            properties,
            ..
        } = connect;
        let principal = self.principal.as_ref();
        if let Some(will) = &will
            && !self.hub.guard.may_have_will(principal, will)
        {
            self.hub.metrics.not_authorized.add(1);
            let why = "will not authorized";
            return self.refuse_entry(ReasonCode::NotAuthorized, why, &client_id);
        }
        let will = match will.map(|will| self.hub.keep_will(will)) {
            None => None,
            Some(Some(will)) => Some(will),
            Some(None) => {
                let why = "no memory for its will";
                return self.refuse_entry(ReasonCode::QuotaExceeded, why, &client_id);
            }
        };
        let mut ack = ConnAck::new(ReasonCode::Success);
        ack.properties.authentication_data = data;
        if brought_none && version >= Version::V5 {
            ack.properties.assigned_client_identifier = Some(client_id.clone());
        }
        self.rules = self.hub.guard.generation();
        let journal = &mut self.publisher.journal;
        let user = principal.map_or(User::Anonymous, Principal::as_user);
        let attached = self
            .hub
            .attach(&client_id, clean_start, &user, principal, journal);
        let mut attached = match attached.await {
            Ok(attached) => attached,
            Err(reason) => {
                let why = if reason == ReasonCode::ClientIdentifierNotValid {
                    "client identifier of another user's session"
                } else {
                    reason.name()
                };
                return self.refuse_entry(reason, why, &client_id);
            }
        };
        self.publisher.can_refuse = version >= Version::V5;
        self.expiry = self.session_expiry(
            version,
            clean_start,
            properties.session_expiry_interval,
            &mut ack,
        );
        let expiry = self.expiry;
        if expiry != Some(Duration::ZERO) {
            attached.session.keep();
        }
        let journal = &mut self.publisher.journal;
        let change = SessionChange::Attached { expiry, user };
        journal.record_of(&attached.session, change);
        ack.session_present = attached.present;
        let protocol = core::mem::take(&mut attached.state.protocol);
        if attached.session.mailbox.connect() {
            // Something waits already; `fill` takes it.
            debug!(client = %Shown(&client_id), waiting = attached.session.mailbox.len(), "session resumed");
        }
        self.attached = Some(attached);
        // What was the share of a stranger counts among those of all clients from now on.
        self.share = self.hub.share(true);
        self.will = will;
        self.let_in_at = Some(self.connection.outbox().position());
        if let Err(error) = self.connection.accept(now, protocol, ack) {
            debug!(client = %Shown(&client_id), %error, "CONNACK could not be sent");
            self.connection.handle_link_lost();
            return;
        }
        self.link.release_tickets();
        let user = self.principal.as_ref().and_then(Principal::user);
        info!(
            client = %Shown(&client_id),
            user = user.map(|user| tracing::field::display(Shown(user))),
            %version,
            peer = ?self.link.info().peer_address,
            transport = %self.link.info().scheme,
            early = self.link.is_early(),
            "connected"
        );
        // What came right behind CONNECT has waited in the buffer.
        self.handle_received(LaneId::CONTROL);
    }

    /// Refuses a client whose user is known, if it has one.
    fn refuse_entry(&mut self, reason: ReasonCode, why: &'static str, client_id: &str) {
        let user = self.principal.as_ref().and_then(Principal::user);
        let user = user.map(str::to_owned);
        self.refuse(reason, why, client_id, user.as_deref());
    }

    /// How long the session lives on after the connection.
    fn session_expiry(
        &self,
        version: Version,
        clean: bool,
        wanted: Option<u32>,
        ack: &mut ConnAck,
    ) -> Option<Duration> {
        let maximum = self.settings.max_session_expiry;
        if version < Version::V5 {
            return if clean { Some(Duration::ZERO) } else { maximum };
        }
        let wanted = wanted.unwrap_or(0);
        let expiry = bounded_expiry(wanted, maximum);
        // A client that gets another expiry than it asked for is told which (§3.2.2.3.2).
        if expiry != bounded_expiry(wanted, None)
            && let Some(granted) = expiry
        {
            let seconds = u32::try_from(granted.as_secs()).unwrap_or(u32::MAX);
            ack.properties.session_expiry_interval = Some(seconds);
        }
        expiry
    }
}

/// How long a session lives that asks for `seconds`, where `maximum` is the longest that one may;
/// `None` is for ever, which the largest number stands for (§3.1.2.11.2).
pub(super) fn bounded_expiry(seconds: u32, maximum: Option<Duration>) -> Option<Duration> {
    let wanted = (seconds < u32::MAX).then(|| Duration::from_secs(seconds.into()));
    match (wanted, maximum) {
        (Some(wanted), Some(maximum)) => Some(wanted.min(maximum)),
        (wanted, maximum) => wanted.or(maximum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lives_as_long_as_asked_for_and_never_longer_than_the_longest() {
        let seconds = |count| Some(Duration::from_secs(count));
        for (wanted, maximum, lives) in [
            (0, None, seconds(0)),
            (9, None, seconds(9)),
            (u32::MAX, None, None),
            (9, seconds(5), seconds(5)),
            (3, seconds(5), seconds(3)),
            (u32::MAX, seconds(5), seconds(5)),
            // A maximum beyond what 32 bits say.
            (u32::MAX, seconds(1 << 33), seconds(1 << 33)),
        ] {
            assert_eq!(
                bounded_expiry(wanted, maximum),
                lives,
                "{wanted} {maximum:?}"
            );
        }
    }
}
