//! Handshakes of clients that come back.

use mq_transport::ConnectOptions;
use serde::{Deserialize, Serialize};

/// The handshake by which a client connects again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Resumption {
    /// A full handshake each time
    #[serde(rename = "full")]
    Full,
    /// With a ticket
    #[serde(rename = "resumed")]
    Resumed,
    /// With a ticket, CONNECT and PUBLISH as early data
    #[serde(rename = "0-rtt")]
    ZeroRtt,
}

impl Resumption {
    /// Returns the options of a client that connects again like this.
    pub(crate) fn apply(self, options: ConnectOptions) -> ConnectOptions {
        ConnectOptions {
            resumption: self != Self::Full,
            early_data: self == Self::ZeroRtt,
            ..options
        }
    }
}
