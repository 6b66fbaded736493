//! A connection's datagrams, and the copies of those that are sent [again](Repeat).
//!
//! ```text
//! turn of quinn's driver:  on_sent (number, time) -> try_send (bytes) -> ... -> end of the turn
//!                                                                                 | frames: data?
//!                                              on_ack: dropped <- waiting copy <--+ thin? calm?
//!                                                                  | after the gap
//!                                                                  +-> socket
//! ```
//!
//! The socket sees encrypted bytes of many connections. What it needs to know comes from quinn's public interfaces,
//! all called on the thread that drives the connection: the congestion controller learns when a packet was
//! sent or acknowledged, and the connection's statistics count its frames.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::Poll,
    time::{Duration, Instant},
};

use quinn::{
    AsyncUdpSocket,
    congestion::{Controller, ControllerFactory},
    udp::{EcnCodepoint, Transmit},
};
use quinn_proto::RttEstimator;
use tokio::time::{Sleep, sleep_until};

use super::{
    observed::{Observer, observed},
    qlog::Notes,
};
use crate::{Gap, QuicOptions, Repeat, sync::lock, tls::handshakes::Task};

/// Bytes of the largest datagram that is sent again after the handshake.
const MAX_REPEATED_SIZE: usize = 512;

/// Datagrams of one turn of the driver that may be sent again.
const MAX_PER_TURN: usize = 4;

/// Copies that may wait at a time.
const MAX_WAITING: usize = 16;

/// Copies that may wait at a time with [`Repeat::Auto`].
const MAX_WAITING_AUTO: usize = 4;

/// Bounds of the gap of [`Repeat::Auto`], an eighth of the smoothed round-trip time.
const AUTO_GAP: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];

/// Default of `max_ack_delay`, the longest time for which a peer holds back an acknowledgement (RFC 9000 §18.2).
/// [`Repeat::Auto`] also allows a round-trip time this much above twice its minimum before it assumes a queue.
const ACK_DELAY: Duration = Duration::from_millis(25);

/// Length of an epoch; a minimum round-trip time counts for two.
const MIN_RTT_EPOCH: Duration = Duration::from_secs(30);

/// Round trips without copies after an ECN mark.
const ROUND_TRIPS_AFTER_MARK: u32 = 10;

tokio::task_local! {
    /// The connection that this thread drives. No call could carry this value: quinn gives all connections of an endpoint
    /// one socket, and each of them sends by [`try_send`](AsyncUdpSocket::try_send) of a datagram alone.
    static DRIVEN: Arc<Repeater>;
}

/// State of a connection whose datagrams may be sent again.
pub(super) struct Repeater {
    policy: Repeat,
    is_server: bool,
    /// The connection's trace, if it has one.
    notes: Option<Notes>,
    /// Longest time for which the peer may hold back an acknowledgement: asked for by `ACK_FREQUENCY`, or its default.
    ack_delay: Duration,
    /// The connection, while its link lives. Never locked from within quinn, which then holds a lock of its own.
    connection: Mutex<Option<Counted>>,
    state: Mutex<State>,
}

/// A connection, with the number of frames with data that it has sent.
struct Counted {
    connection: quinn::Connection,
    frames: u64,
}

struct State {
    is_handshaking: bool,
    /// Destination of the last datagram.
    peer: Option<SocketAddr>,
    /// `true` if the peer's address is validated (RFC 9000 §8), so that copies may be sent to it.
    is_validated: bool,
    /// Time at which the peer's address changed, until the new address is validated.
    moved: Option<Instant>,
    /// Time at which quinn numbered the packet that reaches the socket next.
    numbered: Option<Instant>,
    socket: Option<Arc<dyn AsyncUdpSocket>>,
    /// Datagrams of the driver's present turn.
    turn: Turn,
    waiting: VecDeque<Waiting>,
    path: Path,
    copies: Copies,
}

/// The datagrams of a turn of the driver.
#[derive(Default)]
struct Turn {
    bytes: u64,
    small: Vec<Datagram>,
}

struct Datagram {
    sent: Instant,
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    src_ip: Option<IpAddr>,
    bytes: Box<[u8]>,
}

/// A datagram that will be sent again.
struct Waiting {
    due: Instant,
    gap: Duration,
    /// Number of copies that are still to be sent.
    left: u8,
    datagram: Datagram,
}

/// State of the path, as acknowledgements show it.
struct Path {
    window: u64,
    in_flight: u64,
    smoothed: Duration,
    variation: Duration,
    /// `true` if a batch of acknowledgements has ended, and changed `smoothed` and `variation`.
    is_measured: bool,
    /// Minimum round-trip times of the present epoch and of the one before.
    least: [Option<Duration>; 2],
    epoch: Option<Instant>,
    marked: Option<Instant>,
    /// Bytes of copies that are allowed as of `allowed_at`.
    allowed: u64,
    allowed_at: Option<Instant>,
}

/// Counters of the copies that were sent.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Copies {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
}

impl Repeater {
    /// Makes the state of a client's new connection; `None` with [`Repeat::Off`].
    pub(super) fn of_client(quic: &QuicOptions, notes: Option<Notes>) -> Option<Arc<Self>> {
        Self::new(quic, false, true, notes)
    }

    /// Makes the state of a server's new connection; `None` with [`Repeat::Off`]. `is_validated` is true if a token
    /// has proved the client's address (RFC 9000 §8.1).
    pub(super) fn of_server(
        quic: &QuicOptions,
        is_validated: bool,
        notes: Option<Notes>,
    ) -> Option<Arc<Self>> {
        Self::new(quic, true, is_validated, notes)
    }

    fn new(
        quic: &QuicOptions,
        is_server: bool,
        is_validated: bool,
        notes: Option<Notes>,
    ) -> Option<Arc<Self>> {
        let ack_delay = quic.ack_frequency.and_then(|asked| asked.max_delay);
        (quic.repeat != Repeat::Off).then(|| {
            Arc::new(Self {
                policy: quic.repeat,
                is_server,
                notes,
                ack_delay: ack_delay.unwrap_or(ACK_DELAY),
                connection: Mutex::new(None),
                state: Mutex::new(State {
                    is_handshaking: true,
                    peer: None,
                    is_validated,
                    moved: None,
                    numbered: None,
                    socket: None,
                    turn: Turn::default(),
                    waiting: VecDeque::new(),
                    path: Path::new(quic.initial_rtt),
                    copies: Copies::default(),
                }),
            })
        })
    }

    /// Runs `begin`, the call that makes the connection, with this state as the driven one.
    pub(super) fn begin<T>(self: &Arc<Self>, begin: impl FnOnce() -> T) -> T {
        DRIVEN.sync_scope(self.clone(), begin)
    }

    /// Drives the connection, and sends its copies.
    pub(super) async fn drive(self: Arc<Self>, driver: Task) {
        let mut driver = pin!(DRIVEN.scope(self.clone(), driver));
        let mut timer: Option<Pin<Box<Sleep>>> = None;
        poll_fn(|cx| {
            if driver.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            self.end_turn();
            while let Some(due) = self.send_due(tokio::time::Instant::now().into_std()) {
                let due = due.into();
                let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
                if timer.deadline() != due {
                    timer.as_mut().reset(due);
                }
                if timer.as_mut().poll(cx).is_pending() {
                    break;
                }
            }
            Poll::Pending
        })
        .await;
    }

    /// Ends the handshake, which proves the client's address to a server.
    pub(super) fn end_handshake(&self) {
        let mut state = lock(&self.state);
        state.is_handshaking = false;
        state.is_validated |= state.moved.is_none();
    }

    pub(super) fn copies(&self) -> Copies {
        lock(&self.state).copies
    }

    /// Records a datagram that was sent.
    fn sent(&self, transmit: &Transmit<'_>, socket: &Arc<dyn AsyncUdpSocket>) {
        let mut state = lock(&self.state);
        let Some(sent) = state.numbered.take() else {
            // One that had to wait for the socket, or that looks for another path.
            return;
        };
        let before = state.peer.replace(transmit.destination);
        if self.is_server && before.is_some_and(|before| before != transmit.destination) {
            state.is_validated = false;
            state.moved = Some(sent);
            state.waiting.clear();
        }
        state.turn.bytes += transmit.contents.len() as u64;
        let is_single = transmit.segment_size.is_none();
        let is_small = state.is_handshaking || transmit.contents.len() <= MAX_REPEATED_SIZE;
        if is_single && is_small && state.is_validated && state.turn.small.len() < MAX_PER_TURN {
            state.socket.get_or_insert_with(|| socket.clone());
            state.turn.small.push(Datagram {
                sent,
                destination: transmit.destination,
                ecn: transmit.ecn,
                src_ip: transmit.src_ip,
                bytes: transmit.contents.into(),
            });
        }
    }

    /// Decides which of the turn's datagrams are to be sent again.
    fn end_turn(&self) {
        let Turn { bytes, mut small } = {
            let mut state = lock(&self.state);
            if state.turn.bytes == 0 {
                return;
            }
            std::mem::take(&mut state.turn)
        };
        let new = lock(&self.connection).as_mut().map(Counted::count);
        let state = &mut *lock(&self.state);
        let new = new.unwrap_or(if state.is_handshaking {
            // There is nothing else to be sent.
            small.len() as u64
        } else {
            0
        });
        if new == 0 {
            return;
        }
        state.path.in_flight += bytes;
        // What carries acknowledgements alone is smaller.
        small.sort_by_key(|datagram| Reverse(datagram.bytes.len()));
        small.truncate(usize::try_from(new).unwrap_or(usize::MAX));
        for datagram in small {
            self.wait(state, datagram);
        }
    }

    fn wait(&self, state: &mut State, datagram: Datagram) {
        let size = datagram.bytes.len() as u64;
        let (path, sent) = (&mut state.path, datagram.sent);
        let Some((gap, left)) = path.gap(self.policy, self.ack_delay, size, sent) else {
            return;
        };
        // A loss costs a time-out that rests on no measurement yet.
        let more = u8::from(state.is_handshaking && self.policy != Repeat::Probe);
        let room = if self.policy == Repeat::Auto {
            MAX_WAITING_AUTO
        } else {
            MAX_WAITING
        };
        if state.waiting.len() < room {
            state.waiting.push_back(Waiting {
                due: datagram.sent + gap,
                gap,
                left: left + more,
                datagram,
            });
        }
    }

    /// Sends the copies that are due; returns the time of the next.
    fn send_due(&self, now: Instant) -> Option<Instant> {
        let state = &mut *lock(&self.state);
        let mut next = None;
        state.waiting.retain_mut(|waiting| {
            while waiting.due <= now {
                let datagram = &waiting.datagram;
                let transmit = Transmit {
                    destination: datagram.destination,
                    ecn: datagram.ecn,
                    contents: &datagram.bytes,
                    segment_size: None,
                    src_ip: datagram.src_ip,
                };
                // A full socket is no place for copies.
                let socket = state.socket.as_ref();
                if socket.is_some_and(|socket| socket.try_send(&transmit).is_ok()) {
                    state.copies.datagrams += 1;
                    state.copies.bytes += datagram.bytes.len() as u64;
                    if let Some(notes) = &self.notes {
                        let after = now.saturating_duration_since(datagram.sent);
                        notes.repeated(datagram.bytes.len(), after);
                    }
                }
                waiting.left -= 1;
                if waiting.left == 0 {
                    return false;
                }
                waiting.due += waiting.gap;
            }
            next = Some(next.map_or(waiting.due, |next: Instant| next.min(waiting.due)));
            true
        });
        next
    }

    /// Notes that a packet was acknowledged.
    fn acknowledged(&self, now: Instant, sent: Instant, size: u64, rtt: &RttEstimator) {
        let mut state = lock(&self.state);
        state.waiting.retain(|waiting| {
            waiting.datagram.sent != sent || waiting.datagram.bytes.len() as u64 != size
        });
        if state.moved.is_some_and(|moved| sent >= moved) {
            // Quinn holds back acknowledgements while it validates an address.
            state.moved = None;
            state.is_validated = true;
        }
        state.path.acknowledged(now, sent, rtt);
    }
}

impl Counted {
    /// Returns the number of frames with data sent since the last call: CRYPTO, STREAM, `RESET_STREAM` and
    /// `STOP_SENDING`, which a peer waits for.
    fn count(&mut self) -> u64 {
        let sent = self.connection.stats().frame_tx;
        let frames = sent.crypto + sent.stream + sent.reset_stream + sent.stop_sending;
        frames - std::mem::replace(&mut self.frames, frames)
    }
}

impl Path {
    fn new(initial_rtt: Duration) -> Self {
        Self {
            window: u64::MAX,
            in_flight: 0,
            smoothed: initial_rtt,
            variation: initial_rtt / 2,
            is_measured: false,
            least: [None; 2],
            epoch: None,
            marked: None,
            allowed: 0,
            allowed_at: None,
        }
    }

    /// Returns the gap to the first copy of a datagram and the number of copies; `None` if it gets no copy.
    fn gap(
        &mut self,
        policy: Repeat,
        ack_delay: Duration,
        size: u64,
        now: Instant,
    ) -> Option<(Duration, u8)> {
        if self.in_flight > self.window {
            return None;
        }
        match policy {
            Repeat::Off => None,
            Repeat::After { gap, copies } => {
                let gap = match gap {
                    Gap::Time(time) => time,
                    Gap::RoundTrip(part) => self.smoothed / u32::from(part.get()),
                };
                Some((gap, copies.get()))
            }
            Repeat::Probe => {
                let late = (4 * self.variation).max(Duration::from_millis(1));
                Some((self.smoothed + late + ack_delay, 1))
            }
            Repeat::Auto => {
                let [least, most] = AUTO_GAP;
                let gap = (self.smoothed / 8).clamp(least, most);
                (self.is_calm(now) && self.allows(size, now)).then_some((gap, 1))
            }
        }
    }

    fn is_calm(&self, now: Instant) -> bool {
        let is_marked = self
            .marked
            .is_some_and(|marked| now < marked + ROUND_TRIPS_AFTER_MARK * self.smoothed);
        let least = self.least.into_iter().flatten().min();
        let is_queueing = least.is_some_and(|least| self.smoothed > 2 * least + ACK_DELAY);
        !is_marked && !is_queueing && self.in_flight <= self.window / 2
    }

    /// Takes the bytes of a copy from the allowance, which grows by a quarter of a congestion window in a round trip.
    fn allows(&mut self, size: u64, now: Instant) -> bool {
        let most = self.window / 4;
        let since = self.allowed_at.replace(now);
        self.allowed = since.map_or(most, |since| {
            let past = now.saturating_duration_since(since).as_nanos();
            let grown = u128::from(most) * past / self.smoothed.as_nanos().max(1);
            let grown = u64::try_from(grown).unwrap_or(most);
            self.allowed.saturating_add(grown).min(most)
        });
        let rest = self.allowed.checked_sub(size);
        self.allowed = rest.unwrap_or(self.allowed);
        rest.is_some()
    }

    fn acknowledged(&mut self, now: Instant, sent: Instant, rtt: &RttEstimator) {
        let before = std::mem::replace(&mut self.smoothed, rtt.get());
        if std::mem::take(&mut self.is_measured) {
            // Quinn keeps the variation to itself (RFC 9002 §5.3). What moved the smoothed time by an eighth was
            // this sample.
            let sample = (8 * self.smoothed).saturating_sub(7 * before);
            self.variation = (3 * self.variation + before.abs_diff(sample)) / 4;
        }
        match self.epoch {
            Some(epoch) if now.saturating_duration_since(epoch) < MIN_RTT_EPOCH => {}
            _ => {
                self.epoch = Some(now);
                self.least = [None, self.least[0]];
            }
        }
        let took = now.saturating_duration_since(sent);
        self.least[0] = Some(self.least[0].map_or(took, |least| least.min(took)));
    }

    fn end_acknowledgements(&mut self, in_flight: u64) {
        self.in_flight = in_flight;
        self.is_measured = true;
    }

    fn lost(&mut self, now: Instant, bytes: u64) {
        if bytes == 0 {
            self.marked = Some(now);
        }
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }
}

/// Handle of a link on the repeater of its connection.
pub(crate) struct LinkRepeater(Arc<Repeater>);

impl LinkRepeater {
    pub(super) fn new(repeater: Arc<Repeater>, connection: &quinn::Connection) -> Self {
        let mut counted = Counted {
            connection: connection.clone(),
            frames: 0,
        };
        let mut place = lock(&repeater.connection);
        counted.count();
        *place = Some(counted);
        drop(place);
        Self(repeater)
    }

    pub(super) fn end_handshake(&self) {
        self.0.end_handshake();
    }

    pub(super) fn copies(&self) -> Copies {
        self.0.copies()
    }
}

impl Drop for LinkRepeater {
    /// Closes the connection, whose last handle this is.
    fn drop(&mut self) {
        let counted = lock(&self.0.connection).take();
        drop(counted);
    }
}

/// A socket that reports the datagrams it has sent to the connection's repeater.
#[derive(Debug)]
pub(super) struct RepeatingSocket(pub(super) Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for RepeatingSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn quinn::UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.0.try_send(transmit)?;
        // An endpoint sends by itself as well.
        let _ = DRIVEN.try_with(|repeater| repeater.sent(transmit, &self.0));
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut std::task::Context<'_>,
        bufs: &mut [io::IoSliceMut<'_>],
        meta: &mut [quinn::udp::RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        // The packets of a batch could not be told from each other.
        let is_handshaking = DRIVEN.try_with(|repeater| lock(&repeater.state).is_handshaking);
        if is_handshaking == Ok(true) {
            1
        } else {
            self.0.max_transmit_segments()
        }
    }

    fn max_receive_segments(&self) -> usize {
        self.0.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

/// Congestion controllers that report sent and acknowledged packets to the connection's repeater.
pub(super) struct ReportingControllers(pub(super) Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for ReportingControllers {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let control = self.0.clone().build(now, current_mtu);
        match DRIVEN.try_with(Arc::clone) {
            Ok(repeater) => {
                lock(&repeater.state).path.window = control.window();
                observed(control, repeater)
            }
            Err(_) => control,
        }
    }
}

impl Observer for Arc<Repeater> {
    fn note_sent(&mut self, now: Instant, _bytes: u64) {
        lock(&self.state).numbered = Some(now);
    }

    fn note_acknowledged(&mut self, now: Instant, sent: Instant, bytes: u64, rtt: &RttEstimator) {
        self.acknowledged(now, sent, bytes, rtt);
    }

    fn note_end_of_acknowledgements(&mut self, in_flight: u64, control: &dyn Controller) {
        let path = &mut lock(&self.state).path;
        path.window = control.window();
        path.end_acknowledgements(in_flight);
    }

    fn note_lost(&mut self, now: Instant, bytes: u64, control: &dyn Controller) {
        let path = &mut lock(&self.state).path;
        path.window = control.window();
        path.lost(now, bytes);
    }
}

#[cfg(test)]
mod tests;
