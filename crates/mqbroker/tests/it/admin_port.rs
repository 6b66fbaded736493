//! The port of operators, by requests written by hand.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use mq_testkit::free_port;

use crate::program::{Broker, get, mqbroker};

/// A broker, its port for operators, and a token.
struct Operated {
    broker: Broker,
    port: u16,
    token: String,
    _folder: tempfile::TempDir,
}

impl Operated {
    fn new(scheme: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tokens = folder.path().join("tokens");
        let made = mqbroker(&["token", tokens.to_str().unwrap()], "");
        assert!(made.status.success());
        let port = free_port();
        let shown = tokens.display();
        let configuration =
            format!("[admin]\nhttp = \"127.0.0.1:{port}\"\ntoken_file = \"{shown}\"\n{more}");
        Self {
            broker: Broker::new(scheme, &configuration),
            port,
            token: std::fs::read_to_string(tokens).unwrap().trim().to_owned(),
            _folder: folder,
        }
    }

    /// Sends the head of a request with these headers, and returns the connection.
    fn send(&self, line: &str, headers: &[&str]) -> TcpStream {
        send(self.port, line, headers)
    }

    /// The answer to a request with the token.
    fn answer(&self, line: &str) -> String {
        let token = format!("Authorization: Bearer {}", self.token);
        answer(self.send(line, &["Host: localhost", &token]))
    }
}

fn send(port: u16, line: &str, headers: &[&str]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let wait = Some(Duration::from_secs(20));
    stream.set_read_timeout(wait).unwrap();
    let request = format!("{line} HTTP/1.1\r\n{}\r\n\r\n", headers.join("\r\n"));
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn requests_whose_body_never_comes_do_not_keep_the_port_busy() {
    let operated = Operated::new("tcp", "");
    let token = format!("Authorization: Bearer {}", operated.token);
    let headers = ["Host: localhost", "Content-Length: 10", &token];
    let began = Instant::now();
    let all = ["GET /v1/status", "POST /v1/bans"];
    let lines = all.iter().cycle().take(64);
    let open: Vec<_> = lines.map(|line| operated.send(line, &headers)).collect();
    assert_eq!(get(operated.port, "/healthz").0, 200);
    // The bodies have 10 s each, and there are places for 16.
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    drop(open);
}

#[test]
fn head_is_answered_as_get_without_the_body() {
    let operated = Operated::new("tcp", "");
    for path in [
        "/metrics",
        "/healthz",
        "/readyz",
        "/",
        "/v1/status",
        "/v1/clients",
        "/v1/log",
    ] {
        let got = operated.answer(&format!("GET {path}"));
        let head = operated.answer(&format!("HEAD {path}"));
        let (got_head, body) = got.split_once("\r\n\r\n").unwrap();
        assert!(status(&got) == "200" && !body.is_empty(), "{got}");
        assert_eq!(status(&head), "200", "{path}: {head}");
        assert!(head.ends_with("\r\n\r\n"), "{path}: {head}");
        let kind = |text: &str| {
            let lines = text.lines();
            let mut kinds = lines.filter(|line| line.to_lowercase().starts_with("content-type"));
            kinds.next().map(ToOwned::to_owned)
        };
        assert_eq!(kind(&head), kind(got_head), "{path}");
    }
    assert_eq!(status(&operated.answer("HEAD /v1/nothing")), "404");
    assert_eq!(status(&operated.answer("PUT /metrics")), "405");
}

#[test]
fn a_request_for_a_websocket_that_has_a_body_is_refused() {
    let operated = Operated::new("ws", "");
    let port = operated.broker.url.rsplit(':').next().unwrap();
    let port = port.trim_end_matches("/mqtt").parse().unwrap();
    let upgrade = [
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol: mqtt",
    ];
    for (more, expected) in [
        (&[][..], "101"),
        (&["Content-Length: 0"], "101"),
        (&["Content-Length: 5", "Transfer-Encoding: chunked"], "400"),
        (&["Transfer-Encoding: chunked"], "400"),
        (&["Content-Length: 5"], "400"),
        (&["Content-Length: 0", "Content-Length: 5"], "400"),
    ] {
        let mut stream = send(port, "GET /mqtt", &[&upgrade, more].concat());
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        let head = String::from_utf8_lossy(&head);
        assert_eq!(status(&head), expected, "{more:?}");
    }
}
