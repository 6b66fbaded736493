//! The configuration file: brokers by name.
//!
//! ```toml
//! [brokers.plant]
//! url = "quic://broker.example/plant"
//! username = "ann"
//! password_file = "/home/ann/.config/mq/plant"
//! cafile = "/etc/ssl/plant.pem"
//! ```

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};

/// The whole file.
#[derive(serde::Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    brokers: BTreeMap<String, Profile>,
}

/// Settings of a broker. Options of the command line override them.
#[derive(serde::Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// Broker's URL, in the form that the command line takes.
    pub(crate) url: String,
    /// Tried where the first cannot be reached.
    #[serde(default)]
    pub(crate) fallback: Vec<String>,
    pub(crate) username: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) id: Option<String>,
    pub(crate) cafile: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    #[serde(default)]
    pub(crate) insecure: bool,
}

impl Profile {
    /// Finds a broker by its name.
    pub(crate) fn find(name: &str) -> anyhow::Result<Self> {
        let path = path().ok_or_else(|| anyhow!("@{name}: HOME is not set"))?;
        Self::find_in(&path, name)
    }

    fn find_in(path: &Path, name: &str) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("@{name}: {shown}"))?;
        let mut file: File = toml::from_str(&text).map_err(|error| {
            let message = error.message().replace('\n', " ");
            anyhow!("{shown}: {message}")
        })?;
        let names: Vec<_> = file.brokers.keys().cloned().collect();
        let found = file.brokers.remove(name);
        found.ok_or_else(|| anyhow!("{shown} has no broker {name}, but {}", list(&names)))
    }
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none at all".to_owned(),
        names => names.join(", "),
    }
}

/// Returns the path of `MQ_CONFIG`, or of `mq/config.toml` where configuration files are.
fn path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("MQ_CONFIG") {
        return Some(path.into());
    }
    let folder = std::env::var_os("XDG_CONFIG_HOME").filter(|folder| !folder.is_empty());
    let folder = folder.map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(PathBuf::from(home).join(".config"))
    });
    Some(folder?.join("mq/config.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_found_by_its_name_and_a_wrong_name_is_told_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, "[brokers.plant]\nurl = \"quic://host/plant\"\n").unwrap();
        let plant = Profile::find_in(&path, "plant").unwrap();
        assert_eq!(plant.url, "quic://host/plant");
        let error = format!("{:#}", Profile::find_in(&path, "plan").unwrap_err());
        assert!(error.contains("has no broker plan, but plant"), "{error}");
        std::fs::write(&path, "[brokers.plant]\nurl = 1\n").unwrap();
        let error = format!("{:#}", Profile::find_in(&path, "plant").unwrap_err());
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
