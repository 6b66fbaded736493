//! CONNECT (§3.1).

use core::num::{NonZeroU16, NonZeroU32};

use bytes::Bytes;

use super::{Body, Will};
use crate::{
    ByteStr, DecodeError, EncodeError, PacketType, QoS, Version,
    props::{Properties, properties},
    wire::{Reader, Sink, check_binary},
};

/// The bit of the protocol level that names a bridge.
const BRIDGE: u8 = 0x80;

const CLEAN_START: u8 = 0b0000_0010;
const WILL: u8 = 0b0000_0100;
const WILL_RETAIN: u8 = 0b0010_0000;
const PASSWORD: u8 = 0b0100_0000;
const USER_NAME: u8 = 0b1000_0000;

/// A CONNECT packet: the first of every connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The version that the client speaks.
    pub version: Version,
    /// `true` if the client is a bridge, by the highest bit of the protocol level (before 5.0): a convention of
    /// mosquitto's that other brokers share, of no specification. The server does not send a bridge its own messages
    /// back. Not sent in 5.0, which has No Local.
    pub is_bridge: bool,
    /// The client identifier, which names the session; an empty one asks the server for one (§3.1.3.1).
    pub client_id: ByteStr,
    /// Clean Start: `true` to begin with a new session (§3.1.2.4). Before 5.0 (Clean Session) the
    /// session also ends with the connection.
    pub clean_start: bool,
    /// Seconds within which the client promises to send something (§3.1.2.10); 0 for no promise.
    pub keep_alive: u16,
    /// The message that the server publishes if the connection is lost.
    pub will: Option<Will>,
    /// The user name.
    pub user_name: Option<ByteStr>,
    /// The password, which the server checks.
    pub password: Option<Bytes>,
    /// MQTT 5.0 properties of the packet.
    pub properties: ConnectProperties,
}

properties! {
    /// Properties of CONNECT (§3.1.2.11).
    ConnectProperties {
        /// Seconds that the session outlives the connection; 0 if absent, for ever if `u32::MAX`.
        session_expiry_interval: Option<u32> = SESSION_EXPIRY_INTERVAL,
        /// QoS 1 and 2 messages that may be on their way to the client at once; 65,535 if absent.
        receive_maximum: Option<NonZeroU16> = RECEIVE_MAXIMUM,
        /// The largest packet, in bytes, that the client takes; without limit if absent.
        maximum_packet_size: Option<NonZeroU32> = MAXIMUM_PACKET_SIZE,
        /// The greatest topic alias that the client takes; 0 if absent.
        topic_alias_maximum: Option<u16> = TOPIC_ALIAS_MAXIMUM,
        /// Asks for [`ConnAckProperties::response_information`](crate::ConnAckProperties).
        request_response_information: Option<bool> = REQUEST_RESPONSE_INFORMATION,
        /// Request Problem Information: `false` allows reason string and user properties on PUBLISH,
        /// CONNACK and DISCONNECT alone; `true` if absent (§3.1.2.11.7).
        request_problem_information: Option<bool> = REQUEST_PROBLEM_INFORMATION,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
        /// The name of an extended authentication.
        authentication_method: Option<ByteStr> = AUTHENTICATION_METHOD,
        /// The first data of that authentication.
        authentication_data: Option<Bytes> = AUTHENTICATION_DATA,
    }
}

impl Connect {
    /// Makes a CONNECT with a clean start, a keep-alive of 60 s and nothing else.
    #[must_use]
    pub fn new(version: Version, client_id: ByteStr) -> Self {
        Self {
            version,
            is_bridge: false,
            client_id,
            clean_start: true,
            keep_alive: 60,
            will: None,
            user_name: None,
            password: None,
            properties: ConnectProperties::default(),
        }
    }

    fn flags(&self) -> u8 {
        let bit = |is_set, flag| if is_set { flag } else { 0 };
        let will = self.will.as_ref().map_or(0, |will| {
            WILL | (will.qos as u8) << 3 | bit(will.retain, WILL_RETAIN)
        });
        bit(self.clean_start, CLEAN_START)
            | will
            | bit(self.password.is_some(), PASSWORD)
            | bit(self.user_name.is_some(), USER_NAME)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (version, is_bridge) = Self::read_version(reader)?;
        Self::read_rest(reader, version, is_bridge)
    }

    /// Reads the protocol name and level, which all versions begin with. Returns the version, and `true` for a bridge.
    pub(crate) fn read_version(reader: &mut Reader<'_>) -> Result<(Version, bool), DecodeError> {
        let name = reader.binary()?;
        let level = reader.u8()?;
        let is_bridge = level & BRIDGE != 0;
        let version = Version::from_wire(&name, level & !BRIDGE);
        let version = version.filter(|version| !is_bridge || *version < Version::V5);
        let version = version.ok_or(DecodeError::UnsupportedProtocol { level })?;
        Ok((version, is_bridge))
    }

    /// Reads the fields behind the protocol level.
    pub(crate) fn read_rest(
        reader: &mut Reader<'_>,
        version: Version,
        is_bridge: bool,
    ) -> Result<Self, DecodeError> {
        let flags = reader.u8()?;
        let will_qos = check_flags(flags, version)?;
        let keep_alive = reader.u16()?;
        let properties = ConnectProperties::read(reader, version)?;
        if properties.authentication_data.is_some() && properties.authentication_method.is_none() {
            return Err(DecodeError::AuthenticationDataAlone(PacketType::Connect));
        }
        let client_id = reader.string()?;
        let will = match will_qos {
            Some(qos) => Some(Will::read(reader, version, qos, flags & WILL_RETAIN != 0)?),
            None => None,
        };
        // "The Remaining Length field takes precedence over the User Name flag", and over the
        // other: MQTT 3.1, for the sake of its predecessor's clients.
        let follows = |flag, reader: &Reader<'_>| {
            flags & flag != 0 && !(version == Version::V3_1 && reader.is_empty())
        };
        let user_name = follows(USER_NAME, reader).then(|| reader.string());
        let user_name = user_name.transpose()?;
        let password = follows(PASSWORD, reader).then(|| reader.binary());
        Ok(Self {
            version,
            is_bridge,
            client_id,
            clean_start: flags & CLEAN_START != 0,
            keep_alive,
            will,
            user_name,
            password: password.transpose()?,
            properties,
        })
    }
}

/// Checks the connect flags, and returns the QoS of the will if there is one.
fn check_flags(flags: u8, version: Version) -> Result<Option<QoS>, DecodeError> {
    let invalid = DecodeError::ConnectFlags { flags };
    let will_qos = flags >> 3 & 0b11;
    let password_alone = flags & PASSWORD != 0 && flags & USER_NAME == 0;
    // 3.1.1's `[MQTT-3.1.2-22]`, which 5.0 no longer has.
    if password_alone && version < Version::V5 {
        return Err(invalid);
    }
    // MQTT 3.1 uses neither the reserved bit nor, without a will, those of the will: "its value is
    // disregarded".
    let strict = version > Version::V3_1;
    // `[MQTT-3.1.2-3]`
    if strict && flags & 1 != 0 {
        return Err(invalid);
    }
    if flags & WILL == 0 {
        // `[MQTT-3.1.2-11]`, `[MQTT-3.1.2-13]`
        if strict && (will_qos != 0 || flags & WILL_RETAIN != 0) {
            return Err(invalid);
        }
        return Ok(None);
    }
    QoS::from_bits(will_qos).map(Some).ok_or(invalid)
}

impl Body for Connect {
    fn check(&self, _: Version) -> Result<(), EncodeError> {
        let will = self.will.as_ref();
        for binary in [
            self.password.as_ref(),
            self.properties.authentication_data.as_ref(),
            will.map(|will| &will.payload),
            will.and_then(|will| will.properties.correlation_data.as_ref()),
        ] {
            check_binary(PacketType::Connect, binary)?;
        }
        Ok(())
    }

    /// Writes the packet in its own version.
    fn write(&self, _: Version, sink: &mut impl Sink) {
        sink.binary(self.version.protocol_name().as_bytes());
        let is_marked = self.is_bridge && self.version < Version::V5;
        sink.u8(self.version.level() | if is_marked { BRIDGE } else { 0 });
        sink.u8(self.flags());
        sink.u16(self.keep_alive);
        self.properties.write(self.version, sink);
        sink.string(&self.client_id);
        if let Some(will) = &self.will {
            will.properties.write(self.version, sink);
            sink.string(will.topic.as_byte_str());
            sink.binary(&will.payload);
        }
        if let Some(user_name) = &self.user_name {
            sink.string(user_name);
        }
        if let Some(password) = &self.password {
            sink.binary(password);
        }
    }
}
