//! The end of a command, by its work, its time or a signal, each time with DISCONNECT.
//!
//! Over QUIC the broker notices a client that leaves without it only after the idle timeout or the keep-alive. Until
//! then it gives the client messages of a shared subscription, and in the end it publishes the will.

use std::{num::NonZeroU64, pin::pin, sync::OnceLock, time::Duration};

use mq_client::{Client, ClientBuilder};

use crate::Outcome;

/// Time in which DISCONNECT has to be delivered.
const GOODBYE: Duration = Duration::from_secs(1);

/// The part of [`GOODBYE`] in which messages that were queued may still leave.
pub(crate) const DRAIN: Duration = Duration::from_millis(500);

/// The client of a command, which is disconnected when the command ends.
#[derive(Default)]
pub(crate) struct Goodbye(OnceLock<Client>);

impl Goodbye {
    /// Connects the client of the command. Its end sends DISCONNECT from CONNECT on.
    pub(crate) async fn connect(&self, builder: ClientBuilder) -> Result<Client, mq_client::Error> {
        let client = builder.start_once()?;
        let _ = self.0.set(client.clone());
        client.connected().await?;
        Ok(client)
    }

    async fn say(&self) {
        if let Some(client) = self.0.get() {
            // The work is over, whatever becomes of the last packet.
            let _ = tokio::time::timeout(GOODBYE, client.disconnect()).await;
        }
    }
}

/// Does a command's work until it ends by itself, the seconds are over, or a signal ends it. Then sends DISCONNECT, if
/// the work has not done so.
pub(crate) async fn until_end(
    seconds: Option<NonZeroU64>,
    work: impl AsyncFnOnce(&Goodbye) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    let goodbye = Goodbye::default();
    let signalled = signalled()?;
    // Dropped behind DISCONNECT: earlier it would end subscriptions of a session that is kept.
    let mut work = pin!(work(&goodbye));
    let outcome = tokio::select! {
        biased;
        number = signalled => Ok(Outcome::Signalled(number)),
        () = over(seconds) => Ok(Outcome::TimedOut),
        outcome = work.as_mut() => outcome,
    };
    goodbye.say().await;
    outcome
}

async fn over(seconds: Option<NonZeroU64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds.get())).await,
        None => std::future::pending().await,
    }
}

/// The number of SIGINT, which Ctrl-C sends.
pub(crate) const INTERRUPT: u8 = 2;

/// Waits for a signal by which a user ends programs, and returns its number. SIGHUP is left alone, as `nohup` asks for.
#[cfg(unix)]
fn signalled() -> std::io::Result<impl Future<Output = u8>> {
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
fn signalled() -> std::io::Result<impl Future<Output = u8>> {
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
