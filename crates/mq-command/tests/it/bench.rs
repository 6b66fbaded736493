//! `mq bench` hands its words to mqbench, and ends as mqbench does.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A program that one test has just written could not be run while another test starts a process, which has the file
/// open for a moment.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Writes a program that says which it is, prints its words, one a line, and ends with code 7.
fn stand_in(path: &Path, name: &str) {
    let script = format!("#!/bin/sh\nprintf '%s\\n' {name} \"$@\"\nexit 7\n");
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// `mq` in a folder of its own, with that folder's `bin` as the whole `PATH`.
struct Place {
    folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    fn new() -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_mq"), folder.path().join("mq")).unwrap();
        Self {
            folder,
            _alone: alone,
        }
    }

    fn bench(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.folder.path().join("mq"));
        command.arg("bench").args(args);
        command.env("PATH", self.folder.path().join("bin"));
        command.output().unwrap()
    }
}

#[test]
fn the_program_beside_mq_gets_every_word_and_its_exit_code_is_the_end() {
    let place = Place::new();
    stand_in(&place.folder.path().join("mqbench"), "beside");
    stand_in(&place.folder.path().join("bin/mqbench"), "path");
    let words = ["-D", "a", "b", "--help", "--", "-V", "--json"];
    let output = place.bench(&words);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        printed.lines().collect::<Vec<_>>(),
        [&["beside"], &words[..]].concat()
    );
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn without_one_beside_mq_that_in_path_runs() {
    let place = Place::new();
    stand_in(&place.folder.path().join("bin/mqbench"), "path");
    let output = place.bench(&[]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "path\n");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn without_any_one_line_says_so_and_the_code_is_127() {
    let output = Place::new().bench(&["compare"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("mqbench is neither beside mq nor in PATH"));
    assert_eq!(output.status.code(), Some(127));
    assert!(output.stdout.is_empty());
}
