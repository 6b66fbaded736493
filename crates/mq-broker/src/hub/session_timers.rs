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
}

impl Hub {
    /// Publishes wills and ends sessions as they become due, and writes the log's held-back lines. Runs until it is
    /// dropped.
    pub(crate) async fn run_timers(&self) {
        tokio::join!(self.run_session_timers(), self.refusal_log.run());
    }

    async fn run_session_timers(&self) {
        loop {
            let next = self.timers.next();
            let changed = self.timers.changed();
            match next {
                Some(due) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(due.into()) => self.run_due(clock::now()).await,
                        () = changed => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    async fn run_due(&self, now: Instant) {
        let mut journal = self.journal();
        while let Some(key) = self.timers.pop_due(now) {
            let session = read(&self.routing).session(key).cloned();
            let Some(session) = session else { continue };
            // A connection that holds the state sees to it, also one that has just come back.
            let Ok(mut state) = Arc::clone(&session.state).try_lock_owned() else {
                continue;
            };
            if let Some(will) = session.take_due_will(now) {
                self.publish_will(&session, *will);
            }
            if session.is_expired(now) {
                self.end_subscriptions(&session).await;
                self.end_session(&session, &mut state, &mut journal);
            } else if let Some(next) = session.next_due() {
                self.timers.insert(next, key);
            }
        }
        self.retained.remove_expired(now);
    }
}
