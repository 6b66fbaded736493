//! HTTP answers: bodies, JSON, and the headers that every answer has.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    body::{Frame, SizeHint},
    header::{self, HeaderName, HeaderValue},
};
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;

pub(super) type Answer = Response<Body>;

/// A status other than 200, and its reason in one line.
pub(super) type Failure = (StatusCode, String);

/// The body of an answer: complete, or a stream of events.
pub(super) enum Body {
    Whole(Full<Bytes>),
    Events(mpsc::Receiver<Bytes>),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(context),
            Self::Events(events) => events
                .poll_recv(context)
                .map(|event| event.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Events(_) => false,
        }
    }

    // The size is known, so that a complete answer has a Content-Length and is not chunked.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

fn new(status: StatusCode, kind: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    // An answer must not be framed by another page, sniffed as a script, or kept in a cache.
    let fixed: [(HeaderName, &str); 6] = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'",
        ),
    ];
    for (name, value) in fixed {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    answer
}

/// Makes an answer of plain text.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    whole(status, "text/plain; charset=utf-8", body)
}

/// Makes an answer with a body of that media type.
pub(super) fn whole(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    new(status, kind, Body::Whole(Full::new(body.into())))
}

/// Makes an answer of server-sent events.
pub(super) fn events(events: mpsc::Receiver<Bytes>) -> Answer {
    new(StatusCode::OK, "text/event-stream", Body::Events(events))
}

/// Makes an answer of JSON, with 200.
pub(super) fn good(value: &impl Serialize) -> Answer {
    written(StatusCode::OK, value)
}

/// Makes the answer of a failure, in JSON: `{"error": "one line"}`.
pub(super) fn failed((status, problem): Failure) -> Answer {
    written(status, &json!({ "error": problem }))
}

fn written(status: StatusCode, value: &impl Serialize) -> Answer {
    let mut body = as_json(value);
    body.push(b'\n');
    whole(status, "application/json", body)
}

/// Serializes to JSON in visible ASCII alone.
pub(super) fn as_json(value: &impl Serialize) -> Vec<u8> {
    let mut body = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut body, Ascii);
    value
        .serialize(&mut serializer)
        .expect("plain values, written to memory");
    body
}

/// A formatter that escapes all but visible ASCII, so that no text of a client can change a
/// terminal.
struct Ascii;

impl serde_json::ser::Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        for character in fragment.chars() {
            if matches!(character, ' '..='~') {
                writer.write_all(&[character as u8])?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}
