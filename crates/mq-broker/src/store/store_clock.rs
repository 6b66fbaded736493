//! The clock of the times that survive a restart.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use super::Store;
use crate::clock;

/// The clock of the times that a store keeps, see [`Store::now`]; without a store, the wall clock of the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreClock<'a>(Option<&'a dyn Store>);

impl<'a> StoreClock<'a> {
    /// The wall clock of the machine.
    pub(crate) const MACHINE: StoreClock<'static> = StoreClock(None);

    /// Returns the clock of a store.
    pub(crate) fn new(store: Option<&'a Arc<dyn Store>>) -> Self {
        Self(store.map(|store| &**store))
    }

    fn now(self) -> SystemTime {
        self.0.map_or_else(SystemTime::now, Store::now)
    }

    /// Returns the time that the clock shows at an instant.
    pub(crate) fn time_at(self, at: Instant) -> SystemTime {
        let now = clock::now();
        let time = self.now();
        match at.checked_duration_since(now) {
            Some(left) => time + left,
            None => time - now.saturating_duration_since(at),
        }
    }

    /// Returns the instant at which the clock shows a time; now for a time in the past.
    pub(crate) fn instant_of(self, time: SystemTime) -> Instant {
        clock::now() + time.duration_since(self.now()).unwrap_or_default()
    }
}
