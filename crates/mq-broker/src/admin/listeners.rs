//! Listeners of the admin interface: an HTTP port, and a Unix socket.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
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
use crate::Error;

/// The longest duration of an HTTP connection: a scrape takes milliseconds.
const HTTP_PATIENCE: Duration = Duration::from_secs(30);

/// The longest duration of a connection to the socket: a backup takes as long as the disk needs.
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
        // The file may be gone or another broker's by now; neither matters to this one.
        let _ = std::fs::remove_file(&self.0);
    }
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
            #[cfg(unix)]
            {
                listeners.socket = Some(open_socket(path).map_err(failed)?);
            }
            #[cfg(not(unix))]
            return Err(failed(std::io::ErrorKind::Unsupported.into()));
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
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        answer(stream, AdminListener::Http(peer), &admin, &slots).await;
                    }
                    Err(error) => pause(&error).await,
                }
            }
        };
        #[cfg(unix)]
        let socket = async {
            let Some((listener, _file)) = &self.socket else {
                return std::future::pending().await;
            };
            let slots = ConnectionSlots::new(AT_ONCE);
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => answer(stream, AdminListener::Socket, &admin, &slots).await,
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
                "another kind of file than a socket exists there",
            ));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(std::io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    // Moved to its place only once it is private to the owner.
    let private = path.with_extension("new");
    let _ = std::fs::remove_file(&private);
    let listener = tokio::net::UnixListener::bind(&private)?;
    std::fs::set_permissions(&private, PermissionsExt::from_mode(0o600))?;
    std::fs::rename(&private, path)?;
    Ok((listener, SocketFile(path.to_owned())))
}

async fn pause(error: &std::io::Error) {
    warn!(%error, "admin: cannot accept connection");
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
        tokio::select! {
            served = tokio::time::timeout(patience, served) => match served {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "admin: request failed"),
                Err(_) => debug!("admin: request timed out"),
            },
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
