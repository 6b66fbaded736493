//! rustls configurations for TLS and for the TLS within QUIC.

use std::sync::Arc;

use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion, client::Resumption};

use super::{
    client_auth::ClientAuthFiles,
    identity::{read_certificates, read_key},
    provider::seed,
    ticket::{HeldTickets, Scope},
};
#[cfg(feature = "mqtt-next")]
use crate::MQTT_NEXT;
use crate::{
    Address, ConnectOptions, EarlyDataPolicy, Error, ListenOptions, Scheme, ServerIdentity,
    TicketCache,
};

/// A client's configurations, made once: rustls resumes a session only under the same verifier and
/// certificate resolver objects under which it was made.
#[derive(Debug)]
pub(crate) struct ClientConfigs {
    tls: ClientConfig,
    quic: ClientConfig,
}

impl ClientConfigs {
    pub(crate) fn new(options: &ConnectOptions) -> Result<Self, Error> {
        let provider = options.crypto.provider()?;
        seed(&provider)?;
        let verifier = options.trust.verifier(&provider)?;
        let key_log = options.crypto.key_log()?;
        let build = |versions: &[&'static SupportedProtocolVersion]| {
            let builder = ClientConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(versions)
                .map_err(Error::tls)?
                .dangerous()
                .with_custom_certificate_verifier(verifier.clone());
            let mut config = match &options.identity {
                None => builder.with_no_client_auth(),
                Some(identity) => {
                    let chain = read_certificates("client certificate", &identity.certificates)?;
                    let key = read_key(&identity.key)?;
                    builder.with_client_auth_cert(chain, key).map_err(|error| {
                        Error::InvalidFile {
                            what: "private key",
                            path: identity.key.clone(),
                            reason: format!("{error}; it should belong to the certificate"),
                        }
                    })?
                }
            };
            config.alpn_protocols.clone_from(&options.alpn);
            config.enable_early_data = options.early_data && options.resumption;
            if let Some(key_log) = &key_log {
                config.key_log = key_log.clone();
            }
            Ok::<_, Error>(config)
        };
        let tls = build(&options.crypto.versions()?)?;
        let quic = build(&[&rustls::version::TLS13])?;
        Ok(Self { tls, quic })
    }

    /// Makes the configuration for one connection, which costs a handful of reference counts and the ALPN list.
    pub(crate) fn for_connection(
        &self,
        address: &Address,
        tickets: Option<&TicketCache>,
        early_data: bool,
    ) -> ClientConfig {
        let mut config = match address.scheme {
            Scheme::Quic => self.quic.clone(),
            _ => self.tls.clone(),
        };
        config.alpn_protocols = alpn(address.scheme, config.alpn_protocols);
        #[cfg(feature = "mqtt-next")]
        if config.alpn_protocols.iter().any(|name| name == MQTT_NEXT) {
            config.alpn_protocols = vec![MQTT_NEXT.to_vec()];
        }
        config.enable_early_data &= early_data;
        config.resumption = tickets.map_or_else(Resumption::disabled, |tickets| {
            Resumption::store(tickets.for_server(address))
        });
        config
    }
}

/// A server's configuration, and the scope of the tickets that it gives.
#[derive(Debug)]
pub(crate) struct ServerTls {
    pub(crate) config: ServerConfig,
    pub(crate) scope: Scope,
}

/// Makes a server's configuration for TLS, alone or under WebSocket, or for QUIC.
pub(crate) fn server_config(scheme: Scheme, options: &ListenOptions) -> Result<ServerTls, Error> {
    let identity = options.identity_for(scheme)?;
    let provider = options.crypto.provider()?;
    seed(&provider)?;
    let versions = match scheme {
        Scheme::Quic => vec![&rustls::version::TLS13],
        _ => options.crypto.versions()?,
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(Error::tls)?;
    let client_auth = ClientAuthFiles::read(options)?;
    let builder = match &client_auth {
        None => builder.with_no_client_auth(),
        Some(files) => builder.with_client_cert_verifier(files.verifier(&provider)?),
    };
    let mut config = builder
        .with_single_cert(identity.ders(), identity.key())
        .map_err(|error| key_error(identity, &error))?;
    let scope = options.scope(client_auth.as_ref());
    // Stateful sessions, and no `ticketer`: rustls takes early data only for tickets that it can
    // take out of a store.
    config.session_storage = Arc::new(options.ticket_store.scoped(scope));
    config.send_tls13_tickets = options.tickets_per_connection;
    if scheme != Scheme::Quic {
        config.max_fragment_size = Some(record_size(options.max_record_size)?);
    }
    if options.early_data != EarlyDataPolicy::Off {
        // RFC 9001 §4.6.1: QUIC has its own limits, and knows only this value here.
        config.max_early_data_size = match scheme {
            Scheme::Quic => u32::MAX,
            _ => options.early_data_limit,
        };
        // Answers to early data need not wait for the client's Finished.
        config.send_half_rtt_data = true;
    }
    check_alpn(scheme, &options.alpn)?;
    config.alpn_protocols = alpn(scheme, options.alpn.clone());
    if let Some(key_log) = options.crypto.key_log()? {
        config.key_log = key_log;
    }
    Ok(ServerTls { config, scope })
}

/// Returns rustls' size of a record with so many bytes of data: it counts the header as well (RFC 8446 §5.1).
fn record_size(data: u16) -> Result<usize, Error> {
    const HEADER: usize = 5;
    match data {
        512..=16_384 => Ok(usize::from(data) + HEADER),
        _ => Err(Error::InvalidOption {
            option: "TLS record size",
            value: data.to_string(),
            remedy: "give 512 to 16384 bytes".into(),
        }),
    }
}

/// Makes the configuration of one connection, whose tickets are held back, and returns it with its tickets.
pub(crate) fn with_held_tickets(
    config: &ServerConfig,
    options: &ListenOptions,
    scope: Scope,
) -> (ServerConfig, Arc<HeldTickets>) {
    let tickets = Arc::new(HeldTickets::new(&options.ticket_store, scope));
    let mut config = config.clone();
    config.session_storage = tickets.clone();
    (config, tickets)
}

/// Makes the error for a key that does not fit the certificate, or of an unknown kind.
fn key_error(identity: &ServerIdentity, error: &rustls::Error) -> Error {
    match identity.files() {
        Some((certificates, key)) => Error::InvalidFile {
            what: "private key",
            path: key.to_owned(),
            reason: format!(
                "{error}; with `{}` the key should belong to the certificate",
                certificates.display()
            ),
        },
        None => Error::InvalidOption {
            option: "server certificate",
            value: "used with this key".into(),
            remedy: format!("{error}; the key should belong to the certificate"),
        },
    }
}

/// Returns the ALPN names of a transport, given those for MQTT: WebSocket begins with HTTP, for which browsers offer
/// `http/1.1`, and flows need QUIC's streams.
fn alpn(scheme: Scheme, names: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    match scheme {
        Scheme::Wss if !names.is_empty() => vec![b"http/1.1".to_vec()],
        #[cfg(feature = "mqtt-next")]
        Scheme::Tls => names.into_iter().filter(|name| name != MQTT_NEXT).collect(),
        _ => names,
    }
}

/// Refuses names that ALPN cannot carry, and an empty list for QUIC.
pub(crate) fn check_alpn(scheme: Scheme, names: &[Vec<u8>]) -> Result<(), Error> {
    if let Some(name) = names.iter().find(|name| !(1..=255).contains(&name.len())) {
        return Err(Error::InvalidOption {
            option: "ALPN protocol",
            value: format!("{} bytes long", name.len()),
            remedy: "a name has 1 to 255 bytes; MQTT's is `mqtt`".into(),
        });
    }
    if scheme == Scheme::Quic && names.is_empty() {
        return Err(Error::InvalidOption {
            option: "ALPN protocols",
            value: "empty on QUIC".into(),
            remedy: "list at least `mqtt`".into(),
        });
    }
    Ok(())
}
