//! Answers operators: metrics and health over HTTP, backups through a socket.
//!
//! | | where | answer |
//! |---|---|---|
//! | `GET /metrics` | both | the metrics as text, for Prometheus |
//! | `GET /healthz` | both | 200 while the process serves at all; 503 once its store has failed |
//! | `GET /readyz` | both | 200 while it accepts clients; 503 and the reason where it does not |
//! | `POST /backup` | the socket alone | writes what the store has to the file that the body names |
//! | `/v1/...` | the socket alone | clients, sessions, subscriptions, retained messages as JSON; see `inspect` |
//!
//! The HTTP port has no authentication: everybody who reaches it can read the metrics. By the
//! file's mode the socket is for its owner alone.

mod exposition;
mod inspect;
mod places;

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::watch,
};
use tracing::{debug, info, warn};

use crate::{Error, hub::Hub, metrics::ListenerMetrics};
use places::Places;

/// Where the broker answers operators; nowhere by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AdminSettings {
    /// HTTP: metrics and health. Best on loopback or in a network of its own.
    pub http: Option<SocketAddr>,
    /// A Unix socket: the same, and backups. Its folder has to exist. A socket that an earlier
    /// broker left is replaced.
    pub socket: Option<PathBuf>,
}

/// How long a connection may take to send its request: operators are near.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);

/// How long an HTTP connection may take in all: scrapes take milliseconds.
const HTTP_PATIENCE: Duration = Duration::from_secs(30);

/// The same of the socket: a backup takes as long as the disk needs.
const SOCKET_PATIENCE: Duration = Duration::from_mins(10);

/// Connections at once, through each door.
const AT_ONCE: usize = 16;

/// Bytes of a request's body.
const LARGEST_BODY: usize = 64 * 1024;

/// What answers.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    pub(crate) hub: Arc<Hub>,
    pub(crate) listeners: Vec<Arc<ListenerMetrics>>,
    pub(crate) shutdown: watch::Receiver<bool>,
    /// When the broker began to serve.
    pub(crate) began: std::time::Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    Http,
    Socket,
}

/// Doors that are open.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    http: Option<TcpListener>,
    #[cfg(unix)]
    socket: Option<(tokio::net::UnixListener, SocketFile)>,
}

/// Removes a socket's file when it is dropped.
#[cfg(unix)]
#[derive(Debug)]
struct SocketFile(PathBuf);

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may be another broker's by now, or gone; neither matters to this one.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Doors {
    /// Opens what the settings name.
    pub(crate) async fn open(settings: &AdminSettings) -> Result<Self, Error> {
        let mut doors = Self::default();
        if let Some(address) = settings.http {
            let listener = TcpListener::bind(address).await;
            doors.http = Some(listener.map_err(|source| Error::Admin {
                place: address.to_string(),
                source,
            })?);
        }
        if let Some(path) = &settings.socket {
            let failed = |source| Error::Admin {
                place: path.display().to_string(),
                source,
            };
            #[cfg(unix)]
            {
                doors.socket = Some(open_socket(path).map_err(failed)?);
            }
            #[cfg(not(unix))]
            return Err(failed(std::io::ErrorKind::Unsupported.into()));
        }
        Ok(doors)
    }

    /// Where HTTP is, with the port that was chosen.
    pub(crate) fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.local_addr().ok()
    }

    /// Answers until it is dropped.
    pub(crate) async fn serve(self, admin: Admin) {
        let http = async {
            let Some(listener) = &self.http else {
                return std::future::pending().await;
            };
            let places = Places::new(AT_ONCE);
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => answer(stream, Door::Http, &admin, &places).await,
                    Err(error) => pause(&error).await,
                }
            }
        };
        #[cfg(unix)]
        let socket = async {
            let Some((listener, _file)) = &self.socket else {
                return std::future::pending().await;
            };
            let places = Places::new(AT_ONCE);
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => answer(stream, Door::Socket, &admin, &places).await,
                    Err(error) => pause(&error).await,
                }
            }
        };
        #[cfg(not(unix))]
        let socket = std::future::pending::<()>();
        tokio::join!(http, socket);
    }
}

#[cfg(unix)]
fn open_socket(path: &Path) -> std::io::Result<(tokio::net::UnixListener, SocketFile)> {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt};

    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(std::io::Error::other(
                "there is something else than a socket",
            ));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(std::io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    // Moved to its place only once it is for the owner alone.
    let private = path.with_extension("new");
    let _ = std::fs::remove_file(&private);
    let listener = tokio::net::UnixListener::bind(&private)?;
    std::fs::set_permissions(&private, PermissionsExt::from_mode(0o600))?;
    std::fs::rename(&private, path)?;
    Ok((listener, SocketFile(path.to_owned())))
}

async fn pause(error: &std::io::Error) {
    warn!(%error, "an operator's connection could not be accepted");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Serves one connection in a task of its own, once there is a place for it.
async fn answer<S>(stream: S, door: Door, admin: &Admin, places: &Places)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let place = places.take().await;
    let admin = admin.clone();
    tokio::spawn(async move {
        let service = service_fn(|request| {
            place.keep();
            handle(&admin, door, request)
        });
        let served = hyper::server::conn::http1::Builder::new()
            .keep_alive(false)
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_WITHIN)
            .serve_connection(TokioIo::new(stream), service);
        let patience = match door {
            Door::Http => HTTP_PATIENCE,
            Door::Socket => SOCKET_PATIENCE,
        };
        tokio::select! {
            served = tokio::time::timeout(patience, served) => match served {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "an operator's request failed"),
                Err(_) => debug!("an operator's request took too long"),
            },
            () = place.wanted() => debug!("an operator's connection was silent while others came"),
        }
    });
}

type Answer = Response<Full<Bytes>>;

async fn handle(
    admin: &Admin,
    door: Door,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    if door == Door::Socket && path.starts_with("/v1/") {
        return Ok(inspect::answer(admin, request).await);
    }
    Ok(match (method, path.as_str(), door) {
        (Method::GET, "/metrics", _) => {
            let mut answer = text(StatusCode::OK, exposition::write(admin));
            let headers = answer.headers_mut();
            headers.insert(
                hyper::header::CONTENT_TYPE,
                hyper::header::HeaderValue::from_static(exposition::CONTENT_TYPE),
            );
            answer
        }
        (Method::GET, "/healthz", _) => verdict("ok", admin.why_not_healthy()),
        (Method::GET, "/readyz", _) => verdict("ready", admin.why_not_ready()),
        (Method::POST, "/backup", Door::Socket) => back_up(admin, request).await,
        (_, "/metrics" | "/healthz" | "/readyz" | "/backup", _) => {
            text(StatusCode::METHOD_NOT_ALLOWED, "not here, or not so\n")
        }
        _ => text(StatusCode::NOT_FOUND, "there is no such page\n"),
    })
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
}

/// 200 without a reason against it, else 503 with the reason.
fn verdict(good: &str, why_not: Option<&str>) -> Answer {
    match why_not {
        None => text(StatusCode::OK, format!("{good}\n")),
        Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

impl Admin {
    /// Why the broker has to be started again, if it has to.
    fn why_not_healthy(&self) -> Option<&'static str> {
        let mut store = self.hub.store().into_iter();
        let has_failed = store.any(|store| store.settled().has_changed().is_err());
        has_failed.then_some("the store has failed")
    }

    fn why_not_ready(&self) -> Option<&'static str> {
        let is_ending = *self.shutdown.borrow();
        let ending = is_ending.then_some("shutting down");
        self.why_not_healthy().or(ending)
    }
}

/// The body is the file's path.
async fn back_up(admin: &Admin, request: Request<Incoming>) -> Answer {
    let Some(store) = admin.hub.store().cloned() else {
        return text(StatusCode::CONFLICT, "this broker has no store\n");
    };
    let body = Limited::new(request.into_body(), LARGEST_BODY).collect();
    let body = tokio::time::timeout(REQUEST_WITHIN, body).await;
    let path = body.ok().and_then(Result::ok).and_then(|body| {
        let body = String::from_utf8(body.to_bytes().to_vec()).ok()?;
        Some(PathBuf::from(body.trim_end_matches('\n')))
    });
    let Some(path) = path.filter(|path| path.is_absolute()) else {
        let problem = "the body has to be an absolute path\n";
        return text(StatusCode::BAD_REQUEST, problem);
    };
    let written = tokio::task::spawn_blocking(move || {
        let written = store.back_up(&path);
        (path, written)
    });
    match written.await {
        Ok((path, Ok(()))) => {
            info!(path = %path.display(), "backed up");
            text(StatusCode::OK, format!("{}\n", path.display()))
        }
        Ok((_, Err(error))) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", error.0)),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the backup failed\n"),
    }
}
