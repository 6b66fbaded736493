//! Ends of a command from outside: a signal, or nobody who reads.

/// The number of SIGINT, which Ctrl-C sends.
pub(crate) const INTERRUPT: u8 = 2;

/// Waits for a signal by which a user ends programs, and returns its number. SIGHUP is left alone, as `nohup` asks for.
#[cfg(unix)]
pub(crate) fn signalled() -> std::io::Result<impl Future<Output = u8>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    Ok(async move {
        let which = tokio::select! {
            _ = interrupted.recv() => SignalKind::interrupt(),
            _ = terminated.recv() => SignalKind::terminate(),
        };
        u8::try_from(which.as_raw_value()).unwrap_or(INTERRUPT)
    })
}

#[cfg(not(unix))]
pub(crate) fn signalled() -> std::io::Result<impl Future<Output = u8>> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        INTERRUPT
    })
}

/// Returns true if the reader of the standard output has gone, such as `head`: a quiet end.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
