//! The body of the fuzz target `decode`, which the tests of this crate run as well.

use bytes::BytesMut;
use mq_codec::{DecodeError, Decoder, Packet, StringError, TopicErrorKind, Version};

/// Decodes any bytes: the first says the version and the size limit, the second how many of the
/// others arrive at a time.
pub(crate) fn run(input: &[u8]) {
    let [how, chunk, wire @ ..] = input else {
        return;
    };
    let version = match how & 0b11 {
        0 => None,
        1 => Some(Version::V3_1),
        2 => Some(Version::V3_1_1),
        _ => Some(Version::V5),
    };
    let limit = match how >> 2 {
        0 => 1 << 16,
        small => small.into(),
    };
    in_chunks(version, limit, wire, 1 + usize::from(*chunk));
}

/// Decodes `wire` in one piece and in chunks, which has to give the same packets and the same
/// error; returns them.
pub(crate) fn in_chunks(
    version: Option<Version>,
    limit: u32,
    wire: &[u8],
    chunk: usize,
) -> (Vec<Packet>, Option<DecodeError>) {
    let decoder = Decoder::new(version, limit);
    let whole = decode_all(decoder.clone(), limit, [wire]);
    let cut = decode_all(decoder.clone(), limit, wire.chunks(chunk));
    assert_eq!(cut, whole, "in chunks of {chunk}");
    let mut strict = decoder;
    strict.refuse_disallowed_characters();
    check_strict(&decode_all(strict, limit, [wire]), &whole);
    whole
}

/// Checks that a decoder that refuses some characters decodes the same as another, up to the first of these.
fn check_strict(
    (packets, error): &(Vec<Packet>, Option<DecodeError>),
    (all, error_of_all): &(Vec<Packet>, Option<DecodeError>),
) {
    let text = match error {
        Some(DecodeError::String { error, .. }) => Some(TopicErrorKind::String(*error)),
        Some(
            DecodeError::TopicName(error)
            | DecodeError::WillTopic(error)
            | DecodeError::TopicFilter(error),
        ) => Some(error.kind()),
        _ => None,
    };
    match text {
        Some(TopicErrorKind::String(StringError::Disallowed)) => {
            assert!(all.starts_with(packets));
        }
        _ => assert_eq!((packets, error), (all, error_of_all)),
    }
}

/// Decodes what arrives chunk by chunk, up to the first error.
///
/// Whatever is decoded is encoded again and decoded to the same, and what is not yet decoded never
/// grows to the size limit: a packet that would is refused by its fixed header, of at most five
/// bytes.
fn decode_all<'a>(
    mut decoder: Decoder,
    limit: u32,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Packet>, Option<DecodeError>) {
    let (mut buffer, mut packets) = (BytesMut::new(), Vec::new());
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(packet)) => {
                    let version = decoder.version().expect("a packet was decoded");
                    check_again(&packet, version);
                    packets.push(packet);
                }
                Ok(None) => break,
                Err(error) => return (packets, Some(error)),
            }
        }
        assert!(buffer.len() < limit.max(5) as usize, "{buffer:02x?}");
    }
    (packets, None)
}

fn check_again(packet: &Packet, version: Version) {
    let mut wire = BytesMut::new();
    let encoded = packet.encode(version, &mut wire);
    assert_eq!(encoded, Ok(()), "{packet:?}");
    let again = Decoder::new(Some(version), u32::MAX).decode(&mut wire);
    assert_eq!(again.as_ref().map(Option::as_ref), Ok(Some(packet)));
    assert!(wire.is_empty(), "{packet:?} leaves {wire:02x?}");
}
