//! Addresses to connect to or listen on: a scheme, a host, a port, and on WebSocket a path.

use std::{fmt, net::IpAddr, str::FromStr};

/// A transport, named in an [`Address`] by its URL scheme.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scheme {
    /// Plain TCP: `mqtt://` or `tcp://`.
    Tcp,
    /// TLS over TCP: `mqtts://`, `ssl://` or `tls://`.
    Tls,
    /// QUIC: `quic://`.
    Quic,
    /// WebSocket over TCP: `ws://`.
    Ws,
    /// WebSocket over TLS: `wss://`.
    Wss,
    /// A Unix socket: `unix:///run/broker.sock`.
    Unix,
    /// A pipe inside this process, for tests and simulations: `mem://`.
    Mem,
}

impl Scheme {
    /// Returns the port of an address that names none; 0 for [`Scheme::Unix`] and [`Scheme::Mem`], which have no ports.
    ///
    /// IANA has registered 1883 and 8883. EMQX made 14567 usual for MQTT over QUIC, and 8083 and 8084
    /// for MQTT over WebSocket.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Tcp => 1883,
            Self::Tls => 8883,
            Self::Quic => 14567,
            Self::Ws => 8083,
            Self::Wss => 8084,
            Self::Unix | Self::Mem => 0,
        }
    }

    /// Returns `true` if the transport is encrypted (TLS, QUIC, WebSocket over TLS); a listener then needs a
    /// certificate.
    #[must_use]
    pub fn is_encrypted(self) -> bool {
        matches!(self, Self::Tls | Self::Quic | Self::Wss)
    }

    /// Returns `true` if the transport runs over TCP: TCP itself, TLS and WebSocket.
    #[must_use]
    pub fn is_over_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls | Self::Ws | Self::Wss)
    }

    /// Returns `true` if the transport carries MQTT in WebSocket frames; an address then has a path.
    #[must_use]
    pub fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }

    /// Names the cargo features that build the transport in, separated by commas.
    pub(crate) fn features(self) -> &'static str {
        match self {
            Self::Wss => "tls,ws",
            Self::Unix => "tcp",
            _ => self.name(),
        }
    }

    fn default_path(self) -> &'static str {
        if self.is_websocket() { "/mqtt" } else { "" }
    }

    fn url_scheme(self) -> &'static str {
        match self {
            Self::Tcp => "mqtt",
            Self::Tls => "mqtts",
            _ => self.name(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Quic => "quic",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Unix => "unix",
            Self::Mem => "mem",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An address as written in a URL: `mqtts://broker.example:8883`, `quic://[::1]`,
/// `wss://broker.example/mqtt`, `unix:///run/broker.sock`, `mem://name`.
///
/// Parse an address from text; without a port it gets [`Scheme::default_port`]. An address has no
/// user, a path on WebSocket and for Unix sockets only, and a query on WebSocket only.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The transport of the address.
    pub scheme: Scheme,
    /// A DNS name or an IP address, an IPv6 one without its brackets; for mem the registered name, and empty for Unix
    /// sockets.
    pub host: String,
    /// The TCP or UDP port; 0 lets the system choose when listening.
    pub port: u16,
    /// WebSocket: the path from `/` on, with the query if there is one, in visible ASCII. `/mqtt`
    /// where an address names none, as most brokers use it. For a Unix socket the path of its file. Empty on other
    /// transports. Logs and errors show the path with the address.
    pub path: String,
}

impl Address {
    /// Makes an address of these parts, on WebSocket with the path `/mqtt`.
    #[must_use]
    pub fn new(scheme: Scheme, host: impl Into<String>, port: u16) -> Self {
        Self {
            scheme,
            host: host.into(),
            port,
            path: scheme.default_path().into(),
        }
    }

    /// Makes the address of a Unix socket.
    #[must_use]
    pub fn unix(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            ..Self::new(Scheme::Unix, "", 0)
        }
    }

    /// Returns `true` if only this machine can reach the address, as far as its host tells: a loopback address,
    /// `localhost`, a Unix socket, or a name on mem.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let address = host.parse::<IpAddr>();
        matches!(self.scheme, Scheme::Unix | Scheme::Mem)
            || host == "localhost"
            || address.is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scheme,
            host,
            port,
            path,
        } = self;
        let scheme_name = scheme.url_scheme();
        if matches!(scheme, Scheme::Unix | Scheme::Mem) {
            write!(f, "{scheme_name}://{host}{path}")
        } else if host.contains(':') {
            write!(f, "{scheme_name}://[{host}]:{port}{path}")
        } else {
            write!(f, "{scheme_name}://{host}:{port}{path}")
        }
    }
}

/// Reasons for which a text is not an [`Address`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text has no `://`.
    #[error(
        "`{input}` names no transport: write mqtt://HOST, mqtts://HOST, quic://HOST, ws://HOST, wss://HOST, unix:///PATH or mem://NAME"
    )]
    NoScheme {
        /// The text that was read as an address.
        input: String,
    },
    /// MQTT has no transport of this name.
    #[error(
        "unknown transport `{scheme}` in `{input}`: use mqtt, mqtts, quic, ws, wss, unix or mem"
    )]
    UnknownScheme {
        /// The text that was read as an address.
        input: String,
        /// The unknown scheme in the text.
        scheme: String,
    },
    /// The host is missing, or no host has such a name.
    #[error(
        "`{host}` is not a host name or IP address in `{input}`: write SCHEME://HOST[:PORT], an IPv6 address in [brackets]"
    )]
    BadHost {
        /// The text that was read as an address.
        input: String,
        /// The text in the place of the host.
        host: String,
    },
    /// The port is not a number that fits.
    #[error("`{port}` is not a port in `{input}`: write a number from 0 to 65535")]
    BadPort {
        /// The text that was read as an address.
        input: String,
        /// The text in the place of the port.
        port: String,
    },
    /// The URL has a user or a fragment, or it has a path or a query on a transport other than
    /// WebSocket.
    #[error(
        "`{extra}` has no place in `{input}`: write only SCHEME://HOST[:PORT], with /PATH on WebSocket"
    )]
    Extra {
        /// The text that was read as an address.
        input: String,
        /// The part that does not belong.
        extra: String,
    },
    /// The path of a Unix socket is missing, or longer than a socket's can be.
    #[error(
        "`{path}` is not the path of a socket in `{input}`: write unix:///PATH, with at most 107 bytes in PATH"
    )]
    BadSocketPath {
        /// The text that was read as an address.
        input: String,
        /// The text in the place of the path.
        path: String,
    },
    /// The path has a character that a request cannot carry.
    #[error("`{path}` is not a path in `{input}`: write what is not visible ASCII as %XX")]
    BadPath {
        /// The text that was read as an address.
        input: String,
        /// The text in the place of the path.
        path: String,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(input: &str) -> Result<Self, AddressError> {
        let owned = || input.to_owned();
        let extra = |extra: &str| {
            let (input, extra) = (owned(), extra.to_owned());
            AddressError::Extra { input, extra }
        };
        let Some((scheme_name, rest)) = input.split_once("://") else {
            return Err(AddressError::NoScheme { input: owned() });
        };
        let scheme = match scheme_name.to_ascii_lowercase().as_str() {
            "mqtt" | "tcp" => Scheme::Tcp,
            "mqtts" | "ssl" | "tls" => Scheme::Tls,
            "quic" => Scheme::Quic,
            "ws" => Scheme::Ws,
            "wss" => Scheme::Wss,
            "unix" => return read_socket(input, rest),
            "mem" => Scheme::Mem,
            scheme => {
                return Err(AddressError::UnknownScheme {
                    input: owned(),
                    scheme: scheme.to_owned(),
                });
            }
        };
        let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (rest, path) = rest.split_at(at);
        let path = match path {
            "" => scheme.default_path().to_owned(),
            _ if scheme.is_websocket() => read_path(input, path)?,
            "/" => String::new(),
            path => return Err(extra(path)),
        };
        if let Some((user, _)) = rest.rsplit_once('@') {
            return Err(extra(&format!("{user}@")));
        }
        let (host, port) = split_host(rest).ok_or_else(|| AddressError::BadHost {
            input: owned(),
            host: rest.to_owned(),
        })?;
        let port = match port {
            None => scheme.default_port(),
            Some(port) => Some(port)
                .filter(|port| scheme != Scheme::Mem && is_number(port))
                .and_then(|port| port.parse().ok())
                .ok_or_else(|| AddressError::BadPort {
                    input: owned(),
                    port: port.to_owned(),
                })?,
        };
        Ok(Self {
            path,
            ..Self::new(scheme, host, port)
        })
    }
}

/// Reads the path of a Unix socket, which takes all that follows `unix://`.
fn read_socket(input: &str, path: &str) -> Result<Address, AddressError> {
    // What `sun_path` has room for, with its end.
    const LONGEST: usize = 107;
    let is_path = path.starts_with('/') && path.len() <= LONGEST && !path.contains('\0');
    if is_path {
        Ok(Address::unix(path))
    } else {
        Err(AddressError::BadSocketPath {
            input: input.to_owned(),
            path: path.to_owned(),
        })
    }
}

/// Reads the path and query of a WebSocket's URL (RFC 6455 §3): `?query` alone means `/?query`, and there is no
/// fragment.
fn read_path(input: &str, text: &str) -> Result<String, AddressError> {
    if let Some((_, fragment)) = text.split_once('#') {
        return Err(AddressError::Extra {
            input: input.to_owned(),
            extra: format!("#{fragment}"),
        });
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(AddressError::BadPath {
            input: input.to_owned(),
            path: text.to_owned(),
        });
    }
    let root = if text.starts_with('/') { "" } else { "/" };
    Ok(format!("{root}{text}"))
}

fn is_number(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Splits `host[:port]`, taking the brackets off an IPv6 address; `None` if there is no such host.
fn split_host(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (host, after) = bracketed.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return match after.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None if after.is_empty() => Some((host, None)),
            None => None,
        };
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let well_formed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let bare_ipv6 = port.is_some_and(|port| port.contains(':'));
    (!host.is_empty() && !bare_ipv6 && host.bytes().all(well_formed)).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_socket_is_a_path_and_nothing_else() {
        let address: Address = "unix:///run/mq/a b?c#d.sock".parse().unwrap();
        assert_eq!(address, Address::unix("/run/mq/a b?c#d.sock"));
        assert_eq!(address.to_string(), "unix:///run/mq/a b?c#d.sock");
        assert!(address.is_local() && !address.scheme.is_over_tcp());
    }

    #[test]
    fn what_only_this_machine_reaches_is_local() {
        for local in [
            "tcp://localhost",
            "quic://127.0.0.1",
            "ws://127.9.9.9",
            "tls://[::1]",
            "mem://x",
        ] {
            assert!(local.parse::<Address>().unwrap().is_local(), "{local}");
        }
        for other in [
            "tcp://0.0.0.0",
            "tcp://[::]",
            "quic://192.0.2.1",
            "tls://localhost.example",
        ] {
            assert!(!other.parse::<Address>().unwrap().is_local(), "{other}");
        }
    }

    #[test]
    fn schemes_have_their_default_ports() {
        for (text, scheme, port) in [
            ("mqtt://h", Scheme::Tcp, 1883),
            ("tcp://h/", Scheme::Tcp, 1883),
            ("MQTTS://h", Scheme::Tls, 8883),
            ("ssl://h", Scheme::Tls, 8883),
            ("tls://h:1", Scheme::Tls, 1),
            ("quic://h", Scheme::Quic, 14567),
            ("ws://h", Scheme::Ws, 8083),
            ("wss://h", Scheme::Wss, 8084),
            ("mem://h", Scheme::Mem, 0),
        ] {
            assert_eq!(text.parse(), Ok(Address::new(scheme, "h", port)), "{text}");
        }
    }

    #[test]
    fn what_is_displayed_is_read_back() {
        for text in [
            "mqtt://broker.example:1883",
            "mqtts://127.0.0.1:0",
            "quic://[::1]:14567",
            "ws://[::1]:8083/mqtt",
            "wss://127.0.0.1:0/",
            "wss://broker.example:443/a/b%20c?token=x&y=/z",
            "mem://name",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn a_websocket_has_a_path_and_others_have_none() {
        for (text, path) in [
            ("ws://h", "/mqtt"),
            ("ws://h/", "/"),
            ("WSS://h:1/a", "/a"),
            ("wss://h?q", "/?q"),
            ("mqtt://h/", ""),
            ("quic://h", ""),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().path, path, "{text}");
        }
    }

    #[test]
    fn junk_is_answered_in_one_line() {
        for text in [
            "",
            "broker",
            "http://h",
            "ws://",
            "ws:///mqtt",
            "ws://u@h/mqtt",
            "ws://h/mqtt#part",
            "wss://h/m qtt",
            "wss://h/mqtt\u{e9}",
            "mqtt://",
            "mqtt://:1",
            "mqtt://h:",
            "mqtt://h:x",
            "mqtt://h:65536",
            "mqtt://h:+1",
            "mqtt://a b",
            "mqtt://::1",
            "mqtt://[::1",
            "mqtt://[x]",
            "mqtt://[::1]x",
            "mqtt://u:p@h",
            "mqtt://h/path",
            "mqtt://h?q",
            "mem://",
            "mem://n:1",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(
                !error.contains('\n') && error.contains(": "),
                "{text}: {error}"
            );
        }
    }
}
