//! This program's version and signal mask, and the folder of its results.

use std::path::Path;

use anyhow::Context as _;
use mq_measure::manifest::Software;

/// A mask in `/proc/self/status`, proc(5), such as `SigIgn:`.
pub(crate) fn mask(status: &str, name: &str) -> u64 {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// This build, under the name of one of its programs.
pub(crate) fn this_software(name: &str) -> Software {
    Software {
        name: name.to_owned(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        revision: option_env!("MQ_GIT_REVISION").map(str::to_owned),
    }
}

/// The folder for results; it is created if need be.
pub(crate) fn output_directory(path: &Path) -> anyhow::Result<&Path> {
    std::fs::create_dir_all(path)
        .with_context(|| format!("cannot make the directory {}", path.display()))?;
    Ok(path)
}
