//! What became of a message that was sent.

use std::{fmt, future::poll_fn, sync::Arc};

use mq_codec::ReasonCode;

use crate::{Error, ack::AckCell, shared::Shared};

/// Tells what became of one message. Dropping it neither waits nor takes the message back.
///
/// A QoS 0 receipt is a number and a reference: it allocates nothing. The driver only looks for
/// the receipt of a QoS 1 or 2 message while somebody holds it.
pub struct Receipt {
    shared: Arc<Shared>,
    seq: u64,
    /// QoS 1 and 2.
    cell: Option<Arc<AckCell>>,
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt")
            .field("seq", &self.seq)
            .finish_non_exhaustive()
    }
}

impl Receipt {
    pub(crate) fn new(shared: Arc<Shared>, seq: u64, cell: Option<Arc<AckCell>>) -> Self {
        Self { shared, seq, cell }
    }

    /// The number of the message: this client's messages are counted from 1, in the order in which
    /// they were queued and will be written.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.seq
    }

    /// Waits until the message was handed to the kernel or the QUIC stack.
    ///
    /// For QoS 1 and 2 the first time counts; should that link be lost, the message is sent again.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`Error::LostUnsent`], [`Error::NotSent`], [`Error::Expired`], or what ended the client.
    pub async fn written(&mut self) -> Result<(), Error> {
        loop {
            let changed = self.shared.written.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(cell) = &self.cell
                && let Some(Err(error)) = cell.peek()
            {
                return Err(error);
            }
            if let Some(result) = self.shared.written.of(self.seq, self.cell.is_none()) {
                return result;
            }
            if let Some(error) = self.shared.queue.closed() {
                return Err(error);
            }
            changed.await;
        }
    }

    /// Waits for the acknowledgement: PUBACK or PUBCOMP. A QoS 0 message has none, it counts as
    /// acknowledged once it is [`written`](Self::written). Cancel-safe.
    ///
    /// # Errors
    /// [`Error::PublishRefused`] if the server did not take it, or as [`written`](Self::written).
    pub async fn acknowledged(&mut self) -> Result<ReasonCode, Error> {
        let Some(cell) = &self.cell else {
            return self.written().await.map(|()| ReasonCode::Success);
        };
        let reason = poll_fn(|cx| cell.poll(cx)).await?;
        if reason.is_error() {
            return Err(Error::PublishRefused { reason });
        }
        Ok(reason)
    }
}
