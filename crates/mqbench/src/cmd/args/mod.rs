//! Options that several commands share.

mod links;
mod mqtt;
mod transport;
mod value_parsers;

pub(crate) use crate::units::parse_duration;
pub(crate) use links::LinkArgs;
pub(crate) use mqtt::ClientArgs;
pub(crate) use value_parsers::{parse_percent, resumption, topics, way};
