//! Packets to send, put together by hand, well formed or not.
//!
//! Nothing here uses the codec: an error that the codec makes both ways would cancel out.

/// A version of MQTT, as the suite speaks it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Version {
    V31,
    V311,
    V5,
}

pub(crate) use Version::{V5, V31, V311};

pub(crate) const ALL: &[Version] = &[V31, V311, V5];
/// Versions with a standard of OASIS.
pub(crate) const OASIS: &[Version] = &[V311, V5];
pub(crate) const OLD: &[Version] = &[V31, V311];
pub(crate) const ONLY_31: &[Version] = &[V31];
pub(crate) const ONLY_5: &[Version] = &[V5];

impl Version {
    pub(crate) fn name(self) -> &'static str {
        match self {
            V31 => "3.1",
            V311 => "3.1.1",
            V5 => "5.0",
        }
    }

    fn level(self) -> u8 {
        match self {
            V31 => 3,
            V311 => 4,
            V5 => 5,
        }
    }

    fn protocol(self) -> &'static [u8] {
        match self {
            V31 => b"MQIsdp",
            V311 | V5 => b"MQTT",
        }
    }

    /// Encodes the properties with their length in front; nothing before 5.0.
    fn properties(self, properties: &[u8]) -> Vec<u8> {
        if self < V5 {
            assert!(properties.is_empty(), "properties before MQTT 5.0");
            return Vec::new();
        }
        let length = u32::try_from(properties.len()).unwrap();
        [&varint(length)[..], properties].concat()
    }
}

pub(crate) const PINGREQ: [u8; 2] = [0xC0, 0];
pub(crate) const DISCONNECT: [u8; 2] = [0xE0, 0];

pub(crate) const PUBACK: u8 = 0x40;
pub(crate) const PUBREC: u8 = 0x50;
pub(crate) const PUBREL: u8 = 0x62;
pub(crate) const PUBCOMP: u8 = 0x70;

/// Encodes a variable byte integer in as few bytes as it needs.
pub(crate) fn varint(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (value & 0x7F) as u8;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// Encodes a 16-bit length and as many bytes: a string or binary data, whatever they are.
pub(crate) fn text(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let length = u16::try_from(bytes.len()).unwrap();
    [&length.to_be_bytes(), bytes].concat()
}

/// Encodes a first byte, the length of the body, and the body.
pub(crate) fn packet(first: u8, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let length = u32::try_from(body.len()).unwrap();
    [&[first][..], &varint(length), body].concat()
}

/// Properties, each with its identifier in front; join them with `concat`.
pub(crate) mod property {
    use super::text;

    pub(crate) fn byte(id: u8, value: u8) -> Vec<u8> {
        vec![id, value]
    }

    pub(crate) fn two(id: u8, value: u16) -> Vec<u8> {
        [&[id][..], &value.to_be_bytes()].concat()
    }

    pub(crate) fn four(id: u8, value: u32) -> Vec<u8> {
        [&[id][..], &value.to_be_bytes()].concat()
    }

    pub(crate) fn varint(id: u8, value: u32) -> Vec<u8> {
        [&[id][..], &super::varint(value)].concat()
    }

    pub(crate) fn string(id: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
        [&[id][..], &text(value)].concat()
    }

    pub(crate) fn pair(name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Vec<u8> {
        [&[USER][..], &text(name), &text(value)].concat()
    }

    pub(crate) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(crate) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(crate) const CONTENT_TYPE: u8 = 0x03;
    pub(crate) const RESPONSE_TOPIC: u8 = 0x08;
    pub(crate) const CORRELATION_DATA: u8 = 0x09;
    pub(crate) const SUBSCRIPTION_ID: u8 = 0x0B;
    pub(crate) const SESSION_EXPIRY: u8 = 0x11;
    pub(crate) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(crate) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(crate) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(crate) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(crate) const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub(crate) const WILL_DELAY: u8 = 0x18;
    pub(crate) const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub(crate) const RESPONSE_INFORMATION: u8 = 0x1A;
    pub(crate) const REASON_STRING: u8 = 0x1F;
    pub(crate) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(crate) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(crate) const TOPIC_ALIAS: u8 = 0x23;
    pub(crate) const MAXIMUM_QOS: u8 = 0x24;
    pub(crate) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(crate) const USER: u8 = 0x26;
    pub(crate) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
}

/// A CONNECT, well formed unless its fields are not.
#[derive(Clone)]
pub(crate) struct Connect {
    pub(crate) version: Version,
    pub(crate) clean: bool,
    pub(crate) keep_alive: u16,
    pub(crate) properties: Vec<u8>,
    pub(crate) client_id: Vec<u8>,
    pub(crate) will: Option<Will>,
    pub(crate) user_name: Option<Vec<u8>>,
    pub(crate) password: Option<Vec<u8>>,
}

#[derive(Clone)]
pub(crate) struct Will {
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) properties: Vec<u8>,
    pub(crate) topic: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Will {
    pub(crate) fn new(topic: &str, payload: &str) -> Self {
        Self {
            qos: 0,
            retain: false,
            properties: Vec::new(),
            topic: topic.into(),
            payload: payload.into(),
        }
    }

    /// Sets the will delay interval, in seconds.
    pub(crate) fn delayed(mut self, seconds: u32) -> Self {
        self.properties
            .extend(property::four(property::WILL_DELAY, seconds));
        self
    }
}

impl Connect {
    /// Makes a CONNECT with a clean start, a keep-alive of a minute and nothing else.
    pub(crate) fn new(version: Version, client_id: &str) -> Self {
        Self {
            version,
            clean: true,
            keep_alive: 60,
            properties: Vec::new(),
            client_id: client_id.into(),
            will: None,
            user_name: None,
            password: None,
        }
    }

    /// Takes up a session, and leaves one behind that outlives the connection.
    pub(crate) fn kept(version: Version, client_id: &str) -> Self {
        let kept = Self {
            clean: false,
            ..Self::new(version, client_id)
        };
        if version == V5 {
            kept.property(property::four(property::SESSION_EXPIRY, 600))
        } else {
            kept
        }
    }

    pub(crate) fn will(mut self, will: Will) -> Self {
        self.will = Some(will);
        self
    }

    pub(crate) fn keep_alive(mut self, seconds: u16) -> Self {
        self.keep_alive = seconds;
        self
    }

    pub(crate) fn property(mut self, property: Vec<u8>) -> Self {
        self.properties.extend(property);
        self
    }

    pub(crate) fn flags(&self) -> u8 {
        let will = self
            .will
            .as_ref()
            .map_or(0, |will| 0x04 | will.qos << 3 | u8::from(will.retain) << 5);
        u8::from(self.clean) << 1
            | will
            | u8::from(self.password.is_some()) << 6
            | u8::from(self.user_name.is_some()) << 7
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes_with(self.version.protocol(), self.version.level(), self.flags())
    }

    /// Encodes the CONNECT with other connect flags, whatever the fields are.
    pub(crate) fn with_flags(&self, flags: u8) -> Vec<u8> {
        self.bytes_with(self.version.protocol(), self.version.level(), flags)
    }

    /// Encodes the CONNECT with another protocol name and level.
    pub(crate) fn with_protocol(&self, name: &[u8], level: u8) -> Vec<u8> {
        self.bytes_with(name, level, self.flags())
    }

    fn bytes_with(&self, name: &[u8], level: u8, flags: u8) -> Vec<u8> {
        let mut body = text(name);
        body.extend([level, flags]);
        body.extend(self.keep_alive.to_be_bytes());
        body.extend(self.version.properties(&self.properties));
        body.extend(text(&self.client_id));
        if let Some(will) = &self.will {
            body.extend(self.version.properties(&will.properties));
            body.extend(text(&will.topic));
            body.extend(text(&will.payload));
        }
        for field in [&self.user_name, &self.password].into_iter().flatten() {
            body.extend(text(field));
        }
        packet(0x10, body)
    }
}

/// A PUBLISH, well formed unless its fields are not.
#[derive(Clone)]
pub(crate) struct Publish {
    version: Version,
    first: u8,
    topic: Vec<u8>,
    id: Option<u16>,
    properties: Vec<u8>,
    payload: Vec<u8>,
}

impl Publish {
    pub(crate) fn new(
        version: Version,
        topic: impl AsRef<[u8]>,
        payload: impl AsRef<[u8]>,
    ) -> Self {
        Self {
            version,
            first: 0x30,
            topic: topic.as_ref().into(),
            id: None,
            properties: Vec::new(),
            payload: payload.as_ref().into(),
        }
    }

    /// Sets the QoS; at 1 and 2 the packet identifier is sent.
    pub(crate) fn qos(mut self, qos: u8, id: u16) -> Self {
        self.first |= qos << 1;
        self.id = (qos > 0).then_some(id);
        self
    }

    pub(crate) fn retain(mut self) -> Self {
        self.first |= 1;
        self
    }

    pub(crate) fn dup(mut self) -> Self {
        self.first |= 8;
        self
    }

    pub(crate) fn property(mut self, property: impl AsRef<[u8]>) -> Self {
        self.properties.extend(property.as_ref());
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut body = text(&self.topic);
        if let Some(id) = self.id {
            body.extend(id.to_be_bytes());
        }
        body.extend(self.version.properties(&self.properties));
        body.extend(&self.payload);
        packet(self.first, body)
    }
}

/// Encodes a SUBSCRIBE for filters with their options.
pub(crate) fn subscribe(version: Version, id: u16, filters: &[(&str, u8)]) -> Vec<u8> {
    subscribe_with(version, id, &[], filters)
}

/// Encodes a SUBSCRIBE with properties.
pub(crate) fn subscribe_with(
    version: Version,
    id: u16,
    properties: &[u8],
    filters: &[(&str, u8)],
) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(version.properties(properties));
    for (filter, options) in filters {
        body.extend(text(filter));
        body.push(*options);
    }
    packet(0x82, body)
}

pub(crate) fn unsubscribe(version: Version, id: u16, filters: &[&str]) -> Vec<u8> {
    unsubscribe_with(version, id, &[], filters)
}

pub(crate) fn unsubscribe_with(
    version: Version,
    id: u16,
    properties: &[u8],
    filters: &[&str],
) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(version.properties(properties));
    for filter in filters {
        body.extend(text(filter));
    }
    packet(0xA2, body)
}

/// Encodes PUBACK, PUBREC, PUBREL or PUBCOMP, by its first byte, in the form that all versions have.
pub(crate) fn ack(first: u8, id: u16) -> Vec<u8> {
    packet(first, id.to_be_bytes())
}

/// Encodes an acknowledgement of MQTT 5.0, with a reason code and properties.
pub(crate) fn ack_with(first: u8, id: u16, code: u8, properties: &[u8]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.push(code);
    body.extend(V5.properties(properties));
    packet(first, body)
}

/// Encodes DISCONNECT or AUTH of MQTT 5.0, by its first byte.
pub(crate) fn reason_packet(first: u8, code: u8, properties: &[u8]) -> Vec<u8> {
    let mut body = vec![code];
    body.extend(V5.properties(properties));
    packet(first, body)
}

/// Encodes DISCONNECT of MQTT 5.0 with a reason code.
pub(crate) fn disconnect(code: u8, properties: &[u8]) -> Vec<u8> {
    reason_packet(0xE0, code, properties)
}

pub(crate) fn auth(code: u8, properties: &[u8]) -> Vec<u8> {
    reason_packet(0xF0, code, properties)
}
