//! The data lanes of a QUIC connection: its streams besides the control stream.
//!
//! A connection may have many of them, and most are silent. Each has a waker of its own that notes its
//! name, so that a turn of the connection's task costs as much as there are lanes with news.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    future::Future,
    mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::{Bytes, BytesMut};
use mq_lane::{LaneEnd, LaneId, Outbox};
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, Side, VarInt, WriteError};

use super::{
    config::StreamLimits,
    write::{CHUNKS_PER_CALL, Stopped, poll_write_lane},
};
use crate::{
    LaneClosed, Progress,
    sync::{lock, ready_output},
};

/// Bytes that a lane may write before the link turns to the next lane.
const MAX_WRITE_PER_TURN: usize = 64 * 1024;

/// The error code of a stream whose data the owner does not read.
const UNWANTED_CODE: VarInt = VarInt::from_u32(0);

/// Datagrams that are taken from the QUIC stack at a time.
const MAX_DATAGRAMS_TAKEN: usize = 64;

type NextDatagram = Pin<Box<dyn Future<Output = Result<Bytes, ConnectionError>> + Send>>;
type Accepting =
    Pin<Box<dyn Future<Output = Result<(Option<SendStream>, RecvStream), ConnectionError>> + Send>>;

/// The data lanes of one connection.
pub(crate) struct Lanes {
    connection: quinn::Connection,
    all: BTreeMap<LaneId, Lane>,
    /// Stream limits that the peer gets once it has opened a data stream; `None` from then on, and if the connection's
    /// windows have them.
    limits: Option<StreamLimits>,
    /// Streams that the peer has opened since [`has_accepted`](Self::has_accepted) was called.
    accepted: u64,
    /// The peer's next bidirectional stream, and its next unidirectional one.
    accepting: [Option<NextStream>; 2],
    /// The peer's next datagram.
    datagrams: Option<(NextDatagram, Waker)>,
    /// Received datagrams that the owner has not taken.
    arrived: VecDeque<Bytes>,
    signal: Arc<Signal>,
    /// A copy of the waker of the connection's task that was last stored in `signal`, to see whether it has changed.
    task: Option<Waker>,
    /// `true` if the next call reads the data lanes before the control lane.
    pub(super) go_first: bool,
    /// `true` if the last call returned [`Progress::Datagrams`].
    told: bool,
    /// Lanes that may have bytes to read.
    readable: VecDeque<LaneId>,
    /// Lanes whose streams take no more bytes for now.
    blocked: BTreeSet<LaneId>,
    /// Lanes that have ended in the middle of a write.
    closed: VecDeque<(LaneId, LaneClosed)>,
    /// The lane that wrote last.
    turn: LaneId,
    /// `true` if a write has found that the connection is over.
    pub(super) write_failed: bool,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
}

struct Lane {
    /// Sending half; `None` once it has ended, and for a stream on which only the peer sends.
    send: Option<SendStream>,
    /// Receiving half; `None` once the peer has ended it.
    recv: Option<RecvStream>,
    stopped: Option<Stopped>,
    /// `true` if the owner has ended its side of the lane.
    ended: bool,
    received: BytesMut,
    /// All bytes ever received on the lane.
    bytes_received: u64,
    waker: Waker,
}

/// Waits for the peer's next stream.
struct NextStream {
    next: Accepting,
    waker: Waker,
}

/// Source of an event that the connection's task has to poll.
#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    Lane(LaneId),
    NextStream(usize),
    Datagrams,
}

/// Lanes and accepts that have become ready, for the connection's task.
#[derive(Default)]
struct Signal {
    has_news: AtomicBool,
    news: Mutex<(Vec<News>, Option<Waker>)>,
}

struct NewsWaker {
    what: News,
    signal: Arc<Signal>,
}

impl Wake for NewsWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut news = lock(&self.signal.news);
        if !news.0.contains(&self.what) {
            news.0.push(self.what);
        }
        self.signal.has_news.store(true, Ordering::Release);
        if let Some(task) = &news.1 {
            task.wake_by_ref();
        }
    }
}

impl Signal {
    fn waker(self: &Arc<Self>, what: News) -> Waker {
        let signal = self.clone();
        Waker::from(Arc::new(NewsWaker { what, signal }))
    }
}

impl Lanes {
    pub(super) fn new(connection: &quinn::Connection, limits: Option<StreamLimits>) -> Self {
        let signal = Arc::<Signal>::default();
        let next_stream = |number: usize, next| {
            let waker = signal.waker(News::NextStream(number));
            waker.wake_by_ref();
            Some(NextStream { next, waker })
        };
        let datagrams = signal.waker(News::Datagrams);
        datagrams.wake_by_ref();
        let streams = [
            next_stream(0, both(connection.clone())),
            next_stream(1, only_theirs(connection.clone())),
        ];
        Self {
            connection: connection.clone(),
            all: BTreeMap::new(),
            limits,
            accepted: 0,
            accepting: streams,
            datagrams: Some((next_datagram(connection.clone()), datagrams)),
            arrived: VecDeque::new(),
            signal,
            task: None,
            go_first: false,
            told: false,
            readable: VecDeque::new(),
            blocked: BTreeSet::new(),
            closed: VecDeque::new(),
            turn: LaneId::CONTROL,
            write_failed: false,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// Returns `true` if the peer has opened streams since the last call.
    pub(super) fn has_accepted(&mut self) -> bool {
        mem::take(&mut self.accepted) > 0
    }

    /// Returns the numbers of open streams that the client has opened, the control stream among them.
    pub(super) fn opened_by_client(&self) -> StreamLimits {
        let mut open = StreamLimits {
            bidirectional: 1,
            unidirectional: 0,
        };
        for lane in self.all.keys().filter(|lane| !lane.is_server_opened()) {
            if lane.is_unidirectional() {
                open.unidirectional += 1;
            } else {
                open.bidirectional += 1;
            }
        }
        open
    }

    /// Opens a bidirectional stream, if the peer grants one more now.
    pub(super) fn open(&mut self) -> Option<LaneId> {
        let (send, recv) = ready_output(self.connection.open_bi())?.ok()?;
        Some(self.insert(Some(send), recv))
    }

    fn insert(&mut self, send: Option<SendStream>, recv: RecvStream) -> LaneId {
        let lane = LaneId(VarInt::from(recv.id()).into_inner());
        let waker = self.signal.waker(News::Lane(lane));
        let stopped = send
            .as_ref()
            .map(|send| -> Stopped { Box::pin(send.stopped()) });
        self.readable.push_back(lane);
        self.all.insert(
            lane,
            Lane {
                send,
                recv: Some(recv),
                stopped,
                ended: false,
                received: BytesMut::new(),
                bytes_received: 0,
                waker,
            },
        );
        lane
    }

    /// Returns the number of open data lanes.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of open data lanes that `side` has opened.
    pub(super) fn opened_by(&self, side: Side) -> usize {
        let is_own = |lane: &&LaneId| lane.is_server_opened() == (side == Side::Server);
        self.all.keys().filter(is_own).count()
    }

    pub(crate) fn received(&mut self, lane: LaneId) -> Option<&mut BytesMut> {
        self.all.get_mut(&lane).map(|lane| &mut lane.received)
    }

    /// Returns the number of bytes of all data lanes that were received and not consumed.
    pub(crate) fn received_len(&self) -> usize {
        self.all.values().map(|lane| lane.received.len()).sum()
    }

    /// Returns the lanes with bytes that were not consumed.
    pub(crate) fn unread(&self) -> impl Iterator<Item = LaneId> {
        let unread = self.all.iter();
        unread
            .filter(|(_, lane)| !lane.received.is_empty())
            .map(|(lane, _)| *lane)
    }

    /// Returns each open lane with the number of bytes ever received on it.
    pub(crate) fn bytes_received(&self) -> impl Iterator<Item = (LaneId, u64)> {
        let all = self.all.iter();
        all.map(|(lane, state)| (*lane, state.bytes_received))
    }

    /// Sets the urgency of a lane's bytes: higher goes first.
    pub(crate) fn prioritize(&self, lane: LaneId, priority: i32) {
        if let Some(send) = self.all.get(&lane).and_then(|lane| lane.send.as_ref()) {
            // A stream that has ended has nothing to hurry.
            let _ = send.set_priority(priority);
        }
    }

    /// Collects the lanes that have become ready, and accepts the streams that the peer has opened.
    fn listen(&mut self, cx: &Context<'_>) {
        if !self
            .task
            .as_ref()
            .is_some_and(|task| task.will_wake(cx.waker()))
        {
            let task = cx.waker().clone();
            lock(&self.signal.news).1 = Some(task.clone());
            self.task = Some(task);
        }
        if !self.signal.has_news.load(Ordering::Acquire) {
            return;
        }
        let news = {
            let mut news = lock(&self.signal.news);
            self.signal.has_news.store(false, Ordering::Relaxed);
            mem::take(&mut news.0)
        };
        for woken in news {
            match woken {
                News::Lane(lane) => {
                    self.blocked.remove(&lane);
                    if self.all.contains_key(&lane) && !self.readable.contains(&lane) {
                        self.readable.push_back(lane);
                    }
                }
                News::NextStream(number) => self.accept(number),
                News::Datagrams => self.take_datagrams(),
            }
        }
    }

    fn take_datagrams(&mut self) {
        while let Some((next, waker)) = &mut self.datagrams
            && self.arrived.len() < MAX_DATAGRAMS_TAKEN
        {
            match next.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Pending => return,
                Poll::Ready(Ok(bytes)) => {
                    self.bytes_received += bytes.len() as u64;
                    self.arrived.push_back(bytes);
                    while self.arrived.len() < MAX_DATAGRAMS_TAKEN
                        && let Some(Ok(bytes)) = ready_output(self.connection.read_datagram())
                    {
                        self.bytes_received += bytes.len() as u64;
                        self.arrived.push_back(bytes);
                    }
                    *next = next_datagram(self.connection.clone());
                    waker.wake_by_ref();
                    return;
                }
                // Reading the control stream reports the end of the connection.
                Poll::Ready(Err(_)) => self.datagrams = None,
            }
        }
    }

    pub(crate) fn next_datagram(&mut self) -> Option<Bytes> {
        let next = self.arrived.pop_front();
        if next.is_none() {
            self.take_datagrams();
            return self.arrived.pop_front();
        }
        next
    }

    fn accept(&mut self, number: usize) {
        while let Some(next_stream) = &mut self.accepting[number] {
            let polled = next_stream
                .next
                .as_mut()
                .poll(&mut Context::from_waker(&next_stream.waker));
            match polled {
                Poll::Pending => return,
                Poll::Ready(Ok((send, recv))) => {
                    next_stream.next = match &send {
                        Some(_) => both(self.connection.clone()),
                        None => only_theirs(self.connection.clone()),
                    };
                    self.insert(send, recv);
                    self.accepted += 1;
                    if let Some(limits) = self.limits.take() {
                        let connection = &self.connection;
                        connection.set_max_concurrent_bi_streams(limits.bidirectional.into());
                        connection.set_max_concurrent_uni_streams(limits.unidirectional.into());
                    }
                }
                // Reading the control stream reports the end of the connection.
                Poll::Ready(Err(_)) => self.accepting[number] = None,
            }
        }
    }

    /// Reads from the next readable lane, or reports the end of a lane, or received datagrams.
    pub(super) fn poll_read(&mut self, cx: &Context<'_>) -> Poll<Progress> {
        self.listen(cx);
        if let Some((lane, how)) = self.closed.pop_front() {
            return Poll::Ready(Progress::LaneClosed(lane, how));
        }
        if !self.arrived.is_empty() && !mem::replace(&mut self.told, true) {
            return Poll::Ready(Progress::Datagrams);
        }
        self.told = false;
        while let Some(name) = self.readable.pop_front() {
            let Some(lane) = self.all.get_mut(&name) else {
                continue;
            };
            match lane.poll_read() {
                Poll::Ready(Read::Bytes(count)) => {
                    self.bytes_received += count as u64;
                    self.readable.push_back(name);
                    return Poll::Ready(Progress::Received(name));
                }
                Poll::Ready(Read::Closed(how)) => {
                    if how != LaneClosed::Finished {
                        self.abort(name, UNWANTED_CODE);
                    }
                    self.forget_ended(name);
                    return Poll::Ready(Progress::LaneClosed(name, how));
                }
                Poll::Pending => {}
            }
        }
        Poll::Pending
    }

    /// Writes what the outbox has for data lanes, in turns; ready when nothing is left. A lane that is
    /// blocked does not hold up the others.
    pub(super) fn poll_write(&mut self, cx: &Context<'_>, outbox: &mut Outbox) -> Poll<()> {
        self.listen(cx);
        loop {
            let (mut is_empty, mut has_more) = (true, false);
            for _ in 0..outbox.data_lanes() {
                let Some(lane) = outbox.next_data_lane(self.turn) else {
                    break;
                };
                self.turn = lane;
                let is_blocked = self.blocked.contains(&lane) && !outbox.is_aborting(lane);
                if is_blocked || !self.write(lane, outbox) {
                    is_empty = false;
                    // A lane that is not blocked has only had its turn.
                    has_more |= !self.blocked.contains(&lane);
                }
            }
            if is_empty {
                return Poll::Ready(());
            }
            if !has_more {
                return Poll::Pending;
            }
        }
    }

    /// Has blocked lanes try to write once more.
    pub(super) fn forget_blocked(&mut self) {
        self.blocked.clear();
    }

    /// Writes the waiting bytes of one lane; returns `true` if none is left.
    fn write(&mut self, name: LaneId, outbox: &mut Outbox) -> bool {
        let Some(lane) = self.all.get_mut(&name) else {
            outbox.discard(name);
            return true;
        };
        let mut left = MAX_WRITE_PER_TURN;
        while left > 0
            && let Some(send) = &mut lane.send
        {
            let cx = &mut Context::from_waker(&lane.waker);
            let Some(polled) = poll_write_lane(send, outbox, name, usize::MAX, None, cx) else {
                break;
            };
            match polled {
                Poll::Ready(Ok(written)) => {
                    self.bytes_sent += written.bytes as u64;
                    left = left.saturating_sub(written.bytes);
                }
                Poll::Ready(Err(WriteError::Stopped(code))) => {
                    outbox.discard(name);
                    self.abort(name, code);
                    self.forget_ended(name);
                    self.closed
                        .push_back((name, LaneClosed::Stopped(code.into_inner())));
                    return true;
                }
                polled => {
                    self.write_failed |=
                        matches!(polled, Poll::Ready(Err(WriteError::ConnectionLost(_))));
                    self.blocked.insert(name);
                    return false;
                }
            }
        }
        if lane.send.is_none() {
            outbox.discard_bytes(name);
        }
        match outbox.take_end(name) {
            Some(LaneEnd::Finish) => {
                lane.ended = true;
                if let Some(mut send) = lane.send.take() {
                    // It cannot have ended: only this function ends it.
                    let _ = send.finish();
                }
                self.forget_ended(name);
                true
            }
            Some(LaneEnd::Abort(code)) => {
                lane.ended = true;
                self.abort(name, code.into());
                self.all.remove(&name);
                self.blocked.remove(&name);
                true
            }
            None => outbox.is_empty_on(name),
        }
    }

    /// Ends both directions of a lane at once.
    fn abort(&mut self, name: LaneId, code: VarInt) {
        let Some(lane) = self.all.get_mut(&name) else {
            return;
        };
        if let Some(mut send) = lane.send.take() {
            let _ = send.reset(code);
        }
        if let Some(mut recv) = lane.recv.take() {
            let _ = recv.stop(code);
        }
        lane.stopped = None;
        lane.ended = true;
    }

    /// Forgets a lane that both sides have ended. Its unconsumed bytes go with it.
    fn forget_ended(&mut self, name: LaneId) {
        let over = |lane: &Lane| lane.ended && lane.recv.is_none();
        if self.all.get(&name).is_some_and(over) {
            self.all.remove(&name);
            self.blocked.remove(&name);
        }
    }

    /// Ends all lanes, and waits until the peer has everything.
    pub(super) async fn close(&mut self) {
        self.accepting = [None, None];
        self.datagrams = None;
        for mut lane in mem::take(&mut self.all).into_values() {
            if let Some(mut send) = lane.send.take()
                && send.finish().is_ok()
            {
                let _ = send.stopped().await;
            }
        }
    }
}

fn both(connection: quinn::Connection) -> Accepting {
    Box::pin(async move {
        let (send, recv) = connection.accept_bi().await?;
        Ok((Some(send), recv))
    })
}

fn next_datagram(connection: quinn::Connection) -> NextDatagram {
    Box::pin(async move { connection.read_datagram().await })
}

fn only_theirs(connection: quinn::Connection) -> Accepting {
    Box::pin(async move { Ok((None, connection.accept_uni().await?)) })
}

/// Outcome of a read from a lane.
enum Read {
    Bytes(usize),
    Closed(LaneClosed),
}

impl Lane {
    fn poll_read(&mut self) -> Poll<Read> {
        let cx = &mut Context::from_waker(&self.waker);
        if let Some(recv) = &mut self.recv {
            let mut chunks: [Bytes; CHUNKS_PER_CALL] = std::array::from_fn(|_| Bytes::new());
            // The future holds no state: dropped while pending, it has read nothing.
            let polled = pin!(recv.read_chunks(&mut chunks)).poll(cx);
            match polled {
                Poll::Ready(Ok(Some(filled))) => {
                    let count = chunks[..filled].iter().map(Bytes::len).sum();
                    self.bytes_received += count as u64;
                    self.received.reserve(count);
                    for bytes in &chunks[..filled] {
                        self.received.extend_from_slice(bytes);
                    }
                    return Poll::Ready(Read::Bytes(count));
                }
                Poll::Ready(Ok(None)) => {
                    self.recv = None;
                    return Poll::Ready(Read::Closed(LaneClosed::Finished));
                }
                Poll::Ready(Err(ReadError::Reset(code))) => {
                    self.recv = None;
                    let code = code.into_inner();
                    return Poll::Ready(Read::Closed(LaneClosed::Reset(code)));
                }
                // Reading the control stream reports the end of the connection.
                Poll::Ready(Err(_)) => {}
                Poll::Pending => {
                    if self.received.is_empty() {
                        self.received = BytesMut::new();
                    }
                }
            }
        }
        if let Some(stopped) = &mut self.stopped
            && let Poll::Ready(outcome) = stopped.as_mut().poll(cx)
        {
            self.stopped = None;
            if let Ok(Some(code)) = outcome {
                let code = code.into_inner();
                return Poll::Ready(Read::Closed(LaneClosed::Stopped(code)));
            }
        }
        Poll::Pending
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes")
            .field("lanes", &self.all.keys())
            .finish_non_exhaustive()
    }
}
