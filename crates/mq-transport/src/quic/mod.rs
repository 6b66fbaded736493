//! QUIC: MQTT in the form of EMQX, the control lane on the client's first bidirectional stream.

mod config;
mod link;
mod reset;
mod runtime;
mod session;

pub(crate) use config::{ClientEndpoints, PreparedQuic, Server};
pub(crate) use link::QuicLink;
