//! The MQTT session as a state machine without I/O, clocks or threads.
//!
//! [`Connection`] is one MQTT connection in the client's or the server's role. Its owner gives it
//! the bytes that arrive ([`Connection::handle_bytes`]) and the passing of time
//! ([`Connection::handle_timeout`]); it answers with events ([`Connection::poll_event`]), bytes to
//! write ([`Connection::outbox`]) and the time at which it wants to be called again
//! ([`Connection::poll_timeout`]). [`Session`] is what outlives a connection: messages in flight in
//! both directions.
//!
//! What the machine does: the order of packets, QoS 1 and 2 with retransmission when a session is
//! resumed, packet identifiers, flow control by Receive Maximum, topic aliases, packet size limits,
//! keep-alive. What it leaves to its owner: who may connect, what a subscription matches, where
//! messages are kept, and when a received message is safe enough to be acknowledged (see
//! [`AckTicket`]).

mod alias;
mod config;
mod connection;
mod error;
mod event;
mod keepalive;
mod lane;
mod message;
mod outbox;
mod session;

pub use config::{ClientConfig, ServerConfig};
pub use connection::{Connection, Role};
pub use error::{CommandError, ProtocolError};
pub use event::{AckTicket, CloseReason, Event, Received};
pub use lane::LaneId;
pub use message::{Delivery, Message};
pub use outbox::Outbox;
pub use session::Session;
