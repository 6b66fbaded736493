//! Nodes of a cluster whose servers have no majority.

use std::{fs, time::Duration};

use mq_client::{Client, Outgoing, QoS, Receipt};
use tokio::time::{sleep, timeout};

use crate::cluster_programs::{Nats, SOON};

/// Sends a message of QoS 1, which is not acknowledged yet.
async fn send(client: &Client, text: &str) -> Receipt {
    let message = Outgoing::to("t", text.to_owned()).unwrap();
    client.send(message.qos(QoS::AtLeastOnce)).await.unwrap()
}

async fn acknowledged(mut receipt: Receipt) {
    let acknowledged = timeout(SOON, receipt.acknowledged()).await;
    acknowledged.expect("it is acknowledged").unwrap();
}

/// Returns the lines that a node has written to its log.
fn log_of(nats: &Nats, node: &str) -> Vec<String> {
    let log = fs::read_to_string(nats.place(&format!("{node}.log"))).unwrap();
    log.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_majority_writes_few_lines_and_says_how_many_tries_have_failed() {
    let Some(mut nats) = Nats::start(3, false) else {
        return;
    };
    let a = nats.node("a", 3);
    let client = mq_testkit::kept(&a.url(), "client").build().await.unwrap();
    acknowledged(send(&client, "before").await).await;
    let before = log_of(&nats, "a").len();
    nats.running.truncate(1);
    let receipt = send(&client, "meanwhile").await;
    sleep(Duration::from_secs(6)).await;
    nats.begin();
    acknowledged(receipt).await;
    // A reader of a log counts as working once nothing was wrong for some seconds.
    sleep(Duration::from_secs(4)).await;
    let lines = log_of(&nats, "a").split_off(before);
    assert!(lines.len() < 40, "{} lines: {lines:#?}", lines.len());
    let mut over = lines.iter().filter(|line| line.contains("works again"));
    assert!(over.any(|line| line.contains("failures=")), "{lines:#?}");
}
