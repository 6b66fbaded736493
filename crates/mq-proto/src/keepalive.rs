//! Keep-alive (§3.1.2.10), both roles, as pure arithmetic on instants.

use std::time::{Duration, Instant};

/// Times without a packet after which a client sends PINGREQ, though its keep-alive does not require it yet.
///
/// A NAT that forgets a client changes the client's address without its knowledge. Over QUIC the client then
/// receives nothing until it sends a packet, by which the server learns the new address (RFC 9000 §9). PINGREQ
/// is such a packet, and the server answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Probes {
    /// Time without a packet in either direction after which the probe is sent.
    pub quiet: Option<Duration>,
    /// Time without a packet after which the probe is sent when a busy flow stops: four reads, each within this
    /// time of the read before. One probe is sent for each such flow.
    pub busy: Option<Duration>,
}

/// Number of reads in a row, each within [`Probes::busy`] of the read before, that make a busy flow. Fewer may be one
/// answer and what comes with it.
const BUSY_READS: u8 = 3;

/// Keep-alive of one connection: the times for PINGREQ, and for giving up a silent peer.
///
/// For a client any received byte is a sign of life. The client sends PINGREQ when it has sent nothing *or*
/// received nothing for the keep-alive. The second finds a dead server even while the client keeps sending QoS
/// 0 messages. For a server a packet is a sign of life `[MQTT-3.1.2-22]`, and so is each [`MIN_PROGRESS_BYTES`]
/// of an incomplete packet: a client that sends a large PUBLISH over a slow link can send nothing else
/// meanwhile. A client that sends a byte now and then counts as silent.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    interval: Option<Duration>,
    last_sent: Instant,
    last_received: Instant,
    /// Number of bytes of the incomplete packet that had been received at `last_received`.
    counted: usize,
    /// State of a client, which asks for signs of life. `None` for a server, which waits for signs of life for one and
    /// a half times the interval `[MQTT-3.1.2-22]`.
    asks: Option<Box<Asks>>,
}

/// State of a client that asks for signs of life by PINGREQ.
#[derive(Debug)]
struct Asks {
    timeout: Duration,
    /// Time at which the PINGREQ was sent whose answer is due; `None` if no answer is due.
    asked: Option<Instant>,
    /// Times at which PINGREQ is sent before the keep-alive requires it.
    probes: Probes,
    /// Number of reads in a row that came within [`Probes::busy`] of the read before.
    quick_reads: u8,
}

/// Number of bytes of an incomplete packet that are a sign of life to a server: about one segment of TCP or one
/// datagram of QUIC. A link that cannot carry this in one and a half keep-alives (350 bytes a second for a keep-alive
/// of 2 s, 12 for one of 1 min) needs a longer keep-alive.
const MIN_PROGRESS_BYTES: usize = 1024;

/// The action that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    Nothing,
    Ping,
    Dead,
}

impl KeepAlive {
    /// Builds a client's keep-alive; `seconds` 0 switches it off.
    pub(crate) fn client(now: Instant, seconds: u16, timeout: Duration) -> Self {
        let asks = Asks {
            timeout,
            asked: None,
            probes: Probes::default(),
            quick_reads: 0,
        };
        Self {
            asks: Some(Box::new(asks)),
            ..Self::server(now, seconds)
        }
    }

    /// Builds a server's keep-alive; `seconds` 0 switches it off.
    pub(crate) fn server(now: Instant, seconds: u16) -> Self {
        Self {
            interval: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
            last_sent: now,
            last_received: now,
            counted: 0,
            asks: None,
        }
    }

    /// Client: sends PINGREQ at these times too from now on.
    pub(crate) fn probe(&mut self, probes: Probes) {
        if let Some(asks) = &mut self.asks {
            asks.probes = probes;
        }
    }

    pub(crate) fn sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// Records that bytes were received: `packet` if they completed one, and `under_way` bytes of the next.
    pub(crate) fn read(&mut self, now: Instant, packet: bool, under_way: usize) {
        if self.asks.is_some() || packet || under_way >= self.counted + MIN_PROGRESS_BYTES {
            self.counted = under_way;
            self.received(now);
        }
    }

    /// Records a sign of life.
    pub(crate) fn received(&mut self, now: Instant) {
        if let Some(asks) = &mut self.asks {
            let gap = now.saturating_duration_since(self.last_received);
            asks.quick_reads = match asks.probes.busy {
                // The answer to a ping says nothing about the flow.
                Some(busy) if asks.asked.is_none() && gap <= busy => {
                    asks.quick_reads.saturating_add(1)
                }
                _ => 0,
            };
        }
        self.excused(now);
    }

    /// Counts the silence from `now` on: the owner has not read the link, so the peer need not have been
    /// silent.
    pub(crate) fn excused(&mut self, now: Instant) {
        self.last_received = now;
        if let Some(asks) = &mut self.asks {
            asks.asked = None;
        }
    }

    /// Returns the time at which [`due`](Self::due) will next return an action; `None` for never.
    pub(crate) fn next(&self) -> Option<Instant> {
        let Some(asks) = &self.asks else {
            let interval = self.interval?;
            return Some(self.last_received + interval + interval / 2);
        };
        // Without a keep-alive the connection is never given up.
        if let Some(asked) = asks.asked {
            return self.interval.map(|_| asked + asks.timeout);
        }
        let silent_since = self.last_sent.min(self.last_received);
        let keep_alive = self.interval.map(|interval| silent_since + interval);
        keep_alive.into_iter().chain(self.next_probe(asks)).min()
    }

    fn next_probe(&self, asks: &Asks) -> Option<Instant> {
        let Probes { quiet, busy } = asks.probes;
        let busy = busy.filter(|_| asks.quick_reads >= BUSY_READS);
        // The sent packet has shown the server the address.
        let silent_since = self.last_sent.max(self.last_received);
        let wait = quiet.into_iter().chain(busy).min()?;
        Some(silent_since + wait)
    }

    /// Returns the action that is due at `now`. After [`Due::Ping`] the caller sends PINGREQ.
    pub(crate) fn due(&mut self, now: Instant) -> Due {
        if self.next().is_none_or(|next| now < next) {
            return Due::Nothing;
        }
        match &mut self.asks {
            Some(asks) if asks.asked.is_none() => {
                asks.asked = Some(now);
                Due::Ping
            }
            _ => Due::Dead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_client_pings_when_it_was_silent_and_dies_without_an_answer() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 10, 5 * SECOND);
        keep_alive.sent(start + 4 * SECOND);
        keep_alive.received(start + 4 * SECOND);
        assert_eq!(keep_alive.next(), Some(start + 14 * SECOND));
        assert_eq!(keep_alive.due(start + 13 * SECOND), Due::Nothing);
        assert_eq!(keep_alive.due(start + 14 * SECOND), Due::Ping);
        assert_eq!(keep_alive.due(start + 18 * SECOND), Due::Nothing);
        assert_eq!(keep_alive.due(start + 19 * SECOND), Due::Dead);
    }

    #[test]
    fn any_byte_answers_a_ping() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 10, 5 * SECOND);
        assert_eq!(keep_alive.due(start + 10 * SECOND), Due::Ping);
        keep_alive.sent(start + 10 * SECOND);
        keep_alive.received(start + 14 * SECOND);
        assert_eq!(keep_alive.due(start + 19 * SECOND), Due::Nothing);
        assert_eq!(keep_alive.next(), Some(start + 20 * SECOND));
    }

    #[test]
    fn a_client_that_only_sends_still_finds_a_dead_server() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 10, 5 * SECOND);
        for second in 1..=10 {
            keep_alive.sent(start + second * SECOND);
        }
        assert_eq!(keep_alive.due(start + 10 * SECOND), Due::Ping);
        keep_alive.sent(start + 14 * SECOND);
        assert_eq!(keep_alive.due(start + 15 * SECOND), Due::Dead);
    }

    const PROBES: Probes = Probes {
        quiet: Some(Duration::from_secs(15)),
        busy: Some(Duration::from_millis(1_500)),
    };

    #[test]
    fn a_quiet_client_probes_before_its_keep_alive() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 60, 20 * SECOND);
        keep_alive.probe(PROBES);
        assert_eq!(keep_alive.next(), Some(start + 15 * SECOND));
        // A packet of its own shows its address as well.
        keep_alive.sent(start + 10 * SECOND);
        assert_eq!(keep_alive.due(start + 15 * SECOND), Due::Nothing);
        assert_eq!(keep_alive.due(start + 25 * SECOND), Due::Ping);
        assert_eq!(keep_alive.next(), Some(start + 45 * SECOND));
        keep_alive.probe(Probes::default());
        keep_alive.received(start + 26 * SECOND);
        assert_eq!(keep_alive.next(), Some(start + 70 * SECOND));
    }

    #[test]
    fn a_busy_client_probes_soon_after_the_flow_falls_silent_and_once() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 60, 20 * SECOND);
        keep_alive.probe(PROBES);
        for second in 1..=4 {
            assert_eq!(keep_alive.due(start + second * SECOND), Due::Nothing);
            keep_alive.received(start + second * SECOND);
        }
        let last = start + 4 * SECOND;
        assert_eq!(keep_alive.due(last + SECOND), Due::Nothing);
        assert_eq!(keep_alive.due(last + SECOND * 3 / 2), Due::Ping);
        let answered = last + 2 * SECOND;
        keep_alive.received(answered);
        // Nothing more comes: the flow has ended, and is quiet.
        assert_eq!(keep_alive.next(), Some(answered + 15 * SECOND));
    }

    #[test]
    fn some_packets_now_and_then_are_no_busy_flow() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 60, 20 * SECOND);
        keep_alive.probe(PROBES);
        for at in [2, 3, 4, 6, 7, 8].map(|second| start + second * SECOND) {
            keep_alive.received(at);
            assert_eq!(keep_alive.next(), Some(at + 15 * SECOND));
        }
    }

    #[test]
    fn a_probe_without_a_keep_alive_ends_no_connection() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::client(start, 0, 20 * SECOND);
        keep_alive.probe(PROBES);
        assert_eq!(keep_alive.due(start + 15 * SECOND), Due::Ping);
        assert_eq!(keep_alive.next(), None);
        assert_eq!(keep_alive.due(start + 1_000 * SECOND), Due::Nothing);
    }

    #[test]
    fn a_server_waits_one_and_a_half_times_the_interval() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::server(start, 10);
        keep_alive.received(start + SECOND);
        assert_eq!(keep_alive.due(start + 15 * SECOND), Due::Nothing);
        assert_eq!(keep_alive.due(start + 16 * SECOND), Due::Dead);
    }

    #[test]
    fn zero_switches_it_off() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::server(start, 0);
        assert_eq!(keep_alive.next(), None);
        assert_eq!(keep_alive.due(start + 1_000_000 * SECOND), Due::Nothing);
    }
}
