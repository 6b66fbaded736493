//! The application protocol, which TLS and QUIC negotiate alike.

use mq_transport::{Address, ConnectOptions, Connector, Error, ListenOptions, Listener, Scheme};

use crate::common::{any_address, connect, connect_options, listen, listen_options};

fn offering(names: &[&str]) -> ConnectOptions {
    ConnectOptions {
        alpn: list(names),
        ..connect_options()
    }
}

async fn taking(scheme: Scheme, names: &[&str]) -> Listener {
    let options = ListenOptions {
        alpn: list(names),
        ..listen_options()
    };
    Listener::bind(&any_address(scheme), &options)
        .await
        .unwrap()
}

fn list(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.as_bytes().to_vec()).collect()
}

/// Returns the protocol that both ends report as negotiated.
async fn negotiated(options: ConnectOptions, listener: &mut Listener) -> Option<String> {
    let connector = Connector::new(options).unwrap();
    let (client, server) = connect(&connector, listener).await;
    let [client, server] = [client, server].map(|link| link.info().tls.unwrap().alpn);
    assert_eq!(client, server);
    client
}

over!(the_servers_first_choice_that_the_client_offers_is_taken: tls, quic);
async fn the_servers_first_choice_that_the_client_offers_is_taken(scheme: Scheme) {
    let mut listener = taking(scheme, &["one", "two"]).await;
    for (offered, taken) in [
        (&["two", "one"][..], "one"),
        (&["three", "two"], "two"),
        (&["one"], "one"),
    ] {
        let alpn = negotiated(offering(offered), &mut listener).await;
        assert_eq!(alpn.as_deref(), Some(taken));
    }
}

over!(a_device_that_offers_the_name_of_aws_gets_in: tls, quic);
async fn a_device_that_offers_the_name_of_aws_gets_in(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    for (offered, taken) in [
        (&["x-amzn-mqtt-ca"][..], "x-amzn-mqtt-ca"),
        (&["x-amzn-mqtt-ca", "mqtt"], "mqtt"),
    ] {
        let alpn = negotiated(offering(offered), &mut listener).await;
        assert_eq!(alpn.as_deref(), Some(taken));
    }
}

over!(a_client_without_alpn_gets_in: tls, wss);
async fn a_client_without_alpn_gets_in(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    assert_eq!(negotiated(offering(&[]), &mut listener).await, None);
}

#[tokio::test]
async fn a_websocket_is_http_whatever_is_offered_elsewhere() {
    let mut listener = taking(Scheme::Wss, &["one"]).await;
    for offered in [&["mqtt"][..], &["x-amzn-mqtt-ca", "two"]] {
        let alpn = negotiated(offering(offered), &mut listener).await;
        assert_eq!(alpn.as_deref(), Some("http/1.1"));
    }
}

#[tokio::test]
async fn a_client_that_offers_mqtt_to_wss_is_refused() {
    let mut listener = listen(Scheme::Wss).await;
    let mut address = Address::new(Scheme::Tls, "127.0.0.1", 0);
    address.port = listener.local_address().port;
    let connector = Connector::new(connect_options()).unwrap();
    let serving = async { listener.accept().await.unwrap().handshake().await };
    let (client, server) = tokio::join!(connector.connect(&address), serving);
    assert!(matches!(client, Err(Error::Handshake { .. })), "{client:?}");
    assert!(matches!(server, Err(Error::Handshake { .. })), "{server:?}");
}

#[tokio::test]
async fn a_tls_server_without_alpn_takes_all_clients() {
    let mut listener = taking(Scheme::Tls, &[]).await;
    for offered in [&["mqtt"][..], &["h2"], &[]] {
        assert_eq!(negotiated(offering(offered), &mut listener).await, None);
    }
}

over!(a_client_of_another_protocol_is_refused: tls, quic);
async fn a_client_of_another_protocol_is_refused(scheme: Scheme) {
    let mut listener = listen(scheme).await;
    let address = listener.local_address();
    let connector = Connector::new(offering(&["h2", "http/1.1"])).unwrap();
    let serving = async { listener.accept().await.unwrap().handshake().await };
    let (client, server) = tokio::join!(connector.connect(&address), serving);
    // The alert is number 120; QUIC says it as 256 + 120.
    let client = client.unwrap_err();
    assert!(matches!(client, Error::Handshake { .. }), "{client:?}");
    let text = client.to_string().to_lowercase();
    assert!(
        text.contains("noapplicationprotocol") || text.contains("120"),
        "{text}"
    );
    let server = server.unwrap_err();
    assert!(matches!(server, Error::Handshake { .. }), "{server:?}");
}

#[tokio::test]
async fn quic_is_not_possible_without_alpn() {
    let expected = "ALPN protocols cannot be empty on QUIC: list at least `mqtt`";
    let address = listen(Scheme::Quic).await.local_address();
    let connector = Connector::new(offering(&[])).unwrap();
    let error = connector.connect(&address).await.unwrap_err();
    assert_eq!(error.to_string(), expected);
    let options = ListenOptions {
        alpn: Vec::new(),
        ..listen_options()
    };
    let error = Listener::bind(&any_address(Scheme::Quic), &options).await;
    assert_eq!(error.unwrap_err().to_string(), expected);
}

#[test]
fn names_that_alpn_cannot_carry_are_refused() {
    for (name, length) in [("", 0), (&*"x".repeat(256), 256)] {
        let error = Connector::new(offering(&[name])).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "ALPN protocol cannot be {length} bytes long: \
                 a name has 1 to 255 bytes; MQTT's is `mqtt`"
            )
        );
    }
    assert!(Connector::new(offering(&[&"x".repeat(255)])).is_ok());
}
