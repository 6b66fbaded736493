//! The `[[listener]]` tables: listeners that have keys of their own.

use std::net::IpAddr;

use mq_transport::{Address, IpNet, ProxyProtocol};
use serde::Deserialize;

use super::Mistakes;
use crate::Settings;

/// A `[[listener]]` table: a listener, beside those of `listen`, and what holds for it alone.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ListenerConfig {
    /// URL to listen at. Required.
    pub url: String,
    /// Use of the PROXY protocol, over TCP and what runs over it: `required` or `optional`. Default: none; a header is then
    /// malformed MQTT.
    pub proxy_protocol: Option<ProxyUse>,
    /// Addresses and networks, such as `10.0.0.0/8`, of the proxies whose headers are believed. Required with `proxy_protocol`.
    #[serde(default)]
    pub trusted_proxies: Vec<String>,
}

/// Use of the PROXY protocol by a listener's clients, as the configuration file has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProxyUse {
    /// Each connection has to begin with a header.
    Required,
    /// Trusted proxies send headers, and clients may also come without a proxy.
    Optional,
}

impl ListenerConfig {
    pub(super) fn apply(self, settings: &mut Settings, mistakes: &mut Mistakes) {
        let table = format!("listener `{}`: ", self.url);
        let address = mistakes.within(table, |mistakes| {
            let address = self.url.parse::<Address>();
            let address = mistakes.note(address.map_err(|error| format!("url: {error}")))?;
            let proxies = self.proxies(&address, mistakes);
            Some((address, proxies))
        });
        let Some(Some((address, proxies))) = address else {
            return;
        };
        if let Some(proxies) = proxies {
            settings.proxies.push((address.clone(), proxies));
        }
        settings.listeners.push(address);
    }

    fn proxies(&self, address: &Address, mistakes: &mut Mistakes) -> Option<ProxyProtocol> {
        let trusted = self.trusted_proxies.iter();
        let trusted: Vec<_> = trusted
            .filter_map(|text| mistakes.note(network(text)))
            .collect();
        let Some(proxy_use) = self.proxy_protocol else {
            if !self.trusted_proxies.is_empty() {
                mistakes.push("trusted_proxies: it needs `proxy_protocol`");
            }
            return None;
        };
        if self.trusted_proxies.is_empty() {
            mistakes.push(
                "proxy_protocol: it needs `trusted_proxies`, the addresses of the proxies, since anybody could \
                 name another client's address",
            );
        }
        if !address.scheme.is_over_tcp() {
            mistakes.push("proxy_protocol: only listeners over TCP have it");
        }
        Some(ProxyProtocol {
            required: proxy_use == ProxyUse::Required,
            trusted,
        })
    }
}

/// Parses an address, or a network such as `10.0.0.0/8`.
fn network(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address
        .or_else(|_| text.parse())
        .map_err(|_| format!("trusted_proxies: `{text}` is no address or network"))
}
