//! A server that takes no data stream of a client, as mqtt5's broker resets bidirectional ones.

use mq_client::Trust;
use mq_codec::{ConnAck, SubAck, SubAckProperties};
use mq_proto::ServerConfig;
use mq_transport::{ListenOptions, Listener, ServerIdentity};
use tokio::sync::watch;

use super::*;

/// Unknown stream type (0xB5), as mqtt5 ends such a stream.
const STREAM_TYPE: u32 = 0xb5;

/// Sends each message that comes on the control stream back on it. Counts the streams that it resets.
async fn serve(mut listener: Listener, refused: watch::Sender<usize>) {
    let incoming = listener.accept().await.unwrap();
    let mut link = incoming.handshake().await.unwrap();
    let mut connection = Connection::server(Instant::now(), ServerConfig::default());
    let mut seen = std::collections::BTreeSet::new();
    loop {
        while let Some(event) = connection.poll_event() {
            let now = Instant::now();
            match event {
                Event::Connect(_) => {
                    let ack = ConnAck::new(ReasonCode::Success);
                    connection.accept(now, Session::new(), ack).unwrap();
                    // What came behind CONNECT.
                    connection.handle_bytes(now, LaneId::CONTROL, link.received(LaneId::CONTROL));
                }
                Event::Subscribe { subscribe, .. } => {
                    let all = subscribe.subscriptions.iter();
                    let ack = SubAck {
                        packet_id: subscribe.packet_id,
                        reasons: all
                            .map(|one| ReasonCode::granted(one.options.qos))
                            .collect(),
                        properties: SubAckProperties::default(),
                    };
                    connection.suback(now, LaneId::CONTROL, ack).unwrap();
                }
                Event::Publish(received) => {
                    let message = received.message.clone();
                    if let Some(ticket) = received.ticket {
                        connection.ack(now, ticket, ReasonCode::Success);
                    }
                    connection
                        .publish(now, Delivery::new(message, QoS::AtLeastOnce))
                        .unwrap();
                }
                _ => {}
            }
        }
        match link.progress(connection.outbox(), true).await {
            Ok(Progress::Received(LaneId::CONTROL)) => {
                let bytes = link.received(LaneId::CONTROL);
                connection.handle_bytes(Instant::now(), LaneId::CONTROL, bytes);
            }
            Ok(Progress::Received(lane)) => {
                link.received(lane).clear();
                if seen.insert(lane) {
                    connection.abort_lane(Instant::now(), lane, STREAM_TYPE);
                    refused.send_modify(|count| *count += 1);
                }
            }
            Ok(Progress::Closed) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Runs a client with that strategy, checks its subscription and messages, and returns the number of streams that were
/// refused in all.
async fn with(streams: QuicStreams) -> usize {
    let identity = ServerIdentity::self_signed().unwrap();
    let options = ListenOptions {
        identity: Some(identity),
        ..ListenOptions::default()
    };
    let address: Address = "quic://127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&address, &options).await.unwrap();
    let url = listener.local_address().to_string();
    let (count, refused) = watch::channel(0);
    let server = tokio::spawn(serve(listener, count));
    let connector = Connector::new(ConnectOptions::new().trust(Trust::Insecure)).unwrap();
    let client = Client::builder(&url).unwrap().connector(connector);
    let client = client.quic_streams(streams).build().await.unwrap();
    let subscribed = client.subscribe("t/#", QoS::AtLeastOnce);
    let mut messages = timeout(SOON, subscribed).await.unwrap().unwrap();
    for number in 0..50 {
        if number < TOPICS {
            // One of these opens the first stream, if no subscription did.
            let topic = format!("t/{number}");
            let first = client.publish(topic, number.to_string(), QoS::AtLeastOnce);
            timeout(SOON, first).await.unwrap().unwrap();
        } else {
            // At most once: what had gone on a stream that is refused would be gone.
            let qos = [QoS::AtMostOnce, QoS::AtLeastOnce][number % 2];
            client.send(numbered(number, qos)).await.unwrap();
        }
    }
    let mut got = Got::default();
    got.all(&mut messages, 50).await;
    got.each_came_once();
    got.each_topic_is_in_order();
    client.disconnect().await.unwrap();
    server.await.unwrap();
    *refused.borrow()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_server_that_takes_no_stream_of_it_opens_one_and_no_more() {
    for streams in strategies() {
        // It opens several at once, at a time of its own choice.
        if matches!(streams, QuicStreams::Auto { .. }) {
            continue;
        }
        let refused = with(streams.clone()).await;
        assert!(refused <= 1, "{streams}: {refused} streams were refused");
    }
}
