//! Limits that a peer announces.

use core::num::NonZeroU16;

use mq_codec::QoS;

/// The limits that the peer has announced, by CONNECT or CONNACK.
#[derive(Clone, Debug)]
pub(crate) struct PeerLimits {
    /// Greatest number of QoS 1 and 2 messages in flight to the peer; the send window has this limit or this side's
    /// own, whichever is lower.
    pub(crate) receive_maximum: NonZeroU16,
    pub(crate) maximum_packet_size: Option<u32>,
    pub(crate) maximum_qos: QoS,
    pub(crate) retain_available: bool,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            receive_maximum: NonZeroU16::MAX,
            maximum_packet_size: None,
            maximum_qos: QoS::ExactlyOnce,
            retain_available: true,
        }
    }
}
