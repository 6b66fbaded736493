//! Proxies on loopback that hold every datagram, or every byte, for a fixed time.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// Datagrams or reads that may be under way in one direction.
const UNDER_WAY: usize = 4096;

/// Datagrams with the address of the client that sent them.
type Recorded = Arc<Mutex<Vec<(SocketAddr, Vec<u8>)>>>;

/// Forwards UDP datagrams after a delay, the same each way, in order, and remembers what clients
/// sent.
#[derive(Debug)]
pub struct UdpProxy {
    address: SocketAddr,
    recorded: Recorded,
    _tasks: JoinSet<()>,
}

impl UdpProxy {
    /// Starts one in front of `target`.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub async fn start(target: SocketAddr, one_way: Duration) -> io::Result<Self> {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
        let address = front.local_addr()?;
        let recorded = Recorded::default();
        let record = Arc::clone(&recorded);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Ends with the proxy: the sockets and tasks of all clients are in here.
            let mut clients = HashMap::new();
            let mut inner = JoinSet::new();
            let mut datagram = vec![0; 65_536];
            while let Ok((length, from)) = front.recv_from(&mut datagram).await {
                let bytes = datagram[..length].to_vec();
                record
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((from, bytes.clone()));
                let known = clients.entry(from);
                let up: &mpsc::Sender<(Instant, Vec<u8>)> = match known {
                    std::collections::hash_map::Entry::Occupied(ref up) => up.get(),
                    std::collections::hash_map::Entry::Vacant(place) => {
                        let Ok(back) = UdpSocket::bind("127.0.0.1:0").await else {
                            continue;
                        };
                        if back.connect(target).await.is_err() {
                            continue;
                        }
                        let back = Arc::new(back);
                        let (up, held) = mpsc::channel(UNDER_WAY);
                        inner.spawn(forward(held, Arc::clone(&back), None));
                        let (down, answers) = mpsc::channel(UNDER_WAY);
                        inner.spawn(forward(answers, Arc::clone(&front), Some(from)));
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
            _tasks: tasks,
        })
    }

    /// Where clients send to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What clients have sent so far, with their addresses, in order.
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
) {
    while let Some((at, bytes)) = held.recv().await {
        sleep_until(at).await;
        // A datagram that cannot be sent is a datagram that is lost.
        let _ = match to {
            Some(to) => socket.send_to(&bytes, to).await,
            None => socket.send(&bytes).await,
        };
    }
}

/// Forwards TCP connections, each read held for a delay, the same each way.
///
/// The handshake of TCP itself is not delayed: `connect` returns at once, and the connection to the
/// target is made after one delay.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl TcpProxy {
    /// Starts one in front of `target`.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub async fn start(target: SocketAddr, one_way: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else {
                        return;
                    };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let (client_read, client_write) = client.into_split();
                    let (server_read, server_write) = server.into_split();
                    tokio::join!(
                        pipe(client_read, server_write, one_way),
                        pipe(server_read, client_write, one_way)
                    );
                });
            }
        });
        Ok(Self {
            address,
            _tasks: tasks,
        })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn pipe(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    delay: Duration,
) {
    let (sender, mut held) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let read = async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let held = (Instant::now() + delay, buffer[..length].to_vec());
            if sender.send(held).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = held.recv().await {
            sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
