//! A bridge over real links: each transport, early data, the next address, and mosquitto at the other end.

use std::time::Duration;

use mq_broker::{BridgeSettings, BridgeTopic, Direction, view::Query};
use mq_client::{Client, Outgoing, QoS, Subscription, Version};
use mq_proto::Event;
use mq_testkit::{ManualClient, Scheme, TestBroker, mosquitto, over_each_transport};
use mq_transport::{Address, Trust};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::{sleep, timeout},
};

const SOON: Duration = Duration::from_secs(20);

over_each_transport!(messages_pass_and_pass_again_after_the_other_broker_has_thrown_the_bridge_out);

fn topics() -> Vec<BridgeTopic> {
    let topic = |direction, pattern: &str| BridgeTopic {
        direction,
        qos: QoS::ExactlyOnce,
        remote_prefix: "edge/".to_owned(),
        ..BridgeTopic::new(pattern)
    };
    vec![
        topic(Direction::Out, "up/#"),
        topic(Direction::In, "down/#"),
    ]
}

async fn edge(bridge: BridgeSettings) -> TestBroker {
    TestBroker::start_with(|settings| settings.bridges = vec![bridge]).await
}

fn bridge_to(broker: &TestBroker, addresses: Vec<Address>) -> BridgeSettings {
    let mut bridge = BridgeSettings::new("cloud", addresses, topics());
    bridge.client_id = Some("edge-7".to_owned());
    bridge.connect.trust = Trust::ca_file(broker.certificate());
    bridge.connect_timeout = Duration::from_secs(5);
    bridge
}

async fn next(messages: &mut Subscription) -> (String, String) {
    let incoming = timeout(SOON, messages.recv()).await.unwrap().unwrap();
    let text = incoming.text().unwrap().to_owned();
    (incoming.topic.to_string(), text)
}

async fn send(client: &Client, topic: &str, text: &str, qos: QoS) {
    let message = Outgoing::to(topic, text.to_owned()).unwrap().qos(qos);
    let mut receipt = client.send(message).await.unwrap();
    timeout(SOON, receipt.acknowledged())
        .await
        .unwrap()
        .unwrap();
}

/// Sends one message each way, by clients of the two brokers.
async fn both_ways(here: &Client, there: &Client, text: &str) {
    let mut at_cloud = there
        .subscribe("edge/up/#", QoS::ExactlyOnce)
        .await
        .unwrap();
    let mut at_edge = here.subscribe("down/#", QoS::ExactlyOnce).await.unwrap();
    send(here, "up/1", text, QoS::ExactlyOnce).await;
    assert_eq!(
        next(&mut at_cloud).await,
        ("edge/up/1".to_owned(), text.to_owned())
    );
    // Until the bridge has subscribed there.
    let arrives = async {
        loop {
            send(there, "edge/down/1", text, QoS::AtLeastOnce).await;
            if let Ok(Some(_)) = timeout(Duration::from_millis(300), at_edge.recv()).await {
                break;
            }
        }
    };
    timeout(SOON, arrives).await.unwrap();
}

async fn messages_pass_and_pass_again_after_the_other_broker_has_thrown_the_bridge_out(
    scheme: Scheme,
) {
    let cloud = TestBroker::start().await;
    let edge = edge(bridge_to(&cloud, vec![cloud.address(scheme)])).await;
    let here = edge.client(Scheme::Tcp, "device").build().await.unwrap();
    let there = cloud.client(Scheme::Tcp, "reader").build().await.unwrap();
    for round in 0..3 {
        both_ways(&here, &there, &round.to_string()).await;
        if round < 2 {
            cloud.broker().kick("edge-7").unwrap();
        }
    }
    edge.shutdown().await;
    if [Scheme::Tls, Scheme::Quic].contains(&scheme) {
        let listeners = cloud.broker().listeners();
        let listener = listeners
            .iter()
            .find(|one| one.address.scheme == scheme)
            .unwrap();
        // Counted when a link ends: all connections but the first began with early data.
        let all = async {
            while listener.early_data_accepted.get() < 2 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, all).await.unwrap();
    }
    cloud.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_quic_does_not_get_through_the_next_address_is_taken() {
    let cloud = TestBroker::start().await;
    // Datagrams that nobody answers.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = Address::new(
        Scheme::Quic,
        "127.0.0.1",
        silent.local_addr().unwrap().port(),
    );
    let mut bridge = bridge_to(&cloud, vec![silent, cloud.address(Scheme::Tls)]);
    bridge.connect_timeout = Duration::from_millis(500);
    let edge = edge(bridge).await;
    let here = edge.client(Scheme::Tcp, "device").build().await.unwrap();
    let there = cloud.client(Scheme::Tcp, "reader").build().await.unwrap();
    both_ways(&here, &there, "x").await;
    edge.shutdown().await;
    cloud.shutdown().await;
}

fn tcp(port: u16) -> Address {
    Address::new(Scheme::Tcp, "127.0.0.1", port)
}

async fn client_of(address: &Address) -> Client {
    let builder = Client::builder(&address.to_string()).unwrap();
    builder.build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_to_mosquitto_carries_both_ways() {
    for version in [Version::V3_1_1, Version::V5] {
        let Some((_running, port)) = mosquitto("").await else {
            return;
        };
        let address = tcp(port);
        let mut bridge = BridgeSettings::new("cloud", vec![address.clone()], topics());
        bridge.version = version;
        let edge = edge(bridge).await;
        let here = edge.client(Scheme::Tcp, "device").build().await.unwrap();
        let there = client_of(&address).await;
        both_ways(&here, &there, "x").await;
        edge.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mosquittos_bridge_to_this_broker_carries_both_ways() {
    for version in ["mqttv311", "mqttv50"] {
        let cloud = TestBroker::start().await;
        let port = cloud.address(Scheme::Tcp).port;
        let lines = format!(
            "connection cloud\naddress 127.0.0.1:{port}\nbridge_protocol_version {version}\n\
             topic up/# out 2 \"\" edge/\ntopic down/# in 2 \"\" edge/\n"
        );
        let Some((_running, own)) = mosquitto(&lines).await else {
            return;
        };
        let address = tcp(own);
        let here = client_of(&address).await;
        let there = cloud.client(Scheme::Tcp, "reader").build().await.unwrap();
        both_ways(&here, &there, "x").await;
        cloud.shutdown().await;
    }
}

/// Returns the bridge topic for all topics, both ways.
fn everything() -> Vec<BridgeTopic> {
    let topic = BridgeTopic {
        direction: Direction::Both,
        ..BridgeTopic::new("#")
    };
    vec![topic]
}

/// Returns the number of messages within that time, and no more than 1,000.
async fn copies(messages: &mut Subscription, time: Duration) -> usize {
    let mut copies = 0;
    let count = async {
        while copies < 1_000 && messages.recv().await.is_some() {
            copies += 1;
        }
    };
    let _ = timeout(time, count).await;
    copies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mosquittos_bridge_is_let_in_at_once_and_gets_nothing_of_its_own_back() {
    for version in ["mqttv31", "mqttv311"] {
        let cloud = TestBroker::start().await;
        let port = cloud.address(Scheme::Tcp).port;
        let lines = format!(
            "connection cloud\naddress 127.0.0.1:{port}\nbridge_protocol_version {version}\n\
             topic # both 1\n"
        );
        let Some((_running, own)) = mosquitto(&lines).await else {
            return;
        };
        let there = cloud.client(Scheme::Tcp, "reader").build().await.unwrap();
        let mut at_cloud = there.subscribe("t", QoS::AtLeastOnce).await.unwrap();
        let subscribed = async {
            while cloud.broker().metrics().subscriptions.get() < 2 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, subscribed).await.unwrap();
        let here = client_of(&tcp(own)).await;
        let mut at_edge = here.subscribe("t", QoS::AtLeastOnce).await.unwrap();
        send(&here, "t", "x", QoS::AtLeastOnce).await;
        assert_eq!(next(&mut at_cloud).await.1, "x");
        let time = Duration::from_secs(1);
        assert_eq!(copies(&mut at_edge, time).await, 1, "{version}");
        assert_eq!(copies(&mut at_cloud, time).await, 0, "{version}");
        let refused = cloud.broker().refusals(&Query::default()).items;
        assert!(refused.is_empty(), "{version}: {refused:?}");
        cloud.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mosquitto_and_this_broker_that_bridge_everything_to_each_other_do_not_storm() {
    // Ports are chosen first: either has the other's address.
    let own = TestBroker::start().await;
    let port = own.address(Scheme::Tcp).port;
    let lines = format!(
        "connection cloud\naddress 127.0.0.1:{port}\nbridge_protocol_version mqttv311\n\
         restart_timeout 1\ntopic # both 1\n"
    );
    let Some((_running, theirs)) = mosquitto(&lines).await else {
        return;
    };
    let bridge = BridgeSettings::new("cloud", vec![tcp(theirs)], everything());
    let own = own
        .restart_with(|settings| settings.bridges = vec![bridge.clone()])
        .await;
    let (here, there) = (client_of(&tcp(port)).await, client_of(&tcp(theirs)).await);
    let mut at_own = here.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let mut at_theirs = there.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let state = "$SYS/broker/connection/+/state";
    let mut states = here.subscribe(state, QoS::AtLeastOnce).await.unwrap();
    while next(&mut states).await.1 != "1" {}
    // Those of the two bridges, and of the client here.
    let theirs_is_there = async {
        while own.broker().metrics().subscriptions.get() < 4 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, theirs_is_there).await.unwrap();
    send(&here, "t", "x", QoS::AtLeastOnce).await;
    let time = Duration::from_secs(3);
    let came = tokio::join!(copies(&mut at_own, time), copies(&mut at_theirs, time));
    println!("{came:?} copies");
    // Twenty a second by each of two bridges, and three seconds have a part in four.
    let bound = 1..=2 * 20 * 4;
    assert!(
        bound.contains(&came.0) && bound.contains(&came.1),
        "{came:?}"
    );
    own.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_by_its_protocol_level_gets_nothing_of_its_own_back_and_retain_as_published() {
    for version in [Version::V3_1, Version::V3_1_1] {
        let broker = TestBroker::start().await;
        let bridge = ManualClient::connect(&broker, Scheme::Tcp, "remote", |config| {
            config.connect.version = version;
            config.connect.is_bridge = true;
        });
        let mut bridge = bridge.await;
        bridge.subscribe("t", QoS::AtLeastOnce).await;
        bridge.publish("t", "own", QoS::AtLeastOnce).await;
        let acked = bridge.next().await;
        assert!(matches!(acked, Event::Acked { .. }), "{acked:?}");
        let device = broker.client(Scheme::Tcp, "device").build().await.unwrap();
        let other = Outgoing::to("t", "other").unwrap().retain(true);
        device.send(other).await.unwrap();
        let received = bridge.message().await;
        assert_eq!(received.message.payload, "other", "{version}");
        assert!(received.retain, "{version}");
        broker.shutdown().await;
    }
}

#[tokio::test]
async fn a_remote_broker_that_refuses_the_bit_of_a_bridge_gets_a_clients_connect() {
    let remote = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp(remote.local_addr().unwrap().port());
    let mut bridge = BridgeSettings::new("cloud", vec![address], topics());
    bridge.version = Version::V3_1_1;
    let edge = edge(bridge).await;
    let mut last = None;
    // Fixed header, protocol name and level; CONNACK with return code 1, then 0.
    for (level, code) in [(0x84, 1), (4, 0)] {
        let (mut stream, _) = timeout(SOON, remote.accept()).await.unwrap().unwrap();
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(head[4..], [b'M', b'Q', b'T', b'T', level]);
        stream.write_all(&[0x20, 2, 0, code]).await.unwrap();
        last = Some(stream);
    }
    drop(last);
    // It is remembered.
    let (mut stream, _) = timeout(SOON, remote.accept()).await.unwrap().unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[8], 4);
    edge.shutdown().await;
}
