//! PROXY protocol: the address of a client that comes through a proxy, in front of all that the client sends.
//!
//! The specification (`HAProxy`, 2020) has a line of text (version 1) and a binary header (version 2). Either is sent in the clear, before
//! TLS and WebSocket.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use bytes::Bytes;
use ipnet::IpNet;
use proxy_header::{ParseConfig, ProxiedAddress, SslInfo, Tlv};
use tokio::{io::AsyncReadExt as _, net::TcpStream};

use crate::{Address, Error, LinkInfo, TlsVersion};

/// Longest header of version 1, in bytes (§2.1).
const MAX_LINE: usize = 107;

/// Beginning of a header of version 2 (§2.2).
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Length of the part of a header of version 2 that has the length of the rest, in bytes (§2.2).
const FIXED: usize = 16;

/// Longest rest of a header of version 2 that is taken, in bytes: the addresses, and a certificate among the additional values.
const MAX_REST: u16 = 16 * 1024;

/// Longest text that is put into a header, in bytes.
const MAX_TEXT: usize = 1024;

/// Policy of a listener for PROXY headers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyProtocol {
    /// `true` if each connection has to begin with a header, of a trusted proxy. Otherwise clients may come without one, and then
    /// have the address that they come from.
    pub required: bool,
    /// Addresses of the proxies that are believed. A header from elsewhere is not read: anybody could name another address in it.
    pub trusted: Vec<IpNet>,
}

/// Version of the PROXY protocol. As text: `v1`, `v2`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyVersion {
    /// A line of text, with the addresses alone.
    V1,
    /// A binary header, which also has the client's TLS parameters and the name in its certificate.
    V2,
}

/// Header that tells a server which client a connection is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyHeader {
    /// Addresses of the client and of the listener that it has reached; `None` where the client has none.
    addresses: Option<ProxiedAddress>,
    tls: Option<ProxiedTls>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct ProxiedTls {
    version: &'static str,
    cipher_suite: String,
    alpn: Option<String>,
    server_name: Option<String>,
    has_certificate: bool,
    common_name: Option<String>,
}

/// Kind of a connection that may come from a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proxied {
    /// A client's that came without a proxy.
    Direct,
    /// The proxy's own: its header names no client, or it ended before the first byte.
    Own,
    /// A client's with this address.
    Client(SocketAddr),
}

impl FromStr for ProxyVersion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "v1" => Ok(Self::V1),
            "v2" => Ok(Self::V2),
            _ => Err(Error::InvalidOption {
                option: "PROXY protocol",
                value: format!("`{text}`"),
                remedy: "use v1 or v2".into(),
            }),
        }
    }
}

impl ProxyProtocol {
    /// Returns `true` if a connection from this address begins with a header, or may.
    pub(crate) fn expects_header(&self, peer: IpAddr) -> bool {
        self.required || self.trusts(peer)
    }

    /// Reads the header of a connection from `peer`. Returns what the connection is.
    pub(crate) async fn read(
        &self,
        stream: &mut TcpStream,
        peer: IpAddr,
    ) -> Result<Proxied, Error> {
        if !self.trusts(peer) {
            return Err(not_accepted("it comes from no trusted proxy"));
        }
        let mut first = [0];
        let header = match stream.peek(&mut first).await {
            // A health check. Whoever reads on finds the end.
            Ok(0) | Err(_) => return Ok(Proxied::Own),
            Ok(_) => match first {
                [b'P'] => read_line(stream).await,
                [b'\r'] => read_binary(stream).await,
                _ if self.required => {
                    return Err(not_accepted("the connection begins without one"));
                }
                _ => return Ok(Proxied::Direct),
            },
        };
        let header = header.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => not_accepted("the connection ends within it"),
            io::ErrorKind::InvalidData => not_accepted("it is too long"),
            _ => error.into(),
        })?;
        let config = ParseConfig {
            include_tlvs: false,
            ..ParseConfig::default()
        };
        let (header, _) = proxy_header::ProxyHeader::parse(&header, config)
            .map_err(|_| not_accepted("it is malformed"))?;
        let told = header.proxied_address();
        Ok(told.map_or(Proxied::Own, |told| Proxied::Client(told.source)))
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted.iter().any(|proxies| proxies.contains(&peer))
    }
}

impl ProxyHeader {
    /// Makes the header of a client that has connected to the address `at`, without TLS parameters.
    #[must_use]
    pub fn new(client: SocketAddr, at: SocketAddr) -> Self {
        let (client, at) = (canonical(client), canonical(at));
        let is_one_family = client.is_ipv4() == at.is_ipv4();
        Self {
            addresses: is_one_family.then(|| ProxiedAddress::stream(client, at)),
            tls: None,
        }
    }

    /// Makes the header of a client's connection, with the TLS parameters if there are any.
    #[must_use]
    pub fn of(client: &LinkInfo) -> Self {
        let ends = client.peer_address.zip(client.local_address);
        let addresses = ends.and_then(|(peer, local)| Self::new(peer, local).addresses);
        let tls = client.tls.as_ref().map(|tls| ProxiedTls {
            version: match tls.version {
                TlsVersion::Tls12 => "TLSv1.2",
                TlsVersion::Tls13 => "TLSv1.3",
            },
            cipher_suite: tls.cipher_suite.clone(),
            alpn: tls.alpn.clone(),
            server_name: tls.server_name.clone(),
            has_certificate: !client.peer_certificates.is_empty(),
            common_name: None,
        });
        Self { addresses, tls }
    }

    /// Checks that connections to this address can begin with a header.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if they do not run over TCP.
    pub fn check_address(address: &Address) -> Result<(), Error> {
        check_over_tcp(address, "to")
    }

    /// Adds the common name of the client's certificate, which version 2 has (`PP2_SUBTYPE_SSL_CN`).
    #[must_use]
    pub fn with_common_name(mut self, name: impl Into<String>) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.common_name = Some(name.into());
        }
        self
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self, version: ProxyVersion) -> Bytes {
        let mut header = proxy_header::ProxyHeader::with_tlvs(self.addresses.clone(), []);
        let mut bytes = Vec::new();
        let encoded = match version {
            ProxyVersion::V1 => header.encode_v1(&mut bytes),
            ProxyVersion::V2 => {
                if let Some(tls) = &self.tls {
                    tls.append_to(&mut header);
                }
                header.encode_v2(&mut bytes)
            }
        };
        debug_assert!(
            encoded.is_ok(),
            "the addresses are of one family, and no text is long"
        );
        bytes.into()
    }
}

impl ProxiedTls {
    fn append_to(&self, header: &mut proxy_header::ProxyHeader<'_>) {
        let short = |text: &str| Some(text.to_owned()).filter(|text| text.len() <= MAX_TEXT);
        let verify = u32::from(!self.has_certificate);
        let mut tls = SslInfo::new(true, self.has_certificate, self.has_certificate, verify);
        tls.append_tlv(Tlv::SslVersion(self.version.into()));
        if let Some(cipher) = short(&self.cipher_suite) {
            tls.append_tlv(Tlv::SslCipher(cipher.into()));
        }
        if let Some(name) = self.common_name.as_deref().and_then(short) {
            tls.append_tlv(Tlv::SslCn(name.into()));
        }
        if let Some(alpn) = self.alpn.as_deref().and_then(short) {
            header.append_tlv(Tlv::Alpn(alpn.into_bytes().into()));
        }
        if let Some(name) = self.server_name.as_deref().and_then(short) {
            header.append_tlv(Tlv::Authority(name.into()));
        }
        header.append_tlv(Tlv::Ssl(tls));
    }
}

/// Reads a header of version 1, and nothing behind it.
async fn read_line(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut ahead = [0; MAX_LINE];
    loop {
        let room = MAX_LINE - line.len();
        if room == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let count = stream.peek(&mut ahead[..room]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let end = ahead[..count].iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(count, |end| end + 1);
        // The bytes are there already.
        let from = line.len();
        line.resize(from + taken, 0);
        stream.read_exact(&mut line[from..]).await?;
        if end.is_some() {
            return Ok(line);
        }
    }
}

/// Reads a header of version 2, and nothing behind it.
async fn read_binary(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut header = vec![0; FIXED];
    stream.read_exact(&mut header).await?;
    if !header.starts_with(SIGNATURE) {
        // The parser says so.
        return Ok(header);
    }
    let rest = u16::from_be_bytes([header[FIXED - 2], header[FIXED - 1]]);
    if rest > MAX_REST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    header.resize(FIXED + usize::from(rest), 0);
    stream.read_exact(&mut header[FIXED..]).await?;
    Ok(header)
}

/// Refuses an address whose connections cannot carry a header, in words with this preposition.
pub(crate) fn check_over_tcp(address: &Address, preposition: &str) -> Result<(), Error> {
    if address.scheme.is_over_tcp() {
        return Ok(());
    }
    Err(Error::InvalidOption {
        option: "proxy protocol",
        value: format!("used {preposition} {address}"),
        remedy: "only a connection over TCP carries its header".into(),
    })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn not_accepted(reason: &str) -> Error {
    Error::ProxyHeader {
        reason: reason.to_owned(),
    }
}
