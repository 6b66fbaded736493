//! No output of `mq` has a password in it: not what it prints of a mistake, of a broker, or with `-d`.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use mq_broker::auth::{Access, AccessFiles};
use mq_testkit::{Scheme, TestBroker};

const PASSWORD: &str = "pencil-eraser";

/// Hash of the password `pencil`, as `mosquitto_passwd` writes it.
const HASH: &str = "$7$101$FZZ0UNgSFP8t2lxC$HnZt7dEpxtgrXAUGYtFCa+ZgSH3DaGu9eqP+6sRF1GFeIOcND243Nblmv4oxdSdxNUG+InsvCCeZY658jWztvw==";

/// Parts of it count as well, where a `/` or a space divides it.
const PARTS: [&str; 2] = ["pencil", "eraser"];

/// Runs `mq` with these words, and returns what it ends with, after a look at what it said.
fn run(words: &[&str], environment: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
    command.args(words).stdin(Stdio::null());
    command.env("MQ_CONFIG", "/nonexistent/mq.toml");
    match environment {
        Some(password) => command.env("MQ_PASSWORD", password),
        None => command.env_remove("MQ_PASSWORD"),
    };
    let output = command.output().unwrap();
    for said in [&output.stdout, &output.stderr] {
        let said = String::from_utf8_lossy(said);
        for part in PARTS {
            assert!(!said.contains(part), "{words:?}: {said}");
        }
    }
    output
}

#[test]
fn mistakes_do_not_show_the_password() {
    let message = ["-t", "a", "-m", "x", "-d"];
    for wrong in [
        &["pub", "mqtt://ann:pencil-eraser@127.0.0.1:99999"][..],
        &["pub", "mqtt://ann:pencil/eraser@127.0.0.1:1"],
        &["pub", "mqtt://ann:pencil eraser@127.0.0.1:x"],
        &["pub", "mqtt://ann:pencil%zzeraser@127.0.0.1:1"],
        &["pub", "nope://ann:pencil-eraser@127.0.0.1"],
        &["pub", "ann:pencil-eraser@"],
        &["pub", "mqtt:/ann:pencil-eraser@127.0.0.1"],
        &["pub", "-L", "mqtt://ann:pencil-eraser@[::1"],
        &["pub", "-h", "ann:pencil-eraser@127.0.0.1"],
        &["pub", "-h", "ann:pencil eraser@127.0.0.1"],
        &[
            "pub",
            "mqtt://127.0.0.1:1",
            "--fallback",
            "mqtt://ann:pencil-eraser@127.0.0.1:1",
        ],
        &[
            "pub",
            "mqtt://127.0.0.1:1",
            "--fallback",
            "mqtt://ann:pencil eraser@127.0.0.1:1",
        ],
        &[
            "pub",
            "mqtt://127.0.0.1:1",
            "mqtt://ann:pencil-eraser@127.0.0.1:1",
        ],
        &[
            "pub",
            "mqtt://127.0.0.1:1",
            "mqtt://ann:pencil eraser@127.0.0.1:1",
        ],
        &[
            "pub",
            "mqtt://127.0.0.1:1",
            "-P",
            PASSWORD,
            "--password-file",
            "x",
        ],
        &[
            "pub",
            "mqtt://127.0.0.1:1",
            "-D",
            "publish",
            "authentication-data",
            PASSWORD,
        ],
        &["pub", "mqtt://127.0.0.1:1", "-P", PASSWORD],
        &["pub", "mqtt://ann:pencil-eraser@127.0.0.1:1"],
        &["pub", "ws://ann:pencil-eraser@127.0.0.1:1/mqtt"],
        &["watch", "mqtt://ann:pencil-eraser@127.0.0.1:1"],
    ] {
        let words = if wrong[0] == "pub" {
            [wrong, &message].concat()
        } else {
            wrong.to_vec()
        };
        let output = run(&words, Some(PASSWORD));
        assert!(
            !output.status.success() && !output.stderr.is_empty(),
            "{words:?}"
        );
    }
}

/// Starts a broker whose only user is ann, with the password `pencil`.
async fn broker_with_ann(folder: &Path) -> TestBroker {
    let users = folder.join("users");
    std::fs::write(&users, format!("ann:{HASH}\n")).unwrap();
    TestBroker::start_with(|settings| {
        settings.access = Access::Files(AccessFiles {
            password_file: Some(users),
            allow_anonymous: false,
            ..AccessFiles::default()
        });
    })
    .await
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_processes_shows_no_password_of_a_program_that_runs() {
    use std::time::{Duration, Instant};

    let folder = tempfile::tempdir().unwrap();
    let broker = broker_with_ann(folder.path()).await;
    let port = broker.address(Scheme::Tcp).port.to_string();
    let in_url = format!("mqtt://ann:pencil@127.0.0.1:{port}");
    let as_ann = ["-h", "127.0.0.1", "-p", &port, "-u", "ann"];
    for way in [
        vec![in_url.as_str()],
        [&as_ann[..], &["-P", "pencil"]].concat(),
        [&as_ann[..], &["--pw=pencil"]].concat(),
        [&["-Ppencil"], &as_ann[..]].concat(),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
        command.args(["sub", "-t", "a b", "-C", "1"]).args(&way);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        let begin = Instant::now();
        while broker.broker().metrics().subscriptions.get() == 0 {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "{way:?} does not subscribe"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let seen = std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
        let seen = String::from_utf8(seen).unwrap();
        assert!(!seen.contains("pencil"), "{seen:?}");
        assert!(
            seen.contains("sub\0-t\0a b\0") && seen.contains(&port),
            "{seen:?}"
        );
        let publish = ["pub", "-t", "a b", "-m", "x", "-q", "1"];
        let publish = [&publish[..], &way].concat();
        let output = tokio::task::block_in_place(|| run(&publish, None));
        assert!(output.status.success(), "{output:?}");
        let output = tokio::task::block_in_place(|| child.wait_with_output()).unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "x\n");
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_comes_from_file_environment_url_or_option_and_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("password"), "pencil\nnot this\n").unwrap();
    let broker = broker_with_ann(folder.path()).await;
    let port = broker.address(Scheme::Tcp).port;
    let (plain, bare) = (
        format!("mqtt://ann@127.0.0.1:{port}"),
        format!("127.0.0.1:{port}"),
    );
    let in_url = format!("mqtt://ann:pencil@127.0.0.1:{port}");
    let password_file = file("password").display().to_string();
    let ways: [(&[&str], Option<&str>); 4] = [
        (&[&plain], Some("pencil")),
        (
            &[&plain, "--password-file", &password_file],
            Some("overridden"),
        ),
        (&[&in_url], None),
        (&[&bare, "-u", "ann", "-P", "pencil"], Some("overridden")),
    ];
    tokio::task::block_in_place(|| {
        for (way, environment) in ways {
            for command in [
                &["pub", "-t", "kept", "-m", "x", "-r", "-q", "1", "-d"][..],
                &["sub", "-t", "kept", "-C", "1", "-v", "-d"],
                &["ping", "-C", "1", "-d"],
            ] {
                let output = run(&[command, way].concat(), environment);
                assert!(output.status.success(), "{way:?} {command:?}: {output:?}");
            }
        }
        let wrong = run(
            &["pub", &plain, "-t", "a", "-m", "x", "-d"],
            Some("pencil-other"),
        );
        // Bad user name or password (0x86).
        assert_eq!(wrong.status.code(), Some(134));
    });
    broker.shutdown().await;
}
