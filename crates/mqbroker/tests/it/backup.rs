//! `mqbroker backup` while the broker runs, and `mqbroker restore`.

use std::path::Path;

use mq_client::{Outgoing, QoS};

use crate::program::{Broker, mqbroker};

/// What it said on standard error, where it failed.
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
    assert!(again.contains("there is such a file already"), "{again}");
    assert_eq!(again.lines().count(), 1, "{again}");
    retained(&broker, "after").await;
    broker.end();
    let gone = run(&[backup, &toml, &broker.file("other")]).unwrap_err();
    assert!(gone.contains("no broker answers at"), "{gone}");
    let store = broker.file("store");
    let taken = run(&[restore, &file, &store]).unwrap_err();
    assert!(taken.contains("there is such a file already"), "{taken}");
    std::fs::remove_file(&store).unwrap();
    run(&[restore, &file, &store]).unwrap();
    broker.start();
    let client = broker.client("reader").start().unwrap();
    let mut messages = client.subscribe("t", QoS::AtMostOnce).await.unwrap();
    assert_eq!(messages.recv().await.unwrap().payload, "before");
    drop(client);
    broker.end();
}
