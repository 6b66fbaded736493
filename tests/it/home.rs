//! Programs of a home with the settings of `docs/guide/home.md`: Tasmota and `ESPHome` as packets, zigbee2mqtt and Home
//! Assistant as clients with their options. `tests/suites` has the latter two, and Node-RED, with their own libraries.

mod device;
mod small_tls;

use std::{fs, time::Duration};

use device::{Device, ESPHOME, LogIn, PASSWORD, TASMOTA};
use mq_broker::{Broker, Config, Settings};
use mq_client::{
    Client, ClientBuilder, Error, Outgoing, QoS, ReasonCode, Reconnect, Subscription, Version,
};
use mq_transport::{Address, ConnectOptions, Connector, Scheme, Trust};
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use crate::root;

const VERSIONS: [Version; 2] = [Version::V3_1_1, Version::V5];

/// The longest wait for a message; virtual time where the clock is paused.
const PATIENCE: Duration = Duration::from_mins(5);

/// Returns the text that the guide writes to a file.
fn in_guide(file: &str) -> String {
    let page = fs::read_to_string(root().join("docs/guide/home.md")).unwrap();
    let (_, text) = page.split_once(&format!("cat >{file} <<'END'\n")).unwrap();
    let (text, _) = text.split_once("END\n").unwrap();
    text.to_owned()
}

/// A broker with the guide's configuration and rules, at ports of loopback that are free.
struct Home {
    broker: Broker,
    folder: TempDir,
}

impl Home {
    async fn start() -> Self {
        Self::start_with(|config| config).await
    }

    async fn start_with(change: impl FnOnce(String) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let key = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
        let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
        write("server.pem", &certificate.self_signed(&key).unwrap().pem());
        write("server.key", &key.serialize_pem());
        // By `mosquitto_passwd`, which is fast.
        let hash = "$7$101$FZZ0UNgSFP8t2lxC$HnZt7dEpxtgrXAUGYtFCa+ZgSH3DaGu9eqP+6sRF1GFeIOcND243Nblmv4oxdSdxNUG+InsvCCeZY658jWztvw==";
        let users = [
            "homeassistant",
            "zigbee2mqtt",
            "nodered",
            "plug",
            "livingroom",
        ];
        write(
            "passwords",
            &users.map(|user| format!("{user}:{hash}\n")).concat(),
        );
        write("acl", &in_guide("/etc/mqbroker/acl"));
        let config = change(in_guide("/etc/mqbroker/mqbroker.toml"));
        let (config, _) = config.split_once("[admin]").unwrap();
        let mut config = config.to_owned();
        for (from, to) in [
            ("/etc/mqbroker", folder.path().to_str().unwrap()),
            ("/var/lib/mqbroker", folder.path().to_str().unwrap()),
            ("0.0.0.0:1883", "127.0.0.1:0"),
            ("0.0.0.0:8883", "127.0.0.1:0"),
            ("0.0.0.0:8084", "127.0.0.1:0"),
        ] {
            assert!(config.contains(from), "{from}");
            config = config.replace(from, to);
        }
        write("mqbroker.toml", &config);
        let broker = Self::broker(&folder).await;
        Self { broker, folder }
    }

    async fn broker(folder: &TempDir) -> Broker {
        let file = folder.path().join("mqbroker.toml");
        let config = Config::read(&file).unwrap();
        Broker::start(config.into_settings(&file).unwrap())
            .await
            .unwrap()
    }

    /// Ends the broker in order and starts it again with its files, at other ports.
    async fn restart(self) -> Self {
        let Self { broker, folder } = self;
        broker.shutdown().await;
        let broker = Self::broker(&folder).await;
        Self { broker, folder }
    }

    fn address(&self, scheme: Scheme) -> Address {
        let mut all = self.broker.addresses().iter();
        let mut address = all.find(|at| at.scheme == scheme).unwrap().clone();
        if scheme != Scheme::Tcp {
            "localhost".clone_into(&mut address.host);
        }
        address
    }

    fn connector(&self) -> Connector {
        let trust = Trust::CaFile(self.folder.path().join("server.pem"));
        Connector::new(ConnectOptions {
            trust,
            ..ConnectOptions::default()
        })
        .unwrap()
    }

    /// Makes a program's client, with a clean session.
    fn client(&self, scheme: Scheme, user: &str, version: Version) -> ClientBuilder {
        let client = Client::builder(&self.address(scheme).to_string()).unwrap();
        let client = client.connector(self.connector()).client_id(user).unwrap();
        let client = client.credentials(user, PASSWORD).unwrap();
        clean(client, version)
    }

    async fn home_assistant(&self, version: Version) -> Client {
        let client = self.client(Scheme::Tcp, "homeassistant", version);
        client.build().await.unwrap()
    }
}

fn clean(client: ClientBuilder, version: Version) -> ClientBuilder {
    let client = client.version(version).clean_start(true);
    client
        .session_expiry(Duration::ZERO)
        .reconnect(Reconnect::never())
}

async fn next(messages: &mut Subscription) -> (String, String, bool) {
    let message = timeout(PATIENCE, messages.recv()).await.unwrap().unwrap();
    let payload = String::from_utf8(message.payload.to_vec()).unwrap();
    (message.topic.to_string(), payload, message.retain)
}

async fn retain(client: &Client, topic: &str, payload: impl Into<bytes::Bytes>) {
    let message = Outgoing::to(topic, payload.into()).unwrap().retain(true);
    let mut receipt = client.send(message.qos(QoS::AtLeastOnce)).await.unwrap();
    receipt.acknowledged().await.unwrap();
}

/// Starts a broker in memory where everybody may do everything, for virtual time.
async fn open_broker(name: &str) -> (Broker, Address) {
    let address: Address = format!("mem://home-{name}").parse().unwrap();
    let broker = Broker::start(Settings::new(vec![address.clone()]))
        .await
        .unwrap();
    (broker, address)
}

async fn assistant_at(address: &Address) -> Client {
    let client = Client::builder(&address.to_string()).unwrap();
    clean(client, Version::V5).build().await.unwrap()
}

fn plain() -> Connector {
    Connector::new(ConnectOptions::default()).unwrap()
}

async fn boot(log_in: &LogIn, address: &Address) -> Device {
    if log_in.user == TASMOTA.user {
        Device::tasmota(&plain(), address).await
    } else {
        Device::esphome(&plain(), address, 0).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_that_loses_power_shows_as_offline_after_one_and_a_half_keep_alives() {
    let (broker, address) = open_broker("power").await;
    let assistant = assistant_at(&address).await;
    for log_in in [TASMOTA, ESPHOME] {
        let topic = log_in.status_topic;
        let mut states = assistant.subscribe(topic, QoS::AtMostOnce).await.unwrap();
        let _unplugged = boot(&log_in, &address).await;
        assert_eq!(next(&mut states).await.1, log_in.online);
        let since = Instant::now();
        assert_eq!(next(&mut states).await.1, log_in.offline);
        let time = since.elapsed().as_secs_f64() - f64::from(log_in.keep_alive_s) * 1.5;
        assert!((-0.1..1.0).contains(&time), "{topic}: {time} s late");
        // Home Assistant that starts later sees it as well.
        let later = assistant_at(&address).await;
        let mut states = later.subscribe(topic, QoS::AtMostOnce).await.unwrap();
        let offline = (topic.to_owned(), log_in.offline.to_owned(), true);
        assert_eq!(next(&mut states).await, offline);
    }
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_device_whose_power_is_back_before_it_is_missed_ends_up_online() {
    let (broker, address) = open_broker("blip").await;
    let assistant = assistant_at(&address).await;
    for log_in in [TASMOTA, ESPHOME] {
        let topic = log_in.status_topic;
        let mut states = assistant.subscribe(topic, QoS::AtMostOnce).await.unwrap();
        let _unplugged = boot(&log_in, &address).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let _back = boot(&log_in, &address).await;
        for state in [log_in.online, log_in.offline, log_in.online] {
            assert_eq!(next(&mut states).await.1, state, "{topic}");
        }
        let later = assistant_at(&address).await;
        let mut states = later.subscribe(topic, QoS::AtMostOnce).await.unwrap();
        assert_eq!(next(&mut states).await.1, log_in.online);
    }
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_command_waits_for_a_device_only_where_session_and_both_qos_say_so() {
    let (broker, address) = open_broker("away").await;
    let assistant = assistant_at(&address).await;
    let topic = "livingroom/switch/relay/command";
    for (clean, subscribed, sent, waits) in [
        (true, 0, QoS::AtLeastOnce, false),
        (true, 1, QoS::AtLeastOnce, false),
        // ESPHome's default, and that of Tasmota with SetOption140.
        (false, 0, QoS::AtLeastOnce, false),
        (false, 1, QoS::AtMostOnce, false),
        (false, 1, QoS::AtLeastOnce, true),
    ] {
        let log_in = LogIn { clean, ..ESPHOME };
        let mut asleep = Device::log_in(&plain(), &address, &log_in).await.unwrap();
        asleep.subscribe(topic, subscribed).await;
        drop(asleep);
        // The will shows that the broker has seen it go.
        let mut states = assistant
            .subscribe(log_in.status_topic, QoS::AtMostOnce)
            .await
            .unwrap();
        while next(&mut states).await.1 != log_in.offline {}
        assistant.publish(topic, "ON", sent).await.unwrap();
        let mut back = Device::log_in(&plain(), &address, &log_in).await.unwrap();
        back.subscribe(topic, subscribed).await;
        assistant.publish(topic, "fence", sent).await.unwrap();
        if waits {
            assert_eq!(back.message().await.payload, b"ON");
        }
        let case = format!("{clean} {subscribed} {sent:?}");
        assert_eq!(back.message().await.payload, b"fence", "{case}");
        // The next case begins without a session.
        let clean = LogIn {
            clean: true,
            ..ESPHOME
        };
        drop(Device::log_in(&plain(), &address, &clean).await.unwrap());
        retain(&assistant, log_in.status_topic, "").await;
        while !next(&mut states).await.1.is_empty() {}
    }
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_command_of_any_qos_reaches_tasmota_at_qos_0() {
    let (broker, address) = open_broker("qos").await;
    let assistant = assistant_at(&address).await;
    let mut plug = Device::tasmota(&plain(), &address).await;
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        assistant
            .publish("cmnd/plug/POWER", "ON", qos)
            .await
            .unwrap();
        let command = plug.message().await;
        assert_eq!((&*command.payload, command.qos), (&b"ON"[..], 0));
        assert_eq!(command.topic, "cmnd/plug/POWER");
    }
    broker.shutdown().await;
}

/// Filters of Home Assistant, and the one retained message that each finds.
const FOUND: &[(&str, &str)] = &[
    (
        "homeassistant/+/+/config",
        "homeassistant/device/0x0c/config",
    ),
    (
        "homeassistant/+/+/+/config",
        "homeassistant/switch/livingroom/relay/config",
    ),
    (
        "tasmota/discovery/#",
        "tasmota/discovery/A0B1C21A2B3C/config",
    ),
    ("zigbee2mqtt/bridge/devices", "zigbee2mqtt/bridge/devices"),
    ("livingroom/status", "livingroom/status"),
    ("tele/plug/LWT", "tele/plug/LWT"),
];

/// Finds the retained messages, and returns the states of the two devices.
async fn find(home: &Home, version: Version) -> [String; 2] {
    let assistant = home.home_assistant(version).await;
    let mut states = Vec::new();
    for (filter, topic) in FOUND {
        let mut messages = assistant.subscribe(*filter, QoS::AtMostOnce).await.unwrap();
        let (found, payload, is_retained) = next(&mut messages).await;
        assert_eq!((&*found, is_retained), (*topic, true));
        states.push(payload);
    }
    assistant.disconnect().await.unwrap();
    states.split_off(4).try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_survives_restarts_of_the_broker_and_of_home_assistant() {
    let mut home = Home::start().await;
    let (connector, at) = (home.connector(), home.address(Scheme::Tcp));
    let plug = Device::tasmota(&connector, &at).await;
    let livingroom = Device::esphome(&connector, &at, 0).await;
    let bridge = home.client(Scheme::Tls, "zigbee2mqtt", Version::V5);
    let bridge = bridge.build().await.unwrap();
    retain(&bridge, "homeassistant/device/0x0c/config", "{}").await;
    // A list of the devices of a large house.
    retain(&bridge, "zigbee2mqtt/bridge/devices", vec![b'x'; 3_000_000]).await;
    for version in VERSIONS {
        assert_eq!(find(&home, version).await, ["online", "Online"]);
    }
    home = home.restart().await;
    // The devices have not come back.
    for version in VERSIONS {
        assert_eq!(find(&home, version).await, ["offline", "Offline"]);
    }
    drop((plug, livingroom));
    let at = home.address(Scheme::Tcp);
    let _plug = Device::tasmota(&connector, &at).await;
    let _livingroom = Device::esphome(&connector, &at, 0).await;
    for version in VERSIONS {
        assert_eq!(find(&home, version).await, ["online", "Online"]);
    }
    home.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_the_guide_let_each_do_its_work_and_no_more() {
    let home = Home::start().await;
    let (connector, at) = (home.connector(), home.address(Scheme::Tcp));
    let assistant = home.home_assistant(Version::V5).await;
    let mut all = assistant.subscribe("#", QoS::AtMostOnce).await.unwrap();
    let mut plug = Device::tasmota(&connector, &at).await;
    for topic in [
        "tele/plug/LWT",
        "cmnd/plug/POWER",
        "tasmota/discovery/A0B1C21A2B3C/config",
    ] {
        assert_eq!(next(&mut all).await.0, topic);
    }
    let mut livingroom = Device::esphome(&connector, &at, 0).await;
    for topic in [
        "esphome/discover/livingroom",
        "homeassistant/switch/livingroom/relay/config",
        "livingroom/status",
    ] {
        assert_eq!(next(&mut all).await.0, topic);
    }
    for (topics, device) in [
        (
            &[
                "cmnd/plug/POWER",
                "cmnd/tasmotas/POWER",
                "cmnd/DVES_1A2B3C_fb/POWER",
            ][..],
            &mut plug,
        ),
        (
            &["livingroom/switch/relay/command", "esphome/discover"],
            &mut livingroom,
        ),
    ] {
        for topic in topics {
            let sent = assistant.publish(*topic, "ON", QoS::AtMostOnce).await;
            sent.unwrap();
            assert_eq!(next(&mut all).await.0, *topic);
            assert_eq!(device.message().await.topic, *topic);
        }
    }
    // Denied at QoS 0 and 2, and the connection stays, as before 5.0 no answer says so.
    for (device, fence) in [
        (&mut plug, "stat/plug/RESULT"),
        (&mut livingroom, "livingroom/fence"),
    ] {
        for topic in [
            "homeassistant/status",
            "zigbee2mqtt/lamp/set",
            "cmnd/other/POWER",
            "tele/other/LWT",
        ] {
            device.publish(0x30, topic, b"no").await;
            device.publish(0x34, topic, b"no").await;
        }
        device.publish(0x30, fence, b"yes").await;
        assert_eq!(next(&mut all).await.0, fence);
        for filter in [
            "homeassistant/+/+/+/config",
            "zigbee2mqtt/#",
            "cmnd/other/#",
        ] {
            assert_eq!(device.subscribe(filter, 0).await, 0x80, "{filter}");
        }
    }
    let bridge = home.client(Scheme::Tcp, "zigbee2mqtt", Version::V5);
    let bridge = bridge.build().await.unwrap();
    for topic in [
        "zigbee2mqtt/lamp",
        "zigbee2mqtt/bridge/state",
        "homeassistant/light/0x0c/light/config",
    ] {
        bridge.publish(topic, "{}", QoS::AtLeastOnce).await.unwrap();
        assert_eq!(next(&mut all).await.0, topic);
    }
    for filter in ["zigbee2mqtt/#", "homeassistant/#", "homeassistant/status"] {
        bridge.subscribe(filter, QoS::AtMostOnce).await.unwrap();
    }
    for topic in [
        "cmnd/plug/POWER",
        "livingroom/switch/relay/command",
        "tele/plug/LWT",
    ] {
        match bridge.publish(topic, "ON", QoS::AtLeastOnce).await {
            Err(Error::PublishRefused { reason }) => assert_eq!(reason, ReasonCode::NotAuthorized),
            other => panic!("{topic}: {other:?}"),
        }
    }
    home.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_right_password_lets_a_device_in() {
    let home = Home::start().await;
    let (connector, at) = (home.connector(), home.address(Scheme::Tcp));
    for log_in in [TASMOTA, ESPHOME] {
        for (user, password) in [(log_in.user, "pencils"), ("other", PASSWORD), ("", "")] {
            let log_in = LogIn {
                user,
                password,
                ..log_in
            };
            let refused = Device::log_in(&connector, &at, &log_in).await;
            assert_eq!(refused.unwrap_err(), 4, "{log_in:?}");
        }
    }
    home.broker.shutdown().await;
}

/// Publishes a list of devices as zigbee2mqtt does in MQTT 3.1.1. Returns `false` if the broker closes the connection.
async fn publish_list(home: &Home, bytes: usize) -> bool {
    let log_in = LogIn {
        client_id: "mqttjs_1a2b3c4d",
        user: "zigbee2mqtt",
        status_topic: "zigbee2mqtt/bridge/state",
        ..TASMOTA
    };
    let (connector, at) = (home.connector(), home.address(Scheme::Tcp));
    let mut bridge = Device::log_in(&connector, &at, &log_in).await.unwrap();
    bridge
        .publish(0x31, "zigbee2mqtt/bridge/devices", &vec![b'x'; bytes])
        .await;
    !bridge.is_closed().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_devices_over_a_megabyte_needs_the_packet_size_of_the_guide() {
    let home = Home::start().await;
    assert!(publish_list(&home, 4_000_000).await);
    assert!(!publish_list(&home, 4_200_000).await);
    home.broker.shutdown().await;
    let default = Home::start_with(|config| {
        let lines = config
            .lines()
            .filter(|line| !line.starts_with("max_packet_size"));
        lines.collect::<Vec<_>>().join("\n")
    })
    .await;
    assert!(publish_list(&default, 1_000_000).await);
    assert!(!publish_list(&default, 1_100_000).await);
    default.broker.shutdown().await;
}
