//! Sessions of a cluster: their records, how a node claims and adopts them, and how it lets them go.

mod adopt;
mod claim;
mod claimed;
mod copies;
mod floor;
mod kept;
mod owned;
mod record;
mod release;
mod take_up;
mod write;

pub(super) use floor::Floor;
pub(super) use kept::Kept;
pub(super) use owned::Owned;
pub(super) use record::Record;
