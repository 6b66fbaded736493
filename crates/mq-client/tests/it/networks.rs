//! A client over every transport on the loopback interface, and early data where the transport has it.

use std::time::Duration;

use mq_client::{
    Client, ConnectOptions, Connector, EarlyData, HandshakeKind, Outgoing, QoS, Trust,
};
use mq_proto::{Connection, Event, ServerConfig, Session};
use mq_transport::Listener;

use crate::util::{self, Peer, listen, text};

const SCHEMES: [&str; 5] = ["mqtt", "mqtts", "quic", "ws", "wss"];

fn connector() -> Connector {
    Connector::new(ConnectOptions {
        trust: Trust::Insecure,
        early_data: true,
        ..ConnectOptions::default()
    })
    .unwrap()
}

/// Serves one client until it leaves; returns what it published, and how much of it was early.
async fn serve(listener: &mut Listener) -> (Vec<String>, usize) {
    let link = listener.accept().await.unwrap().handshake().await.unwrap();
    let connection = Connection::server(util::now(), ServerConfig::default());
    let mut peer = Peer { connection, link };
    let early = peer.link.is_early();
    peer.connect().await;
    peer.accept(Session::new(), false).await;
    let (mut payloads, mut early_count) = (Vec::new(), 0);
    while let Some(event) = peer.event().await {
        match event {
            Event::Publish(received) => {
                payloads.push(text(&received));
                early_count += usize::from(early);
                if received.ticket.is_some() {
                    peer.ack(received.ticket).await;
                }
            }
            Event::Subscribe { subscribe, .. } => {
                let reasons = vec![mq_client::ReasonCode::Success];
                peer.suback(subscribe.packet_id, reasons).await;
            }
            Event::Closed(_) => {
                peer.link.close(Duration::from_secs(1)).await;
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    (payloads, early_count)
}

#[tokio::test]
async fn early_messages_are_early_data_the_second_time() {
    for scheme in ["mqtt", "mqtts", "quic"] {
        let mut listener = listen(scheme).await;
        let url = listener.local_address().to_string();
        let connector = connector();
        for attempt in [1, 2] {
            let mut builder = Client::builder(&url).unwrap().connector(connector.clone());
            let reading = Outgoing::to("a/b", attempt.to_string())
                .unwrap()
                .qos(QoS::AtLeastOnce);
            let mut receipt = builder.publish_early(reading).unwrap();
            let client = builder.start().unwrap();
            let ((payloads, early), times) = tokio::join!(serve(&mut listener), async {
                let times = client.connected().await.unwrap();
                receipt.acknowledged().await.unwrap();
                assert!(client.stats().await.unwrap().bytes_sent > 0);
                client.disconnect().await.unwrap();
                times
            });
            assert_eq!(payloads, [attempt.to_string()], "{scheme}");
            let expected = match (scheme, attempt) {
                ("mqtt", _) => (HandshakeKind::None, EarlyData::NotOffered, 0),
                (_, 1) => (HandshakeKind::Full, EarlyData::NotOffered, 0),
                _ => (HandshakeKind::Resumed, EarlyData::Accepted, 1),
            };
            // The server's CONNACK may overtake the end of the handshake.
            let handshake = match times.handshake {
                HandshakeKind::Pending => expected.0,
                known => known,
            };
            let early_data = match times.early_data {
                EarlyData::Pending => expected.1,
                known => known,
            };
            assert_eq!(
                (handshake, early_data, early),
                expected,
                "{scheme} {attempt}"
            );
        }
    }
}

#[tokio::test]
async fn many_messages_arrive_in_order_over_every_transport() {
    for scheme in SCHEMES {
        let mut listener = listen(scheme).await;
        let url = listener.local_address().to_string();
        let builder = Client::builder(&url).unwrap().connector(connector());
        let sending = async {
            let client = builder.build().await.unwrap();
            for n in 0..20_000 {
                let qos = if n % 2 == 0 {
                    QoS::AtMostOnce
                } else {
                    QoS::AtLeastOnce
                };
                let message = Outgoing::to("a/b", n.to_string()).unwrap().qos(qos);
                client.send(message).await.unwrap();
            }
            client.disconnect().await.unwrap();
        };
        let (served, ()) = tokio::join!(serve(&mut listener), sending);
        assert!(
            served
                .0
                .iter()
                .map(|n| n.parse::<u32>().unwrap())
                .eq(0..20_000),
            "{scheme}"
        );
    }
}

/// QUIC's idle timeout does not end an MQTT connection without keep-alive (0).
#[tokio::test]
async fn without_a_keep_alive_a_silent_connection_over_quic_lasts() {
    let mut listener = listen("quic").await;
    let mut options = ConnectOptions {
        trust: Trust::Insecure,
        ..ConnectOptions::default()
    };
    options.quic.idle_timeout = Some(Duration::from_millis(600));
    let client = Client::builder(&listener.local_address().to_string())
        .unwrap()
        .connector(Connector::new(options).unwrap())
        .keep_alive(Duration::ZERO)
        .start()
        .unwrap();
    let silent = async {
        client.connected().await.unwrap();
        let mut events = client.events();
        let something = tokio::time::timeout(Duration::from_secs(2), events.recv());
        let something = something.await;
        assert!(something.is_err(), "{something:?}");
        client
            .publish("a/b", "still here", QoS::AtLeastOnce)
            .await
            .unwrap();
        client.disconnect().await.unwrap();
    };
    let ((payloads, _), ()) = tokio::join!(serve(&mut listener), silent);
    assert_eq!(payloads, ["still here"]);
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_ends_the_client() {
    for scheme in ["mqtts", "quic", "wss"] {
        let mut listener = listen(scheme).await;
        let url = listener.local_address().to_string();
        let connector = Connector::new(ConnectOptions {
            trust: Trust::Fingerprint("00".repeat(32)),
            ..ConnectOptions::default()
        });
        let client = Client::builder(&url)
            .unwrap()
            .connector(connector.unwrap())
            .start()
            .unwrap();
        let accepting = tokio::spawn(async move {
            let _ = listener.accept().await.unwrap().handshake().await;
        });
        let ended = tokio::time::timeout(Duration::from_secs(5), client.closed()).await;
        let error = ended.unwrap();
        assert!(!error.is_temporary(), "{scheme}: {error}");
        accepting.await.unwrap();
    }
}

#[tokio::test]
async fn a_path_that_is_not_there_ends_the_client_and_an_overloaded_proxy_does_not() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    for (answer, temporary) in [
        ("404 Not Found", false),
        ("403 Forbidden", false),
        ("302 Found", false),
        ("200 OK", true),
        ("429 Too Many Requests", true),
        ("503 Service Unavailable", true),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/here", listener.local_addr().unwrap());
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            assert!(request.starts_with(b"GET /here HTTP/1.1\r\n"));
            let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream
        };
        let building = Client::builder(&url).unwrap().build();
        let (_stream, built) = tokio::join!(serving, building);
        let error = built.unwrap_err();
        assert_eq!(error.is_temporary(), temporary, "{error}");
        assert!(error.to_string().contains(answer), "{error}");
    }
}
