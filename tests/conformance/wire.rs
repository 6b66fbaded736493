//! A scripted client: its case decides the bytes that it sends, and checks each packet that comes.

mod data;

use std::{collections::VecDeque, fmt::Debug, time::Duration};

use bytes::Bytes;
use data::Data;
use mq_proto::{LaneId, Outbox};
use mq_transport::{Link, Progress};
use tokio::time::timeout;

use crate::{
    packet::{
        DISCONNECT, PINGREQ, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, V5, Version, ack, property,
        subscribe, unsubscribe,
    },
    reply::{Answer, ConnAck, Message, Packet},
    streams::{self, Place},
};

/// Time that a broker may take for an immediate answer: far more than it needs, since many cases run side
/// by side.
const PATIENCE: Duration = Duration::from_secs(15);

/// Connection to the broker.
///
/// The client reads only when the case asks for a packet, and the case has to ask for every packet: an
/// unexpected one fails the case at the next question.
#[derive(Debug)]
pub(crate) struct Wire {
    link: Link,
    outbox: Outbox,
    version: Version,
    /// `true` if a broker has to send a reason code for a packet that it refuses, which MQTT 5.0 only recommends.
    says_why: bool,
    closed: bool,
    /// Received packets that the case has not asked for yet.
    arrived: VecDeque<Packet>,
    /// `None` where everything goes on the control lane.
    data: Option<Data>,
    /// Last packet identifier of requests of this type's own.
    last_id: u16,
    fence: String,
    fence_is_up: bool,
}

impl Wire {
    /// Makes the wire of a client; `fence` is a topic of this client's own.
    pub(crate) fn new(link: Link, version: Version, says_why: bool, fence: String) -> Self {
        Self {
            link,
            outbox: Outbox::new(),
            version,
            says_why,
            closed: false,
            arrived: VecDeque::new(),
            data: None,
            // Far from the identifiers that cases choose.
            last_id: 50_000,
            fence,
            fence_is_up: false,
        }
    }

    fn next_id(&mut self) -> u16 {
        self.last_id += 1;
        self.last_id
    }

    /// Sends bytes. The next question shows whether the broker has closed.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let Some(data) = &mut self.data else {
            return self.put_on(LaneId::CONTROL, bytes).await;
        };
        for (place, piece) in data.router.route(bytes) {
            let lane = match place {
                Place::Control => {
                    self.data_is_read().await;
                    Some(LaneId::CONTROL)
                }
                Place::Data => self.data_lane().await,
            };
            if let Some(lane) = lane {
                self.put_on(lane, &piece).await;
            }
        }
    }

    async fn put_on(&mut self, lane: LaneId, bytes: &[u8]) {
        self.outbox.put_body(lane, &Bytes::copy_from_slice(bytes));
        while !self.outbox.is_empty() && !self.closed {
            self.step(false, PATIENCE, "the broker does not read").await;
        }
    }

    /// Waits for the link, and takes what came.
    async fn step(&mut self, want_read: bool, patience: Duration, else_: &str) {
        let progress = self.link.progress(&mut self.outbox, want_read);
        match timeout(patience, progress).await.expect(else_) {
            Ok(Progress::Received(lane)) => self.take_packets(lane),
            Ok(Progress::Flushed | Progress::Datagrams) => {}
            Ok(Progress::LaneClosed(lane, how)) => {
                self.take_packets(lane);
                self.data_closed(lane, how);
            }
            Ok(Progress::Closed) | Err(_) => self.closed = true,
        }
    }

    /// Waits for the next packet; `None` when the broker has closed the connection, or has ended the data stream.
    pub(crate) async fn next(&mut self) -> Option<Packet> {
        self.next_within(PATIENCE).await
    }

    /// Returns the next packet, where it may take longer by the protocol's own timing.
    pub(crate) async fn next_within(&mut self, patience: Duration) -> Option<Packet> {
        loop {
            if let Some(packet) = self.arrived.pop_front() {
                return Some(packet);
            }
            if self.closed {
                let left = self.link.received(LaneId::CONTROL).len();
                assert_eq!(left, 0, "the broker closed in the middle of a packet");
                return None;
            }
            if self.data_has_failed() {
                return None;
            }
            self.step(true, patience, "the broker neither answers nor closes")
                .await;
        }
    }

    /// Waits for the next packet, whose first byte has to be `first` with the bits of `mask`.
    async fn expect(&mut self, mask: u8, first: u8, name: &str) -> Packet {
        match self.next().await {
            Some(packet) if packet.first & mask == first => packet,
            Some(packet) => panic!("{name} should come, not {packet:?}"),
            None => panic!("{name} should come, but the broker closed"),
        }
    }

    pub(crate) async fn connack(&mut self) -> ConnAck {
        let version = self.version;
        self.expect(0xFF, 0x20, "CONNACK").await.connack(version)
    }

    pub(crate) async fn suback(&mut self) -> Answer {
        let version = self.version;
        self.expect(0xFF, 0x90, "SUBACK").await.codes(version)
    }

    pub(crate) async fn unsuback(&mut self) -> Answer {
        let version = self.version;
        self.expect(0xFF, 0xB0, "UNSUBACK").await.codes(version)
    }

    /// Waits for PUBACK, PUBREC, PUBREL or PUBCOMP, by its first byte.
    pub(crate) async fn ack(&mut self, first: u8) -> Answer {
        let version = self.version;
        let packet = self.expect(0xFF, first, "an acknowledgement").await;
        packet.ack(version)
    }

    pub(crate) async fn message(&mut self) -> Message {
        let version = self.version;
        self.expect(0xF0, 0x30, "PUBLISH").await.message(version)
    }

    /// Reads messages, without acknowledging them, up to one to that topic.
    pub(crate) async fn until(&mut self, topic: &str, mut look: impl FnMut(&Message)) {
        loop {
            let message = self.message().await;
            look(&message);
            if message.topic == topic {
                return;
            }
        }
    }

    /// Waits for the next packet, which has to be a message with that payload.
    pub(crate) async fn payload(&mut self, payload: impl AsRef<[u8]>) -> Message {
        let message = self.message().await;
        let (got, wanted) = (&message.payload[..], payload.as_ref());
        let show = String::from_utf8_lossy;
        assert_eq!(got, wanted, "{} and not {}", show(got), show(wanted));
        message
    }

    /// Sends a PINGREQ and sees its answer come next: the connection is alive, everything before
    /// has been dealt with, and no packet of the broker's was under way.
    pub(crate) async fn alive(&mut self) {
        self.send(PINGREQ).await;
        self.pong().await;
    }

    pub(crate) async fn pong(&mut self) {
        let pong = self.expect(0xFF, 0xD0, "PINGRESP").await;
        assert!(pong.body.is_empty(), "{pong:?}");
    }

    /// Takes whatever comes, until the broker closes or nothing has come for a while.
    pub(crate) async fn drain(&mut self, patience: Duration) {
        while !self.closed {
            self.arrived.clear();
            let progress = self.link.progress(&mut self.outbox, true);
            match timeout(patience, progress).await {
                Ok(Ok(Progress::Received(lane))) => self.link.received(lane).clear(),
                Ok(Ok(Progress::Flushed | Progress::Datagrams | Progress::LaneClosed(..))) => {}
                Ok(_) => self.closed = true,
                Err(_) => return,
            }
        }
    }

    /// Checks that no message waits for this client: a message that is published now comes first.
    ///
    /// A PINGREQ would not do, as its answer may overtake waiting messages.
    pub(crate) async fn quiet(&mut self) {
        let fence = self.fence.clone();
        if !self.fence_is_up {
            self.subscribe(&fence, 0).await;
            self.fence_is_up = true;
        }
        self.send(Publish::new(self.version, &fence, "fence").bytes())
            .await;
        let message = self.payload("fence").await;
        assert_eq!(message.topic, fence);
    }

    /// Waits until the broker closes without a word.
    pub(crate) async fn closed(&mut self) {
        if let Some(packet) = self.next().await {
            panic!("the broker should close, not send {packet:?}");
        }
    }

    /// Waits until the broker closes behind its DISCONNECT, which says nothing of what is under way on a data stream.
    pub(crate) async fn closed_behind_disconnect(&mut self) {
        while self.data.is_some() && self.next().await.is_some() {}
        self.closed().await;
    }

    /// Waits until the broker closes; before, MQTT 5.0 has to say why, with one of these reason codes.
    pub(crate) async fn refused(&mut self, codes: &[u8]) {
        self.refused_for(&[], codes).await;
    }

    /// Asserts that these bytes are refused; a failure names them.
    pub(crate) async fn refused_for(&mut self, bytes: &[u8], codes: &[u8]) {
        if self.spoke_on_data() && !streams::ends_the_connection(codes) {
            return self.refused_on_stream(bytes, codes).await;
        }
        match self.next().await {
            Some(packet) if packet.first == 0xE0 && self.version == V5 => {
                let (code, properties) = packet.disconnect();
                assert!(
                    codes.contains(&code),
                    "reason {code:#04x}, not {codes:02X?}: {bytes:02X?}"
                );
                let expiry = properties.get(property::SESSION_EXPIRY);
                assert_eq!(expiry, None, "a server's DISCONNECT has a session expiry");
                self.closed_behind_disconnect().await;
            }
            Some(packet) => panic!("{packet:?} and no refusal of {bytes:02X?}"),
            None => assert!(
                self.version < V5 || !self.says_why,
                "the broker closed without a reason: {bytes:02X?}"
            ),
        }
    }

    /// Subscribes to one filter; returns what SUBACK grants.
    pub(crate) async fn subscribe(&mut self, filter: &str, options: u8) -> u8 {
        let id = self.next_id();
        self.send(subscribe(self.version, id, &[(filter, options)]))
            .await;
        let answer = self.suback().await;
        assert_eq!((answer.id, answer.codes.len()), (id, 1), "{answer:?}");
        answer.codes[0]
    }

    pub(crate) async fn unsubscribe(&mut self, filter: &str) {
        let id = self.next_id();
        self.send(unsubscribe(self.version, id, &[filter])).await;
        assert_eq!(self.unsuback().await.id, id);
    }

    /// Publishes, and waits until the broker has dealt with it.
    pub(crate) async fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: u8) {
        let publish = Publish::new(self.version, topic, payload);
        self.put(publish, qos).await;
    }

    /// Publishes a retained message, as [`publish`](Self::publish).
    pub(crate) async fn retain(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: u8) {
        let publish = Publish::new(self.version, topic, payload).retain();
        self.put(publish, qos).await;
    }

    /// Sends a PUBLISH at that QoS, and goes through what belongs to it.
    pub(crate) async fn put(&mut self, publish: Publish, qos: u8) {
        let id = self.next_id();
        self.send(publish.qos(qos, id).bytes()).await;
        match qos {
            0 => self.alive().await,
            1 => assert_eq!(self.ack(PUBACK).await.id, id),
            _ => {
                assert_eq!(self.ack(PUBREC).await.id, id);
                self.send(ack(PUBREL, id)).await;
                assert_eq!(self.ack(PUBCOMP).await.id, id);
            }
        }
    }

    /// Acknowledges a message to the end of its exchange.
    pub(crate) async fn acknowledge(&mut self, message: &Message) {
        let id = message.id;
        match message.qos {
            0 => {}
            1 => self.send(ack(PUBACK, id)).await,
            _ => {
                self.send(ack(PUBREC, id)).await;
                assert_eq!(self.ack(PUBREL).await.id, id);
                self.send(ack(PUBCOMP, id)).await;
            }
        }
    }

    /// Says goodbye, and waits until the broker has closed.
    pub(crate) async fn leave(mut self) {
        self.send(DISCONNECT).await;
        self.closed().await;
    }

    /// Cuts the connection without a goodbye.
    pub(crate) fn cut(self) {
        drop(self);
    }
}

/// Sees that all of these are different.
pub(crate) fn all_different<T: Ord + Debug + Clone>(values: &[T]) {
    let mut sorted = values.to_vec();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), values.len(), "{values:?}");
}
