//! The form of the requests of nodes to each other.

use bytes::Bytes;
use mq_codec::ByteStr;

use super::engine::{Malformed, Reader, Writer};

const VERSION: u8 = 1;

/// The content of a request of another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Question<'a> {
    /// A request to release the session of a client identifier, unless its client has connected to the asked node more recently
    /// than so many milliseconds ago: for so long the connection that asks for it has waited. The answer says which.
    Release { id: ByteStr, waited_ms: u64 },
    /// A question to a node whether it is still in that life. It answers if it is.
    Life(u64),
    /// A summary of the asking node's filters, or what a later version of it adds.
    Summary(&'a [u8]),
}

impl<'a> Question<'a> {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        match self {
            Self::Release { id, waited_ms } => {
                to.byte(0);
                to.bytes(id.as_bytes());
                to.number(*waited_ms);
            }
            Self::Summary(announcement) => {
                to.byte(1);
                to.bytes(announcement);
            }
            Self::Life(life) => {
                to.byte(2);
                to.number(*life);
            }
        }
        to.finish()
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let question = match from.byte()? {
            0 => Self::Release {
                id: from.text()?,
                waited_ms: from.number()?,
            },
            1 => Self::Summary(from.bytes()?),
            2 => Self::Life(from.number()?),
            _ => return Err(Malformed),
        };
        from.expect_end()?;
        Ok(question)
    }
}

/// The answer of a node that keeps the session whose release was requested: its client is the later one. Any other answer
/// means that the requesting node may look at the session's record.
pub(super) const KEPT: &[u8] = &[1];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_comes_back_from_its_form() {
        let id = ByteStr::new("reader").unwrap();
        for question in [
            Question::Release { id, waited_ms: 700 },
            Question::Summary(b"\x00\xFF"),
            Question::Life(7),
        ] {
            let bytes = question.encode();
            assert_eq!(Question::decode(&bytes), Ok(question));
            assert_eq!(Question::decode(&bytes[..bytes.len() - 1]), Err(Malformed));
        }
    }
}
