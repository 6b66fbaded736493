//! A bad peer's end of a connection, close enough to the wire to cut it anywhere.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use mq_testkit::{Scheme, TestBroker, UdpProxy};
use mq_transport::{Address, Connector};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::{
    ClientConfig, ClientConnection,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// The longest wait of a bad peer for an answer that may not come.
const PATIENCE: Duration = Duration::from_millis(200);

/// The target of an attack, and its means.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) tcp: SocketAddr,
    pub(crate) tls: SocketAddr,
    pub(crate) quic: SocketAddr,
    pub(crate) ws: SocketAddr,
    pub(crate) quic_url: Address,
    pub(crate) connector: Connector,
    tls_config: Arc<ClientConfig>,
    quic_config: quinn::ClientConfig,
    endpoint: quinn::Endpoint,
}

impl Target {
    pub(crate) fn new(broker: &TestBroker) -> Self {
        let address = |scheme| {
            let at = broker.address(scheme);
            format!("{}:{}", at.host, at.port).parse().unwrap()
        };
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(broker.certificate()).unwrap() {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut quic = tls.clone();
        quic.alpn_protocols = vec![b"mqtt".to_vec()];
        let quic = QuicClientConfig::try_from(quic).unwrap();
        Self {
            tcp: address(Scheme::Tcp),
            tls: address(Scheme::Tls),
            quic: address(Scheme::Quic),
            ws: address(Scheme::Ws),
            quic_url: broker.address(Scheme::Quic),
            connector: broker.connector(false),
            tls_config: Arc::new(tls),
            quic_config: quinn::ClientConfig::new(Arc::new(quic)),
            endpoint: quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap(),
        }
    }

    /// Makes a TLS client that has sent nothing yet, and its `ClientHello` as it would stand on the wire.
    pub(crate) fn client_hello(&self) -> (ClientConnection, Vec<u8>) {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(self.tls_config.clone(), name).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        (client, hello)
    }

    /// Returns the configuration of a QUIC client with another transport.
    pub(crate) fn quic_config(&self, transport: quinn::TransportConfig) -> quinn::ClientConfig {
        let mut config = self.quic_config.clone();
        config.transport_config(Arc::new(transport));
        config
    }

    /// Starts a QUIC handshake with the peer at `at`.
    pub(crate) fn knock(&self, at: SocketAddr) -> quinn::Connecting {
        self.endpoint
            .connect_with(self.quic_config.clone(), at, "localhost")
            .unwrap()
    }
}

/// A connection whose handshake is complete.
pub(crate) enum Wire {
    Tcp(TcpStream),
    Tls(TcpStream, Box<ClientConnection>),
    Quic(Box<Quic>),
    Ws(TcpStream),
}

/// A request for a WebSocket as a broker grants it.
pub(crate) const REQUEST: &[u8] = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\
    Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";

/// Makes a client's frame of up to 125 bytes, with a mask of zeros.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    assert!(length < 126, "its length would take more bytes");
    [&[first, 0x80 | length, 0, 0, 0, 0], payload].concat()
}

pub(crate) struct Quic {
    connection: quinn::Connection,
    send: quinn::SendStream,
    recv: quinn::RecvStream,
    /// The path to the broker; without it the peer is gone for the broker.
    path: UdpProxy,
}

/// Way in which a peer leaves in the middle.
#[derive(Clone, Copy)]
pub(crate) enum Leave {
    /// TCP: RST. QUIC: `CONNECTION_CLOSE` with an error.
    Reset,
    /// TCP: RST, as nothing of it outlives its process. QUIC: without a word.
    Vanish,
    /// TCP: RST. QUIC: `RESET_STREAM`, and the connection stays until the broker ends it.
    ResetStream,
}

impl Wire {
    pub(crate) async fn open(target: &Target, scheme: Scheme) -> io::Result<Self> {
        match scheme {
            Scheme::Tls => {
                let mut stream = TcpStream::connect(target.tls).await?;
                let (mut tls, hello) = target.client_hello();
                stream.write_all(&hello).await?;
                while tls.is_handshaking() {
                    receive(&mut stream, &mut tls).await?;
                    flush(&mut stream, &mut tls).await?;
                }
                Ok(Self::Tls(stream, Box::new(tls)))
            }
            Scheme::Quic => {
                let path = UdpProxy::start(target.quic, Duration::ZERO).await?;
                // The broker may have given up, and its last packet may be lost.
                let connection = timeout(PATIENCE * 20, target.knock(path.address())).await??;
                let (send, recv) = connection.open_bi().await?;
                Ok(Self::Quic(Box::new(Quic {
                    connection,
                    send,
                    recv,
                    path,
                })))
            }
            Scheme::Ws => {
                let mut stream = TcpStream::connect(target.ws).await?;
                stream.write_all(REQUEST).await?;
                let mut answer = Vec::new();
                while !answer.ends_with(b"\r\n\r\n") {
                    answer.push(stream.read_u8().await?);
                }
                Ok(Self::Ws(stream))
            }
            _ => Ok(Self::Tcp(TcpStream::connect(target.tcp).await?)),
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes).await,
            Self::Tls(stream, tls) => {
                io::Write::write_all(&mut tls.writer(), bytes)?;
                flush(stream, tls).await
            }
            Self::Quic(quic) => Ok(quic.send.write_all(bytes).await?),
            Self::Ws(stream) => {
                for piece in bytes.chunks(125) {
                    stream.write_all(&frame(0x82, piece)).await?;
                }
                Ok(())
            }
        }
    }

    /// Waits a little for an answer, whatever it says.
    pub(crate) async fn read(&mut self) {
        let mut answer = [0; 512];
        let reading = async {
            match self {
                Self::Tcp(stream) | Self::Ws(stream) => drop(stream.read(&mut answer).await),
                Self::Tls(stream, tls) => drop(receive(stream, tls).await),
                Self::Quic(quic) => drop(quic.recv.read(&mut answer).await),
            }
        };
        let _ = timeout(PATIENCE, reading).await;
    }

    pub(crate) async fn leave(self, how: Leave, stay: Duration) {
        match self {
            Self::Tcp(stream) | Self::Ws(stream) | Self::Tls(stream, _) => reset(&stream),
            Self::Quic(quic) => {
                let Quic {
                    connection,
                    mut send,
                    recv: _recv,
                    path,
                } = *quic;
                match how {
                    Leave::Reset => {
                        connection.close(7_u32.into(), b"cut");
                        // The proxy forwards it; a datagram on loopback has no other sign.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    // What quinn says when the connection is dropped goes nowhere.
                    Leave::Vanish => drop(path),
                    Leave::ResetStream => {
                        let _ = send.reset(7_u32.into());
                        let _ = timeout(stay, connection.closed()).await;
                    }
                }
            }
        }
    }
}

/// Makes the drop of a socket an RST, which discards what the other side has not read.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn flush(stream: &mut TcpStream, tls: &mut ClientConnection) -> io::Result<()> {
    let mut records = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut records)?;
    }
    stream.write_all(&records).await
}

async fn receive(stream: &mut TcpStream, tls: &mut ClientConnection) -> io::Result<()> {
    let mut records = [0; 4096];
    let count = stream.read(&mut records).await?;
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut records = &records[..count];
    while !records.is_empty() {
        tls.read_tls(&mut records)?;
        tls.process_new_packets().map_err(io::Error::other)?;
    }
    Ok(())
}
