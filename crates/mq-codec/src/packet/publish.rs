//! PUBLISH (§3.3).

use bytes::{Bytes, BytesMut};

use crate::{
    ByteStr, DecodeError, EncodeError, PacketId, PacketType, QoS, Sparse, SubscriptionId,
    TopicName, Version,
    byte_str::SLACK,
    props::{Properties, Slot, clamped, id, properties},
    wire::{Reader, Sink, check_binary, length_of, remaining_length},
};

/// Payloads up to this size are likely to be copied behind their head.
const COPIED: usize = 1024;

/// A PUBLISH packet: a message on its way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Publish {
    /// DUP: `true` if the message may have been sent before (QoS 1 and 2 only, §3.3.1.1).
    pub dup: bool,
    /// Quality of service of the delivery (§3.3.1.2).
    pub qos: QoS,
    /// RETAIN (§3.3.1.3). To the server: keep the message for later subscribers. From the server: the
    /// message was retained before the subscription was made, or its publisher set RETAIN and the
    /// subscription has Retain As Published.
    pub retain: bool,
    /// The topic name (§3.3.2.1). Empty only if a topic alias stands for it.
    pub topic: TopicName,
    /// The packet identifier; present for QoS 1 and 2 only.
    pub packet_id: Option<PacketId>,
    /// MQTT 5.0 properties of the packet.
    pub properties: Sparse<PublishProperties>,
    /// The application's bytes; may be empty.
    pub payload: Bytes,
}

properties! {
    /// Properties of PUBLISH (§3.3.2.3).
    PublishProperties {
        /// Payload Format Indicator: `true` for UTF-8 text; `false` or absent for bytes of any kind
        /// (§3.3.2.3.2).
        payload_is_utf8: Option<bool> = PAYLOAD_FORMAT_INDICATOR,
        /// Seconds until the server drops the message undelivered; never if absent.
        message_expiry_interval: Option<u32> = MESSAGE_EXPIRY_INTERVAL,
        /// Stands for the topic; together with a topic, gives it this alias (§3.3.2.3.4). The
        /// decoder lets 0 through: the session, which resolves aliases, refuses it `[MQTT-3.3.2-8]`.
        topic_alias: Option<u16> = TOPIC_ALIAS,
        /// Response Topic: the topic name for a response message (§3.3.2.3.5).
        response_topic: Option<ByteStr> = RESPONSE_TOPIC,
        /// Correlation Data: returned with the response message, so that the requester can tell its
        /// request (§3.3.2.3.6).
        correlation_data: Option<Bytes> = CORRELATION_DATA,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
        /// The subscriptions that this message matched; from server to client only.
        subscription_ids: Vec<SubscriptionId> = SUBSCRIPTION_IDENTIFIER,
        /// Content Type of the payload, such as a MIME type (§3.3.2.3.9).
        content_type: Option<ByteStr> = CONTENT_TYPE,
    }
}

impl PublishProperties {
    /// Copies texts and data that share a read buffer into memory of their own; see
    /// [`ByteStr::detached`].
    #[must_use]
    pub fn detached(&self) -> Self {
        let string = |text: &Option<ByteStr>| text.as_ref().map(ByteStr::detached);
        let user_properties = self.user_properties.iter();
        Self {
            response_topic: string(&self.response_topic),
            correlation_data: self
                .correlation_data
                .as_ref()
                .map(|data| Bytes::copy_from_slice(data)),
            user_properties: user_properties
                .map(|(name, value)| (name.detached(), value.detached()))
                .collect(),
            content_type: string(&self.content_type),
            ..self.clone()
        }
    }
}

impl Publish {
    /// Makes a QoS 0 message.
    #[must_use]
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Self {
        Self {
            topic,
            payload: payload.into(),
            ..Self::default()
        }
    }

    /// Appends the whole packet.
    pub(super) fn encode(&self, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
        self.head().encode(version, out)?;
        out.extend_from_slice(&self.payload);
        Ok(())
    }

    /// Borrows everything but the payload, to be encoded without it.
    #[inline]
    #[must_use]
    pub fn head(&self) -> PublishHead<'_> {
        let properties = &*self.properties;
        PublishHead {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: &self.topic,
            packet_id: self.packet_id,
            topic_alias: properties.topic_alias,
            message_expiry_interval: properties.message_expiry_interval,
            subscription_ids: &properties.subscription_ids,
            properties: &self.properties,
            payload_len: self.payload.len(),
        }
    }

    /// Reads a packet behind its fixed header, whose flags are given.
    #[inline]
    pub(crate) fn read(
        mut reader: Reader<'_>,
        flags: u8,
        version: Version,
    ) -> Result<Self, DecodeError> {
        let qos = QoS::from_bits(flags >> 1 & 0b11).ok_or(DecodeError::ReservedQos)?;
        let dup = flags & 0b1000 != 0;
        if dup && qos == QoS::AtMostOnce && version > Version::V3_1 {
            return Err(DecodeError::DupWithQos0);
        }
        let topic = reader.topic(DecodeError::TopicName)?;
        let packet_id = match qos {
            QoS::AtMostOnce => None,
            QoS::AtLeastOnce | QoS::ExactlyOnce => Some(reader.packet_id()?),
        };
        let mut properties = Sparse::empty();
        if version >= Version::V5 && !reader.skip_zero() {
            properties = read_properties(&mut reader)?;
        }
        if topic.is_empty() && properties.topic_alias.is_none() {
            return Err(DecodeError::NoTopic);
        }
        Ok(Self {
            dup,
            qos,
            retain: flags & 1 != 0,
            topic,
            packet_id,
            properties,
            payload: reader.into_payload(),
        })
    }
}

/// Writes the fixed header and the length of the topic.
///
/// Each write costs a call, so the bytes are put together first. Nearly all packets have a remaining
/// length of one or two bytes.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a topic is an MQTT string, and the remaining length is taken apart"
)]
#[inline]
fn write_start(first: u8, remaining: u32, topic_len: usize, out: &mut BytesMut) {
    let [high, low] = (topic_len as u16).to_be_bytes();
    let (lowest, next) = (remaining as u8, (remaining >> 7) as u8);
    match remaining {
        0..0x80 => out.bytes(&[first, lowest, high, low]),
        0x80..0x4000 => out.bytes(&[first, lowest | 0x80, next, high, low]),
        _ => {
            out.u8(first);
            out.varint(remaining);
            out.bytes(&[high, low]);
        }
    }
}

fn read_properties(reader: &mut Reader<'_>) -> Result<Sparse<PublishProperties>, DecodeError> {
    let properties = PublishProperties::read(reader, Version::V5)?;
    check_response_topic(properties.response_topic.as_ref())?;
    Ok(properties.into())
}

/// Checks that a response topic is a topic name, without wildcards `[MQTT-3.3.2-14]`.
pub(super) fn check_response_topic(topic: Option<&ByteStr>) -> Result<(), DecodeError> {
    match topic.cloned().map(TopicName::from_byte_str) {
        Some(Err(error)) => Err(DecodeError::ResponseTopic(error)),
        _ => Ok(()),
    }
}

/// A PUBLISH without its payload: the part that differs between subscribers, borrowed.
///
/// A broker keeps one immutable message and encodes a head for each subscriber; the payload
/// follows it on the wire by reference. The three fields that also stand in
/// [`properties`](Self::properties) are taken from here, so that they can be replaced.
#[derive(Clone, Copy, Debug)]
pub struct PublishHead<'a> {
    /// DUP: `true` if the message may have been sent before ([`Publish::dup`]).
    pub dup: bool,
    /// Quality of service of this delivery ([`Publish::qos`]).
    pub qos: QoS,
    /// RETAIN flag of this delivery ([`Publish::retain`]).
    pub retain: bool,
    /// Topic name; empty only if `topic_alias` stands for it ([`Publish::topic`]).
    pub topic: &'a TopicName,
    /// Packet identifier, for QoS 1 and 2 only ([`Publish::packet_id`]).
    pub packet_id: Option<PacketId>,
    /// Replaces [`PublishProperties::topic_alias`].
    pub topic_alias: Option<u16>,
    /// Replaces [`PublishProperties::message_expiry_interval`].
    pub message_expiry_interval: Option<u32>,
    /// Replaces [`PublishProperties::subscription_ids`].
    pub subscription_ids: &'a [SubscriptionId],
    /// All other properties.
    pub properties: &'a Sparse<PublishProperties>,
    /// The length of the payload that follows, in bytes.
    pub payload_len: usize,
}

impl PublishHead<'_> {
    /// Returns the size of the whole packet in bytes, fixed header and payload included.
    #[must_use]
    pub fn packet_size(&self, version: Version) -> usize {
        let topic_len = self.topic.as_bytes().len();
        let head = self.head_len(version, topic_len, self.properties_len(version));
        let body = head + self.payload_len;
        1 + length_of(|length| length.varint(clamped(body))) + body
    }

    /// Appends everything but the payload.
    ///
    /// # Errors
    /// If the packet would not be valid; `out` is then as before.
    #[inline]
    pub fn encode(&self, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
        if self.packet_id.is_some() != (self.qos > QoS::AtMostOnce) {
            return Err(EncodeError::PacketIdMismatch(self.qos));
        }
        let topic = self.topic.as_byte_str();
        let topic_len = topic.as_bytes().len();
        if topic_len == 0 && (self.topic_alias.is_none() || version < Version::V5) {
            return Err(EncodeError::NoTopic);
        }
        if !self.properties.is_untouched() {
            let correlation_data = self.properties.correlation_data.as_ref();
            check_binary(PacketType::Publish, correlation_data)?;
        }
        let properties = self.properties_len(version);
        let head = self.head_len(version, topic_len, properties);
        let remaining = remaining_length(head + self.payload_len)?;
        // Room for the payload too, which most callers append.
        out.reserve(5 + head + self.payload_len.min(COPIED) + SLACK);
        let first = (PacketType::Publish as u8) << 4
            | u8::from(self.dup) << 3
            | (self.qos as u8) << 1
            | u8::from(self.retain);
        write_start(first, remaining, topic_len, out);
        topic.append_to(out);
        if let Some(id) = self.packet_id {
            out.packet_id(id);
        }
        if properties > 0 {
            self.write_properties(properties, out);
        } else if version >= Version::V5 {
            out.u8(0);
        }
        Ok(())
    }

    /// Returns the number of bytes between the fixed header and the payload.
    #[inline]
    fn head_len(&self, version: Version, topic_len: usize, properties: usize) -> usize {
        let packet_id = if self.packet_id.is_some() { 2 } else { 0 };
        let prefix = match properties {
            0 => usize::from(version >= Version::V5),
            _ => length_of(|length| length.varint(clamped(properties))),
        };
        2 + topic_len + packet_id + prefix + properties
    }

    /// Returns the number of bytes of the properties, without the length in front of them.
    #[inline]
    fn properties_len(&self, version: Version) -> usize {
        let none = self.properties.is_untouched()
            && self.topic_alias.is_none()
            && self.message_expiry_interval.is_none()
            && self.subscription_ids.is_empty();
        if version < Version::V5 || none {
            return 0;
        }
        self.fields_len()
    }

    /// Counts the bytes of the properties. Takes a copy and is never inlined, like the writing of the
    /// fields, so that the head of a packet without properties stays in registers.
    #[inline(never)]
    fn fields_len(self) -> usize {
        length_of(|length| self.write_fields(length))
    }

    /// Writes the properties, `length` bytes, behind that length.
    #[inline(never)]
    fn write_properties(self, length: usize, out: &mut BytesMut) {
        out.varint(clamped(length));
        self.write_fields(out);
    }

    fn write_fields(&self, sink: &mut impl Sink) {
        self.message_expiry_interval
            .write(id::MESSAGE_EXPIRY_INTERVAL, sink);
        self.topic_alias.write(id::TOPIC_ALIAS, sink);
        for subscription in self.subscription_ids {
            sink.varint(id::SUBSCRIPTION_IDENTIFIER);
            sink.varint(subscription.get());
        }
        if self.properties.is_untouched() {
            return;
        }
        let PublishProperties {
            payload_is_utf8,
            message_expiry_interval: _,
            topic_alias: _,
            response_topic,
            correlation_data,
            user_properties,
            subscription_ids: _,
            content_type,
        } = &**self.properties;
        payload_is_utf8.write(id::PAYLOAD_FORMAT_INDICATOR, sink);
        response_topic.write(id::RESPONSE_TOPIC, sink);
        correlation_data.write(id::CORRELATION_DATA, sink);
        user_properties.write(id::USER_PROPERTY, sink);
        content_type.write(id::CONTENT_TYPE, sink);
    }
}
