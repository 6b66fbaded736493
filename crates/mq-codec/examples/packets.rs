//! Encodes a PUBLISH, decodes it from bytes that come in pieces, and has a malformed one refused:
//! `cargo run -p mq-codec --example packets`.
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use bytes::BytesMut;
use mq_codec::{ByteStr, Decoder, Packet, Publish, PublishProperties, TopicName, Version};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut publish = Publish::new(TopicName::new("plant/7")?, "21.5");
    publish.properties = PublishProperties {
        content_type: Some(ByteStr::new("text/plain")?),
        ..PublishProperties::default()
    }
    .into();
    let packet = Packet::from(publish);

    let mut wire = BytesMut::new();
    packet.encode(Version::V5, &mut wire)?;
    println!("{} bytes: {}", wire.len(), hex(&wire));

    // A decoder takes packets off the front of a buffer as they become complete.
    let mut decoder = Decoder::new(Some(Version::V5), 1 << 20);
    let mut received = BytesMut::from(&wire[..10]);
    println!("after 10 bytes: {:?}", decoder.decode(&mut received)?);
    received.extend_from_slice(&wire[10..]);
    if let Some(Packet::Publish(publish)) = decoder.decode(&mut received)? {
        let text = std::str::from_utf8(&publish.payload)?;
        println!("after all: {} at {:?}: {text}", publish.topic, publish.qos);
    }

    // Both bits of the QoS are set, which MQTT forbids.
    wire[0] |= 0b0110;
    match decoder.decode(&mut wire) {
        Ok(packet) => println!("taken: {packet:?}"),
        Err(error) => println!("refused with {:?}: {error}", error.reason_code()),
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<Vec<_>>().join(" ")
}
