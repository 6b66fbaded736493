//! TLS of the connections that unit tests make, with this crate's configurations.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};

use crate::{
    Address, ConnectOptions, Connector, CryptoOptions, ListenOptions, Scheme, ServerIdentity,
    Trust, tls::server_config,
};
#[cfg(feature = "aws-lc-rs")]
use crate::{Certificate, KeyExchangeGroup};

/// Makes the TLS of a server with a certificate of its own.
pub(super) fn server_crypto() -> QuicServerConfig {
    server_crypto_with(
        ServerIdentity::self_signed().unwrap(),
        CryptoOptions::default(),
    )
}

/// Makes the TLS of a server that exchanges keys by `group`, with a certificate of its own that has `padding` bytes more than
/// it needs.
#[cfg(feature = "aws-lc-rs")]
pub(super) fn server_crypto_of(group: KeyExchangeGroup, padding: usize) -> QuicServerConfig {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    // Of the arc for examples (RFC 7299 §2).
    let number = &[1, 3, 6, 1, 4, 1, 32473, 1];
    let padding = rcgen::CustomExtension::from_oid_content(number, vec![0; padding]);
    parameters.custom_extensions.push(padding);
    let certificate = parameters.self_signed(&key).unwrap();
    let chain = vec![Certificate::from_der(certificate.der().to_vec())];
    let identity = ServerIdentity::from_der(chain, key.serialize_der()).unwrap();
    server_crypto_with(identity, of_group(group))
}

fn server_crypto_with(identity: ServerIdentity, crypto: CryptoOptions) -> QuicServerConfig {
    let listen = ListenOptions {
        identity: Some(identity),
        crypto,
        ..ListenOptions::default()
    };
    let tls = server_config(Scheme::Quic, &listen).unwrap().config;
    QuicServerConfig::try_from(tls).unwrap()
}

/// Makes the TLS of a client that connects to port `port` and trusts any certificate.
pub(super) fn client_crypto(port: u16) -> Arc<QuicClientConfig> {
    client_crypto_with(port, CryptoOptions::default())
}

/// Makes the TLS of a client that exchanges keys by `group`; otherwise as [`client_crypto`].
#[cfg(feature = "aws-lc-rs")]
pub(super) fn client_crypto_of(port: u16, group: KeyExchangeGroup) -> Arc<QuicClientConfig> {
    client_crypto_with(port, of_group(group))
}

fn client_crypto_with(port: u16, crypto: CryptoOptions) -> Arc<QuicClientConfig> {
    let connector = Connector::new(ConnectOptions {
        trust: Trust::Insecure,
        crypto,
        ..ConnectOptions::default()
    });
    let tls = connector.unwrap().configs().unwrap();
    let to = Address::new(Scheme::Quic, "10.0.0.2", port);
    let tls = tls.for_connection(&to, None, false);
    Arc::new(QuicClientConfig::try_from(tls).unwrap())
}

#[cfg(feature = "aws-lc-rs")]
fn of_group(group: KeyExchangeGroup) -> CryptoOptions {
    CryptoOptions {
        key_exchange_groups: vec![group],
        ..CryptoOptions::default()
    }
}
