//! Options of a client, checked where they are given.

use core::num::{NonZeroU16, NonZeroU32};
use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mq_codec::{
    ByteStr, Connect, ConnectProperties, QoS, StringError, SubscriptionId, TopicFilter, TopicName,
    Version, Will, whole_seconds,
};
use mq_proto::{ClientConfig, DataLanes, Probes, Spread};
use mq_transport::{Address, ConnectOptions, Connector, Scheme};

use crate::{
    AuthError, AuthMethod, Client, Error, Outgoing, QueueLimits, QuicStreams, Receipt, Reconnect,
    SubscribeOptions, Subscription,
    client::Handle,
    driver::{Driver, Settings},
    lock::lock,
    queue::Push,
    responses::{Responses, default_topic},
    shared::Shared,
};

/// Default of [`session_expiry`](ClientBuilder::session_expiry) for a client that reconnects: enough to restart a
/// broker or to change networks.
const DEFAULT_SESSION_EXPIRY: Duration = Duration::from_mins(5);

/// Default of [`head_start`](ClientBuilder::head_start).
///
/// RFC 8305 has 250 ms, for addresses of equal rank; twice that lets a handshake over QUIC end first on a path with a
/// round trip of up to half a second. QUIC sends a lost first packet again after three times
/// [`QuicOptions::initial_rtt`](mq_transport::QuicOptions::initial_rtt), 1 s, so that a client that loses it connects
/// over the next address meanwhile.
const DEFAULT_HEAD_START: Duration = Duration::from_millis(500);

/// Default of [`fallback_memory`](ClientBuilder::fallback_memory). Firewalls rarely change within minutes, and a
/// lost race costs no more than the head start.
const DEFAULT_FALLBACK_MEMORY: Duration = Duration::from_mins(10);

/// Default of [`ClientBuilder::request_timeout`](crate::ClientBuilder::request_timeout): a person's
/// patience, and enough for a connection to be lost and made again.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Default of [`ClientBuilder::max_requests`](crate::ClientBuilder::max_requests).
const DEFAULT_MAX_REQUESTS: usize = 1_000;

/// Longest duration that an option has: about 30 years, which every system's clock can add to the present. Longer ones
/// count as this.
const LONGEST: Duration = Duration::from_hours(30 * 365 * 24);

/// Default of [`ClientBuilder::probes`].
const PROBES: Probes = Probes {
    quiet: Some(Duration::from_secs(15)),
    busy: Some(Duration::from_millis(1_500)),
};

/// Options of a [`Client`]; see [`Client::builder`].
///
/// [`build`](Self::build) connects and waits for the server, [`start`](Self::start) does not wait.
/// A version in brackets, such as (5.0), means that earlier versions ignore the option.
/// [`Duration::MAX`] means no limit: timeouts and waits of more than 30 years count as 30 years.
///
/// ```no_run
/// use std::time::Duration;
/// use mq_client::{Client, ConnectOptions, Connector, Trust, Version};
///
/// # async fn example() -> Result<(), mq_client::Error> {
/// let client = Client::builder("mqtts://broker.example")?
///     .version(Version::V3_1_1)
///     .client_id("sensor-7")?
///     .credentials("sensor", "secret")?
///     .keep_alive(Duration::from_secs(30))
///     .connector(Connector::new(ConnectOptions::new().trust(Trust::ca_file("ca.pem")))?)
///     .build()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built or started"]
pub struct ClientBuilder {
    /// Addresses of the server, at least one, the preferred one first.
    addresses: Vec<Address>,
    head_start: Duration,
    fallback_memory: Duration,
    plaintext_fallback: bool,
    shared: Arc<Shared>,
    /// Connector of the links; `None` for one with the defaults.
    connector: Option<Connector>,
    config: ClientConfig,
    client_id: Option<ByteStr>,
    session_expiry: Option<Duration>,
    reconnect: Reconnect,
    /// Timeout of an attempt to connect; `None` for the connector's.
    connect_timeout: Option<Duration>,
    disconnect_timeout: Duration,
    request_timeout: Duration,
    max_requests: usize,
    /// Topic of responses; `None` for one made from the client identifier.
    response_topic: Option<TopicName>,
    manual_ack: bool,
    subscription_ids: bool,
    auth_method: Option<Box<dyn AuthMethod>>,
    probes: Probes,
    quic_streams: QuicStreams,
    /// Number of subscriptions made by [`subscribe_early`](ClientBuilder::subscribe_early).
    early: u32,
    seed: u64,
}

impl Client {
    /// Connects with the defaults and waits until the server has accepted.
    ///
    /// `url` is as in [`builder`](Self::builder); see [`ClientBuilder`] for the defaults.
    ///
    /// # Errors
    /// [`Error::Address`], or as [`ClientBuilder::build`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.build().await
    }

    /// Makes options for a client of the server at `url`: `mqtt://HOST`, `mqtts://HOST`, `quic://HOST`,
    /// `ws://HOST/PATH` or `wss://HOST/PATH`, each with `:PORT` if it is not 1883, 8883, 14567, 8083 or 8084, and
    /// without a path where that is `/mqtt`; or `mem://NAME`.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn builder(url: &str) -> Result<ClientBuilder, Error> {
        Ok(ClientBuilder::new(url.parse()?))
    }
}

impl ClientBuilder {
    pub(crate) fn new(address: Address) -> Self {
        Self {
            addresses: vec![address],
            head_start: DEFAULT_HEAD_START,
            fallback_memory: DEFAULT_FALLBACK_MEMORY,
            plaintext_fallback: false,
            shared: Arc::new(Shared::default()),
            connector: None,
            config: ClientConfig::new(Connect::new(Version::V5, ByteStr::empty())),
            client_id: None,
            session_expiry: None,
            reconnect: Reconnect::default(),
            connect_timeout: None,
            disconnect_timeout: Duration::from_secs(5),
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            max_requests: DEFAULT_MAX_REQUESTS,
            response_topic: None,
            manual_ack: false,
            subscription_ids: true,
            auth_method: None,
            probes: PROBES,
            quic_streams: QuicStreams::Control,
            early: 0,
            seed: rand::random(),
        }
    }

    /// Adds another address of the same server, for networks where earlier addresses do not work:
    /// `.fallback("mqtts://broker.example")` after a `quic://` address, where UDP is blocked. Each call adds one.
    /// Default: none.
    ///
    /// Whenever the client connects, it begins with the first address and gives it a
    /// [head start](Self::head_start); see the [crate's documentation](crate#several-addresses).
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn fallback(mut self, url: &str) -> Result<Self, Error> {
        self.addresses.push(url.parse()?);
        Ok(self)
    }

    /// Adds several [fallback](Self::fallback) addresses, in this order.
    pub fn fallbacks(mut self, addresses: impl IntoIterator<Item = Address>) -> Self {
        self.addresses.extend(addresses);
        self
    }

    /// Sets the time that each address has to complete its handshake before the client also tries the next one. An
    /// address that fails does not hold up the next. Default: 500 ms, in which a handshake over
    /// QUIC ends unless a packet is lost.
    pub fn head_start(mut self, head_start: Duration) -> Self {
        self.head_start = head_start.min(LONGEST);
        self
    }

    /// Sets the time for which the client remembers that the first address lost the race on a network, and begins
    /// with the winner there; zero switches this off. Default: 10 minutes, after which it tries the first again.
    ///
    /// The client knows a network by the local address that it uses there. The memory is the client's
    /// own, and ends with it. The client does not give up a working connection for a better address.
    pub fn fallback_memory(mut self, keep: Duration) -> Self {
        self.fallback_memory = keep.min(LONGEST);
        self
    }

    /// Lets plaintext addresses stand in for encrypted ones. An attacker who blocks the encrypted
    /// addresses can then read and change everything, the password too. Default: such a list is an
    /// error.
    pub fn allow_plaintext_fallback(mut self) -> Self {
        self.plaintext_fallback = true;
        self
    }

    /// Sets the version of MQTT. Default: 5.0.
    pub fn version(mut self, version: Version) -> Self {
        self.config.connect.version = version;
        self
    }

    /// Sets the client identifier, by which the server knows the session. Default: `mq-` and eight random hexadecimal
    /// digits, the same for all connections of the client.
    ///
    /// # Errors
    /// [`Error::Text`].
    pub fn client_id<T>(mut self, client_id: T) -> Result<Self, Error>
    where
        T: TryInto<ByteStr>,
        Error: From<T::Error>,
    {
        self.client_id = Some(client_id.try_into()?);
        Ok(self)
    }

    /// Sets Clean Start (Clean Session before 5.0): `true` if the first connection begins with an empty session.
    /// Default: yes.
    ///
    /// With MQTT 5.0 this is about the first connection alone: automatic reconnects always resume
    /// the session (Clean Start 0), which the server keeps for the
    /// [session expiry](Self::session_expiry).
    ///
    /// MQTT 3.1 and 3.1.1 have one flag for both ends of a session. With yes, *every* connection is
    /// clean: the server forgets the session with each lost connection. The client then subscribes
    /// again and sends unacknowledged messages again by itself. Messages that came for it
    /// meanwhile are lost, and a QoS 2 message in flight may arrive twice. With no, every connection
    /// resumes the session, the first too, and the server keeps the session without limit, even
    /// after [`Client::disconnect`]: give such a client an identifier of its own.
    pub fn clean_start(mut self, clean_start: bool) -> Self {
        self.config.connect.clean_start = clean_start;
        self
    }

    /// Sets the Session Expiry Interval: the time for which an MQTT 5.0 server keeps the session after the connection
    /// is lost (§3.1.2.11.2), rounded down to seconds; `u32::MAX` seconds and more mean no limit. Default: 5 minutes
    /// if the client reconnects (enough to restart a broker or to change networks), else 0.
    ///
    /// With the default, the session ends with [`Client::disconnect`]. With a value given here, it also
    /// outlives `disconnect`.
    pub fn session_expiry(mut self, expiry: Duration) -> Self {
        self.session_expiry = Some(expiry);
        self
    }

    /// Sets the time of silence after which the client tests the connection with PINGREQ (§3.1.2.10): rounded up to
    /// seconds, 65,535 at most, 0 is off. A 5.0 server may replace it. Default: 60 s, below the idle timeouts of common
    /// NATs.
    ///
    /// It means the same over QUIC. Where it is off, or longer than
    /// [`QuicOptions::idle_timeout`](mq_transport::QuicOptions::idle_timeout), QUIC keeps the connection
    /// by a packet after half of that timeout, or after its own keep-alive interval.
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        let seconds = whole_seconds(keep_alive);
        self.config.connect.keep_alive = u16::try_from(seconds).unwrap_or(u16::MAX);
        self
    }

    /// Sets the intervals at which a subscriber over QUIC tests its path by PINGREQ: after a silence of `quiet`, and
    /// of `busy` if messages arrived in quick succession before. Default: 15 s and 1.5 s.
    ///
    /// A NAT that forgets a client gives it a new address with the next packet that the client sends. Until then the
    /// server sends to the old address, and a subscriber that sends nothing receives nothing until its keep-alive.
    /// Many NATs forget UDP after 30 s, some after 20 s (RFC 4787 asks for 2 minutes), so 15 s also keeps the
    /// address. `busy` notices a restarted NAT within 2 s. Probes cost a quiet subscriber one exchange of 2 bytes in
    /// 15 s, and a busy subscriber nothing until its flow falls silent.
    ///
    /// A client without a subscription does not probe, nor does a client over TCP, where a new address is a new
    /// connection. [`QuicOptions::keep_alive_interval`](mq_transport::QuicOptions::keep_alive_interval) takes the
    /// place of `quiet` where it is set. [`Probes::default`] switches probes off. A probe without an answer within
    /// the [`ping_timeout`](Self::ping_timeout) ends the connection, as any PINGREQ does, unless the keep-alive is
    /// off.
    pub fn probes(mut self, probes: Probes) -> Self {
        let bounded = |wait: Option<Duration>| wait.map(|wait| wait.min(LONGEST));
        self.probes = Probes {
            quiet: bounded(probes.quiet),
            busy: bounded(probes.busy),
        };
        self
    }

    /// Sets the QUIC streams on which messages and subscriptions are sent. Other transports have one stream. With the
    /// feature `mqtt-next`, and a connector whose [`alpn`](field@mq_transport::ConnectOptions::alpn) names
    /// `MQTT-next`, each stream begins with the head of a flow. Default: all on the control stream.
    pub fn quic_streams(mut self, streams: QuicStreams) -> Self {
        self.config.lanes = match streams {
            QuicStreams::Control => DataLanes::None,
            _ => DataLanes::Plain,
        };
        self.quic_streams = streams;
        self
    }

    /// Asks the server to spread the messages of subscriptions over QUIC streams that it opens, so that a lost
    /// packet holds up the messages of one topic alone. CONNECT says so (5.0, a user property that this project's
    /// broker knows); any other server delivers as ever. The server opens no more streams at a time than
    /// [`QuicOptions::max_bidi_streams`](mq_transport::QuicOptions::max_bidi_streams) grants. A message of one
    /// topic never overtakes an earlier one, except with [`Spread::PerPublish`].
    ///
    /// Subscriptions then go on the control stream whatever [`quic_streams`](Self::quic_streams) says, since the
    /// messages of a subscription on a stream of its own stay on that stream. [`Spread::Control`] asks a broker
    /// that delivers in such a way by itself not to do so.
    ///
    /// Default: CONNECT says nothing.
    pub fn quic_deliveries(mut self, deliveries: Spread) -> Self {
        self.config.deliveries = Some(deliveries);
        self
    }

    /// Sends QoS 0 messages as QUIC datagrams in both directions, where they can be; see [`Outgoing::datagram`].
    /// CONNECT asks the server to do its part (5.0, a user property that this project's broker knows). Default: no.
    pub fn quic_datagrams(mut self, datagrams: bool) -> Self {
        self.config.datagrams = datagrams;
        self
    }

    /// Sets the time within which PINGRESP, or any other byte, has to arrive after a PINGREQ; else the connection
    /// counts as lost. A link that still sends parts of a large message, however slowly, is not lost. Default: 20 s.
    pub fn ping_timeout(mut self, timeout: Duration) -> Self {
        self.config.ping_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the user name and the password. Default: neither.
    ///
    /// # Errors
    /// [`Error::Text`] if the user name is no MQTT string.
    pub fn credentials(
        self,
        user_name: impl Into<String>,
        password: impl Into<Bytes>,
    ) -> Result<Self, Error> {
        Ok(self.user_name(user_name)?.password(password))
    }

    /// Sets the user name and no password.
    ///
    /// # Errors
    /// [`Error::Text`] if it is no MQTT string.
    pub fn user_name(mut self, user_name: impl Into<String>) -> Result<Self, Error> {
        self.config.connect.user_name = Some(ByteStr::new(user_name)?);
        Ok(self)
    }

    /// Sets the password; MQTT 3.1 and 3.1.1 want a user name with it.
    pub fn password(mut self, password: impl Into<Bytes>) -> Self {
        self.config.connect.password = Some(password.into());
        self
    }

    /// Sets the message that the server publishes when the connection is lost. Default: none.
    pub fn will(mut self, will: Will) -> Self {
        self.config.connect.will = Some(will);
        self
    }

    /// Sets SCRAM-SHA-256 as [`auth_method`](Self::auth_method), with a user name and a password (5.0).
    ///
    /// The password does not leave this side, and the server has to prove that it knows the password.
    /// CONNECT has no separate user name then. The first connection derives a key from the password,
    /// in some milliseconds; later connections use the key again.
    ///
    /// # Errors
    /// [`Error::Auth`] if either is empty or not printable ASCII: SCRAM requires other characters to be
    /// prepared (RFC 4013), which this client does not support.
    pub fn scram(self, user_name: &str, password: &str) -> Result<Self, Error> {
        let scram = crate::scram::Scram::new(user_name, password);
        let scram = scram.ok_or_else(|| {
            AuthError::new("SCRAM: user name and password have to be printable ASCII")
        })?;
        Ok(self.auth_method(scram))
    }

    /// Sets a method of enhanced authentication (5.0, §4.12); earlier versions ignore it. Default: none.
    pub fn auth_method(mut self, method: impl AuthMethod) -> Self {
        self.auth_method = Some(Box::new(method));
        self
    }

    /// Adds a name and a value of CONNECT for the server's application (5.0).
    ///
    /// # Errors
    /// [`Error::Text`].
    pub fn user_property<N, V>(mut self, name: N, value: V) -> Result<Self, Error>
    where
        N: TryInto<ByteStr>,
        V: TryInto<ByteStr>,
        Error: From<N::Error> + From<V::Error>,
    {
        let property = (name.try_into()?, value.try_into()?);
        self.config
            .connect
            .properties
            .user_properties
            .push(property);
        Ok(self)
    }

    /// Asks the server for Response Information, a prefix of response topics (5.0, §3.1.2.11.6). If the server has
    /// one, it is in [`Connected::properties`](crate::Connected). Default: no.
    pub fn request_response_information(mut self, ask: bool) -> Self {
        self.config.connect.properties.request_response_information = Some(ask);
        self
    }

    /// Allows the server to add Reason Strings and User Properties to any packet about a failure (5.0, Request
    /// Problem Information, §3.1.2.11.7). Default: yes.
    pub fn request_problem_information(mut self, ask: bool) -> Self {
        self.config.connect.properties.request_problem_information = Some(ask);
        self
    }

    /// Sets all properties of CONNECT at once (5.0), in the place of earlier ones. The client overwrites session
    /// expiry, Receive Maximum, maximum packet size and topic alias maximum by their own options. It overwrites
    /// authentication method and data if there is an [`auth_method`](Self::auth_method); leave them out if there is
    /// none.
    pub fn connect_properties(mut self, properties: ConnectProperties) -> Self {
        self.config.connect.properties = properties;
        self
    }

    /// Sets the number of QoS 1 and 2 messages that the server may send before the first is acknowledged (5.0).
    /// Default: 1,000.
    pub fn receive_maximum(mut self, maximum: NonZeroU16) -> Self {
        self.config.receive_maximum = maximum;
        self
    }

    /// Sets the number of QoS 1 and 2 messages that may be unacknowledged at once; the server's Receive Maximum counts
    /// as well. Further messages wait in the queue, and so do QoS 0 messages behind them: order is kept. Default: 100.
    pub fn max_inflight(mut self, maximum: NonZeroU16) -> Self {
        self.config.max_inflight = maximum;
        self
    }

    /// Sets the size of the largest packet that the client accepts, in bytes. Default: what MQTT can carry, 256 MiB.
    pub fn maximum_packet_size(mut self, size: NonZeroU32) -> Self {
        self.config.max_packet_size = size;
        self
    }

    /// Sets the number of topic aliases that the server may use (5.0); with `use_own` the client uses those that the
    /// server allows. Default: 16, and `true`.
    pub fn topic_aliases(mut self, maximum: u16, use_own: bool) -> Self {
        self.config.topic_alias_maximum = maximum;
        self.config.use_topic_aliases = use_own;
        self
    }

    /// Gives each subscription an identifier (5.0), so that messages find their stream without matching filters.
    /// Default: yes, unless the server has announced that it does not support them. Switch them off for such a server
    /// if a SUBSCRIBE is sent before the first CONNACK.
    pub fn subscription_identifiers(mut self, use_ids: bool) -> Self {
        self.subscription_ids = use_ids;
        self
    }

    /// Sets the [`Connector`] that opens the links. Its [`ConnectOptions`] have trust, certificates, 0-RTT, QUIC and
    /// sockets. Default: a new connector with [`ConnectOptions::default`].
    ///
    /// Clones of a connector share its tickets, verifier, client certificate and QUIC sockets. A
    /// client that is to resume an earlier client's TLS session, with 0-RTT or without, gets a clone of
    /// the earlier client's connector.
    pub fn connector(mut self, connector: Connector) -> Self {
        self.connector = Some(connector);
        self
    }

    /// Bounds the queue of messages to send. See [`QueueLimits`] for the defaults.
    pub fn queue_limits(self, limits: QueueLimits) -> Self {
        self.shared.queue.set_limits(limits);
        self
    }

    /// Sets the backoff of reconnects. See [`Reconnect`] for the defaults.
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// Sets the timeout of an attempt to connect: the link and CONNACK have this long each. Default: the connector's
    /// [`ConnectOptions::connect_timeout`], 20 s. With several addresses, the link of each has this long.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets the time for which [`Client::disconnect`], or the drop of the last handle, delivers queued messages
    /// before it gives up. Default: 5 s.
    pub fn disconnect_timeout(mut self, timeout: Duration) -> Self {
        self.disconnect_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the timeout of [`Client::request`], from the call to the response (5.0). Default: 30 s, enough for a
    /// connection to be lost and made again meanwhile.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets the number of requests that may wait for their responses at a time; further ones wait for their turn. At
    /// least 1. Default: 1,000.
    pub fn max_requests(mut self, maximum: usize) -> Self {
        self.max_requests = maximum;
        self
    }

    /// Sets the topic to which responses to [`Client::request`] are published (5.0). Default: `mq/responses/` and the
    /// client identifier, so that a server's rules can keep other clients from it.
    ///
    /// No other client may use the topic. A server with a prefix for such topics (Response
    /// Information, §3.2.2.3.15) gives it in [`Connected::properties`](crate::Connected) to a client
    /// that [asks](Self::request_response_information).
    ///
    /// # Errors
    /// [`Error::Topic`].
    pub fn response_topic<T>(mut self, topic: T) -> Result<Self, Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        self.response_topic = Some(topic.try_into()?);
        Ok(self)
    }

    /// Leaves the acknowledgement of QoS 1 and 2 messages to the application, by
    /// [`Incoming::ack`](crate::Incoming::ack): the server sends unacknowledged messages again after a lost
    /// connection. Default: no; a message is acknowledged when it is in its stream.
    pub fn manual_ack(mut self, manual: bool) -> Self {
        self.manual_ack = manual;
        self
    }

    /// Queues a message to leave right behind CONNECT, without waiting for the server's answer. With a
    /// ticket and `early_data` in [`ConnectOptions`] the message travels in the first flight (0-RTT).
    /// This call marks it as safe to repeat; see [`Outgoing::early`] for what that means.
    ///
    /// If the attempt to connect fails, or another address wins the race, a written QoS 0 message
    /// is lost; QoS 1 and 2 messages are kept and sent again. At most ten QoS 1 and 2 messages leave
    /// before CONNACK; the rest waits. A QoS 2 message, and everything behind it, waits until the
    /// handshake is complete.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub fn publish_early(&mut self, publish: Outgoing) -> Result<Receipt, Error> {
        match self.shared.queue.push(publish.early(true))? {
            Push::Queued(seq, cell) => Ok(Receipt::new(self.shared.clone(), seq, cell)),
            Push::Full(_) => Err(Error::QueueFull),
        }
    }

    /// Subscribes right behind CONNECT, as [`publish_early`](Self::publish_early), and before any early
    /// message.
    ///
    /// The call does not wait for SUBACK: if the server refuses the subscription, the stream ends.
    ///
    /// # Errors
    /// [`Error::Topic`] if the filter is not valid.
    pub fn subscribe_early<T>(&mut self, filter: T, qos: QoS) -> Result<Subscription, Error>
    where
        T: TryInto<TopicFilter>,
        Error: From<T::Error>,
    {
        self.subscribe_early_with(SubscribeOptions::new(filter.try_into()?, qos))
    }

    /// Subscribes like [`subscribe_early`](Self::subscribe_early), with all options.
    ///
    /// # Errors
    /// [`Error::Closed`] once there are no subscription identifiers left, after 268,435,455.
    pub fn subscribe_early_with(
        &mut self,
        options: SubscribeOptions,
    ) -> Result<Subscription, Error> {
        let id = SubscriptionId::new(self.first_id() + self.early).ok_or(Error::Closed)?;
        self.early += 1;
        let (subscription, request) =
            Subscription::requested(self.shared.clone(), id, options.early(true), None);
        self.shared
            .queue
            .control(|control| control.requests.push_back(request))?;
        Ok(subscription)
    }

    /// Returns a stream of the messages that match no subscription, as [`Client::messages`], from the first on:
    /// messages of a session that is resumed may come before [`build`](Self::build) returns.
    #[must_use]
    pub fn messages(&self) -> Subscription {
        Subscription::to_the_rest(self.shared.clone())
    }

    /// Starts the client and waits until the server has accepted the connection.
    ///
    /// # Errors
    /// The first failure to connect: [`Error::Transport`], [`Error::NoAddress`],
    /// [`Error::Refused`], [`Error::ConnectTimeout`], or [`Error::Ended`] if the server broke the
    /// connection off; and [`Error::PlaintextFallback`]. The client connects again only after later
    /// losses. Dropping the future ends the client.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn build(self) -> Result<Client, Error> {
        let client = self.start_once()?;
        client.connected().await?;
        Ok(client)
    }

    /// Starts the client without waiting, as [`start`](Self::start), and ends it with the first failure to connect,
    /// as [`build`](Self::build): for an application that may [disconnect](Client::disconnect) while the
    /// client connects.
    ///
    /// # Errors
    /// [`Error::Transport`] if the transport's options cannot be used, [`Error::PlaintextFallback`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_once(self) -> Result<Client, Error> {
        self.spawn(true)
    }

    /// Starts the client without waiting: messages and subscriptions from now on go right
    /// behind CONNECT. If CONNECT is early data, only those that are marked as safe to
    /// repeat do ([`Outgoing::early`], [`SubscribeOptions::early`]); the rest leaves when the handshake
    /// is complete. The client tries again after failures to connect, as long as that may help; see
    /// [`Client::connected`] and [`Client::events`].
    ///
    /// # Errors
    /// [`Error::Transport`] if the transport's options cannot be used, [`Error::PlaintextFallback`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(self) -> Result<Client, Error> {
        self.spawn(false)
    }

    fn spawn(self, fail_fast: bool) -> Result<Client, Error> {
        let next_id = self.first_id() + self.early;
        self.check_addresses()?;
        let connector = match self.connector {
            Some(connector) => connector,
            None => Connector::new(ConnectOptions::default())?,
        };
        let connect_timeout = self
            .connect_timeout
            .unwrap_or(connector.options().connect_timeout)
            .min(LONGEST);
        let mut config = self.config;
        config.connack_timeout = connect_timeout;
        let connect = &mut config.connect;
        let version = connect.version;
        connect.client_id = match self.client_id {
            Some(client_id) => client_id,
            None => random_client_id()?,
        };
        let response_topic = match self.response_topic {
            Some(topic) => topic,
            None => default_topic(&connect.client_id)?,
        };
        let reconnects = self.reconnect.attempts != Some(0);
        let expiry = self
            .session_expiry
            .or(reconnects.then_some(DEFAULT_SESSION_EXPIRY));
        if version >= Version::V5 {
            connect.properties.session_expiry_interval = expiry
                .map(|expiry| u32::try_from(expiry.as_secs()).unwrap_or(u32::MAX))
                .filter(|seconds| *seconds > 0);
        }
        let settings = Settings {
            addresses: self.addresses,
            head_start: self.head_start,
            fallback_memory: self.fallback_memory,
            connector,
            expire_on_disconnect: self.session_expiry.is_none()
                && connect.properties.session_expiry_interval.is_some(),
            config,
            reconnect: self.reconnect,
            connect_timeout,
            manual_ack: self.manual_ack,
            subscription_ids: self.subscription_ids,
            auth_method: self.auth_method.filter(|_| version >= Version::V5),
            probes: self.probes,
            quic_streams: self.quic_streams,
        };
        let shared = self.shared;
        let task = tokio::spawn(Driver::new(shared.clone(), settings, fail_fast).run());
        *lock(&shared.task) = Some(task);
        let handle = Arc::new(Handle {
            shared: shared.clone(),
            disconnect_timeout: self.disconnect_timeout,
            request_timeout: self.request_timeout,
            version,
            next_id: next_id.into(),
            responses: Arc::new(Responses::new(response_topic, self.max_requests)),
        });
        Ok(Client { shared, handle })
    }

    /// Refuses a list in which a plaintext address could stand in for an encrypted one.
    fn check_addresses(&self) -> Result<(), Error> {
        // Bytes within this machine are not seen by others.
        let stays_here = |scheme| matches!(scheme, Scheme::Unix | Scheme::Mem);
        let is_plaintext =
            |address: &&Address| !address.scheme.is_encrypted() && !stays_here(address.scheme);
        let plaintext = self.addresses.iter().find(is_plaintext);
        let mut addresses = self.addresses.iter();
        let encrypted = addresses.find(|address| address.scheme.is_encrypted());
        match (plaintext, encrypted) {
            (Some(plaintext), Some(encrypted)) if !self.plaintext_fallback => {
                Err(Error::PlaintextFallback {
                    plaintext: plaintext.clone(),
                    encrypted: encrypted.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the first subscription identifier. A session of an earlier process may still have identifiers, which 5.0
    /// servers send back and which must not be mistaken for new ones.
    fn first_id(&self) -> u32 {
        if self.config.connect.clean_start {
            return 1;
        }
        // Two bytes on the wire, as 128 to 16,383 are.
        128 + u32::try_from(self.seed % 12_000).unwrap_or(0)
    }
}

fn random_client_id() -> Result<ByteStr, StringError> {
    let random: u32 = rand::random();
    ByteStr::new(format!("mq-{random:08x}"))
}
