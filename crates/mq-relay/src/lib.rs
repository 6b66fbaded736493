//! A relay for MQTT connections: any transport in, any transport out.
//!
//! Beside a client the relay gives QUIC to a program that speaks TCP alone; before a broker it gives QUIC to the broker.
//!
//! ```text
//! client --mqtt--> relay ========quic========> relay --mqtt--> broker
//! ```
//!
//! Each client has an upstream connection of its own, so that it stays itself: its identifier, its session, its will and its flow
//! control are between it and the broker. The relay reads CONNECT, checks it, and passes it on as it is. After that it passes bytes
//! on, each way, and decodes no packet.
//!
//! | module | what it has |
//! |---|---|
//! | `relay` | listeners, a task for each client, counters, the end |
//! | `first_packet` | CONNECT, whole and checked; the refusal |
//! | `upstream` | the connection to the broker, and a pause where it cannot be reached |
//! | `pipe` | two links whose bytes are passed on |
//! | `early` | the bytes that may be early data |
//! | `log_lines` | a bound on lines in the log that clients can cause |
//!
//! # Bounds
//!
//! A CONNECT has at most 64 KiB and comes within [`connect_time`](RelayOptions::connect_time). For each client at most 64 KiB wait each way,
//! beside what its links hold; a side that does not read stops the other. The flow-control windows of all QUIC clients together grow by
//! [`window_memory`](RelayOptions::window_memory). A broker that cannot be reached, or does not answer within
//! the connect timeout, is a CONNACK with reason 0x88 (return code 3 before 5.0). After a failure clients are refused at once for a
//! pause of 0.1 to 5 s, and one of them tries again. Where the broker closes without an answer, the relay does so too.
//!
//! QUIC clients get one stream, and no datagrams: packets of several streams would have to be joined where the other side has one.
//! A client that wants more goes on with one.
//!
//! # Early data
//!
//! With a ticket CONNECT leaves with the first flight to the broker, and an attacker who copies that flight makes a broker without
//! single-use tickets read CONNECT twice. With [`EarlyDataPolicy::Full`](mq_transport::EarlyDataPolicy::Full) what follows leaves as well, up to the first packet of QoS 2:
//! messages of QoS 0 and 1 may then come twice. The broker's answer decides: rejected early data is sent again, once.
//!
//! # Example
//!
//! ```
//! use mq_relay::{Relay, RelayOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let to = ["mqtt://127.0.0.1:1883".parse()?];
//! let relay = Relay::bind(RelayOptions::new(["mqtt://127.0.0.1:0".parse()?], to)).await?;
//! println!("{}", relay.local_addresses()[0]);
//! let handle = relay.handle();
//! let serving = tokio::spawn(relay.serve());
//! assert_eq!(handle.drain(std::time::Duration::from_secs(1)).await, 0);
//! serving.await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Cargo features
//!
//! | feature | builds | by default |
//! |---|---|---|
//! | `tcp`, `tls`, `quic`, `ws` | a transport each, as in [`mq_transport`] | on |
//! | `aws-lc-rs`, `ring` | cryptography | `aws-lc-rs` |

mod clock;
mod early;
mod first_packet;
mod lock;
mod log_lines;
mod options;
mod pipe;
mod relay;
mod upstream;

pub use options::RelayOptions;
pub use relay::{PreparedChange, Relay, RelayHandle, RelayStats};
