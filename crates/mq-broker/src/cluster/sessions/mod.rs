//! Sessions of a cluster: their records, how a node claims and adopts them, and how it lets them go.

mod adopt;
mod candidates;
mod claim;
mod copies;
mod floor;
mod message_search;
mod owned;
mod record;
mod recorded_session;
mod release;
mod take_up;
mod write;

pub(super) use floor::Floor;
pub(super) use owned::OwnedSession;
pub(super) use record::Record;
pub(super) use recorded_session::RecordedSession;
pub(super) use take_up::TakeUps;
pub(super) use write::MAX_RECORD_WRITES;
