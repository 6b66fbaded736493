//! An MQTT broker over TCP, TLS, QUIC and WebSocket, all at once.
//!
//! [`Broker::start`] takes [`Settings`], made by hand or from a [`Config`] file, and runs on the
//! current tokio runtime. The program `mqbroker`, a crate of its own, is this with a command line.
//!
//! ```
//! use mq_broker::{Broker, Settings};
//! use mq_transport::ServerIdentity;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listeners = vec!["tcp://127.0.0.1:0".parse()?, "quic://127.0.0.1:0".parse()?];
//! let mut settings = Settings::new(listeners);
//! settings.listen.identity = Some(ServerIdentity::self_signed()?); // TLS and QUIC need one
//! settings.quotas.mailbox.messages = 1_000;
//! let broker = Broker::start(settings).await?;
//! println!("listening at {}", broker.addresses()[0]); // with the port that was chosen
//! println!("{} clients", broker.metrics().connections.get());
//! broker.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Certificates, client authorities and revocation lists change while it runs:
//! [`Broker::reload_handle`].
//!
//! Whoever reaches a listener gets in, with
//! [`client_auth`](mq_transport::ListenOptions::client_auth) whoever has a certificate, unless
//! there are users and rules: see [`auth`].
//!
//! The cargo features are those of [`mq_transport`], by which it is built for TCP alone, or without QUIC, and
//! `jwt`, tokens as log-ins.
//!
//! The way of a PUBLISH: [`mq_transport::Link`] reads it, the module `conn` gives the bytes to
//! [`mq_proto::Connection`], `hub` asks the [`router`] for its receivers and puts it into their
//! mailboxes, one for each session; each receiver's own `conn` takes it from there and writes it.
//! `docs/architecture.md` follows it step by step.

mod admin;
pub mod auth;
mod broker;
mod ceiling;
#[cfg(feature = "tls")]
mod certificates;
mod clock;
pub mod config;
mod conn;
mod delivery;
mod error;
mod files;
mod hub;
mod lock;
mod mailbox;
mod metrics;
mod notice;
mod quota;
mod reload;
pub mod router;
mod session;
mod settings;
mod shown;
pub mod store;
mod sync;
#[cfg(feature = "tls")]
mod ticket_file;

pub use admin::AdminSettings;
pub use broker::Broker;
pub use config::Config;
pub use error::{Error, Mistake};
pub use mailbox::{MailboxLimits, Overflow};
pub use metrics::{ByReason, Counter, Gauge, ListenerMetrics, Metrics, RttHistogram};
pub use quota::{PublishRate, Quotas};
pub use reload::Reload;
pub use settings::{Settings, StoreFile};
pub use store::{DiskStore, Durability, MemoryStore, Store};
