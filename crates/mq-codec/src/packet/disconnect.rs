//! DISCONNECT (§3.14).

use super::{Body, read_outcome, write_outcome};
use crate::{
    ByteStr, DecodeError, ReasonCode, Version,
    props::properties,
    wire::{Reader, Sink},
};

/// A DISCONNECT packet: the last packet of a connection. Before MQTT 5.0 only clients send it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disconnect {
    /// The reason; always success before MQTT 5.0.
    pub reason: ReasonCode,
    /// MQTT 5.0 properties of the packet.
    pub properties: DisconnectProperties,
}

properties! {
    /// Properties of DISCONNECT (§3.14.2.2).
    DisconnectProperties {
        /// Seconds that the session lives on, in place of CONNECT's value; from the client only.
        session_expiry_interval: Option<u32> = SESSION_EXPIRY_INTERVAL,
        /// Reason String: a diagnostic text for people and logs, which programs should not parse
        /// (§3.14.2.2.3).
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
        /// Another server to use.
        server_reference: Option<ByteStr> = SERVER_REFERENCE,
    }
}

impl Disconnect {
    /// Makes a DISCONNECT without properties.
    #[must_use]
    pub fn new(reason: ReasonCode) -> Self {
        Self {
            reason,
            properties: DisconnectProperties::default(),
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let (reason, properties) = read_outcome(reader, version)?;
        Ok(Self { reason, properties })
    }
}

impl Body for Disconnect {
    fn write(&self, version: Version, sink: &mut impl Sink) {
        write_outcome(self.reason, &self.properties, version, sink);
    }
}
