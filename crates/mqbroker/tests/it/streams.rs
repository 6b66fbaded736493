//! The broker's memory with many QUIC streams: 100 clients with 100 streams each.

use mq_client::{Outgoing, QoS, QuicStreams};

use crate::program::Broker;

const CLIENTS: usize = 100;
const STREAMS: u16 = 100;

/// The most bytes that the streams may add. A published comparison reports 4.2 GB at ten
/// connections with a stream for each message.
const MOST: usize = 100_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_open_streams_take_less_than_100_megabytes() {
    let broker = Broker::new("quic", "[quic]\nmax_streams = 128\n");
    let (before, _) = broker.resident();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = broker
            .client(&format!("c{number}"))
            .quic_streams(QuicStreams::PerTopic { most: STREAMS });
        clients.push(client.build().await.unwrap());
    }
    let (connected, _) = broker.resident();
    for (number, client) in clients.iter().enumerate() {
        for topic in 0..STREAMS {
            // Acknowledged, so that the broker has seen the stream.
            let message = Outgoing::to(format!("{number}/{topic}"), "x").unwrap();
            let mut receipt = client.send(message.qos(QoS::AtLeastOnce)).await.unwrap();
            receipt.acknowledged().await.unwrap();
        }
    }
    let (resident, peak) = broker.resident();
    println!(
        "{before} B at first, {connected} with {CLIENTS} connections, {resident} with {STREAMS} streams each, {peak} at \
         most"
    );
    assert!(peak < MOST, "{peak} B");
}
