//! The state machine: a client and a server over a simulated network, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg_attr(
    feature = "mqtt-next",
    expect(
        clippy::duplicate_mod,
        reason = "the bodies of two fuzz targets read their input alike"
    )
)]
#![expect(clippy::print_stdout, reason = "seeds, figures and skips are printed")]

#[path = "../../../../fuzz/corpus/mod.rs"]
mod corpus;
mod util;

mod delivery_guarantees;
mod early;
#[cfg(feature = "mqtt-next")]
mod flows;
mod fuzz_connection;
#[cfg(feature = "mqtt-next")]
mod fuzz_lanes;
mod lanes;
mod protocol;
mod server_lanes;
