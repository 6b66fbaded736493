//! Helpers of the tests: certificates made at run time, servers on loopback, sending, receiving.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use mq_transport::{
    Address, ConnectOptions, Connector, EarlyData, EarlyDataPolicy, Error, HandshakeKind, Incoming,
    Link, ListenOptions, Listener, Progress, Scheme, ServerIdentity, Trust,
};
use mq_transport::{LaneId, Outbox};
use tokio::{net::UdpSocket, sync::Notify, task::JoinHandle};

/// Bound on anything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Runs one test body over each transport that is named.
macro_rules! over {
    ($body:ident: $($transport:ident),+ $(,)?) => {
        mod $body {
            $(
                #[tokio::test]
                async fn $transport() {
                    let scheme = $crate::common::$transport();
                    tokio::time::timeout($crate::common::SOON, super::$body(scheme))
                        .await
                        .expect("it should not hang");
                }
            )+
        }
    };
}

pub(crate) fn tcp() -> Scheme {
    Scheme::Tcp
}
pub(crate) fn tls() -> Scheme {
    Scheme::Tls
}
pub(crate) fn quic() -> Scheme {
    Scheme::Quic
}
pub(crate) fn ws() -> Scheme {
    Scheme::Ws
}
pub(crate) fn wss() -> Scheme {
    Scheme::Wss
}
pub(crate) fn mem() -> Scheme {
    Scheme::Mem
}

pub(crate) static IDENTITY: LazyLock<ServerIdentity> =
    LazyLock::new(|| ServerIdentity::self_signed().unwrap());

/// Path of a file with the servers' certificate, for clients to trust.
pub(crate) static CA_FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let name = format!("ca-{}.pem", std::process::id());
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, IDENTITY.certificate_pem()).unwrap();
    path
});

pub(crate) fn listen_options() -> ListenOptions {
    ListenOptions {
        identity: Some(IDENTITY.clone()),
        early_data: EarlyDataPolicy::Full,
        ..ListenOptions::default()
    }
}

pub(crate) fn connect_options() -> ConnectOptions {
    ConnectOptions {
        trust: Trust::CaFile(CA_FILE.clone()),
        early_data: true,
        ..ConnectOptions::default()
    }
}

/// Returns an address for which the system chooses the port, or an unused name.
pub(crate) fn any_address(scheme: Scheme) -> Address {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    match scheme {
        Scheme::Mem => Address::new(scheme, NEXT.fetch_add(1, Ordering::Relaxed).to_string(), 0),
        _ => Address::new(scheme, "127.0.0.1", 0),
    }
}

pub(crate) async fn listen(scheme: Scheme) -> Listener {
    Listener::bind(&any_address(scheme), &listen_options())
        .await
        .unwrap()
}

pub(crate) async fn accept(listener: &mut Listener) -> Link {
    let incoming: Incoming = listener.accept().await.unwrap();
    incoming.handshake().await.unwrap()
}

/// Connects two ends, and lets the connection carry one byte.
pub(crate) async fn pair(scheme: Scheme) -> (Link, Link) {
    let mut listener = listen(scheme).await;
    let connector = Connector::new(connect_options()).unwrap();
    connect(&connector, &mut listener).await
}

/// Connects; the client sends `!`, as the server does not see a QUIC stream before it carries data.
pub(crate) async fn connect(connector: &Connector, listener: &mut Listener) -> (Link, Link) {
    connect_at(connector, &listener.local_address(), listener).await
}

/// [Connects](connect) to a listener at `address`, which may be another than the listener's own.
pub(crate) async fn connect_at(
    connector: &Connector,
    address: &Address,
    listener: &mut Listener,
) -> (Link, Link) {
    let client = async {
        let mut client = connector.connect(address).await.unwrap();
        send(&mut client, b"!").await;
        // The handshake may want both ends to be driven.
        client.handshake_complete().await.unwrap();
        if client.stats().early_data == EarlyData::Rejected {
            // Driving the link sends it again.
            let mut empty = Outbox::new();
            let more = client.progress(&mut empty, false);
            let _ = tokio::time::timeout(Duration::from_millis(20), more).await;
        }
        client
    };
    let server = async {
        let mut server = accept(listener).await;
        assert_eq!(receive(&mut server, 1).await, b"!");
        server.handshake_complete().await.unwrap();
        server
    };
    tokio::join!(client, server)
}

/// Connects once; the tickets arrive with the server's answer.
pub(crate) async fn collect_ticket(
    connector: &Connector,
    listener: &mut Listener,
) -> HandshakeKind {
    let (mut client, mut server) = connect(connector, listener).await;
    settle(&mut client, &mut server).await;
    assert_eq!(client.handshake(), server.handshake());
    client.handshake()
}

/// Has the client receive all that the server sent so far, tickets included.
pub(crate) async fn settle(client: &mut Link, server: &mut Link) {
    send(server, b"welcome").await;
    receive(client, 7).await;
    // On QUIC tickets have a stream of their own, which may arrive after the lane's.
    let mut empty = Outbox::new();
    let some = client.progress(&mut empty, true);
    let _ = tokio::time::timeout(Duration::from_millis(20), some).await;
}

pub(crate) fn outbox(bytes: &[u8]) -> Outbox {
    let mut outbox = Outbox::new();
    outbox.put_body(LaneId::CONTROL, &bytes.to_vec().into());
    outbox
}

/// Writes all of `bytes`; bytes received meanwhile wait in the link.
pub(crate) async fn send(link: &mut Link, bytes: &[u8]) {
    let mut outbox = outbox(bytes);
    assert_eq!(
        link.progress(&mut outbox, false).await.unwrap(),
        Progress::Flushed
    );
    assert!(outbox.is_empty());
}

/// Reads exactly `count` bytes.
pub(crate) async fn receive(link: &mut Link, count: usize) -> Vec<u8> {
    while link.received(LaneId::CONTROL).len() < count {
        let progress = link.progress(&mut Outbox::new(), true).await.unwrap();
        assert_eq!(progress, Progress::Received(LaneId::CONTROL));
    }
    link.received(LaneId::CONTROL).split_to(count).to_vec()
}

/// Runs a handshake that may fail at either end; returns its outcome at the client and at the listener. The
/// client's handshake ends before the server has verified its certificate.
pub(crate) async fn attempt(
    connector: &Connector,
    listener: &mut Listener,
) -> (Result<(), Error>, Result<Link, Error>) {
    let address = listener.local_address();
    let client = async {
        let mut client = connector.connect(&address).await?;
        client.progress(&mut outbox(b"!"), true).await?;
        loop {
            client.progress(&mut Outbox::new(), true).await?;
        }
    };
    let server = async { listener.accept().await.unwrap().handshake().await };
    tokio::join!(client, server)
}

/// Carries datagrams between clients and a QUIC listener as a NAT does: the listener sees the NAT's
/// address. The process behind it may change, as after a crash.
pub(crate) struct Way {
    pub(crate) address: Address,
    /// The port where datagrams go.
    pub(crate) target: Arc<Mutex<u16>>,
    moves: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Way {
    pub(crate) async fn to(listener: &Listener) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut address = listener.local_address();
        let target = Arc::new(Mutex::new(address.port));
        address.port = front.local_addr().unwrap().port();
        let moves = Arc::new(Notify::new());
        let task = tokio::spawn(Self::carry(front, target.clone(), moves.clone()));
        Self {
            address,
            target,
            moves,
            task,
        }
    }

    async fn carry(front: UdpSocket, target: Arc<Mutex<u16>>, moves: Arc<Notify>) {
        let mut back = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (mut there, mut here) = (vec![0; 65_536], vec![0; 65_536]);
        let mut client = None;
        loop {
            tokio::select! {
                Ok((length, from)) = front.recv_from(&mut there) => {
                    client = Some(from);
                    let port = *target.lock().unwrap();
                    let _ = back.send_to(&there[..length], ("127.0.0.1", port)).await;
                }
                Ok((length, from)) = back.recv_from(&mut here) => {
                    if from.port() == *target.lock().unwrap()
                        && let Some(client) = client
                    {
                        let _ = front.send_to(&here[..length], client).await;
                    }
                }
                () = moves.notified() => back = UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            }
        }
    }

    /// Changes the client's port, as the listener sees it from now on.
    pub(crate) fn change_the_clients_port(&self) {
        self.moves.notify_one();
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.task.abort();
    }
}
