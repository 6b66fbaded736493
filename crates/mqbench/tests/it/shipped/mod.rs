//! The campaigns as they ship, or made small.

use std::path::{Path, PathBuf};

/// Returns the path of a shipped campaign.
pub(crate) fn campaign(name: &str) -> PathBuf {
    let campaigns = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/campaigns");
    campaigns.join(format!("{name}.toml"))
}

/// Returns a shipped campaign with one repetition, and with these lines in place of those of its quick runs.
pub(crate) fn with_quick(name: &str, quick: &str) -> String {
    let text = std::fs::read_to_string(campaign(name)).unwrap();
    let (before, rest) = text.split_once("[quick]\n").unwrap();
    let (_, plot) = rest.split_once("\n[plot]\n").unwrap();
    format!("{before}[quick]\nrepetitions = 1\n{quick}\n[plot]\n{plot}")
}
