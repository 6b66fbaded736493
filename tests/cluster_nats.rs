//! A cluster on NATS `JetStream`: three servers that sync each write, and nodes that clients reach over TCP.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, process::Command, sync::Arc, time::Duration};

use bytes::Bytes;
use mq_broker::{
    Broker, Settings,
    cluster::{
        ClusterSettings, Engine as _, Key, Kind, Lasts, NatsEngine, NatsSettings, Put, Watched,
    },
};
use mq_client::{Client, Outgoing, QoS, Subscription};
use mq_testkit::{Running, free_port};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_secs(30);

/// Three servers, which end with it.
struct Servers {
    urls: Vec<String>,
    _running: Vec<Running>,
    _folder: TempDir,
}

impl Servers {
    /// `None` where there is no nats-server.
    fn start() -> Option<Self> {
        let program = mq_testkit::program(&["nats-server"])?;
        let folder = tempfile::tempdir().unwrap();
        let ports: Vec<_> = (0..3).map(|_| (free_port(), free_port())).collect();
        let routes = ports
            .iter()
            .map(|(_, routes)| format!("nats://127.0.0.1:{routes}"));
        let routes = routes.collect::<Vec<_>>().join(", ");
        let running = ports.iter().enumerate().map(|(n, (clients, others))| {
            let data = folder.path().join(n.to_string());
            let data = data.display();
            let config = format!(
                "server_name: n{n}\nlisten: 127.0.0.1:{clients}\nmax_payload: 8MB\n\
                 jetstream {{ store_dir: \"{data}\", sync_interval: always }}\n\
                 cluster {{ name: test, listen: 127.0.0.1:{others}, routes: [{routes}] }}\n"
            );
            let path = folder.path().join(format!("{n}.conf"));
            fs::write(&path, config).unwrap();
            let log = folder.path().join(format!("{n}.log"));
            let mut command = Command::new(&program);
            command.arg("-c").arg(path).arg("-l").arg(log);
            Running(command.spawn().unwrap())
        });
        let running = running.collect();
        let urls = ports
            .iter()
            .map(|(clients, _)| format!("nats://127.0.0.1:{clients}"));
        Some(Self {
            urls: urls.collect(),
            _running: running,
            _folder: folder,
        })
    }

    /// A node, once the servers have agreed on who leads.
    async fn node(&self, name: &str) -> Broker {
        let nats = NatsSettings::new("test", self.urls.clone());
        let connected = async {
            loop {
                match NatsEngine::connect(&nats, name).await {
                    Ok(engine) => break engine,
                    Err(_) => sleep(Duration::from_millis(200)).await,
                }
            }
        };
        let engine = timeout(SOON, connected).await.unwrap();
        let mut settings = Settings::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
        settings.cluster = Some(ClusterSettings::new(name, Arc::new(engine)));
        timeout(SOON, Broker::start(settings))
            .await
            .unwrap()
            .unwrap()
    }
}

fn url(broker: &Broker) -> String {
    broker.addresses()[0].to_string()
}

async fn next(messages: &mut Subscription) -> String {
    let incoming = timeout(SOON, messages.recv()).await.unwrap().unwrap();
    incoming.text().unwrap().to_owned()
}

async fn send(client: &Client, text: &str, qos: QoS) {
    let message = Outgoing::to("t/1", text.to_owned()).unwrap().qos(qos);
    let mut receipt = client.send(message).await.unwrap();
    timeout(SOON, receipt.acknowledged())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn messages_reach_all_nodes_and_a_session_outlives_its_node() {
    let Some(servers) = Servers::start() else {
        return;
    };
    let (a, b) = (servers.node("a").await, servers.node("b").await);
    let one = mq_testkit::kept(&url(&a), "one").build().await.unwrap();
    let two = mq_testkit::kept(&url(&b), "two").build().await.unwrap();
    let mut there = two.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for n in 0..20 {
            let text = format!("{qos:?} {n}");
            send(&one, &text, qos).await;
            assert_eq!(next(&mut there).await, text);
        }
    }
    // It goes without a word.
    drop(b);
    drop((two, there));
    for n in 0..20 {
        send(&one, &n.to_string(), QoS::ExactlyOnce).await;
    }
    let two = mq_testkit::kept(&url(&a), "two");
    let mut messages = two.messages();
    let two = timeout(SOON, two.build()).await.unwrap().unwrap();
    for n in 0..20 {
        assert_eq!(next(&mut messages).await, n.to_string());
    }
    drop(two);
    a.shutdown().await;
}

#[tokio::test]
async fn values_have_names_of_any_length() {
    let Some(servers) = Servers::start() else {
        return;
    };
    let nats = NatsSettings::new("test", servers.urls.clone());
    let connecting = async {
        loop {
            match NatsEngine::connect(&nats, "a").await {
                Ok(engine) => break engine,
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    };
    let engine = timeout(SOON, connecting).await.unwrap();
    let names = ["t", "ä/b c", &"long/".repeat(13_000)];
    for (n, name) in names.iter().enumerate() {
        let key = Key {
            kind: Kind::Retained,
            name: (*name).to_owned(),
        };
        let bytes = Bytes::from(n.to_string());
        let put = engine.put(key.clone(), 0, bytes.clone(), Lasts::AWhile);
        assert!(matches!(put.await.unwrap(), Put::Done(_)), "{n}");
        let again = engine.put(key.clone(), 0, bytes.clone(), Lasts::Always);
        assert_eq!(again.await.unwrap(), Put::Conflict, "{n}");
        assert_eq!(engine.value(key).await.unwrap().unwrap().bytes, bytes);
    }
    let mut watched = engine.watch(Kind::Retained);
    let mut came = Vec::new();
    while let Some(Watched::Value(name, value)) = timeout(SOON, watched.recv()).await.unwrap() {
        came.push((name, value.bytes));
    }
    let all = names.iter().enumerate();
    let all = all.map(|(n, name)| ((*name).to_owned(), Bytes::from(n.to_string())));
    assert_eq!(came, all.collect::<Vec<_>>());
}
