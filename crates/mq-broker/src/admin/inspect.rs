//! `/v1/`: clients, sessions, subscriptions and retained messages as JSON, through the socket alone.

use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header};
use serde::Serialize;
use serde_json::json;

use super::{Admin, Answer, REQUEST_WITHIN};
use crate::{
    metrics::ByReason,
    view::{LARGEST_PAGE, NotConnected, Query},
};

/// Bytes of parameters in a body: a place among subscriptions is a filter and an identifier, each of which
/// takes three bytes for one of its own at most.
const LARGEST_PARAMETERS: usize = 512 * 1024;

type Failure = (StatusCode, String);

/// Parameters of a request.
#[derive(Default)]
struct Parameters {
    id: Option<String>,
    query: Query,
}

/// Answers a request below `/v1/`.
pub(super) async fn answer(admin: &Admin, request: Request<Incoming>) -> Answer {
    match try_answer(admin, request).await {
        Ok(answer) => answer,
        Err((status, problem)) => written(status, &json!({ "error": problem })),
    }
}

async fn try_answer(admin: &Admin, request: Request<Incoming>) -> Result<Answer, Failure> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, LARGEST_PARAMETERS).collect();
    let body = tokio::time::timeout(REQUEST_WITHIN, body).await;
    let body = body.ok().and_then(Result::ok);
    let body = body.ok_or_else(|| bad("the body is too large, or came too slowly"))?;
    let mut parameters = Parameters::default();
    parameters.read(head.uri.query().unwrap_or_default())?;
    let body = body.to_bytes();
    parameters.read(std::str::from_utf8(&body).map_err(|_| bad("the body is not UTF-8"))?)?;
    let path = head.uri.path().strip_prefix("/v1/").unwrap_or_default();
    let parts: Vec<_> = path.split('/').collect();
    let (hub, query) = (&admin.hub, &parameters.query);
    let get = head.method == Method::GET;
    Ok(match parts.as_slice() {
        ["status"] if get => good(&status(admin)),
        ["clients"] if get => good(&hub.clients(query).await),
        ["clients", id] if get => {
            let id = parameters.id(id)?;
            good(&hub.client(&id).await.map_err(|error| unknown(&error))?)
        }
        ["clients", id, "kick"] if head.method == Method::POST => {
            let id = parameters.id(id)?;
            hub.kick(&id).map_err(|error| unknown(&error))?;
            good(&json!({ "kicked": id }))
        }
        ["sessions"] if get => good(&hub.absent_sessions(query).await),
        ["subscriptions"] if get => good(&hub.all_subscriptions(query).await),
        ["retained"] if get => {
            let page = hub.retained_topics(query).await;
            good(&page.map_err(|error| bad(&format!("match: {error}")))?)
        }
        ["status" | "sessions" | "subscriptions" | "retained" | "clients"]
        | ["clients", _]
        | ["clients", _, "kick"] => {
            let problem = "not so: see GET and POST in the reference";
            return Err((StatusCode::METHOD_NOT_ALLOWED, problem.to_owned()));
        }
        _ => return Err((StatusCode::NOT_FOUND, "there is no such page".to_owned())),
    })
}

fn bad(problem: &str) -> Failure {
    (StatusCode::BAD_REQUEST, problem.to_owned())
}

fn unknown(error: &NotConnected) -> Failure {
    (StatusCode::NOT_FOUND, error.to_string())
}

impl Parameters {
    /// Reads `name=value&...`, percent-encoded. A `+` is a plus, as filters have it.
    fn read(&mut self, text: &str) -> Result<(), Failure> {
        for pair in text.trim_end().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value)?;
            match name {
                "id" => self.id = Some(value),
                "match" => self.query.matching = value,
                "after" => self.query.after = Some(value).filter(|value| !value.is_empty()),
                "limit" => {
                    let limit = value.parse().ok();
                    let limit = limit.filter(|limit| (1..=LARGEST_PAGE).contains(limit));
                    let problem = || bad(&format!("limit: a number from 1 to {LARGEST_PAGE}"));
                    self.query.limit = limit.ok_or_else(problem)?;
                }
                _ => return Err(bad("there are the parameters id, match, after and limit")),
            }
        }
        Ok(())
    }

    /// The identifier in the path or, where that is empty, in the parameter `id`: a URI has not room for every
    /// identifier.
    fn id(&self, in_path: &str) -> Result<String, Failure> {
        if in_path.is_empty() {
            self.id.clone().ok_or_else(|| bad("id is missing"))
        } else {
            decoded(in_path)
        }
    }
}

fn decoded(text: &str) -> Result<String, Failure> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'%' {
            let digits = rest.get(..2).and_then(|two| std::str::from_utf8(two).ok());
            let digits = digits.filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
            bytes.push(byte.ok_or_else(|| bad("two hexadecimal digits follow a `%`"))?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).map_err(|_| bad("a text is not UTF-8"))
}

fn status(admin: &Admin) -> serde_json::Value {
    let metrics = &admin.hub.metrics;
    let reasons = |counts: &ByReason| -> serde_json::Value {
        let counts = counts.by_reason().into_iter();
        counts
            .map(|(reason, count)| (reason.to_owned(), count.into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let listeners = admin.listeners.iter().map(|listener| {
        json!({
            "address": listener.address.to_string(),
            "transport": listener.address.scheme.to_string(),
            "connections": listener.connections.get(),
            "accepted": listener.accepted.get(),
            "handshakes_failed": listener.handshakes_failed.get(),
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": admin.began.elapsed().as_secs(),
        "not_ready": admin.why_not_ready(),
        "connections": metrics.connections.get(),
        "handshakes": metrics.handshakes.get(),
        "sessions": metrics.sessions.get(),
        "subscriptions": metrics.subscriptions.get(),
        "retained": metrics.retained.get(),
        "memory_used_bytes": admin.hub.memory_used(),
        "messages_received": metrics.messages_in.get(),
        "messages_sent": metrics.messages_out.get(),
        "messages_dropped": metrics.dropped.get(),
        "connections_refused": reasons(&metrics.refused),
        "log_ins_refused": reasons(&metrics.log_ins_refused),
        "publishes_refused": reasons(&metrics.publishes_refused),
        "subscriptions_refused": reasons(&metrics.subscriptions_refused),
        "readers_evicted": reasons(&metrics.evicted),
        "listeners": listeners.collect::<Vec<_>>(),
    })
}

fn good(value: &impl Serialize) -> Answer {
    written(StatusCode::OK, value)
}

fn written(status: StatusCode, value: &impl Serialize) -> Answer {
    let mut body = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut body, Ascii);
    value
        .serialize(&mut serializer)
        .expect("plain values, written to memory");
    body.push(b'\n');
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
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
