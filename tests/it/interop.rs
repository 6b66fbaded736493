//! Other implementations: rumqttc and mosquitto's clients against our broker, our client against
//! rumqttd and mosquitto.

use std::{
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use mq_client::{Client, Error, QoS, Reconnect, Version};
use mq_testkit::{Running, Scheme, TestBroker, free_port, listens, program};
use tokio::{sync::watch, time::timeout};

const SOON: Duration = Duration::from_secs(20);

/// Makes TLS for rumqttc: a client configuration that trusts the broker's certificate.
fn tls(broker: &TestBroker) -> Arc<rustls::ClientConfig> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};

    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(broker.certificate()).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// Checks rumqttc with MQTT 3.1.1: a message at each QoS comes back to the client that sent it.
async fn rumqttc_v4(broker: &TestBroker, scheme: Scheme) {
    use rumqttc::{AsyncClient, Event, MqttOptions, Packet, QoS, TlsConfiguration, Transport};

    let address = broker.address(scheme);
    let mut options = MqttOptions::new("rumqttc-v4", address.host.clone(), address.port);
    if scheme == Scheme::Tls {
        options.set_transport(Transport::Tls(TlsConfiguration::Rustls(tls(broker))));
    }
    let (client, mut events) = AsyncClient::new(options, 10);
    client.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        client.publish("t/1", qos, false, "x").await.unwrap();
    }
    let mut received = Vec::new();
    timeout(SOON, async {
        while received.len() < 3 {
            if let Event::Incoming(Packet::Publish(publish)) = events.poll().await.unwrap() {
                assert_eq!(publish.payload, "x");
                received.push(publish.qos as u8);
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(received, [0, 1, 2]);
}

/// Exchanges messages with rumqttc over MQTT 5.0.
async fn rumqttc_v5(broker: &TestBroker, scheme: Scheme) {
    use rumqttc::{
        TlsConfiguration, Transport,
        v5::{AsyncClient, Event, Incoming, MqttOptions, mqttbytes::QoS},
    };

    let address = broker.address(scheme);
    let mut options = MqttOptions::new("rumqttc-v5", address.host.clone(), address.port);
    if scheme == Scheme::Tls {
        options.set_transport(Transport::Tls(TlsConfiguration::Rustls(tls(broker))));
    }
    let (client, mut events) = AsyncClient::new(options, 10);
    client.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        client.publish("t/1", qos, false, "x").await.unwrap();
    }
    let mut received = Vec::new();
    timeout(SOON, async {
        while received.len() < 3 {
            if let Event::Incoming(Incoming::Publish(publish)) = events.poll().await.unwrap() {
                assert_eq!(publish.payload, "x");
                received.push(publish.qos as u8);
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(received, [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rumqttc_works_with_our_broker_over_tcp_and_tls() {
    let broker = TestBroker::start().await;
    for scheme in [Scheme::Tcp, Scheme::Tls] {
        rumqttc_v4(&broker, scheme).await;
        rumqttc_v5(&broker, scheme).await;
    }
    broker.shutdown().await;
}

/// Checks our client at another broker: a message at each QoS comes back.
async fn our_client(url: &str, version: Version, keeps_qos: bool) {
    let client = Client::builder(url)
        .unwrap()
        .version(version)
        .client_id("ours")
        .unwrap()
        .build()
        .await
        .unwrap();
    let mut messages = client.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        timeout(SOON, client.publish("t/1", "x", qos))
            .await
            .expect("it should be acknowledged")
            .unwrap();
        let incoming = timeout(SOON, messages.recv()).await.unwrap().unwrap();
        assert_eq!(incoming.payload, "x");
        if keeps_qos {
            assert_eq!(incoming.qos, qos);
        }
    }
    client.unsubscribe("t/#").await.unwrap();
    client.disconnect().await.unwrap();
}

fn tcp(port: u16) -> String {
    format!("mqtt://127.0.0.1:{port}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_works_with_rumqttd() {
    let (v4, v5) = (free_port(), free_port());
    let server = |port: u16| {
        serde_json::json!({"1": {
            "name": "test",
            "listen": format!("127.0.0.1:{port}"),
            "next_connection_delay_ms": 1,
            "connections": {
                "connection_timeout_ms": 60000,
                "max_payload_size": 20480,
                "max_inflight_count": 100,
            },
        }})
    };
    let config = serde_json::json!({
        "id": 0,
        "router": {
            "max_connections": 100,
            "max_outgoing_packet_count": 200,
            "max_segment_size": 1_048_576,
            "max_segment_count": 10,
        },
        "v4": server(v4),
        "v5": server(v5),
    });
    let config: rumqttd::Config = serde_json::from_value(config).unwrap();
    // It has no way to be stopped; its thread ends with this test program.
    std::thread::spawn(move || {
        let ended = rumqttd::Broker::new(config).start();
        println!("rumqttd ended: {}", ended.is_ok());
    });
    listens(v4).await;
    // It delivers at the subscription's QoS, whatever the message was published at.
    our_client(&tcp(v4), Version::V3_1_1, false).await;
    listens(v5).await;
    our_client(&tcp(v5), Version::V5, false).await;
}

/// Connects a client that answers `square` as long as it lives, and one that may ask; also returns the number of
/// answers that were acknowledged.
async fn responder_and_requester(url: &str) -> (Client, Client, watch::Receiver<u32>) {
    let connect = async |id: &str| {
        let reconnect = Reconnect {
            initial: Duration::from_millis(20),
            max: Duration::from_millis(100),
            ..Reconnect::default()
        };
        let builder = Client::builder(url).unwrap().reconnect(reconnect);
        builder.client_id(id).unwrap().build().await.unwrap()
    };
    let (responder, requester) = (connect("responder").await, connect("requester").await);
    let questions = responder.subscribe("square", QoS::AtLeastOnce).await;
    let mut questions = questions.unwrap();
    let answering = responder.clone();
    let (count, acknowledged) = watch::channel(0);
    tokio::spawn(async move {
        while let Some(question) = questions.recv().await {
            let n: u64 = question.text().unwrap().parse().unwrap();
            let answer = answering.respond(&question, (n * n).to_string());
            answer.await.unwrap().acknowledged().await.unwrap();
            count.send_modify(|count| *count += 1);
        }
    });
    (responder, requester, acknowledged)
}

/// Asks until a responder is there to answer.
async fn ask(requester: &Client) -> String {
    let answer = async {
        loop {
            match requester.request("square", "12").await {
                Err(Error::NoResponder) => tokio::time::sleep(Duration::from_millis(20)).await,
                answer => break answer.unwrap().text().unwrap().to_owned(),
            }
        }
    };
    timeout(SOON, answer).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_works_with_mosquitto() {
    if program(&["mosquitto"]).is_none() {
        return;
    }
    let (plain, websocket) = (free_port(), free_port());
    let config = format!(
        "allow_anonymous true\nlistener {plain} 127.0.0.1\n\
         listener {websocket} 127.0.0.1\nprotocol websockets\n"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config).unwrap();
    let _mosquitto = Running(
        Command::new("mosquitto")
            .arg("-c")
            .arg(file.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    listens(plain).await;
    listens(websocket).await;
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        our_client(&tcp(plain), version, true).await;
        let url = format!("ws://127.0.0.1:{websocket}/mqtt");
        our_client(&url, version, true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_answered_through_mosquitto_also_after_its_restart() {
    if program(&["mosquitto"]).is_none() {
        return;
    }
    let port = free_port();
    let start = || {
        let mut command = Command::new("mosquitto");
        command
            .args(["-p", &port.to_string()])
            .stderr(Stdio::null());
        Running(command.stdout(Stdio::null()).spawn().unwrap())
    };
    let mosquitto = start();
    listens(port).await;
    let (responder, requester, mut acknowledged) = responder_and_requester(&tcp(port)).await;
    assert_eq!(ask(&requester).await, "144");
    // An answer without its acknowledgement is sent again after the restart, to nobody's question.
    let first = timeout(SOON, acknowledged.wait_for(|&count| count == 1)).await;
    first.unwrap().unwrap();
    drop(mosquitto);
    let _mosquitto = start();
    // Its sessions are gone.
    assert_eq!(ask(&requester).await, "144");
    assert_eq!(requester.unmatched_responses(), 0);
    responder.disconnect().await.unwrap();
    let nobody = timeout(SOON, requester.request("square", "12")).await;
    let error = nobody.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoResponder), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mosquittos_requester_is_answered() {
    if program(&["mosquitto_rr"]).is_none() {
        return;
    }
    let broker = TestBroker::start().await;
    let address = broker.address(Scheme::Tcp);
    let (responder, ..) = responder_and_requester(&address.to_string()).await;
    let mut requester = Command::new("mosquitto_rr");
    requester
        .args([
            "-V",
            "5",
            "-h",
            "127.0.0.1",
            "-p",
            &address.port.to_string(),
        ])
        .args([
            "-W", "20", "-q", "1", "-t", "square", "-e", "back", "-m", "12",
        ]);
    let output = tokio::task::block_in_place(|| requester.output()).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "144\n");
    responder.disconnect().await.unwrap();
    broker.shutdown().await;
}

const RULES: &str = "\
topic write news/#
topic read plant/#
topic deny news/internal/#
user alice
topic write plant/+/command
topic read plant/#
topic deny plant/secret
topic readwrite topic with spaces
user bob
topic #
topic deny $SYS/#
user eve
topic readwrite home/+/keys2
user root
topic #
pattern readwrite home/%u/#
pattern write dev-%c/status
pattern deny home/eve/keys
pattern readwrite own/%c
pattern read fence
";

const TOPICS: [&str; 17] = [
    "news/a",
    "news/internal/a",
    "plant",
    "plant/1",
    "plant/1/command",
    "plant/secret",
    "home",
    "home/alice",
    "home/alice/x",
    "home/eve/keys",
    "home/eve/keys2",
    "dev-c/status",
    "dev-d/status",
    "own/c",
    "own/d",
    "topic with spaces",
    "x//y",
];

/// Returns the topics to which a user may publish, and the messages that it gets of its own and of a publisher with all
/// rights.
async fn rights(url: &str, user: &str) -> (Vec<bool>, Vec<String>) {
    let client = |name: &str, id| {
        let builder = Client::builder(url).unwrap().client_id(id).unwrap();
        match name {
            "" => builder,
            name => builder.credentials(name, "pencil").unwrap(),
        }
    };
    let (root, user) = (client("root", "r"), client(user, "c"));
    let (root, user) = (root.build().await.unwrap(), user.build().await.unwrap());
    let mut messages = user.subscribe("#", QoS::AtLeastOnce).await.unwrap();
    let mut may_publish = Vec::new();
    for topic in TOPICS {
        let sent = user.publish(topic, "own", QoS::AtLeastOnce).await;
        may_publish.push(sent.is_ok());
        root.publish(topic, "root", QoS::AtLeastOnce).await.unwrap();
    }
    root.publish("fence", "", QoS::AtLeastOnce).await.unwrap();
    let mut received = Vec::new();
    loop {
        let message = timeout(SOON, messages.recv()).await.unwrap().unwrap();
        if &*message.topic == "fence" {
            return (may_publish, received);
        }
        let payload = String::from_utf8_lossy(&message.payload);
        received.push(format!("{} {payload}", message.topic));
    }
}

/// Except names with `/`, `+` and `#`, which mosquitto treats otherwise; see `docs/guide/access.md`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_files_mean_what_they_mean_to_mosquitto() {
    const HASH: &str = "$7$101$FZZ0UNgSFP8t2lxC$HnZt7dEpxtgrXAUGYtFCa+ZgSH3DaGu9eqP+6sRF1GFeIOcND243Nblmv4oxdSdxNUG+InsvCCeZY658jWztvw==";
    if program(&["mosquitto"]).is_none() {
        return;
    }
    let users = ["", "alice", "bob", "eve", "other"];
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let passwords = users[1..].iter().chain(&["root"]);
    let passwords: Vec<_> = passwords.map(|user| format!("{user}:{HASH}\n")).collect();
    std::fs::write(file("passwords"), passwords.concat()).unwrap();
    std::fs::write(file("acl"), RULES).unwrap();
    let port = free_port();
    let config = format!(
        "user root\nallow_anonymous true\nlistener {port} 127.0.0.1\npassword_file {}\n\
         acl_file {}\n",
        file("passwords").display(),
        file("acl").display()
    );
    std::fs::write(file("config"), config).unwrap();
    let _mosquitto = Running(
        Command::new("mosquitto")
            .arg("-c")
            .arg(file("config"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    listens(port).await;
    let broker = TestBroker::start_with(|settings| {
        settings.access = mq_broker::auth::Access::Files(mq_broker::auth::AccessFiles {
            password_file: Some(file("passwords")),
            acl_file: Some(file("acl")),
            allow_anonymous: true,
            ..mq_broker::auth::AccessFiles::default()
        });
    })
    .await;
    let ours = broker.address(Scheme::Tcp).to_string();
    for user in users {
        let (theirs, ours) = (rights(&tcp(port), user).await, rights(&ours, user).await);
        assert!(ours.0.contains(&true) && ours.0.contains(&false) || user == "bob");
        assert_eq!(ours, theirs, "{user:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mosquittos_clients_work_with_our_broker() {
    if program(&["mosquitto_pub"]).is_none() || program(&["mosquitto_sub"]).is_none() {
        return;
    }
    let broker = TestBroker::start().await;
    for scheme in [Scheme::Tcp, Scheme::Tls] {
        for version in ["31", "311", "5"] {
            let address = broker.address(scheme);
            let ca = broker.certificate().to_owned();
            let command = move |program: &str| {
                let mut command = Command::new(program);
                command.args(["-h", "127.0.0.1", "-V", version, "-i", program]);
                command.arg("-p").arg(address.port.to_string());
                if scheme == Scheme::Tls {
                    command.arg("--cafile").arg(&ca);
                }
                command
            };
            let publish = |qos: &str| {
                let status = command("mosquitto_pub")
                    .args(["-q", qos, "-t", "t/1", "-m", "x", "-r"])
                    .status()
                    .unwrap();
                assert!(status.success());
            };
            // Retained, so that the subscriber may come later.
            publish("1");
            let subscriber = command("mosquitto_sub")
                .args([
                    "-q",
                    "2",
                    "-t",
                    "t/#",
                    "-C",
                    "4",
                    "-W",
                    "20",
                    "-F",
                    "%t %q %r %p",
                ])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let metrics = broker.broker().metrics();
            let subscriptions = async |count| {
                while metrics.subscriptions.get() != count {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            timeout(SOON, subscriptions(1)).await.unwrap();
            tokio::task::block_in_place(|| ["0", "1", "2"].map(publish));
            let output = tokio::task::block_in_place(|| subscriber.wait_with_output()).unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let expected = "t/1 1 1 x\nt/1 0 0 x\nt/1 1 0 x\nt/1 2 0 x\n";
            assert_eq!(text, expected, "{scheme} {version}");
            // The next one waits for its own subscription, not for what is left of this.
            timeout(SOON, subscriptions(0)).await.unwrap();
        }
    }
    broker.shutdown().await;
}
