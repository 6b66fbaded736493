//! Answers as HTTP has them: bodies, JSON, and the headers that every answer has.

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

/// A status other than 200, and one line that says why.
pub(super) type Failure = (StatusCode, String);

/// What an answer says: all at once, or as it happens.
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

    // Known, so that a whole answer comes with its length and not in chunks.
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
    // Nothing here may be shown inside another page, guessed to be a script, or kept on a disk.
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

/// Plain text.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    whole(status, "text/plain; charset=utf-8", body)
}

/// A body of that media type.
pub(super) fn whole(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    new(status, kind, Body::Whole(Full::new(body.into())))
}

/// Server-sent events.
pub(super) fn events(events: mpsc::Receiver<Bytes>) -> Answer {
    new(StatusCode::OK, "text/event-stream", Body::Events(events))
}

/// JSON, with 200.
pub(super) fn good(value: &impl Serialize) -> Answer {
    written(StatusCode::OK, value)
}

/// A failure as JSON: `{"error": "one line"}`.
pub(super) fn failed((status, problem): Failure) -> Answer {
    written(status, &json!({ "error": problem }))
}

fn written(status: StatusCode, value: &impl Serialize) -> Answer {
    let mut body = as_json(value);
    body.push(b'\n');
    whole(status, "application/json", body)
}

/// JSON in visible ASCII alone.
pub(super) fn as_json(value: &impl Serialize) -> Vec<u8> {
    let mut body = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut body, Ascii);
    value
        .serialize(&mut serializer)
        .expect("plain values, written to memory");
    body
}

/// Escapes all but visible ASCII, so that no text of a client's can change a terminal.
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
