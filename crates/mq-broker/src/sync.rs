//! The locks and notifications of code that `models/` checks under every interleaving: there this
//! module is loom's, and the files that use it are compiled once more.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

pub(crate) use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};
