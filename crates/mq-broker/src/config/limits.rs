//! The `[limits]` table of the configuration file.

use std::num::{NonZeroU16, NonZeroU32};

use mq_codec::QoS;
use serde::Deserialize;

use super::{Mistakes, seconds_from, set};
#[cfg(doc)]
use crate::Quotas;
use crate::{Overflow, Settings};

/// The `[limits]` table. An absent key has the default of [`Settings`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LimitsConfig {
    /// Connections at once, those in their handshake included. Default: 100,000.
    pub max_connections: Option<usize>,
    /// Connections at once from one IPv4 address or one IPv6 network of 64 bits. Default: no limit of its own.
    pub connections_per_address: Option<usize>,
    /// Handshakes in progress at once. Default: 4,096.
    pub max_handshakes: Option<usize>,
    /// Seconds that a handshake may take, and then CONNECT again. Default: 10.
    pub handshake_timeout_s: Option<u32>,
    /// Size of the largest packet that is accepted, in bytes, 1 at least. Default: 1,048,576.
    pub max_packet_size: Option<NonZeroU32>,
    /// Size of the largest packet that is accepted from a client before CONNACK, in bytes: CONNECT with its will.
    /// Default: 65,536.
    pub max_connect_size: Option<NonZeroU32>,
    /// QoS 1 and 2 messages that a client may send before the first is acknowledged, from 1 to 65,535. Default:
    /// 1,024.
    pub receive_maximum: Option<NonZeroU16>,
    /// QoS 1 and 2 messages in flight to a client at once, from 1 to 65,535. Default: 1,024.
    pub max_inflight: Option<NonZeroU16>,
    /// Topic aliases that a client may use, and the broker towards it, from 0 to 65,535. Default: 64.
    pub topic_alias_maximum: Option<u16>,
    /// Highest QoS at which clients may publish: 0, 1 or 2. Default: 2.
    pub maximum_qos: Option<u8>,
    /// Longest keep-alive, in seconds; 0 is no limit. A 5.0 client that requests a longer one, or none, gets this.
    /// Default: no limit.
    pub max_keep_alive_s: Option<u16>,
    /// `true` if strings may have control characters and Unicode noncharacters. Default `false`.
    pub allow_control_characters: bool,
    /// Messages that wait for one session in memory: 1 at least, 50,000 at most in a cluster. Default: 10,000.
    pub mailbox_messages: Option<usize>,
    /// Payload bytes that wait for one session in memory. Default: 16 MiB.
    pub mailbox_bytes: Option<usize>,
    /// Policy for QoS 1 and 2 messages beyond these bounds: `spill`, `evict`, `drop-oldest` or `wait`. Default:
    /// `spill` with a store, else `evict`; see [`Overflow`].
    pub overflow: Option<OverflowName>,
    /// Bytes of one session that may wait in the store. Default: 1 GiB.
    pub spill_bytes: Option<usize>,
    /// Bytes that all clients together may make the broker hold. Default: a quarter of the machine's memory, 64 MiB
    /// at least; see [`Quotas::memory`].
    pub memory: Option<usize>,
    /// Sessions at once, connected or not. Default: 1,000,000.
    pub sessions: Option<usize>,
    /// Subscriptions of one session. Default: 10,000.
    pub subscriptions: Option<usize>,
    /// Topics with a retained message. Default: 1,000,000.
    pub retained: Option<usize>,
    /// Protocol errors of accepted clients from one IPv4 address or IPv6 /64 that are forgiven each minute; 0: no
    /// client waits. Default: 30; see [`Quotas::protocol_errors_per_minute`].
    pub protocol_errors_per_minute: Option<u32>,
    /// Messages a second that each client may publish, 1 at least; a faster client is read more slowly. Default: no
    /// limit.
    pub publish_messages_per_s: Option<NonZeroU32>,
    /// Payload bytes a second that each client may publish, 1 at least; a faster client is read more slowly. Default:
    /// no limit.
    pub publish_bytes_per_s: Option<NonZeroU32>,
    /// Seconds that a reader may take nothing while a publisher waits for room in its full mailbox, with the policy
    /// `wait`; 0 is no limit. Default: 30.
    pub reader_timeout_s: Option<u32>,
    /// Longest life of a session without a connection, in seconds. Default: no limit.
    pub session_expiry_s: Option<u32>,
    /// Seconds that connections have to end at shutdown. Default: 5.
    pub shutdown_timeout_s: Option<u32>,
}

/// The names of [`Overflow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OverflowName {
    /// [`Overflow::Spill`].
    Spill,
    /// [`Overflow::Evict`].
    Evict,
    /// [`Overflow::DropOldest`].
    DropOldest,
    /// [`Overflow::Wait`].
    Wait,
}

impl From<OverflowName> for Overflow {
    fn from(name: OverflowName) -> Self {
        match name {
            OverflowName::Spill => Self::Spill,
            OverflowName::Evict => Self::Evict,
            OverflowName::DropOldest => Self::DropOldest,
            OverflowName::Wait => Self::Wait,
        }
    }
}

impl LimitsConfig {
    pub(super) fn apply(self, settings: &mut Settings, mistakes: &mut Mistakes) {
        let protocol = &mut settings.protocol;
        set(&mut protocol.max_packet_size, self.max_packet_size);
        set(&mut protocol.max_connect_size, self.max_connect_size);
        set(&mut protocol.receive_maximum, self.receive_maximum);
        set(&mut protocol.max_inflight, self.max_inflight);
        set(&mut protocol.topic_alias_maximum, self.topic_alias_maximum);
        if let Some(qos) = self.maximum_qos {
            match QoS::from_bits(qos) {
                Some(qos) => protocol.maximum_qos = qos,
                None => mistakes.push(format!("limits.maximum_qos: {qos} is not 0, 1 or 2")),
            }
        }
        protocol.allow_control_characters = self.allow_control_characters;
        protocol.max_keep_alive = self.max_keep_alive_s.filter(|seconds| *seconds > 0);
        set(&mut settings.max_connections, self.max_connections);
        set(&mut settings.max_handshakes, self.max_handshakes);
        set(
            &mut settings.max_connections_per_address,
            self.connections_per_address,
        );
        let quotas = &mut settings.quotas;
        set(&mut quotas.mailbox.messages, self.mailbox_messages);
        set(&mut quotas.mailbox.bytes, self.mailbox_bytes);
        quotas.overflow = self.overflow.map(Overflow::from);
        mistakes.note(check_mailboxes(settings));
        let quotas = &mut settings.quotas;
        set(&mut quotas.spill_bytes, self.spill_bytes);
        set(&mut quotas.memory, self.memory);
        set(&mut quotas.sessions, self.sessions);
        set(&mut quotas.subscriptions, self.subscriptions);
        set(&mut quotas.retained, self.retained);
        let forgiven = self.protocol_errors_per_minute.map(NonZeroU32::new);
        set(&mut quotas.protocol_errors_per_minute, forgiven);
        let rate = &mut settings.publish_rate;
        rate.messages = self.publish_messages_per_s.map(NonZeroU32::get);
        rate.bytes = self.publish_bytes_per_s.map(NonZeroU32::get);
        if let Some(seconds) = self.reader_timeout_s {
            let timeout = seconds_from(seconds);
            settings.reader_timeout = (!timeout.is_zero()).then_some(timeout);
        }
        if let Some(seconds) = self.handshake_timeout_s {
            settings.handshake_timeout = seconds_from(seconds);
            settings.protocol.connect_timeout = settings.handshake_timeout;
        }
        settings.max_session_expiry = self.session_expiry_s.map(seconds_from);
        if let Some(seconds) = self.shutdown_timeout_s {
            settings.shutdown_timeout = seconds_from(seconds);
        }
    }
}

/// The most that `limits.mailbox_messages` may be at a node of a cluster: a session's record names each message that
/// waits.
const CLUSTER_MAILBOX: usize = 50_000;

/// The problem of a mailbox without room for a message.
pub(super) const NO_MESSAGE: &str = "0, and a message has to wait for its reader: 1 at least";

/// Checks the bound and the overflow policy of the messages that wait for a session.
///
/// # Errors
/// The value of `[limits]` that is not allowed, in one line.
fn check_mailboxes(settings: &Settings) -> Result<(), String> {
    let quotas = &settings.quotas;
    let most = quotas.mailbox.messages;
    if most == 0 {
        return Err(format!("limits.mailbox_messages: {NO_MESSAGE}"));
    }
    if settings.cluster.is_some() && most > CLUSTER_MAILBOX {
        return Err(format!(
            "limits.mailbox_messages: {most}, and a node of a cluster takes {CLUSTER_MAILBOX} at most"
        ));
    }
    if quotas.overflow == Some(Overflow::Spill) && settings.store.is_none() {
        return Err(format!("limits.overflow: {}", no_store(settings)));
    }
    Ok(())
}

/// Returns the problem of the overflow policy `spill` without a store, and what would be right.
pub(super) fn no_store(settings: &Settings) -> &'static str {
    if settings.cluster.is_some() {
        "\"spill\" needs a store, which a node of a cluster does not have: take another policy"
    } else {
        "\"spill\" needs a store: give [store] or another policy"
    }
}
