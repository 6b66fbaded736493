//! An asynchronous MQTT client over QUIC, TLS, TCP and WebSocket.
//!
//! [`Client::connect`] returns a handle. One task of the current tokio runtime does the work: it
//! owns the connection, and makes a new one when the connection is lost.
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
//! Programs without async use the module `blocking`, behind the cargo feature of that name; the
//! feature `json` has [`Outgoing`] and [`Incoming`] read and write JSON.
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
//! The calls of the first two rows return a [`Receipt`], which tells what becomes of the message.
//!
//! Messages leave in the order in which they were queued, whether there is a connection or not. The
//! queue is bounded, in messages and in bytes: [`QueueLimits`].
//!
//! # Subscribing
//!
//! Each [`Subscription`] is a bounded stream. While one is full the link is not read and nothing
//! more is acknowledged, so that the server holds the rest. What arrived is acknowledged when it is
//! in its stream, or by the application ([`ClientBuilder::manual_ack`]).
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
//! A lost connection is made again after a wait that grows ([`Reconnect`]), unless that cannot help
//! ([`Error::is_temporary`]): then everything ends with the error. The MQTT session goes on:
//! messages in flight are sent again, once where QoS 2 was asked for, and subscriptions live on. If
//! the server has lost the session the client subscribes again, and sends what was in flight anew.
//! [`ClientBuilder::clean_start`] says what that means for versions before 5.0.
//!
//! QoS 0 messages that a lost link had not taken are not sent again: [`Error::LostUnsent`].
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
//! Each time that it connects, the client begins with the first address. If that has not completed
//! its handshake within the [head start](ClientBuilder::head_start), 500 ms, or fails, the next is
//! tried beside it; the first handshake that is complete wins (RFC 8305). Exactly one CONNECT leaves,
//! over the winner; with early data see `docs/guide/fallback.md`. The MQTT session goes on whichever it
//! is. What has won on a network is tried first there for [10 minutes](ClientBuilder::fallback_memory),
//! and then QUIC is tried again. A list that mixes encrypted and plaintext addresses is refused
//! unless [asked for](ClientBuilder::allow_plaintext_fallback).
//!
//! # Certificates, QUIC and sockets
//!
//! A [`Connector`], made of [`ConnectOptions`], says how to connect. Here with a CA of one's own, a
//! client certificate (mutual TLS) and another congestion control:
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
//! [`ClientBuilder::start`] returns at once, and what is sent goes right behind CONNECT, before the
//! server has answered. With `early_data` in [`ConnectOptions`] and a ticket of an earlier
//! connection through the same [`Connector`] CONNECT travels in the first flight of QUIC's or TLS's
//! handshake (0-RTT, RFC 8446 §2.3). Somebody on the path can have such a flight acted on twice, so
//! only what is marked as safe to repeat travels with it: by [`ClientBuilder::publish_early`] and
//! [`ClientBuilder::subscribe_early`], or by [`Outgoing::early`] and [`SubscribeOptions::early`].
//! Everything else waits until the handshake is complete, and QoS 2 always does. `docs/guide/access.md`
//! has a table of what can happen to what. Here the second connection's message is early data:
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
pub use mq_proto::{CloseReason, CommandError, LaneId, Message, Probes, ProtocolError};
/// For programs that open links by a [`Connector`] themselves.
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
