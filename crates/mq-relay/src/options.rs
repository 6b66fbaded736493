//! Options of a relay.

#[cfg(feature = "quic")]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{num::NonZeroUsize, time::Duration};

use mq_transport::{
    Address, ConnectOptions, EarlyDataPolicy, Error, ListenOptions, ProxyHeader, ProxyVersion,
    QuicOptions,
};

/// Longest time that the broker has to answer: about 30 years, which every system's clock can add to the present.
const LONGEST: Duration = Duration::from_hours(30 * 365 * 24);

/// Silence towards the broker over QUIC after which a PING frame is sent. Many NATs forget UDP after 30 s, some after 20 s (RFC 4787 asks
/// for 2 minutes), and a client's messages from the broker then wait for the client's next packet: its keep-alive may be an hour.
const NAT_KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Options of a [`Relay`](crate::Relay). [`Duration::MAX`] means no limit.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// Addresses to listen at, at least one.
    pub listen: Vec<Address>,
    /// Options of the listeners. Early data of clients is [`ListenOptions::early_data`]. Whatever the options say, QUIC clients
    /// get one stream and no datagrams (see [the crate](crate)), and tickets become valid once there is a connection to the
    /// broker ([`ListenOptions::hold_tickets`]).
    pub listen_options: ListenOptions,
    /// Addresses of the upstream broker, at least one, the preferred one first. They are tried as RFC 8305 has it.
    pub upstream: Vec<Address>,
    /// Options of the connections to the upstream broker. [`connect_timeout`](ConnectOptions::connect_timeout) also bounds the time until
    /// the broker's first byte, and [`early_data`](ConnectOptions::early_data) follows [`early`](Self::early). Over QUIC
    /// [`keep_alive_interval`](QuicOptions::keep_alive_interval) is 15 s where it is `None`, which keeps the bindings of NATs, and at most
    /// half of the idle timeout.
    pub connect_options: ConnectOptions,
    /// Early data to the upstream broker: CONNECT alone, or also what follows up to the first packet that must not be acted on twice.
    /// Default: CONNECT.
    pub early: EarlyDataPolicy,
    /// PROXY header in front of each connection to the upstream broker, with the client's address; version 2 also has the common name
    /// of the client's certificate. Upstream addresses over QUIC are then refused, and early data of a QUIC client whose address could be
    /// forged waits for the end of the handshake. Default: none.
    pub proxy_protocol: Option<ProxyVersion>,
    /// Time that an address of the upstream broker has before the next is tried as well. Default: 500 ms.
    pub head_start: Duration,
    /// Time for which a network is remembered where the first address has lost. Default: 10 minutes.
    pub fallback_memory: Duration,
    /// Time that a client has for its handshake, and for its CONNECT. Default: 10 s.
    pub connect_time: Duration,
    /// Greatest number of clients. Default: 10,000.
    pub connections: usize,
    /// Greatest number of clients of one IPv4 address, or of one IPv6 network of 64 bits. Default: no limit of its own.
    pub connections_per_address: Option<NonZeroUsize>,
    /// Bytes by which the flow-control windows of all QUIC clients together may grow, from the 32 KiB that each has at first. A window is
    /// memory that a client can make the relay hold. [`ListenOptions::window_memory`] goes before it. Default: 64 MiB.
    #[cfg(feature = "quic")]
    pub window_memory: usize,
    /// Greatest number of connections to the upstream broker that are being made at once; further clients wait. Default: 64.
    pub dials: NonZeroUsize,
}

impl RelayOptions {
    /// Makes options with the defaults.
    #[must_use]
    pub fn new(
        listen: impl IntoIterator<Item = Address>,
        upstream: impl IntoIterator<Item = Address>,
    ) -> Self {
        Self {
            listen: listen.into_iter().collect(),
            listen_options: ListenOptions::default(),
            upstream: upstream.into_iter().collect(),
            connect_options: ConnectOptions::default(),
            early: EarlyDataPolicy::Connect,
            proxy_protocol: None,
            head_start: Duration::from_millis(500),
            fallback_memory: Duration::from_mins(10),
            connect_time: Duration::from_secs(10),
            connections: 10_000,
            connections_per_address: None,
            #[cfg(feature = "quic")]
            window_memory: 64 << 20,
            dials: const { NonZeroUsize::new(64).unwrap() },
        }
    }

    /// Checks that each connection to the upstream broker can be made as the options say.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.proxy_protocol {
            Some(_) => self
                .upstream
                .iter()
                .try_for_each(ProxyHeader::check_address),
            None => Ok(()),
        }
    }

    /// Returns the time that the broker has for its first byte from the client's CONNECT on.
    pub(crate) fn answer_time(&self) -> Duration {
        self.connect_options.connect_timeout.min(LONGEST)
    }

    /// Returns the options of the listeners that a relay uses.
    pub(crate) fn front(&self) -> ListenOptions {
        let options = self.listen_options.clone();
        ListenOptions {
            // A client that sends no CONNECT must not evict the tickets of others.
            hold_tickets: true,
            quic: QuicOptions {
                // The control stream.
                max_bidi_streams: 1,
                ..one_stream(options.quic)
            },
            #[cfg(feature = "quic")]
            window_memory: options.window_memory.clone().or_else(|| {
                let budget = WindowBudget::new(self.window_memory);
                Some(std::sync::Arc::new(budget))
            }),
            ..options
        }
    }

    /// Returns the options of the upstream connections that a relay uses.
    pub(crate) fn back(&self) -> ConnectOptions {
        let options = self.connect_options.clone();
        ConnectOptions {
            early_data: self.early != EarlyDataPolicy::Off,
            quic: QuicOptions {
                max_bidi_streams: 0,
                keep_alive_interval: Some(keep_alive(&options.quic)),
                ..one_stream(options.quic)
            },
            ..options
        }
    }
}

/// Returns the silence towards the broker after which a PING frame is sent.
fn keep_alive(quic: &QuicOptions) -> Duration {
    let wanted = quic.keep_alive_interval.unwrap_or(NAT_KEEP_ALIVE);
    let half = quic.idle_timeout.map(|idle| idle / 2);
    half.map_or(wanted, |half| half.min(wanted))
}

fn one_stream(quic: QuicOptions) -> QuicOptions {
    QuicOptions {
        max_uni_streams: 0,
        datagram_buffer: 0,
        ..quic
    }
}

/// Bytes by which the windows of all QUIC clients have grown.
#[cfg(feature = "quic")]
#[derive(Debug)]
struct WindowBudget {
    used: AtomicUsize,
    most: usize,
}

#[cfg(feature = "quic")]
impl WindowBudget {
    fn new(most: usize) -> Self {
        let used = AtomicUsize::new(0);
        Self { used, most }
    }
}

#[cfg(feature = "quic")]
impl mq_transport::WindowMemory for WindowBudget {
    fn take(&self, bytes: usize) -> bool {
        let add = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.most);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(all(test, feature = "quic"))]
mod tests {
    use mq_transport::WindowMemory as _;

    use super::*;

    #[test]
    fn quic_keeps_the_bindings_of_nats_and_its_own_connection() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (wanted, idle, interval) in [
            (None, seconds(300), 15),
            (None, seconds(20), 10),
            (None, None, 15),
            (seconds(60), seconds(300), 60),
            (seconds(600), seconds(300), 150),
            (seconds(600), None, 600),
        ] {
            let mut options = RelayOptions::new([], []);
            options.connect_options.quic.keep_alive_interval = wanted;
            options.connect_options.quic.idle_timeout = idle;
            let found = options.back().quic.keep_alive_interval;
            assert_eq!(found, seconds(interval), "{wanted:?}, {idle:?}");
        }
    }

    #[test]
    fn windows_grow_together_up_to_the_budget() {
        let budget = WindowBudget::new(100);
        assert!(budget.take(60) && !budget.take(41) && budget.take(40));
        assert!(!budget.take(1) && !budget.take(usize::MAX));
        budget.give_back(60);
        assert!(budget.take(60));
    }
}
