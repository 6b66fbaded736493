//! Operators over HTTP: who may ask what, bans, topics by rate, refusals, events; and what an attacker gets.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use mq_broker::{
    BridgeSettings, BridgeTopic, DiskStore, Durability, LogLevels,
    view::{Banned, Query},
};
use mq_client::{Client, QoS, ReasonCode, Reconnect};
use mq_testkit::{SCHEMES, TestBroker, free_port, schema_problems, token_file};
use mq_transport::{Address, Scheme};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Sends a request as it stands, and returns status, head and body.
async fn raw(to: SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let read = tokio::time::timeout(Duration::from_secs(35), read).await;
    read.unwrap().unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

/// A broker with HTTP on loopback, and what to ask it with.
struct Operated {
    broker: TestBroker,
    at: SocketAddr,
    token: String,
    _folder: tempfile::TempDir,
}

impl Operated {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut mq_broker::Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (path, token) = token_file(folder.path());
        let broker = TestBroker::start_with(|settings| {
            settings.admin.http = Some("127.0.0.1:0".parse().unwrap());
            settings.admin.token_file = Some(path);
            settings.admin.hosts = vec!["broker.example".to_owned()];
            settings.admin.open_on_loopback = true;
            change(settings);
        })
        .await;
        let at = broker.broker().admin_address().unwrap();
        Self {
            broker,
            at,
            token,
            _folder: folder,
        }
    }

    /// Sends a request with these headers, of its own host unless they say otherwise.
    async fn ask(&self, line: &str, headers: &[&str], body: &str) -> (u16, String, Value) {
        let host = format!("Host: {}\r\n", self.at);
        let has_host = headers.iter().any(|header| header.starts_with("Host:"));
        let host = if has_host { "" } else { &host };
        let has_any = !headers.is_empty();
        let headers = headers.join("\r\n");
        let headers = headers + if has_any { "\r\n" } else { "" };
        let length = body.len();
        let request =
            format!("{line} HTTP/1.1\r\n{host}{headers}Content-Length: {length}\r\n\r\n{body}");
        let (status, head, body) = raw(self.at, &request).await;
        (
            status,
            head,
            serde_json::from_str(&body).unwrap_or(Value::String(body)),
        )
    }

    async fn with_token(&self, line: &str, body: &str) -> (u16, Value) {
        let header = format!("Authorization: Bearer {}", self.token);
        let (status, _, body) = self.ask(line, &[&header], body).await;
        (status, body)
    }

    async fn client(&self, scheme: Scheme, id: &str) -> Result<Client, mq_client::Error> {
        let client = self.broker.client(scheme, id);
        client.reconnect(Reconnect::never()).build().await
    }
}

/// All that changes something, and all that reads what not every client sees.
const CHANGES: [&str; 5] = [
    "POST /v1/clients/a/kick",
    "POST /v1/bans?client=a&minutes=1",
    "DELETE /v1/bans?client=a",
    "POST /v1/log?filter=trace",
    "PUT /v1/log?filter=trace",
];
const READS: [&str; 13] = [
    "GET /",
    "GET /v1/status",
    "GET /v1/cluster",
    "GET /v1/clients",
    "GET /v1/clients/a",
    "GET /v1/sessions",
    "GET /v1/subscriptions",
    "GET /v1/retained",
    "GET /v1/topics",
    "GET /v1/refusals",
    "GET /v1/bans",
    "GET /v1/log",
    "GET /v1/events",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_nothing_can_be_changed_whatever_an_attacker_sends() {
    let operated = Operated::start().await;
    let client = operated.client(Scheme::Tcp, "a").await.unwrap();
    let wrong_token = format!("Authorization: Bearer {}", "0".repeat(operated.token.len()));
    let halves = [
        format!("Authorization: Bearer {}", &operated.token[..32]),
        format!("Authorization: {}", operated.token),
        format!("X-Token: {}", operated.token),
        format!("Cookie: token={}", operated.token),
    ];
    let mut attempts: Vec<Vec<&str>> = vec![
        vec![],
        vec![&wrong_token],
        vec!["Authorization: Basic Og=="],
        vec!["Origin: http://evil.example"],
        vec!["Host: evil.example"],
        vec!["Host: localhost", "Host: localhost"],
        vec!["X-Forwarded-For: 127.0.0.1"],
        vec!["X-HTTP-Method-Override: GET"],
    ];
    attempts.extend(halves.iter().map(|half| vec![half.as_str()]));
    for line in CHANGES {
        for headers in &attempts {
            let (status, ..) = operated.ask(line, headers, "").await;
            assert!(
                [400, 401, 403, 421].contains(&status),
                "{line} {headers:?}: {status}"
            );
        }
        // The token in the wrong place is none.
        let with_token = format!(
            "{line}{}token={}",
            if line.contains('?') { "&" } else { "?" },
            operated.token
        );
        let (status, ..) = operated.ask(&with_token, &[], "").await;
        assert_eq!(status, 401, "{line}");
    }
    // A page of another site that has the token's Basic log-in in the browser's memory.
    let basic = BASE64_STANDARD.encode(format!("x:{}", operated.token));
    let basic = format!("Authorization: Basic {basic}");
    for headers in [
        [&*basic, "Origin: http://evil.example"],
        [&*basic, "Origin: null"],
        [&*basic, "Sec-Fetch-Site: cross-site"],
    ] {
        let (status, ..) = operated.ask("POST /v1/clients/a/kick", &headers, "").await;
        assert_eq!(status, 403);
    }
    // Nothing has changed: the client is there, and there is no ban.
    client.publish("t", "", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(operated.broker.broker().bans(&Query::default()).items, []);
    let (status, _) = operated.with_token("POST /v1/clients/a/kick", "").await;
    assert_eq!(status, 200, "a token does it");
    operated.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn this_machine_reads_by_a_key_without_a_token_and_others_see_metrics_and_health_alone() {
    let operated = Operated::start().await;
    for line in READS {
        // There is no such client, nothing that changes the log, and events go on for 25 s.
        if ["/a", "/log", "/events"]
            .iter()
            .any(|end| line.ends_with(end))
        {
            continue;
        }
        let (status, head, _) = operated.ask(line, &[], "").await;
        assert_eq!(status, 200, "{line}");
        for header in [
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "frame-ancestors 'none'",
        ] {
            assert!(head.contains(header), "{line}: {head}");
        }
    }
    // By an address of this machine that is not loopback's, as a request from elsewhere would come.
    let far = ["Host: 192.0.2.1:9883"];
    for line in READS {
        let (status, head, body) = operated.ask(line, &far, "").await;
        assert_eq!(status, 401, "{line}");
        let how = if line == "GET /" {
            "www-authenticate: basic"
        } else {
            "www-authenticate: bearer"
        };
        assert!(head.contains(how), "{head}");
        assert_eq!(body["error"], "a token is missing");
    }
    for line in ["GET /metrics", "GET /healthz", "GET /readyz"] {
        for headers in [&far[..], &["Host: any.example"], &[]] {
            let (status, ..) = operated.ask(line, headers, "").await;
            assert_eq!(status, 200, "{line}");
        }
    }
    // Not even with the token: the socket's owner alone may have files written.
    let (status, _) = operated.with_token("POST /backup", "/tmp/x").await;
    assert_eq!(status, 405);
    let (status, ..) = operated
        .ask("GET /v1/status", &["Host: evil.example"], "")
        .await;
    assert_eq!(status, 421);
    operated.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_banned_client_user_or_address_stays_out_for_some_minutes() {
    let operated = Operated::start().await;
    for scheme in SCHEMES {
        let id = scheme.to_string();
        let client = operated.client(scheme, &id).await.unwrap();
        let mut messages = client.subscribe("t", QoS::AtMostOnce).await.unwrap();
        let body = format!("client={id}&minutes=5");
        let (status, ban) = operated.with_token("POST /v1/bans", &body).await;
        assert_eq!(
            (status, &ban["client"]),
            (200, &Value::from(id.as_str())),
            "{ban}"
        );
        let ended = tokio::time::timeout(Duration::from_secs(10), async {
            while messages.recv().await.is_some() {}
        });
        ended.await.unwrap();
        let error = operated
            .client(scheme, &id)
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(ReasonCode::Banned.name()), "{error}");
        operated.client(scheme, "another").await.unwrap();
    }
    let (_, bans) = operated.with_token("GET /v1/bans", "").await;
    assert_eq!(bans["items"].as_array().unwrap().len(), SCHEMES.len());
    let (status, _) = operated.with_token("DELETE /v1/bans", "client=tcp").await;
    assert_eq!(status, 200);
    operated.client(Scheme::Tcp, "tcp").await.unwrap();
    let (status, _) = operated.with_token("DELETE /v1/bans", "client=tcp").await;
    assert_eq!(status, 404);

    let refused = operated
        .with_token("GET /v1/refusals?match=quic", "")
        .await
        .1;
    let refused = &refused["items"][0];
    assert_eq!(
        (&refused["what"], &refused["reason"]),
        (&"refused a log-in".into(), &"banned".into())
    );

    let broker = operated.broker.broker();
    // It has connected before the ban, and sends the rest of CONNECT behind it.
    let connect = b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01e";
    let address = operated.broker.address(Scheme::Tcp);
    let open = || broker.metrics().handshakes.get() + broker.metrics().connections.get();
    let before = open();
    let mut early = TcpStream::connect((address.host.as_str(), address.port))
        .await
        .unwrap();
    early.write_all(&connect[..4]).await.unwrap();
    let accepted = async {
        while open() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let soon = Duration::from_secs(5);
    tokio::time::timeout(soon, accepted).await.unwrap();
    broker
        .ban(Banned::Address("127.0.0.1".parse().unwrap()), 1)
        .unwrap();
    early.write_all(&connect[4..]).await.unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(soon, early.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "it stays: {answer:?}");
    for scheme in [Scheme::Tcp, Scheme::Quic] {
        operated.client(scheme, "b").await.unwrap_err();
    }
    assert!(broker.lift_ban(&Banned::Address("127.0.0.1".parse().unwrap())));
    operated.client(Scheme::Tcp, "b").await.unwrap();
    for wrong in [
        "client=x",
        "client=x&minutes=0",
        "minutes=1",
        "client=x&user=y&minutes=1",
        "address=x&minutes=1",
    ] {
        let (status, said) = operated.with_token("POST /v1/bans", wrong).await;
        assert_eq!(status, 400, "{said}");
        assert!(said["error"].is_string());
    }
    operated.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_listed_by_rate_while_somebody_looks() {
    let operated = Operated::start().await;
    let client = operated.client(Scheme::Quic, "a").await.unwrap();
    let publishing = tokio::spawn(async move {
        loop {
            for topic in ["busy", "busy", "busy", "quiet"] {
                client
                    .publish(topic, "12345", QoS::AtMostOnce)
                    .await
                    .unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let (_, rates) = operated.with_token("GET /v1/topics", "").await;
    publishing.abort();
    let items = rates["items"].as_array().unwrap();
    let names: Vec<_> = items
        .iter()
        .map(|item| item["topic"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["busy", "quiet"]);
    let rate = |item: &Value| item["messages_per_s"].as_f64().unwrap();
    assert!(rate(&items[0]) > 2.0 * rate(&items[1]), "{rates}");
    assert_eq!(rates["is_partial"], false);
    operated.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_the_status_each_second_and_refusals_and_leave_room_for_scrapes() {
    let operated = Operated::start().await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(operated.at).await.unwrap();
        let request = format!("GET /v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", operated.at);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        streams.push(stream);
    }
    let (status, _, said) = operated.ask("GET /v1/events", &[], "").await;
    assert_eq!(status, 503, "{said}");
    operated
        .with_token("POST /v1/bans", "client=bad&minutes=1")
        .await;
    operated.client(Scheme::Tcp, "bad").await.unwrap_err();
    let mut text = String::new();
    let mut stream = streams.pop().unwrap();
    let read = async {
        while !text.contains("event: refusals") {
            let mut some = [0; 4096];
            let count = stream.read(&mut some).await.unwrap();
            assert!(count > 0);
            text.push_str(std::str::from_utf8(&some[..count]).unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(10), read)
        .await
        .unwrap();
    assert!(
        text.contains("event: status") && text.contains(r#""client_id":"bad""#),
        "{text}"
    );
    // The others read nothing, and scrapes are answered.
    for _ in 0..20 {
        let (status, ..) = operated.ask("GET /metrics", &[], "").await;
        assert_eq!(status, 200);
    }
    drop(streams);
    operated.broker.shutdown().await;
}

#[derive(Debug)]
struct Levels(Mutex<String>);

impl LogLevels for Levels {
    fn filter(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    fn set_filter(&self, filter: &str) -> Result<(), String> {
        if filter == "verbose" {
            return Err("no".to_owned());
        }
        filter.clone_into(&mut self.0.lock().unwrap());
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_logs_levels_are_shown_and_changed() {
    let levels = Arc::new(Levels(Mutex::new("info".to_owned())));
    let log = Arc::clone(&levels);
    let operated = Operated::start_with(|settings| settings.log = Some(log)).await;
    let (_, now) = operated.with_token("GET /v1/log", "").await;
    assert_eq!(now["filter"], "info");
    let (status, now) = operated
        .with_token("POST /v1/log", "filter=info%2Cstore%3Ddebug")
        .await;
    assert_eq!((status, &now["filter"]), (200, &"info,store=debug".into()));
    let (status, _) = operated.with_token("POST /v1/log", "filter=verbose").await;
    assert_eq!(
        (status, levels.filter().as_str()),
        (400, "info,store=debug")
    );
    operated.broker.shutdown().await;
}

/// Makes a bridge to a broker on this machine.
fn bridge_to(port: u16) -> BridgeSettings {
    let address = Address::new(Scheme::Tcp, "127.0.0.1", port);
    let mut bridge = BridgeSettings::new("cloud", vec![address], vec![BridgeTopic::new("up/#")]);
    bridge.longest_wait = Duration::from_millis(100);
    bridge
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_bridge_is_seen_and_its_limits_are_also_after_a_restart() {
    const MESSAGES: u64 = 500;
    const BYTES: u64 = 10;
    // Key, topic and payload.
    const IN_STORE: u64 = 64 + 4 + BYTES;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let open = || Arc::new(DiskStore::open(&path, Durability::Off).unwrap());
    let start = async |port: u16| {
        Operated::start_with(|settings| {
            settings.store = Some(open().into());
            let mut bridge = bridge_to(port);
            bridge.queue.messages = Some(50);
            bridge.queue.spill_bytes = Some(1 << 20);
            bridge.queue.age = Some(Duration::from_hours(1));
            settings.bridges = vec![bridge];
        })
        .await
    };
    let seen = async |operated: &Operated| {
        let (_, status) = operated.with_token("GET /v1/status", "").await;
        status["bridges"][0].clone()
    };
    let edge = start(free_port()).await;
    let client_id = seen(&edge).await["client_id"].clone();
    assert!(client_id.as_str().unwrap().starts_with("bridge-cloud-"));
    let device = edge.client(Scheme::Tcp, "device").await.unwrap();
    for _ in 0..MESSAGES {
        let payload = vec![b'x'; usize::try_from(BYTES).unwrap()];
        let sent = device.publish("up/1", payload, QoS::AtLeastOnce).await;
        sent.unwrap();
    }
    let state = seen(&edge).await;
    let expected = serde_json::json!({
        "name": "cloud",
        "client_id": client_id,
        "addresses": state["addresses"],
        "connected": false,
        "queued": 50,
        "queued_limit": 50,
        "queued_bytes": 50 * BYTES,
        "queued_limit_bytes": 16 << 20,
        "overflow": "spill",
        "spilled": MESSAGES - 50,
        "spilled_bytes": (MESSAGES - 50) * IN_STORE,
        "spilled_limit_bytes": 1 << 20,
        "age_s": 3_600,
        "dropped": 0,
        "links": 0,
        "links_failed": state["links_failed"],
    });
    assert_eq!(state, expected);
    let (_, metrics) = edge.with_token("GET /metrics", "").await;
    for line in [
        "mqbroker_bridge_queued{bridge=\"cloud\"} 50",
        "mqbroker_bridge_queued_limit{bridge=\"cloud\"} 50",
        "mqbroker_bridge_spilled{bridge=\"cloud\"} 450",
        "mqbroker_bridge_spilled_limit_bytes{bridge=\"cloud\"} 1048576",
    ] {
        let metrics = metrics.as_str().unwrap();
        assert!(metrics.lines().any(|one| one == line), "{line}: {metrics}");
    }
    drop(device);
    edge.broker.shutdown().await;

    let cloud = TestBroker::start().await;
    let edge = start(free_port()).await;
    let state = seen(&edge).await;
    assert_eq!(state["client_id"], client_id);
    let both = state["queued"].as_u64().unwrap() + state["spilled"].as_u64().unwrap();
    assert_eq!(both, MESSAGES, "{state}");
    assert!(state["spilled"].as_u64() > Some(0), "{state}");
    assert!(state["spilled_bytes"].as_u64() > state["spilled"].as_u64());
    edge.broker.shutdown().await;

    // Nothing is left once it has all gone.
    let edge = start(cloud.address(Scheme::Tcp).port).await;
    let gone = async {
        loop {
            let state = seen(&edge).await;
            if state["connected"] == true && state["queued"] == 0 && state["spilled"] == 0 {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(30), gone).await;
    assert_eq!(gone.unwrap()["spilled_bytes"], 0);
    let came = async {
        while (cloud.broker().metrics().messages_in.get() as u64) < MESSAGES {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), came)
        .await
        .unwrap();
    edge.broker.shutdown().await;
    cloud.shutdown().await;
}

/// `docs/spec/admin.openapi.json` has every request, and each answer is as it says: no field more or less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_as_the_specification_says() {
    let text = include_str!("../../docs/spec/admin.openapi.json");
    let spec: Value = serde_json::from_str(text).unwrap();
    let levels = Arc::new(Levels(Mutex::new("info".to_owned())));
    let operated = Operated::start_with(|settings| {
        settings.log = Some(levels);
        settings.bridges = vec![bridge_to(free_port())];
    })
    .await;
    let mut clients = Vec::new();
    for scheme in SCHEMES {
        let client = operated.client(scheme, &scheme.to_string()).await.unwrap();
        let filter = format!("a/{scheme}");
        let messages = client
            .subscribe(filter.as_str(), QoS::AtLeastOnce)
            .await
            .unwrap();
        clients.push((client, messages));
    }
    let away = operated.broker.client(Scheme::Tcp, "away");
    let away = away
        .session_expiry(Duration::from_mins(5))
        .build()
        .await
        .unwrap();
    away.disconnect().await.unwrap();
    let retained = mq_client::Outgoing::new("r".try_into().unwrap(), "on").retain(true);
    clients[0].0.send(retained).await.unwrap();
    operated
        .with_token("POST /v1/bans", "client=bad&minutes=1")
        .await;
    operated.client(Scheme::Tcp, "bad").await.unwrap_err();
    operated
        .with_token("POST /v1/bans", "user=x&minutes=1")
        .await;

    let mut asked = 0;
    for (path, methods) in spec["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = match (path.as_str(), method.as_str()) {
                ("/v1/bans", "post") => "user=x&minutes=1",
                ("/v1/bans", "delete") => "user=x",
                ("/v1/log", "post") => "filter=debug",
                _ => "",
            };
            let id = if method == "post" { "wss" } else { "quic" };
            let line = format!("{} {}", method.to_uppercase(), path.replace("{id}", id));
            let schema = "responses/200/content/application~1json/schema/$ref";
            let place = format!("/paths/{}/{method}/{schema}", path.replace('/', "~1"));
            let Some(schema) = spec.pointer(&place) else {
                assert_eq!(path, "/v1/events");
                continue;
            };
            let schema = schema.as_str().unwrap().trim_start_matches('#');
            let (status, said) = operated.with_token(&line, parameters).await;
            assert_eq!(status, 200, "{line}: {said}");
            assert_eq!(
                schema_problems(&spec, schema, &said),
                [""; 0],
                "{line}: {said}"
            );
            if let Some(items) = said["items"].as_array() {
                assert!(
                    !items.is_empty() || path == "/v1/topics",
                    "{line}: nothing to compare"
                );
            }
            let is_change = operation.get("security").is_some();
            assert_eq!(is_change, method != "get", "{line}");
            // Every parameter that the specification names is known, and no other one.
            let (status, said) = operated.with_token(&format!("{line}?surplus=1"), "").await;
            assert_eq!(status, 400, "{line}");
            let problems = schema_problems(&spec, "/components/schemas/Error", &said);
            assert_eq!(problems, [""; 0]);
            asked += 1;
        }
    }
    assert_eq!(asked, CHANGES.len() - 1 + READS.len() - 2);
    drop(clients);
    operated.broker.shutdown().await;
}
