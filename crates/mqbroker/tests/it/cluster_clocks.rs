//! A node whose wall clock is wrong, as a program: sessions and messages of a cluster end in their time all the same.

use std::{fs, time::Duration};

use mq_client::{Outgoing, QoS};
use tokio::{task::block_in_place, time::sleep};

use crate::{
    cluster_operation::{client, send, texts, until_shown},
    cluster_programs::{Nats, Node},
};

const HOUR_S: i32 = 3_600;

/// Makes a session with a subscription, whose client leaves it for so long.
async fn leave(node: &Node, id: &str, expiry_s: u64) {
    let client = client(id, &[node]).session_expiry(Duration::from_secs(expiry_s));
    let client = client.build().await.unwrap();
    let subscribed = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    client.disconnect().await.unwrap();
    drop(subscribed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_clock_is_an_hour_off_keeps_the_times_of_others() {
    let (Some(nats), Some(faketime)) = (Nats::start(1, false), mq_testkit::faketime()) else {
        return;
    };
    let wrong = block_in_place(|| nats.node_with_clock("wrong", 1, faketime, HOUR_S));
    let mut right = block_in_place(|| nats.node("right", 1));
    let reader = client("reader", &[&wrong]).build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let away = ["one", "two", "three", "four"];
    for id in away {
        leave(&right, id, 600).await;
    }
    leave(&right, "is over", 6).await;
    let message = Outgoing::to("t", "hot").unwrap().qos(QoS::AtLeastOnce);
    send(&right, message.message_expiry(Duration::from_mins(5))).await;
    let came = mq_testkit::next(&mut messages).await;
    assert_eq!(came.text().unwrap(), "hot");
    // It steps while it runs.
    nats.set_clock("wrong", -HOUR_S);
    leave(&wrong, "moves", 600).await;
    let moved = client("moves", &[&right]).build().await.unwrap();
    assert!(moved.last_connected().unwrap().session_present);
    moved.disconnect().await.unwrap();
    nats.set_clock("wrong", HOUR_S);
    // The records say by then when the sessions end.
    sleep(Duration::from_secs(5)).await;
    right.kill();
    block_in_place(|| {
        until_shown(&nats, &wrong, |shown| {
            let nodes = shown["nodes"].as_array().unwrap();
            let is_over = |name| {
                let mut found = nodes.iter().filter(|node| node["name"] == name);
                found.any(|node| node["is_over"] == true)
            };
            is_over("right") && shown["sessions"].as_u64().unwrap() > away.len() as u64
        });
    });
    sleep(Duration::from_secs(2)).await;
    for id in away {
        // Fails if the session is not there.
        assert_eq!(texts(id, &wrong, 1).await, ["hot"], "{id}");
    }
    let over = client("is over", &[&wrong]).build().await.unwrap();
    assert!(!over.last_connected().unwrap().session_present);
    let offset_ms = nats.status("wrong")["clock_offset_ms"].as_i64().unwrap();
    assert!((3_590_000..3_610_000).contains(&offset_ms), "{offset_ms}");
    let log = fs::read_to_string(nats.place("wrong.log")).unwrap();
    let said = log.matches("wall clock differs from the servers' time");
    assert_eq!(said.count(), 1, "{log}");
    drop((reader, over));
}
