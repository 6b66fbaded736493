//! A module for each packet type; [`Packet`] is any of them.

use bytes::BytesMut;

use crate::{
    DecodeError, EncodeError, PacketId, ReasonCode, Version,
    props::Properties,
    wire::{Reader, Sink, length_of, remaining_length},
};

mod ack;
mod auth;
mod connack;
mod connect;
mod disconnect;
mod publish;
mod suback;
mod subscribe;
mod unsuback;
mod unsubscribe;
mod will;

pub use ack::{Ack, AckProperties};
pub use auth::{Auth, AuthProperties};
pub use connack::{ConnAck, ConnAckProperties};
pub use connect::{Connect, ConnectProperties};
pub use disconnect::{Disconnect, DisconnectProperties};
pub use publish::{Publish, PublishHead, PublishProperties};
pub use suback::{SubAck, SubAckProperties};
pub use subscribe::{Subscribe, SubscribeProperties};
pub use unsuback::{UnsubAck, UnsubAckProperties};
pub use unsubscribe::{Unsubscribe, UnsubscribeProperties};
pub use will::{Will, WillProperties};

pub use crate::packet_type::PacketType;

/// Any MQTT packet.
///
/// Rare and large packets stand behind a pointer, so that moving a packet costs no more than moving a
/// PUBLISH.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packet {
    /// CONNECT, the client's request for a connection.
    Connect(Box<Connect>),
    /// CONNACK, the server's answer to CONNECT.
    ConnAck(Box<ConnAck>),
    /// PUBLISH, which carries a message.
    Publish(Publish),
    /// PUBACK, which acknowledges a QoS 1 PUBLISH.
    PubAck(Ack),
    /// PUBREC, the first answer to a QoS 2 PUBLISH.
    PubRec(Ack),
    /// PUBREL, the answer to PUBREC.
    PubRel(Ack),
    /// PUBCOMP, the answer to PUBREL; the exchange is complete.
    PubComp(Ack),
    /// SUBSCRIBE, which asks for subscriptions.
    Subscribe(Subscribe),
    /// SUBACK, which answers SUBSCRIBE.
    SubAck(Box<SubAck>),
    /// UNSUBSCRIBE, which ends subscriptions.
    Unsubscribe(Unsubscribe),
    /// UNSUBACK, which answers UNSUBSCRIBE.
    UnsubAck(Box<UnsubAck>),
    /// PINGREQ, which asks the server for a PINGRESP, the proof that the connection lives.
    PingReq,
    /// PINGRESP, which answers PINGREQ.
    PingResp,
    /// DISCONNECT, the last packet of a connection.
    Disconnect(Box<Disconnect>),
    /// AUTH, a step of an extended authentication (5.0).
    Auth(Box<Auth>),
}

impl Packet {
    /// Returns the type of the packet.
    #[must_use]
    pub fn packet_type(&self) -> PacketType {
        match self {
            Self::Connect(_) => PacketType::Connect,
            Self::ConnAck(_) => PacketType::ConnAck,
            Self::Publish(_) => PacketType::Publish,
            Self::PubAck(_) => PacketType::PubAck,
            Self::PubRec(_) => PacketType::PubRec,
            Self::PubRel(_) => PacketType::PubRel,
            Self::PubComp(_) => PacketType::PubComp,
            Self::Subscribe(_) => PacketType::Subscribe,
            Self::SubAck(_) => PacketType::SubAck,
            Self::Unsubscribe(_) => PacketType::Unsubscribe,
            Self::UnsubAck(_) => PacketType::UnsubAck,
            Self::PingReq => PacketType::PingReq,
            Self::PingResp => PacketType::PingResp,
            Self::Disconnect(_) => PacketType::Disconnect,
            Self::Auth(_) => PacketType::Auth,
        }
    }

    /// Returns the packet identifier; `None` for packets without one.
    #[must_use]
    pub fn packet_id(&self) -> Option<PacketId> {
        match self {
            Self::Publish(publish) => publish.packet_id,
            Self::PubAck(ack) | Self::PubRec(ack) | Self::PubRel(ack) | Self::PubComp(ack) => {
                Some(ack.packet_id)
            }
            Self::Subscribe(packet) => Some(packet.packet_id),
            Self::SubAck(packet) => Some(packet.packet_id),
            Self::Unsubscribe(packet) => Some(packet.packet_id),
            Self::UnsubAck(packet) => Some(packet.packet_id),
            _ => None,
        }
    }

    /// Appends the packet to `out` as `version` writes it, a PUBLISH with its payload.
    ///
    /// Fields that a version does not have (properties and most reason codes before 5.0) are left out.
    /// CONNECT is written in [`Connect::version`], whatever `version` says.
    ///
    /// # Errors
    /// [`EncodeError`], if it cannot be written; `out` is then as before.
    pub fn encode(&self, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
        let kind = self.packet_type();
        match self {
            Self::Publish(packet) => packet.encode(version, out),
            Self::Connect(packet) => encode_body(kind, &**packet, version, out),
            Self::ConnAck(packet) => encode_body(kind, &**packet, version, out),
            Self::PubAck(ack) | Self::PubRec(ack) | Self::PubRel(ack) | Self::PubComp(ack) => {
                encode_body(kind, ack, version, out)
            }
            Self::Subscribe(packet) => encode_body(kind, packet, version, out),
            Self::SubAck(packet) => encode_body(kind, &**packet, version, out),
            Self::Unsubscribe(packet) => encode_body(kind, packet, version, out),
            Self::UnsubAck(packet) => encode_body(kind, &**packet, version, out),
            Self::PingReq | Self::PingResp => {
                out.u16(u16::from(kind.first_byte()) << 8);
                Ok(())
            }
            Self::Disconnect(packet) => encode_body(kind, &**packet, version, out),
            Self::Auth(packet) => encode_body(kind, &**packet, version, out),
        }
    }

    /// Reads a packet that is not PUBLISH, behind its fixed header; the decoder has checked its
    /// type and flags.
    pub(crate) fn read(mut reader: Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let r = &mut reader;
        let packet = match r.packet {
            PacketType::Publish => unreachable!("the decoder reads it by itself"),
            PacketType::Connect => Self::Connect(Box::new(Connect::read(r)?)),
            PacketType::ConnAck => Self::ConnAck(Box::new(ConnAck::read(r, version)?)),
            PacketType::PubAck => Self::PubAck(Ack::read(r, version)?),
            PacketType::PubRec => Self::PubRec(Ack::read(r, version)?),
            PacketType::PubRel => Self::PubRel(Ack::read(r, version)?),
            PacketType::PubComp => Self::PubComp(Ack::read(r, version)?),
            PacketType::Subscribe => Self::Subscribe(Subscribe::read(r, version)?),
            PacketType::SubAck => Self::SubAck(Box::new(SubAck::read(r, version)?)),
            PacketType::Unsubscribe => Self::Unsubscribe(Unsubscribe::read(r, version)?),
            PacketType::UnsubAck => Self::UnsubAck(Box::new(UnsubAck::read(r, version)?)),
            PacketType::PingReq => Self::PingReq,
            PacketType::PingResp => Self::PingResp,
            PacketType::Disconnect => Self::Disconnect(Box::new(Disconnect::read(r, version)?)),
            PacketType::Auth => Self::Auth(Box::new(Auth::read(r, version)?)),
        };
        reader.finish()?;
        Ok(packet)
    }
}

impl From<Publish> for Packet {
    fn from(packet: Publish) -> Self {
        Self::Publish(packet)
    }
}

impl From<Connect> for Packet {
    fn from(packet: Connect) -> Self {
        Self::Connect(Box::new(packet))
    }
}

impl From<ConnAck> for Packet {
    fn from(packet: ConnAck) -> Self {
        Self::ConnAck(Box::new(packet))
    }
}

/// The body of a packet that is not PUBLISH, behind its fixed header.
trait Body {
    /// Refuses fields that the wire cannot carry.
    fn check(&self, _: Version) -> Result<(), EncodeError> {
        Ok(())
    }

    /// Writes the body to a sink: once to count, once to send.
    fn write(&self, version: Version, sink: &mut impl Sink);
}

/// Appends a packet: fixed header, then `body`.
fn encode_body(
    packet: PacketType,
    body: &impl Body,
    version: Version,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    body.check(version)?;
    let size = length_of(|length| body.write(version, length));
    let remaining = remaining_length(size)?;
    out.reserve(size + 5);
    out.u8(packet.first_byte());
    out.varint(remaining);
    body.write(version, out);
    Ok(())
}

/// Reads a reason code, and checks that the packet may have it.
fn read_reason(reader: &mut Reader<'_>) -> Result<ReasonCode, DecodeError> {
    let packet = reader.packet;
    let code = reader.u8()?;
    ReasonCode::from_byte(code)
        .filter(|reason| reason.is_allowed_in(packet))
        .ok_or(DecodeError::ReasonCode { packet, code })
}

/// Reads the reason code and the properties that a packet ends with.
///
/// Both may be left out, or the properties alone (§3.4.2.1, §3.14.2.1, §3.15.2.1); before 5.0 there
/// are none.
fn read_outcome<P: Properties>(
    reader: &mut Reader<'_>,
    version: Version,
) -> Result<(ReasonCode, P), DecodeError> {
    let (mut reason, mut properties) = (ReasonCode::Success, P::default());
    if version >= Version::V5 && !reader.is_empty() {
        reason = read_reason(reader)?;
        if !reader.is_empty() {
            properties = P::read(reader, version)?;
        }
    }
    Ok((reason, properties))
}

/// Writes the reason code and the properties that a packet ends with; leaves out both, or the
/// properties, if the specification allows it.
fn write_outcome(
    reason: ReasonCode,
    properties: &impl Properties,
    version: Version,
    sink: &mut impl Sink,
) {
    let no_properties = properties.are_none();
    if version < Version::V5 || (reason == ReasonCode::Success && no_properties) {
        return;
    }
    sink.u8(reason as u8);
    if !no_properties {
        properties.write(version, sink);
    }
}
