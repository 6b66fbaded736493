//! Frames: their rules and their bytes (RFC 6455 §5). Tungstenite's `FrameHeader` reads and writes headers; its
//! `FrameSocket` would keep each frame whole, where this decoder passes on the bytes of a frame that has not ended.

use std::{convert::Infallible, io::Cursor};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use mq_lane::{LaneId, Outbox};
use tungstenite::protocol::frame::{
    FrameHeader,
    coding::{CloseCode, Control, Data, OpCode},
};

use super::mask::Mask;

/// The most that a control frame may carry (RFC 6455 §5.5).
const MAX_CONTROL: usize = 125;

/// Role of this end: clients mask the frames that they send, servers do not (RFC 6455 §5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Client,
    Server,
}

/// A violation of the peer, and the code to close with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Violation {
    pub(super) code: CloseCode,
    pub(super) what: &'static str,
}

impl Violation {
    const fn protocol(what: &'static str) -> Self {
        Self {
            code: CloseCode::Protocol,
            what,
        }
    }
}

/// Decodes frames incrementally, as their bytes are received.
///
/// ```text
/// header -> payload of a data frame -> header ...
///        -> whole control frame     -> header ...
/// ```
///
/// Payload is handed on as it arrives, whatever length its frame announces. Of an incomplete frame only
/// the header is kept, or up to 125 bytes of a control frame.
#[derive(Debug)]
pub(super) struct Decoder {
    role: Role,
    /// Payload bytes of the data frame that are not received yet.
    left: u64,
    /// Mask of the data frame's payload, if the peer is a client.
    mask: Option<Mask>,
    /// `true` if a message is under way, and its last frame has not begun.
    fragmented: bool,
    /// The last unanswered PING; one answer is enough for all (RFC 6455 §5.5.3).
    pub(super) ping: Option<Bytes>,
}

/// The peer's Close frame: the code that it gave, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Closing {
    pub(super) code: Option<CloseCode>,
}

impl Decoder {
    /// Makes the decoder of this end, for the other end's frames.
    pub(super) fn new(role: Role) -> Self {
        Self {
            role,
            left: 0,
            mask: None,
            fragmented: false,
            ping: None,
        }
    }

    /// Moves payload from `raw` to the end of `received`, and acts on all complete control frames,
    /// up to a Close. The beginning of a header or of a control frame stays in `raw`.
    pub(super) fn decode(
        &mut self,
        raw: &mut BytesMut,
        received: &mut BytesMut,
    ) -> Result<Option<Closing>, Violation> {
        loop {
            self.take_payload(raw, received);
            let mut cursor = Cursor::new(&raw[..]);
            let parsed = FrameHeader::parse(&mut cursor);
            let size = usize::try_from(cursor.position()).unwrap_or(usize::MAX);
            // Only the opcode can be wrong by itself.
            let parsed = parsed.map_err(|_| Violation::protocol("a reserved opcode"))?;
            let Some((header, length)) = parsed else {
                return Ok(None);
            };
            self.check(&header, length, size)?;
            match header.opcode {
                OpCode::Data(_) => {
                    raw.advance(size);
                    self.fragmented = !header.is_final;
                    self.mask = header.mask.map(Mask::from);
                    self.left = length;
                }
                OpCode::Control(control) => {
                    let end = size + usize::try_from(length).unwrap_or(MAX_CONTROL);
                    if raw.len() < end {
                        return Ok(None);
                    }
                    let mut payload = raw.split_to(end).split_off(size);
                    if let Some(key) = header.mask {
                        Mask::from(key).apply(&mut payload);
                    }
                    match control {
                        Control::Close => return close(&payload).map(Some),
                        // A copy: it may wait, and would keep the whole buffer.
                        Control::Ping => self.ping = Some(Bytes::copy_from_slice(&payload)),
                        Control::Pong | Control::Reserved(_) => {}
                    }
                }
            }
        }
    }

    fn take_payload(&mut self, raw: &mut BytesMut, received: &mut BytesMut) {
        let count = usize::try_from(self.left).map_or(raw.len(), |left| left.min(raw.len()));
        if count == 0 {
            return;
        }
        let mut payload = raw.split_to(count);
        self.left -= count as u64;
        if let Some(mask) = &mut self.mask {
            mask.apply(&mut payload);
        }
        if received.is_empty() {
            *received = payload;
        } else {
            received.extend_from_slice(&payload);
        }
    }

    /// Refuses frames that no peer may send; `size` is the length of the header.
    fn check(&self, header: &FrameHeader, length: u64, size: usize) -> Result<(), Violation> {
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(Violation::protocol("an extension that was not agreed on"));
        }
        match (self.role, header.mask) {
            (Role::Server, None) => {
                return Err(Violation::protocol("a client's frame without a mask"));
            }
            (Role::Client, Some(_)) => {
                return Err(Violation::protocol("a server's frame with a mask"));
            }
            _ => {}
        }
        if length > u64::MAX >> 1 {
            return Err(Violation::protocol("a frame of 2^63 bytes or more"));
        }
        if size != header.len(length) {
            return Err(Violation::protocol("a length in more bytes than it needs"));
        }
        match header.opcode {
            OpCode::Control(_) if !header.is_final => {
                Err(Violation::protocol("a control frame in fragments"))
            }
            OpCode::Control(_) if length > MAX_CONTROL as u64 => Err(Violation::protocol(
                "a control frame of more than 125 bytes",
            )),
            // `[MQTT-6.0.0-1]`; a browser sends text if its program did not ask for bytes.
            OpCode::Data(Data::Text) => Err(Violation {
                code: CloseCode::Unsupported,
                what: "a text frame, where MQTT has binary frames only",
            }),
            OpCode::Data(Data::Continue) if !self.fragmented => {
                Err(Violation::protocol("a continuation of no message"))
            }
            OpCode::Data(Data::Binary) if self.fragmented => {
                Err(Violation::protocol("a message in the middle of another"))
            }
            _ => Ok(()),
        }
    }
}

/// Reads the code of a Close frame (RFC 6455 §5.5.1).
fn close(payload: &[u8]) -> Result<Closing, Violation> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return if payload.is_empty() {
            Ok(Closing { code: None })
        } else {
            Err(Violation::protocol("half a close code"))
        };
    };
    let code = CloseCode::from(u16::from_be_bytes(*code));
    if !code.is_allowed() {
        return Err(Violation::protocol("a close code that means nothing"));
    }
    if std::str::from_utf8(reason).is_err() {
        return Err(Violation {
            code: CloseCode::Invalid,
            what: "a reason that is no text",
        });
    }
    Ok(Closing { code: Some(code) })
}

/// Appends one binary message of up to `most` bytes from the front of `outbox`; returns its size.
///
/// `[MQTT-6.0.0-2]` lets packets and frames begin and end where they like, so a batch of packets
/// is one frame. A server shares the payload with the outbox; a client copies it to mask it.
pub(super) fn put_data(role: Role, outbox: &mut Outbox, framed: &mut Outbox, most: usize) -> usize {
    let length = outbox.control_len().min(most);
    let mut mask = put_header(role, framed, OpCode::Data(Data::Binary), length);
    let mut left = length;
    while left > 0
        && let Some(mut chunk) = outbox.take(LaneId::CONTROL)
    {
        if chunk.bytes.len() > left {
            outbox.put_back(LaneId::CONTROL, Outbox::split(&mut chunk, left));
        }
        let bytes = chunk.bytes;
        left -= bytes.len();
        match &mut mask {
            None => framed.put_body(LaneId::CONTROL, &bytes),
            Some(mask) => put_masked(framed, mask, &bytes),
        }
    }
    length
}

/// Appends a control frame; `payload` is 125 bytes at the most.
pub(super) fn put_control(role: Role, framed: &mut Outbox, control: Control, payload: &[u8]) {
    let mask = put_header(role, framed, OpCode::Control(control), payload.len());
    put_masked(framed, &mut mask.unwrap_or(Mask::from([0; 4])), payload);
}

/// Appends a Close frame, with a code or without.
pub(super) fn put_close(role: Role, framed: &mut Outbox, code: Option<CloseCode>) {
    let code = code.map(|code| u16::from(code).to_be_bytes());
    let payload = code.as_ref().map_or(&[][..], |code| code);
    put_control(role, framed, Control::Close, payload);
}

fn put_header(role: Role, framed: &mut Outbox, opcode: OpCode, length: usize) -> Option<Mask> {
    let mask = (role == Role::Client).then(Mask::random);
    let header = FrameHeader {
        opcode,
        mask: mask.map(Mask::key),
        ..FrameHeader::default()
    };
    framed
        .put(LaneId::CONTROL, |open| {
            header.format(length as u64, &mut open.writer())
        })
        .expect("memory takes what is written to it");
    mask
}

fn put_masked(framed: &mut Outbox, mask: &mut Mask, payload: &[u8]) {
    let Ok(()) = framed.put(LaneId::CONTROL, |open| {
        let start = open.len();
        open.extend_from_slice(payload);
        mask.apply(&mut open[start..]);
        Ok::<_, Infallible>(())
    });
}

#[cfg(test)]
mod tests;
