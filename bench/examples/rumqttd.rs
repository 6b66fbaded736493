//! rumqttd as a program, `rumqttd PORT [TLS-PORT CERTIFICATE KEY]`: MQTT 3.1.1 over TCP, and over TLS, with the limits
//! of its own example configuration, so that it can be measured like any other broker.

use serde_json::json;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let port = |text: &String| -> u16 { text.parse().expect("a port is a number") };
    let server = |name: &str, port: u16| {
        json!({
            "name": name,
            "listen": format!("127.0.0.1:{port}"),
            "next_connection_delay_ms": 1,
            "connections": {
                "connection_timeout_ms": 60000,
                "max_payload_size": 20480,
                "max_inflight_count": 500,
                "dynamic_filters": true,
            },
        })
    };
    let servers = match arguments.as_slice() {
        [tcp] => json!({"1": server("v4-1", port(tcp))}),
        [tcp, tls, certificate, key] => {
            let mut encrypted = server("v4-2", port(tls));
            encrypted["tls"] = json!({"certpath": certificate, "keypath": key});
            json!({"1": server("v4-1", port(tcp)), "2": encrypted})
        }
        _ => panic!("usage: rumqttd PORT [TLS-PORT CERTIFICATE KEY]"),
    };
    let config = json!({
        "id": 0,
        "router": {
            "max_connections": 10010,
            "max_outgoing_packet_count": 200,
            "max_segment_size": 104_857_600,
            "max_segment_count": 10,
        },
        "v4": servers,
    });
    let config: rumqttd::Config = serde_json::from_value(config).expect("a valid configuration");
    rumqttd::Broker::new(config).start().expect("it starts");
}
