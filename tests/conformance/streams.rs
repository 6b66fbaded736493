//! Every case once more over QUIC, with its packets on a data stream (`docs/reference/streams.md`).
//!
//! CONNECT, PINGREQ, DISCONNECT and AUTH go on the control stream; PUBLISH, SUBSCRIBE, UNSUBSCRIBE and all
//! acknowledgements go on one data stream, by their first byte. There is no order between two streams. So a
//! client waits, before it goes on on the control stream, until the broker has read its data stream; then the
//! cases hold unchanged.

use crate::case::Case;

/// Cases for which a data stream has other rules, and those rules. They are not run on data streams.
const OTHER_RULES: &[(&str, &str)] = &[
    (
        "nothing_but_auth_and_disconnect_comes_before_connack",
        "what comes on a data stream waits until the client is let in",
    ),
    (
        "nothing_is_acted_on_after_disconnect",
        "a message on a data stream may overtake DISCONNECT on the control stream",
    ),
    (
        "an_unfinished_exchange_of_qos_2_goes_on",
        "identifiers by stream: a QoS 2 message that was not released ends with its stream",
    ),
    (
        "what_is_wrong_closes_that_connection_only",
        "an error resets the stream at once, with the answers on it that have not left",
    ),
    (
        "answers_fit_the_clients_maximum_packet_size",
        "an error resets the stream at once, with the answers on it that have not left",
    ),
    (
        "after_its_disconnect_the_server_sends_nothing_and_closes",
        "an error ends the stream: there is no DISCONNECT, and the connection goes on",
    ),
];

/// Reason codes for which the connection ends, on whatever stream the packet came. Any other error in a packet
/// on a data stream ends that stream alone.
const OF_THE_CONNECTION: &[(u8, &str)] = &[
    (0x8E, "the session is taken over as a whole"),
    (
        0x90,
        "the error is no packet's: no answer refuses this one message",
    ),
    (0x93, "the Receive Maximum counts over all streams"),
];

/// Returns the reason for which a case is not run on data streams.
pub(crate) fn why_not(case: &Case) -> Option<&'static str> {
    let rule = OTHER_RULES.iter().find(|(name, _)| *name == case.name);
    rule.map(|(_, why)| *why)
}

/// Lists the names above that are not among `cases`.
pub(crate) fn unknown(cases: &[Case]) -> impl Iterator<Item = &'static str> {
    let names = OTHER_RULES.iter().map(|(name, _)| *name);
    names.filter(|name| !cases.iter().any(|case| case.name == *name))
}

/// Returns `true` if an error with one of these reason codes ends the connection.
pub(crate) fn ends_the_connection(codes: &[u8]) -> bool {
    let of_connection = |code| OF_THE_CONNECTION.iter().any(|(other, _)| other == code);
    !codes.is_empty() && codes.iter().all(of_connection)
}

/// Stream on which a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Control,
    Data,
}

impl Place {
    fn of(first: u8) -> Self {
        match first >> 4 {
            // PUBLISH to UNSUBACK.
            3..=11 => Self::Data,
            _ => Self::Control,
        }
    }
}

/// Cuts what a client sends into packets, which may come in pieces.
#[derive(Debug)]
pub(crate) struct Router {
    /// A CONNECT was sent: before that there are no data streams.
    has_begun: bool,
    /// The packet that the last byte belongs to.
    place: Place,
    next: Next,
}

/// Part of a packet that the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The first of a packet.
    First,
    /// The byte of a length with that index; so far the length is `length`.
    Length { index: u32, length: usize },
    /// So many of the body are to come.
    Body(usize),
    /// Bytes behind a length that is not valid.
    Anything,
}

impl Router {
    pub(crate) fn new() -> Self {
        Self {
            has_begun: false,
            place: Place::Control,
            next: Next::First,
        }
    }

    /// Returns the stream on which the last packet went.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Notes the end of the data stream, and of any packet on it that was not complete.
    pub(crate) fn data_ended(&mut self) {
        if self.place == Place::Data {
            self.next = Next::First;
        }
    }

    /// Divides what is sent into pieces, each for one place.
    pub(crate) fn route(&mut self, mut bytes: &[u8]) -> Vec<(Place, Vec<u8>)> {
        let mut pieces: Vec<(Place, Vec<u8>)> = Vec::new();
        while !bytes.is_empty() {
            let length = self.advance(bytes);
            let (piece, rest) = bytes.split_at(length);
            match pieces.last_mut() {
                Some((place, before)) if *place == self.place => before.extend(piece),
                _ => pieces.push((self.place, piece.to_vec())),
            }
            bytes = rest;
        }
        pieces
    }

    /// Returns the number of these bytes that go to one stream.
    fn advance(&mut self, bytes: &[u8]) -> usize {
        let byte = bytes[0];
        match self.next {
            Next::First => {
                self.has_begun |= byte >> 4 == 1;
                self.place = if self.has_begun {
                    Place::of(byte)
                } else {
                    Place::Control
                };
                self.next = Next::Length {
                    index: 0,
                    length: 0,
                };
                1
            }
            Next::Length { index, length } => {
                let length = length | usize::from(byte & 0x7F) << (7 * index);
                self.next = match (byte & 0x80, index, length) {
                    (0, _, 0) => Next::First,
                    (0, ..) => Next::Body(length),
                    (_, 3, _) => Next::Anything,
                    _ => Next::Length {
                        index: index + 1,
                        length,
                    },
                };
                1
            }
            Next::Body(left) => {
                let taken = left.min(bytes.len());
                self.next = match left - taken {
                    0 => Next::First,
                    left => Next::Body(left),
                };
                taken
            }
            Next::Anything => bytes.len(),
        }
    }
}
