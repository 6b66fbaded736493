//! The transport options of clients.

use std::{path::PathBuf, time::Duration};

use mq_transport::{
    AckFrequency, CipherSuite, ClientIdentity, CongestionControl, ConnectOptions, KeyExchangeGroup,
    Qlog, QuicOptions, Repeat, Scheme, TlsVersion, Trust,
};

use crate::{
    clock::nanoseconds,
    report,
    units::{parse_duration, parse_time_threshold},
};

/// Transport options of clients.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub(crate) struct TransportArgs {
    /// CA certificates (PEM) to trust instead of the system's
    // Hidden aliases are mq's names.
    #[arg(long, alias = "cafile", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Trust any certificate: for tests only
    #[arg(long, conflicts_with = "ca")]
    pub(crate) insecure: bool,
    /// Client certificate (PEM)
    #[arg(long, alias = "cert", value_name = "FILE", requires = "client_key")]
    pub(crate) client_cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate
    #[arg(long, alias = "key", value_name = "FILE", requires = "client_cert")]
    pub(crate) client_key: Option<PathBuf>,
    /// Server name to ask for and verify (SNI) instead of the host in the URL
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// Congestion control of all transports: reno, cubic or bbr; `compare` with its own broker
    /// takes cubic, or reno where the kernel keeps cubic from this user; else TCP has the kernel's
    /// default and QUIC cubic
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<CongestionControl>,
    /// Cipher suites in order of preference, such as aes128-gcm,chacha20-poly1305
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) ciphers: Vec<CipherSuite>,
    /// Key exchange groups in order of preference, such as x25519
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) groups: Vec<KeyExchangeGroup>,
    /// Round-trip time that QUIC assumes before its first measurement, also of the program's own broker: a lost first
    /// packet is sent again after three times that; default: 333ms (RFC 9002)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) initial_rtt: Option<Duration>,
    /// QUIC's initial congestion window in packets, also of the program's own broker; default: 10, with bbr 200
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) initial_window: Option<u32>,
    /// The version of TLS over TCP: 1.2 or 1.3; else the newest that the broker has too. QUIC's is always 1.3
    #[arg(long, value_name = "VERSION")]
    pub(crate) tls_version: Option<TlsVersion>,
    /// Repeat small QUIC datagrams before a sign of loss: off, auto, probe, or after a gap such as 3ms or rtt/4, with
    /// ,2 twice; the program's own broker does so too; of `compare` the policy of `quic-repeat`
    #[arg(long, value_name = "POLICY")]
    pub(crate) repeat: Option<Repeat>,
    /// Ask the peer to acknowledge QUIC packets within this time instead of 25 ms, and reordered ones at once
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) max_ack_delay: Option<Duration>,
    /// Later packets after which QUIC declares a packet lost; default: 3
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) packet_threshold: Option<u32>,
    /// Round-trip times after which QUIC declares a packet lost; default: 1.125
    #[arg(long, value_name = "FACTOR", value_parser = parse_time_threshold)]
    pub(crate) time_threshold: Option<f32>,
    /// Interval of QUIC's keep-alive on an idle connection; default: none, since MQTT has a keep-alive
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) quic_keep_alive: Option<Duration>,
    /// Switch GSO and GRO off: one datagram a packet
    #[arg(long)]
    pub(crate) no_gso: bool,
    /// Let QUIC probe for packets larger than 1,200 bytes; the program's own broker does so too
    #[arg(long)]
    pub(crate) mtu_discovery: bool,
    /// Write TLS secrets to the file that SSLKEYLOGFILE names, for Wireshark
    #[arg(long)]
    pub(crate) keylog: bool,
    /// Directory for qlog files, one a QUIC connection
    #[arg(long, value_name = "DIR")]
    pub(crate) qlog: Option<PathBuf>,
}

impl TransportArgs {
    /// Makes the options for a connector. `early_data` and the rest of resumption belong to the command.
    pub(crate) fn options(&self) -> ConnectOptions {
        let mut options = ConnectOptions {
            server_name: self.server_name.clone(),
            congestion: self.congestion,
            ..ConnectOptions::default()
        };
        if let Some(file) = &self.ca {
            options.trust = Trust::CaFile(file.clone());
        }
        if self.insecure {
            options.trust = Trust::Insecure;
        }
        if let (Some(certificates), Some(key)) = (&self.client_cert, &self.client_key) {
            options.identity = Some(ClientIdentity {
                certificates: certificates.clone(),
                key: key.clone(),
            });
        }
        if !self.ciphers.is_empty() {
            options.crypto.cipher_suites.clone_from(&self.ciphers);
        }
        if !self.groups.is_empty() {
            options.crypto.key_exchange_groups.clone_from(&self.groups);
        }
        options.crypto.key_log = self.keylog;
        if let Some(version) = self.tls_version {
            (options.crypto.min_version, options.crypto.max_version) = (version, version);
        }
        options.quic = QuicOptions {
            keep_alive_interval: self.quic_keep_alive,
            segmentation_offload: !self.no_gso,
            qlog: self.qlog.as_ref().map(Qlog::all),
            ..self.recovery()
        };
        options
    }

    /// Makes QUIC's options with what a client and its broker have in common: how they recover from loss and how large
    /// their packets are.
    pub(crate) fn recovery(&self) -> QuicOptions {
        let default = QuicOptions::default();
        QuicOptions {
            initial_rtt: self.initial_rtt.unwrap_or(default.initial_rtt),
            repeat: self.repeat.unwrap_or(default.repeat),
            ack_frequency: self.max_ack_delay.map(AckFrequency::within),
            initial_window: self.initial_window,
            packet_threshold: self.packet_threshold.unwrap_or(default.packet_threshold),
            time_threshold: self.time_threshold.unwrap_or(default.time_threshold),
            mtu_discovery: self.mtu_discovery,
            ..default
        }
    }

    /// Formats the round trip that QUIC assumes before its first measurement, as a line; empty on another transport.
    pub(crate) fn initial_rtt_line(&self, scheme: Scheme) -> String {
        let is_quic = scheme == Scheme::Quic;
        let rtt = nanoseconds(self.recovery().initial_rtt);
        let assumed = report::initial_rtts(is_quic.then_some(rtt), None);
        assumed.map_or_else(String::new, |text| text + "\n")
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: TransportArgs,
    }

    #[test]
    fn the_names_that_mq_has_for_tls_files_are_taken_and_not_shown() {
        let words = ["it", "--cafile", "a", "--cert", "b", "--key", "c"];
        let args = Program::try_parse_from(words);
        let args = args
            .map(|program| program.args)
            .map_err(|error| error.to_string())
            .unwrap();
        let files = [args.ca, args.client_cert, args.client_key];
        assert_eq!(files, ["a", "b", "c"].map(|file| Some(file.into())));
        let help = Program::command().render_long_help().to_string();
        for hidden in ["--cafile", "--cert", "--key"] {
            assert!(!help.contains(&format!("{hidden} ")), "{help}");
        }
    }
}
