//! Replaces the broker's module of this name: loom's types, and what loom does not have.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

/// A clock that stands still: the models decide which timeouts expire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instant;

impl Instant {
    pub(crate) fn now() -> Self {
        Self
    }

    pub(crate) fn elapsed(self) -> Duration {
        Duration::ZERO
    }

    pub(crate) fn saturating_duration_since(self, _: Self) -> Duration {
        Duration::ZERO
    }
}

/// A notification with tokio's documented behaviour: `notify_one` leaves a permit for a later
/// waiter, `notify_waiters` wakes those that exist.
#[derive(Debug)]
pub(crate) struct Notify(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    permit: bool,
    /// Calls of `notify_waiters`: each notifies the futures that were made before it.
    rounds: u64,
    next: u64,
    waiting: VecDeque<(u64, Option<Waker>)>,
    /// Places notified by `notify_one` whose futures were not polled since.
    told: Vec<u64>,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State::default()))
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        let rounds = self.0.lock().unwrap().rounds;
        Notified {
            notify: self,
            rounds,
            place: None,
            done: false,
        }
    }

    pub(crate) fn notify_one(&self) {
        let mut state = self.0.lock().unwrap();
        let Some((place, waker)) = state.waiting.pop_front() else {
            state.permit = true;
            return;
        };
        state.told.push(place);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn notify_waiters(&self) {
        let mut state = self.0.lock().unwrap();
        state.rounds += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waker in waiting.into_iter().filter_map(|(_, waker)| waker) {
            waker.wake();
        }
    }
}

/// Resolves when it is notified.
#[derive(Debug)]
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    rounds: u64,
    place: Option<u64>,
    done: bool,
}

impl Notified<'_> {
    /// Registers with the waiting futures; returns `true` if it was notified.
    pub(crate) fn enable(self: Pin<&mut Self>) -> bool {
        self.get_mut().look(None)
    }

    fn look(&mut self, waker: Option<&Waker>) -> bool {
        let mut state = self.notify.0.lock().unwrap();
        if self.done || state.rounds != self.rounds {
            self.done = true;
            return true;
        }
        match self.place {
            None if state.permit => {
                state.permit = false;
                self.done = true;
            }
            None => {
                let place = state.next;
                state.next += 1;
                state.waiting.push_back((place, waker.cloned()));
                self.place = Some(place);
            }
            Some(place) => {
                if let Some(index) = state.told.iter().position(|told| *told == place) {
                    state.told.swap_remove(index);
                    self.done = true;
                } else {
                    let mut waiting = state.waiting.iter_mut();
                    let entry = waiting.find(|(at, _)| *at == place);
                    entry.expect("it waits").1 = waker.cloned();
                }
            }
        }
        self.done
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.get_mut().look(Some(cx.waker())) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Notified<'_> {
    /// Passes a notification that was not seen to the next future.
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let mut state = self.notify.0.lock().unwrap();
        state.waiting.retain(|(at, _)| *at != place);
        let told = state.told.iter().position(|told| *told == place);
        if let Some(index) = told {
            state.told.swap_remove(index);
            let passes_on = !self.done && state.rounds == self.rounds;
            drop(state);
            if passes_on {
                self.notify.notify_one();
            }
        }
    }
}
