//! How clients connect.

use std::{path::PathBuf, time::Duration};

use mq_transport::{
    CipherSuite, ClientIdentity, CongestionControl, ConnectOptions, KeyExchangeGroup, Qlog, Trust,
};

use crate::units::duration;

/// How clients connect.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub(crate) struct TransportArgs {
    /// CA certificates (PEM) to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Trust any certificate: for tests only
    #[arg(long, conflicts_with = "ca")]
    pub(crate) insecure: bool,
    /// Client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub(crate) client_cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate
    #[arg(long, value_name = "FILE", requires = "client_cert")]
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
    /// Initial round-trip time that QUIC assumes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) initial_rtt: Option<Duration>,
    /// How often QUIC sends a packet on a silent connection; else MQTT's keep-alive does
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) quic_keep_alive: Option<Duration>,
    /// Switch GSO and GRO off: one datagram a packet
    #[arg(long)]
    pub(crate) no_gso: bool,
    /// Switch QUIC's path MTU discovery off
    #[arg(long)]
    pub(crate) no_mtu_discovery: bool,
    /// Write TLS secrets where SSLKEYLOGFILE says, for Wireshark
    #[arg(long)]
    pub(crate) keylog: bool,
    /// Directory for qlog files, one a QUIC connection
    #[arg(long, value_name = "DIR")]
    pub(crate) qlog: Option<PathBuf>,
}

impl TransportArgs {
    /// The options for a connector. `early_data` and the rest of resumption belong to the command.
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
        if let Some(rtt) = self.initial_rtt {
            options.quic.initial_rtt = rtt;
        }
        options.quic.keep_alive_interval = self.quic_keep_alive;
        options.quic.segmentation_offload = !self.no_gso;
        options.quic.mtu_discovery = !self.no_mtu_discovery;
        options.crypto.key_log = self.keylog;
        options.quic.qlog = self.qlog.as_ref().map(Qlog::all);
        options
    }
}
