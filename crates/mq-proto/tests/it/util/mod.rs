//! A client and a server joined by a simulated network, with virtual time and one seed.

use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use mq_codec::{ByteStr, ConnAck, Connect, QoS, ReasonCode, TopicName, Version};
use mq_proto::{
    AckTicket, ClientConfig, CloseReason, Connection, Delivery, Event, LaneId, Message, Received,
    ServerConfig, Session,
};

/// Seeds of a test: `nightly` with `MQ_NIGHTLY`, a sixth of them without, or those that the environment names.
#[expect(clippy::print_stdout, reason = "the seeds of a failure are printed")]
pub(crate) fn seeds(nightly: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let usual = if std::env::var_os("MQ_NIGHTLY").is_some() {
        nightly
    } else {
        nightly / 6
    };
    let all = 0..number("MQ_SEEDS").unwrap_or(usual);
    let seeds = number("MQ_SEED").map_or(all, |seed| seed..seed + 1);
    println!("seeds {seeds:?}; MQ_SEED=n runs one, MQ_SEEDS=n so many");
    seeds
}

/// `SplitMix64`: small, seeded, and the same everywhere.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number less than `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "less than a usize")]
        let below = (self.next() % bound as u64) as usize;
        below
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A client or a server: a connection, its receive buffer, and its events.
pub(crate) struct End {
    pub(crate) connection: Connection,
    pub(crate) inbox: BytesMut,
    pub(crate) received: Vec<Received>,
    pub(crate) tickets: Vec<AckTicket>,
    pub(crate) acked: Vec<(u16, ReasonCode)>,
    pub(crate) closed: Option<CloseReason>,
    pub(crate) events: Vec<Event>,
}

impl End {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            inbox: BytesMut::new(),
            received: Vec::new(),
            tickets: Vec::new(),
            acked: Vec::new(),
            closed: None,
            events: Vec::new(),
        }
    }

    /// Handles the received bytes and sorts the events.
    pub(crate) fn take(&mut self, now: Instant) {
        self.connection
            .handle_bytes(now, LaneId::CONTROL, &mut self.inbox);
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Publish(mut received) => {
                    self.tickets.extend(received.ticket.take());
                    self.received.push(received);
                }
                Event::Acked {
                    packet_id, reason, ..
                } => self.acked.push((packet_id.get(), reason)),
                Event::Closed(reason) => self.closed = Some(reason),
                other => self.events.push(other),
            }
        }
    }

    pub(crate) fn ack_all(&mut self, now: Instant) {
        for ticket in self.tickets.drain(..) {
            self.connection.ack(now, ticket, ReasonCode::Success);
        }
    }
}

/// Client and server, one connection.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) client: End,
    pub(crate) server: End,
}

impl Pair {
    /// Makes two ends that have not spoken yet.
    pub(crate) fn new(
        now: Instant,
        client: ClientConfig,
        server: ServerConfig,
        client_session: Session,
    ) -> Self {
        Self {
            now,
            client: End::new(Connection::client(now, client, client_session)),
            server: End::new(Connection::server(now, server)),
        }
    }

    /// Makes two ends with an open connection.
    pub(crate) fn open(version: Version) -> Self {
        Self::open_with(
            ClientConfig::new(connect(version)),
            ServerConfig::default(),
            ConnAck::new(ReasonCode::Success),
        )
    }

    pub(crate) fn open_with(client: ClientConfig, server: ServerConfig, ack: ConnAck) -> Self {
        let mut pair = Self::new(Instant::now(), client, server, Session::new());
        pair.client.connection.connect(pair.now).unwrap();
        pair.exchange();
        pair.accept(Session::new(), ack);
        pair.exchange();
        assert!(pair.client.connection.is_open());
        assert!(pair.server.connection.is_open());
        pair
    }

    pub(crate) fn accept(&mut self, session: Session, ack: ConnAck) {
        let now = self.now;
        self.server.connection.accept(now, session, ack).unwrap();
        self.server.take(now);
    }

    /// Carries everything across until both are quiet.
    pub(crate) fn exchange(&mut self) {
        while self.carry(usize::MAX, usize::MAX) > 0 {}
    }

    /// Carries at most so many bytes to the server and to the client; returns how many.
    pub(crate) fn carry(&mut self, up: usize, down: usize) -> usize {
        let up = transfer(&mut self.client, &mut self.server, up);
        self.server.take(self.now);
        let down = transfer(&mut self.server, &mut self.client, down);
        self.client.take(self.now);
        up + down
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += by;
        self.client.connection.handle_timeout(self.now);
        self.server.connection.handle_timeout(self.now);
        self.client.take(self.now);
        self.server.take(self.now);
    }
}

fn transfer(from: &mut End, to: &mut End, limit: usize) -> usize {
    let mut moved = 0;
    while moved < limit {
        let Some(mut chunk) = from.connection.outbox().take(LaneId::CONTROL) else {
            break;
        };
        let count = chunk.bytes.len().min(limit - moved);
        to.inbox.extend_from_slice(&chunk.bytes[..count]);
        chunk.bytes.advance(count);
        from.connection.outbox().put_back(LaneId::CONTROL, chunk);
        moved += count;
    }
    moved
}

pub(crate) fn connect(version: Version) -> Connect {
    let mut connect = Connect::new(version, ByteStr::new("c1").unwrap());
    connect.clean_start = false;
    connect
}

pub(crate) fn delivery(payload: &str, qos: QoS) -> Delivery {
    let topic = TopicName::new("t/1").unwrap();
    Delivery::new(Message::new(topic, payload.to_owned()), qos)
}
