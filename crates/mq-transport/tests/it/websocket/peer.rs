//! A WebSocket peer that tests drive by hand, opposite a link.

use mq_transport::LaneId;
use mq_transport::{Address, Connector, Link, Scheme};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::common::{accept, connect_options, listen};

pub(crate) const FINAL: u8 = 0x80;
pub(crate) const CONTINUE: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;

/// The example of RFC 6455 §1.3, and the answer to it.
pub(crate) const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A raw end, which masks its frames if it is a client.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) masks: bool,
}

pub(crate) fn request() -> String {
    format!(
        "GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
}

/// Returns a raw client and the server's link.
pub(crate) async fn raw_client() -> (Peer, Link) {
    let mut listener = listen(Scheme::Ws).await;
    let at = ("127.0.0.1", listener.local_address().port);
    let client = async {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(request().as_bytes()).await.unwrap();
        let answer = head(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert!(answer.contains(ACCEPT), "{answer}");
        stream
    };
    let (stream, link) = tokio::join!(client, accept(&mut listener));
    let masks = true;
    (Peer { stream, masks }, link)
}

/// Returns a raw server that sends `after` right behind its answer, and the client's link.
pub(crate) async fn raw_server(after: &[u8]) -> (Peer, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = head(&mut stream).await;
        let key = request
            .lines()
            .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
        let accept = tungstenite::handshake::derive_accept_key(key.unwrap().as_bytes());
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        let all = [answer.as_bytes(), after].concat();
        stream.write_all(&all).await.unwrap();
        stream
    };
    let connector = Connector::new(connect_options()).unwrap();
    let address = Address::new(Scheme::Ws, "127.0.0.1", port);
    let (stream, link) = tokio::join!(server, connector.connect(&address));
    let masks = false;
    (Peer { stream, masks }, link.unwrap())
}

/// Reads up to the empty line that ends an HTTP head.
pub(crate) async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Makes a frame as it stands on the wire, of up to 65,535 bytes.
pub(crate) fn frame(first: u8, masked: bool, payload: &[u8]) -> Vec<u8> {
    let key = [0x37, 0xFA, 0x21, 0x3D];
    let bit = if masked { 0x80 } else { 0 };
    let mut frame = vec![first];
    if let Ok(length @ ..126) = u8::try_from(payload.len()) {
        frame.push(bit + length);
    } else {
        frame.push(bit + 126);
        frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    }
    if masked {
        frame.extend(key);
        frame.extend(payload.iter().zip(key.iter().cycle()).map(|(b, k)| b ^ k));
    } else {
        frame.extend(payload);
    }
    frame
}

impl Peer {
    pub(crate) fn frame(&self, first: u8, payload: &[u8]) -> Vec<u8> {
        frame(first, self.masks, payload)
    }

    pub(crate) async fn send(&mut self, first: u8, payload: &[u8]) {
        let frame = self.frame(first, payload);
        self.stream.write_all(&frame).await.unwrap();
    }

    /// Returns the next frame of the link: its first byte and its payload.
    pub(crate) async fn receive(&mut self) -> (u8, Vec<u8>) {
        let first = self.stream.read_u8().await.unwrap();
        let second = self.stream.read_u8().await.unwrap();
        assert_eq!(
            second & 0x80 != 0,
            !self.masks,
            "clients mask, servers do not"
        );
        let length = match second & 0x7F {
            126 => u64::from(self.stream.read_u16().await.unwrap()),
            127 => self.stream.read_u64().await.unwrap(),
            length => length.into(),
        };
        let mut key = [0; 4];
        if !self.masks {
            self.stream.read_exact(&mut key).await.unwrap();
        }
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut payload).await.unwrap();
        for (byte, key) in payload.iter_mut().zip(key.iter().cycle()) {
            *byte ^= key;
        }
        (first, payload)
    }

    /// Expects a Close with this code.
    pub(crate) async fn expect_close(&mut self, code: u16) {
        let expected = (FINAL | CLOSE, code.to_be_bytes().to_vec());
        assert_eq!(self.receive().await, expected);
    }

    /// Expects the other end's FIN.
    pub(crate) async fn expect_end(&mut self) {
        assert_eq!(self.stream.read(&mut [0; 1]).await.unwrap(), 0);
    }
}

/// Takes the received bytes that the owner of the link has not consumed.
pub(crate) fn taken(link: &mut Link) -> Vec<u8> {
    link.received(LaneId::CONTROL).split().to_vec()
}
