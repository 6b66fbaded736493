//! The `[cluster]` table.

use std::{
    num::{NonZeroU16, NonZeroU32, NonZeroU64},
    path::PathBuf,
};

use serde::Deserialize;

use super::Mistakes;
use crate::Settings;

/// The `[cluster]` table: this broker as a node of a cluster on NATS ([`ClusterSettings`](crate::cluster)).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ClusterConfig {
    /// The node's name, which no other node has, of letters, digits, `-` and `_`. Required.
    pub node: String,
    /// The cluster's name, of letters, digits, `-` and `_`. Default: `mq`.
    pub name: Option<String>,
    /// URLs of the NATS servers, `tls://HOST:PORT` or `nats://HOST:PORT`, all of one scheme; at least one.
    pub servers: Vec<String>,
    /// `true` if `nats://` may lead to other machines. Default: `false`.
    #[serde(default)]
    pub plaintext: bool,
    /// The user name at the NATS servers; needs `password_file`. Default: none.
    pub user: Option<String>,
    /// File with the user's password, and nothing else but an end of line. Default: none.
    pub password_file: Option<PathBuf>,
    /// File with the authorities that sign the servers' certificates, PEM. Default: the system's.
    pub ca: Option<PathBuf>,
    /// File with this node's certificate and its chain, PEM; needs `key`. Default: none.
    pub certificate: Option<PathBuf>,
    /// File with the private key of `certificate`, PEM. Default: none.
    pub key: Option<PathBuf>,
    /// Logs over which messages are spread, from 1 to 256; cannot be changed later. Default: 8.
    pub shards: Option<NonZeroU16>,
    /// Servers that store each message, from 1 to 5. Default: 3.
    pub replicas: Option<usize>,
    /// `true` if a node that finds no streams at the servers begins a new cluster. Default: `true`.
    pub create_streams: Option<bool>,
    /// Bytes that each server may store, its `max_file_store`. Default: unknown.
    pub store_max_bytes: Option<NonZeroU64>,
    /// Bytes of one log beyond which its oldest messages are dropped. Default: 10,000,000,000.
    pub log_max_bytes: Option<NonZeroU64>,
    /// Seconds without a sign of life after which a node counts as dead, 1 at least. Default: 3.
    pub lease_s: Option<NonZeroU32>,
}

impl ClusterConfig {
    #[cfg(feature = "cluster")]
    pub(super) fn apply(self, settings: &mut Settings, mistakes: &mut Mistakes) {
        if settings.store.is_some() {
            mistakes.push(
                "store: a node of a cluster has no store of its own, as the cluster keeps what outlives it: leave \
                 out [store] or [cluster]",
            );
        }
        let table = "cluster.".to_owned();
        settings.cluster = mistakes.within(table, |mistakes| self.into_settings(mistakes));
    }

    /// Returns the settings of the table; those of keys that are wrong have their defaults.
    #[cfg(feature = "cluster")]
    fn into_settings(self, mistakes: &mut Mistakes) -> crate::cluster::ClusterSettings {
        use std::time::Duration;

        use super::{read_secret, set};
        use crate::cluster::{ClusterSettings, NatsSettings};

        let before = mistakes.all.len();
        let name = self.name.unwrap_or_else(|| "mq".to_owned());
        let mut nats = NatsSettings::new(name, self.servers);
        nats.plaintext = self.plaintext;
        nats.user = match (self.user, self.password_file) {
            (Some(user), Some(path)) => {
                let password = read_secret(&path);
                let password = password.map_err(|problem| format!("password_file: {problem}"));
                mistakes
                    .note(password)
                    .map(|password| (user, password.into()))
            }
            (None, None) => None,
            (Some(_), None) => {
                mistakes.push("user: it has no password_file");
                None
            }
            (None, Some(_)) => {
                mistakes.push("password_file: it has no user");
                None
            }
        };
        nats.ca = self.ca;
        nats.identity = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                mistakes.push("certificate: give certificate and key, or neither");
                None
            }
        };
        set(&mut nats.shards, self.shards.map(NonZeroU16::get));
        set(&mut nats.replicas, self.replicas);
        set(&mut nats.create_streams, self.create_streams);
        nats.store_max_bytes = self.store_max_bytes;
        let mut cluster = ClusterSettings::new(self.node, nats);
        set(
            &mut cluster.log_max_bytes,
            self.log_max_bytes.map(NonZeroU64::get),
        );
        if let Some(seconds) = self.lease_s {
            cluster.lease = Duration::from_secs(seconds.get().into());
        }
        // A check of what is left after a mistake would find what follows from that.
        if mistakes.all.len() == before {
            mistakes.note(cluster.check());
        }
        cluster
    }

    #[cfg(not(feature = "cluster"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub(super) fn apply(self, _: &mut Settings, mistakes: &mut Mistakes) {
        mistakes.push(
            "cluster: this build is no node of a cluster: build it with the feature `cluster`",
        );
    }
}
