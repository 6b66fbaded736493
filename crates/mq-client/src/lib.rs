//! An asynchronous MQTT client over QUIC, TLS and TCP.
mod builder;
mod client;
mod driver;
mod error;
mod event;
mod incoming;
mod outgoing;
mod queue;
mod receipt;
mod reconnect;
mod shared;
mod subscription;
mod written;

pub use builder::ClientBuilder;
pub use client::Client;
pub use error::Error;
pub use event::{ConnectTimes, Connected, Event, EventStream};
pub use incoming::Incoming;
pub use outgoing::Outgoing;
pub use queue::QueueLimits;
pub use receipt::Receipt;
pub use reconnect::Reconnect;
pub use subscription::{SubscribeOptions, Subscription};

pub use bytes::Bytes;
pub use mq_codec::{
    ByteStr, ConnectProperties, PublishProperties, QoS, ReasonCode, RetainHandling, SubscriptionId,
    SubscriptionOptions, TopicError, TopicFilter, TopicName, Version, Will, WillProperties,
};
pub use mq_proto::{CloseReason, CommandError, Message};
pub use mq_transport::{
    Address, AddressError, ConnectOptions, Connector, EarlyData, HandshakeKind, LinkInfo,
    LinkStats, TicketCache, Trust,
};
