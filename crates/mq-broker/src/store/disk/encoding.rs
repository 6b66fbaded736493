//! How values stand in the file: as MQTT 5.0 has them on the wire, which has a place for nearly
//! everything, and a specification.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut as _, BytesMut};
use mq_codec::{
    Decoder, Packet, PacketId, Publish, QoS, SubscriptionId, SubscriptionOptions, Version,
};
use mq_proto::Message;

use super::{
    super::{Life, StoredMessage},
    tables::Failed,
};

/// Stands for "never" in the place of a time.
const NEVER: u64 = u64::MAX;

/// When it expires, in milliseconds since 1970; then a PUBLISH.
pub(super) fn message(message: &StoredMessage) -> Result<Vec<u8>, Failed> {
    let StoredMessage {
        message,
        qos,
        retain,
        subscription_ids,
        expires_at,
    } = message;
    let packet = Publish {
        topic: message.topic.clone(),
        payload: message.payload.clone(),
        properties: message.properties.clone(),
        qos: *qos,
        retain: *retain,
        // Of no meaning: it gets one when it is sent.
        packet_id: (*qos > QoS::AtMostOnce).then_some(PacketId::FIRST),
        ..Publish::default()
    };
    let mut head = packet.head();
    head.topic_alias = None;
    head.subscription_ids = subscription_ids;
    let mut out = BytesMut::with_capacity(8 + head.packet_size(Version::V5));
    out.put_u64(expires_at.map_or(NEVER, milliseconds));
    head.encode(Version::V5, &mut out)?;
    out.put_slice(&packet.payload);
    Ok(out.into())
}

pub(super) fn read_message(bytes: &[u8]) -> Result<StoredMessage, Failed> {
    let (expires_at, packet) = bytes.split_first_chunk().ok_or(Failed::Damaged)?;
    let Packet::Publish(mut packet) = decode(packet)? else {
        return Err(Failed::Damaged);
    };
    // It meant something on the connection that the message came by.
    if packet.properties.topic_alias.is_some() {
        return Err(Failed::Damaged);
    }
    let mut subscription_ids = Vec::new();
    // Only then: `&mut` would allocate.
    if !packet.properties.subscription_ids.is_empty() {
        core::mem::swap(
            &mut subscription_ids,
            &mut packet.properties.subscription_ids,
        );
    }
    Ok(StoredMessage {
        message: Message {
            topic: packet.topic,
            payload: packet.payload,
            properties: packet.properties,
        }
        .into(),
        qos: packet.qos,
        retain: packet.retain,
        subscription_ids,
        expires_at: time(u64::from_be_bytes(*expires_at)),
    })
}

/// The byte behind the filter in SUBSCRIBE, and the subscription identifier; 0 for none.
pub(super) fn subscription(options: SubscriptionOptions, id: Option<SubscriptionId>) -> (u8, u32) {
    (options.bits(Version::V5), id.map_or(0, SubscriptionId::get))
}

pub(super) fn read_subscription(
    (options, id): (u8, u32),
) -> Result<(SubscriptionOptions, Option<SubscriptionId>), Failed> {
    let options = SubscriptionOptions::from_bits(options, Version::V5)?;
    Ok((options, SubscriptionId::new(id)))
}

/// What kind of life, and its milliseconds.
pub(super) fn life(life: Life) -> (u8, u64) {
    match life {
        Life::Connected(expiry) => (0, expiry.map_or(NEVER, of_duration)),
        Life::Away(expires_at) => (1, expires_at.map_or(NEVER, milliseconds)),
    }
}

pub(super) fn read_life((kind, number): (u8, u64)) -> Result<Life, Failed> {
    match kind {
        0 => Ok(Life::Connected(
            (number != NEVER).then(|| Duration::from_millis(number)),
        )),
        1 => Ok(Life::Away(time(number))),
        _ => Err(Failed::Damaged),
    }
}

fn decode(bytes: &[u8]) -> Result<Packet, Failed> {
    let mut buffer = BytesMut::from(bytes);
    let packet = Decoder::new(Some(Version::V5), u32::MAX).decode(&mut buffer)?;
    packet.filter(|_| buffer.is_empty()).ok_or(Failed::Damaged)
}

/// Rounded up: a message does not expire earlier by being kept.
fn milliseconds(at: SystemTime) -> u64 {
    of_duration(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn of_duration(time: Duration) -> u64 {
    let whole = time.as_nanos().div_ceil(1_000_000);
    u64::try_from(whole).unwrap_or(NEVER)
}

fn time(milliseconds: u64) -> Option<SystemTime> {
    (milliseconds != NEVER)
        .then(|| UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)))
        .flatten()
}
