//! A client from the options.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use mq_client::{
    Address, Client, ClientBuilder, ConnectOptions, ConnectTimes, Connector, EarlyData,
    HandshakeKind, Scheme, TopicName, Will,
};
use tracing_subscriber::filter::LevelFilter;

use super::{
    args::{BrokerArgs, Transport},
    goodbye::DRAIN,
    profile::Profile,
    properties::Properties,
};
use crate::{log, tls_files};

/// Client that the options describe, ready to connect.
pub(crate) struct Plan {
    pub(crate) client: ClientBuilder,
    pub(crate) address: Address,
    /// The topic in the URL.
    pub(crate) topic: Option<String>,
    pub(crate) properties: Properties,
}

/// Neither an option nor the URL names a topic.
pub(crate) const NO_TOPIC: &str = "no topic: give -t, or one in the URL";

impl Plan {
    /// Returns the topic of the option or, without one, of the URL.
    pub(crate) fn topic(&self, option: Option<String>) -> anyhow::Result<String> {
        let topic = option.or_else(|| self.topic.clone());
        topic.ok_or_else(|| anyhow!(NO_TOPIC))
    }
}

/// Returns the reason for which no more messages come: the error that ended the client or, where the client goes on, that of its subscription,
/// which the broker refused after it had lost the session.
pub(crate) async fn ended(client: &Client) -> anyhow::Error {
    // A client that ends does so at once.
    match tokio::time::timeout(Duration::from_secs(1), client.closed()).await {
        Ok(error) => error.into(),
        Err(_) => anyhow!("the broker no longer grants the subscription"),
    }
}

/// Returns the kind of a handshake as the end of a line (resumed, early data); empty if there was none.
pub(crate) fn how(times: &ConnectTimes) -> &'static str {
    match (times.handshake, times.early_data) {
        (_, EarlyData::Accepted) => ", resumed with 0-RTT",
        (_, EarlyData::Rejected) => ", 0-RTT refused",
        (HandshakeKind::Full, _) => ", full handshake",
        (HandshakeKind::Resumed, _) => ", resumed",
        (HandshakeKind::None | HandshakeKind::Pending, _) => "",
    }
}

/// A broker as it was named.
#[derive(PartialEq, Eq, Debug)]
struct Target {
    address: Address,
    user: Option<String>,
    password: Option<String>,
    topic: Option<String>,
}

/// Reads the options; a connection is not made yet.
pub(crate) fn plan(args: &BrokerArgs) -> anyhow::Result<Plan> {
    if args.debug {
        log::write_from(LevelFilter::DEBUG);
    }
    let named = args.broker.as_ref().or(args.url.as_ref());
    let profile = match named.and_then(|named| named.strip_prefix('@')) {
        Some(name) => Some(Profile::find(name)?),
        None => None,
    };
    let args = &with_profile(args, profile.as_ref());
    let target = match profile.as_ref().map(|profile| &profile.url).or(named) {
        Some(url) => Target::parse(url)?,
        None if args.host.contains('@') => {
            bail!(
                "a host has no user and no password: write them with -u and MQ_PASSWORD, or a URL"
            )
        }
        None => Target::of_parts(args),
    };
    let properties = Properties::parse(&args.properties)?;
    let client = Client::builder(&target.address.to_string())?
        .connector(Connector::new(options(args))?)
        .version(args.protocol_version)
        .keep_alive(Duration::from_secs(args.keepalive.into()))
        .disconnect_timeout(DRAIN)
        .clean_start(!args.disable_clean_session)
        .quic_streams(args.streams.clone())
        .quic_datagrams(args.datagrams)
        .connect_properties(properties.connect.clone());
    let mut client = identify(client, args, &target)?;
    let expiry = args.session_expiry_interval;
    let for_ever = Duration::from_secs(u32::MAX.into());
    let kept = args.disable_clean_session.then_some(for_ever);
    let of_property = properties.connect.session_expiry_interval;
    let of_property = of_property.map(|seconds| Duration::from_secs(seconds.into()));
    client = client.session_expiry(expiry.or(of_property).or(kept).unwrap_or_default());
    if let Some(maximum) = args.max_inflight.and_then(std::num::NonZeroU16::new) {
        client = client.max_inflight(maximum);
    }
    for url in &args.fallback {
        if url.contains('@') {
            bail!("--fallback takes no user and no password: they are those of the first broker");
        }
        client = client.fallback(url)?;
    }
    if let Some(topic) = &args.will_topic {
        client = client.will(will(topic, args, &properties)?);
    }
    Ok(Plan {
        client,
        address: target.address,
        topic: target.topic,
        properties,
    })
}

/// Fills options that the command line does not give from the profile.
fn with_profile(args: &BrokerArgs, profile: Option<&Profile>) -> BrokerArgs {
    let mut args = args.clone();
    let Some(profile) = profile else {
        return args;
    };
    args.username = args.username.or_else(|| profile.username.clone());
    if args.password.is_none() && args.password_file.is_none() {
        args.password_file.clone_from(&profile.password_file);
    }
    if args.id_prefix.is_none() {
        args.id = args.id.or_else(|| profile.id.clone());
    }
    args.cafile = args.cafile.or_else(|| profile.cafile.clone());
    args.cert = args.cert.or_else(|| profile.cert.clone());
    args.key = args.key.or_else(|| profile.key.clone());
    args.insecure |= profile.insecure;
    if args.fallback.is_empty() {
        args.fallback.clone_from(&profile.fallback);
    }
    args
}

fn options(args: &BrokerArgs) -> ConnectOptions {
    let mut options = ConnectOptions {
        early_data: true,
        server_name: args.server_name.clone(),
        local_address: args.bind,
        ..ConnectOptions::default()
    };
    tls_files::trust(&mut options, args.cafile.as_ref(), args.insecure);
    tls_files::identity(&mut options, args.cert.as_ref().zip(args.key.as_ref()));
    options.crypto.key_log = args.keylog;
    if let Some(version) = args.tls_version {
        (options.crypto.min_version, options.crypto.max_version) = (version, version);
    }
    if let Some(name) = &args.tls_alpn {
        options = options.alpn([name.as_bytes()]);
    }
    if let Some(repeat) = args.quic_repeat {
        options.quic.repeat = repeat;
    }
    options
}

fn identify(
    mut client: ClientBuilder,
    args: &BrokerArgs,
    target: &Target,
) -> anyhow::Result<ClientBuilder> {
    let id = match (&args.id, &args.id_prefix) {
        (Some(id), _) => id.clone(),
        (None, Some(prefix)) => format!("{prefix}{}", std::process::id()),
        (None, None) if args.disable_clean_session => {
            bail!("a session that is kept needs a client identifier: -i")
        }
        (None, None) => format!("mq-{:08x}", fastrand::u32(..)),
    };
    client = client.client_id(id)?;
    if let Some(user) = args.username.as_ref().or(target.user.as_ref()) {
        client = client.user_name(user.clone())?;
    }
    let password = match (&args.password, &args.password_file) {
        (Some(password), _) => Some(password.text().to_owned()),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("password file {}", file.display()))?;
            Some(text.lines().next().unwrap_or_default().to_owned())
        }
        (None, None) => match std::env::var("MQ_PASSWORD") {
            Ok(password) => Some(password),
            Err(_) => target.password.clone(),
        },
    };
    if let Some(password) = password {
        client = client.password(password);
    }
    Ok(client)
}

fn will(topic: &str, args: &BrokerArgs, properties: &Properties) -> anyhow::Result<Will> {
    let payload = args.will_payload.clone().unwrap_or_default();
    Ok(Will {
        topic: TopicName::new(topic)?,
        payload: payload.into(),
        qos: args.will_qos.unwrap_or_default(),
        retain: args.will_retain,
        properties: properties.will.clone(),
    })
}

impl Target {
    /// Parses a URL with a user, a password and a topic, or a host alone.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("mqtt", text));
        if scheme == "unix" {
            // All of it is the path of the socket.
            return Ok(Self {
                address: text.parse()?,
                user: None,
                password: None,
                topic: None,
            });
        }
        // A password may have an `@` in it, a host has none.
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (rest, None),
        };
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let (user, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((user, "")) => (Some(user), None),
            Some((user, password)) => (Some(user), Some(password)),
            None => (None, None),
        };
        let is_websocket = scheme == "ws" || scheme == "wss";
        let mut url = format!("{scheme}://{host}");
        if let Some(path) = path.filter(|_| is_websocket) {
            url = format!("{url}/{path}");
        }
        // The text may hold a password, which no error shows.
        if user.is_none() && path.is_some_and(|path| path.contains('@')) && host.contains(':') {
            let (_, port) = host.rsplit_once(':').unwrap_or_default();
            if port.parse::<u16>().is_err() {
                bail!("{scheme}://…: a / in a user or a password is written %2F");
            }
        }
        let address: Address = url.parse().with_context(|| format!("{scheme}://{host}"))?;
        if address.scheme == Scheme::Mem {
            return Err(anyhow!("{url}: a pipe inside one process"));
        }
        Ok(Self {
            address,
            user: user.map(decoded).transpose()?,
            password: password.map(decoded).transpose()?,
            topic: path
                .filter(|path| !is_websocket && !path.is_empty())
                .map(str::to_owned),
        })
    }

    fn of_parts(args: &BrokerArgs) -> Self {
        let is_secure = args.cafile.is_some()
            || args.cert.is_some()
            || args.tls_use_os_certs
            || args.insecure
            || args.port == Some(8883);
        let usual = if is_secure {
            Transport::Tls
        } else {
            Transport::Tcp
        };
        let scheme = match args.transport.unwrap_or(usual) {
            Transport::Tcp => Scheme::Tcp,
            Transport::Tls => Scheme::Tls,
            Transport::Ws => Scheme::Ws,
            Transport::Wss => Scheme::Wss,
            Transport::Quic => Scheme::Quic,
        };
        let port = args.port.unwrap_or(scheme.default_port());
        Self {
            address: Address::new(scheme, args.host.as_str(), port),
            user: None,
            password: None,
            topic: None,
        }
    }
}

/// Undoes percent-encoding (RFC 3986 §2.1).
fn decoded(text: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
        let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
            bail!("the user or password in the URL has a % without two hexadecimal digits");
        };
        bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
    }
    String::from_utf8(bytes).map_err(|_| anyhow!("the user or password in the URL is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_user_password_host_and_topic() {
        let target = Target::parse("mqtts://ann:p%40ss@host:1234/plant/7").unwrap();
        assert_eq!(target.address, Address::new(Scheme::Tls, "host", 1234));
        assert_eq!(target.user.as_deref(), Some("ann"));
        assert_eq!(target.password.as_deref(), Some("p@ss"));
        assert_eq!(target.topic.as_deref(), Some("plant/7"));
        let bare = Target::parse("host").unwrap();
        assert_eq!(bare.address, Address::new(Scheme::Tcp, "host", 1883));
        let websocket = Target::parse("wss://host/mqtt?x=1").unwrap();
        assert_eq!(
            (websocket.address.path.as_str(), websocket.topic),
            ("/mqtt?x=1", None)
        );
    }

    #[test]
    fn an_error_shows_no_password() {
        for text in ["quic://ann:secret@host:port/", "nope://ann:secret@host"] {
            let error = format!("{:#}", Target::parse(text).unwrap_err());
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
