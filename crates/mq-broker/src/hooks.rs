//! Hooks: what the program that embeds a broker sees of its clients and their messages, changes and refuses.
//!
//! ```
//! use mq_broker::{Broker, Settings, hooks::*};
//! use std::sync::Arc;
//!
//! /// Delivers what devices publish below `raw/` below `plant/7/` instead.
//! #[derive(Debug)]
//! struct Plant;
//!
//! impl Hooks for Plant {
//!     fn on_publish(&self, _client: HookClient<'_>, publish: HookPublish<'_>) -> PublishAnswer {
//!         let topic = publish.message.topic.as_str();
//!         let Some(rest) = topic.strip_prefix("raw/") else {
//!             return PublishAnswer::Deliver;
//!         };
//!         let mut message = publish.message.clone();
//!         match TopicName::new(format!("plant/7/{rest}")) {
//!             Ok(topic) => message.topic = topic,
//!             Err(_) => return PublishAnswer::Refuse(ReasonCode::TopicNameInvalid),
//!         }
//!         PublishAnswer::Replace(message)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut settings = Settings::new(vec!["tcp://127.0.0.1:0".parse()?]);
//! settings.hooks = Some(Arc::new(Plant));
//! let broker = Broker::start(settings).await?;
//! # broker.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! The broker calls a hook on the thread that serves the client, and waits for its answer: a hook that takes 1 ms delays all
//! clients of that thread by 1 ms, and lets a client publish 1,000 messages a second. A hook that has to wait for something,
//! such as a database, sends what it has seen to a task of its own. An [`Authenticator`](crate::auth::Authenticator) may wait.

use core::fmt;

use mq_codec::PacketType;
pub use mq_codec::{QoS, ReasonCode, Subscription, TopicFilter, TopicName};
pub use mq_proto::{CloseReason, Message};

use crate::auth::Principal;

/// Reason in the log, and in the counters of refusals, of what a hook has refused.
pub(crate) const REFUSED: &str = "refused by the program";

/// Returns the reason as packets of that type can have it.
pub(crate) fn allowed_in(packet: PacketType, reason: ReasonCode) -> ReasonCode {
    if reason.is_error() && reason.is_allowed_in(packet) {
        reason
    } else {
        ReasonCode::UnspecifiedError
    }
}

/// A client, as hooks see it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HookClient<'a> {
    /// Client identifier, which the broker has chosen if the client sent none.
    pub client_id: &'a str,
    /// User and data of the [authenticator](crate::auth::Authenticator); `None` without one and without rules, and for the
    /// broker's own bridges.
    pub principal: Option<&'a Principal>,
}

impl<'a> HookClient<'a> {
    pub(crate) const fn new(client_id: &'a str, principal: Option<&'a Principal>) -> Self {
        Self {
            client_id,
            principal,
        }
    }
}

/// A PUBLISH of a client that may publish it, or its will.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HookPublish<'a> {
    /// Topic, payload and properties. Topic Alias and Subscription Identifier are not among them.
    pub message: &'a Message,
    /// QoS at which the client has published it.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
}

/// The answer of [`Hooks::on_publish`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PublishAnswer {
    /// The message is delivered.
    Deliver,
    /// Another one is delivered in its place, at the same QoS and with the same RETAIN. Rules are not asked about it.
    Replace(Message),
    /// Nobody gets the message. An MQTT 5.0 client is told the reason in PUBACK or PUBREC; a reason that these packets do
    /// not have is sent as 0x80. Before 5.0, and at QoS 0, nothing tells the client.
    Refuse(ReasonCode),
    /// Nobody gets the message, and the client is told success.
    Drop,
}

/// Calls that a broker makes while it serves clients. Each does nothing by default.
///
/// Calls about one client come in the order of their events, one at a time. Calls about different clients come from several
/// threads at once.
pub trait Hooks: fmt::Debug + Send + Sync {
    /// Called for a client that has logged in, before it gets its session.
    ///
    /// # Errors
    /// If the client is refused, with the reason of its CONNACK. A reason that CONNACK does not have is sent as 0x80.
    fn on_authenticated(&self, client: HookClient<'_>) -> Result<(), ReasonCode> {
        let _ = client;
        Ok(())
    }

    /// Called for a client that has its session, before CONNACK, whose `session_present` this is.
    fn on_connect(&self, client: HookClient<'_>, session_present: bool) {
        let _ = (client, session_present);
    }

    /// Called for each filter of a SUBSCRIBE, before the rules are asked.
    ///
    /// # Errors
    /// If the subscription is refused, with the reason of SUBACK. A reason that SUBACK does not have is sent as 0x80, as is
    /// each before 5.0.
    fn on_subscribe(
        &self,
        client: HookClient<'_>,
        subscription: &Subscription,
    ) -> Result<(), ReasonCode> {
        let _ = (client, subscription);
        Ok(())
    }

    /// Called for each PUBLISH, and for a will that is due, once the rules have allowed it.
    fn on_publish(&self, client: HookClient<'_>, publish: HookPublish<'_>) -> PublishAnswer {
        let _ = (client, publish);
        PublishAnswer::Deliver
    }

    /// Called for each message that `client` has received: at QoS 0 once it is on its way, at QoS 1 and 2 once the client has
    /// it (PUBACK, PUBREC).
    fn on_delivered(&self, client: HookClient<'_>, message: &Message, qos: QoS) {
        let _ = (client, message, qos);
    }

    /// Called at the end of the connection of a client that has had its session.
    fn on_disconnect(&self, client: HookClient<'_>, reason: &CloseReason) {
        let _ = (client, reason);
    }
}
