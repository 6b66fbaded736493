//! The program beside running a broker: password files and the check of a configuration.

use std::{fs, path::Path};

use crate::program::mqbroker;

fn said(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_password_file_is_made_used_and_changed() {
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    let config = folder.path().join("config");
    fs::write(
        &config,
        format!("listen = [\"tcp://127.0.0.1:0\"]\n[auth]\npassword_file = {passwords:?}\n"),
    )
    .unwrap();
    let file = shown(&passwords);
    for (arguments, input) in [
        (&["passwd", file, "ann"][..], "pencil\n"),
        (&["passwd", "--scram", file, "bob"], "pencil"),
        (&["passwd", file, "ann"], "stapler\r\n"),
    ] {
        let output = mqbroker(arguments, input);
        assert!(output.status.success(), "{}", said(&output.stderr));
    }
    let text = fs::read_to_string(&passwords).unwrap();
    let is_user = |line: &&str| !line.starts_with('#');
    let lines: Vec<_> = text.lines().filter(is_user).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("ann:$argon2id$v=19$m=19456,t=2,p=1$"));
    assert!(lines[1].starts_with("bob:$scram-sha-256$16384$"));
    let output = mqbroker(&["check-config", shown(&config)], "");
    assert_eq!(said(&output.stdout), format!("{}: ok\n", config.display()));
    assert!(output.status.success());

    let output = mqbroker(&["passwd", "--delete", file, "ann"], "");
    assert!(output.status.success(), "{}", said(&output.stderr));
    let text = fs::read_to_string(&passwords).unwrap();
    let lines: Vec<_> = text.lines().filter(is_user).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("bob:"), "{text}");
}

#[test]
fn a_mistake_is_one_line_and_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    let file = shown(&passwords);
    for (arguments, input, part) in [
        (
            &["passwd", "--delete", file, "ann"][..],
            "",
            "cannot be read",
        ),
        (&["passwd", file, "ann"], "\n", "the password is empty"),
        (&["passwd", file, "a:b"], "x", "has a `:`"),
        (
            &["passwd", "--scram", file, "ann"],
            "\u{fc}",
            "printable ASCII",
        ),
        (
            &["passwd", "/no/such/folder/file", "ann"],
            "x",
            "cannot be written",
        ),
    ] {
        let output = mqbroker(arguments, input);
        let error = said(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.contains(part) && error.lines().count() == 1,
            "{error}"
        );
        assert!(!passwords.exists());
    }
    let config = folder.path().join("config");
    fs::write(&passwords, "ann:pencil\n\nbob\n").unwrap();
    fs::write(&config, format!("[auth]\npassword_file = {passwords:?}\n")).unwrap();
    let output = mqbroker(&["check-config", shown(&config)], "");
    assert_eq!(output.status.code(), Some(1));
    let told = said(&output.stdout);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(
        lines[0].starts_with(&format!("{file}: line 1: user `ann`:")),
        "{told}"
    );
    assert!(lines[1].starts_with(&format!("{file}: line 3: ")), "{told}");
    assert!(!told.contains("pencil"));
}
