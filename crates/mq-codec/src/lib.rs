//! MQTT 3.1, 3.1.1 and 5.0 packets: bytes to [`Packet`] and back.
//!
//! The crate does no I/O, reads no clock and holds no session state. [`Decoder`] takes packets off
//! the front of a [`bytes::BytesMut`] as they become complete. Payload, binary fields and strings
//! of more than 31 bytes share that buffer's memory; shorter strings are copied ([`ByteStr`]).
//! [`Packet::encode`] appends a whole packet to a buffer; for PUBLISH, [`PublishHead`] encodes
//! everything but the payload, so that one payload serves any number of subscribers without being
//! copied.
//!
//! Decoding is strict: it refuses whatever the specification calls malformed, with a
//! [`DecodeError`], whose [`reason_code`](DecodeError::reason_code) is the one that MQTT 5.0 gives.
//!
//! | for | see |
//! |---|---|
//! | packets out of a stream of bytes | [`Decoder`], [`packet_len`], [`DecodeError`] |
//! | packets into bytes | [`Packet::encode`], [`PublishHead`], [`EncodeError`] |
//! | each packet's fields and properties | [`packet`] |
//! | topics and filters, checked once when they are made | [`TopicName`], [`TopicFilter`], [`SharedFilter`] |
//! | texts and numbers | [`ByteStr`], [`PacketId`], [`SubscriptionId`], [`QoS`], [`ReasonCode`], [`whole_seconds`] |
//!
//! ```
//! use bytes::BytesMut;
//! use mq_codec::{Decoder, Packet, Publish, TopicName, Version};
//!
//! let publish = Publish::new(TopicName::new("plant/7/temperature")?, "21.5");
//! let mut wire = BytesMut::new();
//! Packet::from(publish.clone()).encode(Version::V5, &mut wire)?;
//!
//! let mut decoder = Decoder::new(Some(Version::V5), 1 << 20);
//! let packet = decoder.decode(&mut wire)?.expect("the packet is complete");
//! assert_eq!(packet, Packet::from(publish));
//! assert_eq!(decoder.decode(&mut wire)?, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate has no cargo features. Clauses in these pages (`§3.3.2`, `[MQTT-3.3.2-2]`) are those of the
//! OASIS standard of MQTT 5.0. "Before 5.0" means versions 3.1 and 3.1.1.

mod byte_str;
mod decoder;
mod error;
mod ids;
mod interval;
mod limits;
pub mod packet;
mod packet_type;
mod props;
mod reason;
mod sparse;
mod sub_options;
mod topic;
mod topic_error;
mod version;
mod wire;

pub use byte_str::{ByteStr, StringError};
pub use decoder::{Decoder, packet_len};
pub use error::{DecodeError, EncodeError};
pub use ids::{PacketId, QoS, SubscriptionId};
pub use interval::whole_seconds;
pub use limits::MAX_REMAINING_LENGTH;
pub use packet::{
    Ack, AckProperties, Auth, AuthProperties, ConnAck, ConnAckProperties, Connect,
    ConnectProperties, Disconnect, DisconnectProperties, Packet, Publish, PublishHead,
    PublishProperties, SubAck, SubAckProperties, Subscribe, SubscribeProperties, UnsubAck,
    UnsubAckProperties, Unsubscribe, UnsubscribeProperties, Will, WillProperties,
};
pub use packet_type::PacketType;
pub use reason::ReasonCode;
pub use sparse::{Empty, Sparse};
pub use sub_options::{RetainHandling, Subscription, SubscriptionOptions};
pub use topic::{SharedFilter, TopicFilter, TopicName};
pub use topic_error::{TopicError, TopicErrorKind};
pub use version::Version;
