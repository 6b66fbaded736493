use super::*;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

fn read<T: TryParse>(text: &str) -> Result<T, HeadError> {
    let read = HeadReader::new().read(text.as_bytes())?;
    Ok(read.expect("the head is complete").1)
}

/// Returns the answer of a listener at `ws://h/mqtt`, for `origins` if there are any.
fn answer(request: &str, origins: &[&str]) -> Answer {
    let options = ListenOptions {
        allowed_origins: match origins {
            [] => AllowedOrigins::All,
            listed => AllowedOrigins::Listed(listed.iter().copied().map(str::to_owned).collect()),
        },
        ..ListenOptions::default()
    };
    let gate = Gate::new(&"ws://h".parse().unwrap(), &options).unwrap();
    gate.answer(read(request))
}

fn good() -> String {
    request(&"ws://h".parse().unwrap(), KEY).unwrap()
}

#[test]
fn both_ends_agree() {
    for url in ["ws://h", "wss://[::1]:443/", "ws://127.0.0.1:80/a?b=c"] {
        let address: Address = url.parse().unwrap();
        let mut at = address.clone();
        at.path.truncate(at.path.find('?').unwrap_or(at.path.len()));
        let gate = Gate::new(&at, &ListenOptions::default()).unwrap();
        let answer = gate.answer(read(&request(&address, KEY).unwrap()));
        assert!(answer.refusal.is_none(), "{answer:?}");
        check(read(&answer.text), &address, KEY).unwrap();
    }
}

#[test]
fn a_host_is_named_with_its_port_unless_it_is_the_usual_one() {
    for (url, host) in [
        ("ws://h", "h:8083"),
        ("ws://h:80", "h"),
        ("wss://h:80", "h:80"),
        ("wss://[::1]:443", "[::1]"),
        ("wss://[::1]", "[::1]:8084"),
    ] {
        let request = request(&url.parse().unwrap(), KEY).unwrap();
        assert!(
            request.contains(&format!("\r\nHost: {host}\r\n")),
            "{request}"
        );
    }
}

#[test]
fn the_example_of_the_rfc_gets_the_answer_of_the_rfc() {
    let answer = answer(&good(), &[]);
    // RFC 6455 §1.3.
    let accept = "\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
    assert!(answer.text.starts_with("HTTP/1.1 101 "), "{}", answer.text);
    assert!(answer.text.contains(accept), "{}", answer.text);
}

#[test]
fn a_request_is_granted_in_whatever_form_it_comes() {
    for (from, to) in [
        ("Connection: Upgrade", "Connection: keep-alive, Upgrade"),
        (
            "Connection: Upgrade",
            "connection: keep-alive\r\nCONNECTION: upgrade",
        ),
        ("Upgrade: websocket", "Upgrade: h2c, WebSocket"),
        ("GET /mqtt ", "GET /mqtt?token=1 "),
        ("GET /mqtt ", "GET http://h:8083/mqtt "),
        ("Protocol: mqtt", "Protocol: wamp, mqttv3.1, mqtt"),
        (
            "Protocol: mqtt",
            "Protocol: wamp\r\nSec-WebSocket-Protocol: mqtt",
        ),
        (
            "\r\n\r\n",
            "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
        ),
        ("\r\n\r\n", "\r\nOrigin: https://any.example\r\n\r\n"),
        ("\r\n", "\n"),
    ] {
        let answer = answer(&good().replace(from, to), &[]);
        assert!(answer.refusal.is_none(), "{to}: {answer:?}");
        assert!(
            answer.text.contains("\r\nSec-WebSocket-Protocol: mqtt\r\n"),
            "{answer:?}"
        );
        assert!(!answer.text.contains("Extensions"), "{answer:?}");
    }
}

#[test]
fn a_request_for_the_old_subprotocol_alone_is_answered_with_it() {
    let answer = answer(&good().replace("Protocol: mqtt", "Protocol: mqttv3.1"), &[]);
    assert!(answer.refusal.is_none(), "{answer:?}");
    assert!(
        answer
            .text
            .contains("\r\nSec-WebSocket-Protocol: mqttv3.1\r\n"),
        "{answer:?}"
    );
}

#[test]
fn other_requests_are_told_what_is_wrong() {
    for (from, to, status, said) in [
        ("GET ", "POST ", 405, "\r\nAllow: GET\r\n"),
        ("GET ", "OPTIONS ", 405, "\r\nAllow: GET\r\n"),
        ("/mqtt", "/", 404, "path"),
        ("/mqtt", "/mqtt/", 404, "path"),
        ("/mqtt", "/MQTT", 404, "path"),
        (
            "Upgrade: websocket\r\n",
            "",
            426,
            "\r\nUpgrade: websocket\r\n",
        ),
        (
            "Connection: Upgrade",
            "Connection: close",
            426,
            "\r\nUpgrade: websocket\r\n",
        ),
        (
            "websocket",
            "h2c",
            426,
            "\r\nConnection: Upgrade, close\r\n",
        ),
        (
            "Version: 13",
            "Version: 8",
            426,
            "\r\nSec-WebSocket-Version: 13\r\n",
        ),
        (
            "Sec-WebSocket-Version: 13\r\n",
            "",
            426,
            "\r\nSec-WebSocket-Version: 13\r\n",
        ),
        (KEY, "c2hvcnQ=", 400, "Key"),
        (KEY, "!!!!!!!!!!!!!!!!!!!!!!==", 400, "Key"),
        ("Sec-WebSocket-Key", "X-Key", 400, "Key"),
        ("Sec-WebSocket-Protocol: mqtt\r\n", "", 400, "`mqtt`"),
        ("Protocol: mqtt", "Protocol: amqp, MQTTv5", 400, "`mqtt`"),
        ("Host: h:8083\r\n", "", 400, "Host"),
        ("Host: h:8083", "Host: h\r\nHost: g", 400, "Host"),
        ("HTTP/1.1", "HTTP/1.0", 400, "HTTP/1.1"),
        ("HTTP/1.1", "HTTP/2.0", 400, "HTTP/1.1"),
        (
            "GET /mqtt HTTP/1.1",
            "\u{10}\u{c}\0\u{4}MQTT",
            400,
            "HTTP/1.1",
        ),
        ("Upgrade:", "Upgr\0ade:", 400, "HTTP/1.1"),
    ] {
        let request = good().replacen(from, to, 1);
        let answer = answer(&request, &[]);
        let text = &answer.text;
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status} ")),
            "{to:?}: {text}"
        );
        assert!(text.contains(said), "{to:?}: {text}");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("\r\nContent-Length: {}", body.len())),
            "{text}"
        );
        assert!(head.contains("close"), "{text}");
        let Some(Error::Upgrade { status: told, .. }) = answer.refusal else {
            panic!("{to:?}: {answer:?}");
        };
        assert_eq!(told, Some(status));
    }
}

#[test]
fn pages_of_other_origins_can_be_kept_out() {
    let origins = ["https://app.example", "http://localhost:3000"];
    for (origin, welcome) in [
        (None, true),
        (Some("https://app.example"), true),
        (Some("http://localhost:3000"), true),
        (Some("http://app.example"), false),
        (Some("https://app.example.evil"), false),
        (Some("null"), false),
    ] {
        let header = origin.map_or_else(String::new, |origin| format!("Origin: {origin}\r\n"));
        let request = good().replace("Upgrade: ", &format!("{header}Upgrade: "));
        let answer = answer(&request, &origins);
        assert_eq!(answer.refusal.is_none(), welcome, "{origin:?}: {answer:?}");
        assert!(
            welcome || answer.text.starts_with("HTTP/1.1 403 "),
            "{answer:?}"
        );
    }
}

#[test]
fn an_answer_that_does_not_agree_is_refused() {
    let address: Address = "ws://h".parse().unwrap();
    let good = answer(&good(), &[]).text;
    for (from, to, status, said) in [
        (
            "101 Switching Protocols",
            "404 Not Found",
            404,
            "404 Not Found to a GET of `/mqtt`",
        ),
        (
            "101 Switching Protocols",
            "503 Service Unavailable",
            503,
            "503",
        ),
        ("101 Switching Protocols", "302 Found", 302, "not followed"),
        ("101 Switching Protocols", "200 OK", 200, "200 OK"),
        ("Upgrade: websocket\r\n", "", 101, "Upgrade header"),
        ("Connection: Upgrade\r\n", "", 101, "Connection header"),
        ("s3pP", "S3pP", 101, "Sec-WebSocket-Accept"),
        ("Protocol: mqtt", "Protocol: mqttv3.1", 101, "`mqtt`"),
        ("Sec-WebSocket-Protocol: mqtt\r\n", "", 101, "`mqtt`"),
        (
            "\r\n\r\n",
            "\r\nSec-WebSocket-Extensions: x\r\n\r\n",
            101,
            "not asked for",
        ),
    ] {
        let error = check(read(&good.replacen(from, to, 1)), &address, KEY).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("the WebSocket handshake failed: "),
            "{text}"
        );
        assert!(text.contains(said), "{text}");
        assert!(
            matches!(error, Error::Upgrade { status: Some(told), .. } if told == status),
            "{error:?}"
        );
    }
    // A broker that speaks plain MQTT has no HTTP status.
    let error = check(read("\u{20}\u{2}\0\0"), &address, KEY).unwrap_err();
    assert!(
        matches!(error, Error::Upgrade { status: None, .. }),
        "{error:?}"
    );
}

#[test]
fn a_head_is_found_however_it_is_cut_and_bounded() {
    let text = good() + "and more";
    for size in 1..text.len() {
        let mut reader = HeadReader::new();
        let mut end = 0;
        let length = loop {
            end = (end + size).min(text.len());
            let read = reader.read::<Request>(&text.as_bytes()[..end]).unwrap();
            if let Some((length, _)) = read {
                break length;
            }
        };
        assert_eq!(&text[length..], "and more", "in pieces of {size}");
    }
    let endless = format!("GET /mqtt HTTP/1.1\r\nCookie: {}", "x".repeat(MAX_HEAD));
    let mut reader = HeadReader::new();
    for end in 1..endless.len() {
        match reader.read::<Request>(&endless.as_bytes()[..end]) {
            Ok(None) => assert!(end < MAX_HEAD),
            Err(HeadError::TooLong) => {
                assert_eq!(end, MAX_HEAD);
                break;
            }
            other => panic!("{end}: {other:?}"),
        }
    }
}

#[test]
fn an_invalid_path_is_refused_at_either_end() {
    let listen = ListenOptions::default();
    for path in [
        "",
        "mqtt",
        "/m qtt",
        "/mqtt HTTP/1.1\r\nHost: other",
        "/m\u{e9}",
    ] {
        let mut address: Address = "ws://h".parse().unwrap();
        address.path = path.into();
        let errors = [
            request(&address, KEY).unwrap_err(),
            Gate::new(&address, &listen).unwrap_err(),
        ];
        for error in errors {
            let expected = format!(
                "WebSocket path cannot be {path:?}: \
                 begin with `/`, and write what is not visible ASCII as %XX"
            );
            assert_eq!(error.to_string(), expected);
        }
    }
    let address = "ws://h/mqtt?x=1".parse().unwrap();
    assert_eq!(
        Gate::new(&address, &listen).unwrap_err().to_string(),
        "WebSocket path cannot be \"/mqtt?x=1\" at a listener: \
         leave the query out: clients may send any"
    );
}

#[test]
fn a_query_is_not_in_an_error() {
    let address: Address = "ws://h/mqtt?token=secret".parse().unwrap();
    let error = check(read("HTTP/1.1 403 Forbidden\r\n\r\n"), &address, KEY).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the WebSocket handshake failed: the server answered 403 Forbidden to a GET of `/mqtt`"
    );
}
