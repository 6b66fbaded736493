//! Wills that become due, and sessions that expire.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Instant,
};

use tokio::sync::{Notify, futures::Notified};

use super::Hub;
use crate::{
    clock,
    lock::{lock, read},
    router::SessionKey,
    session::Session,
};

/// Sessions by the time at which a will of theirs is due, or they expire.
#[derive(Debug, Default)]
pub(super) struct SessionTimers {
    due: Mutex<BTreeSet<(Instant, SessionKey)>>,
    changed: Notify,
}

impl SessionTimers {
    /// Sets the timer of a session that no connection has.
    pub(super) fn set(&self, session: &Session) {
        if let Some(due) = session.next_due() {
            self.insert(due, session.key);
            self.changed.notify_one();
        }
    }

    fn insert(&self, due: Instant, key: SessionKey) {
        lock(&self.due).insert((due, key));
    }

    fn next(&self) -> Option<Instant> {
        lock(&self.due).first().map(|(due, _)| *due)
    }

    /// Takes out the first session whose time has come.
    fn pop_due(&self, now: Instant) -> Option<SessionKey> {
        let mut due = lock(&self.due);
        let first = due.first().copied().filter(|(at, _)| *at <= now)?;
        due.remove(&first);
        Some(first.1)
    }

    fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Publishes wills and ends sessions as they become due. Runs until it is dropped.
    pub(super) async fn run(&self, hub: &Hub) {
        loop {
            let next = self.next();
            let changed = self.changed();
            match next {
                Some(due) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(due.into()) => self.run_due(hub, clock::now()).await,
                        () = changed => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    async fn run_due(&self, hub: &Hub, now: Instant) {
        let mut journal = hub.journal();
        while let Some(key) = self.pop_due(now) {
            let session = read(&hub.routing).session(key).cloned();
            let Some(session) = session else { continue };
            // A connection that holds the state sees to it, also one that has just come back.
            let Ok(mut state) = Arc::clone(&session.state).try_lock_owned() else {
                continue;
            };
            if let Some(will) = session.take_due_will(now) {
                hub.publish_will(&session, *will);
            }
            if session.is_expired(now) {
                hub.end_subscriptions(&session).await;
                hub.end_session(&session, &mut state, &mut journal);
            } else if let Some(next) = session.next_due() {
                self.insert(next, key);
            }
        }
        hub.retained.remove_expired(now);
    }
}
