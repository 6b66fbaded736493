//! How a node comes in: connecting, and the streams.

use std::{
    error::Error as _,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, RequestErrorKind, ServerAddr,
    jetstream::{
        Context,
        stream::{Config, DiscardPolicy, Stream},
    },
    rustls::{ClientConfig, InvalidMessage},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{ANSWERED, NatsEngine, NatsSettings, failed};
use crate::{
    Escaped,
    cluster::{APPENDED_ONCE, EngineError},
    lock::lock,
};

/// How long one try may take.
const ONE_TRY: Duration = Duration::from_secs(10);

/// Between two tries.
const AGAIN: Duration = Duration::from_secs(1);

/// How often the log says that a node still waits for its servers.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Bytes around a packet in its log: the client's identifier, and a topic that the packet names by an alias.
const AROUND: usize = 192 << 10;

/// Where the stream of values says how many logs there are.
const SHARDS: &str = "mq.shards";

/// Why a node does not come in.
#[derive(Debug)]
pub(super) enum Failure {
    /// Waiting mends nothing.
    Mistake(String),
    /// The servers may be starting.
    NotYet(String),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::NotYet(error.to_string())
    }
}

/// What the servers said last of this node's connection.
#[derive(Debug, Default)]
pub(super) struct Said(Mutex<Option<String>>);

impl NatsEngine {
    /// Connects, and makes the streams where they are not there yet. Servers that do not answer are waited for.
    ///
    /// # Errors
    /// At once if the settings are wrong, the servers do not let this node in, or a node of that name runs already; and
    /// if no server has let it do that within [`NatsSettings::patience`].
    pub async fn connect(settings: &NatsSettings, node: &str) -> Result<Self, EngineError> {
        let addresses = settings.check(node).map_err(EngineError::misconfigured)?;
        let tls = tls_config(settings, &addresses).map_err(EngineError::misconfigured)?;
        let said = Arc::new(Said::default());
        let options =
            options(settings, node, &addresses, tls, &said).map_err(EngineError::misconfigured)?;
        let began = Instant::now();
        let mut spoke: Option<Instant> = None;
        loop {
            let left = settings.patience.saturating_sub(began.elapsed());
            let open = Self::open(settings, node, options.clone(), addresses.clone());
            let opened = timeout(left.min(ONE_TRY), open).await;
            let problem = match opened {
                Ok(Ok(engine)) => return Ok(engine),
                Ok(Err(Failure::Mistake(problem))) => {
                    return Err(EngineError::misconfigured(problem));
                }
                Ok(Err(Failure::NotYet(problem))) => problem,
                Err(_) => "they do not answer".to_owned(),
            };
            let problem = match lock(&said.0).take() {
                Some(said) => format!("{problem}; a server says: {said}"),
                None => problem,
            };
            if began.elapsed() + AGAIN >= settings.patience {
                let servers = settings.servers.join(", ");
                let seconds = settings.patience.as_secs();
                return Err(EngineError::unavailable(format!(
                    "{servers} did not let it in within {seconds} s: {problem}"
                )));
            }
            if spoke.is_none_or(|spoke| spoke.elapsed() >= SAID_EVERY) {
                spoke = Some(Instant::now());
                warn!(node, %problem, "the node waits for the servers of its cluster");
            }
            sleep(AGAIN).await;
        }
    }

    /// # Errors
    /// If the servers do not take a packet of that size, in bytes, with what is around it.
    pub(in crate::cluster) fn check_size(&self, packet: usize) -> Result<(), EngineError> {
        let most = self.client.server_info().max_payload;
        if packet + AROUND <= most {
            return Ok(());
        }
        Err(EngineError::misconfigured(format!(
            "limits.max_packet_size is {packet}, and the NATS servers take {most} bytes at once, with {AROUND} around \
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
    said: &Arc<Said>,
) -> Result<ConnectOptions, String> {
    let is_encrypted = addresses.iter().any(ServerAddr::tls_required);
    let said = Arc::clone(said);
    let mut options = ConnectOptions::new()
        .name(format!("mqbroker {node}"))
        .no_echo()
        .request_timeout(Some(ANSWERED))
        .require_tls(is_encrypted)
        .ignore_discovered_servers()
        .event_callback(move |event| {
            said.note(&event);
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

impl Said {
    fn note(&self, event: &Event) {
        match event {
            Event::Connected => info!("connected to a server of the cluster"),
            Event::Disconnected => warn!("the connection to a server of the cluster is lost"),
            Event::ServerError(error) => {
                let error = error.to_string();
                let before = lock(&self.0).replace(error.clone());
                // A server says it again at each try.
                if before.as_ref() != Some(&error) {
                    warn!(%error, "a server of the cluster refuses something");
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
) -> Result<Client, Failure> {
    let connected = options.connect(addresses).await;
    connected.map_err(|error| why(&error, settings))
}

fn why(error: &ConnectError, settings: &NatsSettings) -> Failure {
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
                format!("servers: what answers at {servers} speaks no TLS")
            }
            Some(error) if settings.ca.is_none() && servers.starts_with("nats:") => format!(
                "servers: {servers} want TLS ({error}): take tls://, and name their authorities by `ca`"
            ),
            Some(error) => format!("servers: no TLS with {servers}: {error}"),
            None => return Failure::NotYet(error.to_string()),
        },
    };
    Failure::Mistake(problem)
}

/// What TLS has against the other side, or that against this node.
fn tls_error(error: &ConnectError) -> Option<&async_nats::rustls::Error> {
    let source = error.source()?.downcast_ref::<io::Error>()?;
    source.get_ref()?.downcast_ref()
}

/// Asks whether a node of that name runs already.
pub(super) async fn is_alone(client: &Client, subject: &str, node: &str) -> Result<(), Failure> {
    match client.request(subject.to_owned(), Bytes::new()).await {
        Ok(answer) => {
            let at = String::from_utf8_lossy(&answer.payload);
            let at = Escaped(&at);
            Err(Failure::Mistake(format!(
                "node: {node:?} runs already, at {at}: give each node a name of its own"
            )))
        }
        Err(error) => match error.kind() {
            // One that does not answer is about to lose its life.
            RequestErrorKind::NoResponders | RequestErrorKind::TimedOut => Ok(()),
            _ => Err(failed(error).into()),
        },
    }
}

/// Answers others that ask whether a node of this name runs, as long as the set lives.
pub(super) async fn be_here(
    client: &Client,
    subject: String,
    tasks: &mut JoinSet<()>,
) -> Result<(), Failure> {
    let mut asked = client.subscribe(subject).await.map_err(failed)?;
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

/// Makes the streams that are missing, and returns that of the values.
pub(super) async fn streams(settings: &NatsSettings, context: &Context) -> Result<Stream, Failure> {
    let NatsSettings {
        cluster,
        shards,
        replicas,
        ..
    } = settings;
    let values = Config {
        name: format!("{cluster}-values"),
        subjects: vec![format!("{cluster}.value.>")],
        max_messages_per_subject: 1,
        allow_message_ttl: true,
        num_replicas: *replicas,
        metadata: [(SHARDS.to_owned(), shards.to_string())].into(),
        ..Config::default()
    };
    let values = context.get_or_create_stream(values).await.map_err(failed)?;
    let known = &values.cached_info().config;
    if let Some(there) = known.metadata.get(SHARDS)
        && *there != shards.to_string()
    {
        return Err(Failure::Mistake(format!(
            "shards: the cluster {cluster:?} has {there}, and not {shards}: it cannot be changed"
        )));
    }
    if known.num_replicas != *replicas {
        warn!(
            replicas = known.num_replicas,
            "the cluster keeps the replicas that it was made with"
        );
    }
    for shard in 0..*shards {
        let log = Config {
            name: format!("{cluster}-log-{shard}"),
            subjects: vec![format!("{cluster}.log.{shard}")],
            discard: DiscardPolicy::New,
            num_replicas: *replicas,
            duplicate_window: APPENDED_ONCE,
            ..Config::default()
        };
        let made = context.get_or_create_stream(log).await;
        made.map_err(failed)?;
    }
    Ok(values)
}
