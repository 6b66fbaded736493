//! `mqbroker --qlog`: a sample of the QUIC connections.

use mq_client::QoS;

use crate::program::Broker;

#[tokio::test]
async fn a_crowd_of_connections_is_not_traced_whole() {
    let mut broker = Broker::with_arguments("quic", "", &["--qlog", "FOLDER/traces"]);
    for number in 0..10 {
        let client = broker.client(&format!("c{number}")).build().await.unwrap();
        client.publish("t", "x", QoS::AtLeastOnce).await.unwrap();
        client.disconnect().await.unwrap();
    }
    // What is still open is complete then.
    broker.end();
    let files = std::fs::read_dir(broker.file("traces")).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    // One a second, and ten connections take less than nine of them.
    assert!((1..10).contains(&files.len()), "{files:?}");
    for file in files {
        assert_eq!(file.extension().unwrap(), "sqlog");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("\u{1e}{"), "{text}");
        assert!(text.contains("\"type\":\"server\""), "{text}");
    }
}
