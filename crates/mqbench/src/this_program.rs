//! What this program says of itself, and where it puts what it makes.

use std::path::Path;

use anyhow::Context as _;
use mq_measure::manifest::Software;

/// This build, under the name of one of its programs.
pub(crate) fn this_software(name: &str) -> Software {
    Software {
        name: name.to_owned(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        revision: option_env!("MQ_GIT_REVISION").map(str::to_owned),
    }
}

/// Where results go: made if it is not there.
pub(crate) fn output_directory(path: &Path) -> anyhow::Result<&Path> {
    std::fs::create_dir_all(path)
        .with_context(|| format!("cannot make the directory {}", path.display()))?;
    Ok(path)
}
