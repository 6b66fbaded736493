//! Wills that become due, and sessions that expire.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, futures::Notified},
    time::{MissedTickBehavior, interval, sleep_until},
};

use super::Hub;
use crate::{
    clock,
    lock::{lock, read},
    router::SessionKey,
    session::Session,
};

/// Time after which a session is looked at again that was held by somebody.
const HELD_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which retained messages that have expired are removed.
const RETAINED_INTERVAL: Duration = Duration::from_secs(10);

/// Sessions by the time at which a will of theirs is due, or they expire.
#[derive(Debug, Default)]
pub(super) struct SessionTimers {
    due: Mutex<Due>,
    changed: Notify,
}

/// Times of sessions, one for each: it may be earlier than what is due, and the session is looked at once more then.
#[derive(Debug, Default)]
struct Due {
    by_time: BTreeSet<(Instant, SessionKey)>,
    by_session: HashMap<SessionKey, Instant>,
}

impl Due {
    fn insert(&mut self, due: Instant, key: SessionKey) {
        if let Some(earlier) = self.by_session.get(&key) {
            if *earlier <= due {
                return;
            }
            self.by_time.remove(&(*earlier, key));
        }
        self.by_time.insert((due, key));
        self.by_session.insert(key, due);
    }

    fn pop(&mut self, now: Instant) -> Option<SessionKey> {
        let first = self.by_time.first().copied().filter(|(at, _)| *at <= now)?;
        self.by_time.remove(&first);
        self.by_session.remove(&first.1);
        Some(first.1)
    }
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
        lock(&self.due).insert(due, key);
    }

    fn next(&self) -> Option<Instant> {
        lock(&self.due).by_time.first().map(|(due, _)| *due)
    }

    /// Takes out the first session whose time has come.
    fn pop_due(&self, now: Instant) -> Option<SessionKey> {
        lock(&self.due).pop(now)
    }

    fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Publishes wills, ends sessions and removes retained messages as they become due. Runs until it is dropped.
    pub(super) async fn run(&self, hub: &Hub) {
        let mut retained = interval(RETAINED_INTERVAL);
        retained.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut journal = hub.journal();
        let expire_retained = async {
            loop {
                retained.tick().await;
                while hub.remove_expired_retained(clock::now(), &mut journal) {
                    // Publishers have their turn in between.
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::join!(self.run_sessions(hub), expire_retained);
    }

    async fn run_sessions(&self, hub: &Hub) {
        loop {
            let next = self.next();
            let changed = self.changed();
            match next {
                Some(due) => {
                    tokio::select! {
                        () = sleep_until(due.into()) => self.run_due(hub, clock::now()).await,
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
            let Ok(mut state) = Arc::clone(&session.state).try_lock_owned() else {
                // A connection that holds the state sees to it, also one that has just come back. Whoever else holds it, such as
                // another node's request, may leave it as it is.
                if session.next_due().is_some() {
                    self.insert(now + HELD_RETRY_INTERVAL, key);
                }
                continue;
            };
            if let Some(will) = session.take_due_will(now) {
                hub.publish_will(&session, *will);
            }
            if session.is_expired(now) {
                let read_ahead = hub.prepare_end(&session).await;
                hub.end_session(&session, &mut state, read_ahead, &mut journal);
            } else if let Some(next) = session.next_due() {
                self.insert(next, key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_one_time_the_earliest() {
        let mut due = Due::default();
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let [one, other] = [SessionKey(1), SessionKey(2)];
        for seconds in [20, 30, 10, 40, 10] {
            due.insert(after(seconds), one);
        }
        due.insert(after(15), other);
        assert_eq!((due.by_time.len(), due.by_session.len()), (2, 2));
        assert_eq!(due.pop(after(9)), None);
        assert_eq!(due.pop(after(60)), Some(one));
        assert_eq!(due.pop(after(60)), Some(other));
        assert_eq!(due.pop(after(60)), None);
        assert!(due.by_session.is_empty());
    }
}
