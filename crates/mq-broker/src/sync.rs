//! What tasks wait for each other with, where `models/` checks every interleaving: it puts loom's in
//! this module's place, and compiles the files that use it once more.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

pub(crate) use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};
