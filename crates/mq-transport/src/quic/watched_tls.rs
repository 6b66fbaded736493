//! Wrappers that read the `ServerHello` of the TLS handshake inside QUIC.
//!
//! quinn does not show its rustls session: neither whether the session was resumed, nor its cipher suite
//! and group. All three stand in the `ServerHello`, which passes through quinn's session interface on
//! both sides. These wrappers read it there and hand everything on unchanged.

use std::{any::Any, sync::Arc};

use quinn::{
    ConnectError, ConnectionId, Side,
    crypto::{
        ClientConfig, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig,
        Session, UnsupportedVersion,
        rustls::{HandshakeData, QuicClientConfig, QuicServerConfig},
    },
};
use quinn_proto::{TransportError, transport_parameters::TransportParameters};

use super::{initial_keys::InitialKeys, padding::without_padding};

/// The content of a connection's `handshake_data`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handshake {
    pub(crate) server_hello: Option<ServerHello>,
    pub(crate) alpn: Option<String>,
    /// Server name (SNI) that the client sent; known to the server only.
    pub(crate) server_name: Option<String>,
}

/// Parameters that the server selected in its `ServerHello` (RFC 8446 §4.1.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServerHello {
    pub(crate) cipher_suite: u16,
    pub(crate) group: Option<u16>,
    pub(crate) resumed: bool,
}

pub(crate) struct WatchedClient(pub(crate) Arc<QuicClientConfig>);

impl ClientConfig for WatchedClient {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let inner = self.0.clone().start_session(version, server_name, params)?;
        Ok(Box::new(Watched::new(inner, Side::Client)))
    }
}

pub(crate) struct WatchedServer {
    pub(crate) inner: Arc<QuicServerConfig>,
    /// Initial keys, shared by all configurations of one listener: after a reload, a client's first packet and its
    /// connection may have different configurations.
    pub(crate) initial_keys: Arc<InitialKeys>,
}

impl ServerConfig for WatchedServer {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        let keys = self.inner.initial_keys(version, dst_cid)?;
        let keys = self.initial_keys.keep(version, *dst_cid, keys);
        Ok(without_padding(keys))
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        let inner = self.inner.clone().start_session(version, params);
        let mut session = Watched::new(inner, Side::Server);
        session.made = Some((version, self.initial_keys.clone()));
        Box::new(session)
    }
}

struct Watched {
    inner: Box<dyn Session>,
    side: Side,
    /// The server's handshake messages until its hello is complete.
    prefix: Vec<u8>,
    server_hello: Option<ServerHello>,
    /// The QUIC version, and the store that has the keys of the client's first packet; `None` on a client.
    made: Option<(u32, Arc<InitialKeys>)>,
}

impl Watched {
    fn new(inner: Box<dyn Session>, side: Side) -> Self {
        Self {
            inner,
            side,
            prefix: Vec::new(),
            server_hello: None,
            made: None,
        }
    }

    fn watch(&mut self, from: Side, messages: &[u8]) {
        /// Bound on the bytes in which the hello is sought: far more than one with a post-quantum key needs.
        const LIMIT: usize = 8 * 1024;
        let room = LIMIT.saturating_sub(self.prefix.len());
        if from != Side::Server || self.server_hello.is_some() || room == 0 {
            return;
        }
        self.prefix
            .extend_from_slice(&messages[..messages.len().min(room)]);
        self.server_hello = find_server_hello(&self.prefix);
        if self.server_hello.is_some() {
            self.prefix = Vec::new();
        }
    }
}

impl Session for Watched {
    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        let done = self.inner.read_handshake(buf)?;
        self.watch(!self.side, buf);
        Ok(done)
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let before = buf.len();
        let keys = self.inner.write_handshake(buf);
        self.watch(self.side, &buf[before..]);
        keys.map(without_padding)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let inner = self
            .inner
            .handshake_data()?
            .downcast::<HandshakeData>()
            .ok()?;
        Some(Box::new(Handshake {
            server_hello: self.server_hello,
            alpn: inner
                .protocol
                .map(|name| String::from_utf8_lossy(&name).into_owned()),
            server_name: inner.server_name,
        }))
    }

    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        let made = self.made.as_ref();
        let made = made.and_then(|(version, keys)| keys.take(*version, dst_cid));
        let made = made.unwrap_or_else(|| self.inner.initial_keys(dst_cid, side));
        without_padding(made)
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.inner.next_1rtt_keys()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

/// Finds the `ServerHello` among handshake messages, past a `HelloRetryRequest`.
fn find_server_hello(mut messages: &[u8]) -> Option<ServerHello> {
    const SERVER_HELLO: u8 = 2;
    loop {
        let kind = take::<1>(&mut messages)?[0];
        let [a, b, c] = take::<3>(&mut messages)?;
        let length = u32::from_be_bytes([0, a, b, c]);
        let body = take_slice(&mut messages, usize::try_from(length).ok()?)?;
        if kind == SERVER_HELLO
            && let Some(hello) = parse_server_hello(body)
        {
            return Some(hello);
        }
    }
}

/// Parses a `ServerHello`; `None` if it is malformed, or a `HelloRetryRequest`, which has a fixed random
/// (RFC 8446 §4.1.3).
fn parse_server_hello(mut body: &[u8]) -> Option<ServerHello> {
    /// First bytes of the SHA-256 of "`HelloRetryRequest`".
    const RETRY: [u8; 8] = [0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11];
    const PRE_SHARED_KEY: u16 = 41;
    const KEY_SHARE: u16 = 51;

    take::<2>(&mut body)?;
    let random = take::<32>(&mut body)?;
    if random.starts_with(&RETRY) {
        return None;
    }
    let session_id_len = take::<1>(&mut body)?[0];
    take_slice(&mut body, session_id_len.into())?;
    let cipher_suite = u16::from_be_bytes(take(&mut body)?);
    take::<1>(&mut body)?;
    let extensions_len = u16::from_be_bytes(take(&mut body)?);
    let mut extensions = take_slice(&mut body, extensions_len.into())?;
    let mut hello = ServerHello {
        cipher_suite,
        group: None,
        resumed: false,
    };
    while !extensions.is_empty() {
        let kind = u16::from_be_bytes(take(&mut extensions)?);
        let len = u16::from_be_bytes(take(&mut extensions)?);
        let mut value = take_slice(&mut extensions, len.into())?;
        match kind {
            PRE_SHARED_KEY => hello.resumed = true,
            KEY_SHARE => hello.group = take(&mut value).map(u16::from_be_bytes),
            _ => {}
        }
    }
    Some(hello)
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    take_slice(from, N)?.try_into().ok()
}

fn take_slice<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(taken)
}

/// Returns the data of the connection's handshake so far.
pub(crate) fn handshake_of(connection: &quinn::Connection) -> Handshake {
    let data = connection.handshake_data();
    let data = data.and_then(|data| data.downcast::<Handshake>().ok());
    data.map(|data| *data).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(random: u8, extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([random; 32]);
        body.extend([0, 0x13, 0x01, 0]);
        body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend(extensions);
        let mut message = vec![2, 0, 0, u8::try_from(body.len()).unwrap()];
        message.extend(body);
        message
    }

    #[test]
    fn a_full_handshake_is_told_from_a_resumed_one() {
        let key_share = [0, 51, 0, 5, 0, 29, 0, 1, 9];
        let full = find_server_hello(&hello(7, &key_share)).unwrap();
        assert_eq!(
            (full.cipher_suite, full.group, full.resumed),
            (0x1301, Some(29), false)
        );
        let resumed = [&key_share[..], &[0, 41, 0, 2, 0, 0]].concat();
        assert!(find_server_hello(&hello(7, &resumed)).unwrap().resumed);
    }

    #[test]
    fn a_truncated_message_gives_nothing() {
        let message = hello(7, &[0, 51, 0, 5, 0, 29, 0, 1, 9]);
        for end in 0..message.len() {
            assert_eq!(find_server_hello(&message[..end]), None);
        }
    }
}
