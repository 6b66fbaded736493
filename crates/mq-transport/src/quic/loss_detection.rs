//! Loss detection of connections with the default options (RFC 9002), seen from outside, in virtual time.
//!
//! Tests lose a chosen datagram, and look at the instant at which its data is sent again.

use std::time::Duration;

use bytes::BytesMut;
use quinn_proto::{Dir, StreamId};

use super::{
    test_crypto::{client_crypto, server_crypto},
    virtual_pair::{ONE_WAY, VirtualPair},
};

const ROUND_TRIP: Duration = Duration::from_millis(100);
/// 9/8 of the round trip.
const TIME_THRESHOLD: Duration = Duration::from_micros(112_500);
/// Error of the round-trip time that acknowledgements' delays, in steps of 8 µs, leave in the estimate.
const ERROR: Duration = Duration::from_micros(100);
const MESSAGE: [u8; 100] = [7; 100];

/// A client and a server, connected and idle, with a stream of the client.
struct Pair {
    sides: VirtualPair,
    stream: StreamId,
}

impl Pair {
    fn new() -> Self {
        let stream = StreamId::new(quinn_proto::Side::Client, Dir::Bi, 0);
        let sides = VirtualPair::new(server_crypto(), client_crypto(2));
        let mut pair = Self { sides, stream };
        pair.run(Duration::from_secs(1));
        let opened = pair.sides.client().streams().open(Dir::Bi);
        assert_eq!(opened, Some(stream), "connected");
        // Some round trips, so that the estimate is that of the link.
        for _ in 0..20 {
            for datagram in pair.write() {
                pair.send(datagram);
            }
            pair.run(Duration::from_secs(1));
        }
        let estimate = pair.sides.client().rtt();
        assert!(estimate.abs_diff(ROUND_TRIP) < ERROR, "{estimate:?}");
        assert_eq!(pair.read(), 20 * MESSAGE.len());
        assert_eq!(pair.lost(), 0);
        pair
    }

    fn run(&mut self, time: Duration) {
        self.sides.run(time);
    }

    /// Returns the datagrams with the client's next message, which the network does not have yet.
    fn write(&mut self) -> Vec<BytesMut> {
        let stream = self.stream;
        let written = self.sides.client().send_stream(stream).write(&MESSAGE);
        assert_eq!(written, Ok(MESSAGE.len()));
        let datagrams = self.sides.transmit_client();
        assert_eq!(datagrams.len(), 1, "a message is a packet");
        datagrams
    }

    /// Sends a datagram of the client.
    fn send(&mut self, datagram: BytesMut) {
        self.sides.send_to_server(datagram);
    }

    /// Returns the number of packets that the client declared lost.
    fn lost(&mut self) -> u64 {
        self.sides.client().stats().path.lost_packets
    }

    /// Returns the number of STREAM frames that the server has processed.
    fn frames(&mut self) -> u64 {
        self.sides.server().stats().frame_rx.stream
    }

    /// Reads what the server has received in order; returns the number of bytes.
    fn read(&mut self) -> usize {
        let stream = self.stream;
        let mut receive = self.sides.server().recv_stream(stream);
        let mut chunks = receive.read(true).unwrap();
        let mut bytes = 0;
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            bytes += chunk.bytes.len();
        }
        let _ = chunks.finalize();
        bytes
    }

    /// Hands the server a datagram of the client once more.
    fn deliver(&mut self, datagram: &BytesMut) {
        self.sides.deliver_to_server(datagram.clone());
    }
}

/// Packet threshold (RFC 9002 §6.1.1, `kPacketThreshold` = 3): a packet is lost once a packet that was sent three later is
/// acknowledged. Two later ones are within the network's reordering.
#[test]
fn a_packet_is_lost_when_the_third_later_one_is_acknowledged() {
    for (later, lost) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
        let mut pair = Pair::new();
        drop(pair.write());
        for _ in 0..later {
            for datagram in pair.write() {
                pair.send(datagram);
            }
        }
        // All are sent at one instant, so that the acknowledgements arrive a round trip later: before the time
        // threshold.
        pair.run(ROUND_TRIP);
        assert_eq!(pair.lost(), lost, "{later} later packets are acknowledged");
        assert_eq!(pair.read(), 0, "{later}: the first message is missing");
        pair.run(ONE_WAY);
        let expected = if lost > 0 {
            (later + 1) * MESSAGE.len()
        } else {
            0
        };
        assert_eq!(pair.read(), expected, "{later}: one way after the loss");
    }
}

/// Time threshold (RFC 9002 §6.1.2, `kTimeThreshold` = 9/8): a packet is lost 9/8 of the round trip after it was sent, if a
/// later packet is acknowledged.
#[test]
fn a_packet_is_lost_nine_eighths_of_the_round_trip_after_it_was_sent() {
    for later in [1, 2] {
        let mut pair = Pair::new();
        drop(pair.write());
        for _ in 0..later {
            for datagram in pair.write() {
                pair.send(datagram);
            }
        }
        pair.run(TIME_THRESHOLD.saturating_sub(ERROR));
        assert_eq!(pair.lost(), 0, "{later} later packets");
        pair.run(2 * ERROR);
        assert_eq!(pair.lost(), 1, "{later} later packets");
        pair.run(ONE_WAY);
        assert_eq!(pair.read(), (later + 1) * MESSAGE.len());
    }
}

/// Retransmission in a new packet (RFC 9000 §13.3, RFC 9002 §3): the lost packet is never sent again, its data is, under a
/// number of its own. A server that gets both processes both, and drops a second copy of either.
#[test]
fn lost_data_is_sent_again_in_a_packet_with_a_new_number() {
    let mut pair = Pair::new();
    let first = pair.write().remove(0);
    for _ in 0..3 {
        for datagram in pair.write() {
            pair.send(datagram);
        }
    }
    pair.run(ROUND_TRIP + ONE_WAY);
    assert_eq!((pair.lost(), pair.read()), (1, 4 * MESSAGE.len()));
    let before = pair.frames();
    pair.deliver(&first);
    assert_eq!(pair.frames(), before + 1, "its number is still unused");
    pair.deliver(&first);
    assert_eq!(pair.frames(), before + 1, "its number is used");
    assert_eq!(pair.read(), 0, "no byte twice");
}

/// Handshakes with a `ServerHello` of two packets and a certificate that fills the congestion window.
#[cfg(feature = "aws-lc-rs")]
mod large_handshakes {
    use std::time::Duration;

    use fastrand::Rng;
    use quinn_proto::Side;

    use super::super::{
        test_crypto::{client_crypto_of, server_crypto_of},
        virtual_pair::{ONE_WAY, VirtualPair},
    };
    use crate::KeyExchangeGroup::X25519MlKem768;

    /// Bytes that certificates of ML-DSA have more than those of P-256.
    const PADDING: usize = 10_000;
    /// Time after which a connection has failed.
    const PATIENCE: Duration = Duration::from_mins(2);

    fn pair() -> VirtualPair {
        VirtualPair::new(
            server_crypto_of(X25519MlKem768, PADDING),
            client_crypto_of(2, X25519MlKem768),
        )
    }

    #[test]
    fn a_lost_first_half_of_the_server_hello_is_sent_again() {
        let mut pair = pair();
        let mut sent = 0;
        pair.lose(move |side| {
            sent += u32::from(side == Side::Server);
            side == Side::Server && sent == 1
        });
        let took = pair.run_handshake(PATIENCE);
        // The time-out of the client's first packet (RFC 9002 §6.2.2) and five one-way delays: 1.249 s.
        let most = Duration::from_secs(1) + 5 * ONE_WAY;
        assert!(took.is_some_and(|took| took <= most), "{took:?}");
    }

    #[test]
    fn handshakes_with_large_certificates_end_whatever_is_lost() {
        let first = fastrand::u64(..u64::MAX - 100);
        println!("seed {first}");
        for seed in first..first + 100 {
            let mut random = Rng::with_seed(seed);
            let mut pair = pair();
            pair.lose(move |_| random.u8(..10) == 0);
            assert!(pair.run_handshake(PATIENCE).is_some(), "seed {seed}");
        }
    }
}
