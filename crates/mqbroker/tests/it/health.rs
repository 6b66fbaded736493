//! `mqbroker health`, against a broker that serves, one that has ended and what is no broker.

use std::{io::Write as _, net::TcpListener, thread};

use mq_testkit::free_port;

use crate::program::{Broker, mqbroker};

fn health(option: &str, place: &str) -> (Option<i32>, String) {
    let output = mqbroker(&["health", option, place], "");
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_broker_that_serves_is_healthy_until_it_ends() {
    let port = format!("127.0.0.1:{}", free_port());
    let configuration = format!("[admin]\nsocket = \"FOLDER/socket\"\nhttp = \"{port}\"\n");
    let mut broker = Broker::new("tcp", &configuration);
    let (socket, config) = (broker.file("socket"), broker.file("broker.toml"));
    let places = [
        ("--socket", socket.to_str().unwrap()),
        ("--config", config.to_str().unwrap()),
        ("--http", &port),
    ];
    for (option, place) in places {
        assert_eq!(health(option, place), (Some(0), String::new()), "{option}");
    }
    broker.end();
    for (option, place) in places {
        let (code, error) = health(option, place);
        assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains("no broker answers at"), "{error}");
    }
}

#[test]
fn a_port_for_every_address_is_asked_on_loopback() {
    let port = free_port();
    let configuration = format!("[admin]\nhttp = \"0.0.0.0:{port}\"\n");
    let broker = Broker::new("tcp", &configuration);
    let config = broker.file("broker.toml");
    assert_eq!(
        health("--config", config.to_str().unwrap()),
        (Some(0), String::new())
    );
}

#[test]
fn a_broker_that_does_not_serve_is_not_healthy() {
    for (answer, told) in [
        (
            "HTTP/1.1 503 Service Unavailable\r\n\r\nthe store has failed\n",
            "mqbroker: the broker does not serve: the store has failed\n",
        ),
        ("SSH-2.0-x\r\n", "is not a broker\n"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let serve = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            // The request is read before the end: a reset would take the answer along.
            let _ = std::io::Read::read(&mut stream, &mut [0; 1024]);
        });
        let (code, error) = health("--http", &place);
        serve.join().unwrap();
        assert_eq!(code, Some(1));
        assert!(error.ends_with(told), "{error}");
    }
}

#[test]
fn a_configuration_without_a_door_is_a_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("broker.toml");
    std::fs::write(&config, "").unwrap();
    let (code, error) = health("--config", config.to_str().unwrap());
    assert_eq!(code, Some(1));
    assert!(
        error.contains("admin.socket and admin.http are missing"),
        "{error}"
    );
}
