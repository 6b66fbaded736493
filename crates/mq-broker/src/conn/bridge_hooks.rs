//! The points at which the connection of a bridge differs from a client's.

use std::time::Instant;

use mq_codec::{ConnAck, SubAck};
use mq_proto::{CommandError, Connection, Delivery, Received};
use mq_transport::LinkInfo;

use crate::{
    hub::{HeldSession, Hub},
    journal::Journal,
};

/// A bridge, as its connection calls it.
pub(crate) trait BridgeHooks: Send {
    /// Acts on CONNACK: the remote broker has let this one in.
    ///
    /// # Errors
    /// If a packet cannot be sent, which ends the connection.
    fn connected(
        &mut self,
        now: Instant,
        ack: &ConnAck,
        at: BridgeConnection<'_>,
    ) -> Result<(), CommandError>;

    /// Acts on SUBACK.
    fn subscribed(&self, ack: &SubAck);

    /// Sends messages of the bridge's own that have waited for the window.
    fn send_own(&mut self, now: Instant, connection: &mut Connection);

    /// Gives a message of the remote broker its name here.
    ///
    /// # Errors
    /// The reason for which it is not published here.
    fn rename_incoming(&self, received: &mut Received) -> Result<(), &'static str>;

    /// Gives a delivery its form at the remote broker. Returns `false` if it is not for that.
    #[must_use]
    fn rename_outgoing(&self, connection: &Connection, delivery: &mut Delivery) -> bool;

    /// Returns the time at which the connection ends if it carries nothing until then. `carried` counts the messages
    /// so far.
    fn idle_deadline(
        &mut self,
        now: Instant,
        carried: u64,
        connection: &Connection,
    ) -> Option<Instant>;

    /// Returns the time of CONNACK, if it came.
    fn connected_since(&self) -> Option<Instant>;
}

/// The parts of a connection that a bridge acts on.
pub(crate) struct BridgeConnection<'a> {
    pub(crate) connection: &'a mut Connection,
    pub(crate) link: LinkInfo,
    pub(crate) hub: &'a Hub,
    pub(crate) hold: &'a mut HeldSession,
    pub(crate) journal: &'a mut Journal,
    /// A message that is sent before the connection ends.
    pub(crate) last_word: &'a mut Option<Box<Delivery>>,
}
