//! The datagrams that ask for the time and answer.

use super::Exchange;

/// Bytes of a question and of its answer. Both are equally long, so a server cannot be abused to amplify
/// traffic.
pub const DATAGRAM: usize = 120;

/// Bytes for a host's name.
pub const HOST_NAME: usize = 64;

const MAGIC: [u8; 4] = *b"mqck";
const VERSION: u8 = 1;

/// Stands for an error bound that is not known.
const UNKNOWN: u64 = u64::MAX;

/// Kind of a [`Probe`]: question or answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A question for the other host's time.
    Question,
    /// An answer with the other host's times.
    Answer,
}

/// A question for the time, or the answer; any channel that keeps datagrams whole can carry it.
///
/// Big-endian, [`DATAGRAM`] bytes:
///
/// | bytes | what |
/// |---|---|
/// | 0..4 | `mqck` |
/// | 4 | version, 1 |
/// | 5 | 1 question, 2 answer |
/// | 6..8 | 0 |
/// | 8..16 | session: drawn by the client, returned by the server |
/// | 16..24 | number in the session, returned |
/// | 24..32 | t1, returned |
/// | 32..40 | t2; 0 in a question |
/// | 40..48 | t3; 0 in a question |
/// | 48..56 | how far the sender's clock is from UTC at most, all ones if that is not known |
/// | 56..120 | the sender's name in UTF-8, filled up with 0 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The kind of the datagram: question or answer.
    pub kind: Kind,
    /// Tells answers to this program from answers to another.
    pub session: u64,
    /// The question's number.
    pub number: u64,
    /// Send time of the question, by the clock of the machine that asks.
    pub t1_ns: u64,
    /// Receive time of the question, by the clock of the machine that answers; 0 in a question.
    pub t2_ns: u64,
    /// Send time of the answer, by the clock of the machine that answers; 0 in a question.
    pub t3_ns: u64,
    /// The greatest error of the sender's clock against UTC, by chrony; `None` if it is not known.
    pub error_bound_ns: Option<u64>,
    /// The sender's name; it is cut after [`HOST_NAME`] bytes.
    pub host: String,
}

impl Probe {
    /// Encodes the datagram.
    #[must_use]
    pub fn encode(&self) -> [u8; DATAGRAM] {
        let mut bytes = [0; DATAGRAM];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = match self.kind {
            Kind::Question => 1,
            Kind::Answer => 2,
        };
        let numbers = [
            self.session,
            self.number,
            self.t1_ns,
            self.t2_ns,
            self.t3_ns,
            self.error_bound_ns.unwrap_or(UNKNOWN),
        ];
        for (place, number) in bytes[8..56].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        let name = &self.host.as_bytes()[..self.host.floor_char_boundary(HOST_NAME)];
        bytes[56..56 + name.len()].copy_from_slice(name);
        bytes
    }

    /// Reads the bytes; `None` if they are not such a datagram.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DATAGRAM] = bytes.try_into().ok()?;
        let kind = match bytes[..8] {
            [b'm', b'q', b'c', b'k', VERSION, 1, 0, 0] => Kind::Question,
            [b'm', b'q', b'c', b'k', VERSION, 2, 0, 0] => Kind::Answer,
            _ => return None,
        };
        let mut numbers = [0; 6];
        for (number, place) in numbers.iter_mut().zip(bytes[8..56].chunks_exact(8)) {
            *number = u64::from_be_bytes(place.try_into().ok()?);
        }
        let [session, number, t1_ns, t2_ns, t3_ns, bound] = numbers;
        let name = &bytes[56..];
        let end = name.iter().position(|byte| *byte == 0);
        let name = &name[..end.unwrap_or(name.len())];
        Some(Self {
            kind,
            session,
            number,
            t1_ns,
            t2_ns,
            t3_ns,
            error_bound_ns: (bound != UNKNOWN).then_some(bound),
            host: std::str::from_utf8(name).ok()?.to_owned(),
        })
    }

    /// Makes the answer to this question, from the host called `host`. By that host's clock, the question arrived at
    /// `t2_ns` and the answer leaves at `t3_ns`.
    ///
    /// Read the clock for `t3_ns` last.
    #[must_use]
    pub fn answer(&self, t2_ns: u64, t3_ns: u64, error_bound_ns: Option<u64>, host: &str) -> Self {
        Self {
            kind: Kind::Answer,
            t2_ns,
            t3_ns,
            error_bound_ns,
            host: host.to_owned(),
            ..*self
        }
    }

    /// Returns the exchange that this answer ends; the answer arrived at `t4_ns`.
    #[must_use]
    pub fn exchange(&self, t4_ns: u64) -> Exchange {
        Exchange {
            t1_ns: self.t1_ns,
            t2_ns: self.t2_ns,
            t3_ns: self.t3_ns,
            t4_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn question() -> Probe {
        Probe {
            kind: Kind::Question,
            session: 0x0102_0304_0506_0708,
            number: 9,
            t1_ns: 10,
            t2_ns: 0,
            t3_ns: 0,
            error_bound_ns: None,
            host: "pi-1".to_owned(),
        }
    }

    #[test]
    fn bytes_are_as_documented() {
        let bytes = question().encode();
        assert_eq!(bytes[..8], *b"mqck\x01\x01\0\0");
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[23], 9);
        assert_eq!(bytes[31], 10);
        assert_eq!(bytes[48..56], [0xff; 8]);
        assert_eq!(bytes[56..61], *b"pi-1\0");
    }

    #[test]
    fn an_answer_returns_what_was_asked() {
        let answer = question().answer(500, 510, Some(3), "broker");
        assert_eq!(Probe::decode(&answer.encode()), Some(answer.clone()));
        assert_eq!((answer.session, answer.number), (question().session, 9));
        assert_eq!(answer.exchange(20), Exchange::from([10, 500, 510, 20]));
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let mut probe = question();
        probe.host = "ä".repeat(40);
        let read = Probe::decode(&probe.encode()).unwrap();
        assert_eq!(read.host, "ä".repeat(32));
        probe.host = format!("a{}", "ä".repeat(40));
        let read = Probe::decode(&probe.encode()).unwrap();
        assert_eq!(read.host.len(), 63);
    }

    #[test]
    fn anything_else_is_no_probe() {
        let bytes = question().encode();
        assert!(Probe::decode(&bytes).is_some());
        assert_eq!(Probe::decode(&bytes[..DATAGRAM - 1]), None);
        assert_eq!(Probe::decode(&[0; DATAGRAM + 1]), None);
        for place in 0..8 {
            let mut other = bytes;
            other[place] = 7;
            assert_eq!(Probe::decode(&other), None, "byte {place}");
        }
        let mut other = bytes;
        other[56] = 0xff;
        assert_eq!(Probe::decode(&other), None, "not UTF-8");
    }

    proptest! {
        #[test]
        fn probes_round_trip(
            asks: bool, session: u64, number: u64, times: [u64; 3],
            bound in prop::option::of(0..u64::MAX), host in "[a-zA-Z0-9äöü.-]{0,32}",
        ) {
            let probe = Probe {
                kind: if asks { Kind::Question } else { Kind::Answer },
                session, number,
                t1_ns: times[0], t2_ns: times[1], t3_ns: times[2],
                error_bound_ns: bound, host,
            };
            prop_assert_eq!(Probe::decode(&probe.encode()), Some(probe));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut framed = question().encode().to_vec();
            framed.truncate(8);
            framed.extend(&bytes);
            for bytes in [bytes, framed] {
                if let Some(probe) = Probe::decode(&bytes) {
                    prop_assert_eq!(Probe::decode(&probe.encode()), Some(probe));
                }
            }
        }
    }
}
