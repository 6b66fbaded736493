//! Links within this process, for tests and simulations: bounded, ordered, optionally delayed.

use std::{
    collections::{HashMap, VecDeque},
    future::Future as _,
    pin::Pin,
    sync::{Arc, LazyLock, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use mq_lane::{LaneId, Outbox};
use tokio::{
    sync::mpsc,
    time::{Instant, Sleep},
};

use crate::{
    Address, Error, LinkInfo, LinkStats, Progress, Scheme, SendProgress,
    socket::listen_error,
    sync::{lock, wake},
};

/// Bytes under way in one direction; then the writer waits.
const CAPACITY: usize = 256 * 1024;

/// A link over a pair of pipes in memory.
#[derive(Debug)]
pub(crate) struct MemLink {
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    delay: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    pub(crate) received: BytesMut,
    read_turn: bool,
    bytes_sent: u64,
    bytes_received: u64,
}

/// The pipe of one direction.
#[derive(Debug, Default)]
struct Pipe {
    /// Written bytes with their time of arrival; `None` is the end of the stream.
    chunks: VecDeque<(Instant, Option<Bytes>)>,
    len: usize,
    reader: Option<Waker>,
    writer: Option<Waker>,
    reader_gone: bool,
}

impl MemLink {
    /// Makes two links that are each other's peer; bytes take `delay` from one to the other.
    pub(crate) fn pair(delay: Duration) -> (Self, Self) {
        let there = Arc::<Mutex<Pipe>>::default();
        let back = Arc::<Mutex<Pipe>>::default();
        let end = |incoming: &Arc<Mutex<Pipe>>, outgoing: &Arc<Mutex<Pipe>>| Self {
            incoming: incoming.clone(),
            outgoing: outgoing.clone(),
            delay,
            timer: None,
            received: BytesMut::new(),
            read_turn: false,
            bytes_sent: 0,
            bytes_received: 0,
        };
        (end(&there, &back), end(&back, &there))
    }

    pub(crate) fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Poll<Result<Progress, Error>> {
        if want_read
            && std::mem::take(&mut self.read_turn)
            && let Poll::Ready(progress) = self.poll_receive(cx)
        {
            return Poll::Ready(Ok(progress));
        }
        if !outbox.is_empty() && self.poll_write(cx, outbox)?.is_ready() {
            self.read_turn = true;
            return Poll::Ready(Ok(Progress::Flushed));
        }
        if want_read {
            self.poll_receive(cx).map(Ok)
        } else {
            Poll::Pending
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<Result<(), Error>> {
        let mut pipe = lock(&self.outgoing);
        while let Some(mut chunk) = outbox.take(LaneId::CONTROL) {
            if pipe.reader_gone {
                return Poll::Ready(Err(Error::reset("")));
            }
            let room = CAPACITY - pipe.len;
            if chunk.bytes.len() > room {
                outbox.put_back(LaneId::CONTROL, Outbox::split(&mut chunk, room));
            }
            let bytes = chunk.bytes;
            if !bytes.is_empty() {
                self.bytes_sent += bytes.len() as u64;
                pipe.len += bytes.len();
                let arrival = Instant::now() + self.delay;
                pipe.chunks.push_back((arrival, Some(bytes)));
                wake(pipe.reader.take());
            }
            if pipe.len == CAPACITY && !outbox.is_empty() {
                pipe.writer = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Progress> {
        let mut pipe = lock(&self.incoming);
        let before = self.received.len();
        let mut ended = false;
        let now = Instant::now();
        while let Some((arrival, chunk)) = pipe.chunks.front() {
            if *arrival > now {
                break;
            }
            let Some(bytes) = chunk else {
                ended = true;
                break;
            };
            self.received.extend_from_slice(bytes);
            pipe.len -= bytes.len();
            pipe.chunks.pop_front();
        }
        let count = self.received.len() - before;
        if count > 0 {
            self.bytes_received += count as u64;
            wake(pipe.writer.take());
            return Poll::Ready(Progress::Received(LaneId::CONTROL));
        }
        if ended {
            return Poll::Ready(Progress::Closed);
        }
        pipe.reader = Some(cx.waker().clone());
        let next = pipe.chunks.front().map(|(arrival, _)| *arrival);
        drop(pipe);
        if let Some(arrival) = next {
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(arrival)));
            if timer.deadline() != arrival {
                timer.as_mut().reset(arrival);
            }
            if timer.as_mut().poll(cx).is_ready() {
                self.timer = None;
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            bytes_sent: self.bytes_sent,
            bytes_received: self.bytes_received,
            ..LinkStats::default()
        }
    }

    #[expect(clippy::unused_self, reason = "the same form as the other transports")]
    pub(crate) fn send_progress(&self) -> SendProgress {
        SendProgress::default()
    }

    #[expect(clippy::unused_self, reason = "the same form as the other transports")]
    pub(crate) fn info(&self) -> LinkInfo {
        LinkInfo {
            scheme: Scheme::Mem,
            peer_address: None,
            local_address: None,
            tls: None,
            peer_certificates: Vec::new(),
        }
    }
}

impl Drop for MemLink {
    /// Ends the link: the peer reads what is under way, and then the end.
    fn drop(&mut self) {
        let mut outgoing = lock(&self.outgoing);
        outgoing
            .chunks
            .push_back((Instant::now() + self.delay, None));
        wake(outgoing.reader.take());
        drop(outgoing);
        let mut incoming = lock(&self.incoming);
        incoming.reader_gone = true;
        wake(incoming.writer.take());
    }
}

/// The listeners of this process, by name.
static LISTENERS: LazyLock<Mutex<HashMap<String, mpsc::Sender<MemLink>>>> =
    LazyLock::new(Mutex::default);

/// A registered name in this process, and its queue of new links.
#[derive(Debug)]
pub(crate) struct MemListener {
    name: String,
    sender: mpsc::Sender<MemLink>,
    pub(crate) incoming: mpsc::Receiver<MemLink>,
}

impl MemListener {
    /// Registers the name. Once `backlog` connections wait to be accepted, further calls of [`connect`] wait.
    pub(crate) fn bind(address: &Address, backlog: u32) -> Result<Self, Error> {
        let mut listeners = lock(&LISTENERS);
        let taken = listeners
            .get(&address.host)
            .is_some_and(|other| !other.is_closed());
        if taken {
            return Err(listen_error(address, std::io::ErrorKind::AddrInUse.into()));
        }
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX).max(1);
        let (sender, incoming) = mpsc::channel(backlog);
        listeners.insert(address.host.clone(), sender.clone());
        Ok(Self {
            name: address.host.clone(),
            sender,
            incoming,
        })
    }

    pub(crate) fn close(&self) {
        let mut listeners = lock(&LISTENERS);
        let registered = listeners.get(&self.name);
        if registered.is_some_and(|sender| sender.same_channel(&self.sender)) {
            listeners.remove(&self.name);
        }
    }
}

impl Drop for MemListener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Connects to the listener of the address's name.
pub(crate) async fn connect(address: &Address) -> Result<MemLink, Error> {
    let unreachable = || Error::Unreachable {
        address: address.clone(),
        source: std::io::ErrorKind::ConnectionRefused.into(),
    };
    let listener = lock(&LISTENERS).get(&address.host).cloned();
    let (ours, theirs) = MemLink::pair(Duration::ZERO);
    let listener = listener.ok_or_else(unreachable)?;
    listener.send(theirs).await.map_err(|_| unreachable())?;
    Ok(ours)
}
