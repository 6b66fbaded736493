//! Two quinn state machines with this crate's options that exchange datagrams over a link with a constant delay, in
//! virtual time, for unit tests.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use quinn::crypto::{ClientConfig, rustls::QuicServerConfig};
use quinn_proto::{Connection, ConnectionHandle, DatagramEvent, Endpoint};

use super::config::{endpoint_config, transport_config};
use crate::QuicOptions;

/// Delay of the link.
pub(super) const ONE_WAY: Duration = Duration::from_millis(50);

const CLIENT: usize = 0;
const SERVER: usize = 1;

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

/// A client that has begun to connect, and its server.
pub(super) struct VirtualPair {
    start: Instant,
    now: Instant,
    /// Client and server.
    sides: [Side; 2],
    /// Datagrams under way, with the instant of arrival and the receiving side.
    wire: VecDeque<(Instant, usize, BytesMut)>,
    /// Says of each datagram, by the side that sends it, whether it is lost.
    loses: Box<dyn FnMut(quinn_proto::Side) -> bool>,
}

impl VirtualPair {
    pub(super) fn new(server: QuicServerConfig, client: Arc<dyn ClientConfig>) -> Self {
        let options = QuicOptions::default();
        let transport = Arc::new(transport_config(&options, None).unwrap());
        let mut server = quinn_proto::ServerConfig::with_crypto(Arc::new(server));
        server.transport_config(Arc::clone(&transport));
        let mut client = quinn_proto::ClientConfig::new(client);
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
            side(None, addresses[SERVER]),
            side(Some(Arc::new(server)), addresses[CLIENT]),
        ];
        let connecting =
            sides[CLIENT]
                .endpoint
                .connect(now, client, addresses[SERVER], "localhost");
        sides[CLIENT].connection = Some(connecting.unwrap());
        Self {
            start: now,
            now,
            sides,
            wire: VecDeque::new(),
            loses: Box::new(|_| false),
        }
    }

    /// Loses from now on the datagrams of which `loses` says so, given the side that sends.
    pub(super) fn lose(&mut self, loses: impl FnMut(quinn_proto::Side) -> bool + 'static) {
        self.loses = Box::new(loses);
    }

    pub(super) fn client(&mut self) -> &mut Connection {
        self.sides[CLIENT].connection()
    }

    pub(super) fn server(&mut self) -> &mut Connection {
        self.sides[SERVER].connection()
    }

    /// Returns the datagrams that the client sends now, and that the network does not have yet.
    pub(super) fn transmit_client(&mut self) -> Vec<BytesMut> {
        self.sides[CLIENT].transmit(self.now)
    }

    /// Sends a datagram of the client.
    pub(super) fn send_to_server(&mut self, datagram: BytesMut) {
        self.wire.push_back((self.now + ONE_WAY, SERVER, datagram));
    }

    /// Hands the server a datagram of the client at once.
    pub(super) fn deliver_to_server(&mut self, datagram: BytesMut) {
        self.sides[SERVER].receive(self.now, datagram);
    }

    /// Runs both sides and the network for a time.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
    }

    /// Runs both sides and the network until both have completed the handshake, `time` at most. Returns how long it took.
    pub(super) fn run_handshake(&mut self, time: Duration) -> Option<Duration> {
        let end = self.now + time;
        loop {
            let connected = self.sides.iter().all(|side| {
                let connection = side.connection.as_ref();
                connection.is_some_and(|(_, connection)| !connection.is_handshaking())
            });
            if connected {
                return Some(self.now - self.start);
            }
            if !self.step(end) {
                return None;
            }
        }
    }

    /// Lets both sides send, and goes on to the next event. Returns `false` if there is none until `end`.
    fn step(&mut self, end: Instant) -> bool {
        for (at, side) in self.sides.iter_mut().enumerate() {
            let from = [quinn_proto::Side::Client, quinn_proto::Side::Server][at];
            for datagram in side.transmit(self.now) {
                if !(self.loses)(from) {
                    self.wire.push_back((self.now + ONE_WAY, 1 - at, datagram));
                }
            }
        }
        let arrival = self.wire.front().map(|(at, ..)| *at);
        let connections = self.sides.iter_mut().filter_map(|s| s.connection.as_mut());
        let timers = connections.filter_map(|(_, connection)| connection.poll_timeout());
        let next = timers.chain(arrival).min().filter(|next| *next <= end);
        let Some(next) = next else {
            return false;
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
        true
    }
}
