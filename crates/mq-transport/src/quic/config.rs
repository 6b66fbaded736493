//! quinn configurations.

use std::{
    io,
    net::UdpSocket,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn::{
    AckFrequencyConfig, AsyncUdpSocket, EndpointConfig, IdleTimeout, MtuDiscoveryConfig,
    Runtime as _, TransportConfig, congestion, crypto::rustls::NoInitialCipherSuite,
};

use super::{
    handshake_window::{HandshakeControllers, WINDOW_PACKET},
    repeater::{RepeatingSocket, ReportingControllers},
    runtime::PooledRuntime,
    socket::disable_udp_gro,
};
use crate::{CongestionControl, Error, QuicOptions, Repeat};

/// The difference of two sizes, in bytes, at which path MTU discovery stops.
const MTU_STEP: u16 = 127;

/// QUIC version 1 (RFC 9000) alone. Quinn would also offer the drafts before it, which are obsolete;
/// it has no version 2 (RFC 9369).
const VERSIONS: [u32; 1] = [1];

/// Least time between two stateless resets: none. Packets of clients whose server was started again come many at a time, and Quinn
/// takes all that it reads at once for as many at one moment: any pause would answer the first alone, and the others after timeouts of
/// their own that double. Noise gets no reset, as its connection identifiers are not ours (3 of their 8 bytes are a keyed hash), and a
/// reset is smaller than the packet that it answers, so that nobody's traffic is amplified and two servers do not answer each other for
/// ever (RFC 9000 §10.3.3).
const RESET_INTERVAL: Duration = Duration::ZERO;

pub(super) fn endpoint_config(quic: &QuicOptions) -> Result<EndpointConfig, Error> {
    let mut config = EndpointConfig::default();
    config.supported_versions(VERSIONS.to_vec());
    config.min_reset_interval(RESET_INTERVAL);
    let payload = quic.max_udp_payload.max(1472);
    config
        .max_udp_payload_size(payload)
        .map_err(|error| Error::InvalidOption {
            option: "maximum UDP payload",
            value: payload.to_string(),
            remedy: error.to_string(),
        })?;
    Ok(config)
}

/// Wraps a UDP socket for quinn, with the offload (GSO, GRO) and the [repetition](Repeat) that the options ask
/// for.
pub(super) fn socket(socket: UdpSocket, quic: &QuicOptions) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    let same_socket = (!quic.segmentation_offload)
        .then(|| socket.try_clone())
        .transpose()?;
    let wrapped = PooledRuntime.wrap_udp_socket(socket)?;
    if let Some(socket) = same_socket {
        disable_udp_gro(&socket)?;
    }
    Ok(repeating(wrapped, quic))
}

/// Returns the socket, wrapped if the options have small datagrams [sent again](Repeat).
pub(super) fn repeating(
    socket: Arc<dyn AsyncUdpSocket>,
    quic: &QuicOptions,
) -> Arc<dyn AsyncUdpSocket> {
    match quic.repeat {
        Repeat::Off => socket,
        _ => Arc::new(RepeatingSocket(socket)),
    }
}

/// Makes the error for TLS options without the cipher suite of Initial packets (RFC 9001 §5.2).
#[expect(clippy::needless_pass_by_value, reason = "as `map_err` has it")]
pub(super) fn no_initial_cipher_suite(error: NoInitialCipherSuite) -> Error {
    Error::InvalidOption {
        option: "cipher suites",
        value: "without aes128-gcm".into(),
        remedy: error.to_string(),
    }
}

/// Streams that a peer may open at first. With its first data stream it gets as many as the options say, or the number grows
/// with the memory for them ([`Windows`](super::windows::Windows)).
/// quinn makes a place for each in advance: 64 of each kind would be a quarter of a silent connection's memory.
pub(super) const INITIAL_BIDI_STREAMS: u32 = 10;
pub(super) const INITIAL_UNI_STREAMS: u32 = 4;

/// Streams of each kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    pub(super) bidirectional: u32,
    pub(super) unidirectional: u32,
}

impl StreamLimits {
    pub(super) fn of(options: &QuicOptions) -> Self {
        Self {
            bidirectional: options.max_bidi_streams,
            unidirectional: options.max_uni_streams,
        }
    }
}

/// Returns the maker of congestion controllers, with the initial window of these options.
fn controllers(
    quic: &QuicOptions,
    congestion: Option<CongestionControl>,
) -> Arc<dyn congestion::ControllerFactory + Send + Sync> {
    macro_rules! with_window {
        ($config:ident) => {{
            let mut config = congestion::$config::default();
            if let Some(packets) = quic.initial_window {
                config.initial_window(u64::from(packets) * WINDOW_PACKET);
            }
            Arc::new(config)
        }};
    }
    match congestion.unwrap_or(CongestionControl::Cubic) {
        CongestionControl::Reno => with_window!(NewRenoConfig),
        CongestionControl::Cubic => with_window!(CubicConfig),
        CongestionControl::Bbr => with_window!(BbrConfig),
    }
}

impl QuicOptions {
    /// Returns the number of bytes that may be under way before the first acknowledgement:
    /// [`initial_window`](field@Self::initial_window), or the congestion control's own.
    #[must_use]
    pub fn initial_window_bytes(&self, congestion: CongestionControl) -> u64 {
        let packet = self.initial_udp_payload;
        controllers(self, Some(congestion))
            .build(Instant::now(), packet)
            .initial_window()
    }
}

pub(super) fn transport_config(
    quic: &QuicOptions,
    congestion: Option<CongestionControl>,
) -> Result<TransportConfig, Error> {
    let mut config = TransportConfig::default();
    let controller = Arc::new(HandshakeControllers(controllers(quic, congestion)));
    config.congestion_controller_factory(match quic.repeat {
        Repeat::Off => controller,
        _ => Arc::new(ReportingControllers(controller)),
    });
    let idle_timeout = quic.idle_timeout.map(IdleTimeout::try_from).transpose();
    config.max_idle_timeout(idle_timeout.map_err(|_| Error::InvalidOption {
        option: "QUIC idle timeout",
        value: format!("{:?}", quic.idle_timeout.unwrap_or_default()),
        remedy: "it is too long; none at all is possible".into(),
    })?);
    if quic.max_udp_payload < quic.initial_udp_payload || quic.initial_udp_payload < 1200 {
        return Err(Error::InvalidOption {
            option: "UDP payload",
            value: format!("{} to {}", quic.initial_udp_payload, quic.max_udp_payload),
            remedy: "start with 1200 or more, and not above the maximum".into(),
        });
    }
    let discovery = quic.mtu_discovery.then(|| {
        let mut discovery = MtuDiscoveryConfig::default();
        // With a minimum change of more than half the range, quinn begins with the maximum. Most paths then need
        // one probe and not four; each probe costs a device as much as its messages.
        let range = quic.max_udp_payload - quic.initial_udp_payload;
        discovery.upper_bound(quic.max_udp_payload);
        discovery.minimum_change(MTU_STEP.min(range / 2 + 1));
        discovery
    });
    let ack_frequency = quic.ack_frequency.map(|wanted| {
        let mut ack_frequency = AckFrequencyConfig::default();
        ack_frequency
            .ack_eliciting_threshold(wanted.threshold.into())
            .max_ack_delay(wanted.max_delay)
            .reordering_threshold(wanted.reordering_threshold.into());
        ack_frequency
    });
    config
        .initial_rtt(quic.initial_rtt)
        .keep_alive_interval(quic.keep_alive_interval)
        .ack_frequency_config(ack_frequency)
        .packet_threshold(quic.packet_threshold)
        .time_threshold(quic.time_threshold)
        .initial_mtu(quic.initial_udp_payload)
        .mtu_discovery_config(discovery)
        .stream_receive_window(quic.stream_receive_window.into())
        .receive_window(quic.receive_window.into())
        .send_window(quic.send_window)
        .max_concurrent_bidi_streams(quic.max_bidi_streams.min(INITIAL_BIDI_STREAMS).into())
        .max_concurrent_uni_streams(quic.max_uni_streams.min(INITIAL_UNI_STREAMS).into())
        .datagram_receive_buffer_size((quic.datagram_buffer > 0).then_some(quic.datagram_buffer))
        .enable_segmentation_offload(quic.segmentation_offload);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use quinn_proto::{ConnectionIdGenerator as _, DatagramEvent, HashedConnectionIdGenerator};

    use super::*;

    #[test]
    fn a_server_that_was_killed_resets_a_thousand_connections_within_a_second_and_no_noise() {
        let mut config = endpoint_config(&QuicOptions::default()).unwrap();
        let ids = || HashedConnectionIdGenerator::from_key(7);
        config.cid_generator(move || Box::new(ids()));
        let mut endpoint = quinn_proto::Endpoint::new(Arc::new(config), None, true, None);
        let remote = "192.0.2.7:4433".parse().unwrap();
        let began = Instant::now();
        let mut resets = |id: &[u8]| {
            let answered = (0..1_000_u64).filter(|ms| {
                let mut packet = BytesMut::from(&[0x40][..]);
                packet.extend_from_slice(id);
                packet.resize(30, 0x55);
                let now = began + Duration::from_millis(*ms);
                let answer = endpoint.handle(now, remote, None, None, packet, &mut Vec::new());
                matches!(answer, Some(DatagramEvent::Response(reset)) if reset.size < 30)
            });
            answered.count()
        };
        assert_eq!(resets(&[7; 8]), 0, "noise");
        assert_eq!(resets(&ids().generate_cid()), 1_000);
    }

    #[test]
    fn an_initial_window_is_the_options_or_the_congestion_controls_own() {
        let own = QuicOptions::default();
        let of = |quic: &QuicOptions| {
            [
                CongestionControl::Reno,
                CongestionControl::Cubic,
                CongestionControl::Bbr,
            ]
            .map(|control| quic.initial_window_bytes(control))
        };
        assert_eq!(of(&own), [12_000, 12_000, 240_000]);
        let of_quic_go = QuicOptions {
            initial_window: Some(32),
            ..own
        };
        assert_eq!(of(&of_quic_go), [38_400; 3]);
    }
}
