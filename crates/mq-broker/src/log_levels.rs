//! The log's levels, which operators change while the broker runs.

use std::fmt;

/// The log of the program that a broker is a part of. The broker only writes to `tracing`; whoever
/// collects that can let operators change how much of it is kept.
pub trait LogLevels: fmt::Debug + Send + Sync {
    /// What is kept now, such as `info,mq_broker::conn=debug`.
    fn filter(&self) -> String;

    /// Keeps something else from now on.
    ///
    /// # Errors
    /// One line if that is not a filter; the old one stays.
    fn set_filter(&self, filter: &str) -> Result<(), String>;

    /// Returns the number of lines that were lost since the start, as nobody read them.
    fn lost_lines(&self) -> u64 {
        0
    }
}
