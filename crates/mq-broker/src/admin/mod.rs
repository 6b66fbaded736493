//! The admin interface: answers operators over HTTP, and through a socket.
//!
//! | | where | answer |
//! |---|---|---|
//! | `GET /metrics` | both | the metrics as text, for Prometheus |
//! | `GET /healthz` | both | 200 while the process serves at all; 503 once its store has failed |
//! | `GET /readyz` | both | 200 while it accepts clients; 503 and the reason where it does not |
//! | `GET /` | both | a page for browsers; see `page` |
//! | `/v1/...` | both | clients, sessions and the like as JSON; see `v1` |
//! | `POST /backup` | the socket alone | writes what the store has to the file that the body names |
//!
//! The mode of the socket's file admits its owner alone, and the owner may do everything. Over HTTP
//! everybody may read the first three; `request_policy` decides about the rest.

mod answer;
mod connection_slots;
mod events;
mod exposition;
mod listeners;
mod page;
mod parameters;
mod request_policy;
mod status;
mod tokens;
mod v1;

use std::{convert::Infallible, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::Incoming,
    header::{HeaderValue, WWW_AUTHENTICATE},
    http::request,
};
use mq_codec::ByteStr;
use mq_transport::Address;
use tokio::sync::{Semaphore, watch};
use tracing::info;

use crate::{
    Error, LogLevels,
    hub::Hub,
    metrics::ListenerMetrics,
    refusal_log::{RefusalDetails, RefusalKind},
    view::ClusterStatus,
};
use answer::{Answer, Failure, failed, text};
use connection_slots::ConnectionSlot;
use listeners::AdminListener;
pub(crate) use listeners::AdminListeners;
use request_policy::{Need, RequestPolicy};
pub(crate) use tokens::Tokens;
pub use tokens::make_token_file;

/// The listeners of the admin interface; none by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AdminSettings {
    /// The address of HTTP: metrics and health for everybody, and the rest for holders of a token.
    /// Best on loopback or in a network of its own: HTTP is not encrypted.
    pub http: Option<SocketAddr>,
    /// A file of tokens, one a line, for its owner alone; [`make_token_file`] makes one. Whoever has a
    /// token may do everything over HTTP. Without it nothing can be changed over HTTP.
    pub token_file: Option<PathBuf>,
    /// `true` if programs of this machine read over HTTP without a token, by a loopback address or
    /// `localhost`. Keep it off where a proxy runs on this machine: requests that it forwards may
    /// look the same.
    pub open_on_loopback: bool,
    /// Host names by which clients reach `http`, besides `localhost` and addresses. Requests by
    /// another name are refused, since any site can give its name this address (DNS rebinding).
    pub hosts: Vec<String>,
    /// The path of a Unix socket, which offers the same, and backups. Its folder has to exist. A
    /// socket that an earlier broker left is replaced.
    pub socket: Option<PathBuf>,
}

impl AdminSettings {
    /// Reads the tokens, if there is a file of them.
    pub(crate) fn tokens(&self) -> Result<Option<Arc<Tokens>>, Error> {
        let tokens = self.token_file.clone().map(Tokens::open).transpose()?;
        Ok(tokens.map(Arc::new))
    }
}

/// The time that a connection has to send its request.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);

/// The most bytes of a request's body.
const LARGEST_BODY: usize = 64 * 1024;

/// A bridge, as operators see it.
#[derive(Clone, Debug)]
pub(crate) struct BridgeFigures {
    pub(crate) name: String,
    /// The client identifier at the remote broker.
    pub(crate) client_id: ByteStr,
    /// The client identifier of its session at this broker.
    pub(crate) session: ByteStr,
    pub(crate) addresses: Vec<Address>,
    /// The metrics of its links.
    pub(crate) links: Arc<ListenerMetrics>,
}

/// The state that answers requests.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    pub(crate) hub: Arc<Hub>,
    pub(crate) listeners: Vec<Arc<ListenerMetrics>>,
    pub(crate) bridges: Vec<BridgeFigures>,
    pub(crate) cluster: Option<Arc<dyn ClusterStatus>>,
    pub(crate) shutdown: watch::Receiver<bool>,
    /// The start of the broker's service.
    pub(crate) began: std::time::Instant,
    /// Host names of the broker in URLs.
    pub(crate) hosts: Arc<[String]>,
    pub(crate) tokens: Option<Arc<Tokens>>,
    /// See [`AdminSettings::open_on_loopback`].
    pub(crate) open_on_loopback: bool,
    pub(crate) log: Option<Arc<dyn LogLevels>>,
    /// Free places for streams of events.
    pub(crate) streams: Arc<Semaphore>,
}

/// The most streams of events at once: half of the slots, so that the others answer scrapes.
pub(crate) const STREAMS: usize = 8;

/// Answers a request. HEAD is answered like GET; hyper leaves out the body.
async fn handle(
    admin: &Admin,
    listener: AdminListener,
    request: Request<Incoming>,
    slot: &ConnectionSlot,
) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let is_read = matches!(head.method, Method::GET | Method::HEAD);
    let method = head.method.clone();
    let path = head.uri.path().to_owned();
    // These requests need no body, and do not wait for one.
    let at_once = |answer| {
        slot.keep();
        answer
    };
    Ok(match (method, path.as_str(), listener) {
        (_, "/metrics", _) if is_read => {
            let (kind, text) = exposition::write(admin, &head.headers);
            at_once(answer::whole(StatusCode::OK, kind, text))
        }
        (_, "/healthz", _) if is_read => at_once(verdict("ok", admin.why_not_healthy())),
        (_, "/readyz", _) if is_read => at_once(verdict("ready", admin.why_not_ready())),
        (Method::POST, "/backup", AdminListener::Socket) => back_up(admin, body, slot).await,
        (_, "/metrics" | "/healthz" | "/readyz" | "/backup", _) => at_once(text(
            StatusCode::METHOD_NOT_ALLOWED,
            "not here, or not so\n",
        )),
        _ => guarded(admin, listener, (head, body), slot).await,
    })
}

/// Receives a body of at most `limit` bytes within [`REQUEST_WITHIN`]. From then on the connection
/// keeps its slot. `None` if the body is larger or does not arrive.
async fn receive(body: Incoming, limit: usize, slot: &ConnectionSlot) -> Option<Bytes> {
    let body = Limited::new(body, limit).collect();
    let body = tokio::time::timeout(REQUEST_WITHIN, body).await;
    slot.keep();
    Some(body.ok()?.ok()?.to_bytes())
}

/// Answers requests that need an authorization.
async fn guarded(
    admin: &Admin,
    listener: AdminListener,
    (head, body): (request::Parts, Incoming),
    slot: &ConnectionSlot,
) -> Answer {
    let is_page = head.uri.path() == "/";
    let need = match head.method {
        Method::GET | Method::HEAD => Need::Read,
        _ => Need::Change,
    };
    if let AdminListener::Http(peer) = listener {
        let policy = RequestPolicy {
            tokens: admin.tokens.as_deref(),
            hosts: &admin.hosts,
            open_on_loopback: admin.open_on_loopback,
        };
        if let Err(failure) = policy.check(&head, peer.ip(), need) {
            slot.keep();
            return admin.refuse(failure, peer, is_page);
        }
    }
    if is_page {
        slot.keep();
        return page::answer(&head.method);
    }
    let body = receive(body, parameters::LARGEST_PARAMETERS, slot).await;
    v1::answer(admin, &head, body.as_deref()).await
}

/// Answers 200 without a reason against it, else 503 with the reason.
fn verdict(good: &str, why_not: Option<String>) -> Answer {
    match why_not {
        None => text(StatusCode::OK, format!("{good}\n")),
        Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

impl Admin {
    /// Refuses a request over HTTP. A browser prompts for a token where the page needs one.
    fn refuse(&self, failure: Failure, peer: SocketAddr, is_page: bool) -> Answer {
        let status = failure.0;
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            let about = RefusalDetails {
                peer: Some(peer),
                ..RefusalDetails::default()
            };
            let now = crate::clock::now();
            self.hub
                .refusal_log
                .log(RefusalKind::Operator, about, &failure.1, now);
        }
        let mut answer = failed(failure);
        if status == StatusCode::UNAUTHORIZED {
            let how = if is_page {
                r#"Basic realm="mqbroker: any name, and the token as password", charset="UTF-8""#
            } else {
                r#"Bearer realm="mqbroker""#
            };
            let headers = answer.headers_mut();
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(how));
        }
        answer
    }

    /// Returns the reason why the broker must be restarted, if there is one.
    fn why_not_healthy(&self) -> Option<String> {
        self.hub.store_writer()?.why_not_healthy()
    }

    /// Returns the reason why no client should be sent to this broker, if there is one.
    fn why_not_ready(&self) -> Option<String> {
        let is_ending = *self.shutdown.borrow();
        let slow = || self.hub.store_writer()?.why_not_ready();
        let cluster = || self.cluster.as_ref()?.why_not_ready();
        self.why_not_healthy()
            .or_else(|| is_ending.then(|| "shutting down".to_owned()))
            .or_else(slow)
            .or_else(cluster)
    }
}

/// Writes a backup to the path in the body.
async fn back_up(admin: &Admin, body: Incoming, slot: &ConnectionSlot) -> Answer {
    let body = receive(body, LARGEST_BODY, slot).await;
    let Some(store) = admin.hub.store().cloned() else {
        return text(StatusCode::CONFLICT, "this broker has no store\n");
    };
    let path = body.and_then(|body| {
        let body = String::from_utf8(body.to_vec()).ok()?;
        Some(PathBuf::from(body.trim_end_matches('\n')))
    });
    let Some(path) = path.filter(|path| path.is_absolute()) else {
        let problem = "the body has to be an absolute path\n";
        return text(StatusCode::BAD_REQUEST, problem);
    };
    slot.set_at_work(true);
    let written = tokio::task::spawn_blocking(move || {
        let written = store.back_up(&path);
        (path, written)
    });
    let written = written.await;
    slot.set_at_work(false);
    match written {
        Ok((path, Ok(()))) => {
            info!(path = %path.display(), "backup written");
            text(StatusCode::OK, format!("{}\n", path.display()))
        }
        Ok((_, Err(error))) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the backup failed\n"),
    }
}
