//! AUTH: enhanced authentication (§4.12), both roles.

use std::time::Instant;

use mq_codec::{Auth, ByteStr, PacketType, ReasonCode};

use super::{Connection, Role, State};
use crate::{CommandError, Event, LaneId, ProtocolError};

/// The side whose AUTH or CONNACK is next in an enhanced authentication (§4.12).
///
/// ```text
///            CONNECT with a method          AUTH 0x18
///   Nobody ------------------------> Server ---------> Client
///     ^  |   AUTH 0x19, when open      ^ |               |
///     |  +-----------------------------+ | <-------------+
///     +----------------------------------+    AUTH 0x18
///          CONNACK, or AUTH 0x00 when open
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Nobody,
    Client,
    Server,
}

impl Connection {
    /// Sends a step of an enhanced authentication (5.0, §4.12). The method is that of CONNECT,
    /// whatever `auth` says `[MQTT-4.12.0-5]`.
    ///
    /// A server continues with 0x18 after an [`Event::Connect`] with a method, or after [`Event::Auth`].
    /// Then call [`handle_bytes`](Self::handle_bytes) again: bytes that the client sent meanwhile are a
    /// violation `[MQTT-3.1.2-30]`. The server ends the authentication with [`accept`](Self::accept) or
    /// [`refuse`](Self::refuse), and on an open connection with 0x00 or
    /// [`disconnect`](Self::disconnect). A client answers [`Event::Auth`] with 0x18, and begins
    /// anew with 0x19 while the connection is open.
    ///
    /// # Errors
    /// [`CommandError::NotConnected`] if it is not this side's turn, or not with that reason;
    /// [`CommandError::Encode`]; [`CommandError::TooLarge`].
    pub fn auth(&mut self, now: Instant, mut auth: Auth) -> Result<(), CommandError> {
        let next = match (self.role, self.state, self.turn, auth.reason) {
            (
                Role::Server,
                State::Connecting | State::Open,
                Turn::Server,
                ReasonCode::ContinueAuthentication,
            ) => Turn::Client,
            (Role::Server, State::Open, Turn::Server, ReasonCode::Success) => Turn::Nobody,
            (
                Role::Client,
                State::Connecting | State::Open,
                Turn::Client,
                ReasonCode::ContinueAuthentication,
            ) => Turn::Server,
            (Role::Client, State::Open, Turn::Nobody, ReasonCode::ReAuthenticate)
                if self.method.is_some() =>
            {
                Turn::Server
            }
            _ => return Err(CommandError::NotConnected),
        };
        auth.properties
            .authentication_method
            .clone_from(&self.method.as_deref().cloned());
        let packet = mq_codec::Packet::Auth(Box::new(auth));
        self.try_send(now, LaneId::CONTROL, &packet)?;
        self.turn = next;
        Ok(())
    }

    pub(super) fn auth_received(&mut self, auth: Auth) -> Result<(), ProtocolError> {
        let next = match (self.role, self.state, self.turn, auth.reason) {
            (
                Role::Server,
                State::Connecting | State::Open,
                Turn::Client,
                ReasonCode::ContinueAuthentication,
            )
            | (Role::Server, State::Open, Turn::Nobody, ReasonCode::ReAuthenticate)
                if self.method.is_some() =>
            {
                Turn::Server
            }
            (
                Role::Client,
                State::Connecting | State::Open,
                Turn::Server,
                ReasonCode::ContinueAuthentication,
            ) => Turn::Client,
            (Role::Client, State::Open, Turn::Server, ReasonCode::Success) => Turn::Nobody,
            // `[MQTT-4.12.0-6]`, `[MQTT-4.12.0-7]`
            _ => return Err(ProtocolError::Unexpected(PacketType::Auth)),
        };
        let named = &auth.properties.authentication_method;
        // A success without properties may leave the method out (§3.15.2.1).
        let left_out = named.is_none() && auth.reason == ReasonCode::Success;
        if !left_out && named.as_ref() != self.method.as_deref() {
            return Err(ProtocolError::AuthenticationMethod);
        }
        self.turn = next;
        self.events.push_back(Event::Auth(auth));
        Ok(())
    }

    /// Sets whose turn it is, once CONNECT has left or come.
    pub(super) fn agree_on_method(&mut self, method: Option<ByteStr>) {
        self.turn = match method {
            Some(_) => Turn::Server,
            None => Turn::Nobody,
        };
        self.method = method.map(Box::new);
    }

    /// Client: returns `true` if commands may leave before CONNACK, which they may not with an authentication method
    /// `[MQTT-3.1.2-30]`.
    pub(super) fn may_be_early(&self) -> bool {
        self.state == State::Connecting && self.role == Role::Client && self.method.is_none()
    }
}
