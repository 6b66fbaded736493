//! The form of values in the file: that of MQTT 5.0 on the wire, which has a place for nearly
//! everything, and a specification.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut as _, BytesMut};
use mq_codec::{
    ByteStr, Decoder, Packet, PacketId, Publish, QoS, SubscriptionId, SubscriptionOptions, Version,
};
use mq_proto::Message;

use super::{
    super::{Life, StoredFlow, StoredMessage, User},
    file_error::FileError,
};

/// Stands for "never" in the place of a time.
const NEVER: u64 = u64::MAX;

/// In the place of a message's time: the message came by a shared subscription. No time has this bit:
/// it is 146 million years away.
const SHARED: u64 = 1 << 62;

/// In the place of a message's time, from this bit on: the slot of its lane. No time has these bits: the
/// least of them is 4,000 years away.
const SLOT: u32 = 47;
const SLOT_MASK: u64 = 0x7FFF;

/// Of a message whose PUBREC has come only this is kept.
pub(super) const HEAD: usize = 8;

/// When it expires, in milliseconds since 1970, whether it is shared, and its slot; then a PUBLISH.
pub(super) fn message(message: &StoredMessage) -> Result<Vec<u8>, FileError> {
    let StoredMessage {
        message,
        qos,
        retain,
        subscription_ids,
        expires_at,
        shared,
        slot,
    } = message;
    let packet = Publish {
        topic: message.topic.clone(),
        payload: message.payload.clone(),
        properties: message.properties.clone(),
        qos: *qos,
        retain: *retain,
        // Without meaning: the message gets one when it is sent.
        packet_id: (*qos > QoS::AtMostOnce).then_some(PacketId::FIRST),
        ..Publish::default()
    };
    let mut head = packet.head();
    head.topic_alias = None;
    head.subscription_ids = subscription_ids;
    let mut out = BytesMut::with_capacity(HEAD + head.packet_size(Version::V5));
    out.put_u64(mark(*expires_at, *shared, *slot));
    head.encode(Version::V5, &mut out)?;
    out.put_slice(&packet.payload);
    Ok(out.into())
}

pub(super) fn read_message(bytes: &[u8]) -> Result<StoredMessage, FileError> {
    let (head, packet) = bytes.split_first_chunk().ok_or(FileError::Damaged)?;
    let (expires_at, shared, slot) = read_mark(u64::from_be_bytes(*head));
    let Packet::Publish(mut packet) = decode(packet)? else {
        return Err(FileError::Damaged);
    };
    // An alias is for the connection that the message came by.
    if packet.properties.topic_alias.is_some() {
        return Err(FileError::Damaged);
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
        expires_at,
        shared,
        slot,
    })
}

/// "Never" has all bits set if the message is not shared and has no slot: as it was before there were any.
fn mark(expires_at: Option<SystemTime>, shared: bool, slot: u16) -> u64 {
    let expires_at = expires_at.map_or(NEVER, milliseconds);
    let expires_at = if expires_at >> SLOT > 0 {
        NEVER
    } else {
        expires_at
    };
    let shared = if shared { SHARED } else { 0 };
    expires_at ^ shared ^ (u64::from(slot) & SLOT_MASK) << SLOT
}

fn read_mark(mark: u64) -> (Option<SystemTime>, bool, u16) {
    let is_never = mark >> 63 > 0;
    let bits = if is_never { !mark } else { mark };
    let slot = bits >> SLOT & SLOT_MASK;
    let expires_at = if is_never {
        None
    } else {
        time(mark & ((1 << SLOT) - 1))
    };
    let slot = u16::try_from(slot).unwrap_or_default();
    (expires_at, bits & SHARED > 0, slot)
}

/// The slot of a message whose PUBREC has come: an earlier version kept nothing of it.
pub(super) fn read_released(bytes: &[u8]) -> Option<u16> {
    let head = bytes.first_chunk().filter(|_| bytes.len() == HEAD);
    match head {
        None if bytes.is_empty() => Some(0),
        head => head.map(|head| read_mark(u64::from_be_bytes(*head)).2),
    }
}

/// Slot, seconds after its lane, and when it ends.
pub(super) fn flow(kept: StoredFlow) -> (u16, u64, u64) {
    let expires_at = kept.expires_at.map_or(NEVER, milliseconds);
    (kept.slot, kept.expiry.as_secs(), expires_at)
}

pub(super) fn read_flow((slot, expiry, expires_at): (u16, u64, u64)) -> StoredFlow {
    StoredFlow {
        slot,
        expiry: Duration::from_secs(expiry),
        expires_at: time(expires_at),
    }
}

/// The byte behind the filter in SUBSCRIBE, and the subscription identifier; 0 for none.
pub(super) fn subscription(options: SubscriptionOptions, id: Option<SubscriptionId>) -> (u8, u32) {
    (options.bits(Version::V5), id.map_or(0, SubscriptionId::get))
}

pub(super) fn read_subscription(
    (options, id): (u8, u32),
) -> Result<(SubscriptionOptions, Option<SubscriptionId>), FileError> {
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

pub(super) fn read_life((kind, number): (u8, u64)) -> Result<Life, FileError> {
    match kind {
        0 => Ok(Life::Connected(
            (number != NEVER).then(|| Duration::from_millis(number)),
        )),
        1 => Ok(Life::Away(time(number))),
        _ => Err(FileError::Damaged),
    }
}

/// What kind of user, and its name.
pub(super) fn user(user: &User) -> (u8, &str) {
    match user {
        User::Anonymous => (0, ""),
        User::Named(name) => (1, name),
    }
}

pub(super) fn read_user((kind, name): (u8, &str)) -> Result<User, FileError> {
    match (kind, name) {
        (0, "") => Ok(User::Anonymous),
        (1, name) => {
            let name = ByteStr::new(name).map_err(|_| FileError::Damaged)?;
            Ok(User::Named(name))
        }
        _ => Err(FileError::Damaged),
    }
}

fn decode(bytes: &[u8]) -> Result<Packet, FileError> {
    let mut buffer = BytesMut::from(bytes);
    let packet = Decoder::new(Some(Version::V5), u32::MAX).decode(&mut buffer)?;
    packet
        .filter(|_| buffer.is_empty())
        .ok_or(FileError::Damaged)
}

/// Rounded up, so that no message expires earlier by being kept.
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
