//! Proxies on loopback that hold every datagram, or every byte, for a fixed time.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

/// Datagrams or reads that may be under way in one direction.
const UNDER_WAY: usize = 4096;

/// Datagrams with the address of the client that sent them.
type Recorded = Arc<Mutex<Vec<(SocketAddr, Vec<u8>)>>>;

/// Forwards UDP datagrams after a delay, the same each way, in order, and records the datagrams of
/// clients.
#[derive(Debug)]
pub struct UdpProxy {
    address: SocketAddr,
    recorded: Recorded,
    gate: Gate,
    /// `true` while the datagrams of clients are lost.
    loses: Arc<AtomicBool>,
    /// The address from which the target sees clients.
    outside: watch::Sender<(IpAddr, Duration)>,
    _tasks: JoinSet<()>,
}

impl UdpProxy {
    /// Starts a proxy in front of `target`.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub async fn start(target: SocketAddr, one_way: Duration) -> io::Result<Self> {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
        let address = front.local_addr()?;
        let recorded = Recorded::default();
        let record = Arc::clone(&recorded);
        let gate = Gate::default();
        let passage = gate.passage();
        let loses = Arc::new(AtomicBool::new(false));
        let losing = Arc::clone(&loses);
        let (outside, mut mapping) =
            watch::channel((IpAddr::V4(Ipv4Addr::LOCALHOST), Duration::ZERO));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Ends with the proxy: the sockets and tasks of all clients are in here.
            let mut clients = HashMap::new();
            let mut inner = JoinSet::new();
            let mut datagram = vec![0; 65_536];
            loop {
                let (length, from) = tokio::select! {
                    received = front.recv_from(&mut datagram) => match received {
                        Ok(received) => received,
                        Err(_) => return,
                    },
                    changed = mapping.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        // Datagrams of the target to the old addresses are lost.
                        clients.clear();
                        inner.abort_all();
                        let until = Instant::now() + mapping.borrow_and_update().1;
                        while timeout_at(until, front.recv_from(&mut datagram)).await.is_ok() {}
                        continue;
                    }
                };
                let bytes = datagram[..length].to_vec();
                record
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((from, bytes.clone()));
                if losing.load(Ordering::Relaxed) {
                    continue;
                }
                let known = clients.entry(from);
                let up: &mpsc::Sender<(Instant, Vec<u8>)> = match known {
                    std::collections::hash_map::Entry::Occupied(ref up) => up.get(),
                    std::collections::hash_map::Entry::Vacant(place) => {
                        let outside = SocketAddr::new(mapping.borrow().0, 0);
                        let Ok(back) = UdpSocket::bind(outside).await else {
                            continue;
                        };
                        if back.connect(target).await.is_err() {
                            continue;
                        }
                        let back = Arc::new(back);
                        let (up, held) = mpsc::channel(UNDER_WAY);
                        inner.spawn(forward(
                            held,
                            Arc::clone(&back),
                            None,
                            Some(passage.clone()),
                        ));
                        let (down, answers) = mpsc::channel(UNDER_WAY);
                        inner.spawn(forward(answers, Arc::clone(&front), Some(from), None));
                        inner.spawn(receive(back, down, one_way));
                        place.insert(up)
                    }
                };
                // A full queue drops, as a router's does.
                let _ = up.try_send((Instant::now() + one_way, bytes));
            }
        });
        Ok(Self {
            address,
            recorded,
            gate,
            loses,
            outside,
            _tasks: tasks,
        })
    }

    /// Forgets its clients, as a restarted NAT does, and forwards nothing during `outage`. With its next
    /// datagram, each client then gets another port at `outside`, an address of loopback. Until then the
    /// client hears nothing.
    pub fn rebind(&self, outside: IpAddr, outage: Duration) {
        self.outside.send_replace((outside, outage));
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds back the data of clients from now on, until [`release`](Self::release); it is recorded.
    pub fn hold(&self) {
        self.gate.set_held(true);
    }

    /// Forwards the held data, in order.
    pub fn release(&self) {
        self.gate.set_held(false);
    }

    /// Loses the datagrams of clients from now on, or no longer; they are recorded.
    pub fn set_losing(&self, loses: bool) {
        self.loses.store(loses, Ordering::Relaxed);
    }

    /// Returns the datagrams of clients so far, with their addresses, in order.
    #[must_use]
    pub fn recorded(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        self.recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn receive(socket: Arc<UdpSocket>, to: mpsc::Sender<(Instant, Vec<u8>)>, delay: Duration) {
    let mut datagram = vec![0; 65_536];
    loop {
        match socket.recv(&mut datagram).await {
            Ok(length) => {
                let held = (Instant::now() + delay, datagram[..length].to_vec());
                let _ = to.try_send(held);
            }
            // The target's port is closed for now (a restart); the next datagram may find it open.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return,
        }
    }
}

async fn forward(
    mut held: mpsc::Receiver<(Instant, Vec<u8>)>,
    socket: Arc<UdpSocket>,
    to: Option<SocketAddr>,
    mut passage: Option<Passage>,
) {
    while let Some((at, bytes)) = held.recv().await {
        sleep_until(at).await;
        if let Some(passage) = &mut passage {
            passage.open().await;
        }
        // A datagram that cannot be sent is lost.
        let _ = match to {
            Some(to) => socket.send_to(&bytes, to).await,
            None => socket.send(&bytes).await,
        };
    }
}

/// Holds back one direction of a proxy while it is shut.
#[derive(Debug, Default)]
struct Gate(watch::Sender<bool>);

impl Gate {
    fn set_held(&self, held: bool) {
        self.0.send_replace(held);
    }

    fn passage(&self) -> Passage {
        Passage(self.0.subscribe())
    }
}

/// The data that passes a [`Gate`].
#[derive(Clone, Debug)]
struct Passage(watch::Receiver<bool>);

impl Passage {
    /// Waits until the gate is open; for ever once the proxy is dropped.
    async fn open(&mut self) {
        if self.0.wait_for(|held| !held).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Forwards TCP connections, each read held for a delay, the same each way.
///
/// The handshake of TCP itself is not delayed: `connect` returns at once, and the connection to the
/// target is made after one delay.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    recorded: Arc<Mutex<Vec<Vec<u8>>>>,
    gate: Gate,
    _tasks: JoinSet<()>,
}

impl TcpProxy {
    /// Starts a proxy in front of `target`.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub async fn start(target: SocketAddr, one_way: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let recorded = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let record = Arc::clone(&recorded);
        let gate = Gate::default();
        let passage = gate.passage();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (record, passage) = (Arc::clone(&record), passage.clone());
                let number = {
                    let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
                    record.push(Vec::new());
                    record.len() - 1
                };
                let keep = move |bytes: &[u8]| {
                    let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
                    record[number].extend_from_slice(bytes);
                };
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else {
                        return;
                    };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let (client_read, client_write) = client.into_split();
                    let (server_read, server_write) = server.into_split();
                    tokio::join!(
                        pipe(client_read, server_write, one_way, Some(passage), keep),
                        pipe(server_read, client_write, one_way, None, |_| {})
                    );
                });
            }
        });
        Ok(Self {
            address,
            recorded,
            gate,
            _tasks: tasks,
        })
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the bytes of clients so far, for each connection, in the order of the connections.
    #[must_use]
    pub fn recorded(&self) -> Vec<Vec<u8>> {
        self.recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Holds back the data of clients from now on, until [`release`](Self::release); it is recorded.
    pub fn hold(&self) {
        self.gate.set_held(true);
    }

    /// Forwards the held data, in order.
    pub fn release(&self) {
        self.gate.set_held(false);
    }
}

async fn pipe(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    delay: Duration,
    mut passage: Option<Passage>,
    keep: impl Fn(&[u8]),
) {
    let (sender, mut held) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let read = async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            keep(&buffer[..length]);
            let held = (Instant::now() + delay, buffer[..length].to_vec());
            if sender.send(held).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = held.recv().await {
            sleep_until(at).await;
            if let Some(passage) = &mut passage {
                passage.open().await;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
