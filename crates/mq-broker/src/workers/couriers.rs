//! Waking the readers that another worker serves.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex},
};

use tokio::sync::Notify;

use super::Workers;
use crate::{here, lock::lock, session::Session};

thread_local! {
    /// Readers on other workers that have to be told, by worker; empty between two turns.
    static ELSEWHERE: RefCell<Vec<Vec<Arc<Session>>>> = const { RefCell::new(Vec::new()) };
}

/// Tells readers that something waits for them. Each worker has a courier, so that a message for many readers
/// of another worker wakes that once.
#[derive(Debug, Default)]
pub(crate) struct Couriers(Box<[Courier]>);

#[derive(Debug, Default)]
struct Courier {
    told: Mutex<Vec<Arc<Session>>>,
    comes: Notify,
}

impl Couriers {
    pub(crate) fn new(workers: Option<&Workers>) -> Self {
        let count = workers.map_or(0, |workers| workers.count.get());
        Self((0..count).map(|_| Courier::default()).collect())
    }

    /// Wakes these readers: those of this worker at once, the others by their couriers.
    pub(crate) fn tell(&self, sessions: impl Iterator<Item = Arc<Session>>) {
        if self.0.is_empty() {
            return sessions.for_each(|session| session.mailbox.tell());
        }
        let here = here::worker();
        ELSEWHERE.with_borrow_mut(|elsewhere| {
            let mut any = false;
            for session in sessions {
                match session.worker().filter(|worker| Some(*worker) != here) {
                    Some(worker) if worker < self.0.len() => {
                        any = true;
                        elsewhere.resize_with(self.0.len().max(elsewhere.len()), Vec::new);
                        elsewhere[worker].push(session);
                    }
                    _ => session.mailbox.tell(),
                }
            }
            if !any {
                return;
            }
            for (courier, sessions) in self.0.iter().zip(elsewhere) {
                if !sessions.is_empty() {
                    let mut told = lock(&courier.told);
                    let was_idle = told.is_empty();
                    told.append(sessions);
                    drop(told);
                    if was_idle {
                        courier.comes.notify_one();
                    }
                }
            }
        });
    }

    /// A worker's courier. Never ends.
    pub(super) async fn run(&self, number: usize) {
        let courier = &self.0[number];
        let mut sessions = Vec::new();
        loop {
            courier.comes.notified().await;
            core::mem::swap(&mut *lock(&courier.told), &mut sessions);
            for session in sessions.drain(..) {
                session.mailbox.tell();
            }
        }
    }
}
