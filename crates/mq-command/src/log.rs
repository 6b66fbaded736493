//! Log lines for people.

use tracing_subscriber::filter::LevelFilter;

/// Writes log lines of that level and above to the standard error.
pub(crate) fn write_from(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
}
