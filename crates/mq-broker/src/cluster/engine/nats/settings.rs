//! The addresses of the servers, and a node's credentials there.

use std::{net::IpAddr, num::NonZeroU64, path::PathBuf, time::Duration};

use async_nats::ServerAddr;

use crate::Secret;

/// The most logs: each takes tasks of every node, and memory of the servers.
const MAX_SHARDS: u16 = 256;

/// The most servers that NATS keeps a message on.
const MAX_REPLICAS: usize = 5;

/// The NATS servers of a cluster, and a node's credentials there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NatsSettings {
    /// The cluster's name: of letters, digits, `-` and `_`. Streams and subjects begin with it.
    pub cluster: String,
    /// URLs of servers, `nats://HOST:PORT` or with TLS `tls://HOST:PORT`; at least one, and all of one scheme. The node
    /// connects to these and no others: a server's own list of servers is not asked for.
    pub servers: Vec<String>,
    /// `true` if `nats://` may lead to other machines. Default `false`.
    pub plaintext: bool,
    /// The user there, with its password. The password is UTF-8.
    pub user: Option<(String, Secret)>,
    /// Authorities that the servers' certificates have to be of, PEM; the system's if absent.
    pub ca: Option<PathBuf>,
    /// This node's certificate with its chain, and its key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The number of logs, from 1 to 256. It cannot be changed later. Default 8.
    pub shards: u16,
    /// Number of servers that keep each message, from 1 to 5. It holds for a new cluster. Default 3.
    pub replicas: usize,
    /// `true` if a node that finds no streams makes them, which begins a new cluster. With `false` it waits for them, for
    /// [`connect_timeout`](Self::connect_timeout): a cluster in service whose servers have lost everything is not taken for a
    /// new one. Default `true`.
    pub create_streams: bool,
    /// Bytes that each server may store, its `max_file_store`, which it does not tell. Default: not known.
    pub store_max_bytes: Option<NonZeroU64>,
    /// Time for which a broker that starts waits for the servers. Default 60 s: a service that systemd starts has 90 s.
    pub connect_timeout: Duration,
}

impl NatsSettings {
    /// Makes settings with the defaults.
    #[must_use]
    pub fn new(cluster: impl Into<String>, servers: Vec<String>) -> Self {
        Self {
            cluster: cluster.into(),
            servers,
            plaintext: false,
            user: None,
            ca: None,
            identity: None,
            shards: 8,
            replicas: 3,
            create_streams: true,
            store_max_bytes: None,
            connect_timeout: Duration::from_mins(1),
        }
    }

    /// Checks the settings, and returns the servers' addresses, all of one scheme.
    ///
    /// # Errors
    /// The mistake, in words for the operator.
    pub(crate) fn check(&self, node: &str) -> Result<Vec<ServerAddr>, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        for (key, name) in [("name", self.cluster.as_str()), ("node", node)] {
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(format!(
                    "{key}: {name:?} needs letters, digits, - and _ alone"
                ));
            }
        }
        if !(1..=MAX_SHARDS).contains(&self.shards) {
            return Err(format!("shards: must be from 1 to {MAX_SHARDS}"));
        }
        if !(1..=MAX_REPLICAS).contains(&self.replicas) {
            return Err(format!("replicas: must be from 1 to {MAX_REPLICAS}"));
        }
        let addresses = self.servers.iter().map(|url| self.address(url));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let mut tls = addresses.iter().map(ServerAddr::tls_required);
        let Some(first) = tls.next() else {
            return Err("servers: name one, such as nats://127.0.0.1:4222".to_owned());
        };
        if !tls.all(|other| other == first) {
            return Err(
                "servers: tls:// and nats:// are mixed: all are with encryption, or none"
                    .to_owned(),
            );
        }
        for (key, is_given) in [
            ("ca", self.ca.is_some()),
            ("certificate", self.identity.is_some()),
        ] {
            if is_given && !first {
                return Err(format!("{key}: only for servers of tls://"));
            }
        }
        Ok(addresses)
    }

    fn address(&self, url: &str) -> Result<ServerAddr, String> {
        // What is behind the scheme may have a password.
        let scheme = url.split("://").next().unwrap_or_default();
        let address = url.parse::<ServerAddr>().ok();
        let address = address.filter(|address| {
            let has_host = !address.host().is_empty();
            url.contains("://") && ["nats", "tls"].contains(&address.scheme()) && has_host
        });
        let Some(address) = address else {
            return Err(format!(
                "servers: the URL that begins with {scheme:?} is not nats://HOST:PORT or tls://HOST:PORT"
            ));
        };
        if address.has_user_pass() {
            return Err(
                "servers: a URL has a user: name it by `user`, and its password by `password_file`"
                    .to_owned(),
            );
        }
        if !address.tls_required() && !is_local(&address) && !self.plaintext {
            return Err(format!(
                "servers: {url} is another machine, and without encryption: take tls://, or allow it by \
                 `plaintext = true`"
            ));
        }
        Ok(address)
    }
}

/// Returns `true` if only this machine reaches an address.
fn is_local(address: &ServerAddr) -> bool {
    let host = address.host();
    let ip = host.parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_named() {
        let with = |servers: &[&str]| {
            let servers = servers.iter().map(|url| (*url).to_owned());
            NatsSettings::new("mq", servers.collect())
        };
        let local = with(&[
            "nats://127.0.0.1:4222",
            "nats://[::1]:1",
            "nats://localhost",
        ]);
        assert_eq!(local.check("a-1_B").unwrap().len(), 3);
        let far = with(&["nats://192.0.2.1:4222"]);
        let asked_for = NatsSettings {
            plaintext: true,
            ..far.clone()
        };
        asked_for.check("a").unwrap();
        with(&["tls://192.0.2.1", "tls://nats.example:4222"])
            .check("a")
            .unwrap();
        let but = |change: fn(&mut NatsSettings)| {
            let mut settings = local.clone();
            change(&mut settings);
            settings
        };
        for (wrong, node, says) in [
            (
                far,
                "a",
                "servers: nats://192.0.2.1:4222 is another machine",
            ),
            (with(&[]), "a", "servers: name one"),
            (with(&["127.0.0.1:4222"]), "a", "is not nats://HOST:PORT"),
            (with(&["http://127.0.0.1"]), "a", "begins with \"http\" is"),
            (with(&["nats://"]), "a", "is not nats://HOST:PORT"),
            (with(&["nats://u:secret@127.0.0.1"]), "a", "`password_file`"),
            (
                with(&["tls://127.0.0.1", "nats://127.0.0.1"]),
                "a",
                "are mixed",
            ),
            (local.clone(), "a.b", "node: \"a.b\" needs letters"),
            (local.clone(), "", "node: \"\" needs letters"),
            (
                but(|it| it.cluster = "a b".to_owned()),
                "a",
                "name: \"a b\"",
            ),
            (but(|it| it.shards = 0), "a", "shards: must be from 1 to"),
            (but(|it| it.replicas = 6), "a", "replicas: must be from 1"),
            (but(|it| it.ca = Some("ca".into())), "a", "ca: only for"),
        ] {
            let error = wrong.check(node).unwrap_err();
            assert!(error.contains(says), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
