//! TLS of the connections that unit tests make, with this crate's configurations.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};

use crate::{
    Address, ConnectOptions, Connector, ListenOptions, Scheme, ServerIdentity, Trust,
    tls::server_config,
};

/// Makes the TLS of a server with a certificate of its own.
pub(super) fn server_crypto() -> QuicServerConfig {
    let listen = ListenOptions {
        identity: Some(ServerIdentity::self_signed().unwrap()),
        ..ListenOptions::default()
    };
    let tls = server_config(Scheme::Quic, &listen).unwrap().config;
    QuicServerConfig::try_from(tls).unwrap()
}

/// Makes the TLS of a client that connects to port `port` and trusts any certificate.
pub(super) fn client_crypto(port: u16) -> Arc<QuicClientConfig> {
    let connector = Connector::new(ConnectOptions {
        trust: Trust::Insecure,
        ..ConnectOptions::default()
    });
    let tls = connector.unwrap().configs().unwrap();
    let to = Address::new(Scheme::Quic, "10.0.0.2", port);
    let tls = tls.for_connection(&to, None, false);
    Arc::new(QuicClientConfig::try_from(tls).unwrap())
}
