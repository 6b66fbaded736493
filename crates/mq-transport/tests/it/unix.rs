//! Unix sockets: links over them, and their files.

use std::{fs, path::Path};

use mq_transport::Outbox;
use mq_transport::{Address, Connector, Error, HandshakeKind, Link, Listener, Progress, Scheme};

use crate::common::{SOON, accept, connect_options, listen_options, receive, send};

fn address(folder: &tempfile::TempDir) -> Address {
    let path = folder.path().join("broker.sock");
    format!("unix://{}", path.display()).parse().unwrap()
}

async fn listen(address: &Address) -> Result<Listener, Error> {
    Listener::bind(address, &listen_options()).await
}

async fn pair(listener: &mut Listener) -> (Link, Link) {
    let connector = Connector::new(connect_options()).unwrap();
    let address = listener.local_address();
    let (client, server) = tokio::join!(connector.connect(&address), accept(listener));
    (client.unwrap(), server)
}

#[tokio::test]
async fn bytes_go_both_ways_and_the_end_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = listen(&address(&folder)).await.unwrap();
    let (mut client, mut server) = pair(&mut listener).await;
    for _ in 0..10 {
        let much = vec![7; 100_000];
        send(&mut client, &much).await;
        assert_eq!(receive(&mut server, 100_000).await, much);
        send(&mut server, b"ok").await;
        assert_eq!(receive(&mut client, 2).await, b"ok");
    }
    let (info, stats) = (server.info(), server.stats());
    assert_eq!((info.scheme, info.peer_address), (Scheme::Unix, None));
    assert_eq!(stats.handshake, HandshakeKind::None);
    assert_eq!((stats.bytes_received, stats.bytes_sent), (1_000_000, 20));
    server.move_here().unwrap();
    send(&mut client, b"last").await;
    let closing = client.close(SOON);
    let reading = async {
        assert_eq!(receive(&mut server, 4).await, b"last");
        let end = server.progress(&mut Outbox::new(), true).await.unwrap();
        assert_eq!(end, Progress::Closed);
        drop(server);
    };
    tokio::join!(closing, reading);
}

#[tokio::test]
async fn the_file_goes_with_its_listener_and_a_left_one_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let address = address(&folder);
    let path = Path::new(&address.path);
    // As a process leaves it that was killed.
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    let mut listener = listen(&address).await.unwrap();
    let second = listen(&address).await.unwrap_err();
    assert!(
        matches!(second, Error::Listen { .. } | Error::PortInUse { .. }),
        "{second}"
    );
    let (_client, _server) = pair(&mut listener).await;
    listener.close();
    assert!(matches!(listener.accept().await, Err(Error::Closed)));
    assert!(!path.exists());
    fs::write(path, "a user's").unwrap();
    let error = listen(&address).await.unwrap_err().to_string();
    assert!(error.contains("another kind of file"), "{error}");
    assert_eq!(fs::read(path).unwrap(), b"a user's");
}

#[tokio::test]
async fn a_socket_that_nobody_listens_at_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let address = address(&folder);
    let connector = Connector::new(connect_options()).unwrap();
    for _ in 0..2 {
        let error = connector.connect(&address).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        drop(std::os::unix::net::UnixListener::bind(&address.path));
    }
    for text in [
        "unix://",
        "unix://run/x",
        &format!("unix:///{}", "x".repeat(107)),
    ] {
        let error = text.parse::<Address>().unwrap_err().to_string();
        assert!(error.contains("is not the path of a socket"), "{error}");
    }
}
