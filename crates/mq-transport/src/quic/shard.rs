//! The sockets of a listener.
//!
//! A quinn endpoint receives datagrams and answers new clients under one lock, so one processor at a time
//! does either, and all clients wait for it. Its tables never shrink. So a
//! listener has several endpoints, *shards*, each with a socket of its own, all at one port. The kernel
//! spreads clients over the sockets by their addresses.
//!
//! ```text
//!            +-> socket -> shard 0
//! port 8883 -+-> socket -> shard 1 <-+
//!            +-> socket -> shard 2   |
//!                  +-- passed on ----+
//! ```
//!
//! A client whose address changes (RFC 9000 §9) reaches another socket than before. The kernel also joins
//! datagrams of different clients that share an address (GRO). So each connection identifier names the
//! shard that chose it, and a shard passes on datagrams that belong to another.

use std::{
    array,
    cell::RefCell,
    collections::VecDeque,
    fmt,
    hash::{DefaultHasher, Hasher as _},
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use quinn::{
    AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use quinn_proto::InvalidCid;

use crate::sync::{lock, wake};

/// Bytes of a connection identifier.
const ID_LEN: usize = 8;

/// Bytes at the end of a connection identifier that tell it from noise. A server that was started again may choose an identifier
/// that a connection of the earlier process has: that one's packets reach the wrong connection, which drops them, and its client gets no
/// stateless reset. With four random bytes, and eight identifiers a connection, one of 5,000 clients had that in a twentieth of all
/// restarts; with five it is one in 5,000.
const MARK_LEN: usize = 3;

/// Datagrams from other shards that may wait in an inbox; further ones are dropped, as at a full socket.
const INBOX_CAPACITY: usize = 1024;

/// Datagrams, or batches that the kernel has joined (GRO), read in one call.
const READ_AT_ONCE: usize = 32;

/// Datagrams read in one call from a quiet socket: each place that stays empty costs as much as a datagram.
const READ_AT_ONCE_WHEN_QUIET: usize = 4;

thread_local! {
    /// The buffer into which this thread reads. Quinn has room for single datagrams only: room for joined
    /// ones would take 3 MB for each endpoint.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Connection identifiers that name their shard: random bytes, of which the first names the shard, and
/// [`MARK_LEN`] bytes that tell them from noise.
#[derive(Clone, Copy)]
struct Ids {
    /// Key of the bytes that tell an identifier from noise.
    key: u64,
    shards: u8,
}

impl Ids {
    fn choose(self, shard: u8) -> ConnectionId {
        let mut id: [u8; ID_LEN] = rand::random();
        id[0] = shard + self.shards * (id[0] % (u8::MAX / self.shards));
        let (random, mark) = id.split_at_mut(ID_LEN - MARK_LEN);
        mark.copy_from_slice(&self.mark(random));
        ConnectionId::new(&id)
    }

    fn has_chosen(self, id: &[u8]) -> bool {
        let Some((random, mark)) = id.split_last_chunk::<MARK_LEN>() else {
            return false;
        };
        id.len() == ID_LEN && *mark == self.mark(random)
    }

    fn mark(self, random: &[u8]) -> [u8; MARK_LEN] {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.key);
        hasher.write(random);
        let hash = hasher.finish().to_le_bytes();
        *hash.first_chunk().expect("three of eight")
    }

    /// Returns the shard that a datagram belongs to, if it is another than this one.
    fn other(self, shard: u8, datagram: &[u8]) -> Option<u8> {
        // RFC 9000 §17.2, §17.3. A client begins with identifiers of its own.
        let long = datagram.first()? & 0x80 != 0;
        if long && usize::from(*datagram.get(5)?) != ID_LEN {
            return None;
        }
        let at = if long { 6 } else { 1 };
        let id = datagram.get(at..at + ID_LEN)?;
        let other = id[0] % self.shards;
        (other != shard && self.has_chosen(id)).then_some(other)
    }
}

/// Chooses the connection identifiers of one shard.
struct ShardIdGenerator {
    ids: Ids,
    shard: u8,
}

impl ConnectionIdGenerator for ShardIdGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        self.ids.choose(self.shard)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let ours = self.ids.has_chosen(id);
        ours.then_some(()).ok_or(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

type Datagrams = VecDeque<(RecvMeta, Box<[u8]>)>;

/// Datagrams of a shard that are not read from its socket any more.
#[derive(Default)]
struct Inbox {
    /// Joined datagrams for which there was no room. They come first.
    left: Datagrams,
    /// Datagrams that other shards have received.
    passed: Datagrams,
    /// Wakes the reader.
    reader: Option<Waker>,
}

impl Inbox {
    /// Wakes the caller when a datagram comes.
    fn wait(&mut self, cx: &Context<'_>) {
        match &mut self.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }

    fn take(&mut self) -> Option<(RecvMeta, Box<[u8]>)> {
        self.left.pop_front().or_else(|| self.passed.pop_front())
    }
}

/// Quinn's buffers for received datagrams.
struct ReceiveBuffers<'a, 'b> {
    bufs: &'a mut [IoSliceMut<'b>],
    meta: &'a mut [RecvMeta],
    filled: usize,
}

impl ReceiveBuffers<'_, '_> {
    fn is_full(&self) -> bool {
        self.filled == self.bufs.len()
    }

    /// Fills the next buffer with a datagram. Panics if all are full.
    fn put(&mut self, meta: &RecvMeta, datagram: &[u8]) {
        let size = datagram.len();
        self.bufs[self.filled][..size].copy_from_slice(datagram);
        self.meta[self.filled] = RecvMeta {
            len: size,
            stride: size,
            ..*meta
        };
        self.filled += 1;
    }
}

/// A shard's socket, until it is [retired](Self::retire).
pub(super) struct ShardSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    ids: Ids,
    shard: u8,
    /// The inboxes of all shards, by shard number.
    inboxes: Arc<[Mutex<Inbox>]>,
    retired: AtomicBool,
    /// The last read filled all of its places.
    is_busy: AtomicBool,
    /// The task that would read the socket, had it not been retired.
    resting: Mutex<Option<Waker>>,
}

impl ShardSocket {
    /// Makes a shard for each of these sockets; `key` tells their connection identifiers from noise.
    pub(super) fn each(sockets: Vec<Arc<dyn AsyncUdpSocket>>, key: u64) -> Vec<Arc<Self>> {
        let inboxes: Arc<[_]> = sockets.iter().map(|_| Mutex::default()).collect();
        let shards = u8::try_from(sockets.len()).unwrap_or(u8::MAX).max(1);
        let ids = Ids { key, shards };
        let shards = (0..shards).zip(sockets);
        let shards = shards.map(|(shard, socket)| Self::new(socket, ids, shard, inboxes.clone()));
        shards.collect()
    }

    fn new(
        socket: Arc<dyn AsyncUdpSocket>,
        ids: Ids,
        shard: u8,
        inboxes: Arc<[Mutex<Inbox>]>,
    ) -> Arc<Self> {
        Arc::new(Self {
            socket,
            ids,
            shard,
            inboxes,
            retired: AtomicBool::new(false),
            is_busy: AtomicBool::new(false),
            resting: Mutex::default(),
        })
    }

    /// Returns another handle of this shard's socket, for the endpoint that replaces the present one.
    pub(super) fn successor(&self) -> Arc<Self> {
        let (socket, inboxes) = (self.socket.clone(), self.inboxes.clone());
        Self::new(socket, self.ids, self.shard, inboxes)
    }

    /// Stops receiving: datagrams are for the successor.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Lets the socket receive again after [`retire`](Self::retire), and wakes its reader.
    pub(super) fn resume(&self) {
        self.retired.store(false, Ordering::Release);
        let reader = lock(&self.resting).take();
        wake(reader);
    }

    /// Returns a generator of connection identifiers that name this shard.
    pub(super) fn connection_ids(&self) -> Box<dyn ConnectionIdGenerator> {
        Box::new(ShardIdGenerator {
            ids: self.ids,
            shard: self.shard,
        })
    }

    fn inbox(&self, shard: u8) -> MutexGuard<'_, Inbox> {
        lock(&self.inboxes[usize::from(shard)])
    }

    fn pass_on(&self, other: u8, meta: &RecvMeta, datagram: &[u8]) {
        let mut inbox = self.inbox(other);
        if inbox.passed.len() < INBOX_CAPACITY {
            inbox.passed.push_back((*meta, datagram.into()));
        }
        let reader = inbox.reader.take();
        drop(inbox);
        wake(reader);
    }

    /// Reads datagrams into the room, which is not full.
    fn poll_socket(
        &self,
        cx: &mut Context<'_>,
        room: &mut ReceiveBuffers<'_, '_>,
    ) -> Poll<io::Result<()>> {
        if self.is_busy.load(Ordering::Relaxed) {
            self.poll_read::<READ_AT_ONCE>(cx, room)
        } else {
            self.poll_read::<READ_AT_ONCE_WHEN_QUIET>(cx, room)
        }
    }

    fn poll_read<const AT_ONCE: usize>(
        &self,
        cx: &mut Context<'_>,
        room: &mut ReceiveBuffers<'_, '_>,
    ) -> Poll<io::Result<()>> {
        let one = room.bufs[0].len();
        let joined = self.socket.max_receive_segments() * one;
        READ_BUFFER.with_borrow_mut(|memory| {
            if memory.len() < AT_ONCE * joined {
                *memory = vec![0; READ_AT_ONCE * joined];
            }
            let mut chunks = memory.chunks_exact_mut(joined);
            let mut bufs: [_; AT_ONCE] =
                array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
            let mut meta = [RecvMeta::default(); AT_ONCE];
            let count = ready!(self.socket.poll_recv(cx, &mut bufs, &mut meta))?;
            self.is_busy.store(count == AT_ONCE, Ordering::Relaxed);
            for (buf, meta) in bufs.iter().zip(&meta).take(count) {
                for datagram in buf[..meta.len].chunks(meta.stride.max(1)) {
                    if datagram.len() > one {
                        // None that anybody was told to send.
                    } else if let Some(other) = self.ids.other(self.shard, datagram) {
                        self.pass_on(other, meta, datagram);
                    } else if room.is_full() {
                        let mut inbox = self.inbox(self.shard);
                        inbox.left.push_back((*meta, datagram.into()));
                    } else {
                        room.put(meta, datagram);
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncUdpSocket for ShardSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.retired.load(Ordering::Acquire) {
            *lock(&self.resting) = Some(cx.waker().clone());
            // Otherwise it has resumed meanwhile.
            if self.retired.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        let mut inbox = self.inbox(self.shard);
        inbox.wait(cx);
        let mut room = ReceiveBuffers {
            bufs,
            meta,
            filled: 0,
        };
        while !room.is_full()
            && let Some((meta, datagram)) = inbox.take()
        {
            room.put(&meta, &datagram);
        }
        drop(inbox);
        if !room.is_full() {
            let read = self.poll_socket(cx, &mut room);
            // An error of the socket comes again with the next read.
            if room.filled == 0 {
                ready!(read)?;
                // All datagrams were for others, but quinn counts its reads.
                room.put(&RecvMeta::default(), &[]);
            }
        }
        Poll::Ready(Ok(room.filled))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

impl fmt::Debug for ShardSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardSocket")
            .field("socket", &self.socket)
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A socket that has received something, and will not receive more.
    #[derive(Debug, Default)]
    struct Received(Mutex<VecDeque<(RecvMeta, Vec<u8>)>>);

    impl Received {
        /// Adds datagrams that the kernel has joined (GRO) into one read.
        fn joined(&self, from: SocketAddr, datagrams: &[Vec<u8>]) {
            let bytes = datagrams.concat();
            let meta = RecvMeta {
                addr: from,
                len: bytes.len(),
                stride: datagrams[0].len(),
                ..RecvMeta::default()
            };
            self.0.lock().unwrap().push_back((meta, bytes));
        }
    }

    impl AsyncUdpSocket for Received {
        fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
            unreachable!("nothing is sent")
        }

        fn try_send(&self, _: &Transmit<'_>) -> io::Result<()> {
            unreachable!("nothing is sent")
        }

        fn poll_recv(
            &self,
            _: &mut Context<'_>,
            bufs: &mut [IoSliceMut<'_>],
            meta: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            let mut received = self.0.lock().unwrap();
            let count = received.len().min(bufs.len());
            for ((of, bytes), (buf, meta)) in received.drain(..count).zip(bufs.iter_mut().zip(meta))
            {
                buf[..bytes.len()].copy_from_slice(&bytes);
                *meta = of;
            }
            if count == 0 {
                return Poll::Pending;
            }
            Poll::Ready(Ok(count))
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            unreachable!("nobody asks")
        }

        fn max_receive_segments(&self) -> usize {
            64
        }
    }

    /// Shards on sockets that have received nothing yet.
    fn shards(count: usize) -> (Vec<Arc<Received>>, Vec<Arc<ShardSocket>>) {
        let sockets: Vec<_> = (0..count).map(|_| Arc::<Received>::default()).collect();
        let shards = sockets
            .iter()
            .map(|one| one.clone() as Arc<dyn AsyncUdpSocket>);
        (sockets.clone(), ShardSocket::each(shards.collect(), 7))
    }

    /// Returns the datagrams, each with its sender, of one poll of the shard with `room` buffers.
    fn look(shard: &ShardSocket, room: usize, waker: &Waker) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut memory = vec![[0; 1472]; room];
        let mut bufs: Vec<_> = memory.iter_mut().map(|one| IoSliceMut::new(one)).collect();
        let mut meta = vec![RecvMeta::default(); room];
        let polled = shard.poll_recv(&mut Context::from_waker(waker), &mut bufs, &mut meta);
        let Poll::Ready(count) = polled.map(Result::unwrap) else {
            return Vec::new();
        };
        let datagrams = meta.iter().zip(memory).take(count);
        let datagrams = datagrams.map(|(meta, bytes)| (meta.addr, bytes[..meta.len].to_vec()));
        // Quinn passes over empty ones.
        datagrams.filter(|(_, bytes)| !bytes.is_empty()).collect()
    }

    /// Makes a datagram with a short header, for the connection with that identifier.
    fn short(id: &[u8], number: u8) -> Vec<u8> {
        [&[0x40], id, &[number; 20]].concat()
    }

    /// Makes a datagram with a long header, for the connection with that identifier.
    fn long(id: &[u8]) -> Vec<u8> {
        let length = u8::try_from(id.len()).unwrap();
        [&[0xc0, 0, 0, 0, 1, length], id, &[0; 20]].concat()
    }

    fn from(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    struct Count(AtomicUsize);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_identifier_names_its_shard() {
        let (_, shards) = shards(16);
        for shard in &shards {
            let id = shard.connection_ids().generate_cid();
            for other in &shards {
                let expected = (other.shard != shard.shard).then_some(shard.shard);
                for datagram in [short(&id, 0), long(&id)] {
                    assert_eq!(other.ids.other(other.shard, &datagram), expected);
                }
            }
        }
    }

    #[test]
    fn first_packets_and_noise_stay_at_their_socket() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_, shards) = shards(16);
        for _ in 0..10_000 {
            let id: Vec<u8> = (0..random.usize(0..=20)).map(|_| random.u8(..)).collect();
            let noise: Vec<u8> = (0..random.usize(0..40)).map(|_| random.u8(..)).collect();
            for datagram in [long(&id), short(&id, 0), noise] {
                assert_eq!(shards[0].ids.other(0, &datagram), None, "{datagram:?}");
            }
        }
    }

    #[test]
    fn what_is_joined_reaches_everyone_it_is_for() {
        let (sockets, shards) = shards(2);
        let [mine, theirs] = [0, 1].map(|at: usize| shards[at].connection_ids().generate_cid());
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        assert_eq!(look(&shards[1], 32, &woken.clone().into()), []);
        let joined = [
            short(&mine, 0),
            short(&theirs, 1),
            short(&mine, 2),
            short(&theirs, 3),
        ];
        sockets[0].joined(from(5), &joined);
        let own = [0, 2].map(|at: usize| (from(5), joined[at].clone()));
        assert_eq!(look(&shards[0], 32, Waker::noop()), own);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        let passed = [1, 3].map(|at: usize| (from(5), joined[at].clone()));
        assert_eq!(look(&shards[1], 32, Waker::noop()), passed);
    }

    #[test]
    fn datagrams_that_do_not_fit_come_next() {
        let (sockets, shards) = shards(2);
        let id = shards[0].connection_ids().generate_cid();
        let joined: Vec<_> = (0..10).map(|number| short(&id, number)).collect();
        sockets[0].joined(from(5), &joined);
        let looks = (0..3).flat_map(|_| look(&shards[0], 4, Waker::noop()));
        let datagrams: Vec<_> = looks.map(|(_, datagram)| datagram).collect();
        assert_eq!(datagrams, joined);
    }

    #[test]
    fn an_inbox_is_bounded() {
        let (sockets, shards) = shards(2);
        let id = shards[1].connection_ids().generate_cid();
        for _ in 0..INBOX_CAPACITY {
            sockets[0].joined(from(5), &[short(&id, 1), short(&id, 2)]);
        }
        let mut reads = 0;
        while !sockets[0].0.lock().unwrap().is_empty() {
            assert_eq!(look(&shards[0], 32, Waker::noop()), []);
            reads += 1;
        }
        assert_eq!(
            reads,
            1 + (INBOX_CAPACITY - READ_AT_ONCE_WHEN_QUIET).div_ceil(READ_AT_ONCE)
        );
        assert_eq!(
            look(&shards[1], 2 * INBOX_CAPACITY, Waker::noop()).len(),
            INBOX_CAPACITY
        );
        // What is its own is not lost for that.
        let own = shards[0].connection_ids().generate_cid();
        for _ in 0..INBOX_CAPACITY / 32 {
            sockets[0].joined(from(5), &vec![short(&own, 1); 64]);
        }
        let mut taken = 0;
        while let more @ 1.. = look(&shards[0], 32, Waker::noop()).len() {
            taken += more;
        }
        assert_eq!(taken, 2 * INBOX_CAPACITY);
    }

    #[test]
    fn a_retired_socket_leaves_everything_to_its_successor() {
        let (sockets, shards) = shards(2);
        let id = shards[0].connection_ids().generate_cid();
        shards[0].retire();
        sockets[0].joined(from(5), &[short(&id, 1)]);
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        assert_eq!(look(&shards[0], 32, &woken.clone().into()), []);
        shards[0].resume();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        shards[0].retire();
        let successor = shards[0].successor();
        assert_eq!(
            look(&successor, 32, Waker::noop()),
            [(from(5), short(&id, 1))]
        );
        assert_eq!(successor.connection_ids().generate_cid()[0] % 2, 0);
        // Its own end does not take from the successor the news of what others pass on.
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        assert_eq!(look(&successor, 32, &woken.clone().into()), []);
        assert_eq!(look(&shards[0], 32, Waker::noop()), []);
        sockets[1].joined(from(5), &[short(&id, 2)]);
        assert_eq!(look(&shards[1], 32, Waker::noop()), []);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }
}
