//! An asynchronous MQTT client over QUIC, TLS, TCP and WebSocket.
//!
//! [`Client::connect`] returns a handle. One task of the current tokio runtime does the work: it
//! owns the connection, and connects again when the connection is lost.
//!
//! ```no_run
//! use mq_client::{Client, QoS};
//!
//! # async fn example() -> Result<(), mq_client::Error> {
//! let client = Client::connect("quic://broker.example:14567").await?;
//! let mut readings = client.subscribe("plant/+/temperature", QoS::AtLeastOnce).await?;
//! client.publish("plant/7/temperature", "21.5", QoS::AtLeastOnce).await?;
//! if let Some(message) = readings.recv().await {
//!     println!("{}: {:?}", message.topic, message.payload);
//! }
//! client.disconnect().await
//! # }
//! ```
//!
//! Programs without async use the module `blocking`, behind the cargo feature of that name. With the
//! feature `json`, [`Outgoing`] writes JSON and [`Incoming`] reads it.
//!
//! # Publishing
//!
//! | call | waits for |
//! |---|---|
//! | [`Client::try_send`] | nothing; without room it fails with [`Error::QueueFull`] |
//! | [`Client::send`], [`Client::send_batch`] | room in the queue |
//! | [`Receipt::written`] | the write |
//! | [`Receipt::acknowledged`], [`Client::publish`] | the acknowledgement (QoS 0: the write) |
//!
//! The calls of the first two rows return a [`Receipt`], which follows the message.
//!
//! Messages leave in the order in which they were queued, whether there is a connection or not. The
//! queue is bounded, in messages and in bytes: [`QueueLimits`].
//!
//! # Subscribing
//!
//! Each [`Subscription`] is a bounded stream. While one stream is full, the client neither reads the
//! link nor acknowledges more, so that the server holds the rest. A message is acknowledged when it
//! is in its stream, or by the application ([`ClientBuilder::manual_ack`]).
//!
//! # Requests and responses
//!
//! ```no_run
//! use mq_client::{Client, QoS};
//!
//! # async fn example(requester: Client, responder: Client) -> Result<(), mq_client::Error> {
//! let mut questions = responder.subscribe("example/upper", QoS::AtLeastOnce).await?;
//! tokio::spawn(async move {
//!     while let Some(question) = questions.recv().await {
//!         let answer = question.text()?.to_uppercase();
//!         responder.respond(&question, answer).await?;
//!     }
//!     Ok::<_, mq_client::Error>(())
//! });
//! let answer = requester.request("example/upper", "hello").await?;
//! assert_eq!(answer.text()?, "HELLO");
//! # Ok(())
//! # }
//! ```
//!
//! [`Client::request`] does MQTT 5.0's request and response (§4.10): it chooses the response topic
//! and the correlation data, gives up after a time limit, and bounds how many requests wait.
//! [`Client::respond`] answers a request.
//!
//! # Lost connections
//!
//! The client connects again after a wait that grows ([`Reconnect`]), unless that cannot help
//! ([`Error::is_temporary`]): then everything ends with the error. The MQTT session goes on:
//! messages in flight are sent again, and arrive once at QoS 2; subscriptions live on. If
//! the server has lost the session, the client subscribes again, and sends messages in flight as new.
//! [`ClientBuilder::clean_start`] says what versions before 5.0 do.
//!
//! QoS 0 messages that were not written when the link was lost are not sent again:
//! [`Error::LostUnsent`].
//!
//! # Several addresses
//!
//! ```no_run
//! # async fn example() -> Result<(), mq_client::Error> {
//! let client = mq_client::Client::builder("quic://broker.example")?
//!     .fallback("mqtts://broker.example")?
//!     .build()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! Each time that it connects, the client begins with the first address. If that address has not
//! completed its handshake within the [head start](ClientBuilder::head_start), 500 ms, or fails, the
//! client tries the next beside it; the first complete handshake wins (RFC 8305). Exactly one CONNECT
//! leaves, over the winner; `docs/guide/fallback.md` has the rules for early data. The MQTT session goes
//! on over whichever address wins. For [10 minutes](ClientBuilder::fallback_memory) the client tries
//! the winner first on that network, and then QUIC again. A list that mixes encrypted and plaintext
//! addresses is an error unless [allowed](ClientBuilder::allow_plaintext_fallback).
//!
//! # Certificates, QUIC and sockets
//!
//! A [`Connector`], made from [`ConnectOptions`], decides how to connect. This one has a CA of your
//! own, a client certificate (mutual TLS) and another congestion control:
//!
//! ```no_run
//! use mq_client::{Client, ClientIdentity, CongestionControl, ConnectOptions, Connector, Trust};
//!
//! # async fn example() -> Result<(), mq_client::Error> {
//! let options = ConnectOptions::new()
//!     .trust(Trust::ca_file("ca.pem"))
//!     .identity(ClientIdentity::new("sensor-7.pem", "sensor-7.key"))
//!     .congestion(CongestionControl::Bbr);
//! let connector = Connector::new(options)?;
//! let client = Client::builder("quic://broker.example")?.connector(connector).build().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Without waiting for the server
//!
//! [`ClientBuilder::start`] returns at once, and messages leave right behind CONNECT, before the
//! server has answered: ten of QoS 1 and 2 at most, and after a reconnect within the limits that the
//! server announced before. With `early_data` in [`ConnectOptions`] and a ticket of an earlier
//! connection through the same [`Connector`], CONNECT travels in the first flight of QUIC's or TLS's
//! handshake (0-RTT, RFC 8446 §2.3). An attacker on the path can replay such a flight, so
//! only what is marked as safe to repeat travels with it: by [`ClientBuilder::publish_early`] and
//! [`ClientBuilder::subscribe_early`], or by [`Outgoing::early`] and [`SubscribeOptions::early`].
//! Everything else waits until the handshake is complete, and QoS 2 always does. `docs/guide/access.md`
//! has a table of the risks. Here the second connection's message is early data:
//!
//! ```no_run
//! use mq_client::{Client, ConnectOptions, Connector, Outgoing, QoS};
//!
//! # async fn example() -> Result<(), mq_client::Error> {
//! let connector = Connector::new(ConnectOptions::new().early_data(true))?;
//! for _ in 0..2 {
//!     let mut builder = Client::builder("quic://broker.example")?.connector(connector.clone());
//!     let reading = Outgoing::to("plant/7/temperature", "21.5")?.qos(QoS::AtLeastOnce);
//!     let mut receipt = builder.publish_early(reading)?;
//!     let client = builder.start()?;
//!     receipt.acknowledged().await?;
//!     println!("{:?}", client.connect_times());
//!     client.disconnect().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Cargo features
//!
//! | feature | adds | by default |
//! |---|---|---|
//! | `tcp`, `tls`, `quic`, `ws` | a transport each, as in [`mq_transport`] | on |
//! | `aws-lc-rs` | cryptography by aws-lc-rs | on |
//! | `ring` | cryptography by ring | off |
//! | `mqtt-next` | the application protocol `MQTT-next` of the draft of 5 March 2024, over QUIC | off |
//! | `blocking` | the module `blocking`, for programs without async | off |
//! | `json` | JSON in [`Outgoing`] and [`Incoming`] | off |
//!
//! With `default-features = false` and the feature `tcp` alone, the client is built without TLS and
//! QUIC.

mod ack;
mod auth;
#[cfg(feature = "blocking")]
pub mod blocking;
mod builder;
mod client;
mod control;
mod driver;
mod error;
mod event;
mod inbox;
mod incoming;
mod lock;
mod outgoing;
mod queue;
mod quic_streams;
mod receipt;
mod reconnect;
mod request;
mod responses;
mod scram;
mod shared;
mod subscribe;
mod subscription;
mod written;

pub use auth::{AuthError, AuthMethod};
pub use builder::ClientBuilder;
pub use client::Client;
pub use error::Error;
pub use event::{ConnectTimes, Connected, Event, EventStream};
pub use incoming::Incoming;
pub use outgoing::Outgoing;
pub use queue::QueueLimits;
pub use quic_streams::{Priority, QuicStreams, UnknownQuicStreams};
pub use receipt::Receipt;
pub use reconnect::Reconnect;
pub use subscribe::SubscribeOptions;
pub use subscription::Subscription;

pub use bytes::Bytes;
pub use mq_codec::{
    ByteStr, ConnAck, ConnAckProperties, ConnectProperties, DecodeError, Disconnect,
    DisconnectProperties, Empty, EncodeError, PacketId, PacketType, PublishProperties, QoS,
    ReasonCode, RetainHandling, SharedFilter, Sparse, StringError, SubscriptionId,
    SubscriptionOptions, TopicError, TopicFilter, TopicName, Version, Will, WillProperties,
};
pub use mq_proto::{
    CloseReason, CommandError, LaneId, Message, Probes, ProtocolError, Spread, UnknownSpread,
};
/// The transport crate, for programs that open links by a [`Connector`] themselves.
pub use mq_transport;
#[cfg(feature = "tls")]
pub use mq_transport::TicketCache;
pub use mq_transport::{
    AckFrequency, Address, AddressError, Certificate, CipherSuite, ClientIdentity,
    CongestionControl, ConnectOptions, Connector, CryptoOptions, EarlyData,
    Error as TransportError, HandshakeKind, KeyExchangeGroup, LinkInfo, LinkStats, QuicOptions,
    Scheme, SocketOptions, TlsInfo, TlsVersion, Trust,
};
#[cfg(feature = "quic")]
pub use mq_transport::{Qlog, QlogLimits};
