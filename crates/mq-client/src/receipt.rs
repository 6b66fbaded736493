//! Receipts for queued messages.

use std::{fmt, sync::Arc};

use mq_codec::ReasonCode;

use crate::{Error, ack::AckCell, shared::Shared};

/// Follows one message. Dropping the receipt neither waits nor takes the message back.
///
/// A QoS 0 receipt is a number and a reference: it allocates nothing. The driver reports to the
/// receipt of a QoS 1 or 2 message only while the receipt exists.
pub struct Receipt {
    shared: Arc<Shared>,
    seq: u64,
    /// Outcome of a QoS 1 or 2 message; `None` at QoS 0.
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

    /// Returns the number of the message: the client counts its messages from 1, in the order in which they are
    /// queued and written.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.seq
    }

    /// Waits until the kernel or the QUIC stack has taken the message.
    ///
    /// For QoS 1 and 2 the first write counts; if that link is lost, the message is sent again.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`Error::LostUnsent`], [`Error::NotSent`], [`Error::Expired`], or the error that ended the client.
    pub async fn written(&mut self) -> Result<(), Error> {
        loop {
            let changed = self.shared.written.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(cell) = &self.cell
                && let Some(Err(error)) = cell.get()
            {
                return Err(error.clone());
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

    /// Waits for the acknowledgement: PUBACK or PUBCOMP. A QoS 0 message has none and counts as
    /// acknowledged once it is [`written`](Self::written). Cancel-safe.
    ///
    /// # Errors
    /// [`Error::PublishRefused`] if the server did not take it, or as [`written`](Self::written).
    pub async fn acknowledged(&mut self) -> Result<ReasonCode, Error> {
        let Some(cell) = &self.cell else {
            return self.written().await.map(|()| ReasonCode::Success);
        };
        let reason = cell.wait().await.clone()?;
        if reason.is_error() {
            return Err(Error::PublishRefused { reason });
        }
        Ok(reason)
    }
}
