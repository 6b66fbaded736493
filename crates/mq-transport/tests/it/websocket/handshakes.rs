//! Requests and answers that are not as they should be, slow, or endless.

use std::time::Duration;

use mq_transport::{
    Address, AllowedOrigins, ConnectOptions, Connector, Error, HandshakeKind, ListenOptions,
    Listener, Scheme,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    common::{SOON, connect, connect_options, listen, listen_options},
    websocket::peer::{head, request},
};

/// Returns a listener's answer to these bytes, up to the end of the connection, and the error of its handshake.
async fn answered(options: &ListenOptions, request: &[u8]) -> (String, Error) {
    let address = Address::new(Scheme::Ws, "127.0.0.1", 0);
    let mut listener = Listener::bind(&address, options).await.unwrap();
    let at = ("127.0.0.1", listener.local_address().port);
    let asking = async {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let serving = async { listener.accept().await.unwrap().handshake().await };
    let (answer, outcome) = tokio::join!(asking, serving);
    (answer, outcome.unwrap_err())
}

#[tokio::test]
async fn a_request_that_gets_no_websocket_gets_an_answer_and_the_end() {
    let options = ListenOptions {
        allowed_origins: AllowedOrigins::Listed(vec!["https://app.example".into()]),
        ..listen_options()
    };
    let endless = request().replace("\r\n\r\n", &format!("\r\nX: {}", "x".repeat(40_000)));
    for (request, status, header) in [
        (
            "GET / HTTP/1.1\r\nHost: h\r\n\r\n".into(),
            404,
            "Content-Length",
        ),
        (
            "GET /mqtt HTTP/1.1\r\nHost: h\r\n\r\n".into(),
            426,
            "Upgrade: websocket",
        ),
        (
            "POST /mqtt HTTP/1.1\r\nHost: h\r\n\r\nbody".into(),
            405,
            "Allow: GET",
        ),
        (
            request().replace(": 13", ": 7"),
            426,
            "Sec-WebSocket-Version: 13",
        ),
        (
            request().replace("l: mqtt", "l: chat"),
            400,
            "Connection: close",
        ),
        (
            request().replace("Host: h", "Host: h\r\nOrigin: https://evil.example"),
            403,
            "Connection: close",
        ),
        (endless, 431, "Connection: close"),
        // MQTT without WebSocket, and TLS without WebSocket.
        (
            "\u{10}\u{c}\0\u{4}MQTT\u{4}\u{2}\0\u{3c}\0\0".into(),
            400,
            "Connection: close",
        ),
        (
            "\u{16}\u{3}\u{1}\u{2}\0\u{1}".into(),
            400,
            "Connection: close",
        ),
    ] {
        let (answer, error) = answered(&options, request.as_bytes()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        assert!(answer.contains(&format!("\r\n{header}")), "{answer}");
        assert!(
            matches!(error, Error::Upgrade { status: Some(told), .. } if told == status),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_request_may_come_byte_by_byte() {
    let mut listener = listen(Scheme::Ws).await;
    let at = ("127.0.0.1", listener.local_address().port);
    let asking = async {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in request().bytes() {
            stream.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        head(&mut stream).await
    };
    let serving = async { listener.accept().await.unwrap().handshake().await };
    let (answer, link) = tokio::join!(asking, serving);
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    link.unwrap();
}

#[tokio::test]
async fn a_client_that_breaks_off_in_the_middle_is_noticed() {
    for length in [0, 1, 40, request().len() - 1] {
        let mut listener = listen(Scheme::Ws).await;
        let at = ("127.0.0.1", listener.local_address().port);
        let asking = async {
            let mut stream = TcpStream::connect(at).await.unwrap();
            let part = &request().into_bytes()[..length];
            stream.write_all(part).await.unwrap();
        };
        let serving = async { listener.accept().await.unwrap().handshake().await };
        let ((), outcome) = tokio::join!(asking, serving);
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Reset { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_refused_client_that_stays_does_not_hold_the_handshake() {
    let mut listener = listen(Scheme::Ws).await;
    let at = ("127.0.0.1", listener.local_address().port);
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        .await
        .unwrap();
    // It neither reads nor closes.
    let serving = async { listener.accept().await.unwrap().handshake().await };
    let outcome = tokio::time::timeout(SOON / 2, serving).await;
    assert!(
        matches!(outcome, Ok(Err(Error::Upgrade { .. }))),
        "{outcome:?}"
    );
    drop(stream);
}

/// Returns the error of a client that receives this answer to its handshake.
async fn made_of(answer: &'static [u8]) -> Error {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        stream.write_all(answer).await.unwrap();
        stream.shutdown().await.unwrap();
        // Until the client has left.
        let _ = stream.read(&mut [0; 1]).await;
    };
    let connector = Connector::new(connect_options()).unwrap();
    let address = Address::new(Scheme::Ws, "127.0.0.1", port);
    let connecting = async { connector.connect(&address).await.map(drop) };
    let ((), outcome) = tokio::join!(serving, connecting);
    outcome.unwrap_err()
}

#[tokio::test]
async fn a_server_that_does_not_agree_is_named_with_what_it_said() {
    for (answer, said) in [
        (
            &b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"[..],
            "the WebSocket handshake failed: the server answered 404 Not Found to a GET of \
             `/mqtt`; is that the path?",
        ),
        (
            b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
            "503 Service Unavailable",
        ),
        (
            b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "lacks an Upgrade header",
        ),
        (b"\x20\x02\0\0", "no HTTP/1.1"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP/1.1"),
        (
            b"HTTP/1.1 101 Swi",
            "in the middle of the WebSocket handshake",
        ),
    ] {
        let error = made_of(answer).await;
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").await.unwrap();
        while stream.write_all(&[b'x'; 1000]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    let connector = Connector::new(connect_options()).unwrap();
    let address = Address::new(Scheme::Ws, "127.0.0.1", port);
    let connecting = async { connector.connect(&address).await.map(drop) };
    let both = async { tokio::join!(serving, connecting) };
    let ((), outcome) = tokio::time::timeout(SOON, both).await.unwrap();
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains("longer than 16 KiB"), "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(
        Scheme::Ws,
        "127.0.0.1",
        listener.local_addr().unwrap().port(),
    );
    let connector = Connector::new(ConnectOptions {
        connect_timeout: Duration::from_millis(100),
        ..connect_options()
    });
    let error = connector.unwrap().connect(&address).await.unwrap_err();
    assert!(matches!(error, Error::ConnectTimeout { .. }), "{error:?}");
}

#[tokio::test]
async fn a_path_of_ones_own_works_and_others_are_not_there() {
    let address: Address = "ws://127.0.0.1:0/a/b".parse().unwrap();
    let mut listener = Listener::bind(&address, &listen_options()).await.unwrap();
    let mut address = listener.local_address();
    assert_eq!(address.path, "/a/b");
    let connector = Connector::new(connect_options()).unwrap();
    let (client, _server) = connect(&connector, &mut listener).await;
    assert_eq!(client.handshake(), HandshakeKind::None);
    address.path = "/a".into();
    let serving = async { listener.accept().await.unwrap().handshake().await };
    let (client, server) = tokio::join!(connector.connect(&address), serving);
    assert!(
        matches!(
            client,
            Err(Error::Upgrade {
                status: Some(404),
                ..
            })
        ),
        "{client:?}"
    );
    assert!(server.is_err());
}
