//! Connecting a node to its servers.

use std::{
    error::Error as _,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, RequestErrorKind, ServerAddr,
    rustls::{ClientConfig, InvalidMessage},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{NatsEngine, NatsSettings, REQUEST_TIMEOUT, nats_error};
use crate::{Escaped, cluster::EngineError, lock::lock};

/// Time that one attempt to connect may take.
const CONNECT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between two attempts to connect.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the log warns that a node still waits for its servers.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes around a packet in its log: the client's identifier, and a topic that the packet names by an alias.
const PACKET_OVERHEAD_BYTES: usize = 192 << 10;

/// The reason for which a node cannot connect.
#[derive(Debug)]
pub(super) enum ConnectFailure {
    /// Waiting mends nothing.
    Misconfigured(String),
    /// The servers may be starting.
    Unavailable(String),
}

impl From<EngineError> for ConnectFailure {
    fn from(error: EngineError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// The last error that a server sent on this node's connection.
#[derive(Debug, Default)]
pub(super) struct LastServerError(Mutex<Option<String>>);

impl NatsEngine {
    /// Connects, and makes the streams of a new cluster. Servers that do not answer are waited for.
    ///
    /// # Errors
    /// At once if the settings are wrong, the servers do not let this node in, or a node of that name runs already; and
    /// if no server has let it do that within [`NatsSettings::connect_timeout`].
    pub async fn connect(settings: &NatsSettings, node: &str) -> Result<Self, EngineError> {
        let addresses = settings.check(node).map_err(EngineError::misconfigured)?;
        let tls = tls_config(settings, &addresses).map_err(EngineError::misconfigured)?;
        let last_error = Arc::new(LastServerError::default());
        let options = options(settings, node, &addresses, tls, &last_error)
            .map_err(EngineError::misconfigured)?;
        let began = Instant::now();
        let mut warned_at: Option<Instant> = None;
        loop {
            let left = settings.connect_timeout.saturating_sub(began.elapsed());
            let open = Self::try_connect(settings, node, options.clone(), addresses.clone());
            let opened = timeout(left.min(CONNECT_ATTEMPT_TIMEOUT), open).await;
            let problem = match opened {
                Ok(Ok(engine)) => return Ok(engine),
                Ok(Err(ConnectFailure::Misconfigured(problem))) => {
                    return Err(EngineError::misconfigured(problem));
                }
                Ok(Err(ConnectFailure::Unavailable(problem))) => problem,
                Err(_) => "no answer".to_owned(),
            };
            let problem = match lock(&last_error.0).take() {
                Some(last_error) => format!("{problem}; server's error: {last_error}"),
                None => problem,
            };
            if began.elapsed() + CONNECT_RETRY_INTERVAL >= settings.connect_timeout {
                let servers = settings.servers.join(", ");
                let seconds = settings.connect_timeout.as_secs();
                return Err(EngineError::unavailable(format!(
                    "no connection to {servers} within {seconds} s: {problem}"
                )));
            }
            if warned_at.is_none_or(|warned_at| warned_at.elapsed() >= WARNING_INTERVAL) {
                warned_at = Some(Instant::now());
                warn!(node, reason = %problem, "cluster: waiting for NATS servers");
            }
            sleep(CONNECT_RETRY_INTERVAL).await;
        }
    }

    /// # Errors
    /// If the servers do not take a packet of that size, in bytes, with what is around it.
    pub(in crate::cluster) fn check_size(&self, packet: usize) -> Result<(), EngineError> {
        let most = self.client.server_info().max_payload;
        if packet + PACKET_OVERHEAD_BYTES <= most {
            return Ok(());
        }
        Err(EngineError::misconfigured(format!(
            "limits.max_packet_size is {packet}, and the NATS servers take {most} bytes at once, with {PACKET_OVERHEAD_BYTES} around \
             a packet: set `max_payload: 8MB` there, or lower the limit here"
        )))
    }
}

impl NatsSettings {
    /// See [`ClusterSettings::check_files`](crate::cluster::ClusterSettings::check_files).
    pub(in crate::cluster) fn check_files(&self, node: &str) -> Result<(), String> {
        let addresses = self.check(node)?;
        tls_config(self, &addresses).map(drop)
    }
}

fn tls_config(
    settings: &NatsSettings,
    addresses: &[ServerAddr],
) -> Result<Option<ClientConfig>, String> {
    let tls = addresses.iter().any(ServerAddr::tls_required);
    #[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
    return super::tls::config(settings, tls).map(Some);
    #[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
    {
        let _ = settings;
        if tls {
            return Err(
                "servers: this build has no TLS: build it with aws-lc-rs or ring".to_owned(),
            );
        }
        Ok(None)
    }
}

fn options(
    settings: &NatsSettings,
    node: &str,
    addresses: &[ServerAddr],
    tls: Option<ClientConfig>,
    last_error: &Arc<LastServerError>,
) -> Result<ConnectOptions, String> {
    let is_encrypted = addresses.iter().any(ServerAddr::tls_required);
    let last_error = Arc::clone(last_error);
    let mut options = ConnectOptions::new()
        .name(format!("mqbroker {node}"))
        .no_echo()
        .request_timeout(Some(REQUEST_TIMEOUT))
        .require_tls(is_encrypted)
        .ignore_discovered_servers()
        .event_callback(move |event| {
            last_error.note(&event);
            std::future::ready(())
        });
    if let Some(config) = tls {
        options = options.tls_client_config(config);
    }
    if let Some((name, password)) = &settings.user {
        let password = String::from_utf8(password.bytes().into());
        let password = password.map_err(|_| "password_file: it is not UTF-8".to_owned())?;
        options = options.user_and_password(name.clone(), password);
    }
    Ok(options)
}

impl LastServerError {
    fn note(&self, event: &Event) {
        match event {
            Event::Connected => info!("cluster: connected to NATS server"),
            Event::Disconnected => warn!("cluster: connection to NATS server lost"),
            Event::ServerError(error) => {
                let error = error.to_string();
                let before = lock(&self.0).replace(error.clone());
                // A server says it again at each try.
                if before.as_ref() != Some(&error) {
                    warn!(%error, "cluster: NATS server reported an error");
                }
            }
            _ => {}
        }
    }
}

/// Connects to one of the servers.
pub(super) async fn connect(
    settings: &NatsSettings,
    options: ConnectOptions,
    addresses: Vec<ServerAddr>,
) -> Result<Client, ConnectFailure> {
    let connected = options.connect(addresses).await;
    connected.map_err(|error| connect_failure(&error, settings))
}

fn connect_failure(error: &ConnectError, settings: &NatsSettings) -> ConnectFailure {
    use async_nats::rustls::Error as Tls;

    let servers = settings.servers.join(", ");
    let problem = match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            match &settings.user {
                Some((name, _)) => format!(
                    "user: {servers} do not let {name:?} in with the password of `password_file`"
                ),
                None => format!(
                    "user: {servers} let nobody in without a user: name it, and its password by \
                     `password_file`"
                ),
            }
        }
        _ => match tls_error(error) {
            Some(Tls::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                format!("servers: {servers} answer without TLS")
            }
            Some(error) if settings.ca.is_none() && servers.starts_with("nats:") => format!(
                "servers: {servers} want TLS ({error}): take tls://, and name their authorities by `ca`"
            ),
            Some(error) => format!("servers: no TLS with {servers}: {error}"),
            None => return ConnectFailure::Unavailable(error.to_string()),
        },
    };
    ConnectFailure::Misconfigured(problem)
}

/// Returns the TLS error of a failed connection, if the handshake failed.
fn tls_error(error: &ConnectError) -> Option<&async_nats::rustls::Error> {
    let source = error.source()?.downcast_ref::<io::Error>()?;
    source.get_ref()?.downcast_ref()
}

/// Fails if a node of that name runs already.
pub(super) async fn check_not_running(
    client: &Client,
    subject: &str,
    node: &str,
) -> Result<(), ConnectFailure> {
    match client.request(subject.to_owned(), Bytes::new()).await {
        Ok(answer) => {
            let at = String::from_utf8_lossy(&answer.payload);
            let at = Escaped(&at);
            Err(ConnectFailure::Misconfigured(format!(
                "node: {node:?} runs already, at {at}: give each node a name of its own"
            )))
        }
        Err(error) => match error.kind() {
            // One that does not answer is about to lose its life.
            RequestErrorKind::NoResponders | RequestErrorKind::TimedOut => Ok(()),
            _ => Err(nats_error(error).into()),
        },
    }
}

/// Answers others that ask whether a node of this name runs, as long as the set lives.
pub(super) async fn serve_presence_checks(
    client: &Client,
    subject: String,
    tasks: &mut JoinSet<()>,
) -> Result<(), ConnectFailure> {
    let mut asked = client.subscribe(subject).await.map_err(nats_error)?;
    let client = client.clone();
    tasks.spawn(async move {
        while let Some(message) = asked.next().await {
            if let Some(reply) = message.reply {
                let at = client.server_info().client_ip;
                // The asker takes silence for nobody.
                let _ = client.publish(reply, at.into()).await;
            }
        }
    });
    Ok(())
}
