//! The log's levels, which operators change while the broker runs.

use std::fmt;

/// The log of a program that a broker is part of. The broker only writes to `tracing`; the program
/// that collects its events can let operators change their levels.
pub trait LogLevels: fmt::Debug + Send + Sync {
    /// Returns the filter in force, such as `info,mq_broker::conn=debug`.
    fn filter(&self) -> String;

    /// Replaces the filter.
    ///
    /// # Errors
    /// The text is no filter: the problem in one line; the old filter stays.
    fn set_filter(&self, filter: &str) -> Result<(), String>;

    /// Returns the number of lines that were lost since the start, as nobody read them.
    fn lost_lines(&self) -> u64 {
        0
    }
}
