//! Admission of an authenticated client: grants the requests of its CONNECT, or refuses it.

use std::time::Duration;

use bytes::Bytes;
use mq_codec::{ConnAck, Connect, ConnectProperties, PacketType, ReasonCode, Version, Will};
use tracing::{debug, info};

use super::{
    attached::{Attached, Client},
    session_end::{SessionEnd, bounded_expiry},
    wire::Wire,
};
use crate::{
    Settings,
    auth::{LogIn, Principal},
    broker_mark::BrokerMark,
    clock,
    escaped::Escaped,
    hooks::{self, HookClient},
    hub::ReadAhead,
    refusal_log::ClientLine,
    session::{KeptWill, MemberState, Presence, Session},
    store::{SessionChange, User},
};

/// A CONNECT that may be answered with a session.
pub(super) struct Admission {
    pub(super) connect: Box<Connect>,
    /// `true` if the broker has chosen the client identifier.
    is_assigned: bool,
    /// The client's user and rights, where there are rules.
    principal: Option<Principal>,
    /// The data of an enhanced authentication for CONNACK.
    data: Option<Bytes>,
    /// The log-in of a client that may re-authenticate.
    log_in: Option<Box<LogIn>>,
}

impl Admission {
    pub(super) fn new(
        connect: Box<Connect>,
        is_assigned: bool,
        principal: Option<Principal>,
    ) -> Self {
        Self {
            connect,
            is_assigned,
            principal,
            data: None,
            log_in: None,
        }
    }

    /// Makes the admission of a client that the authenticator has identified.
    pub(super) fn proved(
        self,
        principal: Principal,
        data: Option<Bytes>,
        log_in: Box<LogIn>,
    ) -> Self {
        let has_method = self.connect.properties.authentication_method.is_some();
        Self {
            principal: Some(principal),
            data,
            // Only an enhanced method allows re-authentication (§4.12.1).
            log_in: has_method.then_some(log_in),
            ..self
        }
    }

    /// Gives the client its session; `None` if it is refused.
    pub(super) async fn admit(self, wire: &mut Wire) -> Option<Attached<'_>> {
        let Self {
            connect,
            is_assigned,
            principal,
            data,
            log_in,
        } = self;
        let Connect {
            version,
            is_bridge,
            client_id,
            clean_start,
            keep_alive,
            will,
            properties,
            ..
        } = *connect;
        let who = principal.as_ref();
        let will = match examine(wire, &client_id, who, will) {
            Ok(will) => will,
            Err((reason, why)) => return refuse(wire, reason, why, &client_id, who),
        };
        let mut ack = ConnAck::new(ReasonCode::Success);
        ack.properties.authentication_data = data;
        if is_assigned && version >= Version::V5 {
            ack.properties.assigned_client_identifier = Some(client_id.clone());
        }
        let is_bridge = is_bridge || answer_mark(wire, &properties, &mut ack);
        let expiry = session_expiry(
            &wire.settings,
            version,
            clean_start,
            properties.session_expiry_interval,
            &mut ack,
        );
        let is_kept = !clean_start || expiry != Some(Duration::ZERO);
        let rules = wire.hub.access_control.generation();
        let mut publisher = wire.hub.publisher();
        publisher.can_refuse = version >= Version::V5;
        let journal = &mut publisher.journal;
        let user = who.map_or(User::Anonymous, Principal::as_user);
        if let Err(refused) = wire.claim_session(&client_id, &user, is_kept).await {
            let reason = refused?;
            return refuse(wire, reason, why_no_session(reason), &client_id, who);
        }
        let hold = wire
            .hub
            .attach(&client_id, clean_start, &user, who, journal);
        let mut hold = match hold.await {
            Ok(hold) => hold,
            Err(reason) => return refuse(wire, reason, why_no_session(reason), &client_id, who),
        };
        if expiry != Some(Duration::ZERO) {
            hold.session.make_persistent();
        }
        hold.session.set_remote_bridge(is_bridge);
        let change = SessionChange::Attached { expiry, user };
        journal.record_of(&hold.session, change);
        wire.hub
            .record_will(&hold.session, will.as_deref(), journal);
        wire.hub
            .update_memberships(&hold.session, MemberState::Present, journal);
        if wire.has_gone_elsewhere(&client_id, is_kept).await {
            let nothing = ReadAhead::default();
            wire.hub
                .detach(hold, clock::now(), None, expiry, nothing, journal);
            return None;
        }
        ack.session_present = hold.session_present;
        tell_hooks(wire, &client_id, who, ack.session_present);
        let protocol = hold.state.take_protocol();
        hold.session.serve_on_this_worker();
        if hold.session.mailbox.connect() {
            // Messages wait already; `fill` takes them.
            debug!(client = %Escaped(&client_id), waiting = hold.session.mailbox.len(), "session resumed");
        }
        // From now on its bytes count among those of accepted clients.
        wire.incoming_memory = wire.hub.memory_share();
        let connack_at = wire.connection.outbox().position();
        if let Err(error) = wire.connection.accept(clock::now(), protocol, ack) {
            debug!(client = %Escaped(&client_id), %error, "cannot send CONNACK");
            wire.connection.handle_link_lost();
        } else {
            wire.link.let_in();
            hold.show_to_operators(presence(wire, version, clean_start, keep_alive, expiry));
            end_if_banned(wire, &hold.session, who.and_then(Principal::user));
            log_connected(wire, version, &client_id, who.and_then(Principal::user));
            // Data received after CONNECT, and on data lanes, has waited in the buffers.
            wire.handle_all_received();
        }
        let client = Client::new(principal, rules, log_in);
        let session_end = SessionEnd { will, expiry };
        Some(Attached::new(
            wire,
            hold,
            publisher,
            client,
            session_end,
            connack_at,
        ))
    }
}

/// Looks at a client that has logged in, and keeps its will.
///
/// # Errors
/// If the client is refused, with the reason for CONNACK and that for the log.
fn examine(
    wire: &Wire,
    client_id: &str,
    who: Option<&Principal>,
    will: Option<Will>,
) -> Result<Option<Box<KeptWill>>, (ReasonCode, &'static str)> {
    let user = who.and_then(Principal::user);
    if user.is_some_and(|user| wire.hub.bans.has_user(user, clock::now())) {
        return Err((ReasonCode::Banned, "banned"));
    }
    if let Some(called) = &wire.hub.hooks {
        let client = HookClient::new(client_id, who);
        called.on_authenticated(client).map_err(|reason| {
            let reason = hooks::allowed_in(PacketType::ConnAck, reason);
            (reason, hooks::REFUSED)
        })?;
    }
    will.map(|will| keep_will(wire, who, will)).transpose()
}

/// Tells the program's hooks of a client that has its session.
fn tell_hooks(wire: &Wire, client_id: &str, who: Option<&Principal>, session_present: bool) {
    if let Some(called) = &wire.hub.hooks {
        called.on_connect(HookClient::new(client_id, who), session_present);
    }
}

/// Ends the connection of a client that was banned while it was let in: the ban has ended those that operators saw by then.
fn end_if_banned(wire: &Wire, session: &Session, user: Option<&str>) {
    let (bans, now) = (&wire.hub.bans, clock::now());
    if bans.has_address(wire.link.info().peer_address, now)
        || bans.has_client(&session.client_id, now)
        || user.is_some_and(|user| bans.has_user(user, now))
    {
        session.kick(ReasonCode::AdministrativeAction);
    }
}

/// Sends this broker's mark to a bridge that has sent its own (5.0). Returns `true` if the client
/// is such a bridge.
fn answer_mark(wire: &Wire, properties: &ConnectProperties, ack: &mut ConnAck) -> bool {
    let is_bridge = BrokerMark::of_peer(&properties.user_properties).is_some();
    if is_bridge {
        let mark = wire.hub.mark().property();
        ack.properties.user_properties.push(mark);
    }
    is_bridge
}

/// Returns the will of a client as it is kept, or the reason for which the client is refused.
fn keep_will(
    wire: &Wire,
    who: Option<&Principal>,
    will: Will,
) -> Result<Box<KeptWill>, (ReasonCode, &'static str)> {
    if !wire.hub.access_control.may_have_will(who, &will) {
        wire.hub.metrics.not_authorized.add(1);
        return Err((ReasonCode::NotAuthorized, "will not authorized"));
    }
    let kept = wire.hub.keep_will(will).map(Box::new);
    kept.ok_or((ReasonCode::QuotaExceeded, "no memory for its will"))
}

/// Returns the reason for which a client gets no session, for the log.
fn why_no_session(reason: ReasonCode) -> &'static str {
    match reason {
        ReasonCode::ClientIdentifierNotValid => "client identifier of another user's session",
        reason => reason.name(),
    }
}

/// Logs an accepted client.
fn log_connected(wire: &Wire, version: Version, client_id: &str, user: Option<&str>) {
    let refusal_log = &wire.hub.refusal_log;
    let Some(left_out) = refusal_log.admit(ClientLine::Connected, clock::now()) else {
        return;
    };
    let link = wire.link.info();
    info!(
        client = %Escaped(client_id),
        user = user.map(|user| display(Escaped(user))),
        %version,
        peer = link.peer_address.map(display),
        transport = %link.scheme,
        early = wire.link.is_early(),
        left_out = (left_out > 0).then_some(left_out),
        "connected"
    );
}

/// Refuses a client whose user, if it has one, is known.
fn refuse<T>(
    wire: &mut Wire,
    reason: ReasonCode,
    why: &'static str,
    client_id: &str,
    principal: Option<&Principal>,
) -> Option<T> {
    let user = principal.and_then(Principal::user);
    wire.refuse(reason, why, client_id, user);
    None
}

/// Returns the connection's view for operators.
fn presence(
    wire: &Wire,
    version: Version,
    clean_start: bool,
    keep_alive: u16,
    expiry: Option<Duration>,
) -> Presence {
    let link = wire.link.info();
    let keep_alive = granted_keep_alive(&wire.settings, version, keep_alive);
    let (scheme, peer) = (link.scheme, link.peer_address);
    Presence::new(scheme, peer, version, clean_start, keep_alive, expiry)
}

/// Returns the keep-alive in seconds that CONNACK leaves to the client or, in 5.0, sets
/// (§3.2.2.3.14); zero for none.
fn granted_keep_alive(settings: &Settings, version: Version, wanted: u16) -> u16 {
    let maximum = settings.protocol.max_keep_alive;
    let maximum = maximum.filter(|most| version >= Version::V5 && (wanted == 0 || wanted > *most));
    maximum.unwrap_or(wanted)
}

/// Returns the time that the session outlives the connection.
fn session_expiry(
    settings: &Settings,
    version: Version,
    clean: bool,
    wanted: Option<u32>,
    ack: &mut ConnAck,
) -> Option<Duration> {
    let maximum = settings.max_session_expiry;
    if version < Version::V5 {
        return if clean { Some(Duration::ZERO) } else { maximum };
    }
    let wanted = wanted.unwrap_or(0);
    let expiry = bounded_expiry(wanted, maximum);
    // CONNACK has the expiry if it differs from the client's request (§3.2.2.3.2).
    if expiry != bounded_expiry(wanted, None)
        && let Some(granted) = expiry
    {
        let seconds = u32::try_from(granted.as_secs()).unwrap_or(u32::MAX);
        ack.properties.session_expiry_interval = Some(seconds);
    }
    expiry
}
