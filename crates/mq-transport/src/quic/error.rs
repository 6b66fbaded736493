//! Errors of quinn as errors of this crate.

use crate::Error;

impl Error {
    /// Puts an error of quinn into words: quinn's types are not this crate's interface.
    pub(crate) fn quic(error: quinn::ConnectionError) -> Self {
        use quinn::ConnectionError as E;
        match error {
            E::TransportError(error) => {
                // RFC 9001 §4.8: TLS alerts travel as codes 0x100 to 0x1ff.
                let code = u64::from(error.code);
                if let Some(reason) = error.reason.strip_prefix("invalid peer certificate: ") {
                    Self::certificate(reason)
                } else if (0x100..0x200).contains(&code) {
                    Self::Handshake {
                        reason: error.reason,
                    }
                } else {
                    Self::Protocol {
                        reason: error.to_string(),
                    }
                }
            }
            E::ConnectionClosed(close) if (0x100..0x200).contains(&u64::from(close.error_code)) => {
                Self::Handshake {
                    reason: format!("the peer refused it: {close}"),
                }
            }
            E::ConnectionClosed(close) => Self::reset(close.to_string()),
            E::ApplicationClosed(close) => Self::reset(close.to_string()),
            E::Reset => Self::reset("the peer has lost the connection's state"),
            E::TimedOut => Self::TimedOut,
            E::LocallyClosed => Self::Closed,
            other @ (E::VersionMismatch | E::CidsExhausted) => Self::Protocol {
                reason: other.to_string(),
            },
        }
    }
}
