//! The flow-control windows of a server's connection, which grow with what it carries.
//!
//! A window is memory that a peer may make this side hold: received data behind a gap, or sent data that it does not
//! acknowledge. So both begin small. They grow once the peer is let in, where it uses them and the owner of the memory
//! has room ([`WindowMemory`]).
//!
//! | window | begins with | grows |
//! |---|---|---|
//! | received data (RFC 9000 §4.1) | 16 KiB | to its double when half of it is read within two round trips |
//! | sent data, until it is acknowledged | 16 KiB | to two congestion windows when a write waits |
//!
//! A stream is such memory as well, beyond its window: quinn keeps whole datagrams for single bytes behind a gap, up to a
//! bound for each stream ([`OF_A_STREAM`]). So the number of streams that the peer may open grows in the same way: by half
//! when three quarters of them are open.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn::{Connection, VarInt};

use super::config::{INITIAL_BIDI_STREAMS, INITIAL_UNI_STREAMS, StreamLimits};
use crate::{ListenOptions, QuicOptions};

/// Receive window, in bytes, of a client that the application has not admitted yet.
const FIRST_RECEIVE: u32 = 16 * 1024;

/// Send window, in bytes, of a client at first: bytes kept until the client acknowledges them.
const FIRST_SEND: u64 = 16 * 1024;

/// Bytes that a peer's stream may hold beyond its window. quinn copies what is behind a gap together once the datagrams
/// that it keeps for it are 32 KiB larger; the rest is the last datagram, its list of pieces, and the stream itself.
const OF_A_STREAM: u32 = 40 * 1024;

/// The memory of the windows of all connections, which the application bounds.
pub trait WindowMemory: fmt::Debug + Send + Sync {
    /// Counts bytes that a window grows by; `false` if there is no room for them.
    fn take(&self, bytes: usize) -> bool;

    /// Subtracts counted bytes of a connection that has ended.
    fn give_back(&self, bytes: usize);
}

/// The limits that a connection begins with, and those that it may reach.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimits {
    streams: StreamLimits,
    receive: u32,
    send: u64,
    /// Memory budget; `None` where windows have their full size from the start.
    memory: Option<Arc<dyn WindowMemory>>,
}

impl ConnectionLimits {
    pub(super) fn new(quic: &QuicOptions, memory: Option<&Arc<dyn WindowMemory>>) -> Self {
        Self {
            streams: StreamLimits::of(quic),
            receive: quic.receive_window,
            send: quic.send_window,
            memory: memory.cloned(),
        }
    }

    /// Returns the stream limits that the peer gets with its first data stream; `None` if [`Windows`] raises them.
    pub(super) fn streams_at_once(&self) -> Option<StreamLimits> {
        self.memory.is_none().then_some(self.streams)
    }
}

impl ListenOptions {
    /// Returns the options of QUIC with the windows that connections begin with.
    pub(crate) fn first_quic(&self) -> QuicOptions {
        let mut quic = self.quic.clone();
        if self.window_memory.is_some() {
            quic.receive_window = quic.receive_window.min(FIRST_RECEIVE);
            quic.send_window = quic.send_window.min(FIRST_SEND);
        }
        quic
    }
}

/// The windows of one connection.
#[derive(Debug)]
pub(super) struct Windows(Option<Box<Growing>>);

#[derive(Debug)]
struct Growing {
    memory: Arc<dyn WindowMemory>,
    receive: u32,
    most_receive: u32,
    send: u64,
    most_send: u64,
    /// Streams that the peer may have open, and may come to have.
    streams: StreamLimits,
    most_streams: StreamLimits,
    /// Bytes read since `since`.
    read: u64,
    since: Instant,
    /// Bytes that count in `memory`.
    counted: usize,
    is_let_in: bool,
}

impl Windows {
    pub(super) fn new(limits: &ConnectionLimits) -> Self {
        let growing = limits.memory.as_ref().map(|memory| {
            Box::new(Growing {
                memory: Arc::clone(memory),
                receive: limits.receive.min(FIRST_RECEIVE),
                most_receive: limits.receive,
                send: limits.send.min(FIRST_SEND),
                most_send: limits.send,
                streams: StreamLimits {
                    bidirectional: limits.streams.bidirectional.min(INITIAL_BIDI_STREAMS),
                    unidirectional: limits.streams.unidirectional.min(INITIAL_UNI_STREAMS),
                },
                most_streams: limits.streams,
                read: 0,
                since: Instant::now(),
                counted: 0,
                is_let_in: false,
            })
        });
        Self(growing)
    }

    /// Lets the windows grow, once the application has admitted the peer.
    pub(super) fn let_in(&mut self) {
        if let Some(growing) = &mut self.0 {
            growing.is_let_in = true;
        }
    }

    /// Counts bytes that the application has read; after half of a window the window may grow.
    #[inline]
    pub(super) fn note_read(&mut self, connection: &Connection, bytes: usize) {
        if let Some(growing) = &mut self.0 {
            growing.read += bytes as u64;
            if growing.read >= u64::from(growing.receive / 2) {
                growing.half_was_read(connection);
            }
        }
    }

    /// Raises the limits on the peer's streams that are nearly used, if there is memory. `open` has the peer's open streams.
    pub(super) fn note_streams(&mut self, connection: &Connection, open: StreamLimits) {
        if let Some(growing) = &mut self.0 {
            growing.grow_streams(connection, open);
        }
    }

    /// Enlarges the send window of a blocked write, if there is memory; returns `true` if the write is to be tried
    /// again.
    pub(super) fn note_blocked(&mut self, connection: &Connection) -> bool {
        let growing = self.0.as_mut();
        growing.is_some_and(|growing| growing.grow_send(connection))
    }
}

impl Growing {
    fn half_was_read(&mut self, connection: &Connection) {
        let now = Instant::now();
        let took = now.saturating_duration_since(self.since);
        self.read = 0;
        self.since = now;
        let round_trip = connection.rtt().max(Duration::from_millis(1));
        let larger = self.receive.saturating_mul(2).min(self.most_receive);
        // A window that is as large as it may be counts nothing more.
        if took <= 2 * round_trip && self.count(u64::from(larger - self.receive)) {
            self.receive = larger;
            connection.set_receive_window(VarInt::from_u32(larger));
        }
    }

    fn grow_send(&mut self, connection: &Connection) -> bool {
        if self.send == self.most_send {
            return false;
        }
        let wanted = connection.stats().path.cwnd.saturating_mul(2);
        let larger = wanted.clamp(self.send, self.most_send);
        let grows = self.count(larger - self.send);
        if grows {
            self.send = larger;
            connection.set_send_window(larger);
        }
        grows
    }

    fn grow_streams(&mut self, connection: &Connection, open: StreamLimits) {
        let (limits, most) = (self.streams, self.most_streams);
        let larger =
            self.larger_limit(limits.bidirectional, open.bidirectional, most.bidirectional);
        if let Some(larger) = larger {
            self.streams.bidirectional = larger;
            connection.set_max_concurrent_bi_streams(larger.into());
        }
        let larger = self.larger_limit(
            limits.unidirectional,
            open.unidirectional,
            most.unidirectional,
        );
        if let Some(larger) = larger {
            self.streams.unidirectional = larger;
            connection.set_max_concurrent_uni_streams(larger.into());
        }
    }

    /// Returns a limit on open streams that is larger by half, and counts its memory; `None` if fewer than three quarters
    /// of the limit are open, or there is no memory.
    fn larger_limit(&mut self, limit: u32, open: u32, most: u32) -> Option<u32> {
        if open < limit - limit / 4 {
            return None;
        }
        let larger = limit.saturating_add(limit.div_ceil(2)).min(most);
        let bytes = u64::from(larger - limit) * u64::from(OF_A_STREAM);
        self.count(bytes).then_some(larger)
    }

    /// Counts bytes by which a window grows; `false` if it does not grow.
    fn count(&mut self, bytes: u64) -> bool {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let grows = bytes > 0 && self.is_let_in && self.memory.take(bytes);
        if grows {
            self.counted += bytes;
        }
        grows
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        self.memory.give_back(self.counted);
    }
}
