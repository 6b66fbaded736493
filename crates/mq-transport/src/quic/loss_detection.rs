//! Loss detection of connections with the default options (RFC 9002 §6.1), seen from outside, in virtual time.
//!
//! Two quinn state machines exchange datagrams over a link with a constant delay. Tests lose a chosen datagram, and
//! look at the instant at which its data is sent again.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use quinn_proto::{Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, StreamId};

use super::{
    config::{endpoint_config, transport_config},
    test_crypto::{client_crypto, server_crypto},
};
use crate::QuicOptions;

const ONE_WAY: Duration = Duration::from_millis(50);
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// 9/8 of the round trip.
const TIME_THRESHOLD: Duration = Duration::from_micros(112_500);
/// Error of the round-trip time that acknowledgements' delays, in steps of 8 µs, leave in the estimate.
const ERROR: Duration = Duration::from_micros(100);
const MESSAGE: [u8; 100] = [7; 100];

/// A side of the connection.
struct Side {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    peer: SocketAddr,
}

impl Side {
    fn connection(&mut self) -> &mut Connection {
        &mut self.connection.as_mut().unwrap().1
    }

    /// Returns the datagrams that are to be sent now.
    fn transmit(&mut self, now: Instant) -> Vec<BytesMut> {
        let mut datagrams = Vec::new();
        let Some((_, connection)) = &mut self.connection else {
            return datagrams;
        };
        let mut buffer = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
            datagrams.push(BytesMut::from(&buffer[..transmit.size]));
            buffer.clear();
        }
        datagrams
    }

    fn receive(&mut self, now: Instant, datagram: BytesMut) {
        let mut buffer = Vec::new();
        let event = self
            .endpoint
            .handle(now, self.peer, None, None, datagram, &mut buffer);
        match event {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut buffer, None);
                self.connection = Some(accepted.map_err(|error| error.cause).unwrap());
            }
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                self.connection().handle_event(event);
            }
            Some(DatagramEvent::Response(_)) => panic!("an answer without a connection"),
            None => {}
        }
        self.exchange_events();
    }

    /// Passes events between the connection and its endpoint, and drops those for the application.
    fn exchange_events(&mut self) {
        let Some((handle, connection)) = &mut self.connection else {
            return;
        };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(answer);
            }
        }
        while connection.poll().is_some() {}
    }
}

/// A client and a server, connected and idle.
struct Pair {
    now: Instant,
    /// Client and server.
    sides: [Side; 2],
    /// Datagrams under way, with the instant of arrival and the receiving side.
    wire: VecDeque<(Instant, usize, BytesMut)>,
    stream: StreamId,
}

impl Pair {
    fn new() -> Self {
        let options = QuicOptions {
            mtu_discovery: false,
            ..QuicOptions::default()
        };
        let transport = Arc::new(transport_config(&options, None).unwrap());
        let mut server = quinn_proto::ServerConfig::with_crypto(Arc::new(server_crypto()));
        server.transport_config(Arc::clone(&transport));
        let mut client = quinn_proto::ClientConfig::new(client_crypto(2));
        client.transport_config(transport);

        let now = Instant::now();
        let addresses: [SocketAddr; 2] = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into()];
        let config = Arc::new(endpoint_config(&options).unwrap());
        let side = |server, peer: SocketAddr| Side {
            endpoint: Endpoint::new(Arc::clone(&config), server, true, None),
            connection: None,
            peer,
        };
        let mut sides = [
            side(None, addresses[1]),
            side(Some(Arc::new(server)), addresses[0]),
        ];
        let connecting = sides[0]
            .endpoint
            .connect(now, client, addresses[1], "localhost");
        sides[0].connection = Some(connecting.unwrap());
        let mut pair = Self {
            now,
            sides,
            wire: VecDeque::new(),
            stream: StreamId::new(quinn_proto::Side::Client, Dir::Bi, 0),
        };
        pair.run(Duration::from_secs(1));
        let stream = pair.client().streams().open(Dir::Bi);
        assert_eq!(stream, Some(pair.stream), "connected");
        // Some round trips, so that the estimate is that of the link.
        for _ in 0..20 {
            for datagram in pair.write() {
                pair.send(datagram);
            }
            pair.run(Duration::from_secs(1));
        }
        let estimate = pair.client().rtt();
        assert!(estimate.abs_diff(ROUND_TRIP) < ERROR, "{estimate:?}");
        assert_eq!(pair.read(), 20 * MESSAGE.len());
        assert_eq!(pair.lost(), 0);
        pair
    }

    fn client(&mut self) -> &mut Connection {
        self.sides[0].connection()
    }

    fn server(&mut self) -> &mut Connection {
        self.sides[1].connection()
    }

    /// Returns the datagrams with the client's next message, which the network does not have yet.
    fn write(&mut self) -> Vec<BytesMut> {
        let stream = self.stream;
        let written = self.client().send_stream(stream).write(&MESSAGE);
        assert_eq!(written, Ok(MESSAGE.len()));
        let datagrams = self.sides[0].transmit(self.now);
        assert_eq!(datagrams.len(), 1, "a message is a packet");
        datagrams
    }

    /// Sends a datagram of the client.
    fn send(&mut self, datagram: BytesMut) {
        self.wire.push_back((self.now + ONE_WAY, 1, datagram));
    }

    /// Runs both sides and the network for a time.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            for (at, side) in self.sides.iter_mut().enumerate() {
                for datagram in side.transmit(self.now) {
                    self.wire.push_back((self.now + ONE_WAY, 1 - at, datagram));
                }
            }
            let arrival = self.wire.front().map(|(at, ..)| *at);
            let connections = self.sides.iter_mut().filter_map(|s| s.connection.as_mut());
            let timers = connections.filter_map(|(_, connection)| connection.poll_timeout());
            let next = timers.chain(arrival).min().filter(|next| *next <= end);
            let Some(next) = next else {
                self.now = end;
                return;
            };
            self.now = next.max(self.now);
            while self.wire.front().is_some_and(|(at, ..)| *at <= self.now) {
                let (_, to, datagram) = self.wire.pop_front().unwrap();
                self.sides[to].receive(self.now, datagram);
            }
            for side in &mut self.sides {
                if let Some((_, connection)) = &mut side.connection {
                    connection.handle_timeout(self.now);
                }
                side.exchange_events();
            }
        }
    }

    /// Returns the number of packets that the client declared lost.
    fn lost(&mut self) -> u64 {
        self.client().stats().path.lost_packets
    }

    /// Returns the number of STREAM frames that the server has processed.
    fn frames(&mut self) -> u64 {
        self.server().stats().frame_rx.stream
    }

    /// Reads what the server has received in order; returns the number of bytes.
    fn read(&mut self) -> usize {
        let stream = self.stream;
        let mut receive = self.server().recv_stream(stream);
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
        self.sides[1].receive(self.now, datagram.clone());
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
