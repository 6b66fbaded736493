//! AUTH (§3.15), MQTT 5.0 only.

use bytes::Bytes;

use super::{Body, read_outcome, write_outcome};
use crate::{
    ByteStr, DecodeError, EncodeError, PacketType, ReasonCode, Version,
    props::properties,
    wire::{Reader, Sink, check_binary},
};

/// An AUTH packet: a step of an extended authentication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Auth {
    /// The reason code: success, continue authentication or re-authenticate.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: AuthProperties,
}

properties! {
    /// Properties of AUTH (§3.15.2.2).
    AuthProperties {
        /// The name of the method; the same as in CONNECT.
        authentication_method: Option<ByteStr> = AUTHENTICATION_METHOD,
        /// The data of this step.
        authentication_data: Option<Bytes> = AUTHENTICATION_DATA,
        /// Reason String: a diagnostic text for people and logs, which programs should not parse
        /// (§3.15.2.2.4).
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl Auth {
    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let (reason, properties) = read_outcome(reader, version)?;
        let auth = Self { reason, properties };
        if auth.properties.authentication_data.is_some()
            && auth.properties.authentication_method.is_none()
        {
            return Err(DecodeError::AuthenticationDataAlone(PacketType::Auth));
        }
        // Only a success without properties may leave the method out (§3.15.2.1, §3.15.2.2.2).
        let plain = auth.reason == ReasonCode::Success && auth.properties.is_empty();
        if !plain && auth.properties.authentication_method.is_none() {
            return Err(DecodeError::NoAuthenticationMethod);
        }
        Ok(auth)
    }
}

impl Body for Auth {
    fn check(&self, version: Version) -> Result<(), EncodeError> {
        let packet = PacketType::Auth;
        if version < Version::V5 {
            return Err(EncodeError::NotInVersion { packet, version });
        }
        check_binary(packet, self.properties.authentication_data.as_ref())
    }

    fn write(&self, version: Version, sink: &mut impl Sink) {
        write_outcome(self.reason, &self.properties, version, sink);
    }
}
