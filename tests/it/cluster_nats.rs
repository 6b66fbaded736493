//! A cluster on NATS `JetStream`: three servers that sync each write, and nodes that clients reach over TCP.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::PathBuf,
    pin::pin,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use mq_broker::{
    Broker, Settings,
    cluster::{
        ClusterSettings, Engine as _, EngineError, Expiry, Key, KeyKind, NatsEngine, NatsSettings,
        PutOutcome,
    },
};
use mq_client::{Client, Outgoing, QoS, Subscription};
use mq_testkit::{Running, free_port};
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

const SOON: Duration = Duration::from_mins(2);

/// Three servers, which end with it.
struct Servers {
    urls: Vec<String>,
    program: PathBuf,
    running: Vec<Option<Running>>,
    folder: TempDir,
}

impl Servers {
    /// Starts three servers; `None` where there is no nats-server.
    fn start() -> Option<Self> {
        let program = mq_testkit::program(&["nats-server"])?;
        let folder = tempfile::tempdir().unwrap();
        let ports: Vec<_> = (0..3).map(|_| (free_port(), free_port())).collect();
        let routes = ports
            .iter()
            .map(|(_, routes)| format!("nats://127.0.0.1:{routes}"));
        let routes = routes.collect::<Vec<_>>().join(", ");
        for (n, (clients, others)) in ports.iter().enumerate() {
            let data = folder.path().join(n.to_string());
            let data = data.display();
            let config = format!(
                "server_name: n{n}\nlisten: 127.0.0.1:{clients}\nmax_payload: 8MB\n\
                 jetstream {{ store_dir: \"{data}\", sync_interval: always }}\n\
                 cluster {{ name: test, listen: 127.0.0.1:{others}, routes: [{routes}] }}\n"
            );
            fs::write(folder.path().join(format!("{n}.conf")), config).unwrap();
        }
        let urls = ports
            .iter()
            .map(|(clients, _)| format!("nats://127.0.0.1:{clients}"));
        let mut servers = Self {
            urls: urls.collect(),
            program,
            running: ports.iter().map(|_| None).collect(),
            folder,
        };
        for n in 0..ports.len() {
            servers.begin(n);
        }
        Some(servers)
    }

    fn begin(&mut self, n: usize) {
        let path = |kind| self.folder.path().join(format!("{n}.{kind}"));
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(path("conf"));
        command.arg("-l").arg(path("log"));
        self.running[n] = Some(Running(command.spawn().unwrap()));
    }

    fn kill(&mut self, n: usize) {
        self.running[n] = None;
    }

    /// Connects a node to the servers, once they have agreed on who leads.
    async fn engine(&self, name: &str) -> Arc<NatsEngine> {
        let nats = NatsSettings::new("test", self.urls.clone());
        let connected = async {
            loop {
                match NatsEngine::connect(&nats, name).await {
                    Ok(engine) => break engine,
                    Err(_) => sleep(Duration::from_millis(200)).await,
                }
            }
        };
        Arc::new(timeout(SOON, Box::pin(connected)).await.unwrap())
    }

    async fn node(&self, name: &str) -> Broker {
        let mut settings = Settings::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
        settings.cluster = Some(ClusterSettings::new(name, self.engine(name).await));
        let started = timeout(SOON, Box::pin(Broker::start(settings))).await;
        started.unwrap().unwrap()
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

/// Waits until so many servers tell their time, which is right.
async fn until_told(engine: &NatsEngine, servers: usize) {
    let told = async {
        loop {
            if let Ok(times) = engine.server_times().await
                && times.len() == servers
            {
                return times;
            }
        }
    };
    let mut times = timeout(SOON, told).await.unwrap();
    for told in &times {
        let right = SystemTime::now() - told.at.elapsed();
        let early = right.duration_since(told.time).unwrap_or_default();
        let late = told.time.duration_since(right).unwrap_or_default();
        assert!(early.max(late) < Duration::from_secs(1), "{told:?}");
    }
    times.sort_by(|one, other| one.server.cmp(&other.server));
    times.dedup_by(|one, other| one.server == other.server);
    assert_eq!(times.len(), servers, "{times:?}");
}

#[tokio::test]
async fn most_of_the_servers_tell_their_time_or_it_is_not_known() {
    let Some(mut servers) = Servers::start() else {
        return;
    };
    let engine = servers.engine("a").await;
    until_told(&engine, 3).await;
    servers.kill(0);
    until_told(&engine, 2).await;
    servers.kill(1);
    let unknown = async { while engine.server_times().await.is_ok() {} };
    timeout(SOON, unknown).await.unwrap();
}

/// Asks until the servers answer: a new bucket may have no leader yet, servers come and go, and a busy machine may be slower than
/// a request waits.
async fn answered<T>(ask: impl AsyncFn() -> Result<T, EngineError>) -> T {
    let asking = async {
        loop {
            match ask().await {
                Err(EngineError::Unavailable(_) | EngineError::NoLeader(_)) => {
                    sleep(Duration::from_millis(50)).await;
                }
                answer => return answer.unwrap(),
            }
        }
    };
    timeout(SOON, asking).await.unwrap()
}

#[tokio::test]
async fn values_have_names_of_any_length() {
    let Some(servers) = Servers::start() else {
        return;
    };
    let engine = servers.engine("a").await;
    let names = ["t", "ä/b c", &"long/".repeat(13_000)];
    for (n, name) in names.iter().enumerate() {
        let key = Key {
            kind: KeyKind::Retained,
            name: (*name).to_owned(),
        };
        let bytes = Bytes::from(n.to_string());
        let put = |expiry| engine.put(key.clone(), 0, bytes.clone(), expiry);
        // A conflict is the answer to one that comes after another without an answer. What is stored tells.
        answered(async || put(Expiry::AfterTtl).await).await;
        let again = answered(async || put(Expiry::Never).await).await;
        assert_eq!(again, PutOutcome::Conflict, "{n}");
        let value = answered(async || engine.get(key.clone()).await).await;
        assert_eq!(value.unwrap().bytes, bytes);
    }
    let mut came = answered(async || engine.values(KeyKind::Retained).await).await;
    came.sort_by_key(|(_, value)| value.version);
    let came = came.into_iter().map(|(name, value)| (name, value.bytes));
    let all = names.iter().enumerate();
    let all = all.map(|(n, name)| ((*name).to_owned(), Bytes::from(n.to_string())));
    assert!(came.eq(all));
}

/// Puts a value, whatever there was, and returns its version.
async fn overwrite(engine: &NatsEngine, name: String) -> u64 {
    let key = Key {
        kind: KeyKind::Session,
        name,
    };
    loop {
        let Ok(known) = engine.get(key.clone()).await else {
            continue;
        };
        let known = known.map_or(0, |value| value.version);
        let put = engine.put(key.clone(), known, Bytes::new(), Expiry::Never);
        if let Ok(PutOutcome::Written(version)) = put.await {
            return version;
        }
    }
}

/// The newest version of each of them.
type Known = Arc<Mutex<BTreeMap<String, u64>>>;

/// Has each value overwritten so many times by one of several writers at once.
async fn overwrite_all(engine: &Arc<NatsEngine>, known: &Known, names: Range<u32>, times: usize) {
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let names = names.clone().filter(move |name| name % 8 == writer);
        let (engine, known) = (Arc::clone(engine), Arc::clone(known));
        writers.spawn(async move {
            for _ in 0..times {
                for name in names.clone() {
                    let version = overwrite(&engine, name.to_string()).await;
                    known.lock().unwrap().insert(name.to_string(), version);
                }
            }
        });
    }
    writers.join_all().await;
}

async fn versions(engine: &NatsEngine) -> BTreeMap<String, u64> {
    let all = answered(async || engine.values(KeyKind::Session).await).await;
    let all = all.into_iter();
    all.map(|(name, value)| (name, value.version)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_values_are_read_while_they_change_and_from_a_server_that_was_away() {
    let Some(mut servers) = Servers::start() else {
        return;
    };
    let engine = servers.engine("a").await;
    let known = Known::default();
    let check = async || {
        let before = known.lock().unwrap().clone();
        let came = versions(&engine).await;
        for (name, version) in before {
            let came = came.get(&name);
            assert!(came >= Some(&version), "{name}: {came:?} for {version}");
        }
    };
    overwrite_all(&engine, &known, 0..100, 1).await;
    let mut changes = pin!(overwrite_all(&engine, &known, 0..100, 5));
    loop {
        tokio::select! {
            () = &mut changes => break,
            () = check() => {}
        }
    }
    for n in 0..3 {
        servers.kill(n);
        overwrite_all(&engine, &known, 0..1_000, 1).await;
        servers.begin(n);
        for _ in 0..10 {
            check().await;
        }
    }
}
