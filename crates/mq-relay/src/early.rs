//! The part of a client's bytes that may be sent before a handshake has ended.

use mq_codec::packet_len;
use mq_transport::EarlyDataPolicy;

/// Returns the number of bytes at the front of `bytes`, which follow CONNECT, that `policy` lets be early data: whole packets up to
/// the first that must not be acted on twice.
pub(crate) fn early_len(bytes: &[u8], policy: EarlyDataPolicy) -> usize {
    if policy != EarlyDataPolicy::Full {
        return 0;
    }
    let mut taken = 0;
    while let Some(size) = packet_len(&bytes[taken..]) {
        if taken + size > bytes.len() || !may_be_repeated(bytes[taken]) {
            break;
        }
        taken += size;
    }
    taken
}

/// Returns `true` if the packet with this first byte may be acted on twice: SUBSCRIBE, UNSUBSCRIBE, PINGREQ, and PUBLISH of QoS 0 and 1.
fn may_be_repeated(first: u8) -> bool {
    match first >> 4 {
        3 => (first >> 1) & 0b11 < 2,
        8 | 10 | 12 => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PINGREQ: &[u8] = &[0xC0, 0];
    const QOS_1: &[u8] = &[0x32, 5, 0, 1, b'a', 0, 1];
    const QOS_2: &[u8] = &[0x34, 5, 0, 1, b'a', 0, 1];
    const PUBREL: &[u8] = &[0x62, 2, 0, 1];

    #[test]
    fn whole_packets_before_the_first_of_qos_2_are_early() {
        let early = |packets: &[&[u8]]| early_len(&packets.concat(), EarlyDataPolicy::Full);
        assert_eq!(early(&[PINGREQ, QOS_1, QOS_2, PINGREQ]), 9);
        assert_eq!(early(&[PUBREL, PINGREQ]), 0);
        assert_eq!(early(&[QOS_1, &QOS_1[..6]]), 7);
        assert_eq!(early(&[QOS_1, &[0x30]]), 7);
        assert_eq!(early(&[QOS_1, &[0x30, 0xFF, 0xFF, 0xFF, 0xFF]]), 7);
        assert_eq!(early(&[]), 0);
    }

    #[test]
    fn nothing_behind_connect_is_early_unless_all_may_be() {
        for policy in [EarlyDataPolicy::Off, EarlyDataPolicy::Connect] {
            assert_eq!(early_len(PINGREQ, policy), 0);
        }
    }
}
