//! Another project's broker and client as programs, for the suite `strangers`: `rumqttd PORT PORT` listens for
//! MQTT 3.1.1 and 5.0, and `rumqttc HOST PORT VERSION ID CLEAN [WILL]` follows the lines that
//! `tests/suites/strangers/suite.py` describes.

#![expect(clippy::unwrap_used, reason = "a failed step ends the program")]

use std::fmt::Write as _;

use serde_json::json;

/// Largest packet that broker and client accept: 1 MiB of payload, and what is around it.
const PACKET: u32 = 2 * 1024 * 1024;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["rumqttd", v4, v5] => rumqttd(v4, v5),
        ["rumqttc", host, port, version, id, clean, will @ ..] => {
            let at = (*host, port.parse().unwrap());
            let session = (*id, *clean == "1", will.first().copied());
            match *version {
                "3.1.1" => v4::run(at, session),
                _ => v5::run(at, session),
            }
        }
        _ => {
            panic!("usage: strangers rumqttd PORT PORT | rumqttc HOST PORT VERSION ID CLEAN [WILL]")
        }
    }
}

fn rumqttd(v4: &str, v5: &str) {
    let server = |port: &str| {
        json!({"1": {
            "name": port,
            "listen": format!("127.0.0.1:{port}"),
            "next_connection_delay_ms": 1,
            "connections": {
                "connection_timeout_ms": 60000,
                "max_payload_size": PACKET,
                "max_inflight_count": 100,
                "dynamic_filters": true,
            },
        }})
    };
    let config = json!({
        "id": 0,
        "router": {
            "max_connections": 1000,
            "max_outgoing_packet_count": 200,
            "max_segment_size": 104_857_600,
            "max_segment_count": 10,
        },
        "v4": server(v4),
        "v5": server(v5),
    });
    let config: rumqttd::Config = serde_json::from_value(config).unwrap();
    rumqttd::Broker::new(config).start().unwrap();
}

/// Returns the bytes of an even number of hexadecimal digits.
fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    let pairs = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16));
    pairs.collect::<Result<_, _>>().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Defines the client for one protocol version: rumqttc has a module of each, with the same names.
macro_rules! client {
    ($run:ident, $events:path, $incoming:path, $qos:path) => {
        use rumqttc::Outgoing;
        use $events::{Client, Event, MqttOptions};
        use $incoming as Incoming;
        use $qos as QoS;

        fn level(text: &str) -> QoS {
            [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][text.parse::<usize>().unwrap()]
        }

        /// Follows the lines of the standard input until `leave`.
        fn follow(client: &Client) {
            for line in std::io::stdin().lines() {
                let line = line.unwrap();
                match line.split(' ').collect::<Vec<_>>().as_slice() {
                    ["sub", topic, qos] => client.subscribe(*topic, level(qos)).unwrap(),
                    ["pub", topic, qos, retain, payload, properties] => {
                        let (retain, payload) = (*retain == "1", bytes(payload));
                        let properties = *properties == "1";
                        publish(client, topic, level(qos), retain, payload, properties);
                    }
                    _ => client.disconnect().unwrap(),
                }
            }
        }

        /// Connects, and prints events until the connection has ended.
        pub(super) fn $run(
            (host, port): (&str, u16),
            (id, clean, will): (&str, bool, Option<&str>),
        ) {
            let mut options = MqttOptions::new(id, host, port);
            set(&mut options, clean, will);
            let (client, mut connection) = Client::new(options, 10);
            std::thread::spawn(move || follow(&client));
            for event in connection.iter() {
                match event.unwrap() {
                    Event::Incoming(Incoming::ConnAck(connack)) => {
                        println!("connected {}", u8::from(connack.session_present));
                    }
                    Event::Incoming(Incoming::SubAck(suback)) => {
                        println!("subscribed {}", granted(&suback));
                    }
                    Event::Incoming(Incoming::PubAck(_) | Incoming::PubComp(_))
                    | Event::Outgoing(Outgoing::Publish(0)) => println!("published"),
                    Event::Incoming(Incoming::Publish(publish)) => {
                        let (qos, retain) = (publish.qos as u8, u8::from(publish.retain));
                        let payload = super::hex(&publish.payload);
                        println!("message {qos} {retain} {payload} {}", properties(publish));
                    }
                    Event::Outgoing(Outgoing::Disconnect) => std::process::exit(0),
                    _ => {}
                }
            }
        }
    };
}

/// MQTT 3.1.1.
mod v4 {
    use rumqttc::{LastWill, Publish, SubAck, SubscribeReasonCode};

    use super::{PACKET, bytes};

    client!(run, rumqttc, rumqttc::Incoming, rumqttc::QoS);

    fn set(options: &mut MqttOptions, clean: bool, will: Option<&str>) {
        let packet = PACKET.try_into().unwrap();
        options
            .set_clean_session(clean)
            .set_max_packet_size(packet, packet);
        if let Some(topic) = will {
            options.set_last_will(LastWill::new(topic, "gone", QoS::AtLeastOnce, false));
        }
    }

    fn publish(client: &Client, topic: &str, qos: QoS, retain: bool, payload: Vec<u8>, _: bool) {
        client.publish(topic, qos, retain, payload).unwrap();
    }

    fn granted(suback: &SubAck) -> u8 {
        match suback.return_codes.first() {
            Some(SubscribeReasonCode::Success(qos)) => *qos as u8,
            _ => 0x80,
        }
    }

    fn properties(_: Publish) -> String {
        "-".to_owned()
    }
}

/// MQTT 5.0.
mod v5 {
    use rumqttc::v5::mqttbytes::v5::{
        LastWill, Publish, PublishProperties, SubAck, SubscribeReasonCode,
    };

    use super::{PACKET, bytes, hex};

    client!(
        run,
        rumqttc::v5,
        rumqttc::v5::Incoming,
        rumqttc::v5::mqttbytes::QoS
    );

    fn set(options: &mut MqttOptions, clean: bool, will: Option<&str>) {
        options
            .set_clean_start(clean)
            .set_max_packet_size(Some(PACKET));
        options.set_session_expiry_interval(Some(if clean { 0 } else { 60 }));
        if let Some(topic) = will {
            options.set_last_will(LastWill::new(topic, "gone", QoS::AtLeastOnce, false, None));
        }
    }

    fn publish(
        client: &Client,
        topic: &str,
        qos: QoS,
        retain: bool,
        payload: Vec<u8>,
        properties: bool,
    ) {
        if !properties {
            return client.publish(topic, qos, retain, payload).unwrap();
        }
        let properties = PublishProperties {
            payload_format_indicator: Some(1),
            message_expiry_interval: Some(3600),
            content_type: Some("text/plain".to_owned()),
            response_topic: Some("answer".to_owned()),
            correlation_data: Some(vec![0, 0xff].into()),
            user_properties: [("a", "1"), ("a", "2")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..PublishProperties::default()
        };
        client
            .publish_with_properties(topic, qos, retain, payload, properties)
            .unwrap();
    }

    fn granted(suback: &SubAck) -> u8 {
        match suback.return_codes.first() {
            Some(SubscribeReasonCode::Success(qos)) => *qos as u8,
            _ => 0x80,
        }
    }

    fn properties(publish: Publish) -> String {
        let Some(properties) = publish.properties else {
            return "-".to_owned();
        };
        let mut fields = Vec::new();
        let one = |name: &str, value: Option<String>| value.map(|value| format!("{name}={value}"));
        let format = properties.payload_format_indicator;
        fields.extend(one("format", format.map(|format| format.to_string())));
        let expiry = properties.message_expiry_interval;
        fields.extend(one("expiry", expiry.map(|expiry| expiry.to_string())));
        fields.extend(one("type", properties.content_type));
        fields.extend(one("response", properties.response_topic));
        let correlation = properties.correlation_data;
        fields.extend(one("correlation", correlation.map(|data| hex(&data))));
        for (name, value) in properties.user_properties {
            fields.push(format!("user={name}:{value}"));
        }
        if fields.is_empty() {
            "-".to_owned()
        } else {
            fields.join(",")
        }
    }
}
