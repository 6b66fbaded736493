//! Parameters of the transports that shape a result, as numbers, with the defaults that no option has set.
//!
//! A default of a library or a kernel decides as much as an option does. A result that names its options alone is
//! not the same result on the next version.

use std::time::Duration;

use mq_transport::{CongestionControl, CryptoOptions, QuicOptions};
use serde::{Deserialize, Serialize};

use crate::{clock::nanoseconds, testbed::TcpSettings};

/// `max_ack_delay` of a QUIC peer that gets no ACK_FREQUENCY frame (RFC 9000 §18.2).
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

/// The transports' parameters of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransportParameters {
    /// The newest TLS that the clients offer over TCP; over QUIC it is always 1.3 (RFC 9001 §4.2).
    pub(crate) tls_version: String,
    pub(crate) cipher_suites: Vec<String>,
    pub(crate) key_exchange_groups: Vec<String>,
    pub(crate) quic: QuicParameters,
    /// TCP's settings of the publisher's host; `None` where the publisher is on another machine.
    pub(crate) tcp: Option<TcpSettings>,
}

/// The parameters of QUIC, of clients and of this program's own broker.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a setting of its own"
)]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuicParameters {
    pub(crate) congestion: String,
    pub(crate) initial_rtt_ns: u64,
    pub(crate) initial_window_bytes: u64,
    pub(crate) max_ack_delay_ns: u64,
    /// `true` if the peer is asked for that delay and for an immediate acknowledgement of reordered packets.
    pub(crate) asks_for_acknowledgements: bool,
    pub(crate) packet_threshold: u32,
    pub(crate) time_threshold: f32,
    pub(crate) repeat: String,
    /// `true` if packets are paced by the congestion window, in bursts of ten at most. quinn always paces.
    pub(crate) pacing: bool,
    pub(crate) initial_udp_payload_bytes: u16,
    pub(crate) mtu_discovery: bool,
    pub(crate) segmentation_offload: bool,
}

impl TransportParameters {
    pub(crate) fn of(
        crypto: &CryptoOptions,
        quic: &QuicOptions,
        congestion: Option<CongestionControl>,
        tcp: Option<TcpSettings>,
    ) -> Self {
        let congestion = congestion.unwrap_or(CongestionControl::Cubic);
        let asked = quic.ack_frequency.and_then(|asked| asked.max_delay);
        Self {
            tls_version: crypto.max_version.to_string(),
            cipher_suites: names(&crypto.cipher_suites),
            key_exchange_groups: names(&crypto.key_exchange_groups),
            quic: QuicParameters {
                congestion: congestion.to_string(),
                initial_rtt_ns: nanoseconds(quic.initial_rtt),
                initial_window_bytes: quic.initial_window_bytes(congestion),
                max_ack_delay_ns: nanoseconds(asked.unwrap_or(MAX_ACK_DELAY)),
                asks_for_acknowledgements: quic.ack_frequency.is_some(),
                packet_threshold: quic.packet_threshold,
                time_threshold: quic.time_threshold,
                repeat: quic.repeat.to_string(),
                pacing: true,
                initial_udp_payload_bytes: quic.initial_udp_payload,
                mtu_discovery: quic.mtu_discovery,
                segmentation_offload: quic.segmentation_offload,
            },
            tcp,
        }
    }
}

fn names(all: &[impl ToString]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}
