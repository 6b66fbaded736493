//! The campaigns as they ship, or made small.

use std::path::{Path, PathBuf};

/// The file of that campaign.
pub(crate) fn campaign(name: &str) -> PathBuf {
    let campaigns = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/campaigns");
    campaigns.join(format!("{name}.toml"))
}

/// Its text, with one repetition and these lines instead of what its quick runs do otherwise.
pub(crate) fn with_quick(name: &str, quick: &str) -> String {
    let text = std::fs::read_to_string(campaign(name)).unwrap();
    let (before, rest) = text.split_once("[quick]\n").unwrap();
    let (_, plot) = rest.split_once("\n[plot]\n").unwrap();
    format!("{before}[quick]\nrepetitions = 1\n{quick}\n[plot]\n{plot}")
}
