//! The place up to which a node has read a log, as its entries state it.

use crate::cluster::engine::{Malformed, Reader, Writer};

/// A place of a log, and a hash over all that was read up to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::cluster) struct Milestone {
    pub(super) entry: u64,
    pub(super) hash: u64,
}

impl Milestone {
    pub(super) fn write(self, to: &mut Writer) {
        to.number(self.entry);
        to.number(self.hash);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            entry: from.number()?,
            hash: from.number()?,
        })
    }
}
