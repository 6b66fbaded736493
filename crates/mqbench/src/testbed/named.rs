//! Profiles of links and channels, by the names that the user gave.

use mq_netem::Link;

/// A profile with the name that the user gave.
#[derive(Debug)]
pub(crate) struct NamedProfile<T> {
    pub(super) name: String,
    pub(super) profile: T,
}

impl<T> NamedProfile<T> {
    pub(super) fn load(
        name: &str,
        load: impl FnOnce(&str) -> Result<T, mq_netem::Error>,
    ) -> Result<Self, mq_netem::Error> {
        Ok(Self {
            name: name.to_owned(),
            profile: load(name)?,
        })
    }
}

/// Returns a link without delay, loss or limit.
pub(super) fn perfect() -> NamedProfile<Link> {
    NamedProfile {
        name: "perfect".to_owned(),
        profile: Link::default(),
    }
}
