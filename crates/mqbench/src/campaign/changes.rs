//! A campaign file with changes: `s22-fig4.toml@repeat=probe`, as a link is `s22/wifi@loss=5%`.
//!
//! A set keeps the file under the changed name, `campaigns/s22-fig4@repeat=probe.toml`. A change leaves cells alone that
//! it does not concern, here those of TLS. One run of such a cell serves both campaigns.

use std::path::{Path, PathBuf};

use toml::Value;

use super::cell::{Cell, Transport};

/// Keys of a cell and their values, as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Changes(Vec<(String, String)>);

/// Keys that concern QUIC alone.
const OF_QUIC: [&str; 11] = [
    "streams",
    "deliveries",
    "datagrams",
    "mtu_discovery",
    "quic_congestion",
    "initial_rtt",
    "initial_window",
    "packet_threshold",
    "time_threshold",
    "repeat",
    "max_ack_delay",
];
/// Keys that concern TCP and TLS alone.
const OF_TCP: [&str; 5] = [
    "tcp_congestion",
    "tls_version",
    "tcp_rto_min",
    "tcp_thin",
    "tcp_fast_open",
];

/// Returns the file of a campaign that the user names, and the campaign's name with its changes.
pub(super) fn file_and_name(named: &Path) -> (PathBuf, String) {
    let text = named.to_string_lossy();
    let (file, changes) = match text.split_once(".toml@") {
        Some((file, changes)) => (PathBuf::from(format!("{file}.toml")), Some(changes)),
        None => (named.to_owned(), None),
    };
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    let stem = stem.unwrap_or("campaign");
    let name = match changes {
        Some(changes) => format!("{stem}@{changes}"),
        None => stem.to_owned(),
    };
    (file, name)
}

/// Divides a campaign's name into the name without changes, and the changes as text, which are empty without any.
pub(crate) fn base_and_changes(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
}

impl Changes {
    /// Parses the changes in a campaign's name.
    ///
    /// # Errors
    /// One line with what is wrong.
    pub(super) fn of(name: &str) -> Result<Self, String> {
        let (_, changes) = base_and_changes(name);
        let parts = changes.split(',').filter(|part| !part.is_empty());
        let parts = parts.map(|part| match part.split_once('=') {
            Some((key, value)) if !value.is_empty() && !value.contains('/') => {
                Ok((key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Err(format!(
                "@{part}: a change is KEY=VALUE, such as repeat=probe"
            )),
        });
        Ok(Self(parts.collect::<Result<_, _>>()?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the keys that are changed.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| &key[..])
    }

    /// Changes a cell, as far as a change concerns its transport.
    ///
    /// # Errors
    /// As [`Cell::set`], with the key.
    pub(super) fn apply(&self, cell: &mut Cell) -> Result<(), String> {
        let others: &[&str] = match cell.transport {
            Transport::Quic => &OF_TCP,
            Transport::Tcp | Transport::Tls => &OF_QUIC,
        };
        for (key, value) in &self.0 {
            if !others.contains(&&key[..]) {
                let set = cell.set(key, &typed(value));
                set.map_err(|problem| format!("@{key}: {problem}"))?;
            }
        }
        Ok(())
    }
}

/// Parses a number, `true` or `false`, or else a text, as a file would have it.
fn typed(text: &str) -> Value {
    let value: Option<Value> = text.parse().ok();
    let plain = value.filter(|value| value.is_integer() || value.is_float() || value.is_bool());
    plain.unwrap_or_else(|| Value::String(text.to_owned()))
}
