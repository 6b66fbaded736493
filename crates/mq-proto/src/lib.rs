//! The MQTT session as a state machine without I/O, clocks or threads.
//!
//! [`Connection`] is one MQTT connection in the client's or the server's role. Its owner gives it
//! the bytes that arrive ([`Connection::handle_bytes`]) and the passing of time
//! ([`Connection::handle_timeout`]); it answers with events ([`Connection::poll_event`]), bytes to
//! write ([`Connection::outbox`]) and the time at which it wants to be called again
//! ([`Connection::poll_timeout`]). [`Session`] is what outlives a connection: messages in flight in
//! both directions. Nothing here blocks or waits; each call takes the time as `now`.
//!
//! A client and a server, with their outboxes where a network would be:
//!
//! ```
//! use std::time::Instant;
//! use bytes::BytesMut;
//! use mq_codec::{ByteStr, ConnAck, Connect, QoS, ReasonCode, TopicName, Version};
//! use mq_proto::*;
//!
//! /// Carries what `from` has to say to `to`.
//! fn carry(now: Instant, from: &mut Connection, to: &mut Connection, inbox: &mut BytesMut) {
//!     while let Some(chunk) = from.outbox().take(LaneId::CONTROL) {
//!         inbox.extend_from_slice(&chunk.bytes);
//!     }
//!     to.handle_bytes(now, LaneId::CONTROL, inbox);
//! }
//!
//! let (now, mut inbox) = (Instant::now(), BytesMut::new());
//! let connect = Connect::new(Version::V5, ByteStr::new("sensor-7")?);
//! let mut client = Connection::client(now, ClientConfig::new(connect), Session::new());
//! let mut server = Connection::server(now, ServerConfig::default());
//!
//! client.connect(now)?;
//! let message = Message::new(TopicName::new("plant/7/temperature")?, "21.5");
//! client.publish(now, Delivery::new(message, QoS::AtLeastOnce)).map_err(|(error, _)| error)?;
//! carry(now, &mut client, &mut server, &mut inbox);
//! assert!(matches!(server.poll_event(), Some(Event::Connect(_))));
//! server.accept(now, Session::new(), ConnAck::new(ReasonCode::Success))?;
//! server.handle_bytes(now, LaneId::CONTROL, &mut inbox); // the PUBLISH behind CONNECT
//! let Some(Event::Publish(received)) = server.poll_event() else { panic!("no PUBLISH") };
//! let ticket = received.ticket.expect("QoS 1 is acknowledged");
//! server.ack(now, ticket, ReasonCode::Success);
//! let mut answers = BytesMut::new();
//! carry(now, &mut server, &mut client, &mut answers);
//! assert!(matches!(client.poll_event(), Some(Event::Connected(_))));
//! assert!(matches!(client.poll_event(), Some(Event::Acked { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The machine does the order of packets, QoS 1 and 2 with retransmission when a session is
//! resumed, packet identifiers, flow control by Receive Maximum, topic aliases, packet size limits and
//! keep-alive. Its owner decides which clients may connect, what a subscription matches, where
//! messages are kept, and when a received message is safe enough to be acknowledged (see
//! [`AckTicket`]). `mq-client` and `mq-broker` are two such owners.
//!
//! The feature `mqtt-next` (default off) adds flows of the MQTT-next draft: data lanes whose state outlives
//! them. Clauses (`§4.4`, `[MQTT-4.4.0-1]`) are those of MQTT 5.0.

mod alias;
mod config;
mod connection;
mod error;
mod event;
mod flow;
mod keepalive;
mod limits;
mod message;
mod seldom;
mod session;

pub use config::{ClientConfig, DataLanes, ServerConfig};
pub use connection::{Connection, EarlyPackets, Role};
pub use error::{CommandError, ProtocolError};
pub use event::{AckTicket, CloseReason, Event, FlowEnd, Received};
pub use flow::{FlowError, FlowId};
pub use keepalive::Probes;
pub use message::{Delivery, Message};
pub use session::Session;

pub use mq_lane::{LaneEnd, LaneId, Outbox, Spread, Spreader, UnknownSpread, Way};
