//! Ends of a subscriber whose broker no longer lets it subscribe.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mq_broker::auth::{Access, AccessFiles};
use mq_testkit::{Scheme, TestBroker};

/// A step that takes longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for the end of a command, and returns its exit code.
pub(crate) async fn exit_code(child: &mut Child) -> Option<i32> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the command should end");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_is_not_renewed_after_a_restart_ends_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules");
    std::fs::write(&rules, "topic write #\n").unwrap();
    let broker = TestBroker::start().await;
    let port = broker.address(Scheme::Tcp).port.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
    command.args([
        "sub",
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-t",
        "news",
        "-q",
        "1",
    ]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    while broker.broker().metrics().subscriptions.get() == 0 {
        assert!(begin.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let broker = broker
        .restart_with(|settings| {
            settings.access = Access::Files(AccessFiles {
                acl_file: Some(rules.clone()),
                allow_anonymous: true,
                ..AccessFiles::default()
            });
        })
        .await;
    assert_eq!(exit_code(&mut child).await, Some(1));
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "mq: the broker no longer grants the subscription\n");
    broker.shutdown().await;
}
