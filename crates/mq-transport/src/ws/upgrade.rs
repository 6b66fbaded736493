//! The HTTP request that turns a connection into a WebSocket, and the answers to it (RFC 6455 §4).
//! Tungstenite parses the heads; its `create_response` checks neither host, origin, path nor subprotocol, and names no status
//! for a refusal.

use tungstenite::{
    error::ProtocolError,
    handshake::{client::Response, derive_accept_key, machine::TryParse, server::Request},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            CONNECTION, CONTENT_LENGTH, HOST, ORIGIN, SEC_WEBSOCKET_ACCEPT,
            SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
            SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING, UPGRADE,
        },
    },
};

use crate::{Address, AllowedOrigins, Error, ListenOptions, Scheme};

/// The longest head that is read, in bytes: browsers add cookies, and proxies add lines.
pub(super) const MAX_HEAD: usize = 16 * 1024;

/// Name of MQTT's WebSocket subprotocol (`[MQTT-6.0.0-4]`).
const MQTT: &str = "mqtt";

/// The subprotocols that a client may ask for, the preferred one first: the name of `[MQTT-6.0.0-3]`,
/// and the name that clients of MQTT 3.1 used before there was a standard.
const SUBPROTOCOLS: [&str; 2] = [MQTT, "mqttv3.1"];

/// An error in the head of a request or an answer.
#[derive(Debug)]
pub(super) enum HeadError {
    /// The head is not HTTP.
    Malformed(tungstenite::Error),
    /// The head is longer than [`MAX_HEAD`].
    TooLong,
}

/// Finds the end of the head of a request or an answer.
#[derive(Debug)]
pub(super) struct HeadReader {
    /// Bytes from the start in which the end of the head does not occur.
    searched: usize,
    /// Parse at this length, whether the end has come or not.
    parse_at: usize,
}

impl HeadReader {
    pub(super) fn new() -> Self {
        Self {
            searched: 0,
            parse_at: 1,
        }
    }

    /// Reads the head at the front of `bytes`; returns its length and the head once it is complete.
    ///
    /// A head is parsed when it is complete and each time that its length has doubled: nonsense is
    /// noticed early, and a head that comes byte by byte is not parsed a thousand times.
    pub(super) fn read<T: TryParse>(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<(usize, T)>, HeadError> {
        let tail = &bytes[self.searched.saturating_sub(2)..];
        let ends = tail.windows(2).any(|two| two == b"\n\n")
            || tail.windows(3).any(|three| three == b"\n\r\n");
        self.searched = bytes.len();
        if ends || bytes.len() >= self.parse_at {
            self.parse_at = 2 * bytes.len();
            let within = &bytes[..bytes.len().min(MAX_HEAD)];
            if let Some(head) = T::try_parse(within).map_err(HeadError::Malformed)? {
                return Ok(Some(head));
            }
        }
        if bytes.len() >= MAX_HEAD {
            return Err(HeadError::TooLong);
        }
        Ok(None)
    }
}

/// A listener's requirements of a WebSocket handshake: the path and the origins.
#[derive(Debug)]
pub(crate) struct Gate {
    path: String,
    origins: AllowedOrigins,
}

/// The answer to a request, with the reason if it is a refusal.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) refusal: Option<Error>,
}

/// A status other than 101, what is wrong with the request, and headers that go with the status.
struct Refusal(StatusCode, &'static str, &'static str);

const BAD_REQUEST: StatusCode = StatusCode::BAD_REQUEST;
const UPGRADE_REQUIRED: StatusCode = StatusCode::UPGRADE_REQUIRED;

impl Gate {
    /// Makes the gate of the listener at `address`.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if its path is not valid, or has a query.
    pub(crate) fn new(address: &Address, options: &ListenOptions) -> Result<Self, Error> {
        check_path(&address.path)?;
        if address.path.contains('?') {
            return Err(Error::InvalidOption {
                option: "WebSocket path",
                value: format!("{:?} at a listener", address.path),
                remedy: "leave the query out: clients may send any".into(),
            });
        }
        Ok(Self {
            path: address.path.clone(),
            origins: options.allowed_origins.clone(),
        })
    }

    /// Answers a request.
    pub(super) fn answer(&self, request: Result<Request, HeadError>) -> Answer {
        let granted = match request {
            Ok(request) => self.check(&request),
            Err(HeadError::Malformed(error)) => Err(malformed(&error)),
            Err(HeadError::TooLong) => Err(Refusal(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the request is longer than 16 KiB",
                "",
            )),
        };
        match granted {
            Ok((accept, subprotocol)) => Answer {
                text: format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                     Connection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\
                     Sec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
                ),
                refusal: None,
            },
            Err(refusal) => refusal.into(),
        }
    }

    /// Checks a request; returns the accept key and the subprotocol of the answer (RFC 6455 §4.2).
    fn check(&self, request: &Request) -> Result<(String, &'static str), Refusal> {
        let headers = request.headers();
        if headers.get_all(HOST).iter().count() != 1 {
            return Err(Refusal(BAD_REQUEST, "one Host header is needed", ""));
        }
        if request.uri().path() != self.path {
            return Err(Refusal(
                StatusCode::NOT_FOUND,
                "MQTT is at another path",
                "",
            ));
        }
        if !(has_token(headers, &UPGRADE, "websocket")
            && has_token(headers, &CONNECTION, "upgrade"))
        {
            return Err(Refusal(
                UPGRADE_REQUIRED,
                "this is an MQTT broker, which speaks WebSocket here",
                "Upgrade: websocket\r\n",
            ));
        }
        if single(headers, &SEC_WEBSOCKET_VERSION) != Some("13") {
            return Err(Refusal(
                UPGRADE_REQUIRED,
                "only version 13 of WebSocket is spoken here",
                "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            ));
        }
        // Bytes that a proxy takes for a body would be frames here (RFC 9112 §6.3).
        let lengths = headers.get_all(CONTENT_LENGTH).iter();
        if headers.contains_key(TRANSFER_ENCODING)
            || lengths.into_iter().any(|length| length != "0")
        {
            return Err(Refusal(
                BAD_REQUEST,
                "a request for a WebSocket has no body",
                "",
            ));
        }
        let key = single(headers, &SEC_WEBSOCKET_KEY).filter(|key| is_key(key));
        let key = key.ok_or(Refusal(BAD_REQUEST, "the Sec-WebSocket-Key is none", ""))?;
        let host = single(headers, &HOST).unwrap_or_default();
        let allowed = |origin: &HeaderValue| {
            let origin = origin.to_str();
            origin.is_ok_and(|origin| self.origins.allow(origin, host))
        };
        let mut origins = headers.get_all(ORIGIN).iter();
        if self.origins != AllowedOrigins::All && !origins.all(allowed) {
            return Err(Refusal(
                StatusCode::FORBIDDEN,
                "pages of this origin are not let in",
                "",
            ));
        }
        let subprotocol = SUBPROTOCOLS
            .into_iter()
            .find(|name| tokens(headers, &SEC_WEBSOCKET_PROTOCOL).any(|token| token == *name))
            .ok_or(Refusal(
                BAD_REQUEST,
                "a client has to ask for the subprotocol `mqtt`",
                "",
            ))?;
        Ok((derive_accept_key(key.as_bytes()), subprotocol))
    }
}

fn malformed(error: &tungstenite::Error) -> Refusal {
    match error {
        tungstenite::Error::Protocol(ProtocolError::WrongHttpMethod) => Refusal(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET can ask for a WebSocket",
            "Allow: GET\r\n",
        ),
        tungstenite::Error::Protocol(ProtocolError::WrongHttpVersion) => {
            Refusal(BAD_REQUEST, "HTTP/1.1 is needed", "")
        }
        _ => Refusal(BAD_REQUEST, "the request is no HTTP/1.1", ""),
    }
}

impl From<Refusal> for Answer {
    fn from(Refusal(status, why, headers): Refusal) -> Self {
        let close = if headers.starts_with("Upgrade") {
            "Upgrade, close"
        } else {
            "close"
        };
        Self {
            text: format!(
                "HTTP/1.1 {status}\r\n{headers}Connection: {close}\r\n\
                 Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\r\n{why}\n",
                why.len() + 1
            ),
            refusal: Some(Error::Upgrade {
                status: Some(status.as_u16()),
                reason: format!("the server answered {status}: {why}"),
            }),
        }
    }
}

/// Makes a client's request.
///
/// # Errors
/// [`Error::InvalidOption`] if the path is not valid.
pub(super) fn request(address: &Address, key: &str) -> Result<String, Error> {
    check_path(&address.path)?;
    let Address {
        scheme,
        host,
        port,
        path,
    } = address;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.clone()
    };
    // RFC 6455 §4.1: the default port of HTTP is left out.
    let port = match (scheme, port) {
        (Scheme::Ws, 80) | (Scheme::Wss, 443) => String::new(),
        _ => format!(":{port}"),
    };
    Ok(format!(
        "GET {path} HTTP/1.1\r\nHost: {host}{port}\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Protocol: {MQTT}\r\n\r\n"
    ))
}

/// Checks the path: a path from a URL is valid, but an [`Address`] may also be made by hand.
fn check_path(path: &str) -> Result<(), Error> {
    if path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Error::InvalidOption {
        option: "WebSocket path",
        value: format!("{path:?}"),
        remedy: "begin with `/`, and write what is not visible ASCII as %XX".into(),
    })
}

/// Checks that the server has accepted the handshake of [`request`] (RFC 6455 §4.1).
pub(super) fn check(
    response: Result<Response, HeadError>,
    address: &Address,
    key: &str,
) -> Result<(), Error> {
    let refused = |status, reason: String| Err(Error::Upgrade { status, reason });
    let response = match response {
        Ok(response) => response,
        Err(HeadError::Malformed(_)) => {
            return refused(None, "the server's answer is no HTTP/1.1".into());
        }
        Err(HeadError::TooLong) => {
            return refused(None, "the server's answer is longer than 16 KiB".into());
        }
    };
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let hint = match status {
            StatusCode::NOT_FOUND => "; is that the path?",
            status if status.is_redirection() => "; redirections are not followed",
            _ => "",
        };
        // A query may hold a secret.
        let path = address.path.split('?').next().unwrap_or_default();
        let reason = format!("the server answered {status} to a GET of `{path}`{hint}");
        return refused(Some(status.as_u16()), reason);
    }
    let headers = response.headers();
    let accept = derive_accept_key(key.as_bytes());
    let wrong = if !has_token(headers, &UPGRADE, "websocket") {
        "lacks an Upgrade header to websocket"
    } else if !has_token(headers, &CONNECTION, "upgrade") {
        "lacks a Connection header with Upgrade"
    } else if single(headers, &SEC_WEBSOCKET_ACCEPT) != Some(&accept) {
        "has the wrong Sec-WebSocket-Accept"
    } else if single(headers, &SEC_WEBSOCKET_PROTOCOL) != Some(MQTT) {
        // `[MQTT-6.0.0-4]`
        "lacks the subprotocol `mqtt`"
    } else if headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
        "has an extension that was not asked for"
    } else {
        return Ok(());
    };
    refused(
        Some(status.as_u16()),
        format!("the server's answer {wrong}"),
    )
}

/// Returns the value of a header that occurs once; `None` if it is missing or occurs more often.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Returns the members of a list, which several headers may share.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

fn has_token(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    tokens(headers, name).any(|token| token.eq_ignore_ascii_case(wanted))
}

/// Returns `true` if the text has the form of 16 bytes in base64 (RFC 6455 §4.2.1).
fn is_key(key: &str) -> bool {
    let base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/".contains(&byte);
    key.len() == 24 && key.ends_with("==") && key.bytes().take(22).all(base64)
}

#[cfg(test)]
mod tests;
