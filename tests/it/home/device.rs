//! Tasmota and `ESPHome` by their packets: MQTT 3.1.1 as `PubSubClient` and `esp-mqtt` write it, with the topics of a
//! switch.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use mq_transport::{Address, Connector, LaneId, Link, Outbox, Progress};
use tokio::time::timeout;

/// The longest wait for an answer; virtual time where the clock is paused.
const PATIENCE: Duration = Duration::from_mins(5);

/// The password of every user.
pub(crate) const PASSWORD: &str = "pencil";

/// Fields of a device's CONNECT, and its messages about its availability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogIn {
    pub(crate) client_id: &'static str,
    pub(crate) user: &'static str,
    pub(crate) password: &'static str,
    pub(crate) status_topic: &'static str,
    pub(crate) offline: &'static str,
    pub(crate) online: &'static str,
    pub(crate) will_qos: u8,
    pub(crate) clean: bool,
    pub(crate) keep_alive_s: u8,
}

/// Tasmota with the Topic `plug`.
pub(crate) const TASMOTA: LogIn = LogIn {
    client_id: "DVES_1A2B3C",
    user: "plug",
    password: PASSWORD,
    status_topic: "tele/plug/LWT",
    offline: "Offline",
    online: "Online",
    will_qos: 1,
    clean: true,
    keep_alive_s: 30,
};

/// `ESPHome` with the name `livingroom`.
pub(crate) const ESPHOME: LogIn = LogIn {
    client_id: "livingroom-a0b1c2d3e4f5",
    user: "livingroom",
    password: PASSWORD,
    status_topic: "livingroom/status",
    offline: "offline",
    online: "online",
    will_qos: 0,
    clean: false,
    keep_alive_s: 15,
};

/// A message as a device receives it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Received {
    pub(crate) topic: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) qos: u8,
}

/// A device over any link.
#[derive(Debug)]
pub(crate) struct Device {
    link: Link,
    outbox: Outbox,
    last_id: u16,
    messages: VecDeque<Received>,
}

fn put_text(packet: &mut Vec<u8>, text: &[u8]) {
    packet.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
    packet.extend_from_slice(text);
}

fn packet(first: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    let mut length = rest.len();
    loop {
        let byte = u8::try_from(length % 128).unwrap();
        length /= 128;
        packet.push(byte | if length > 0 { 0x80 } else { 0 });
        if length == 0 {
            break;
        }
    }
    packet.extend_from_slice(rest);
    packet
}

impl LogIn {
    /// Makes CONNECT: will retained, user name and password.
    pub(crate) fn connect(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        put_text(&mut rest, b"MQTT");
        let will = 0x24 | self.will_qos << 3;
        rest.extend([
            4,
            0xC0 | will | u8::from(self.clean) << 1,
            0,
            self.keep_alive_s,
        ]);
        for text in [
            self.client_id,
            self.status_topic,
            self.offline,
            self.user,
            self.password,
        ] {
            put_text(&mut rest, text.as_bytes());
        }
        packet(0x10, &rest)
    }
}

/// Makes SUBSCRIBE with one filter.
pub(crate) fn subscribe(id: u16, filter: &str, qos: u8) -> Vec<u8> {
    let mut rest = id.to_be_bytes().to_vec();
    put_text(&mut rest, filter.as_bytes());
    rest.push(qos);
    packet(0x82, &rest)
}

impl Device {
    /// Connects.
    ///
    /// # Errors
    /// The return code of CONNACK if it is not 0.
    pub(crate) async fn log_in(
        connector: &Connector,
        address: &Address,
        log_in: &LogIn,
    ) -> Result<Self, u8> {
        let mut device = Self {
            link: connector.connect(address).await.unwrap(),
            outbox: Outbox::new(),
            last_id: 0,
            messages: VecDeque::new(),
        };
        device.send(&log_in.connect());
        match device.packet().await.as_deref() {
            Some([0x20, 2, _, 0]) => Ok(device),
            Some([0x20, 2, 0, code]) => Err(*code),
            other => panic!("CONNACK should come, not {other:?}"),
        }
    }

    /// Connects as Tasmota, and sends all that it sends then.
    pub(crate) async fn tasmota(connector: &Connector, address: &Address) -> Self {
        let mut device = Self::log_in(connector, address, &TASMOTA).await.unwrap();
        device.retain(TASMOTA.status_topic, TASMOTA.online).await;
        device.publish(0x30, "cmnd/plug/POWER", b"").await;
        for filter in ["cmnd/plug/#", "cmnd/tasmotas/#", "cmnd/DVES_1A2B3C_fb/#"] {
            assert_eq!(device.subscribe(filter, 0).await, 0, "{filter}");
        }
        let discovery = r#"{"ip":"192.0.2.7","dn":"plug","t":"plug"}"#;
        device
            .retain("tasmota/discovery/A0B1C21A2B3C/config", discovery)
            .await;
        device
    }

    /// Connects as `ESPHome`, and sends all that it sends then; the QoS is that of `subscribe_qos`.
    pub(crate) async fn esphome(connector: &Connector, address: &Address, qos: u8) -> Self {
        let mut device = Self::log_in(connector, address, &ESPHOME).await.unwrap();
        for (filter, qos) in [
            ("esphome/discover", 2),
            ("esphome/ping/livingroom", 2),
            ("livingroom/switch/relay/command", qos),
        ] {
            assert_eq!(device.subscribe(filter, qos).await, qos, "{filter}");
        }
        device
            .publish(0x35, "esphome/discover/livingroom", b"{}")
            .await;
        let discovery = r#"{"name":"relay","cmd_t":"livingroom/switch/relay/command"}"#;
        device
            .retain("homeassistant/switch/livingroom/relay/config", discovery)
            .await;
        device.retain(ESPHOME.status_topic, ESPHOME.online).await;
        device
    }

    async fn retain(&mut self, topic: &str, payload: &str) {
        self.publish(0x31, topic, payload.as_bytes()).await;
    }

    /// Publishes with that first byte, at QoS 0 or 2, and waits until the packet is written or the exchange is over.
    pub(crate) async fn publish(&mut self, first: u8, topic: &str, payload: &[u8]) {
        let mut rest = Vec::new();
        put_text(&mut rest, topic.as_bytes());
        let is_qos_2 = first & 6 == 4;
        if is_qos_2 {
            self.last_id += 1;
            rest.extend(self.last_id.to_be_bytes());
        }
        rest.extend_from_slice(payload);
        self.send(&packet(first, &rest));
        if is_qos_2 {
            let id = self.last_id.to_be_bytes();
            assert_eq!(self.answer().await, [0x50, 2, id[0], id[1]]);
            self.send(&[0x62, 2, id[0], id[1]]);
            assert_eq!(self.answer().await, [0x70, 2, id[0], id[1]]);
        }
        while !self.outbox.is_empty() && self.progress(false).await {}
    }

    /// Subscribes, and returns the code of SUBACK.
    pub(crate) async fn subscribe(&mut self, filter: &str, qos: u8) -> u8 {
        self.last_id += 1;
        self.send(&subscribe(self.last_id, filter, qos));
        let answer = self.answer().await;
        let id = self.last_id.to_be_bytes();
        assert_eq!(answer[..4], [0x90, 3, id[0], id[1]]);
        answer[4]
    }

    /// Waits for the next message, and acknowledges it at QoS 1.
    pub(crate) async fn message(&mut self) -> Received {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return message;
            }
            let packet = self.packet().await.expect("the broker should not close");
            self.take(&packet);
        }
    }

    /// Waits until the broker closes the connection; `false` if it answers a ping.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.send(&[0xC0, 0]);
        while let Some(packet) = self.packet().await {
            if packet == [0xD0, 0] {
                return false;
            }
            self.take(&packet);
        }
        true
    }

    /// Waits for the next packet that is no message.
    async fn answer(&mut self) -> Vec<u8> {
        loop {
            let packet = self.packet().await.expect("the broker should not close");
            if !self.take(&packet) {
                return packet;
            }
        }
    }

    /// Keeps a message for later; returns `false` if the packet is none.
    fn take(&mut self, packet: &[u8]) -> bool {
        if packet[0] & 0xF0 != 0x30 {
            return false;
        }
        let qos = packet[0] >> 1 & 3;
        let length = packet[1..]
            .iter()
            .position(|byte| byte & 0x80 == 0)
            .unwrap();
        let (size, rest) = packet[length + 2..].split_at(2);
        let (topic, rest) = rest.split_at(usize::from(u16::from_be_bytes([size[0], size[1]])));
        let (id, payload) = rest.split_at(if qos > 0 { 2 } else { 0 });
        if qos == 1 {
            self.send(&[0x40, 2, id[0], id[1]]);
        }
        self.messages.push_back(Received {
            topic: String::from_utf8(topic.to_vec()).unwrap(),
            payload: payload.to_vec(),
            qos,
        });
        true
    }

    fn send(&mut self, bytes: &[u8]) {
        let put = self.outbox.put(LaneId::CONTROL, |out| {
            out.extend_from_slice(bytes);
            Ok::<_, Infallible>(())
        });
        put.unwrap();
    }

    /// Reads the next packet; `None` if the connection has ended.
    async fn packet(&mut self) -> Option<Vec<u8>> {
        loop {
            let received = self.link.received(LaneId::CONTROL);
            if let Some(size) = size(received) {
                return Some(received.split_to(size).to_vec());
            }
            if !self.progress(true).await {
                return None;
            }
        }
    }

    async fn progress(&mut self, want_read: bool) -> bool {
        let progress = self.link.progress(&mut self.outbox, want_read);
        let progress = timeout(PATIENCE, progress)
            .await
            .expect("the broker should answer");
        !matches!(progress, Ok(Progress::Closed) | Err(_))
    }
}

/// Returns the size of the packet at the front; `None` if it is not complete.
fn size(bytes: &[u8]) -> Option<usize> {
    let (mut length, mut factor) = (0, 1);
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        length += usize::from(byte & 0x7F) * factor;
        factor *= 128;
        if byte & 0x80 == 0 {
            let size = at + 1 + length;
            return (bytes.len() >= size).then_some(size);
        }
    }
    None
}
