//! Operators see into a running broker through its socket, and throw clients out.

use std::{path::Path, time::Duration};

use mq_broker::{Broker, Settings, view::Query};
use mq_client::{Client, QoS, ReasonCode, Reconnect};
use mq_testkit::{SCHEMES, TestBroker};
use mq_transport::Scheme;
use serde_json::Value;
use tokio::net::UnixStream;

/// Asks, and returns status and JSON, in which a client can have put nothing but visible ASCII.
async fn ask(socket: &Path, request: &str, body: &str) -> (u16, Value) {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (status, body) = mq_testkit::ask(stream, request, body).await;
    assert!(
        body.trim_end()
            .bytes()
            .all(|byte| matches!(byte, b' '..=b'~'))
    );
    (status, serde_json::from_str(&body).unwrap())
}

fn encoded(text: &str) -> String {
    let bytes: Vec<_> = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
    bytes.concat()
}

async fn started(folder: &tempfile::TempDir) -> (TestBroker, std::path::PathBuf) {
    let socket = folder.path().join("admin.sock");
    let broker = TestBroker::start_with(|settings| {
        settings.admin.socket = Some(socket.clone());
        settings.protocol.allow_control_characters = true;
    })
    .await;
    (broker, socket)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_every_transport_are_seen_and_can_be_kicked() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, socket) = started(&folder).await;
    let mut clients = Vec::new();
    for scheme in SCHEMES {
        let client = broker.client(scheme, &scheme.to_string());
        let client = client.reconnect(Reconnect::never()).build().await.unwrap();
        let messages = client.subscribe("a/#", QoS::AtLeastOnce).await.unwrap();
        clients.push((client, messages));
    }
    let (status, page) = ask(&socket, "GET /v1/clients", "").await;
    assert_eq!((status, &page["next"]), (200, &Value::Null));
    let seen = page["items"].as_array().unwrap();
    let mut names = SCHEMES.map(|scheme| scheme.to_string());
    names.sort();
    for (one, name) in seen.iter().zip(&names) {
        assert_eq!(one["client_id"], name.as_str());
        assert_eq!(one["transport"], name.as_str());
        assert_eq!(one["subscriptions"], 1);
        assert_eq!(one["in_flight"], 0, "{one}");
        assert!(one["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
        let has_handshake = ["tls", "quic", "wss"].contains(&name.as_str());
        assert_eq!(
            one["handshake"],
            if has_handshake { "full" } else { "none" }
        );
    }
    assert_eq!(seen.len(), names.len());
    let (_, page) = ask(&socket, "GET /v1/subscriptions?limit=2&match=a/", "").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    let after = encoded(page["next"].as_str().unwrap());
    let (_, rest) = ask(&socket, &format!("GET /v1/subscriptions?after={after}"), "").await;
    assert_eq!(rest["items"].as_array().unwrap().len(), names.len() - 2);

    let (status, _) = ask(&socket, "POST /v1/clients/quic/kick", "").await;
    assert_eq!(status, 200);
    while ask(&socket, "GET /v1/clients/quic", "").await.0 == 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (_, status) = ask(&socket, "GET /v1/status", "").await;
    assert_eq!(status["not_ready"], Value::Null);
    let (status, error) = ask(&socket, "POST /v1/clients/nobody/kick", "").await;
    assert_eq!(status, 404);
    assert_eq!(error["error"], "no client nobody is connected");
    let (status, _) = ask(&socket, "GET /v1/clients?limit=1001", "").await;
    assert_eq!(status, 400);
    drop(clients);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kicked_client_gets_the_reason_and_its_session_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, socket) = started(&folder).await;
    let client = broker
        .client(Scheme::Tcp, "a")
        .reconnect(Reconnect::never());
    let client = client.session_expiry(Duration::from_mins(1));
    let client = client.build().await.unwrap();
    let mut messages = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    broker.broker().kick("a").unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), async {
        while messages.recv().await.is_some() {}
        loop {
            if let Err(error) = client.publish("t", "", QoS::AtLeastOnce).await {
                return error;
            }
        }
    });
    let error = ended.await.unwrap().to_string();
    let told = ReasonCode::AdministrativeAction.name();
    assert!(error.contains(told), "{error}");
    loop {
        let (_, page) = ask(&socket, "GET /v1/sessions", "").await;
        if let [session] = page["items"].as_array().unwrap().as_slice() {
            assert_eq!(
                (&session["client_id"], &session["subscriptions"]),
                (&"a".into(), &1.into())
            );
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_identifiers_are_data() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, socket) = started(&folder).await;
    for hostile in [
        "a\nb",
        "\u{1b}[2J",
        "x/kick",
        "100%41",
        "\u{202e}\u{9b}",
        "a\"b&id=c",
        "?",
    ] {
        let client = broker
            .client(Scheme::Tcp, hostile)
            .reconnect(Reconnect::never());
        let client = client.build().await.unwrap();
        let (_, page) = ask(&socket, "GET /v1/clients", "").await;
        assert_eq!(page["items"][0]["client_id"], hostile);
        let id = encoded(hostile);
        assert_eq!(
            ask(&socket, &format!("GET /v1/clients/{id}"), "").await.0,
            200
        );
        let (status, _) = ask(&socket, "POST /v1/clients//kick", &format!("id={id}")).await;
        assert_eq!(status, 200);
        while ask(&socket, &format!("GET /v1/clients/{id}"), "").await.0 == 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(client);
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paging_finds_every_client_once_while_others_come_and_go() {
    let mut settings = Settings::new(vec!["mem://inspect-paging".parse().unwrap()]);
    settings.quotas.sessions = 10_000;
    let broker = Broker::start(settings).await.unwrap();
    let client = |id: String| {
        let client = Client::builder("mem://inspect-paging").unwrap();
        client.client_id(id.as_str()).unwrap().build()
    };
    let mut stay = Vec::new();
    for number in 0..2_000 {
        stay.push(client(format!("stays-{number:04}")).await.unwrap());
    }
    let come_and_go = async {
        for number in 0.. {
            let other = client(format!("stays-{:04}x", number % 2_000))
                .await
                .unwrap();
            other.disconnect().await.unwrap();
        }
    };
    let read_pages = async {
        let mut query = Query::default();
        query.limit = 150;
        let mut found = Vec::new();
        loop {
            let page = broker.clients(&query).await;
            assert!(page.items.len() <= 150);
            found.extend(page.items.into_iter().map(|client| client.client_id));
            query.after = page.next;
            if query.after.is_none() {
                return found;
            }
        }
    };
    let found = tokio::select! {
        found = read_pages => found,
        () = come_and_go => unreachable!("it goes on for ever"),
    };
    assert!(found.is_sorted_by(|one, next| one < next));
    let stayed = found.iter().filter(|id| !id.ends_with('x')).count();
    assert_eq!(stayed, stay.len());
    drop(stay);
    broker.shutdown().await;
}
