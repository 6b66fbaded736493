//! The client identifier of a bridge at the remote broker, if none is configured.

use crate::store::BrokerId;

/// The file with the name of the machine.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// The longest name of a machine.
const MAX_HOST_NAME_BYTES: usize = 64;

/// The part of the client identifier that distinguishes this broker from others with the same
/// configuration. Two brokers with one client identifier would take the session at the remote
/// broker from each other for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// The identifier in the broker's store.
    Store(BrokerId),
    /// The name of the machine.
    Host(String),
    /// An identifier of this start alone.
    Start(BrokerId),
    /// The cluster that the broker is a node of. A bridge's session moves from node to node, with
    /// the same client identifier.
    Cluster,
}

impl Origin {
    /// Returns the origin of a broker without a store.
    pub(crate) fn without_store() -> Self {
        let name = std::fs::read_to_string(HOST_NAME_FILE).ok();
        Self::of_host(name.as_deref().unwrap_or_default())
    }

    /// Takes the name of the machine, or a random identifier: a name that many machines have
    /// distinguishes nothing, and one with other characters could not be part of a topic.
    fn of_host(name: &str) -> Self {
        let name = name.trim();
        let is_char = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_name = (1..=MAX_HOST_NAME_BYTES).contains(&name.len()) && name.chars().all(is_char);
        let (first, _) = name.split_once('.').unwrap_or((name, ""));
        if is_name && first != "localhost" {
            Self::Host(name.to_owned())
        } else {
            Self::Start(BrokerId::random())
        }
    }

    /// Returns `true` if a later start has the same origin.
    pub(super) fn is_lasting(&self) -> bool {
        !matches!(self, Self::Start(_))
    }

    /// Returns the client identifier of the bridge with that name.
    pub(super) fn client_id(&self, name: &str) -> String {
        match self {
            Self::Store(id) | Self::Start(id) => format!("bridge-{name}-{id}"),
            Self::Host(host) => format!("bridge-{name}-{host}"),
            Self::Cluster => format!("bridge-{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_identifier_ends_with_what_tells_the_broker_from_others() {
        let id = BrokerId::from_bits(0xFFFF_0000_0000_0ABC);
        let host = Origin::of_host("edge-7.plant.example\n");
        for (origin, client_id, is_lasting) in [
            (Origin::Store(id), "bridge-cloud-000000000abc", true),
            (Origin::Start(id), "bridge-cloud-000000000abc", false),
            (host, "bridge-cloud-edge-7.plant.example", true),
            (Origin::Cluster, "bridge-cloud", true),
        ] {
            assert_eq!(origin.client_id("cloud"), client_id);
            assert_eq!(origin.is_lasting(), is_lasting, "{origin:?}");
        }
    }

    #[test]
    fn a_machine_without_a_name_of_its_own_has_another_identifier_at_each_start() {
        let long = "x".repeat(MAX_HOST_NAME_BYTES + 1);
        for name in [
            "",
            "\n",
            "(none)",
            "localhost",
            "localhost.localdomain\n",
            "a/b",
            "edge+7",
            &long,
        ] {
            let [one, other] = [name; 2].map(Origin::of_host);
            assert!(!one.is_lasting(), "{one:?}");
            assert_ne!(one, other);
        }
    }
}
