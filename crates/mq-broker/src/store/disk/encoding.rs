//! The encoding of values in the file: MQTT 5.0's on the wire, which has a field for nearly
//! everything, and a specification.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut as _, BytesMut};
use mq_codec::{
    ByteStr, Decoder, Packet, PacketId, Publish, QoS, SubscriptionId, SubscriptionOptions,
    TopicFilter, Version,
};
use mq_proto::Message;

use super::{
    super::{Life, StoredFlow, StoredMessage, User},
    file_error::FileError,
};

/// "Never" in the field of a time.
const NEVER: u64 = u64::MAX;

/// A bit in the field of a message's time: the message was routed by a shared subscription. No time
/// has this bit: it is 146 million years away.
const SHARED: u64 = 1 << 62;

/// The first bit of a lane's slot in the field of a message's time. No time has these bits: the
/// least of them is 4,000 years away.
const SLOT: u32 = 47;
const SLOT_MASK: u64 = 0x7FFF;

/// Bytes of a message's head: expiry, shared bit and slot. After PUBREC only the head of a message
/// is kept.
pub(super) const HEAD: usize = 8;

/// Encodes a message: its expiry in milliseconds since 1970, with the shared bit and the slot; then
/// a PUBLISH.
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
        // Any identifier: the message gets its own when it is sent.
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
    // A topic alias belongs to one connection, and is never kept.
    if packet.properties.topic_alias.is_some() {
        return Err(FileError::Damaged);
    }
    let mut subscription_ids = Vec::new();
    // The check avoids `&mut` of an absent list, which would allocate.
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

/// Combines expiry, shared bit and slot. "Never" has all bits set if the message is not shared and
/// has no slot, as in files of the first format.
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

/// Returns the slot of a message whose PUBREC was received; 0 in a file of the first format, which
/// kept nothing of it.
pub(super) fn read_released(bytes: &[u8]) -> Option<u16> {
    let head = bytes.first_chunk().filter(|_| bytes.len() == HEAD);
    match head {
        None if bytes.is_empty() => Some(0),
        head => head.map(|head| read_mark(u64::from_be_bytes(*head)).2),
    }
}

/// Encodes a flow: its slot, the seconds that it outlives its lane, and its end, "never" while it
/// has a lane. An end too far away for its milliseconds becomes the last time before "never".
pub(super) fn flow(kept: StoredFlow) -> (u16, u64, u64) {
    let expires_at = kept.expires_at.map(|at| milliseconds(at).min(NEVER - 1));
    let expires_at = expires_at.unwrap_or(NEVER);
    (kept.slot, kept.expiry.as_secs(), expires_at)
}

pub(super) fn read_flow((slot, expiry, expires_at): (u16, u64, u64)) -> StoredFlow {
    StoredFlow {
        slot,
        expiry: Duration::from_secs(expiry),
        expires_at: time(expires_at),
    }
}

/// Encodes a subscription: the options byte of SUBSCRIBE, and the subscription identifier; 0 for
/// none.
pub(super) fn subscription(options: SubscriptionOptions, id: Option<SubscriptionId>) -> (u8, u32) {
    (options.bits(Version::V5), id.map_or(0, SubscriptionId::get))
}

pub(super) fn read_subscription(
    (options, id): (u8, u32),
) -> Result<(SubscriptionOptions, Option<SubscriptionId>), FileError> {
    let options = SubscriptionOptions::from_bits(options, Version::V5)?;
    Ok((options, SubscriptionId::new(id)))
}

/// Encodes a life: its kind, and its milliseconds.
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

/// Encodes a user: its kind, and its name.
pub(super) fn user(user: &User) -> (u8, &str) {
    match user {
        User::Anonymous => (0, ""),
        User::Named(name) => (1, name),
    }
}

/// Reads a filter by the rules of 3.1.1, which accept filters of clients of every version.
pub(super) fn read_filter(text: &str) -> Result<TopicFilter, FileError> {
    TopicFilter::in_version(text, Version::V3_1_1).map_err(|_| FileError::Damaged)
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

/// Returns milliseconds since 1970, rounded up, so that no message expires earlier after a restart.
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

#[cfg(test)]
mod tests {
    use mq_codec::TopicName;
    use proptest::prelude::*;

    use super::*;

    /// The largest number of seconds that a peer can name: a variable-length integer of QUIC (RFC 9000 §16).
    const LONGEST: u64 = (1 << 62) - 1;

    /// Seconds, with the ends of their range, and those whose milliseconds exceed 47 and 64 bits,
    /// drawn often.
    fn seconds() -> impl Strategy<Value = u64> {
        let edges = [
            0,
            1,
            (1 << 47) / 1000,
            1 << 54,
            u64::MAX / 1000,
            1 << 56,
            LONGEST,
        ];
        prop_oneof![
            proptest::sample::select(edges.to_vec()),
            0..=u64::from(u32::MAX),
            0..=LONGEST
        ]
    }

    fn moment() -> impl Strategy<Value = Option<SystemTime>> {
        let moment = (seconds(), 0..1_000_000_000_u32);
        let moment = moment.prop_map(|(seconds, nanos)| UNIX_EPOCH + Duration::new(seconds, nanos));
        proptest::option::of(moment)
    }

    /// Returns `true` if a time was kept to the millisecond, rounded up. A time from `far` seconds
    /// on may be read as any other time from there on.
    fn is_kept(at: SystemTime, read: SystemTime, far: u64) -> bool {
        let far = UNIX_EPOCH + Duration::from_secs(far);
        at <= read && read.duration_since(at).unwrap() < Duration::from_millis(1)
            || at >= far && read >= far
    }

    proptest! {
        #[test]
        fn a_flow_is_read_as_it_was_written(slot in 1..=0x7FFF_u16, expiry in seconds(), expires_at in moment()) {
            let kept = StoredFlow { slot, expiry: Duration::from_secs(expiry), expires_at };
            let read = read_flow(flow(kept));
            prop_assert_eq!((read.slot, read.expiry), (kept.slot, kept.expiry));
            match (expires_at, read.expires_at) {
                (None, None) => {}
                (Some(at), Some(read)) => prop_assert!(is_kept(at, read, u64::MAX / 1000)),
                (at, read) => prop_assert!(false, "{at:?} became {read:?}"),
            }
        }

        #[test]
        fn a_sessions_life_is_read_as_it_was_written(expiry in proptest::option::of(seconds()), expires_at in moment()) {
            let written = Life::Connected(expiry.map(Duration::from_secs));
            match (written, read_life(life(written)).unwrap()) {
                (Life::Connected(Some(long)), Life::Connected(None)) => {
                    prop_assert!(long.as_secs() >= u64::MAX / 1000);
                }
                (written, read) => prop_assert_eq!(written, read),
            }
            match (expires_at, read_life(life(Life::Away(expires_at))).unwrap()) {
                (None, Life::Away(None)) => {}
                (Some(at), Life::Away(None)) => {
                    prop_assert!(at >= UNIX_EPOCH + Duration::from_secs(u64::MAX / 1000));
                }
                (Some(at), Life::Away(Some(read))) => prop_assert!(is_kept(at, read, u64::MAX / 1000)),
                (at, read) => prop_assert!(false, "{at:?} became {read:?}"),
            }
        }

        #[test]
        fn a_message_is_read_as_it_was_written(
            expires_at in moment(),
            shared: bool,
            retain: bool,
            slot in prop_oneof![Just(0), Just(0x7FFF), 0..=0x7FFF_u16],
            qos in 0..3_u8,
            ids in proptest::collection::vec(1..=268_435_455_u32, 0..3),
            topic in prop_oneof![Just(1), Just(65_535), 1..2000_usize],
            payload in prop_oneof![Just(0), 0..5000_usize],
        ) {
            let topic = TopicName::new("t".repeat(topic)).unwrap();
            let written = StoredMessage {
                message: Message::new(topic, vec![7; payload]).into(),
                qos: QoS::from_bits(qos).unwrap(),
                retain,
                subscription_ids: ids.into_iter().map(|id| SubscriptionId::new(id).unwrap()).collect(),
                expires_at,
                shared,
                slot,
            };
            let read = read_message(&message(&written).unwrap()).unwrap();
            match (expires_at, read.expires_at) {
                (None, None) => {}
                (Some(at), None) => prop_assert!(at >= UNIX_EPOCH + Duration::from_millis(1 << SLOT) - Duration::from_millis(1)),
                (Some(at), Some(read)) => prop_assert!(is_kept(at, read, LONGEST)),
                (at, read) => prop_assert!(false, "{at:?} became {read:?}"),
            }
            prop_assert_eq!(StoredMessage { expires_at, ..read }, written);
        }
    }
}
