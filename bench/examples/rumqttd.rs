//! rumqttd as a program: MQTT 3.1.1 over TCP at the port that is given, with the limits of its own
//! example configuration, so that it can be measured like any other broker.

fn main() {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|port| port.parse().ok())
        .expect("usage: rumqttd PORT");
    let config = serde_json::json!({
        "id": 0,
        "router": {
            "max_connections": 10010,
            "max_outgoing_packet_count": 200,
            "max_segment_size": 104_857_600,
            "max_segment_count": 10,
        },
        "v4": {"1": {
            "name": "v4-1",
            "listen": format!("127.0.0.1:{port}"),
            "next_connection_delay_ms": 1,
            "connections": {
                "connection_timeout_ms": 60000,
                "max_payload_size": 20480,
                "max_inflight_count": 500,
                "dynamic_filters": true,
            },
        }},
    });
    let config: rumqttd::Config = serde_json::from_value(config).expect("a valid configuration");
    rumqttd::Broker::new(config).start().expect("it starts");
}
