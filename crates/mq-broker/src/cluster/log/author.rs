//! The author of entries: a node between two starts of its broker.

use crate::cluster::engine::{Malformed, Reader, Writer};

/// A node in one of its lives: from a start of the broker to its end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::cluster) struct Author {
    pub(in crate::cluster) node: String,
    /// Higher than those of the node's earlier lives.
    pub(in crate::cluster) life: u64,
}

impl Author {
    pub(in crate::cluster) fn write(&self, to: &mut Writer) {
        to.bytes(self.node.as_bytes());
        to.number(self.life);
    }

    pub(in crate::cluster) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            node: from.text()?.to_string(),
            life: from.number()?,
        })
    }
}
