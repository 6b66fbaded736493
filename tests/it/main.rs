//! Several crates together, beside peers and hostile clients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "seeds, figures and skips are printed")]

use std::path::{Path, PathBuf};

mod bench_scripts;
mod cluster_node;
mod seeds;

mod access;
mod blocking;
mod bridge;
mod bridge_links;
mod cluster;
mod cluster_bench;
mod cluster_clocks;
mod cluster_nats;
mod cluster_qos0;
mod cluster_schedules;
mod cluster_storage;
mod cluster_wills;
mod compare_brokers;
mod early_data_bytes;
mod end_to_end;
mod energy;
mod examples;
mod faults;
mod home;
mod hooks;
mod idle_streams;
#[cfg(unix)]
mod inspect;
mod interop;
mod jwt;
mod layers;
mod limits;
mod log_lines;
mod modules;
#[cfg(unix)]
mod operation;
#[cfg(unix)]
mod operators;
#[cfg(unix)]
mod operators_page;
mod packages;
mod page_form;
mod pages;
mod proxy_protocol;
mod qlog;
mod quic_flows;
mod quic_peers;
mod quic_streams;
#[cfg(unix)]
mod readme;
mod rebinding;
mod relay;
mod relay_bench;
mod replay;
mod retained;
mod scale;
mod slow_readers;
mod store;
mod tickets;
mod websocket;
mod words;
mod zero_rtt;

/// Returns the folder of the repository.
fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().unwrap()
}
