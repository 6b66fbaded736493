//! The journal of one connection: its changes for the store, and the position up to which they are settled.

use std::sync::Arc;

use mq_proto::Message;
use tokio::sync::watch;

use crate::{
    session::Session,
    store::{Change, Position, SessionChange, StoreClock},
    store_writer::StoreWriter,
};

/// Records changes, where there is a store, and knows the position that the store has to reach before their
/// consequences may be sent.
#[derive(Debug)]
pub(crate) struct Journal(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    writer: Arc<StoreWriter>,
    recorded: Position,
    settled: watch::Receiver<Position>,
}

/// The store has failed for good.
#[derive(Debug)]
pub(crate) struct StoreFailed;

impl Journal {
    pub(crate) fn new(writer: Option<&Arc<StoreWriter>>) -> Self {
        Self(writer.map(|writer| {
            Box::new(Open {
                writer: Arc::clone(writer),
                recorded: Position::default(),
                settled: writer.store().settled(),
            })
        }))
    }

    /// Returns `true` if changes of this session are recorded: there is a store, and the session outlives its
    /// connections.
    pub(crate) fn records_session(&self, session: &Session) -> bool {
        self.has_store() && session.is_persistent()
    }

    /// Returns `true` if there is a store.
    pub(crate) fn has_store(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the clock of the times that the store keeps.
    pub(crate) fn store_clock(&self) -> StoreClock<'_> {
        StoreClock::new(self.0.as_ref().map(|open| open.writer.store()))
    }

    /// Records changes that belong together.
    pub(crate) fn record(&mut self, changes: Vec<Change>) {
        if let Some(open) = &mut self.0
            && !changes.is_empty()
        {
            open.recorded = open.writer.record(changes);
        }
    }

    /// Counts a call that was made elsewhere as recorded here.
    pub(crate) fn note_recorded(&mut self, position: Position) {
        if let Some(open) = &mut self.0 {
            open.recorded = open.recorded.max(position);
        }
    }

    /// Counts a message that a cluster appends to a log as recorded here, and its memory until it is settled.
    pub(crate) fn note_appended(&mut self, position: Position, message: &Message) {
        if let Some(open) = &self.0 {
            open.writer.note_appended(position, message);
        }
        self.note_recorded(position);
    }

    /// Counts changes of another journal as recorded here, too.
    pub(crate) fn join(&mut self, other: &Self) {
        if let (Some(open), Some(other)) = (&mut self.0, &other.0) {
            open.recorded = open.recorded.max(other.recorded);
        }
    }

    /// Records one change of a session, if it is kept.
    pub(crate) fn record_of(&mut self, session: &Session, change: SessionChange) {
        if self.records_session(session) {
            self.record(vec![Change::Session(session.client_id.clone(), change)]);
        }
    }

    /// Returns the position of the last change that this journal has recorded.
    pub(crate) fn position(&self) -> Position {
        let recorded = self.0.as_ref().map(|open| open.recorded);
        recorded.unwrap_or_default()
    }

    /// Returns `true` once every change recorded by this journal is settled.
    pub(crate) fn is_settled(&self) -> bool {
        self.has_settled(self.position())
    }

    /// Returns `true` once every change up to a position is settled.
    pub(crate) fn has_settled(&self, position: Position) -> bool {
        let behind = |open: &Open| *open.settled.borrow() < position;
        !self.0.as_deref().is_some_and(behind)
    }

    /// Returns `true` if the store is so far behind that nothing more is to be read which it would have to keep.
    pub(crate) fn is_full(&self) -> bool {
        self.0.as_ref().is_some_and(|open| open.writer.is_full())
    }

    /// Returns `true` if the store is so far behind that recorded messages have to be in memory of their own.
    pub(crate) fn is_behind(&self) -> bool {
        self.0.as_ref().is_some_and(|open| open.writer.is_behind())
    }

    /// Resolves when all that was recorded here is settled. Cancel-safe.
    pub(crate) async fn settled(&mut self) -> Result<(), StoreFailed> {
        self.settled_up_to(self.position()).await
    }

    /// Resolves when every change up to a position is settled. Cancel-safe.
    pub(crate) async fn settled_up_to(&mut self, position: Position) -> Result<(), StoreFailed> {
        let Some(open) = &mut self.0 else {
            return Ok(());
        };
        let reached = open.settled.wait_for(|settled| *settled >= position).await;
        reached.map(drop).map_err(|_| StoreFailed)
    }

    /// Resolves when the store has settled something, of whatever journal. Cancel-safe.
    pub(crate) async fn next_settled(&mut self) -> Result<(), StoreFailed> {
        match &mut self.0 {
            Some(open) => open.settled.changed().await.map_err(|_| StoreFailed),
            None => Ok(()),
        }
    }
}
