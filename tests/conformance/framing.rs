//! The fixed header: types, flags, lengths (§2.1; 3.1.1 §2.2), and packets that end too early or
//! too late.

use crate::{
    case::cases,
    lab::Lab,
    packet::{
        Connect, PINGREQ, PUBACK, PUBCOMP, PUBREC, Publish, V5, V31, ack, packet, subscribe, text,
        unsubscribe, varint,
    },
};

cases! {
    reserved_flags_are_refused: OASIS, ["2.2.2-1", "2.2.2-2"], ["2.1.3-1", "4.13.1-1"];
    reserved_flags_of_connect_are_refused: OASIS, ["2.2.2-2"], ["2.1.3-1"];
    requests_with_wrong_flags_are_refused: OASIS,
        ["3.6.1-1", "3.8.1-1", "3.10.1-1"], ["3.6.1-1", "3.8.1-1", "3.10.1-1"];
    disconnect_with_reserved_flags_is_refused: OASIS, ["3.14.1-1"], ["3.14.1-1"];
    mqtt_3_1_does_not_use_the_flags_of_most_packets: ONLY_31, [], [];
    packet_type_0_is_refused: ALL, ["4.8.0-1"], ["4.13.1-1"];
    auth_is_a_reserved_type_before_5: OLD, ["4.8.0-1"], [];
    a_length_of_five_bytes_is_refused: ALL, ["4.8.0-1"], ["4.13.1-1"];
    a_length_with_needless_bytes_is_refused: ONLY_5, [], ["1.5.5-1"];
    a_length_with_needless_bytes_is_taken: OLD, [], [];
    lengths_of_all_sizes_are_taken: ALL, [], ["1.5.5-1"];
    a_packet_may_come_in_pieces_and_packets_together: ALL, ["7.1.1-1"], ["4.2-1"];
    an_unfinished_packet_is_waited_for: ALL, [], [];
    packets_that_end_inside_a_field_are_refused: ALL, ["4.8.0-1"], ["4.13.1-1"];
    packets_that_go_on_after_their_end_are_refused: ALL, ["4.8.0-1"], ["4.13.1-1"];
}

async fn reserved_flags_are_refused(lab: Lab) {
    let id = [0, 1];
    for (kind, body) in [
        (0x40, &id[..]),
        (0x50, &id),
        (0x70, &id),
        (0xC0, &[]),
        (0xE0, &[]),
    ] {
        for flags in [1, 2, 4, 8, 15] {
            lab.refuses(packet(kind | flags, body), &[0x81]).await;
        }
    }
    if lab.version == V5 {
        lab.refuses([0xF1, 0], &[0x81]).await;
    }
}

async fn reserved_flags_of_connect_are_refused(lab: Lab) {
    for flags in [1, 2, 4, 8, 15] {
        let mut connect = lab.hello("bad").bytes();
        connect[0] |= flags;
        lab.not_let_in(connect, &[0x81]).await;
    }
}

async fn requests_with_wrong_flags_are_refused(lab: Lab) {
    let version = lab.version;
    let topic = lab.topic("t");
    for bytes in [
        ack(0x62, 1),
        subscribe(version, 1, &[(&topic, 0)]),
        unsubscribe(version, 1, &[&topic]),
    ] {
        for flags in (0..16).filter(|flags| *flags != 2) {
            let mut bytes = bytes.clone();
            bytes[0] = bytes[0] & 0xF0 | flags;
            lab.refuses(bytes, &[0x81]).await;
        }
    }
}

async fn disconnect_with_reserved_flags_is_refused(lab: Lab) {
    for flags in 1..16 {
        lab.refuses([0xE0 | flags, 0], &[0x81]).await;
    }
}

/// Checks flags that are no error: MQTT 3.1 says of these packets that DUP, `QoS` and RETAIN are not used, and of
/// requests that DUP is set when they are repeated.
async fn mqtt_3_1_does_not_use_the_flags_of_most_packets(lab: Lab) {
    let mut connect = lab.hello("odd").bytes();
    connect[0] |= 0x0B;
    let mut wire = lab.open().await;
    wire.send(connect).await;
    assert_eq!(wire.connack().await.code, 0);
    wire.send(packet(PUBACK | 8, [0, 9])).await;
    wire.send(packet(PUBCOMP | 8, [0, 9])).await;
    wire.alive().await;
    let topic = lab.topic("t");
    for dup_or_retain in [8, 1, 9] {
        let mut request = subscribe(V31, 7, &[(&topic, 1)]);
        request[0] |= dup_or_retain;
        wire.send(request).await;
        assert_eq!(wire.suback().await.codes, [1]);
        wire.send(packet(0x62 | dup_or_retain, [0, 9])).await;
        assert_eq!(wire.ack(PUBCOMP).await.id, 9);
        let mut request = unsubscribe(V31, 8, &[&topic]);
        request[0] |= dup_or_retain;
        wire.send(request).await;
        assert_eq!(wire.unsuback().await.id, 8);
    }
    wire.send([0xC9, 0]).await;
    wire.pong().await;
    wire.send([0xE8, 0]).await;
    wire.closed().await;
}

async fn packet_type_0_is_refused(lab: Lab) {
    for bytes in [&[0, 0][..], &[0x0F, 0], &[0, 2, 0, 1]] {
        lab.refuses(bytes, &[0x81, 0x82]).await;
    }
    lab.not_let_in([0, 0], &[]).await;
}

async fn auth_is_a_reserved_type_before_5(lab: Lab) {
    for bytes in [&[0xF0, 0][..], &[0xF0, 2, 0, 0], &[0xFF, 0]] {
        lab.refuses(bytes, &[]).await;
    }
}

async fn a_length_of_five_bytes_is_refused(lab: Lab) {
    for first in [0x30, 0x32, 0x82, 0xC0, 0xE0] {
        for last in [0x00, 0x01, 0x7F] {
            let bytes = [first, 0x80, 0x80, 0x80, 0x80, last];
            lab.refuses(bytes, &[0x81]).await;
        }
        lab.refuses([first, 0xFF, 0xFF, 0xFF, 0xFF], &[0x81]).await;
    }
    lab.not_let_in([0x10, 0xFF, 0xFF, 0xFF, 0xFF, 0x01], &[0x81])
        .await;
}

async fn a_length_with_needless_bytes_is_refused(lab: Lab) {
    lab.refuses([0xC0, 0x80, 0x00], &[0x81]).await;
    lab.refuses([0xC0, 0x80, 0x80, 0x80, 0x00], &[0x81]).await;
    let topic = text(lab.topic("t"));
    // The length of the properties, too.
    let publish = packet(0x30, [&topic[..], &[0x80, 0x00], b"x"].concat());
    lab.refuses(publish, &[0x81]).await;
    lab.not_let_in(padded(&lab.hello("bad")), &[0x81]).await;
}

/// Checks lengths before 5.0, which alone requires the shortest form.
async fn a_length_with_needless_bytes_is_taken(lab: Lab) {
    let mut wire = lab.open().await;
    wire.send(padded(&lab.hello("odd"))).await;
    assert_eq!(wire.connack().await.code, 0);
    for ping in [&[0xC0, 0x80, 0x00][..], &[0xC0, 0x80, 0x80, 0x80, 0x00]] {
        wire.send(ping).await;
        wire.pong().await;
    }
}

/// Encodes the packet with one byte more in its length than it needs.
fn padded(connect: &Connect) -> Vec<u8> {
    let bytes = connect.bytes();
    assert!(bytes[1] < 0x80);
    [&[bytes[0], bytes[1] | 0x80, 0][..], &bytes[2..]].concat()
}

async fn lengths_of_all_sizes_are_taken(lab: Lab) {
    let mut wire = lab.client("c").await;
    let topic = lab.topic("t");
    assert_eq!(wire.subscribe(&topic, 0).await, 0);
    let head = text(&topic).len() + usize::from(lab.version == V5);
    for length in [127, 128, 16_383, 16_384, 300_000] {
        let payload = vec![b'x'; length - head];
        let publish = Publish::new(lab.version, &topic, &payload).bytes();
        assert!(publish[1..].starts_with(&varint(u32::try_from(length).unwrap())));
        wire.send(publish).await;
        assert_eq!(wire.message().await.payload, payload);
    }
}

async fn a_packet_may_come_in_pieces_and_packets_together(lab: Lab) {
    let mut wire = lab.open().await;
    let topic = lab.topic("t");
    for byte in lab.hello("c").bytes() {
        wire.send([byte]).await;
    }
    assert_eq!(wire.connack().await.code, 0);
    for byte in subscribe(lab.version, 1, &[(&topic, 1)]) {
        wire.send([byte]).await;
    }
    assert_eq!(wire.suback().await.codes, [1]);
    let publish = |id| Publish::new(lab.version, &topic, "x").qos(1, id).bytes();
    let together = [&publish(1)[..], &publish(2), &PINGREQ, &publish(3)[..5]].concat();
    wire.send(together).await;
    // Acknowledgements, messages and PINGRESP, in whatever order.
    let mut firsts = Vec::new();
    for _ in 0..5 {
        firsts.push(wire.next().await.unwrap().first & 0xF0);
    }
    firsts.sort_unstable();
    assert_eq!(firsts, [0x30, 0x30, 0x40, 0x40, 0xD0]);
    wire.send(&publish(3)[5..]).await;
    let mut firsts = [wire.next().await, wire.next().await].map(|p| p.unwrap().first & 0xF0);
    firsts.sort_unstable();
    assert_eq!(firsts, [0x30, 0x40]);
}

/// Checks that an incomplete packet is no error, and holds up no other client.
async fn an_unfinished_packet_is_waited_for(lab: Lab) {
    let mut slow = lab.client("slow").await;
    let mut other = lab.client("other").await;
    let publish = Publish::new(lab.version, lab.topic("t"), "x").qos(1, 5);
    let bytes = publish.bytes();
    slow.send(&bytes[..bytes.len() - 1]).await;
    other.alive().await;
    other.publish(&lab.topic("t"), "y", 1).await;
    slow.send(&bytes[bytes.len() - 1..]).await;
    assert_eq!(slow.ack(PUBACK).await.id, 5);
}

async fn packets_that_end_inside_a_field_are_refused(lab: Lab) {
    let version = lab.version;
    let topic = lab.topic("t");
    let mut packets = vec![
        packet(0x30, []),
        packet(0x30, [0]),
        packet(0x30, [0, 2, b'a']),
        packet(0x32, text(&topic)),
        packet(0x32, [&text(&topic)[..], &[0]].concat()),
        packet(0x40, []),
        packet(0x40, [0]),
        packet(0x50, [1]),
        packet(0x62, [1]),
        packet(0x70, [1]),
        packet(0x82, [0]),
        packet(0xA2, [0]),
    ];
    // Each request, cut at every place but where one without a filter is left.
    let request = subscribe(version, 1, &[(&topic, 0)]);
    let least = if version == V5 { 6 } else { 5 };
    for end in least..request.len() {
        packets.push(packet(0x82, &request[2..end]));
    }
    let request = unsubscribe(version, 1, &[&topic]);
    for end in least..request.len() {
        packets.push(packet(0xA2, &request[2..end]));
    }
    if version == V5 {
        packets.extend([
            packet(0x30, text(&topic)),
            packet(0x30, [&text(&topic)[..], &[5, 0x01]].concat()),
            packet(0x30, [&text(&topic)[..], &[1, 0x02]].concat()),
            packet(0x82, [0, 1]),
            packet(0x82, [0, 1, 3, 0x0B]),
            packet(0xA2, [0, 1, 2, 0x26]),
            packet(0x40, [0, 1, 0, 4, 0x1F, 0, 1]),
            packet(0xE0, [0, 5, 0x11, 0, 0, 0]),
        ]);
    }
    for bytes in packets {
        lab.refuses(bytes, &[0x81]).await;
    }
    // A CONNECT, cut at every place.
    let mut hello = lab.hello("bad");
    hello.user_name = Some(b"user".to_vec());
    let connect = hello.bytes();
    // Another case shows what may be missing in MQTT 3.1.
    let longest = connect.len()
        - if version == V31 {
            text("user").len()
        } else {
            0
        };
    for end in 2..longest {
        let cut = packet(0x10, &connect[2..end]);
        let answer = lab.answer(cut).await;
        let refused = answer.is_none_or(|ack| version == V5 && [0x81, 0x82].contains(&ack.code));
        assert!(refused, "a CONNECT of {end} bytes");
    }
}

async fn packets_that_go_on_after_their_end_are_refused(lab: Lab) {
    let version = lab.version;
    let mut packets = vec![
        packet(0xC0, [0]),
        packet(0xC0, [0, 0]),
        packet(0x62, [0, 1, 0, 0, 0]),
        packet(PUBACK, [0, 1, 0, 0, 0]),
        packet(PUBREC, [0, 1, 0, 0, 0]),
        packet(PUBCOMP, [0, 1, 0, 0, 0]),
    ];
    if version < V5 {
        packets.extend([
            packet(0xE0, [0]),
            packet(PUBACK, [0, 1, 0]),
            packet(0x62, [0, 1, 0]),
        ]);
    } else {
        packets.push(packet(0xE0, [0, 0, 0]));
    }
    for bytes in packets {
        lab.refuses(bytes, &[0x81]).await;
    }
    let mut connect = lab.hello("bad").bytes();
    connect[1] += 1;
    connect.push(b'x');
    assert!(connect[1] < 0x80);
    lab.not_let_in(connect, &[0x81]).await;
}
