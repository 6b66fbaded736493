//! This program's version and signal mask, and the folder of its results.

use std::path::Path;
#[cfg(unix)]
use std::{
    os::unix::process::ExitStatusExt as _,
    process::{ExitCode, ExitStatus},
};

use anyhow::Context as _;
use mq_measure::manifest::Software;

/// Returns a mask in `/proc/self/status`, proc(5), such as `SigIgn:`.
pub(crate) fn status_mask(status: &str, name: &str) -> u64 {
    let mut lines = status.lines();
    let status_mask = lines.find_map(|line| line.strip_prefix(name));
    status_mask
        .and_then(|status_mask| u64::from_str_radix(status_mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// Describes this build, under the name of one of its programs.
pub(crate) fn this_software(name: &str) -> Software {
    Software {
        name: name.to_owned(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        revision: option_env!("MQ_GIT_REVISION").map(str::to_owned),
    }
}

/// Creates the folder for results if it is missing.
pub(crate) fn create_output_directory(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path)
        .with_context(|| format!("cannot make the directory {}", path.display()))
}

/// Returns the exit code of a command as a shell has it: 128 plus the signal if a signal ended it.
#[cfg(unix)]
pub(crate) fn shell_exit_code(status: ExitStatus) -> ExitCode {
    let killed = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(killed).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_a_shells() {
        for (raw, code) in [(0, 0), (3 << 8, 3), (15, 143)] {
            let found = shell_exit_code(ExitStatus::from_raw(raw));
            assert_eq!(format!("{found:?}"), format!("{:?}", ExitCode::from(code)));
        }
    }
}
