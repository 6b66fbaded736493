//! `mqbroker backup` while the broker runs, and `mqbroker restore`.

use std::{path::Path, time::Duration};

use mq_client::{Outgoing, QoS};

#[cfg(target_os = "linux")]
use crate::hanging_disk::Disk;
use crate::program::{Broker, mqbroker};

/// Runs `mqbroker`; the error is its standard error.
fn run(arguments: &[&Path]) -> Result<(), String> {
    let output = mqbroker(arguments, "");
    let said = String::from_utf8(output.stderr).unwrap();
    output.status.success().then_some(()).ok_or(said)
}

#[tokio::test]
async fn what_was_backed_up_is_there_again_after_a_restore() {
    let configuration = "[store]\npath = \"FOLDER/store\"\n[admin]\nsocket = \"FOLDER/socket\"\n";
    let mut broker = Broker::new("tcp", configuration);
    let (backup, restore) = (Path::new("backup"), Path::new("restore"));
    let file = broker.file("copy");
    let toml = broker.file("broker.toml");
    let retained = async |broker: &Broker, text: &str| {
        let client = broker.client("c").build().await.unwrap();
        let message = Outgoing::to("t", text.to_owned()).unwrap();
        let message = message.qos(QoS::AtLeastOnce).retain(true);
        let mut receipt = client.send(message).await.unwrap();
        receipt.acknowledged().await.unwrap();
        client.disconnect().await.unwrap();
    };
    retained(&broker, "before").await;
    run(&[backup, &toml, &file]).unwrap();
    let again = run(&[backup, &toml, &file]).unwrap_err();
    assert!(again.contains("file exists already"), "{again}");
    assert_eq!(again.lines().count(), 1, "{again}");
    retained(&broker, "after").await;
    broker.end();
    let gone = run(&[backup, &toml, &broker.file("other")]).unwrap_err();
    assert!(gone.contains("no broker answers at"), "{gone}");
    let store = broker.file("store");
    let taken = run(&[restore, &file, &store]).unwrap_err();
    assert!(taken.contains("file exists already"), "{taken}");
    std::fs::remove_file(&store).unwrap();
    run(&[restore, &file, &store]).unwrap();
    broker.start();
    let client = broker.client("reader").start().unwrap();
    let mut messages = client.subscribe("t", QoS::AtMostOnce).await.unwrap();
    assert_eq!(messages.recv().await.unwrap().payload, "before");
    drop(client);
    broker.end();
}

/// Makes a retained message, and the session of a client that reconnects later.
async fn keep(broker: &Broker, topic: &str) {
    let client = broker.client("c").session_expiry(Duration::from_hours(1));
    let client = client.build().await.unwrap();
    let message = Outgoing::to(topic, "kept".to_owned()).unwrap();
    let message = message.qos(QoS::AtLeastOnce).retain(true);
    let mut receipt = client.send(message).await.unwrap();
    receipt.acknowledged().await.unwrap();
}

fn has(file: &Path, text: &str) -> bool {
    let bytes = std::fs::read(file).unwrap();
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_backup_that_was_cut_off_is_refused_and_left_as_it_was() {
    const TOPIC: &str = "kept/by/the/backup";

    let Some(disk) = Disk::new() else { return };
    let (broker, _) = disk.broker_with_socket();
    keep(&broker, TOPIC).await;
    disk.takes(Duration::from_millis(300));
    let (toml, copy) = (broker.file("broker.toml"), broker.file("copy"));
    let backup = std::thread::spawn(move || run(&[Path::new("backup"), &toml, &copy]));
    let mut cut_off = Vec::new();
    while !backup.is_finished() {
        if let Ok(bytes) = std::fs::read(broker.file("copy.part")) {
            let cut = broker.file(&format!("cut-{}.part", cut_off.len()));
            std::fs::write(&cut, &bytes).unwrap();
            cut_off.push((cut, bytes));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    backup.join().unwrap().unwrap();
    disk.takes(Duration::ZERO);
    assert!(cut_off.len() > 1);
    let mut refused = 0;
    for (number, (cut, bytes)) in cut_off.iter().enumerate() {
        let store = broker.file(&format!("store-{number}"));
        match run(&[Path::new("restore"), cut, &store]) {
            // The file was complete, and not renamed yet.
            Ok(()) => assert!(has(&store, TOPIC), "{number}: an empty store"),
            Err(said) => {
                refused += 1;
                assert!(said.contains("cut-") && said.lines().count() == 1, "{said}");
                assert!(!store.exists());
                assert!(std::fs::read(cut).unwrap() == *bytes, "{number}: {said}");
            }
        }
    }
    println!("{refused} of {} refused", cut_off.len());
    assert!(refused > 0);
}

#[tokio::test]
async fn a_store_is_replaced_by_a_backup_only_where_that_is_asked_for() {
    let configuration = "[store]\npath = \"FOLDER/store\"\n[admin]\nsocket = \"FOLDER/socket\"\n";
    let mut broker = Broker::new("tcp", configuration);
    let restore = Path::new("restore");
    let [toml, copy, store] = ["broker.toml", "copy", "store"].map(|name| broker.file(name));
    keep(&broker, "topic/of/the/backup").await;
    run(&[Path::new("backup"), &toml, &copy]).unwrap();
    keep(&broker, "topic/since/then").await;
    let force = Path::new("--force");
    let said = run(&[restore, force, &copy, &store]).unwrap_err();
    assert!(said.contains("another broker has it open"), "{said}");
    broker.end();
    let before = [&copy, &store].map(|file| std::fs::read(file).unwrap());
    let said = run(&[restore, &copy, &store]).unwrap_err();
    let after = [&copy, &store].map(|file| std::fs::read(file).unwrap());
    assert!(before == after, "neither file was changed");
    for part in [store.to_str().unwrap(), "1 sessions", "--force"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(has(&store, "topic/since/then"));
    run(&[restore, force, &copy, &store]).unwrap();
    assert!(has(&store, "topic/of/the/backup") && !has(&store, "topic/since/then"));
    broker.start();
    let client = broker.client("reader").start().unwrap();
    let mut messages = client.subscribe("topic/#", QoS::AtMostOnce).await.unwrap();
    let topic = messages.recv().await.unwrap().topic;
    assert_eq!(topic.as_str(), "topic/of/the/backup");
    drop(client);
    broker.end();
}
