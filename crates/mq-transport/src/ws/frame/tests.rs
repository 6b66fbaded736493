use mq_lane::Chunk;

use super::*;

const FINAL: u8 = 0x80;
const CONTINUE: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const KEY: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// Makes a frame as it stands on the wire.
fn frame(first: u8, key: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    let masked = if key.is_some() { 0x80 } else { 0 };
    match payload.len() {
        length @ ..126 => frame.push(masked | u8::try_from(length).unwrap()),
        length @ 126..65_536 => {
            frame.push(masked + 126);
            frame.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            frame.push(masked + 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(
        key.unwrap_or_default()
            .iter()
            .take(if key.is_some() { 4 } else { 0 }),
    );
    let key = key.unwrap_or_default();
    frame.extend(
        payload
            .iter()
            .zip(key.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
    frame
}

/// Decodes these bytes as a server.
fn decode(bytes: &[u8]) -> (Vec<u8>, Result<Option<Closing>, Violation>, Decoder) {
    decode_as(Role::Server, bytes)
}

fn decode_as(role: Role, bytes: &[u8]) -> (Vec<u8>, Result<Option<Closing>, Violation>, Decoder) {
    let mut decoder = Decoder::new(role);
    let (mut raw, mut received) = (BytesMut::from(bytes), BytesMut::new());
    let outcome = decoder.decode(&mut raw, &mut received);
    (received.to_vec(), outcome, decoder)
}

#[test]
fn frames_of_one_end_are_read_by_the_other() {
    for (sender, receiver) in [(Role::Client, Role::Server), (Role::Server, Role::Client)] {
        for (length, most) in [
            (1, 10),
            (10, 10),
            (125, 125),
            (126, 126),
            (70_000, 65_536),
            (70_000, 999),
        ] {
            let data: Vec<u8> = (0_u8..=255).cycle().take(length).collect();
            let (mut outbox, mut framed) = (Outbox::new(), Outbox::new());
            // A chunk that is copied and one that is shared.
            outbox.put_body(LaneId::CONTROL, &data[..length / 3].to_vec().into());
            outbox.put_body(LaneId::CONTROL, &data[length / 3..].to_vec().into());
            let mut count = 0;
            while !outbox.is_empty() {
                count += put_data(sender, &mut outbox, &mut framed, most);
                put_control(sender, &mut framed, Control::Ping, b"still there?");
            }
            assert_eq!(count, length);
            let mut bytes = Vec::new();
            while let Some(Chunk { bytes: chunk, .. }) = framed.take(LaneId::CONTROL) {
                bytes.extend_from_slice(&chunk);
            }
            let (received, outcome, decoder) = decode_as(receiver, &bytes);
            assert_eq!(outcome, Ok(None));
            assert!(received == data, "{sender:?} {length} {most}");
            assert_eq!(decoder.ping.as_deref(), Some(&b"still there?"[..]));
        }
    }
}

/// Encodes fragmented and whole messages, with control frames between and within them, of 30 bytes of data in all.
fn conversation(random: &mut fastrand::Rng, data: &[u8], key: Option<[u8; 4]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut left = data;
    let mut fragmented = false;
    while !left.is_empty() || fragmented {
        let (payload, after) = left.split_at(random.usize(0..=left.len().min(9)));
        left = after;
        let is_final = random.bool() || left.is_empty();
        let first = if fragmented { CONTINUE } else { BINARY } | if is_final { FINAL } else { 0 };
        bytes.extend(frame(first, key, payload));
        fragmented = !is_final;
        match random.u8(0..4) {
            0 => bytes.extend(frame(FINAL | PING, key, b"ping")),
            1 => bytes.extend(frame(FINAL | PONG, key, b"")),
            _ => {}
        }
    }
    bytes
}

#[test]
fn messages_may_be_cut_anywhere() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let data: Vec<u8> = (0..30).collect();
    for round in 0..200 {
        let role = if round % 2 == 0 {
            Role::Server
        } else {
            Role::Client
        };
        let key = (role == Role::Server).then(|| random.u32(..).to_be_bytes());
        let bytes = conversation(&mut random, &data, key);
        for cut in 0..=bytes.len() {
            let mut decoder = Decoder::new(role);
            let (mut raw, mut received) = (BytesMut::new(), BytesMut::new());
            for piece in [&bytes[..cut], &bytes[cut..]] {
                raw.extend_from_slice(piece);
                assert_eq!(decoder.decode(&mut raw, &mut received), Ok(None));
            }
            assert_eq!(&received[..], &data[..], "round {round}, cut {cut}");
            assert!(raw.is_empty());
        }
        let mut decoder = Decoder::new(role);
        let (mut raw, mut received) = (BytesMut::new(), BytesMut::new());
        for byte in bytes {
            raw.extend_from_slice(&[byte]);
            assert_eq!(decoder.decode(&mut raw, &mut received), Ok(None));
            // A header of 14 bytes, or a small control frame.
            assert!(raw.len() < 14, "{} bytes are kept", raw.len());
        }
        assert_eq!(&received[..], &data[..], "round {round}, byte by byte");
    }
}

#[test]
fn payload_is_handed_on_as_it_arrives_whatever_length_is_announced() {
    let mut bytes = vec![FINAL | BINARY, 0xFF];
    bytes.extend(((1_u64 << 63) - 1).to_be_bytes());
    bytes.extend(KEY);
    let mut decoder = Decoder::new(Role::Server);
    let (mut raw, mut received) = (BytesMut::from(&bytes[..]), BytesMut::new());
    assert_eq!(decoder.decode(&mut raw, &mut received), Ok(None));
    assert!(raw.capacity() + received.capacity() < 1000);
    for _ in 0..100 {
        raw.extend_from_slice(&[0; 1000]);
        assert_eq!(decoder.decode(&mut raw, &mut received), Ok(None));
        assert_eq!(received.split().len(), 1000);
        assert!(raw.is_empty());
    }
}

#[test]
fn what_no_peer_may_send_is_refused_at_its_header() {
    let mut huge = vec![FINAL | BINARY, 0xFF];
    huge.extend((1_u64 << 63).to_be_bytes());
    huge.extend(KEY);
    let key = Some(KEY);
    for (bytes, code, what) in [
        (frame(FINAL | BINARY, None, b"x"), 1002, "without a mask"),
        (frame(FINAL | PING, None, b"x"), 1002, "without a mask"),
        (frame(FINAL | TEXT, key, b"x"), 1003, "text"),
        (frame(TEXT, key, b"x"), 1003, "text"),
        (frame(FINAL | 3, key, b"x"), 1002, "reserved opcode"),
        (frame(FINAL | 0xB, key, b"x"), 1002, "reserved opcode"),
        (frame(FINAL | 0x40 | BINARY, key, b"x"), 1002, "extension"),
        (frame(FINAL | 0x10 | PING, key, b"x"), 1002, "extension"),
        (frame(FINAL | CONTINUE, key, b"x"), 1002, "continuation"),
        (
            [frame(BINARY, key, b"x"), frame(FINAL | BINARY, key, b"x")].concat(),
            1002,
            "in the middle",
        ),
        (frame(PING, key, b"x"), 1002, "in fragments"),
        (frame(FINAL | PING, key, &[0; 126]), 1002, "125 bytes"),
        (frame(FINAL | CLOSE, key, &[3; 200]), 1002, "125 bytes"),
        (huge, 1002, "2^63"),
        (
            vec![FINAL | BINARY, 0xFE, 0, 5, 1, 2, 3, 4],
            1002,
            "more bytes than",
        ),
    ] {
        // Of the payload nothing has to be there.
        let header = bytes.len().min(14);
        for bytes in [&bytes[..], &bytes[..header]] {
            let (_, outcome, _) = decode(bytes);
            let violation = outcome.unwrap_err();
            assert_eq!(u16::from(violation.code), code, "{violation:?}");
            assert!(violation.what.contains(what), "{violation:?}");
        }
    }
    let (_, outcome, _) = decode_as(Role::Client, &frame(FINAL | BINARY, key, b"x"));
    assert!(outcome.unwrap_err().what.contains("with a mask"));
}

#[test]
fn data_before_a_violation_is_not_lost() {
    let bytes = [
        frame(FINAL | BINARY, Some(KEY), b"good"),
        frame(FINAL | TEXT, Some(KEY), b"bad"),
    ];
    let (received, outcome, _) = decode(&bytes.concat());
    assert_eq!(received, b"good");
    assert!(outcome.is_err());
}

#[test]
fn of_many_pings_the_last_is_answered() {
    let mut bytes = Vec::new();
    for number in 0_u32..1000 {
        bytes.extend(frame(FINAL | PING, Some(KEY), &number.to_be_bytes()));
    }
    let (_, outcome, decoder) = decode(&bytes);
    assert_eq!(outcome, Ok(None));
    assert_eq!(decoder.ping.as_deref(), Some(&999_u32.to_be_bytes()[..]));
}

#[test]
fn a_close_says_why_or_nothing() {
    let close = |payload: &[u8]| decode(&frame(FINAL | CLOSE, Some(KEY), payload)).1;
    let with = |code: u16, reason: &[u8]| [&code.to_be_bytes(), reason].concat();
    assert_eq!(close(b""), Ok(Some(Closing { code: None })));
    for code in [1000, 1001, 1003, 1007, 1011, 3000, 4999] {
        let code_given = Some(CloseCode::from(code));
        assert_eq!(
            close(&with(code, b"why")),
            Ok(Some(Closing { code: code_given }))
        );
    }
    // 1005, 1006 and 1015 are for what is not said (RFC 6455 §7.4.1).
    for code in [0, 999, 1004, 1005, 1006, 1015, 2999, 5000, 65_535] {
        assert_eq!(
            close(&with(code, b"")).unwrap_err().code,
            CloseCode::Protocol,
            "{code}"
        );
    }
    assert_eq!(close(b"\x03").unwrap_err().code, CloseCode::Protocol);
    assert_eq!(
        close(&with(1000, b"\xFF")).unwrap_err().code,
        CloseCode::Invalid
    );
}

#[test]
fn bytes_behind_a_close_are_ignored() {
    let bytes = [
        frame(FINAL | BINARY, Some(KEY), b"data"),
        frame(FINAL | CLOSE, Some(KEY), b""),
        frame(FINAL | TEXT, None, b"junk"),
    ];
    let (received, outcome, _) = decode(&bytes.concat());
    assert_eq!(received, b"data");
    assert_eq!(outcome, Ok(Some(Closing { code: None })));
}

#[test]
fn a_frame_has_no_bytes_that_are_held_in_the_outbox() {
    let (mut outbox, mut framed) = (Outbox::new(), Outbox::new());
    outbox.put_body(LaneId::CONTROL, &Bytes::from_static(b"ready"));
    outbox.hold_behind(Some(outbox.position()));
    outbox.put_body(LaneId::CONTROL, &Bytes::from_static(b"held"));
    let length = put_data(Role::Server, &mut outbox, &mut framed, usize::MAX);
    assert_eq!((length, framed.len()), (5, 7), "a header of 2 bytes");
    assert!(outbox.is_empty());
    outbox.hold_behind(None);
    assert_eq!(outbox.front(), Some(&b"held"[..]));
}
