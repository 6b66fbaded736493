//! Hosts in a row, as a campaign runs them.

use serde_json::Value;

use crate::program::run_campaign;

/// A thing behind one bridge, behind two, and straight to the cloud; with an outage of the last uplink, and without.
const ROW: &str = r#"
title = "a test's"
source = "none"
[work]
link = "s21/wired-1ms"
uplink = "s21/wired-25ms"
messages = 30
interval = "100ms"
qos = 1
mqtt = "5"
[variants."quic bridge"]
topology = "fog"
transport = "tcp"
bridge = "quic"
[variants."tls bridges"]
topology = "fog"
transport = "tcp"
bridge = "tls"
tiers = 3
[variants."tls direct"]
topology = "direct"
transport = "tls"
[variants."quic direct"]
topology = "direct"
transport = "quic"
tiers = 3
[factors]
variant = ["quic bridge", "tls bridges", "tls direct", "quic direct"]
outage = ["0s", "1s"]
[plot]
kind = "bars"
metric = "latency_p50"
x = "outage"
series = "variant"
"#;

#[test]
fn a_row_delivers_everything_through_brokers_and_routers_and_over_an_outage() {
    let Some(records) = run_campaign(ROW) else {
        return;
    };
    for (variant, roles) in [
        ("quic bridge", &["publisher", "edge", "subscriber"][..]),
        (
            "tls bridges",
            &["publisher", "edge", "edge-2", "subscriber"],
        ),
        ("tls direct", &["publisher", "edge", "subscriber"]),
        (
            "quic direct",
            &["publisher", "edge", "edge-2", "subscriber"],
        ),
    ] {
        for outage in ["0s", "1s"] {
            let of_cell = |record: &&Value| {
                record["levels"]["variant"] == variant && record["levels"]["outage"] == outage
            };
            // A disturbed run is repeated, and the last one counts.
            let record = records.iter().rfind(of_cell).unwrap();
            let outcome = &record["outcome"];
            assert_eq!(outcome["error"], Value::Null, "{record}");
            let metric = |name: &str| outcome["metrics"][name].as_f64();
            assert_eq!(metric("lost"), Some(0.0), "{record}");
            let links = outcome["link"]["measured"].as_array().unwrap();
            let of: Vec<_> = links
                .iter()
                .map(|link| link["of"].as_str().unwrap())
                .collect();
            assert_eq!(of, roles, "{record}");
            // 0.5 ms, and 12.5 ms for each uplink.
            let uplinks = roles.len() - 2;
            let least = if uplinks == 1 { 13.0 } else { 25.5 };
            assert!(metric("latency_p50").unwrap() >= least, "{record}");
            // A message has 100 bytes, and is acknowledged.
            assert!(
                metric("uplink_bytes_per_message").unwrap() > 100.0,
                "{record}"
            );
            assert!(
                metric("uplink_packets_per_message").unwrap() > 0.5,
                "{record}"
            );
            let up = &links[uplinks]["up"];
            let lost = up["lost"].as_u64().unwrap();
            assert!(up["bytes"].as_u64().unwrap() > 3_000, "{record}");
            if outage == "1s" {
                assert!(metric("gap").unwrap() >= 1_000.0, "{record}");
                assert!(metric("late").unwrap() > 0.0 && lost > 0, "{record}");
            } else {
                assert_eq!((metric("gap"), lost), (None, 0), "{record}");
            }
        }
    }
}
