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
                    reason: one_line(&format!("the peer refused it: {close}")),
                }
            }
            E::ConnectionClosed(close) => Self::reset(one_line(&close.to_string())),
            E::ApplicationClosed(close) => Self::reset(one_line(&close.to_string())),
            E::Reset => Self::reset("the peer has lost the connection's state"),
            E::TimedOut => Self::TimedOut,
            E::LocallyClosed => Self::Closed,
            other @ (E::VersionMismatch | E::CidsExhausted) => Self::Protocol {
                reason: other.to_string(),
            },
        }
    }
}

/// Returns a text that has a peer's reason in it with its control characters escaped: the reason must neither end a line
/// of the log nor change a terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use quinn::{ApplicationClose, ConnectionError, VarInt};

    use super::*;

    #[test]
    fn a_reason_of_the_peer_stays_on_its_line() {
        let close = ApplicationClose {
            error_code: VarInt::from_u32(7),
            reason: Bytes::from_static("größer\n\u{1b}[2J".as_bytes()),
        };
        let error = Error::quic(ConnectionError::ApplicationClosed(close));
        assert_eq!(
            error.to_string(),
            "the peer reset the connection: größer\\n\\u{1b}[2J (code 7)"
        );
    }
}
