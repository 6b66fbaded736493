//! Options that several commands share.

mod links;
mod mqtt;
mod transport;
mod values;

pub(crate) use crate::units::duration;
pub(crate) use links::LinkArgs;
pub(crate) use mqtt::ClientArgs;
pub(crate) use transport::TransportArgs;
pub(crate) use values::{resumption, topics, way};
