//! The end of a command, by its work, its time or a signal, each time with DISCONNECT.
//!
//! Over QUIC the broker notices a client that leaves without it only after the idle timeout or the keep-alive. Until
//! then it gives the client messages of a shared subscription, and in the end it publishes the will.

use std::{num::NonZeroU64, pin::pin, sync::OnceLock, time::Duration};

use mq_client::{Client, ClientBuilder};

use super::Outcome;
use crate::ends::signalled;

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
