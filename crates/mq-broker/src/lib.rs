//! An MQTT broker as a library: TCP, TLS, QUIC and WebSocket, all at once.
//!
//! [`Broker::start`] takes [`Settings`], made by hand or from a [`Config`] file, and runs on the
//! current tokio runtime. `mq-broker` is this library, which parses no options and handles no signals, so that any program
//! can embed it; `mqbroker` is the program around it.
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
//! **Access.** By default the library accepts every client that reaches a listener. Where
//! [`client_auth`](mq_transport::ListenOptions::client_auth) requires certificates, it accepts
//! every client that has one. Users and rules restrict that further: see [`auth`].
//!
//! **Changes at run time.** [`Broker::reload_handle`] changes certificates, client authorities and
//! revocation lists; [`Broker::reload_access`] reloads users and rules.
//!
//! | for | see |
//! |---|---|
//! | users, rules, tokens, and traits for one's own | [`auth`] |
//! | the configuration file | [`config`] |
//! | routing: the sessions that receive a message | [`router`] |
//! | the state that survives a restart | [`store`] |
//! | what the program sees, changes and refuses | [`hooks`] |
//! | counters | [`Metrics`] |
//! | connected clients, sessions and the like | [`view`] |
//! | operators: HTTP, a page, a socket | [`AdminSettings`] |
//!
//! # The way of a PUBLISH
//!
//! [`mq_transport::Link`] reads the packet. The module `conn` gives its bytes to
//! [`mq_proto::Connection`]. `hub` asks the [`router`] for the receivers and puts the message into
//! their mailboxes, one for each session. Each receiver's own `conn` takes the message out of the
//! mailbox and writes it. `docs/architecture.md` follows a message step by step.
//!
//! # Cargo features
//!
//! | feature | adds | by default |
//! |---|---|---|
//! | `tcp`, `tls`, `quic`, `ws` | a transport each, as in [`mq_transport`] | on |
//! | `aws-lc-rs` | cryptography by aws-lc-rs | on |
//! | `ring` | cryptography by ring | off |
//! | `jwt` | JSON Web Tokens as passwords; brings aws-lc-rs to verify them | on |
//! | `page` | the page for browsers at [`AdminSettings::http`] | on |
//! | `cluster` | nodes of a cluster on NATS `JetStream`; see [`cluster`] | off |
//! | `mqtt-next` | flows of the MQTT-next draft (5 March 2024), over QUIC | off |

#![cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "nothing begins to be a node of a cluster")
)]

mod admin;
pub mod auth;
mod bridge;
mod broker;
mod broker_mark;
#[cfg(feature = "tls")]
mod certificates;
mod clock;
pub mod cluster;
pub mod config;
mod conn;
mod delivery;
mod error;
mod escaped;
mod files;
mod fnv;
pub mod hooks;
mod hub;
mod journal;
mod lock;
mod log_levels;
mod mailbox;
mod memory_limit;
mod metrics;
mod persistence;
mod quota;
mod refusal_log;
mod reload;
pub mod router;
mod secret;
mod session;
mod settings;
pub mod store;
mod store_writer;
mod sync;
#[cfg(feature = "tls")]
mod ticket_file;
pub mod view;
mod worker_thread;
mod workers;

pub use admin::{AdminSettings, make_token_file};
pub use broker::{Broker, ShutdownReport};
pub use config::Config;
pub use error::{Error, Mistake};
pub use escaped::Escaped;
pub use log_levels::LogLevels;
pub use mailbox::{MailboxLimits, Overflow};
pub use metrics::{ByReason, Counter, DurationHistogram, Gauge, ListenerMetrics, Metrics};
pub use quota::{PublishRate, Quotas};
pub use reload::Reload;
pub use secret::Secret;
pub use settings::{
    BridgeNotifications, BridgeQueue, BridgeSettings, BridgeStart, BridgeTopic, Direction,
    Settings, Storage, StoreFile,
};
pub use store::{DiskStore, Durability, MemoryStore, Store};
pub use store_writer::StorePatience;
pub use workers::{Placement, Workers};
