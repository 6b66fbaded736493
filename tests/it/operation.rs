//! Requests of operators to a running broker.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use mq_broker::{
    Broker, DiskStore, Durability, MemoryStore, Settings, Store,
    store::{Change, Position, Snapshot, StoreError},
};
use mq_client::{Outgoing, QoS, ReasonCode, Reconnect};
use mq_testkit::{SCHEMES, SlowStore, TestBroker, ask, refused};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    sync::{Notify, watch},
    time::timeout,
};

async fn get(at: SocketAddr, page: &str) -> (u16, String) {
    let stream = TcpStream::connect(at).await.unwrap();
    ask(stream, &format!("GET {page}"), "").await
}

/// Returns the value of a metric with these labels.
fn value(metrics: &str, name: &str, labels: &str) -> u64 {
    let mut lines = metrics.lines();
    let line = lines.find(|line| line.starts_with(name) && line.contains(labels));
    let line = line.unwrap_or_else(|| panic!("no {name} of {labels} in\n{metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_for_each_listener() {
    let broker = TestBroker::start_with(|settings| {
        settings.admin.http = Some("127.0.0.1:0".parse().unwrap());
    })
    .await;
    let at = broker.broker().admin_address().unwrap();
    let mut clients = Vec::new();
    for scheme in SCHEMES {
        let client = broker.client(scheme, &scheme.to_string()).build().await;
        let client = client.unwrap();
        client
            .publish("t", "12345", QoS::AtLeastOnce)
            .await
            .unwrap();
        clients.push(client);
    }
    let (status, metrics) = get(at, "/metrics").await;
    assert_eq!(status, 200);
    for scheme in SCHEMES {
        let labels = format!("transport=\"{scheme}\"");
        assert_eq!(value(&metrics, "mqbroker_connections{", &labels), 1);
        let accepted = value(&metrics, "mqbroker_listener_accepted_total{", &labels);
        assert_eq!(accepted, 1);
    }
    assert_eq!(value(&metrics, "mqbroker_messages_received_total", ""), 5);
    assert_eq!(value(&metrics, "mqbroker_sessions", ""), 5);
    for client in clients {
        client.disconnect().await.unwrap();
    }
    while broker.broker().metrics().connections.get() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (_, metrics) = get(at, "/metrics").await;
    for scheme in SCHEMES {
        let labels = format!("transport=\"{scheme}\"");
        let received = value(&metrics, "mqbroker_listener_received_bytes_total{", &labels);
        assert!((30..300).contains(&received), "{scheme}: {received}");
        let samples = value(&metrics, "mqbroker_rtt_seconds_count{", &labels);
        assert_eq!(samples, 1, "{scheme}");
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_valid_requests_are_answered() {
    let broker = TestBroker::start_with(|settings| {
        settings.admin.http = Some("127.0.0.1:0".parse().unwrap());
    })
    .await;
    let at = broker.broker().admin_address().unwrap();
    assert_eq!(get(at, "/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(get(at, "/readyz").await, (200, "ready\n".to_owned()));
    // `get` asks a host by the name of x.
    assert_eq!(get(at, "/").await.0, 421, "the page is not for everybody");
    let stream = TcpStream::connect(at).await.unwrap();
    assert_eq!(ask(stream, "POST /backup", "/tmp/x").await.0, 405);
    broker.shutdown().await;
    assert!(TcpStream::connect(at).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_hold_up_no_operator() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let store = DiskStore::open(&file("store"), Durability::Always).unwrap();
    let socket = file("admin.sock");
    let broker = TestBroker::start_with(|settings| {
        settings.admin.http = Some("127.0.0.1:0".parse().unwrap());
        settings.admin.socket = Some(socket.clone());
        settings.store = Some(Arc::new(store).into());
    })
    .await;
    let at = broker.broker().admin_address().unwrap();
    let mut silent = Vec::new();
    for number in 0..100 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(b"GET /metrics HTT").await.unwrap();
        }
        silent.push(stream);
    }
    let within = async |asked: &mut (dyn Future<Output = u16> + Unpin)| {
        let answered = tokio::time::timeout(Duration::from_secs(5), asked).await;
        answered.expect("the silent ones should not be waited for")
    };
    for page in ["/healthz", "/readyz", "/metrics"] {
        let status = within(&mut Box::pin(async { get(at, page).await.0 })).await;
        assert_eq!(status, 200, "{page}");
    }
    let copy = file("copy");
    let back_up = async {
        let stream = UnixStream::connect(&socket).await.unwrap();
        ask(stream, "POST /backup", copy.to_str().unwrap()).await.0
    };
    assert_eq!(within(&mut Box::pin(back_up)).await, 200);
    // They are closed by and by, without more connections coming.
    for mut stream in silent {
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        let ended = tokio::time::timeout(Duration::from_secs(40), ended).await;
        // A reset is an end as well.
        let _ = ended.expect("its time is over").is_ok();
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_whose_store_has_failed_is_neither_ready_nor_healthy() {
    let broker = TestBroker::start_with(|settings| {
        settings.admin.http = Some("127.0.0.1:0".parse().unwrap());
        settings.store = Some(Arc::new(SlowStore::default().failing_at(1)).into());
    })
    .await;
    let at = broker.broker().admin_address().unwrap();
    assert_eq!(get(at, "/healthz").await.0, 200);
    let kept = broker
        .client(SCHEMES[0], "c")
        .session_expiry(Duration::from_mins(1))
        .reconnect(Reconnect::never());
    assert_eq!(refused(kept).await, ReasonCode::ServerUnavailable);
    let failed = broker.broker().store_failed();
    tokio::time::timeout(Duration::from_secs(20), failed)
        .await
        .unwrap();
    let said = (503, "the store has failed\n".to_owned());
    assert_eq!(get(at, "/healthz").await, said);
    assert_eq!(get(at, "/readyz").await, said);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_broker_goes_on_from_a_backup_of_a_running_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let store = DiskStore::open(&file("store"), Durability::Always).unwrap();
    let socket = file("admin.sock");
    // One that an earlier broker left.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let broker = TestBroker::start_with(|settings| {
        settings.store = Some(Arc::new(store).into());
        settings.admin.socket = Some(socket.clone());
    })
    .await;
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let client = broker.client(SCHEMES[0], "c").build().await.unwrap();
    let retained = |text: &'static str| {
        Outgoing::to("t", text)
            .unwrap()
            .qos(QoS::AtLeastOnce)
            .retain(true)
    };
    let mut receipt = client.send(retained("before")).await.unwrap();
    receipt.acknowledged().await.unwrap();
    let back_up = async |to: &Path| {
        let stream = UnixStream::connect(&socket).await.unwrap();
        ask(stream, "POST /backup", to.to_str().unwrap()).await
    };
    let copy = file("copy");
    assert_eq!(back_up(&copy).await.0, 200);
    let (status, problem) = back_up(&copy).await;
    assert_eq!(status, 500);
    assert!(problem.contains("file exists already"), "{problem}");
    assert_eq!(back_up(Path::new("relative")).await.0, 400);
    let mut receipt = client.send(retained("after")).await.unwrap();
    receipt.acknowledged().await.unwrap();
    broker.shutdown().await;
    assert!(!socket.exists());

    let kept = DiskStore::open(&copy, Durability::Always).unwrap();
    let broker =
        TestBroker::start_with(|settings| settings.store = Some(Arc::new(kept).into())).await;
    let client = broker.client(SCHEMES[0], "c").build().await.unwrap();
    let mut messages = client.subscribe("t", QoS::AtMostOnce).await.unwrap();
    assert_eq!(messages.recv().await.unwrap().payload, "before");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_broker_publishes_to_its_own_topics() {
    let broker = TestBroker::start_with(|settings| {
        settings.sys_interval = Some(Duration::from_millis(50));
    })
    .await;
    let client = broker.client(SCHEMES[0], "c").build().await.unwrap();
    let forged = client
        .publish("$SYS/broker/version", "x", QoS::AtLeastOnce)
        .await;
    assert!(forged.unwrap_err().to_string().contains("not authorized"));
    let mut all = client.subscribe("$SYS/#", QoS::AtMostOnce).await.unwrap();
    let (mut version, mut connected) = (false, false);
    while !(version && connected) {
        let message = all.recv().await.unwrap();
        let text = std::str::from_utf8(&message.payload).unwrap();
        match &*message.topic {
            "$SYS/broker/version" => version = text.starts_with("mqbroker version "),
            "$SYS/broker/clients/connected" => connected = text == "1",
            _ => {}
        }
    }
    broker.shutdown().await;
}

/// Reads the page's table: names as the broker declares them, and their types.
fn documented() -> BTreeMap<String, String> {
    let page = include_str!("../../docs/reference/operation.md");
    let (_, section) = page.split_once("\n### Every metric\n").unwrap();
    let rows = section.split("\n## ").next().unwrap().lines();
    let rows = rows.filter_map(|line| line.strip_prefix("| `mqbroker_"));
    let row = |row: &str| {
        let mut cells = row.split(" | ");
        let name = cells.next().unwrap().trim_end_matches('`');
        let name = name.strip_suffix("_total").unwrap_or(name);
        (format!("mqbroker_{name}"), cells.next().unwrap().to_owned())
    };
    rows.map(row).collect()
}

#[tokio::test]
async fn the_reference_has_every_metric() {
    let broker = TestBroker::start_with(|settings| {
        settings.store = Some(Arc::new(MemoryStore::default()).into());
        settings.admin.http = Some("127.0.0.1:0".parse().unwrap());
    })
    .await;
    let at = broker.broker().admin_address().unwrap();
    let (_, metrics) = get(at, "/metrics").await;
    let types = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let types = types.map(|line| line.split_once(' ').unwrap());
    let types = types.map(|(name, of)| (name.strip_suffix("_total").unwrap_or(name), of));
    let types = types.map(|(name, kind)| (name.to_owned(), kind.to_owned()));
    assert_eq!(documented(), types.collect());
}

/// A store whose backup lasts until the test ends it.
#[derive(Debug)]
struct LastingBackup {
    kept: MemoryStore,
    began: Notify,
    end: Mutex<mpsc::Receiver<()>>,
}

impl Store for LastingBackup {
    fn load(&self) -> Result<Snapshot, StoreError> {
        self.kept.load()
    }

    fn record(&self, changes: Vec<Change>) -> Position {
        self.kept.record(changes)
    }

    fn settled(&self) -> watch::Receiver<Position> {
        self.kept.settled()
    }

    fn back_up(&self, _: &Path) -> Result<(), StoreError> {
        self.began.notify_one();
        let ended = self.end.lock().unwrap().recv_timeout(SOON);
        ended.map_err(|_| StoreError::Failed)
    }
}

/// Bound of the waits of a test in real time.
const SOON: Duration = Duration::from_secs(20);

/// The clock is put forward while the backup lasts.
#[tokio::test]
async fn a_backup_is_answered_however_long_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    let (end, ended) = mpsc::channel();
    let store = Arc::new(LastingBackup {
        kept: MemoryStore::new(),
        began: Notify::new(),
        end: Mutex::new(ended),
    });
    let mut settings = Settings::new(vec!["mem://lasting-backup".parse().unwrap()]);
    settings.admin.socket = Some(socket.clone());
    settings.store = Some(Arc::clone(&store).into());
    let broker = Broker::start(settings).await.unwrap();
    let stream = UnixStream::connect(&socket).await.unwrap();
    let asking = tokio::spawn(async move { ask(stream, "POST /backup", "/copy").await });
    timeout(SOON, store.began.notified()).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(30)).await;
    tokio::time::resume();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    end.send(()).unwrap();
    let (status, answer) = timeout(SOON, asking).await.unwrap().unwrap();
    assert_eq!((status, answer.as_str()), (200, "/copy\n"));
    broker.shutdown().await;
}
