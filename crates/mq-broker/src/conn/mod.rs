//! A connection: a link, the state machine on it, and the session that it holds meanwhile.
//!
//! A connection goes through phases, each a type of its own that has what only that phase needs:
//!
//! ```text
//!                   CONNECT                  proved             either side ends it
//!   AwaitingConnect -------> Authenticating -------> Attached ---------------------> Closing
//!          |                       |                                                    ^
//!          +-----------------------+------- refused, silent, gone ----------------------+
//! ```
//!
//! [`Wire`] is what all of them have: the link and the state machine. A link that a bridge has dialled
//! ([`BridgeLink`]) begins with Attached.

mod admission;
mod attached;
mod authenticating;
mod awaiting_connect;
mod awaiting_session;
mod backlog;
mod bridge_hooks;
mod bridge_link;
mod closing;
mod early;
mod first_bytes;
mod memory;
mod queue_read;
mod session_end;
mod settling;
mod unsettled_acks;
mod wire;

use attached::Attached;
use awaiting_connect::AwaitingConnect;
pub(crate) use bridge_hooks::{BridgeConnection, BridgeHooks};
pub(crate) use bridge_link::{BridgeLink, BridgeLinkEnd, BridgeSession};
use closing::Closing;
pub(crate) use wire::Wire;

/// Serves one link until it ends, then puts its session in order.
pub(crate) async fn serve(mut wire: Box<Wire>) {
    // Boxed, as the last phase is, so that the tasks of all who are connected need no room for it.
    let last_state = match Box::pin(let_in(&mut wire)).await {
        None => None,
        Some(mut attached) => {
            attached.run().await;
            Some(attached.into_last_state())
        }
    };
    Box::pin(Closing::new(wire, last_state).run()).await;
}

/// Runs the phases of a client that has no session yet; `None` if it gets none.
async fn let_in(wire: &mut Wire) -> Option<Box<Attached<'_>>> {
    wire.slow_down().await;
    let authenticating = AwaitingConnect::default().run(wire).await?;
    let admission = authenticating.run(wire).await?;
    // A task has room for every value that it holds over a wait, once for each name.
    Some(Box::new(admission.admit(wire).await?))
}
