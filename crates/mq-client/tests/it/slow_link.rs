//! Links that take longer for a message than the keep-alive, and servers that do not answer any more.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use mq_client::{Client, ClientBuilder, ConnectOptions, Connector, Event, Outgoing, QoS, Trust};
use mq_proto::{Connection, ServerConfig, Session};
use mq_transport::Listener;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    task::JoinHandle,
};

use crate::util::{self, Peer, listen};

const SECOND: Duration = Duration::from_secs(1);

/// Payload bytes that take the links of these tests several keep-alives.
const LARGE: usize = 400_000;

/// A step that takes longer has failed.
const PATIENCE: Duration = Duration::from_mins(1);

/// Sets a keep-alive of 1 s and a timeout of 1 s for its answer.
fn impatient(builder: ClientBuilder) -> ClientBuilder {
    builder.keep_alive(SECOND).ping_timeout(SECOND)
}

fn large() -> Outgoing {
    let message = Outgoing::to("a/b", vec![7; LARGE]).unwrap();
    message.qos(QoS::AtLeastOnce)
}

/// Waits for the acknowledgement of a large message, over the first connection.
async fn gets_through(client: &Client) {
    let mut events = client.events();
    let mut receipt = client.send(large()).await.unwrap();
    let lost = async {
        loop {
            match events.recv().await {
                Some(Event::Disconnected { why }) => return why,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    };
    tokio::select! {
        acknowledged = receipt.acknowledged() => drop(acknowledged.unwrap()),
        why = lost => panic!("the connection was given up: {why}"),
        () = tokio::time::sleep(PATIENCE) => panic!("the message does not get through"),
    }
}

/// Waits until the client gives up a connection whose server does not answer.
async fn is_given_up(client: &Client) {
    let mut events = client.events();
    let given_up =
        async { while !matches!(events.recv().await.unwrap(), Event::Disconnected { .. }) {} };
    let given_up = tokio::time::timeout(10 * SECOND, given_up).await;
    given_up.expect("a server that does not answer is dead");
}

/// Connects a client over TCP, and returns it with the server's end of its connection, CONNECT accepted.
async fn over_tcp() -> (Client, TcpStream, TcpListener) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(8).unwrap();
    let url = format!("mqtt://{}", listener.local_addr().unwrap());
    let connecting = tokio::spawn(impatient(Client::builder(&url).unwrap()).build());
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.unwrap();
    let mut connect = vec![0; usize::from(head[1])];
    stream.read_exact(&mut connect).await.unwrap();
    stream.write_all(&[0x20, 3, 0, 0, 0]).await.unwrap();
    (connecting.await.unwrap().unwrap(), stream, listener)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_message_gets_through_a_slow_tcp_link() {
    let (client, mut stream, _listener) = over_tcp().await;
    let serving = tokio::spawn(async move {
        // The link: some 80 kB/s, and answers only behind the message.
        let mut read = 0;
        let mut buffer = vec![0; 8 * 1024];
        while read < LARGE {
            read += stream.read(&mut buffer).await.unwrap();
            tokio::time::sleep(SECOND / 10).await;
        }
        // The first packet identifier is 1.
        stream.write_all(&[0x40, 2, 0, 1]).await.unwrap();
        while stream.read(&mut buffer).await.unwrap() > 0 {}
    });
    gets_through(&client).await;
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_over_tcp_is_given_up() {
    let (client, _stream, _listener) = over_tcp().await;
    is_given_up(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_a_part_of_a_message_over_tcp_is_given_up() {
    let (client, mut stream, _listener) = over_tcp().await;
    let _receipt = client.send(large()).await.unwrap();
    let mut part = vec![0; LARGE / 10];
    stream.read_exact(&mut part).await.unwrap();
    is_given_up(&client).await;
}

/// Relays datagrams to `server`, at some 60 kB/s in that direction.
async fn slow_relay(server: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let outer = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let inner = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    inner.connect(server).await.unwrap();
    let address = outer.local_addr().unwrap();
    let relay = tokio::spawn(async move {
        let (queue, mut waiting) = tokio::sync::mpsc::channel::<Vec<u8>>(32);
        let mut client = None;
        let mut up = vec![0; 2048];
        let mut down = vec![0; 2048];
        let sending = async {
            while let Some(datagram) = waiting.recv().await {
                let takes = SECOND * u32::try_from(datagram.len()).unwrap() / 60_000;
                tokio::time::sleep(takes).await;
                let _ = inner.send(&datagram).await;
            }
        };
        let receiving = async {
            loop {
                tokio::select! {
                    Ok((count, from)) = outer.recv_from(&mut up) => {
                        client = Some(from);
                        // A full queue drops its tail.
                        let _ = queue.try_send(up[..count].to_vec());
                    }
                    Ok(count) = inner.recv(&mut down) => {
                        if let Some(client) = client {
                            let _ = outer.send_to(&down[..count], client).await;
                        }
                    }
                }
            }
        };
        tokio::join!(sending, receiving);
    });
    (address, relay)
}

/// Connects a client over QUIC through a slow relay, and returns it with the server's end of its connection.
async fn over_quic() -> (Client, Peer, Listener, JoinHandle<()>) {
    let mut listener = listen("quic").await;
    let port = listener.local_address().port;
    let (relay, task) = slow_relay(([127, 0, 0, 1], port).into()).await;
    let connector = Connector::new(ConnectOptions::new().trust(Trust::Insecure)).unwrap();
    let builder = Client::builder(&format!("quic://{relay}")).unwrap();
    let connecting = tokio::spawn(impatient(builder.connector(connector)).build());
    let incoming = listener.accept().await.unwrap();
    let mut peer = Peer {
        link: incoming.handshake().await.unwrap(),
        connection: Connection::server(util::now(), ServerConfig::default()),
    };
    peer.connect().await;
    peer.accept(Session::new(), false).await;
    (connecting.await.unwrap().unwrap(), peer, listener, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_message_gets_through_a_slow_quic_link() {
    let begin = Instant::now();
    let (client, mut peer, _listener, relay) = over_quic().await;
    let serving = tokio::spawn(async move { peer.serve().await });
    gets_through(&client).await;
    assert!(begin.elapsed() > 2 * SECOND, "the link is not slow");
    serving.abort();
    relay.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_over_quic_is_given_up() {
    let (client, peer, _listener, relay) = over_quic().await;
    // The peer's QUIC still acknowledges packets; nobody reads them.
    is_given_up(&client).await;
    drop(peer);
    relay.abort();
}

/// Writes go on into the buffers of the system meanwhile.
#[tokio::test(start_paused = true)]
async fn a_client_that_publishes_all_the_time_finds_a_server_that_is_gone() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let mut server = util::Server::bind("gone_meanwhile").await;
        let builder = impatient(server.builder()).reconnect(mq_client::Reconnect::default());
        let builder = builder.probes(mq_client::Probes {
            quiet: None,
            busy: None,
        });
        let (client, peer) = server.pair(builder).await;
        let publishing = async {
            loop {
                let message = Outgoing::to("t", "x").unwrap().qos(qos);
                client.send(message).await.unwrap();
                tokio::time::sleep(SECOND / 10).await;
            }
        };
        let again = async {
            tokio::select! {
                () = publishing => unreachable!("it does not end"),
                again = server.link() => again,
            }
        };
        let again = tokio::time::timeout(10 * SECOND, again).await;
        assert!(again.is_ok(), "at {qos:?}");
        drop(peer);
    }
}
