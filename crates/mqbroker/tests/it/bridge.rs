//! The state of a bridge, as clients of a mosquitto receive it while the bridge's broker is killed
//! and started again.

use std::time::Duration;

use mq_client::{Client, QoS, Subscription};
use mq_testkit::mosquitto;
use tokio::time::timeout;

use crate::program::Broker;

const PATIENCE: Duration = Duration::from_secs(30);

/// Returns topic and payload of the next message, and `true` if it was retained.
async fn next(states: &mut Subscription) -> (String, String, bool) {
    let state = timeout(PATIENCE, states.recv()).await.unwrap().unwrap();
    let text = state.text().unwrap().to_owned();
    (state.topic.to_string(), text, state.retain)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mosquittos_clients_hear_that_a_bridge_is_connected_and_that_its_broker_was_killed() {
    const STATES: &str = "$SYS/broker/connection/+/state";
    for version in ["3.1.1", "5.0"] {
        let Some((_running, port)) = mosquitto("").await else {
            return;
        };
        let url = format!("mqtt://127.0.0.1:{port}");
        let watcher = Client::builder(&url).unwrap().build().await.unwrap();
        let mut states = watcher.subscribe(STATES, QoS::AtLeastOnce).await.unwrap();
        let configuration = format!(
            "[store]\npath = \"FOLDER/store\"\n\
             [[bridge]]\nname = \"cloud\"\naddress = [\"tcp://127.0.0.1:{port}\"]\n\
             mqtt = \"{version}\"\nreconnect_max_s = 1\nnotifications_local_only = false\n\
             [[bridge.topic]]\npattern = \"up/#\"\n"
        );
        let mut edge = Broker::new("tcp", &configuration);
        let (topic, text, _) = next(&mut states).await;
        assert!(
            topic.starts_with("$SYS/broker/connection/bridge-cloud-"),
            "{topic}"
        );
        assert_eq!(text, "1", "{version}");
        for _ in 0..2 {
            edge.kill();
            let killed = next(&mut states).await;
            assert_eq!(killed, (topic.clone(), "0".to_owned(), false), "{version}");
            // A client that subscribes later receives it as well.
            let later = Client::builder(&url).unwrap().build().await.unwrap();
            let mut retained = later.subscribe(STATES, QoS::AtLeastOnce).await.unwrap();
            let retained = next(&mut retained).await;
            assert_eq!(retained, (topic.clone(), "0".to_owned(), true), "{version}");
            // The client identifier stays, as it is in the store.
            edge.start();
            let back = next(&mut states).await;
            assert_eq!(back, (topic.clone(), "1".to_owned(), false), "{version}");
        }
        // The bridge disconnects in order, so that mosquitto publishes no will.
        edge.end();
        let ended = next(&mut states).await;
        assert_eq!(ended, (topic, "0".to_owned(), false), "{version}");
    }
}
