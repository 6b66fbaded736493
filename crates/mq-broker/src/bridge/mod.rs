//! Bridges: this broker as a client of remote brokers.
//!
//! A bridge's session is one of this broker's own, under the client identifier `$bridge/NAME`,
//! which no client can have. Messages for the remote broker wait in that session: in memory, in the
//! store, within its limits. A connection of the bridge is a link that this broker has dialled
//! (`run`, `dialler`), with the state machine in the client's role; it is served like any client's
//! ([`conn::BridgeLink`](crate::conn::BridgeLink)), except at the points where it differs
//! (`hooks`). So packet identifiers in flight are in the store, in both directions, and a QoS 2
//! message passes once whichever broker is killed.
//!
//! ```text
//!  devices --> hub --> session $bridge/NAME --> connection ==QUIC==> the remote broker
//!                ^                                 |
//!                +---- subscribed messages --------+
//! ```
//!
//! No message loops for ever: the remote broker does not send messages of this broker back (No
//! Local, 5.0; before, a bit of the protocol level), a message carries the marks of the brokers
//! that it has passed (5.0), and before 5.0 topics that could loop between two brokers are refused.
//! No bridge carries more than some equal messages a second, which ends a loop that none of these
//! has prevented.

mod carry;
mod check;
mod dialler;
mod hooks;
mod origin;
mod run;
mod session;
mod state;
mod topics;

use std::{collections::HashMap, sync::Arc, time::Duration};

use mq_codec::{ByteStr, Connect, QoS, Version};
use mq_proto::{ClientConfig, Delivery, ServerConfig};
use mq_transport::{Address, Connector};

use crate::{
    broker_mark::BrokerMark,
    error::Error,
    hub::Hub,
    mailbox::MailboxRules,
    quota::Quotas,
    secret::Secret,
    settings::{BridgeQueue, BridgeSettings},
    store::BRIDGE_PREFIX,
};
use origin::Origin;
pub(crate) use run::{BridgeTask, open_all};
use state::{PublishedState, QOS as STATE_QOS};
use topics::Topics;

/// Seconds that a session at the remote broker outlives its connection, if no later start of this
/// broker takes it up.
const PASSING_SESSION_EXPIRY_S: u32 = 3_600;

/// Returns the rules of the mailboxes of all bridges that have a name, by the client identifiers of their sessions.
pub(crate) fn mailbox_rules(
    bridges: &[BridgeSettings],
    quotas: Quotas,
    can_spill: bool,
) -> HashMap<ByteStr, MailboxRules> {
    let session = |name: &str| ByteStr::new(format!("{BRIDGE_PREFIX}{name}")).ok();
    let rules = |bridge: &BridgeSettings| {
        let quotas = within(&bridge.queue, quotas);
        let policy = quotas.overflow_policy(can_spill);
        MailboxRules {
            age: bridge.queue.age,
            equal_per_s: bridge.equal_per_s.get(),
            ..MailboxRules::of_bridge(quotas.mailbox, policy)
        }
    };
    let each = bridges.iter();
    each.filter_map(|bridge| Some((session(&bridge.name)?, rules(bridge))))
        .collect()
}

/// Returns the quotas of a bridge's session.
fn within(queue: &BridgeQueue, mut quotas: Quotas) -> Quotas {
    let mailbox = &mut quotas.mailbox;
    mailbox.messages = queue.messages.unwrap_or(mailbox.messages);
    mailbox.bytes = queue.bytes.unwrap_or(mailbox.bytes);
    quotas.overflow = queue.overflow.or(quotas.overflow);
    quotas.spill_bytes = queue.spill_bytes.unwrap_or(quotas.spill_bytes);
    quotas
}

/// A bridge to a remote broker.
#[derive(Debug)]
pub(crate) struct Bridge {
    pub(crate) name: String,
    /// The client identifier of the bridge's session at this broker.
    pub(crate) session: ByteStr,
    pub(crate) topics: Topics,
    /// The bridge's state, if the bridge publishes it.
    pub(crate) state: Option<PublishedState>,
    pub(crate) clean: bool,
    max_hops: u8,
    /// The mark of messages that have passed this broker.
    mark: BrokerMark,
    /// The time without a carried message after which a connection ends.
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) longest_wait: Duration,
    /// The addresses of the remote broker; at least one.
    pub(crate) addresses: Vec<Address>,
    pub(crate) connector: Connector,
    config: ClientConfig,
}

impl Bridge {
    /// Makes all bridges of a broker, within its limits.
    ///
    /// # Errors
    /// The first error of [`new`](Self::new).
    pub(crate) fn all(
        bridges: &[BridgeSettings],
        limits: &ServerConfig,
        origin: &Origin,
        mark: &BrokerMark,
    ) -> Result<Vec<Arc<Self>>, Error> {
        let bridges = bridges.iter();
        let each = bridges.map(|settings| Self::new(settings, limits, origin, mark.clone()));
        each.map(|bridge| bridge.map(Arc::new)).collect()
    }

    /// # Errors
    /// [`Error::Bridge`] with what is wrong with the settings, or of a certificate that cannot be read.
    fn new(
        settings: &BridgeSettings,
        limits: &ServerConfig,
        origin: &Origin,
        mark: BrokerMark,
    ) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Bridge {
            name: settings.name.clone(),
            problem,
        };
        let topics = settings.check().map_err(wrong)?;
        let name = settings.name.clone();
        let text = |text: &str| ByteStr::new(text).map_err(|error| wrong(error.to_string()));
        let client_id = match &settings.client_id {
            Some(client_id) => text(client_id)?,
            None => text(&origin.client_id(&name))?,
        };
        let is_lasting = settings.client_id.is_some() || origin.is_lasting();
        let state = settings.state(&client_id).map_err(wrong)?;
        let mut connect = Connect::new(settings.version, client_id);
        connect.is_bridge = settings.version < Version::V5;
        if settings.version >= Version::V5 {
            connect.properties.user_properties.push(mark.property());
        }
        connect.will = state.as_ref().and_then(PublishedState::will);
        // Before 5.0 a session has no expiry: one that no later start takes up would stay for ever.
        let is_lost = settings.version < Version::V5 && !is_lasting;
        connect.clean_start = settings.clean || is_lost;
        connect.keep_alive = u16::try_from(settings.keep_alive.as_secs()).unwrap_or(u16::MAX);
        connect.user_name = settings.user_name.as_deref().map(text).transpose()?;
        connect.password = settings.password.as_ref().map(Secret::bytes);
        if settings.version >= Version::V5 && !settings.clean {
            let expiry = if is_lasting {
                u32::MAX
            } else {
                PASSING_SESSION_EXPIRY_S
            };
            connect.properties.session_expiry_interval = Some(expiry);
        }
        let mut config = ClientConfig::new(connect);
        config.max_inflight = limits.max_inflight;
        config.receive_maximum = limits.receive_maximum;
        config.max_packet_size = limits.max_packet_size;
        config.connack_timeout = settings.connect_timeout;
        let mut options = settings.connect.clone();
        options.connect_timeout = settings.connect_timeout;
        Ok(Self {
            session: text(&format!("{BRIDGE_PREFIX}{name}"))?,
            name,
            topics,
            state,
            clean: settings.clean,
            max_hops: settings.max_hops,
            mark,
            idle_timeout: settings.idle_timeout(),
            longest_wait: settings.longest_wait,
            addresses: settings.addresses.clone(),
            connector: Connector::new(options)?,
            config,
        })
    }

    /// Returns the state machine's configuration for the next connection.
    pub(crate) fn config(&self) -> ClientConfig {
        self.config.clone()
    }

    /// Returns the messages to the remote broker about an accepted connection, if the bridge sends
    /// any: at the beginning, and before an end on which the remote broker would drop the will.
    fn remote_states(&self) -> Option<[Delivery; 2]> {
        let state = self.state.as_ref()?;
        // Before 5.0 the connection ends without the acknowledgement of the last message, which
        // must not be sent again.
        let last_word = state.delivery(false, QoS::AtMostOnce)?;
        Some([state.delivery(true, STATE_QOS)?, last_word])
    }

    /// Publishes the bridge's state to this broker's subscribers, if it is configured to.
    fn publish_state(&self, hub: &Hub, is_connected: bool) {
        if let Some(state) = &self.state {
            hub.publish_own(state.message(is_connected), STATE_QOS);
        }
    }

    /// Returns the version of MQTT.
    pub(crate) fn version(&self) -> Version {
        self.config.connect.version
    }

    /// Returns the client identifier at the remote broker.
    pub(crate) fn client_id(&self) -> &ByteStr {
        &self.config.connect.client_id
    }

    /// Returns the keep-alive of CONNECT, in seconds.
    pub(crate) fn keep_alive(&self) -> u16 {
        self.config.connect.keep_alive
    }
}
