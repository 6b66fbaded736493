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

    /// Returns the answer to a request with the token.
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

/// Headers that a proxy on this machine adds or changes by default when a client from elsewhere asks it, for the broker at
/// `HOST`. Two of them leave no trace at all.
const PROXIES: [(&str, &[&str]); 8] = [
    // proxy_pass http://HOST; and nothing else.
    ("nginx", &["Host: HOST", "Connection: close"]),
    // proxy_set_header Host localhost, as somebody may have to for a name that is not in `hosts`.
    ("nginx", &["Host: localhost", "Connection: close"]),
    ("nginx", &["Host: HOST", "X-Real-IP: 192.0.2.7"]),
    // reverse_proxy HOST
    (
        "Caddy",
        &[
            "Host: broker.example",
            "X-Forwarded-For: 192.0.2.7",
            "X-Forwarded-Host: broker.example",
            "X-Forwarded-Proto: https",
            "Via: 2.0 Caddy",
        ],
    ),
    (
        "Traefik",
        &[
            "Host: broker.example",
            "X-Forwarded-For: 192.0.2.7",
            "X-Forwarded-Host: broker.example",
            "X-Forwarded-Port: 443",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Server: proxy",
            "X-Real-Ip: 192.0.2.7",
        ],
    ),
    // server broker HOST; the client's Host passes.
    ("HAProxy", &["Host: broker.example"]),
    // option forwardfor
    ("HAProxy", &["Host: HOST", "X-Forwarded-For: 192.0.2.7"]),
    ("RFC 7239", &["Host: HOST", "Forwarded: for=192.0.2.7"]),
];

/// Returns the statuses of requests as these proxies pass them on, without a token and with it.
fn proxied(operated: &Operated, path: &str) -> Vec<(&'static str, String, String)> {
    let host = format!("127.0.0.1:{}", operated.port);
    let token = format!("Authorization: Bearer {}", operated.token);
    let ask = |headers: &[String]| {
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        let answer = answer(operated.send(&format!("GET {path}"), &headers));
        status(&answer).to_owned()
    };
    let rows = PROXIES.iter().map(|(proxy, headers)| {
        let mut headers: Vec<_> = headers
            .iter()
            .map(|header| header.replace("HOST", &host))
            .collect();
        let without = ask(&headers);
        headers.push(token.clone());
        (*proxy, without, ask(&headers))
    });
    rows.collect()
}

#[test]
fn behind_a_proxy_on_this_machine_nobody_reads_without_a_token() {
    let operated = Operated::new("tcp", "hosts = [\"broker.example\"]\n");
    for path in ["/", "/v1/status", "/v1/clients"] {
        for (proxy, without, with) in proxied(&operated, path) {
            assert_eq!((&*without, &*with), ("401", "200"), "{proxy} {path}");
        }
    }
    for (proxy, without, with) in proxied(&operated, "/metrics") {
        assert_eq!((&*without, &*with), ("200", "200"), "{proxy}");
    }
}

#[test]
fn a_key_lets_this_machine_read_without_a_token_and_no_proxy_that_says_so() {
    let operated = Operated::new(
        "tcp",
        "hosts = [\"broker.example\"]\nopen_on_loopback = true\n",
    );
    assert_eq!(get(operated.port, "/v1/status").0, 200);
    let change = answer(operated.send("DELETE /v1/bans?client=a", &["Host: localhost"]));
    assert_eq!(status(&change), "401");
    for (number, (proxy, without, _)) in proxied(&operated, "/v1/status").iter().enumerate() {
        // The first two are what a program of this machine sends.
        let expected = if number < 2 { "200" } else { "401" };
        assert_eq!(without, expected, "{proxy}");
    }
}
