//! The program `mqbroker`, run as its users run it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "seeds, figures and skips are printed")]

mod cluster_programs;
mod program;
mod raw;
#[cfg(target_os = "linux")]
mod runc;

mod admin;
mod admin_port;
#[cfg(target_os = "linux")]
mod adversary;
#[cfg(unix)]
mod backup;
#[cfg(unix)]
mod bridge;
#[cfg(target_os = "linux")]
mod bystanders;
mod check_config;
#[cfg(all(unix, feature = "cluster"))]
mod cluster;
#[cfg(all(unix, feature = "cluster"))]
mod cluster_clocks;
#[cfg(all(unix, feature = "cluster"))]
mod cluster_operation;
#[cfg(all(unix, feature = "cluster"))]
mod cluster_storage;
#[cfg(unix)]
mod crash;
mod exposition;
#[cfg(unix)]
mod full_disk;
#[cfg(target_os = "linux")]
mod guides;
#[cfg(unix)]
#[cfg(target_os = "linux")]
mod hanging_disk;
#[cfg(target_os = "linux")]
mod hanging_files;
mod health;
#[cfg(target_os = "linux")]
mod image;
mod import;
#[cfg(unix)]
mod inspect;
mod key_page;
#[cfg(target_os = "linux")]
mod many_clients;
#[cfg(target_os = "linux")]
mod memory;
mod notices;
mod open_doors;
#[cfg(target_os = "linux")]
mod pressure;
#[cfg(unix)]
mod private_files;
mod qlog;
#[cfg(unix)]
mod reload;
#[cfg(unix)]
mod secrets;
#[cfg(target_os = "linux")]
mod streams;
#[cfg(target_os = "linux")]
mod unread_log;
