//! Programs that a test needs and a machine may lack.

use std::path::PathBuf;

/// Reports that a test is skipped, with the reason.
///
/// # Panics
/// Where `MQ_NO_SKIPS` is in the environment: `.ci/run` has installed everything.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
pub fn skipped(reason: &str) {
    let line = format!("SKIPPED: {reason}");
    assert!(std::env::var_os("MQ_NO_SKIPS").is_none(), "{line}");
    println!("{line}");
}

/// The first of these programs on the PATH; reports a skipped test if there is none.
///
/// # Panics
/// As [`skipped`].
#[must_use]
pub fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
        .find(|file| file.is_file());
    if found.is_none() {
        skipped(&format!("there is no {} on the PATH", names.join(", ")));
    }
    found
}

/// A Chromium, under any of its names; reports a skipped test if there is none.
///
/// # Panics
/// As [`skipped`].
#[must_use]
pub fn chromium() -> Option<PathBuf> {
    program(&["chromium", "chromium-browser", "google-chrome"])
}
