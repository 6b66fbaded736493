//! `deploy/pi/setup`, on a folder that stands for a card.

use std::{fs, path::Path, process::Command};

/// Runs the script; returns its standard output, its standard error, and `true` if it succeeded.
fn setup(arguments: &[&str]) -> (String, String, bool) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/pi/setup");
    let output = Command::new("sh")
        .arg(script)
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        text(output.stdout),
        text(output.stderr),
        output.status.success(),
    )
}

#[test]
fn a_card_is_prepared_and_then_left_as_it_is() {
    let card = tempfile::tempdir().unwrap();
    fs::create_dir(card.path().join("etc")).unwrap();
    let program = card.path().join("program");
    fs::write(&program, "the program").unwrap();
    let (root, program) = (card.path().to_str().unwrap(), program.to_str().unwrap());
    let on_card = ["--program", program, "--root", root];
    let run = |more: &[&str]| {
        let (said, errors, good) = setup(&[more, &on_card].concat());
        assert!(good, "{errors}");
        said.matches("wrote ").count()
    };
    assert_eq!(run(&["--reference", "pi-broker"]), 3);
    assert_eq!(run(&["--reference", "pi-broker"]), 0, "nothing has changed");
    let of = |file: &str| fs::read_to_string(card.path().join(file)).unwrap();
    assert_eq!(of("usr/local/bin/mqbench"), "the program");
    assert!(of("etc/chrony/conf.d/mqbench.conf").starts_with("server pi-broker iburst"));
    assert_eq!(run(&["--is-reference", "--allow", "10.0.0.0/24"]), 1);
    assert_eq!(
        of("etc/chrony/conf.d/mqbench.conf"),
        "allow 10.0.0.0/24\nlocal stratum 8\n"
    );
}

#[test]
fn a_mistake_is_one_line_and_writes_nothing() {
    let card = tempfile::tempdir().unwrap();
    fs::create_dir(card.path().join("etc")).unwrap();
    let root = card.path().to_str().unwrap();
    for (arguments, says) in [
        (&["--root", root][..], "say --reference"),
        (&["--root"], "wants a value"),
        (&["--refrence", "a"], "no option --refrence"),
        (&["--reference", "a;b", "--root", root], "no host"),
        (
            &["--reference", "a", "--is-reference", "--root", root],
            "not both",
        ),
        (&["--is-reference", "--root", "/nowhere"], "has no etc"),
        (
            &["--is-reference", "--program", "/nowhere", "--root", root],
            "no program /nowhere",
        ),
    ] {
        let (_, errors, good) = setup(arguments);
        assert!(!good && errors.contains(says), "{errors}");
        assert!(errors.starts_with("setup: "), "{errors}");
    }
    assert_eq!(fs::read_dir(card.path().join("etc")).unwrap().count(), 0);
}
