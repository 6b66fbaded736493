//! PUBACK, PUBREC, PUBREL and PUBCOMP of MQTT 5.0 (§3.4 to §3.7): their reason codes and their forms.

use crate::{
    case::cases,
    lab::Lab,
    packet::{PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, ack, ack_with, packet, property},
};

cases! {
    reason_codes_that_an_answer_does_not_have_are_refused: ONLY_5, [], ["4.13.1-1"];
    every_reason_code_of_an_answer_is_taken: ONLY_5, [], [];
    answers_may_be_short_or_long: ONLY_5, [], [];
}

const ANSWERS: [u8; 4] = [PUBACK, PUBREC, PUBREL, PUBCOMP];

/// Returns the reason codes of PUBACK and PUBREC, or of PUBREL and PUBCOMP.
fn codes(first: u8) -> &'static [u8] {
    match first {
        PUBACK | PUBREC => &[0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
        _ => &[0, 0x92],
    }
}

async fn reason_codes_that_an_answer_does_not_have_are_refused(lab: Lab) {
    for first in ANSWERS {
        // Codes of other packets, and bytes that are no code.
        for code in [
            0x01, 0x02, 0x04, 0x11, 0x18, 0x19, 0x7F, 0x80, 0x81, 0x82, 0x84, 0x8E, 0x92, 0x93,
            0x95, 0x9A, 0xA2, 0xA3, 0xFF,
        ] {
            if !codes(first).contains(&code) {
                lab.refuses(packet(first, [0, 9, code]), &[0x81, 0x82])
                    .await;
                lab.refuses(ack_with(first, 9, code, &[]), &[0x81, 0x82])
                    .await;
            }
        }
    }
}

/// Checks that each answer completes a message, so that the next may come.
async fn every_reason_code_of_an_answer_is_taken(lab: Lab) {
    let topic = lab.topic("t");
    let one = property::two(property::RECEIVE_MAXIMUM, 1);
    let (mut wire, _) = lab.connected(&lab.hello("sub").property(one)).await;
    wire.subscribe(&topic, 2).await;
    let mut other = lab.client("pub").await;
    for (qos, first) in [(1, PUBACK), (2, PUBREC)] {
        for code in codes(first) {
            other.publish(&topic, [*code], qos).await;
            let message = wire.payload([*code]).await;
            wire.send(ack_with(first, message.id, *code, &[])).await;
            if first == PUBREC && *code < 0x80 {
                assert_eq!(wire.ack(PUBREL).await.id, message.id);
                wire.send(ack_with(PUBCOMP, message.id, 0x92, &[])).await;
            }
        }
    }
    other.publish(&topic, "end", 1).await;
    wire.payload("end").await;
}

async fn answers_may_be_short_or_long(lab: Lab) {
    let forms = |first: u8, id: u16| {
        let [high, low] = id.to_be_bytes();
        let texts = [
            property::string(property::REASON_STRING, "fine"),
            property::pair("a", "b"),
            property::pair("a", "b"),
        ]
        .concat();
        [
            ack(first, id),
            packet(first, [high, low, 0]),
            ack_with(first, id, 0, &[]),
            ack_with(first, id, 0, &texts),
        ]
    };
    let topic = lab.topic("t");
    let mut wire = lab.client("sub").await;
    wire.subscribe(&topic, 2).await;
    let mut other = lab.client("pub").await;
    for form in 0..4 {
        other.publish(&topic, "1", 1).await;
        let message = wire.payload("1").await;
        wire.send(&forms(PUBACK, message.id)[form]).await;
        other.publish(&topic, "2", 2).await;
        let message = wire.payload("2").await;
        wire.send(&forms(PUBREC, message.id)[form]).await;
        assert_eq!(wire.ack(PUBREL).await.id, message.id);
        wire.send(&forms(PUBCOMP, message.id)[form]).await;
        let publish = Publish::new(lab.version, lab.topic("u"), "x").qos(2, 7);
        wire.send(publish.bytes()).await;
        wire.ack(PUBREC).await;
        wire.send(&forms(PUBREL, 7)[form]).await;
        assert_eq!(wire.ack(PUBCOMP).await.codes, [0]);
    }
    wire.quiet().await;
}
