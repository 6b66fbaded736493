//! Clients of a cluster that wait for their sessions, and may disconnect meanwhile.

use std::{pin::pin, sync::Arc, time::Duration};

use mq_codec::{ByteStr, ReasonCode};
use mq_proto::Outbox;
use mq_transport::{Error, Progress};

use super::wire::Wire;
use crate::{clock, store::User};

/// The most reads in search of the end of a link that a peer may have closed.
const MAX_READS: usize = 64;

/// Bytes behind CONNECT from which on a client is not read before it has its session: one read more is below what such a
/// client may send.
const ENOUGH_BYTES: usize = 64 * 1024;

/// Returned for a client that waits for its session at other nodes of a cluster.
enum ClientWaits {
    Yes,
    /// The client has closed its connection behind its packets, which are served without it: its session ends with the
    /// connection, and is at no other node.
    HasSentAll,
    No,
}

impl Wire {
    /// Makes a client's session one of this node, if this broker is a node of a cluster. The claim ends as soon as the client
    /// has disconnected: then it may be at another node by now, and its session must not be taken from there.
    ///
    /// # Errors
    /// The reason for the client, or `None` if it has disconnected.
    pub(super) async fn claim_session(
        &mut self,
        client: &ByteStr,
        user: &User,
        is_kept: bool,
    ) -> Result<(), Option<ReasonCode>> {
        // CONNECT may have waited for a node that was stopped or too busy.
        if self.has_gone_elsewhere(client, is_kept).await {
            return Err(None);
        }
        let hub = Arc::clone(&self.hub);
        let mut claim = pin!(hub.claim_from_nodes(client, user));
        let mut nothing = Outbox::new();
        for _ in 0..MAX_READS {
            if self.has_read_enough() {
                break;
            }
            let progress = tokio::select! {
                biased;
                claimed = &mut claim => return claimed.map_err(Some),
                progress = self.link.progress(&mut nothing, true) => progress,
            };
            match self.client_waits(progress, client, is_kept).await {
                ClientWaits::Yes => {}
                ClientWaits::HasSentAll => break,
                ClientWaits::No => return Err(None),
            }
        }
        claim.await.map_err(Some)
    }

    /// Resolves to `true` if the peer, which waits for its session, has disconnected. Then it may be at another node of a
    /// cluster by now: its session must not be taken from there, nor what it has sent here before that be taken for the
    /// present.
    pub(super) async fn has_gone_elsewhere(&mut self, client: &ByteStr, is_kept: bool) -> bool {
        if !self.hub.is_clustered() {
            return false;
        }
        let mut nothing = Outbox::new();
        // Each turn reads a part of what has arrived, of which no more is taken than a client that is not let in may send.
        for _ in 0..MAX_READS {
            if self.has_read_enough() {
                break;
            }
            let progress = self.link.progress(&mut nothing, true);
            let progress = match tokio::time::timeout(Duration::ZERO, progress).await {
                Err(_) | Ok(Ok(Progress::Flushed)) => break,
                Ok(progress) => progress,
            };
            match self.client_waits(progress, client, is_kept).await {
                ClientWaits::Yes => {}
                ClientWaits::HasSentAll => return false,
                ClientWaits::No => break,
            }
        }
        self.connection.is_closed()
    }

    /// Returns `true` if the client has sent so much behind CONNECT that the rest waits in the network.
    fn has_read_enough(&self) -> bool {
        self.link.received_len() >= ENOUGH_BYTES
    }

    /// Acts on what the link of a client has done that waits for its session.
    async fn client_waits(
        &mut self,
        progress: Result<Progress, Error>,
        client: &ByteStr,
        is_kept: bool,
    ) -> ClientWaits {
        if let Ok(Progress::Received(_)) = progress {
            self.count_unauthenticated();
        } else {
            let may_have_sent_all = matches!(progress, Ok(Progress::Closed))
                && !is_kept
                && !self.is_unproved()
                && self.has_unread();
            if may_have_sent_all && !self.hub.is_elsewhere(client).await {
                self.take_early();
                return ClientWaits::HasSentAll;
            }
            self.progressed(Some(progress), clock::now());
        }
        if self.connection.is_closed() {
            ClientWaits::No
        } else {
            ClientWaits::Yes
        }
    }
}
