//! Help for tests of the scripts in `bench/`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use mq_testkit::{program, skipped};
use serde_json::Value;

use crate::root;

/// Returns the folder of what `cargo test --workspace` builds, if it has these programs; reports a skipped test where
/// one is missing.
pub(crate) fn built(programs: &[&str]) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let profile = own.parent().and_then(Path::parent).unwrap();
    for name in programs {
        if !profile.join(name).is_file() {
            let folder = profile.display();
            skipped(&format!(
                "{folder}/{name} is not built: `cargo build --workspace --all-targets`"
            ));
            return None;
        }
    }
    Some(profile.to_owned())
}

/// Returns `true` if one of these programs is missing, and prints that the test is skipped.
pub(crate) fn lacks(names: &[&str]) -> bool {
    names.iter().any(|name| program(&[name]).is_none())
}

/// Runs a script of `bench/` with programs that are built, and returns its output.
pub(crate) fn run(script: &str, built: &Path, args: &[&str]) -> Output {
    let folder = root().join("bench");
    let mut command = Command::new("python3");
    command.arg(folder.join(script));
    command.arg("--built").arg(built).args(args);
    command.output().unwrap()
}

/// Copies the scripts that write figures into pages, and what they import, into the folder `bench` of a repository.
pub(crate) fn copy_writers(repository: &Path) {
    let (from, to) = (root().join("bench"), repository.join("bench"));
    fs::create_dir_all(&to).unwrap();
    for file in ["readme", "tables", "records.py", "rounds.py", "written.py"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

pub(crate) fn number(of: &Value, field: &str) -> f64 {
    let found = of[field].as_f64();
    found.unwrap_or_else(|| panic!("{field} is no number in {of}"))
}

/// Returns the only element whose fields have these values.
pub(crate) fn only<'a>(all: &'a Value, wanted: &[(&str, &str)]) -> &'a Value {
    let all = all.as_array().unwrap().iter();
    let found: Vec<_> = all
        .filter(|one| wanted.iter().all(|(field, value)| one[field] == *value))
        .collect();
    assert_eq!(found.len(), 1, "{wanted:?}: {found:?}");
    found[0]
}
