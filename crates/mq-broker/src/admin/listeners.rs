//! Listeners of the admin interface: an HTTP port, and a Unix socket.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mq_transport::{LineLimit, SocketFile, listen_unix};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpListener,
};
use tracing::{debug, warn};

use super::{
    Admin, AdminSettings, REQUEST_WITHIN,
    connection_slots::{ConnectionSlot, ConnectionSlots},
    handle,
};
use crate::{Error, clock};

/// The longest duration of an HTTP connection: a scrape takes milliseconds.
const HTTP_PATIENCE: Duration = Duration::from_secs(30);

/// The longest duration of a connection to the socket, besides the time for a backup, which takes as long as the disk
/// needs.
const SOCKET_PATIENCE: Duration = Duration::from_mins(10);

/// Connections at once, of each listener.
const AT_ONCE: usize = 16;

/// The listener that a request arrived at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AdminListener {
    /// The HTTP port, with the peer's address.
    Http(SocketAddr),
    Socket,
}

/// The open listeners of the admin interface.
#[derive(Debug, Default)]
pub(crate) struct AdminListeners {
    http: Option<TcpListener>,
    socket: Option<(SocketFile, tokio::net::UnixListener)>,
}

impl AdminListeners {
    /// Opens the listeners of the settings.
    pub(crate) async fn open(settings: &AdminSettings) -> Result<Self, Error> {
        let mut listeners = Self::default();
        if let Some(address) = settings.http {
            let listener = TcpListener::bind(address).await;
            listeners.http = Some(listener.map_err(|source| Error::Admin {
                place: address.to_string(),
                source,
            })?);
            if settings.token_file.is_some() && !address.ip().is_loopback() {
                warn!(
                    %address,
                    "admin: HTTP listener reachable from other machines without TLS; use loopback and an SSH tunnel, or a proxy with TLS"
                );
            }
        }
        if let Some(path) = &settings.socket {
            let failed = |source| Error::Admin {
                place: path.display().to_string(),
                source,
            };
            // For the owner alone.
            listeners.socket = Some(listen_unix(path, Some(0o600)).map_err(failed)?);
        }
        Ok(listeners)
    }

    /// Returns the address of HTTP, with the port that was chosen.
    pub(crate) fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.local_addr().ok()
    }

    /// Answers requests until it is dropped.
    pub(crate) async fn serve(self, admin: Admin) {
        let http = async {
            let Some(listener) = &self.http else {
                return std::future::pending().await;
            };
            let slots = ConnectionSlots::new(AT_ONCE);
            let mut failures = LineLimit::new(1);
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        answer(stream, AdminListener::Http(peer), &admin, &slots).await;
                    }
                    Err(error) => pause(&error, &mut failures).await,
                }
            }
        };
        let socket = async {
            let Some((_file, listener)) = &self.socket else {
                return std::future::pending().await;
            };
            let slots = ConnectionSlots::new(AT_ONCE);
            let mut failures = LineLimit::new(1);
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => answer(stream, AdminListener::Socket, &admin, &slots).await,
                    Err(error) => pause(&error, &mut failures).await,
                }
            }
        };
        tokio::join!(http, socket);
    }
}

async fn pause(error: &std::io::Error, lines: &mut LineLimit) {
    if let Some(left_out) = lines.admit(clock::now()) {
        let left_out = (left_out > 0).then_some(left_out);
        warn!(%error, left_out, "admin: cannot accept connection");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Serves one connection in a task of its own, once there is a slot for it.
async fn answer<S>(stream: S, listener: AdminListener, admin: &Admin, slots: &ConnectionSlots)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let slot = slots.take().await;
    let admin = admin.clone();
    tokio::spawn(async move {
        let service = service_fn(|request| handle(&admin, listener, request, &slot));
        let stream = Progress {
            stream,
            slot: &slot,
        };
        let served = hyper::server::conn::http1::Builder::new()
            .keep_alive(false)
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_WITHIN)
            .serve_connection(TokioIo::new(stream), service);
        let patience = match listener {
            AdminListener::Http(_) => HTTP_PATIENCE,
            AdminListener::Socket => SOCKET_PATIENCE,
        };
        let times_out = async {
            tokio::time::sleep(patience).await;
            while slot.is_at_work() {
                tokio::time::sleep(patience).await;
            }
        };
        tokio::select! {
            served = served => {
                if let Err(error) = served {
                    debug!(%error, "admin: request failed");
                }
            }
            () = times_out => debug!("admin: request timed out"),
            () = slot.wanted() => debug!("admin: silent connection closed in favour of a new one"),
        }
    });
}

/// Stream that gives up its slot while its peer does not read the answer and others wait for a
/// slot.
struct Progress<'a, S> {
    stream: S,
    slot: &'a ConnectionSlot,
}

impl<S: AsyncRead + Unpin> AsyncRead for Progress<'_, S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Progress<'_, S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        if written.is_pending() {
            this.slot.waits_for_peer();
        } else {
            this.slot.keep();
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
