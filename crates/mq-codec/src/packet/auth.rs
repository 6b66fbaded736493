//! AUTH (§3.15), MQTT 5.0 only.

use bytes::{Bytes, BytesMut};

use super::{Body, ack::read_reason, encode_body};
use crate::{
    ByteStr, DecodeError, EncodeError, PacketType, ReasonCode, Version,
    props::properties,
    wire::{Reader, Sink, check_binary},
};

/// An AUTH packet: a step of an extended authentication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Auth {
    /// Success, continue or re-authenticate.
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
        /// For humans and logs.
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl Auth {
    pub(super) fn encode(&self, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
        let packet = PacketType::Auth;
        if version < Version::V5 {
            return Err(EncodeError::NotInVersion { packet, version });
        }
        check_binary(packet, self.properties.authentication_data.as_ref())?;
        encode_body(packet, self, out)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut auth = Self {
            reason: ReasonCode::Success,
            properties: AuthProperties::default(),
        };
        if !reader.is_empty() {
            auth.reason = read_reason(reader)?;
            if !reader.is_empty() {
                auth.properties = AuthProperties::read(reader)?;
            }
        }
        if auth.properties.authentication_data.is_some()
            && auth.properties.authentication_method.is_none()
        {
            return Err(DecodeError::AuthenticationDataAlone(PacketType::Auth));
        }
        // Only a success that says nothing else may leave the method out (§3.15.2.1, §3.15.2.2.2).
        let plain = auth.reason == ReasonCode::Success && auth.properties.is_empty();
        if !plain && auth.properties.authentication_method.is_none() {
            return Err(DecodeError::NoAuthenticationMethod);
        }
        Ok(auth)
    }
}

impl Body for Auth {
    fn write(&self, sink: &mut impl Sink) {
        let no_properties = self.properties.is_empty();
        if self.reason == ReasonCode::Success && no_properties {
            return;
        }
        sink.u8(self.reason as u8);
        if !no_properties {
            self.properties.write(sink);
        }
    }
}
