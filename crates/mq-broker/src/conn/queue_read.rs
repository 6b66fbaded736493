//! Loads queued messages from the store.

use std::{future::Future, ops::RangeInclusive, pin::Pin, sync::Arc};

use mq_codec::ByteStr;

use crate::{
    mailbox::RangeToRead,
    store::{Position, Store, StoreError, StoredMessage},
};

/// A read that is under way. Its messages stay in the store until it is done.
pub(super) type QueueRead = Pin<Box<dyn Future<Output = Result<ReadMessages, StoreError>> + Send>>;

/// The messages that were read: all that have these numbers.
pub(super) struct ReadMessages {
    pub(super) numbers: RangeInclusive<u64>,
    pub(super) messages: Vec<(u64, StoredMessage)>,
}

/// Reads the first of these messages, once all of them are in the store. Another thread does so, as
/// the read may block.
pub(super) fn read_queue(
    store: Arc<dyn Store>,
    client_id: ByteStr,
    wanted: RangeToRead,
) -> QueueRead {
    let RangeToRead {
        numbers,
        position,
        bytes,
    } = wanted;
    Box::pin(async move {
        let mut settled = store.settled();
        let reached = settled.wait_for(|settled| *settled >= Position(position));
        reached.await.map_err(|_| StoreError::Failed)?;
        let (first, last) = (*numbers.start(), *numbers.end());
        let read = move || store.queued(&client_id, numbers, bytes);
        let read = tokio::task::spawn_blocking(read).await;
        let messages = read.map_err(|error| StoreError::other("messages", error))??;
        Ok(ReadMessages {
            numbers: first..=messages.last().map_or(last, |(number, _)| *number),
            messages,
        })
    })
}
