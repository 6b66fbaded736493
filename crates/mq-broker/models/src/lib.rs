//! Models of what the broker's tasks share, each run under every interleaving that loom finds.
//!
//! The files are the broker's own; [`sync`] stands in for the module of that name. It is not
//! `cfg(loom)` within the broker: tokio leaves out its sockets under that cfg, and with them the
//! broker does not build. Loom rather than shuttle: the shared state is small enough to be gone
//! through completely instead of by chance.
//!
//! `cargo test --manifest-path crates/mq-broker/models/Cargo.toml`

#[path = "../../src/memory_limit.rs"]
#[expect(dead_code, reason = "the models use a part of it")]
pub(crate) mod memory_limit;
#[path = "../../src/delivery.rs"]
#[expect(dead_code, reason = "the models use a part of it")]
pub(crate) mod delivery;
#[path = "../../src/mailbox/mod.rs"]
#[expect(dead_code, unused_imports, reason = "the models use a part of it")]
pub(crate) mod mailbox;
pub mod mailbox_models;
pub mod store;
mod sync;
