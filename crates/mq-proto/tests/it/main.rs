//! The state machine: a client and a server over a simulated network, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::duplicate_mod,
    reason = "the bodies of two fuzz targets read their input alike"
)]
#![expect(clippy::print_stdout, reason = "seeds, figures and skips are printed")]

#[path = "../../../../fuzz/corpus/mod.rs"]
mod corpus;
mod util;

mod delivery_guarantees;
mod early;
mod flows;
mod fuzz_connection;
mod fuzz_lanes;
mod lanes;
mod protocol;
mod server_lanes;
