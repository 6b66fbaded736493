//! The `[tls]` table of the configuration file.

use std::path::{Path, PathBuf};

use mq_transport::{ClientAuth, EarlyDataPolicy, KeyExchangeGroup};
use serde::Deserialize;

use super::{Mistakes, set};
use crate::Settings;

/// The `[tls]` table, for TLS, QUIC and WebSocket over TLS.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct TlsConfig {
    /// File with the certificate chain, the broker's own first, PEM; needs `key`. Default: none; the program
    /// `mqbroker` then makes one for development.
    pub certificate: Option<PathBuf>,
    /// File with the private key of `certificate`, PEM. Default: none.
    pub key: Option<PathBuf>,
    /// Early data (0-RTT) that the broker acts on: `off`, `connect` or `full`, which is all but QoS 2. Default:
    /// `full`.
    pub early_data: Option<String>,
    /// File that keeps session tickets over an orderly restart, in a folder of the broker's own. Default: none; see
    /// [`Settings::ticket_file`].
    pub ticket_file: Option<PathBuf>,
    /// Size of the largest TLS record that the broker sends, in bytes, from 512 to 16,384. Default: 16,384;
    /// see [`max_record_size`](mq_transport::ListenOptions::max_record_size).
    pub max_record_size: Option<u16>,
    /// Key-exchange groups that the broker accepts, in its order of preference: `x25519`, `secp256r1`, `x25519mlkem768`
    /// (not with `ring`). Default: `x25519`, `secp256r1`.
    pub groups: Vec<String>,
    /// File with the authorities that sign clients' certificates, PEM. Default: none; no certificate is requested.
    pub client_ca: Option<PathBuf>,
    /// Demand on clients for a certificate, `required` or `optional`; needs `client_ca`. Default: `required`.
    pub client_certificate: Option<ClientCertificate>,
    /// Files with revocation lists for clients' certificates, PEM or DER; need `client_ca`. Default: none; see
    /// [`client_crls`](mq_transport::ListenOptions::client_crls).
    pub client_crls: Vec<PathBuf>,
    /// `true` if a revocation list that has expired makes the broker refuse every client of its issuer. Default:
    /// `false`.
    pub enforce_crl_expiry: bool,
}

/// The certificate that clients must or may show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ClientCertificate {
    /// [`ClientAuth::Required`].
    Required,
    /// [`ClientAuth::Optional`].
    Optional,
}

impl TlsConfig {
    /// Sets what the table of the file `path` says.
    pub(super) fn apply(self, settings: &mut Settings, path: &Path, mistakes: &mut Mistakes) {
        let client_auth = mistakes.note(self.client_auth());
        set(&mut settings.listen.client_auth, client_auth);
        let record_size = mistakes.note(self.record_size());
        set(&mut settings.listen.max_record_size, record_size.flatten());
        let groups = mistakes.note(self.groups());
        set(
            &mut settings.listen.crypto.key_exchange_groups,
            groups.flatten(),
        );
        settings.listen.client_crls = self.client_crls;
        settings.listen.enforce_crl_expiry = self.enforce_crl_expiry;
        let identity = settings.set_identity(self.certificate, self.key, path);
        mistakes.all.extend(identity.err());
        if let Some(text) = self.early_data {
            let policy = text.parse::<EarlyDataPolicy>();
            let policy = policy.map_err(|error| format!("tls.early_data: {error}"));
            set(&mut settings.listen.early_data, mistakes.note(policy));
        }
        settings.ticket_file = self.ticket_file;
    }

    /// Returns the size of records, if one is set.
    fn record_size(&self) -> Result<Option<u16>, String> {
        match self.max_record_size {
            Some(size) if !(512..=16_384).contains(&size) => {
                Err(format!("tls.max_record_size: {size} is not 512 to 16384"))
            }
            size => Ok(size),
        }
    }

    /// Parses the key-exchange groups; `None` if none are set.
    fn groups(&self) -> Result<Option<Vec<KeyExchangeGroup>>, String> {
        let groups = self.groups.iter().map(|name| name.parse());
        let groups: Result<Vec<_>, _> = groups.collect();
        let groups = groups.map_err(|error| format!("tls.groups: {error}"))?;
        Ok(Some(groups).filter(|groups| !groups.is_empty()))
    }

    fn client_auth(&self) -> Result<ClientAuth, String> {
        match (&self.client_ca, self.client_certificate) {
            (None, None) if self.client_crls.is_empty() => Ok(ClientAuth::Off),
            (None, None) => Err("tls.client_crls: there is no client_ca".to_owned()),
            (None, Some(_)) => Err("tls.client_certificate: there is no client_ca".to_owned()),
            (Some(ca), Some(ClientCertificate::Optional)) => Ok(ClientAuth::Optional(ca.clone())),
            (Some(ca), _) => Ok(ClientAuth::Required(ca.clone())),
        }
    }
}
