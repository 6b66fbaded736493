//! Nodes of a cluster whose servers have no majority, no room, or an earlier state.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use async_nats::jetstream::stream::Stream;
use mq_client::{Client, Error, Outgoing, QoS, Receipt, Subscription};
use mq_codec::ReasonCode;
use mq_testkit::{Running, free_port};
use tokio::{
    task::block_in_place,
    time::{sleep, timeout},
};

use crate::cluster_programs::{Nats, Node, SOON, signal};

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
    let lines = || log_of(&nats, "a").split_off(before);
    // A reader of a log counts as working once nothing was wrong for some seconds.
    let over = async {
        let is_over = |line: &String| line.contains("works again") && line.contains("failures=");
        while !lines().iter().any(is_over) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    let is_over = timeout(SOON, over).await;
    let lines = lines();
    assert!(is_over.is_ok(), "{lines:#?}");
    assert!(lines.len() < 40, "{} lines: {lines:#?}", lines.len());
}

/// Publishes to node a so much that the servers, of which each may store 16 MB, have no more room. Returns the number of
/// messages that were taken, and that which the servers had not answered when they became full, if there is one: the
/// node does not know whether they have it.
async fn fill_up(nats: &Nats, client: &Client) -> (usize, Option<Receipt>) {
    let payload = vec![7_u8; 200_000];
    for taken in 0..1_000 {
        let message = Outgoing::to(&*format!("fill/{taken}"), payload.clone()).unwrap();
        let mut receipt = client.send(message.qos(QoS::AtLeastOnce)).await.unwrap();
        let began = Instant::now();
        loop {
            match timeout(Duration::from_secs(5), receipt.acknowledged()).await {
                Ok(Ok(_)) => break,
                Ok(Err(Error::PublishRefused { reason })) => {
                    assert_eq!(reason, ReasonCode::QuotaExceeded);
                    return (taken, None);
                }
                Err(_) if nats.status("a")["storage_full"] == true => {
                    return (taken, Some(receipt));
                }
                Err(_) if began.elapsed() < SOON => {}
                other => panic!(
                    "after {taken} messages: {other:?}: {:#?}",
                    log_of(nats, "a")
                ),
            }
        }
    }
    panic!("it is not full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_over_full_servers_refuse_messages_by_0x97_and_go_on_once_there_is_room() {
    let Some(mut nats) = Nats::new(3, false) else {
        return;
    };
    nats.set_max_file_store("16MB");
    nats.begin();
    let nodes = ["a", "b"].map(|name| nats.node(name, 3));
    let publisher = mq_testkit::kept(&nodes[0].url(), "publisher");
    let publisher = publisher.build().await.unwrap();
    let reader = mq_testkit::kept(&nodes[1].url(), "reader")
        .build()
        .await
        .unwrap();
    let mut live = reader.subscribe("live", QoS::AtMostOnce).await.unwrap();
    let (taken, unsure) = fill_up(&nats, &publisher).await;
    println!("{taken} messages were taken; {unsure:?} may be");
    assert!(taken > 10);
    for n in 0..3 {
        let mut receipt = send(&publisher, "refused").await;
        let answer = timeout(SOON, receipt.acknowledged()).await;
        let is_refused = matches!(answer, Ok(Err(Error::PublishRefused { .. })));
        assert!(is_refused, "{n}: {answer:?}");
        let message = Outgoing::to("live", n.to_string()).unwrap();
        publisher.send(message).await.unwrap();
        let came = mq_testkit::next(&mut live).await;
        assert_eq!(came.text().unwrap(), n.to_string());
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(nats.status("a")["storage_full"], true);
    let said = log_of(&nats, "a");
    let full = said
        .iter()
        .filter(|line| line.contains("cluster: storage full"));
    assert_eq!(full.count(), 1, "{said:#?}");
    nats.set_max_file_store("64MB");
    for server in &nats.running {
        signal(server, "-HUP");
    }
    let goes_on = async {
        loop {
            match send(&publisher, "after").await.acknowledged().await {
                Ok(_) => return,
                Err(Error::PublishRefused { .. }) => sleep(Duration::from_millis(500)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    timeout(SOON, goes_on).await.expect("there is room again");
    if let Some(unsure) = unsure {
        acknowledged(unsure).await;
    }
}

/// Publishes so many messages, which are acknowledged.
async fn send_some(nats: &Nats, client: &Client, name: &str, count: usize) -> BTreeSet<String> {
    let texts: BTreeSet<_> = (0..count).map(|n| format!("{name} {n}")).collect();
    for text in &texts {
        let mut receipt = send(client, text).await;
        let answer = timeout(SOON, receipt.acknowledged()).await;
        let logs = || ["a", "b"].map(|node| log_of(nats, node));
        assert!(
            matches!(answer, Ok(Ok(_))),
            "{text}: {answer:?}: {:#?}",
            logs()
        );
    }
    texts
}

/// Receives messages until all of these have come.
async fn receive_all(messages: &mut Subscription, mut missing: BTreeSet<String>) {
    while !missing.is_empty() {
        match timeout(SOON, messages.recv()).await {
            Ok(Some(message)) => missing.remove(message.text().unwrap()),
            _ => panic!("{} are missing: {missing:?}", missing.len()),
        };
    }
}

/// Puts a copy of a folder in the place of another one.
fn replace(folder: &str, by: &str) {
    let _ = fs::remove_dir_all(folder);
    let copied = Command::new("cp").arg("-a").args([by, folder]).status();
    assert!(copied.unwrap().success());
}

/// Sets the first so many of three servers back to a copy that was taken of them, while the nodes live. The others start
/// later.
async fn set_back(count: usize) {
    let Some(mut nats) = Nats::start(3, false) else {
        return;
    };
    // No node is to take the other one for dead while the servers agree on leaders.
    let nodes = ["a", "b"].map(|name| nats.node(name, 20));
    make_away(&nodes[1]).await;
    let publisher = mq_testkit::kept(&nodes[0].url(), "publisher");
    let publisher = publisher.build().await.unwrap();
    let reader = mq_testkit::kept(&nodes[1].url(), "reader");
    let reader = reader.build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let before = send_some(&nats, &publisher, "before", 20).await;
    block_in_place(|| {
        nats.end();
        for n in 0..3 {
            replace(&nats.place(&format!("copy-{n}")), &nats.data(n));
        }
        nats.begin();
    });
    let lost = send_some(&nats, &publisher, "lost", 200).await;
    receive_all(&mut messages, &before | &lost).await;
    block_in_place(|| {
        nats.running.clear();
        for n in 0..count {
            replace(&nats.data(n), &nats.place(&format!("copy-{n}")));
        }
        nats.begin_first(count);
    });
    sleep(Duration::from_secs(5)).await;
    nats.begin();
    let after = send_some(&nats, &publisher, "after", 50).await;
    receive_all(&mut messages, after.clone()).await;
    // The stream of records may have no leader yet: the server is busy then.
    let comes_back = async {
        loop {
            let away = mq_testkit::kept(&nodes[0].url(), "away");
            let messages = away.messages();
            if let Ok(away) = away.build().await {
                break (away, messages);
            }
            sleep(Duration::from_millis(500)).await;
        }
    };
    let comes_back = timeout(SOON, comes_back).await;
    let (away, mut messages) = comes_back.expect("it is let in");
    let said = [log_of(&nats, "a"), log_of(&nats, "b")].concat();
    let mut named = said.iter().filter(|line| line.contains("was set back"));
    let mut owed = &before | &after;
    match named.next() {
        Some(line) => assert!(count > 1 && line.contains("missing="), "{line}"),
        // A server that has the whole log leads, and the others have it from there.
        None if count < 3 => owed.extend(lost),
        None => panic!("{said:#?}"),
    }
    receive_all(&mut messages, owed).await;
    let mut left = said.iter().filter(|line| line.contains("node failed"));
    assert_eq!(left.next(), None);
    if count == 1 {
        nats.store_the_same().await;
    }
    drop((away, reader));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_go_on_after_all_servers_were_restored_to_an_earlier_copy() {
    set_back(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_go_on_after_two_of_three_servers_were_restored_to_an_earlier_copy() {
    set_back(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_servers_that_was_restored_to_an_earlier_copy_is_repaired_and_nothing_is_lost()
{
    set_back(1).await;
}

/// Returns the log that has the most entries.
async fn longest_log(nats: &Nats) -> Stream {
    let context = nats.jetstream().await;
    let mut logs = Vec::new();
    while let Ok(log) = context.get_stream(format!("mq-log-{}", logs.len())).await {
        logs.push(log);
    }
    let longest = logs.into_iter().max_by_key(last_entry);
    longest.expect("there are logs")
}

/// Returns the last entry that a log had when it was asked for.
fn last_entry(log: &Stream) -> u64 {
    log.cached_info().state.last_sequence
}

/// Makes the session of a client that is away, with a subscription.
async fn make_away(node: &Node) {
    let away = mq_testkit::kept(&node.url(), "away").build().await.unwrap();
    let subscribed = away.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    away.disconnect().await.unwrap();
    drop(subscribed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_name_entries_that_no_server_has_and_begin_without_them() {
    let Some(nats) = Nats::start(3, false) else {
        return;
    };
    let a = nats.node("a", 3);
    let mut b = nats.node("b", 3);
    make_away(&b).await;
    let publisher = mq_testkit::kept(&a.url(), "publisher");
    let publisher = publisher.build().await.unwrap();
    let before = send_some(&nats, &publisher, "before", 40).await;
    b.kill();
    let log = longest_log(&nats).await;
    let (first, last) = (last_entry(&log) + 5, last_entry(&log) + 6);
    // Two of them are lost.
    send_some(&nats, &publisher, "meanwhile", 10).await;
    for number in [first, last] {
        assert!(log.delete_message(number).await.unwrap(), "{number}");
    }
    let after = send_some(&nats, &publisher, "after", 10).await;
    b.start(&nats);
    let said = log_of(&nats, "b");
    let named = format!("first={first} last={last}");
    let is_named = |line: &&String| line.contains("have lost log entries") && line.contains(&named);
    assert_eq!(said.iter().filter(is_named).count(), 1, "{said:#?}");
    let away = mq_testkit::kept(&b.url(), "away");
    let mut messages = away.messages();
    let away = timeout(SOON, away.build()).await.unwrap().unwrap();
    receive_all(&mut messages, &before | &after).await;
    let mut left = log_of(&nats, "a").into_iter();
    assert_eq!(left.find(|line| line.contains("node failed")), None);
    drop(away);
}

/// Starts a broker with that table, and ends it once its log says that it waits for this reason.
fn waits_for_streams(nats: &Nats, table: &str, reason: &str) {
    let listen = format!("listen = [\"tcp://127.0.0.1:{}\"]\n", free_port());
    let mut command = nats.command("waiting", &(listen + table));
    let log = nats.place("waiting.log");
    let child = command
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap());
    let _running = Running(child.spawn().unwrap());
    let began = Instant::now();
    loop {
        let said = fs::read_to_string(&log).unwrap();
        let waits = |line: &str| line.contains("waiting for NATS servers") && line.contains(reason);
        if said.lines().any(waits) {
            return;
        }
        assert!(began.elapsed() < SOON, "{said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Names of the streams of a cluster with two logs.
const STREAMS: [&str; 3] = ["mq-values", "mq-log-0", "mq-log-1"];

/// Lists the streams of the cluster that the servers lack.
async fn missing_streams(nats: &Nats) -> Vec<&'static str> {
    let context = nats.jetstream().await;
    let mut missing = Vec::new();
    for name in STREAMS {
        if context.get_stream(name).await.is_err() {
            missing.push(name);
        }
    }
    missing
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_make_no_streams_in_the_place_of_lost_ones() {
    let Some(nats) = Nats::start(1, false) else {
        return;
    };
    let table = nats.table("b", &nats.urls(), "password");
    let waiting = format!("{table}create_streams = false\n");
    waits_for_streams(&nats, &waiting, "no streams of cluster \"mq\"");
    assert_eq!(missing_streams(&nats).await, STREAMS);
    let mut a = nats.node("a", 3);
    a.end();
    a.start(&nats);
    a.end();
    let made = log_of(&nats, "a");
    let made = made.iter().filter(|line| line.contains("streams made"));
    assert_eq!(made.count(), 1, "the second start finds them");
    let context = nats.jetstream().await;
    for lost in ["mq-log-1", "mq-values"] {
        let config = context.get_stream(lost).await.unwrap();
        let config = config.cached_info().config.clone();
        context.delete_stream(lost).await.unwrap();
        waits_for_streams(&nats, &table, &format!("lost stream \"{lost}\""));
        assert_eq!(missing_streams(&nats).await, [lost]);
        // An operator restores it.
        context.create_stream(config).await.unwrap();
    }
}
