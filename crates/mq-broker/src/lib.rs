//! An MQTT broker over TCP, TLS and QUIC, all at once.
//!
//! [`Broker::start`] takes [`Settings`], made by hand or from a [`Config`] file, and runs on the
//! current tokio runtime. The program `mqbroker` is this with a command line.
//!
//! The way of a PUBLISH: [`mq_transport::Link`] reads it, `conn` gives the bytes to
//! [`mq_proto::Connection`], `hub` asks the [`router`] for its receivers and puts it into their
//! mailboxes; each receiver's own `conn` takes it from there and writes it.

mod broker;
pub mod cli;
mod config;
mod conn;
mod error;
mod hub;
mod mailbox;
mod metrics;
pub mod router;
mod session;
pub mod store;
mod ticket_file;

pub use broker::{Broker, Settings};
pub use config::Config;
pub use error::Error;
pub use mailbox::MailboxLimits;
pub use metrics::{Gauge, Metrics};
pub use store::{MemoryStore, Store};
