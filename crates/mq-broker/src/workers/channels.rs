//! Waking the readers that another worker serves.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex},
};

use tokio::sync::Notify;

use super::Workers;
use crate::{lock::lock, session::Session, worker_thread};

thread_local! {
    /// Readers on other workers that have to be woken, by worker; empty between two turns.
    static ELSEWHERE: RefCell<Vec<Vec<Arc<Session>>>> = const { RefCell::new(Vec::new()) };
}

/// Wakes readers whose mailboxes have messages. Each worker has a channel, so that a message for many readers
/// of another worker wakes that worker once.
#[derive(Debug, Default)]
pub(crate) struct WorkerChannels(Box<[WorkerChannel]>);

#[derive(Debug, Default)]
struct WorkerChannel {
    /// Sessions of readers that the worker is to wake.
    to_wake: Mutex<Vec<Arc<Session>>>,
    /// Notified when `to_wake` is no longer empty.
    filled: Notify,
}

impl WorkerChannels {
    pub(crate) fn new(workers: Option<&Workers>) -> Self {
        let count = workers.map_or(0, |workers| workers.count.get());
        Self((0..count).map(|_| WorkerChannel::default()).collect())
    }

    /// Wakes these readers: those of this worker at once, the others by their workers' channels.
    pub(crate) fn wake(&self, sessions: impl Iterator<Item = Arc<Session>>) {
        if self.0.is_empty() {
            return sessions.for_each(|session| session.mailbox.wake_reader());
        }
        let here = worker_thread::current();
        ELSEWHERE.with_borrow_mut(|elsewhere| {
            let mut any = false;
            for session in sessions {
                match session.worker().filter(|worker| Some(*worker) != here) {
                    Some(worker) if worker < self.0.len() => {
                        any = true;
                        elsewhere.resize_with(self.0.len().max(elsewhere.len()), Vec::new);
                        elsewhere[worker].push(session);
                    }
                    _ => session.mailbox.wake_reader(),
                }
            }
            if !any {
                return;
            }
            for (channel, sessions) in self.0.iter().zip(elsewhere) {
                if !sessions.is_empty() {
                    let mut to_wake = lock(&channel.to_wake);
                    let was_idle = to_wake.is_empty();
                    to_wake.append(sessions);
                    drop(to_wake);
                    if was_idle {
                        channel.filled.notify_one();
                    }
                }
            }
        });
    }

    /// Wakes the readers in one worker's channel, on that worker. Never ends.
    pub(super) async fn run(&self, number: usize) {
        let channel = &self.0[number];
        let mut sessions = Vec::new();
        loop {
            channel.filled.notified().await;
            core::mem::swap(&mut *lock(&channel.to_wake), &mut sessions);
            for session in sessions.drain(..) {
                session.mailbox.wake_reader();
            }
        }
    }
}
