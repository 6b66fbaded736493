//! Listeners behind proxies: clients are known by the address in the PROXY header.

use std::{net::SocketAddr, process::Command, time::Duration};

use mq_broker::{
    Settings,
    view::{Banned, Query, Refusal},
};
use mq_client::{Client, QoS, Reconnect};
use mq_relay::{Relay, RelayOptions};
use mq_testkit::{Running, Scheme, TestBroker, free_port, listens, next, program};
use mq_transport::{Address, ConnectOptions, Connector, ProxyHeader, ProxyProtocol, ProxyVersion};

/// Transports that carry a header.
const OVER_TCP: [Scheme; 4] = [Scheme::Tcp, Scheme::Tls, Scheme::Ws, Scheme::Wss];

/// Bound on what takes no time.
const SOON: Duration = Duration::from_secs(20);

/// Has all listeners over TCP take headers from this machine.
fn behind_a_proxy(settings: &mut Settings, required: bool) {
    let over_tcp = settings.listeners.iter();
    let over_tcp = over_tcp.filter(|at| at.scheme != Scheme::Quic);
    let proxies = ProxyProtocol {
        required,
        trusted: vec!["127.0.0.1/32".parse().unwrap()],
    };
    settings.proxies = over_tcp.map(|at| (at.clone(), proxies.clone())).collect();
}

/// Returns the builder of a client that a proxy relays, at this address.
fn relayed(
    broker: &TestBroker,
    scheme: Scheme,
    id: &str,
    address: &str,
) -> mq_client::ClientBuilder {
    let at = SocketAddr::from(([192, 0, 2, 1], 8883));
    let header = ProxyHeader::new(SocketAddr::new(address.parse().unwrap(), 4711), at);
    let connector = broker.connector(false);
    let client = broker.client(scheme, id).reconnect(Reconnect::never());
    client.connector(connector.with_proxy_header(&header, ProxyVersion::V2))
}

/// Waits until the last refusal has this reason: its client may notice it before the broker has noted it.
async fn refused_for(broker: &TestBroker, reason: &str) -> Refusal {
    let noted = async {
        loop {
            let last = broker.broker().refusals(&Query::default()).items;
            if let Some(last) = last.into_iter().next().filter(|last| last.reason == reason) {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, noted).await.expect(reason)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_and_bans_are_for_the_address_in_the_header() {
    let broker = TestBroker::start_with(|settings| {
        behind_a_proxy(settings, true);
        settings.max_connections_per_address = 1;
    })
    .await;
    for (number, scheme) in OVER_TCP.into_iter().enumerate() {
        let [first, second, third] =
            [1, 2, 3].map(|client| format!("203.0.113.{}", 10 * number + client));
        let one = relayed(&broker, scheme, "one", &first)
            .build()
            .await
            .unwrap();
        let two = relayed(&broker, scheme, "two", &second);
        let _two = two.build().await.unwrap();
        let shown = broker.broker().client("one").await.unwrap();
        assert_eq!(shown.peer, Some(format!("{first}:4711").parse().unwrap()));
        let more = relayed(&broker, scheme, "more", &first).build().await;
        more.expect_err("its address has a connection");
        let refusal = refused_for(&broker, "too many connections of its address").await;
        assert_eq!(refusal.peer.map(|peer| peer.ip()), first.parse().ok());
        one.disconnect().await.unwrap();
        let banned = Banned::Address(second.parse().unwrap());
        broker.broker().ban(banned, 1).unwrap();
        let back = relayed(&broker, scheme, "two", &second).build().await;
        back.expect_err("it is banned");
        relayed(&broker, scheme, "three", &third)
            .build()
            .await
            .unwrap();
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_header_gets_in_only_where_it_is_optional() {
    for required in [true, false] {
        let broker = TestBroker::start_with(|settings| behind_a_proxy(settings, required)).await;
        for scheme in OVER_TCP {
            let direct = broker
                .client(scheme, "direct")
                .reconnect(Reconnect::never());
            let direct = direct.build().await;
            assert_eq!(direct.is_err(), required, "{scheme:?}");
            if required {
                refused_for(&broker, "handshake failed").await;
            }
        }
        broker.client(Scheme::Quic, "quic").build().await.unwrap();
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_at_a_listener_that_takes_none_is_refused_by_name() {
    let broker = TestBroker::start().await;
    let client = relayed(&broker, Scheme::Tcp, "x", "203.0.113.1");
    client.build().await.unwrap_err();
    let reason = "a PROXY header at a listener without proxy_protocol";
    refused_for(&broker, reason).await;
    broker.shutdown().await;
}

/// Starts `HAProxy`, which listens at two ports: for clients, and for relays that send headers.
async fn haproxy(broker: &Address) -> Option<(Running, [u16; 2])> {
    let program = program(&["haproxy"])?;
    let ports = [free_port(), free_port()];
    let Address { host, port, .. } = broker;
    let config = format!(
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
         listen clients\n bind 127.0.0.1:{}\n server broker {host}:{port} send-proxy-v2 check inter 200ms check-send-proxy\n\
         listen relays\n bind 127.0.0.1:{} accept-proxy\n server broker {host}:{port} send-proxy\n",
        ports[0], ports[1]
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config).unwrap();
    let mut command = Command::new(program);
    command.arg("-db").arg("-f").arg(file.path());
    let running = Running(command.spawn().unwrap());
    for port in ports {
        listens(port).await;
    }
    Some((running, ports))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_tells_the_broker_and_understands_the_relay() {
    let broker = TestBroker::start_with(|settings| behind_a_proxy(settings, true)).await;
    let Some((_haproxy, [for_clients, for_relays])) = haproxy(&broker.address(Scheme::Tcp)).await
    else {
        return;
    };
    let from = |last: u8| {
        let options = ConnectOptions {
            local_address: Some([127, 0, 0, last].into()),
            ..ConnectOptions::default()
        };
        Connector::new(options).unwrap()
    };
    let at = |port: u16, id: &str, last: u8| {
        let client = Client::builder(&format!("mqtt://127.0.0.1:{port}")).unwrap();
        client.connector(from(last)).client_id(id).unwrap()
    };
    let direct = at(for_clients, "direct", 5).build().await.unwrap();
    let mut messages = direct.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    for (version, last) in [(ProxyVersion::V1, 6), (ProxyVersion::V2, 7)] {
        let to = Address::new(Scheme::Tcp, "127.0.0.1", for_relays);
        let listen = Address::new(Scheme::Tcp, "127.0.0.1", 0);
        let mut options = RelayOptions::new([listen], [to]);
        options.proxy_protocol = Some(version);
        let relay = Relay::bind(options).await.unwrap();
        let port = relay.local_addresses()[0].port;
        tokio::spawn(relay.serve());
        let relayed = at(port, "relayed", last).build().await.unwrap();
        relayed.publish("t", "x", QoS::AtLeastOnce).await.unwrap();
        assert_eq!(next(&mut messages).await.payload, "x");
        let shown = broker.broker().client("relayed").await.unwrap();
        let address = shown.peer.map(|peer| peer.ip());
        assert_eq!(address, Some([127, 0, 0, last].into()), "{version:?}");
        relayed.disconnect().await.unwrap();
    }
    let shown = broker.broker().client("direct").await.unwrap();
    let address = shown.peer.map(|peer| peer.ip());
    assert_eq!(address, Some([127, 0, 0, 5].into()));
    // Several of HAProxy's own checks have come meanwhile, which are no clients.
    assert_eq!(broker.broker().metrics().log_ins_refused.get(), 0);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_relay_sends_no_header_over_quic_and_says_so_at_its_start() {
    let listen = Address::new(Scheme::Tcp, "127.0.0.1", 0);
    let to = Address::new(Scheme::Quic, "127.0.0.1", 14_567);
    let mut options = RelayOptions::new([listen], [to]);
    options.proxy_protocol = Some(ProxyVersion::V2);
    let bound = tokio::time::timeout(SOON, Relay::bind(options)).await;
    let error = bound.unwrap().unwrap_err().to_string();
    assert_eq!(
        error,
        "proxy protocol cannot be used to quic://127.0.0.1:14567: only a connection over TCP carries its header"
    );
}
