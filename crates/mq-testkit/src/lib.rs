//! Test support: a broker on loopback with a certificate of its own, proxies that delay, links and a
//! store that fail, a simulated multimeter and simulated sensors.
//!
//! The package `mq-tests`, in the folder `tests/` of the workspace, uses it to test several crates
//! together. No crate depends on it but for tests.

mod broker;
#[expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what a person would look at"
)]
mod browser;
mod client;
mod http;
mod manual;
mod multimeter;
mod nats;
mod programs;
mod proxy;
mod relay;
#[expect(
    clippy::unwrap_used,
    reason = "a schema that is none is a mistake of the test"
)]
mod schema;
#[expect(
    clippy::unwrap_used,
    reason = "source that cannot be read fails the test"
)]
mod source;
mod store;
mod sysfs;
#[cfg(target_os = "linux")]
mod uml;

pub use broker::{TestBroker, token_file};
pub use browser::{Page, assert_accessible, axe_script};
pub use client::{comes_and_goes, kept, next, refused};
pub use http::ask;
pub use manual::ManualClient;
pub use multimeter::{Multimeter, MultimeterModel};
pub use nats::{NatsStreamState, nats_stream_states};
pub use programs::{
    Running, chromium, faketime, free_port, give_clock, listens, mosquitto, nightly, program,
    skipped,
};
pub use proxy::{TcpProxy, UdpProxy};
pub use relay::FaultyRelay;
pub use schema::schema_problems;
pub use source::{circles_of_files, code_lines, names_behind};
pub use store::SlowStore;
pub use sysfs::FakeSys;
#[cfg(target_os = "linux")]
pub use uml::Uml;

/// Runs one async test body over each transport: `over_each_transport!(body)` makes a module `body`
/// with one test a transport; the body takes a [`mq_transport::Scheme`].
#[macro_export]
macro_rules! over_each_transport {
    ($($body:ident),+ $(,)?) => {
        $(
            mod $body {
                $crate::over_each_transport!(@ $body tcp Tcp);
                $crate::over_each_transport!(@ $body tls Tls);
                $crate::over_each_transport!(@ $body quic Quic);
                $crate::over_each_transport!(@ $body ws Ws);
                $crate::over_each_transport!(@ $body wss Wss);
            }
        )+
    };
    (@ $body:ident $name:ident $scheme:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let body = super::$body($crate::Scheme::$scheme);
            tokio::time::timeout(std::time::Duration::from_secs(60), body)
                .await
                .expect("it should not hang");
        }
    };
}

pub use mq_transport::Scheme;

/// Every transport over a network.
pub const SCHEMES: [Scheme; 5] = [
    Scheme::Tcp,
    Scheme::Tls,
    Scheme::Quic,
    Scheme::Ws,
    Scheme::Wss,
];
