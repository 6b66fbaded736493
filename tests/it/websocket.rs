//! The broker's WebSocket: a real browser at it, and a request that never ends.

use std::{process::Stdio, time::Duration};

use mq_client::QoS;
use mq_testkit::{Scheme, TestBroker, chromium};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    time::{Instant, timeout},
};

/// Connects three times and publishes how each connection ended.
const PAGE: &str = r"<!doctype html><script>
const bytes = (...parts) => new Uint8Array(parts.flatMap(part =>
    typeof part === 'string' ? [...new TextEncoder().encode(part)] : [part]));
const CONNECT = bytes(0x10, 13, 0, 4, 'MQTT', 4, 2, 0, 60, 0, 1, 'b');
const open = () => new Promise((resolve, reject) => {
    const socket = new WebSocket('URL', ['mqtt']);
    socket.binaryType = 'arraybuffer';
    socket.onerror = reject;
    // In two messages, cut anywhere.
    socket.onopen = () => {
        socket.send(CONNECT.slice(0, 5));
        socket.send(CONNECT.slice(5));
    };
    socket.onmessage = event => resolve([socket, [...new Uint8Array(event.data)]]);
});
const closed = socket => new Promise(resolve => {
    socket.onclose = event => resolve([event.code, event.wasClean]);
});
const run = async () => {
    const result = {};
    let [socket, connack] = await open();
    result.connack = connack;
    result.protocol = socket.protocol;
    let end = closed(socket);
    // PUBLISH and DISCONNECT in one message.
    socket.send(bytes(0x30, 8, 0, 4, 'page', 'hi', 0xE0, 0));
    result.disconnected = await end;

    [socket] = await open();
    end = closed(socket);
    socket.close(1000);
    result.closed = await end;

    [socket] = await open();
    end = closed(socket);
    socket.send('text');
    result.text = await end;

    [socket] = await open();
    end = closed(socket);
    // Longer than 127 bytes, so that the length of the packet takes two.
    const payload = JSON.stringify(result).padEnd(200);
    socket.send(bytes(0x30, 0x80 | ((8 + payload.length) & 0x7F), (8 + payload.length) >> 7,
        0, 6, 'result', payload, 0xE0, 0));
    await end;
};
run();
</script>";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_publishes_and_sees_each_connection_end_cleanly() {
    let Some(chromium) = chromium() else {
        return;
    };
    let broker = TestBroker::start().await;
    let client = broker.client(Scheme::Tcp, "watcher").build().await.unwrap();
    let mut page = client.subscribe("page", QoS::AtMostOnce).await.unwrap();
    let mut results = client.subscribe("result", QoS::AtMostOnce).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let url = broker.address(Scheme::Ws).to_string();
    std::fs::write(&file, PAGE.replace("URL", &url)).unwrap();
    let mut browser = Command::new(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args(["--disable-dev-shm-usage", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync"])
        // Keeps it open, on a port that the system chooses.
        .arg("--remote-debugging-port=0")
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let wait = Duration::from_secs(40);
    let message = timeout(wait, page.recv()).await.unwrap().unwrap();
    assert_eq!(message.payload, "hi");
    let message = timeout(wait, results.recv()).await.unwrap().unwrap();
    let result: Value = serde_json::from_slice(&message.payload).unwrap();
    browser.kill().await.unwrap();
    let expected = json!({
        "connack": [0x20, 2, 0, 0],
        "protocol": "mqtt",
        "disconnected": [1000, true],
        "closed": [1000, true],
        "text": [1003, true],
    });
    assert_eq!(result, expected);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_does_not_end_is_cut_off_in_time() {
    const LIMIT: Duration = Duration::from_millis(300);
    let broker = TestBroker::start_with(|settings| settings.handshake_timeout = LIMIT).await;
    let port = broker.address(Scheme::Ws).port;
    let began = Instant::now();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream
        .write_all(b"GET /mqtt HTTP/1.1\r\nHost: h\r\n")
        .await
        .unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let trickling = async {
        // Never silent for long, and never at an end.
        while writer.write_all(b"X: y\r\n").await.is_ok() {
            tokio::time::sleep(LIMIT / 20).await;
        }
    };
    let mut answer = Vec::new();
    let cut = async {
        tokio::select! {
            read = reader.read_to_end(&mut answer) => drop(read),
            () = trickling => {}
        }
    };
    timeout(Duration::from_secs(10), cut).await.unwrap();
    assert!(began.elapsed() >= LIMIT);
    assert!(answer.is_empty());
    broker.shutdown().await;
}
